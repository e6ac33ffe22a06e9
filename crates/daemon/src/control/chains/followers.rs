//! Which functions follow each other in chains. Those that share a thread ask, and then call the
//! next one instead of sending frames by the switch.
//!
//! A function follows another where both are the only live instances of their services, and of one
//! trust group. What a function was told last is kept, and it is told to ask again when the answer
//! has become another.

use protocol::name::{PortName, SwitchName};
use protocol::{NextFunction, PortKind, Reply};
use switch::Forwarding;

use crate::control::datapath::Datapath;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::control::{Answer, Client, Control};
use crate::model::keys::PortKey;

impl<D: Datapath> Control<D> {
    /// Answers the function that holds a port.
    pub(in crate::control) fn next_functions(
        &mut self,
        client: &Client,
        name: &PortName,
    ) -> Answer {
        let key = self.own_port(client, name)?;
        let next = self.followers_of(name);
        self.notes.followers.insert(key, next.clone());
        Ok((Reply::NextFunctions(next), Vec::new()))
    }

    /// The key of a port that this connection holds.
    fn own_port(&self, client: &Client, name: &PortName) -> Result<PortKey, Refusal> {
        let port = self.state.find_port(name).filter(|port| {
            port.holder.as_ref().is_some_and(|holder| holder.conn == client.conn && holder.ready)
        });
        port.map(|port| port.key).ok_or_else(|| PortRefusal::NotHeld(name.clone()).into())
    }

    /// Has functions of a switch ask again that other ones follow now. To be called after ports or
    /// chains have changed.
    pub(in crate::control) fn update_followers(&mut self, switch: &SwitchName) {
        let datapath = &self.datapath;
        self.notes.followers.retain(|port, _| datapath.number_of(*port).is_some());
        if self.notes.followers.is_empty() {
            return;
        }
        let asked = self.state.ports_of(switch);
        let asked = asked.filter(|(_, port)| self.notes.followers.contains_key(&port.key));
        let now: Vec<_> = asked.map(|(name, port)| (port.key, self.followers_of(name))).collect();
        for (port, next) in now {
            let told = self.notes.followers.insert(port, next.clone());
            if told != Some(next) {
                self.datapath.prompt_function(port);
            }
        }
    }

    /// What follows the function at a port.
    fn followers_of(&self, name: &PortName) -> Vec<NextFunction> {
        let (mut all, switch_name) = (Vec::new(), name.switch());
        let Some(switch) = self.state.find_switch(switch_name) else { return all };
        if switch.config.forwarding != Forwarding::Chain {
            return all;
        }
        for (chain, spec) in switch.steering.numbered() {
            let services: Vec<&str> = spec.service_names().collect();
            for (position, pair) in (0..).zip(services.windows(2)) {
                let ends = [0, 1].map(|end| self.only_instance(switch_name, pair[end]));
                let [Some((own, from)), Some((next, to))] = ends else { continue };
                if own == name && from.key != to.key && are_of_one_group(from, to) {
                    let (order, port) = (switch.steering.order(chain), next.clone());
                    all.push(NextFunction { chain, order, position, port });
                }
            }
        }
        all
    }

    /// The port of a service that has no other.
    fn only_instance<'a>(
        &'a self,
        switch: &'a SwitchName,
        service: &str,
    ) -> Option<(&'a PortName, &'a Port)> {
        let is_its = |port: &Port| port.config.role.service.as_deref() == Some(service);
        let ports = self.state.ports_of(switch);
        let mut ports = ports.filter(|(_, port)| is_its(port) && port.is_live());
        ports.next().filter(|_| ports.next().is_none())
    }
}

fn are_of_one_group(one: &Port, other: &Port) -> bool {
    let group = |port: &Port| {
        let holder = port.holder.as_ref().filter(|_| port.kind == PortKind::Shm)?;
        holder.group.clone()
    };
    group(one).is_some() && group(one) == group(other)
}
