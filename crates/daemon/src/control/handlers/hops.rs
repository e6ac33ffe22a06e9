//! Direct hops: what functions ask, and what becomes of it.

use std::os::fd::OwnedFd;

use protocol::name::{PortName, SwitchName};
use protocol::{HopCall, HopEnd, HopInfo, HopRef, PortKind, PortRef, Reply};
use switch::Forwarding;

use super::{Answer, Client, Control, Port, groups};
use crate::control::datapath::Datapath;
use crate::control::hops::{Carried, Wanted};
use crate::control::refusal::{ChainRefusal, PortRefusal, Refusal};
use crate::control::state::groups::GroupSize;
use crate::model::keys::{HopKey, PortKey};

impl<D: Datapath> Control<D> {
    /// Answers the function that holds a port.
    pub(super) fn hop_call(&mut self, client: &Client, call: HopCall) -> Answer {
        let (port, fds) = match call {
            HopCall::List(PortRef { port }) => {
                let key = self.own_port(client, &port)?;
                if self.hops.note_aware(key) {
                    self.tend_hops(port.switch());
                }
                return Ok((Reply::Hops(self.hops_of(key)), Vec::new()));
            }
            HopCall::Open(HopRef { port, hop }) => {
                let (hop, end) = self.own_end(client, &port, hop)?;
                let fds = self.datapath.open_hop(hop, end)?;
                self.hops.open(hop, end);
                (port, Vec::<OwnedFd>::from(fds))
            }
            HopCall::Close(HopRef { port, hop }) => {
                let (hop, end) = self.own_end(client, &port, hop)?;
                self.hops.close(hop, end);
                (port, Vec::new())
            }
        };
        self.tend_hops(port.switch());
        Ok((Reply::Done, fds))
    }

    /// The key of a port that this connection holds.
    fn own_port(&self, client: &Client, name: &PortName) -> Result<PortKey, Refusal> {
        let port = self.state.find_port(name).filter(|port| {
            port.holder.as_ref().is_some_and(|holder| holder.conn == client.conn && holder.ready)
        });
        port.map(|port| port.key).ok_or_else(|| Refusal::from(PortRefusal::NotHeld(name.clone())))
    }

    fn own_end(
        &self,
        client: &Client,
        name: &PortName,
        hop: u32,
    ) -> Result<(HopKey, usize), Refusal> {
        let (hop, port) = (HopKey(hop), self.own_port(client, name)?);
        let end = self.hops.end_of(hop, port);
        end.map(|end| (hop, end))
            .ok_or_else(|| Refusal::from(ChainRefusal::NoHop(name.clone(), hop.0)))
    }

    fn hops_of(&self, port: PortKey) -> Vec<HopEnd> {
        let end = |(key, hop): (HopKey, &crate::control::hops::Hop)| {
            let end = hop.ends.iter().position(|end| *end == port)?;
            let (seen, place) = (hop.seen(end)?, self.datapath.hop_place(key));
            Some(HopEnd {
                hop: key.0,
                sends: end == 0,
                block: place.block,
                tx_slots: place.tx_slots,
                rx_slots: place.rx_slots,
                state: seen.state,
                routes: seen.routes,
            })
        };
        self.hops.all().filter_map(end).collect()
    }

    /// After ports, chains, or what functions have of hops have changed.
    pub(super) fn tend_hops(&mut self, name: &SwitchName) {
        // One that goes may have been in the way of another, and who has a new one is told so.
        while self.change_hops(name) {}
        let state = &self.state;
        self.hops.forget(|name| state.find_port(name).is_some());
    }

    /// Does what there is to do; returns whether there may be more.
    fn change_hops(&mut self, name: &SwitchName) -> bool {
        let chosen = self.hops.choose(name, self.asked_hops(name).into_iter());
        let datapath = &self.datapath;
        let changes = self.hops.plan(name, chosen, |port| datapath.number_of(port).is_some());
        let mut has_changed = !changes.over.is_empty();
        for (hop, names) in changes.over {
            let traffic = self.datapath.del_hop(hop);
            self.hops.note_past(names, traffic.frames, traffic.waiting.into());
        }
        for wanted in changes.new {
            let key = self.hops.next_key();
            match self.make_hop(key, &wanted) {
                Ok(()) => {
                    self.hops.add(key, name, wanted);
                    has_changed = true;
                }
                Err(error) if self.hops.note_failure(&wanted.names, error.code()) => {
                    let [from, to] = wanted.names;
                    tracing::warn!("{from} to {to} go by the switch, not directly: {error}");
                }
                Err(_) => {}
            }
        }
        changes.tell.into_iter().for_each(|port| self.datapath.tell(port));
        has_changed
    }

    /// Makes a hop, in the region of the functions' group.
    fn make_hop(&mut self, key: HopKey, wanted: &Wanted) -> Result<(), Refusal> {
        let sender = self.state.find_port(&wanted.names[0]);
        let holder = sender.and_then(|port| port.holder.as_ref()).expect("it is in a group");
        let size = GroupSize { usual: 0, least: 0 };
        let wish = holder.group.clone().and_then(|key| self.state.group_wish(key, None, size).ok());
        let made = self.datapath.add_hop(key, wanted.ends);
        made.map_err(|error| groups::refused(error, wish.as_ref()))
    }

    /// The hops that the chains of a switch ask for.
    fn asked_hops(&self, name: &SwitchName) -> Vec<Wanted> {
        let Some(switch) = self.state.find_switch(name) else { return Vec::new() };
        let mut asked = Vec::new();
        let chains = switch.steering.numbered().filter(|(_, chain)| chain.direct);
        for (number, chain) in chains.filter(|_| switch.config.forwarding == Forwarding::Chain) {
            let services: Vec<&str> = chain.service_names().collect();
            for (position, pair) in (0..).zip(services.windows(2)) {
                let ends = (self.only_instance(name, pair[0]), self.only_instance(name, pair[1]));
                let (Some(from), Some(to)) = ends else { continue };
                if self.may_join(from, to) {
                    let (ends, names) = ([from.1.key, to.1.key], [from.0.clone(), to.0.clone()]);
                    let routes = vec![(number, switch.steering.order(number), position)];
                    asked.push(Wanted { ends, names, routes });
                }
            }
        }
        asked
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

    /// Are both in one group, and do their functions know what hops are?
    fn may_join(&self, (_, from): (&PortName, &Port), (_, to): (&PortName, &Port)) -> bool {
        let group = |port: &Port| {
            let holder = port.holder.as_ref().filter(|_| port.kind == PortKind::Shm)?;
            holder.group.clone()
        };
        let aware = |port: &Port| self.hops.is_aware(port.key);
        from.key != to.key
            && group(from).is_some()
            && group(from) == group(to)
            && aware(from)
            && aware(to)
    }

    /// The hops of a chain, for a listing.
    pub(super) fn hops_of_chain(&self, switch: &SwitchName, chain: u8) -> Vec<HopInfo> {
        let all = self.hops.all().filter(|(_, hop)| hop.carries(switch, chain));
        let info = |(key, hop): (HopKey, &crate::control::hops::Hop)| {
            let (traffic, [from, to]) = (self.datapath.hop_traffic(key), hop.names.clone());
            let (frames, waiting) = (traffic.frames, traffic.waiting);
            HopInfo { from, to, frames, waiting, open: hop.is_open() }
        };
        all.map(info).collect()
    }

    /// What went to and from a port by hops.
    pub(super) fn carried(&self, port: &PortName) -> Carried {
        self.hops.carried(port, |hop| self.datapath.hop_traffic(hop).frames)
    }
}
