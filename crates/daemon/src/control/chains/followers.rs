//! Which functions follow each other in chains. Those that share a thread ask, and then call the
//! next one instead of sending frames by the switch.
//!
//! A function follows another where both are the only live instances of their services, and of one
//! trust group. The last answer to a function is kept, and the function is asked to call again when
//! the answer has become another.

use std::collections::BTreeMap;

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
        let next = self.followers(name.switch()).remove(&key).unwrap_or_default();
        self.notes.followers.insert(key, next.clone());
        Ok((Reply::NextFunctions(next), Vec::new()))
    }

    /// The key of a port that this connection holds.
    pub(in crate::control) fn own_port(
        &self,
        client: &Client,
        name: &PortName,
    ) -> Result<PortKey, Refusal> {
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
        let asked = self.state.ports_of(switch).map(|(_, port)| port.key);
        let asked: Vec<_> = asked.filter(|key| self.notes.followers.contains_key(key)).collect();
        if asked.is_empty() {
            return;
        }
        let mut followers = self.followers(switch);
        for port in asked {
            let next = followers.remove(&port).unwrap_or_default();
            let told = self.notes.followers.insert(port, next.clone());
            if told != Some(next) {
                self.datapath.prompt_function(port);
            }
        }
    }

    /// What follows each function of a switch. It reads the ports once and the chains once: a
    /// switch at its limits has thousands of ports and hundreds of chains.
    fn followers(&self, name: &SwitchName) -> BTreeMap<PortKey, Vec<NextFunction>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        let Some(switch) = self.state.find_switch(name) else { return all };
        if switch.config.forwarding != Forwarding::Chain {
            return all;
        }
        let instances = self.only_instances(name);
        for (chain, spec) in switch.steering.numbered() {
            let order = switch.steering.order(chain);
            let ends = spec.service_names().map(|name| instances.get(name).copied().flatten());
            let ends: Vec<_> = ends.collect();
            for (position, pair) in (0..).zip(ends.windows(2)) {
                let &[Some((_, from)), Some((next, to))] = pair else { continue };
                if from.key != to.key && are_of_one_group(from, to) {
                    let next = NextFunction { chain, order, position, port: next.clone() };
                    all.entry(from.key).or_default().push(next);
                }
            }
        }
        all
    }

    /// The live instance of each service of a switch; `None` where a service has several.
    fn only_instances<'a>(
        &'a self,
        switch: &'a SwitchName,
    ) -> BTreeMap<&'a str, Option<(&'a PortName, &'a Port)>> {
        let mut instances = BTreeMap::new();
        for (name, port) in self.state.ports_of(switch).filter(|(_, port)| port.is_live()) {
            let Some(service) = port.config.role.service.as_deref() else { continue };
            let only = instances.entry(service).and_modify(|only| *only = None);
            only.or_insert(Some((name, port)));
        }
        instances
    }
}

fn are_of_one_group(one: &Port, other: &Port) -> bool {
    let group = |port: &Port| {
        let holder = port.holder.as_ref().filter(|_| port.kind == PortKind::Shm)?;
        holder.group.clone()
    };
    group(one).is_some() && group(one) == group(other)
}
