//! What is to be known of chains, services and rules, and how a worker comes to know it.

use std::collections::BTreeMap;

use super::rule::{self, Matcher, RULES_MAX, Rule};
use super::service::{Balance, Service};
use super::{ChainStats, NUMBERS, PAST, Role, Steering};
use crate::id::PortId;
use crate::stats::Counters;

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The number of this order of services, of those that the chain has had.
    pub order: u8,
    /// The numbers of its services, at most [`POSITIONS`].
    pub services: Vec<u8>,
    /// Where its frames leave.
    pub out: Out,
}

/// Where frames leave a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Out {
    /// Where their addresses are.
    #[default]
    Address,
    /// By a port.
    Port(PortId),
    /// By a port that is not there now.
    Nowhere,
}

/// A service and its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    /// How they are chosen.
    pub balance: Balance,
    /// Their ports and numbers.
    pub instances: Vec<(PortId, u16)>,
}

/// All that is to be known. Numbers are indexes; a number that is not in use is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Services.
    pub services: Vec<Option<ServicePlan>>,
    /// Chains.
    pub chains: Vec<Option<Chain>>,
    /// Chains as they were, by their numbers, at most [`PAST`].
    pub past: Vec<(u8, Chain)>,
    /// Rules, in any order.
    pub rules: Vec<Rule>,
    /// The chains of ports.
    pub ingress: Vec<(PortId, u8)>,
}

impl Steering {
    /// Does as planned from the next frame on. What stays keeps its counters, and instances that
    /// stay keep their flows.
    pub fn set(&mut self, plan: Plan) {
        self.roles.fill(Role::Plain);
        for &(port, chain) in &plan.ingress {
            self.roles[port.index()] = Role::Ingress(chain);
            self.brings[port.index()] = true;
        }
        let services = plan.services.len().min(NUMBERS);
        self.services.resize_with(self.services.len().max(services), Service::new);
        for (number, service) in (0..=u8::MAX).zip(&mut self.services) {
            let planned = plan.services.get(usize::from(number)).and_then(Option::as_ref);
            let instances = planned.map_or(&[][..], |planned| &planned.instances);
            service.set(planned.map_or(Balance::Hash, |planned| planned.balance), instances);
            for instance in service.instances() {
                self.roles[instance.port.index()] = Role::Instance(number);
            }
        }
        self.chains = plan.chains;
        self.chains.truncate(NUMBERS);
        self.past = plan.past;
        self.past.truncate(PAST);
        self.chain_stats.resize(self.chains.len(), ChainStats::default());
        for (stats, chain) in self.chain_stats.iter_mut().zip(&self.chains) {
            if chain.is_none() {
                *stats = ChainStats::default();
            }
        }
        self.set_rules(plan.rules);
    }

    /// A port has gone. Its flows go to others from the next frame on: until the plan says so, too,
    /// all of them would be lost.
    pub(crate) fn lose(&mut self, port: PortId) {
        self.brings[port.index()] = false;
        self.pace.forget(port);
        let role = std::mem::take(&mut self.roles[port.index()]);
        let Role::Instance(number) = role else { return };
        let service = &mut self.services[usize::from(number)];
        let others = service.instances().iter().filter(|instance| instance.port != port);
        let others: Vec<_> = others.map(|instance| (instance.port, instance.number)).collect();
        service.set(service.balance(), &others);
    }

    /// Where they are the same as before, what was found for flows stays.
    fn set_rules(&mut self, mut rules: Vec<Rule>) {
        rule::sort(&mut rules);
        rules.truncate(RULES_MAX);
        if self.rules.iter().map(|(rule, ..)| rule).eq(&rules) {
            return;
        }
        let counted: BTreeMap<u32, Counters> =
            self.rules.iter().map(|(rule, _, counted)| (rule.id, *counted)).collect();
        let ready = |rule: Rule| {
            let (matcher, counted) = (Matcher::from(&rule.fields), counted.get(&rule.id).copied());
            (rule, matcher, counted.unwrap_or_default())
        };
        self.rules = rules.into_iter().map(ready).collect();
        self.cache.clear();
    }
}
