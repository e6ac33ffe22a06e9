//! Ports that move from one worker of their switch to another.
//!
//! # Theory of operation
//!
//! ```text
//!   new worker     the client's kick rings here, too, for a number without a port
//!   old worker     nothing of the port rings here any more; it is exchanged for a handle of it
//!   new worker     its handle is exchanged for the port, whose descriptors it watches; the first
//!                  turns look at its rings
//! ```
//!
//! A port with a client has a kick, one without rings has descriptors.
//!
//! Between two turns a worker has delivered all that it took, so the frames of a port keep their
//! order. Those that come meanwhile stay in its rings. Frames for the port are delivered all the
//! time. Counters stay where they were counted.

use super::Workers;
use crate::control::datapath::moves::Moves;
use crate::model::error::DatapathError;
use crate::model::keys::PortKey;

impl Moves for Workers {
    fn worker_of_port(&self, port: PortKey) -> Option<u32> {
        u32::try_from(self.ports.get(&port)?.worker).ok()
    }

    fn move_port(&mut self, port: PortKey, worker: u32) -> Result<(), DatapathError> {
        let Some(place) = self.ports.get(&port) else { return Ok(()) };
        let (switch, id, number, from) = (place.switch, place.id, place.number, place.worker);
        let to = usize::try_from(worker).unwrap_or(usize::MAX);
        if from == to || !self.workers_of(switch).contains(&to) {
            return Ok(());
        }
        let (_, new) = self.next_place(switch, to)?;
        let ringer = self.ringer_of(to);
        if let Some(kick) = self.on_port(place, move |it, _| it.kick_at(number, &ringer))? {
            self.workers[to].handle.call(move |worker| worker.connect(new, kick))?;
        }
        // From here on nothing fails.
        let given = self.on_port(place, move |worker, _| {
            worker.disconnect(number);
            worker.give_port(number).expect("control knows which ports there are")
        });
        let at = self.place(switch).at;
        self.workers[to].handle.call(move |worker| worker.take_port(new, at, id, given));
        self.workers[from].ports.give_back(number as usize);
        self.workers[to].ports.take(new as usize);
        let place = self.ports.get_mut(&port).expect("looked up just now");
        (place.worker, place.number) = (to, new);
        Ok(())
    }
}
