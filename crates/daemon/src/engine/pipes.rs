//! Pipes: two clients in one region, without a switch.

use port::pipe;
use port::pipe::Pipe;
use protocol::name::{PipeSide, PortName};

use super::Workers;
use super::memory::geometry;
use crate::control::datapath::pipes::Pipes;
use crate::model::error::DatapathError;
use crate::model::keys::PipeKey;
use crate::model::opening::Build;
use crate::model::replies::{Attachment, Lease};
use crate::model::specs::RingSpec;

impl Pipes for Workers {
    fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64> {
        let layout = pipe::region_layout(rings.counts, rings.extra_bufs, rings.stride);
        layout.ok().map(|layout| layout.size() as u64)
    }

    fn add_pipe(&mut self, pipe: PipeKey, rings: &RingSpec) -> Result<(), DatapathError> {
        let RingSpec { counts, extra_bufs, stride } = *rings;
        let made = Pipe::new("pipe", counts, extra_bufs, stride, &self.reclaimer.closer())?;
        self.pipes.insert(pipe, made);
        Ok(())
    }

    fn build_pipe(&mut self, pipe: PipeKey) -> Build {
        let reservation = self.pipes[&pipe].reservation().clone();
        Box::new(move || reservation.build_while_wanted())
    }

    fn open_pipe(
        &mut self,
        pipe: PipeKey,
        side: PipeSide,
        name: &PortName,
        user: u32,
    ) -> Result<Attachment, DatapathError> {
        let closer = self.reclaimer.closer_for(user);
        let end = match side {
            PipeSide::Master => 0,
            PipeSide::Slave => 1,
        };
        let known = self.pipes.get_mut(&pipe).expect("control knows which pipes there are");
        let open = known.open(end, &closer)?;
        let counts = open.layout.counts();
        let (extra_bufs, stride) = (open.extra_bufs, open.region.stride());
        let rings = RingSpec { counts, extra_bufs, stride };
        let mut geometry = geometry(name, &open.region, &open.layout, &rings);
        geometry.peer_block = Some(open.peer.nifp() as u64);
        let lease = Lease::new(open.region.clone());
        let (wake, kick) = (open.socket.try_clone()?, open.socket);
        // From here on nothing fails.
        self.huge_pages.request(self.pipes[&pipe].reservation(), lease.life());
        Ok(Attachment { geometry, lease, region: open.fd, kick, wake })
    }

    fn del_pipe(&mut self, pipe: PipeKey) {
        if let Some(pipe) = self.pipes.remove(&pipe) {
            let bytes = pipe.reservation().region().layout().size();
            self.reclaimer.drop(pipe, bytes);
        }
    }
}
