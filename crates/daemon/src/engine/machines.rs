//! Ports of virtual machines: opened here, served by a thread of their own, used by a worker.
//!
//! When a machine goes, the addresses learnt behind its port are forgotten: it may come back
//! elsewhere.

use std::time::Duration;

use port::host::Absent;
use port::machine::{MachinePort, Place, Spec, State, Status};
use port::queue::{Queue, QueueMemory};
use port::{netdev, vhost_user};
use protocol::{MachineInfo, MachineState, Mode, PortKind, SocketPlace, StallStage};
use switch::{Adapter, Flush, Plug};

use super::Workers;
use super::slow_calls::PeerOf;
use crate::control::datapath::machines::Machines;
use crate::model::error::{DatapathError, MakeMachineError};
use crate::model::keys::PortKey;
use crate::model::specs::MachineSpec;

/// A machine's port.
#[derive(Debug)]
pub(super) struct MachinePlace {
    socket: Spec,
    /// Or why its socket could not be made.
    port: Result<MachinePort, String>,
    /// How often its machine had gone when it was looked at last.
    ends: u32,
}

impl MachinePlace {
    fn status(&self) -> Option<&Status> {
        self.port.as_ref().ok().map(MachinePort::status)
    }

    fn state(&self) -> MachineState {
        match self.status().map(Status::state) {
            None => MachineState::Closed,
            Some(State::Waiting) => MachineState::Waiting,
            Some(State::Connected) => MachineState::Connected,
            Some(State::Up) => MachineState::Up,
        }
    }

    fn complaint(&self) -> Option<String> {
        match &self.port {
            Ok(port) => port.status().complaint(),
            Err(why) => Some(why.clone()),
        }
    }

    fn place(&self) -> Option<SocketPlace> {
        Some(match self.port.as_ref().ok()?.place()? {
            Place::Ours { owner, group, mode } => {
                let mode = u16::try_from(mode).ok().and_then(Mode::new)?;
                SocketPlace::Ours { owner, group, mode }
            }
            Place::Empty => SocketPlace::Gone,
            Place::Other => SocketPlace::Replaced,
        })
    }

    /// Whether the machine has gone since the last look; it may be back already.
    fn has_gone(&mut self) -> bool {
        let ends = self.status().map_or(0, Status::ends);
        std::mem::replace(&mut self.ends, ends) != ends
    }
}

impl Workers {
    fn plug_machine(
        &mut self,
        spec: &MachineSpec,
        adapter: Box<dyn Adapter>,
        port: Result<MachinePort, String>,
    ) -> Result<(), MakeMachineError> {
        let place = self.new_place(spec.switch, &spec.config)?;
        self.plug(spec.key, place, Plug::adapter(adapter), spec.config.clone());
        let place = MachinePlace { socket: spec.socket.clone(), port, ends: 0 };
        self.machines.insert(spec.key, place);
        if spec.kind == PortKind::VhostUser {
            self.note_guest(spec.key);
        }
        Ok(())
    }

    /// Something has happened to one of them.
    pub(super) fn refresh_machines(&mut self) {
        let gone =
            self.machines.iter_mut().filter_map(|(key, place)| place.has_gone().then_some(*key));
        for key in gone.collect::<Vec<_>>() {
            if let Some((switch, id)) = self.switch_of(key) {
                self.on_switch(switch, move |worker, at| {
                    worker.switch(at).bridge_mut().flush(Flush::Port(id))
                });
            }
        }
    }
}

/// An adapter with a queue in front of it, if it is to have one.
fn queued(adapter: Box<dyn Adapter>, frames: u32) -> Result<Box<dyn Adapter>, DatapathError> {
    if frames == 0 {
        return Ok(adapter);
    }
    let memory = QueueMemory::new(frames).map_err(DatapathError::System)?;
    Ok(Box::new(Queue::before(adapter, memory)))
}

impl Machines for Workers {
    fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError> {
        self.new_place(spec.switch, &spec.config)?;
        let peer = PeerOf { port: spec.key, user: spec.config.user, switch: Some(spec.switch) };
        let stages = [StallStage::Send, StallStage::Receive, StallStage::Wake];
        let [sends, receives, wakes] = stages.map(|stage| self.slow_calls(peer, stage));
        let calls = netdev::PeerCalls { sends, receives };
        let (socket, bell) = (&spec.socket, self.host.ringer());
        let (adapter, port) = match spec.kind {
            PortKind::Stream => netdev::open_stream(socket, calls, bell)?,
            PortKind::Dgram => netdev::open_dgram(socket, calls, bell)?,
            PortKind::VhostUser => {
                let (adapter, port) = vhost_user::open(socket, wakes, bell)?;
                (queued(adapter, spec.config.queue_frames)?, port)
            }
            other => unreachable!("ports of kind {} have no machine", other.name()),
        };
        self.plug_machine(spec, adapter, Ok(port))
    }

    fn add_machine_without_socket(
        &mut self,
        spec: &MachineSpec,
        why: String,
    ) -> Result<(), MakeMachineError> {
        self.plug_machine(spec, Box::new(Absent), Err(why))
    }

    fn evict_machine(&mut self, port: PortKey, period: Duration, why: String) {
        // A port without a socket has no VMM.
        if let Some(Ok(port)) = self.machines.get(&port).map(|place| &place.port) {
            port.evict(period, why);
        }
        // The worker looks at the port also if the VMM blocks the port's thread. Ports that wait
        // for room here wait no more.
        if let Some(place) = self.ports.get(&port) {
            let number = place.number;
            self.on_port(place, move |worker, _| worker.serve(number));
        }
    }

    fn set_queue(&mut self, port: PortKey, memory: QueueMemory) {
        let Some(place) = self.ports.get(&port) else { return };
        let id = place.id;
        let old = self.on_port(place, move |worker, at| {
            let plug = worker.switch(at).plug_mut(id)?;
            let mut memory = Some(memory);
            let new = |queue: &mut Queue| memory.take().map(|memory| queue.resize(memory));
            let old = plug.with_adapter(new).flatten();
            if let Some(memory) = memory {
                plug.wrap_adapter(|inner| Box::new(Queue::before(inner, memory)));
            }
            old
        });
        if let Some(old) = old {
            self.reclaimer.run(move || drop(old));
        }
    }

    fn machine_info(&self, port: PortKey) -> Option<MachineInfo> {
        let place = self.machines.get(&port)?;
        Some(MachineInfo {
            socket: place.socket.path.display().to_string(),
            connect: place.socket.connects,
            queues: place.socket.pairs,
            coalesce_usecs: place.socket.coalesce.map(|given| given.usecs),
            coalesce_frames: place.socket.coalesce.map(|given| given.frames).filter(|n| *n > 0),
            peer: place.socket.peer.as_ref().map(|path| path.display().to_string()),
            state: place.state(),
            pid: place.status().and_then(Status::process),
            complaint: place.complaint(),
            rejected_peer: place.status().and_then(Status::rejected),
            place: place.place(),
        })
    }
}
