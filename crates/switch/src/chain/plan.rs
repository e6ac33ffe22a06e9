//! Plans of chains, services and rules, and the tables that a worker makes of them.
//!
//! # Theory of operation
//!
//! ```text
//!   control                                         worker, between two batches
//!   Plan ──► Planner::next ──► Tables ────────────► Steering::set: exchanges its tables
//!            keeps the last          ◄───────────── and gives back the old ones
//! ```
//!
//! A worker that changes its tables forwards no frames meanwhile, so the control thread does what
//! takes long. A [`Planner`] sorts the rules, builds the classifier, and weighs the buckets of
//! services that have changed; the control thread frees the old tables. The worker weighs buckets
//! itself only when an instance goes or stalls, and only those of that instance: the other
//! instances get its flows from the next frame on.
//!
//! Counters stay with the worker. The planner gives each rule a place for its counters, as long as
//! the rule exists; the worker clears the places of new rules. An instance that stays keeps its
//! counters and its flows. A new epoch of the [cache](super::cache) forgets the verdicts of all
//! flows, whatever the size of the cache.

use std::collections::{BTreeMap, BTreeSet};

use packet::{MAX_PORTS, PortId};

use super::cache::FlowCache;
use super::classifier::Classifier;
use super::gate::{Pause, Ports};
use super::rule::{self, Action, RULES_MAX, Rule};
use super::rule_table::{Entry, Rules};
use super::service::{Balance, INSTANCES_MAX, Service};
use super::{ChainStats, NUMBERS, PAST, Role, Steering};
use crate::model::now::Now;
use crate::model::stats::Counters;
use packet::fields::Matcher;

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The order number: which list of services of the chain this is.
    pub order: u8,
    /// The numbers of its services, at most [`POSITIONS`](packet::metadata::POSITIONS).
    pub services: Vec<u8>,
    /// Where its frames leave.
    pub out: Out,
}

/// Where frames leave a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Out {
    /// By the bridge, to the port of their destination address.
    #[default]
    Address,
    /// By a port.
    Port(PortId),
    /// By a port that does not exist now.
    Nowhere,
}

/// A service and its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// How the switch selects an instance.
    pub balance: Balance,
    /// Ports and numbers of the instances, at most [`INSTANCES_MAX`].
    pub instances: Vec<(PortId, u16)>,
}

impl ServicePlan {
    fn instances(&self) -> &[(PortId, u16)] {
        &self.instances[..self.instances.len().min(INSTANCES_MAX)]
    }
}

/// All chains, services and rules of a switch. Numbers are indexes; an unused number is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Services.
    pub services: Vec<Option<ServicePlan>>,
    /// Chains.
    pub chains: Vec<Option<Chain>>,
    /// Former orders of chains, by the numbers of the chains, at most [`PAST`].
    pub past: Vec<(u8, Chain)>,
    /// Rules, in any order, at most [`RULES_MAX`], each with a number of its own.
    pub rules: Vec<Rule>,
    /// The chains of ports.
    pub ingress: Vec<(PortId, u8)>,
}

/// Turns plans into tables for one switch, and remembers the tables that its worker has.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    last: Option<Plan>,
    /// Where the counters of rules are, by their numbers.
    places: BTreeMap<u32, u16>,
}

impl Planner {
    /// The tables of a plan; `None` if the worker has them already. Each result has to reach the
    /// worker before the next.
    pub fn next(&mut self, mut plan: Plan) -> Option<Tables> {
        plan.services.truncate(NUMBERS);
        plan.chains.truncate(NUMBERS);
        plan.past.truncate(PAST);
        let (is_new, last) = (self.last.is_none(), self.last.take().unwrap_or_default());
        let tables = (is_new || last != plan).then(|| Tables {
            roles: plan.roles(),
            ingress: plan.ingress.iter().map(|(port, _)| *port).collect(),
            services: plan.new_services(&last),
            chains: plan.chains.clone(),
            past: plan.past.clone(),
            rules: (last.rules != plan.rules).then(|| self.ready(plan.rules.clone())),
            pauses: plan.pauses(&last),
            flows: None,
        });
        self.last = Some(plan);
        tables
    }

    /// The last plan.
    #[must_use]
    pub fn last(&self) -> Option<&Plan> {
        self.last.as_ref()
    }

