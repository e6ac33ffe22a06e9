//! Traces of frames, made by the worker of the port between two batches.

use packet::PortId;
use switch::TraceStep;

use super::Workers;
use crate::control::datapath::traces::Traces;
use crate::engine::worker::Worker;
use crate::model::keys::PortKey;

impl Traces for Workers {
    fn trace(&mut self, port: PortKey, head: Vec<u8>, bytes: u32) -> Option<Vec<TraceStep>> {
        let place = self.ports.get(&port)?;
        let id = place.id;
        let look = move |worker: &mut Worker, at| {
            let now = worker.now();
            worker.switch(at).trace(id, &head, bytes, now)
        };
        Some(self.on_port(place, look))
    }

    fn port_beside(&self, port: PortKey, id: PortId) -> Option<PortKey> {
        let (switch, _) = self.switch_of(port)?;
        self.place(switch).keys.get(&id).copied()
    }
}
