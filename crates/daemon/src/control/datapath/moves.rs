//! Ports that move from one worker of their switch to another.

use crate::model::error::DatapathError;
use crate::model::keys::PortKey;

/// Ports that move from one worker of their switch to another.
pub trait Moves {
    /// The worker that takes a port's frames; `None` while the port carries none.
    fn worker_of_port(&self, port: PortKey) -> Option<u32>;

    /// Has another worker of the switch take a port's frames.
    fn move_port(&mut self, port: PortKey, worker: u32) -> Result<(), DatapathError>;
}

#[cfg(test)]
mod fake {
    use super::Moves;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::keys::PortKey;

    impl Moves for Fake {
        fn worker_of_port(&self, port: PortKey) -> Option<u32> {
            self.ports.contains_key(&port).then(|| self.moved.get(&port).copied().unwrap_or(0))
        }

        fn move_port(&mut self, port: PortKey, worker: u32) -> Result<(), DatapathError> {
            self.allocate()?;
            self.moved.insert(port, worker);
            Ok(())
        }
    }
}