    /// Puts rules in order and makes them ready, with a place for the counters of each.
    fn ready(&mut self, mut rules: Vec<Rule>) -> NewRules {
        rule::sort(&mut rules);
        rules.truncate(RULES_MAX);
        assert!(rules.len() <= RULES_MAX, "there is a place for each rule");
        let fresh = self.place(&rules);
        let entry =
            |rule: &Rule| Entry { id: rule.id, place: self.places[&rule.id], action: rule.action };
        let entries = rules.iter().map(entry).collect();
        let matchers = rules.iter().map(|rule| Matcher::from(&rule.fields)).collect();
        NewRules { rules: Rules::new(Classifier::new(matchers), entries), fresh }
    }

    /// Gives each rule a place, and says which of them are new to theirs.
    fn place(&mut self, rules: &[Rule]) -> Vec<u16> {
        let ids: BTreeSet<u32> = rules.iter().map(|rule| rule.id).collect();
        self.places.retain(|id, _| ids.contains(id));
        let taken: BTreeSet<u16> = self.places.values().copied().collect();
        let mut free = (0..).filter(|place| !taken.contains(place));
        let new = ids.into_iter().filter(|id| !self.places.contains_key(id)).collect::<Vec<_>>();
        let place = |id: u32| {
            let place = free.next().expect("there are more places than rules");
            self.places.insert(id, place);
            place
        };
        new.into_iter().map(place).collect()
    }
}

impl Plan {
    fn roles(&self) -> Box<[Role]> {
        let mut roles = vec![Role::Unassigned; MAX_PORTS].into_boxed_slice();
        for &(port, chain) in &self.ingress {
            roles[port.index()] = Role::Ingress(chain);
        }
        for (number, service) in (0..=u8::MAX).zip(&self.services) {
            let instances = service.iter().flat_map(ServicePlan::instances);
            instances.for_each(|(port, _)| roles[port.index()] = Role::Instance(number));
        }
        roles
    }

    /// Ports that have to wait because frames take other paths than they did ([the
    /// gate](super::gate)).
    fn pauses(&self, last: &Self) -> Vec<Pause> {
        let (moved, mut pauses) = (self.moved(last), Vec::new());
        for (number, mut ports) in last.entrances() {
            let old = last.chains.get(usize::from(number)).and_then(Option::as_ref);
            let Some(old) = old else { continue };
            if !self.goes_elsewhere(number, old, last) {
                ports.keep(&moved);
            }
            if !ports.is_empty() {
                pauses.push(Pause::new(number, &old.services, ports));
            }
        }
        pauses
    }

    /// Whether a frame of a chain may pass other functions than the frames before it.
    fn goes_elsewhere(&self, number: u8, old: &Chain, last: &Self) -> bool {
        let new = self.chains.get(usize::from(number)).and_then(Option::as_ref);
        let is_shared = |&service: &u8| self.begins_to_share(service, last);
        new.is_none_or(|new| new.order != old.order) || old.services.iter().any(is_shared)
    }

    /// Whether a service has several instances and perhaps had only one. A worker learns before
    /// control that an instance has gone, so an instance that comes back counts as new.
    fn begins_to_share(&self, service: u8, last: &Self) -> bool {
        let [new, old] = [self, last].map(|plan| {
            let service = plan.services.get(usize::from(service)).and_then(Option::as_ref);
            service.map_or(&[][..], ServicePlan::instances)
        });
        let stay = new.iter().filter(|instance| old.contains(instance)).count();
        new.len() > 1 && stay <= 1 && !old.is_empty()
    }

    /// By chain, ports whose frames may enter it.
    fn entrances(&self) -> BTreeMap<u8, Ports> {
        let own = self.ingress.iter().map(|&(port, chain)| (chain, Some(port)));
        let by_rule = self.rules.iter().filter_map(|rule| match rule.action {
            Action::Chain(chain) => Some((chain, rule.fields.port)),
            Action::Drop | Action::Port(_) | Action::Forward => None,
        });
        let mut entrances = BTreeMap::new();
        for (chain, port) in own.chain(by_rule) {
            entrances.entry(chain).or_insert_with(Ports::none).add_one_or_all(port);
        }
        entrances
    }

    /// Ports whose frames may enter other chains than they did.
    fn moved(&self, last: &Self) -> Ports {
        let mut ports = Ports::none();
        let [new, old] = [self, last].map(|plan| plan.ingress.iter().collect::<BTreeSet<_>>());
        new.symmetric_difference(&old).for_each(|(port, _)| ports.add(*port));
        if self.rules != last.rules {
            let [new, old] = [self, last].map(|plan| {
                plan.rules.iter().map(|rule| (rule.id, rule)).collect::<BTreeMap<_, _>>()
            });
            let is_other = |id| new.get(id) != old.get(id);
            let all = new.iter().chain(&old).filter(|(id, _)| is_other(*id));
            all.for_each(|(_, rule)| ports.add_one_or_all(rule.fields.port));
        }
        ports
    }

