//! Ports of virtual machines: opened here, served by a thread of their own, used by a worker.
//!
//! When a machine goes, the addresses learnt behind its port are forgotten: it may come back
//! elsewhere.

use client::api::{MachineState, VhostInfo};
use port::host::Absent;
use port::vhost_user::{Spec, State, Status, VhostPort, open};
use switch::{Adapter, Flush, Plug};

use super::{PortPlace, Workers};
use crate::control::datapath::{MakeVhostError, PortKey, VhostSpec};

/// A machine's port.
#[derive(Debug)]
pub(super) struct VhostPlace {
    socket: Spec,
    /// None where the socket could not be made.
    port: Option<VhostPort>,
    /// How often its machine had gone when it was looked at last.
    ends: u32,
}

impl VhostPlace {
    fn status(&self) -> Option<&Status> {
        self.port.as_ref().map(VhostPort::status)
    }

    fn state(&self) -> State {
        self.status().map_or(State::Waiting, Status::state)
    }

    /// Has its machine gone since it was looked at last? It may be back already.
    fn has_gone(&mut self) -> bool {
        let ends = self.status().map_or(0, Status::ends);
        std::mem::replace(&mut self.ends, ends) != ends
    }
}

impl Workers {
    pub(super) fn open_vhost(&mut self, spec: &VhostSpec) -> Result<(), MakeVhostError> {
        self.next_place(spec.switch)?;
        let (adapter, port) = open(&spec.socket, self.host.ringer())?;
        self.plug_vhost(spec, adapter, Some(port))
    }

    pub(super) fn plug_silent(&mut self, spec: &VhostSpec) -> Result<(), MakeVhostError> {
        self.plug_vhost(spec, Box::new(Absent), None)
    }

    fn plug_vhost(
        &mut self,
        spec: &VhostSpec,
        adapter: Box<dyn Adapter>,
        port: Option<VhostPort>,
    ) -> Result<(), MakeVhostError> {
        let (id, number) = self.next_place(spec.switch)?;
        let place = PortPlace { switch: spec.switch, id, number, bytes: 0, memory: None };
        self.plug(spec.key, place, Plug::Adapter(adapter), spec.config.clone());
        let place = VhostPlace { socket: spec.socket.clone(), port, ends: 0 };
        self.vhosts.insert(spec.key, place);
        Ok(())
    }

    /// Something has happened to one of them.
    pub(super) fn tend_vhosts(&mut self) {
        let gone =
            self.vhosts.iter_mut().filter_map(|(key, place)| place.has_gone().then_some(*key));
        for key in gone.collect::<Vec<_>>() {
            if let Some((switch, id)) = self.switch_of(key) {
                self.on_switch(switch, move |worker, at| {
                    worker.switch(at).bridge_mut().flush(Flush::Port(id))
                });
            }
        }
    }

    pub(super) fn describe_vhost(&self, port: PortKey) -> Option<VhostInfo> {
        let place = self.vhosts.get(&port)?;
        Some(VhostInfo {
            socket: place.socket.path.display().to_string(),
            connect: place.socket.connects,
            queues: place.socket.pairs,
            state: match place.state() {
                State::Waiting => MachineState::Waiting,
                State::Connected => MachineState::Connected,
                State::Up => MachineState::Up,
            },
            pid: place.status().and_then(Status::process),
        })
    }
}
