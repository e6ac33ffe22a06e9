//! Ports of virtual machines: opened here, served by a thread of their own, used by a worker.
//!
//! When a machine goes, the addresses learnt behind its port are forgotten: it may come back
//! elsewhere.

use client::api::{MachineState, VhostInfo};
use client::name::PortName;
use port::host::Absent;
use port::vhost_user::{Spec, State, VhostPort, open};
use switch::{Adapter, Flush, Plug};

use super::{PortPlace, Workers};
use crate::control::datapath::{MakeVhostError, PortKey, VhostSpec};

/// A machine's port.
#[derive(Debug)]
pub(super) struct VhostPlace {
    name: PortName,
    socket: Spec,
    /// None where the socket could not be made.
    port: Option<VhostPort>,
    /// What was known of it last.
    known: State,
}

impl VhostPlace {
    fn state(&self) -> State {
        self.port.as_ref().map_or(State::Waiting, |port| port.status().state())
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
        let (name, socket) = (spec.name.clone(), spec.socket.clone());
        let place = VhostPlace { name, socket, port, known: State::Waiting };
        self.vhosts.insert(spec.key, place);
        Ok(())
    }

    /// Something has happened to one of them.
    pub(super) fn tend_vhosts(&mut self) {
        let mut silent = Vec::new();
        for (&key, place) in &mut self.vhosts {
            let state = place.state();
            let known = std::mem::replace(&mut place.known, state);
            if known == State::Up && state != State::Up {
                silent.push(key);
            }
            if known != State::Up && state == State::Up {
                tracing::info!("{}: its machine is up", place.name);
            }
        }
        for key in silent {
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
            pid: place.port.as_ref().and_then(|port| port.status().process()),
        })
    }
}
