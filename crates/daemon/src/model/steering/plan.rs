//! What a switch is to do, by numbers, of what is written down by names.

use std::collections::{BTreeMap, BTreeSet};

use packet::PortId;
use packet::rule::Rule;
use protocol::check::steering::{self, hop};
use protocol::{ChainSpec, RuleSpec};
use switch::chain::service::{Balance, INSTANCES_MAX};
use switch::chain::{Chain, Out, Plan, ServicePlan};

use crate::model::steering::{NOTHING, Steering, View, free};

impl Steering {
    /// Gives a number to every service that chains and ports name. Where there are not enough, it
    /// is chains of the past that go without, and ports.
    fn number_services(&mut self, ports: &[View<'_>]) {
        let named = self.chains.values().flat_map(|(_, chain)| chain.service_names());
        let roles = ports.iter().filter_map(|port| port.role.service.as_deref());
        let past = self.past.iter().rev().flat_map(|(.., chain)| chain.service_names());
        let mut wanted = BTreeSet::new();
        for name in named.chain(roles).chain(past) {
            if wanted.len() < usize::from(NOTHING) && !wanted.contains(name) {
                wanted.insert(name.to_owned());
            }
        }
        let new = wanted.iter().filter(|&name| !self.services.contains_key(name)).count();
        if self.services.len() + new > usize::from(NOTHING) {
            self.services.retain(|name, _| wanted.contains(name));
        }
        for name in wanted {
            if !self.services.contains_key(&name) {
                let number = free(&mut self.next_service, self.services.values());
                self.services.insert(name, number.expect("there are as many as are wanted"));
            }
        }
    }

    /// What a switch with these ports is to do.
    pub fn plan(&mut self, ports: &[View<'_>]) -> Plan {
        self.number_services(ports);
        let ids: BTreeMap<&str, PortId> =
            ports.iter().filter_map(|port| Some((port.name, port.id?))).collect();
        let id = |name: &str| ids.get(name).copied();
        let entry = |port: &View<'_>| {
            let chain = self.chains.get(port.role.chain.as_ref()?);
            // Of one that is not there: it drops them.
            Some((port.id?, chain.map_or(NOTHING, |(number, _)| *number)))
        };
        Plan {
            services: self.plan_services(ports),
            chains: self.plan_chains(&id),
            past: self.plan_past(&id),
            rules: self.plan_rules(&id),
            ingress: ports.iter().filter_map(entry).collect(),
        }
    }

    fn plan_chains(&self, id: &impl Fn(&str) -> Option<PortId>) -> Vec<Option<Chain>> {
        let mut chains = vec![None; room(self.chains.values().map(|(number, _)| number).max())];
        for (number, chain) in self.chains.values() {
            chains[usize::from(*number)] = self.plan_chain(chain, self.order(*number), id);
        }
        chains
    }

    fn plan_past(&self, id: &impl Fn(&str) -> Option<PortId>) -> Vec<(u8, Chain)> {
        let plan = |(number, order, chain): &(u8, u8, ChainSpec)| {
            Some((*number, self.plan_chain(chain, *order, id)?))
        };
        self.past.iter().filter_map(plan).collect()
    }

    /// Never a shorter one: `None`, if a service has no number.
    fn plan_chain(
        &self,
        chain: &ChainSpec,
        order: u8,
        id: &impl Fn(&str) -> Option<PortId>,
    ) -> Option<Chain> {
        let out = match &chain.out {
            None => Out::Address,
            Some(name) => id(name).map_or(Out::Nowhere, Out::Port),
        };
        let services: Option<_> =
            chain.service_names().map(|name| self.services.get(name).copied()).collect();
        Some(Chain { order, services: services?, out })
    }

    fn plan_rules(&self, id: &impl Fn(&str) -> Option<PortId>) -> Vec<Rule> {
        // A rule for frames of a port that carries none is for no frame.
        let number = |name: &str| id(name).ok_or(String::new());
        let rules =
            self.rules.iter().filter_map(|(&id, spec)| match self.rule(id, spec, &number) {
                Ok(rule) => Some(rule),
                Err(_) if spec.action.starts_with("port:") => {
                    let drop = RuleSpec { action: "drop".to_owned(), ..spec.clone() };
                    self.rule(id, &drop, &number).ok()
                }
                Err(_) => None,
            });
        rules.collect()
    }

    fn plan_services(&self, ports: &[View<'_>]) -> Vec<Option<ServicePlan>> {
        let mut services = vec![None; room(self.services.values().max())];
        let hops = self.chains.values().flat_map(|(_, chain)| &chain.services);
        let balances: BTreeMap<_, _> = hops.filter_map(|text| hop(text).ok()).collect();
        for (name, &number) in &self.services {
            let balance = match balances.get(name.as_str()).copied().flatten() {
                None | Some(steering::Balance::Hash) => Balance::Hash,
                Some(steering::Balance::Least) => Balance::Least,
            };
            services[usize::from(number)] = Some(ServicePlan { balance, instances: Vec::new() });
        }
        for port in ports {
            let (Some(service), Some(id)) = (&port.role.service, port.id) else { continue };
            if let Some(&number) = self.services.get(service)
                && let Some(service) = &mut services[usize::from(number)]
            {
                service.instances.push((id, port.role.instance));
            }
        }
        for service in services.iter_mut().flatten() {
            service.instances.sort_by_key(|(id, number)| (*number, *id));
            service.instances.truncate(INSTANCES_MAX);
            number_apart(&mut service.instances);
        }
        services
    }
}

/// Instances by number, of which several may have one: flows would all be the first one's. Those
/// behind it get the lowest that are free.
fn number_apart(instances: &mut [(PortId, u16)]) {
    let taken: BTreeSet<u16> = instances.iter().map(|(_, number)| *number).collect();
    let mut free = (0..=u16::MAX).filter(|number| !taken.contains(number));
    let mut before = None;
    for (_, number) in instances.iter_mut() {
        if before.replace(*number) == Some(*number) {
            *number = free.next().expect("there are few instances");
        }
    }
    instances.sort_by_key(|(_, number)| *number);
}

/// For all numbers up to the last one.
fn room(last: Option<&u8>) -> usize {
    last.map_or(0, |&last| usize::from(last) + 1)
}

#[cfg(test)]
mod tests {
    use crate::model::steering::plan::*;

    #[test]
    fn test_instances_of_one_number_have_flows_each() {
        let id = |at: usize| PortId::new(at).unwrap();
        let mut all = vec![(id(4), 0), (id(7), 0), (id(9), 0), (id(2), 1), (id(3), 7), (id(5), 7)];
        number_apart(&mut all);
        let numbered = [(4, 0), (2, 1), (7, 2), (9, 3), (5, 4), (3, 7)];
        assert_eq!(all, numbered.map(|(at, number)| (id(at), number)));
    }
}
