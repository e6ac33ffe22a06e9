//! Pipes: two clients in one region, without a switch.

use protocol::name::{PipeSide, PortName};

use crate::model::error::DatapathError;
use crate::model::keys::PipeKey;
use crate::model::opening::Build;
use crate::model::replies::Attachment;
use crate::model::specs::RingSpec;

/// Pipes: two clients in one region, without a switch.
pub trait Pipes {
    /// Bytes of shared memory of a pipe whose two ends have these rings.
    fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64>;

    /// Reserves the region of a pipe. Both ends have these rings: one end's transmit rings are the
    /// other end's receive rings.
    fn add_pipe(&mut self, pipe: PipeKey, rings: &RingSpec) -> Result<(), DatapathError>;

    /// Commits the memory of a pipe, unless that is done already.
    fn build_pipe(&mut self, pipe: PipeKey) -> Build;

    /// Opens one end of a pipe whose memory is built, for the client of this user with port `name`.
    /// A client may open the end again after the previous one left.
    fn open_pipe(
        &mut self,
        pipe: PipeKey,
        side: PipeSide,
        name: &PortName,
        user: u32,
    ) -> Result<Attachment, DatapathError>;

    /// Removes a pipe that both clients have left.
    fn del_pipe(&mut self, pipe: PipeKey);
}

#[cfg(test)]
mod fake {
    use protocol::name::{PipeSide, PortName};

    use super::Pipes;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::control::fake::attachment;
    use crate::model::error::DatapathError;
    use crate::model::keys::PipeKey;
    use crate::model::opening::Build;
    use crate::model::replies::Attachment;
    use crate::model::specs::RingSpec;

    impl Pipes for Fake {
        fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64> {
            self.memory_of(rings).map(|bytes| 2 * bytes)
        }

        fn add_pipe(&mut self, pipe: PipeKey, _: &RingSpec) -> Result<(), DatapathError> {
            self.allocate()?;
            assert!(self.pipes.insert(pipe, 0).is_none());
            Ok(())
        }

        fn build_pipe(&mut self, pipe: PipeKey) -> Build {
            assert!(self.pipes.contains_key(&pipe));
            self.build()
        }

        fn open_pipe(
            &mut self,
            pipe: PipeKey,
            _: PipeSide,
            name: &PortName,
            _user: u32,
        ) -> Result<Attachment, DatapathError> {
            self.allocate()?;
            *self.pipes.get_mut(&pipe).expect("known") += 1;
            Ok(attachment(name, &crate::config::Config::default().rings))
        }

        fn del_pipe(&mut self, pipe: PipeKey) {
            self.pipes.remove(&pipe).expect("known");
        }
    }
}
