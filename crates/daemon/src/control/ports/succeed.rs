//! Ports of clients that the daemon before this one had: they are checked as if they were attached
//! now, and go on where that one has stopped.

use port::sys::ClosedElsewhere;
use protocol::HandedPort;
use switch::PortConfig;

use super::attach::held_port;
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::{Holder, Port, Wish};
use crate::control::{Client, Control};
use crate::handed::Successor;
use crate::model::handed::Inherited;
use crate::model::keys::PortKey;
use crate::model::specs::{RingSpec, ShmSpec};

impl<D: Datapath> Control<D> {
    /// Takes over the port of a client, whose connection is known.
    pub(in crate::control) fn succeed(
        &mut self,
        client: &Client,
        successor: Successor,
    ) -> Result<(), Refusal> {
        let Successor { port, rings, inherited, stations, .. } = successor;
        let key = PortKey(self.state.new_key());
        let added = self.add_successor(client, key, &port, rings, inherited);
        if added.is_err() {
            if let Some(switch) = self.state.forget_switch(port.attach.port.switch()) {
                self.datapath.del_switch(switch);
            }
            return added;
        }
        if !stations.is_empty() {
            self.datapath.learn(key, stations);
        }
        Ok(())
    }

    fn add_successor(
        &mut self,
        client: &Client,
        key: PortKey,
        port: &HandedPort,
        rings: RingSpec,
        inherited: ClosedElsewhere<Inherited>,
    ) -> Result<(), Refusal> {
        let (caller, name) = (&client.caller, &port.attach.port);
        let memory = self.price(name, &rings)?;
        let wish = Wish { port: name, memory, group: None, existing: false, alone: false };
        self.state.check(caller, &wish)?;
        let config = self.state.find_port(name).map(|port| port.config.clone());
        let config = config.unwrap_or_default();
        check_config(&config)?;
        let switch = self.find_or_make(caller, name.switch())?;
        let worker = config.worker;
        let spec = ShmSpec {
            key,
            name: name.clone(),
            switch,
            worker,
            rings,
            group: None,
            group_memory: 0,
        };
        let config = PortConfig {
            user: caller.uid,
            usual_max_macs: self.usual_max_macs(caller.uid),
            ..config
        };
        let lease = self.datapath.take_over(&spec, config.clone(), inherited)?;
        let held = held_port(client, None, key, memory, &port.attach);
        let holder = held.holder.map(|holder| Holder { ready: true, ..holder });
        self.state.hold(name, Port { config, holder, ..held });
        self.note_user(name, caller.uid);
        self.lease(client.conn, name, lease);
        self.refresh_port(name);
        Ok(())
    }
}

/// The configuration may have made something else of the port meanwhile.
fn check_config(config: &PortConfig) -> Result<(), Refusal> {
    match config.role.service.is_some() || config.mirror.is_some() {
        true => Err(Refusal::bad_value("another port than before".to_owned())),
        false => Ok(()),
    }
}
