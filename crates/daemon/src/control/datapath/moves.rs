//! Ports that move from one worker of their switch to another.

use crate::model::error::DatapathError;
use crate::model::keys::PortKey;
use crate::model::opening::Build;

/// Ports that move from one worker of their switch to another.
pub trait Moves {
    /// The worker that takes a port's frames; `None` while the port carries none.
    fn worker_of_port(&self, port: PortKey) -> Option<u32>;

    /// What has to be done before [`Moves::move_port`], and may wait for other processes.
    fn begin_move(&mut self, port: PortKey, worker: u32) -> Option<Build>;

    /// Has another worker of the switch take a port's frames.
    fn move_port(&mut self, port: PortKey, worker: u32) -> Result<(), DatapathError>;
}

#[cfg(test)]
mod fake {
    use super::Moves;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::keys::PortKey;
    use crate::model::opening::Build;

    impl Moves for Fake {
        fn worker_of_port(&self, port: PortKey) -> Option<u32> {
            self.ports.contains_key(&port).then(|| self.moved.get(&port).copied().unwrap_or(0))
        }

        fn begin_move(&mut self, _: PortKey, _: u32) -> Option<Build> {
            Some(self.build())
        }

        fn move_port(&mut self, port: PortKey, worker: u32) -> Result<(), DatapathError> {
            self.allocate()?;
            self.moved.insert(port, worker);
            Ok(())
        }
    }
}