    /// Services that have changed, by number.
    fn new_services(&self, last: &Self) -> Vec<Option<Service>> {
        let ready = |number: usize| {
            let [new, old] = [self, last].map(|plan| plan.services.get(number));
            let none = ServicePlan::default();
            let wanted = || new.and_then(Option::as_ref).unwrap_or(&none);
            (new != old).then(|| Service::planned(wanted().balance, wanted().instances()))
        };
        (0..self.services.len().max(last.services.len())).map(ready).collect()
    }
}

/// The tables of a worker: the new ones on the way to it, the old ones on the way back.
pub struct Tables {
    roles: Box<[Role]>,
    ingress: Vec<PortId>,
    /// Services by number; `None`: unchanged.
    services: Vec<Option<Service>>,
    chains: Vec<Option<Chain>>,
    past: Vec<(u8, Chain)>,
    /// `None`: unchanged.
    rules: Option<NewRules>,
    /// Ports that wait because of the change.
    pauses: Vec<Pause>,
    /// The flow cache of the worker, if the change made it obsolete.
    flows: Option<FlowCache>,
}

#[cfg(test)]
impl Tables {
    pub(super) fn has_rules(&self) -> bool {
        self.rules.as_ref().is_some_and(|new| !new.rules.is_empty())
    }
}

struct NewRules {
    rules: Rules,
    /// Places of the counters of new rules.
    fresh: Vec<u16>,
}

impl Steering {
    /// Uses these tables from the next frame on; `ports` are all ports of the switch. Chains, rules
    /// and instances that stay keep their counters, and instances keep their flows. Returns the old
    /// tables, for a thread to free that forwards no frames.
    #[must_use]
    pub fn set(
        &mut self,
        mut tables: Tables,
        ports: impl Iterator<Item = PortId>,
        now: Now,
    ) -> Tables {
        assert!(tables.roles.len() == MAX_PORTS, "a role for each port");
        std::mem::swap(&mut self.roles, &mut tables.roles);
        tables.ingress.iter().for_each(|port| self.ingress[port.index()] = true);
        for (number, place) in tables.services.iter_mut().enumerate() {
            let Some(mut new) = place.take() else { continue };
            match self.services.get_mut(number) {
                Some(old) => {
                    new.take_over(old);
                    *place = Some(std::mem::replace(old, new));
                }
                None => self.services.push(new),
            }
        }
        self.shut(&mut tables.pauses, ports, now);
        self.begin_stats(&tables.chains);
        std::mem::swap(&mut self.chains, &mut tables.chains);
        std::mem::swap(&mut self.past, &mut tables.past);
        // Where the rules are unchanged, the cached verdicts stay.
        if let Some(NewRules { rules, fresh }) = &mut tables.rules {
            std::mem::swap(&mut self.rules, rules);
            fresh.iter().for_each(|&place| self.counted[usize::from(place)] = Counters::default());
            tables.flows = self.cache.clear();
        }
        tables
    }

    /// Has ports wait, except those of functions.
    fn shut(&mut self, pauses: &mut Vec<Pause>, ports: impl Iterator<Item = PortId>, now: Now) {
        if !pauses.is_empty() {
            let ports = ports.filter(|&port| self.service_of(port).is_none()).collect();
            for pause in pauses.drain(..) {
                self.gate.begin(pause, &ports, &self.services, now.as_ms());
            }
        }
    }

    /// Clears the counters of new chains.
    fn begin_stats(&mut self, chains: &[Option<Chain>]) {
        for (number, _) in chains.iter().enumerate().filter(|(_, chain)| chain.is_some()) {
            if self.chains.get(number).is_none_or(Option::is_none) {
                self.chain_stats[number] = ChainStats::default();
            }
        }
    }

    /// A port has gone. If it was an instance, the other instances get its flows from the next
    /// frame on, before the next plan arrives: until then they would all be lost.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        self.ingress[port.index()] = false;
        self.pace.forget(port);
        self.gate.forget(port);
        let role = std::mem::take(&mut self.roles[port.index()]);
        let Role::Instance(number) = role else { return };
        self.services[usize::from(number)].remove_port(port);
    }
}
