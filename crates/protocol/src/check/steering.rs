//! Chains and rules: whether they can be meant, whatever ports there are.

use std::collections::{BTreeMap, BTreeSet};

use packet::fields::Fields;
use packet::metadata::POSITIONS;
use packet::rule::{self, Action, RULES_MAX, Rule, RuleError};
use packet::text::{ethertype, network, protocol, range};
use packet::{MAX_PORTS, PortId, VlanId};

use super::{IDENT, is_ident};
use crate::{ChainSpec, RuleSpec};

/// Most chains of a switch, and most services of its chains.
pub const CHAINS_MAX: u8 = u8::MAX;

/// How a chain picks an instance of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// `@hash`: by the flow's hash.
    Hash,
    /// `@least`: the instance with the most room.
    Least,
}

/// Splits an element of a chain into the service and the way to select an instance.
///
/// # Errors
/// What was expected.
pub fn hop(text: &str) -> Result<(&str, Option<Balance>), String> {
    let (name, balance) = match text.split_once('@') {
        None => (text, None),
        Some((name, "hash")) => (name, Some(Balance::Hash)),
        Some((name, "least")) => (name, Some(Balance::Least)),
        Some(_) => {
            let text = text.escape_debug();
            return Err(format!("{text}: expected hash or least after '@'"));
        }
    };
    match is_ident(name) {
        true => Ok((name, balance)),
        false => Err(format!("service {name:?}: {IDENT}")),
    }
}

/// Checks that no two chains have one name.
///
/// # Errors
/// The name.
pub fn distinct_names(chains: &[ChainSpec]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match chains.iter().find(|chain| !seen.insert(&chain.name)) {
        None => Ok(()),
        Some(ChainSpec { name, .. }) => {
            Err(format!("two chains are named {}; rename one of them", name.escape_debug()))
        }
    }
}

/// The rules by number. One without a number gets the next.
///
/// # Errors
/// There are too many, or two rules have one number.
pub fn numbered(rules: &[RuleSpec]) -> Result<BTreeMap<u32, RuleSpec>, String> {
    check_rule_count(rules.len())?;
    let (mut all, mut numbers) = (BTreeMap::new(), RuleNumbers::default());
    for rule in rules {
        let id = numbers.of(rule, &all)?;
        if all.insert(id, RuleSpec { id: Some(id), ..rule.clone() }).is_some() {
            return Err(format!("two rules {id}"));
        }
    }
    Ok(all)
}

/// Refuses more rules than a switch has, before anything is done for them.
///
/// # Errors
/// There are more than [`RULES_MAX`].
pub fn check_rule_count(rules: usize) -> Result<(), String> {
    if rules > RULES_MAX { Err(RuleError::TooMany.to_string()) } else { Ok(()) }
}

/// Refuses more chains than a switch has.
///
/// # Errors
/// There are more than [`CHAINS_MAX`].
pub fn check_chain_count(chains: usize) -> Result<(), String> {
    if chains > usize::from(CHAINS_MAX) {
        return Err(format!("a switch has at most {CHAINS_MAX} chains"));
    }
    Ok(())
}

/// Gives numbers to rules that are added one after the other; none goes meanwhile.
///
/// Where the last number is taken, the free ones are sought from the bottom. The search goes on
/// where it stopped for the rule before: all rules together cost one walk over the numbers.
#[derive(Debug)]
pub struct RuleNumbers {
    /// All numbers from 1 up to this one, without it, are taken.
    free: u32,
}

impl Default for RuleNumbers {
    fn default() -> Self {
        Self { free: 1 }
    }
}

impl RuleNumbers {
    /// The number of one more rule: its own, or the next one, or where the last is taken, the first
    /// that is free.
    ///
    /// # Errors
    /// No number is left.
    pub fn of(&mut self, rule: &RuleSpec, all: &BTreeMap<u32, RuleSpec>) -> Result<u32, String> {
        let next = all.last_key_value().map_or(Some(1), |(last, _)| last.checked_add(1));
        if let Some(id) = rule.id.or(next) {
            return Ok(id);
        }
        let free = (self.free..=u32::MAX).find(|id| !all.contains_key(id));
        self.free = free.ok_or_else(|| "no number left for a rule; give it one".to_owned())?;
        Ok(self.free)
    }
}

/// The ports that a rule names.
pub fn ports_of(rule: &RuleSpec) -> impl Iterator<Item = &str> {
    rule.port.as_deref().into_iter().chain(rule.action.strip_prefix("port:"))
}

/// Checks the chains and the rules of a file.
///
/// # Errors
/// What contradicts, and what to do.
pub fn check_all(chains: &[ChainSpec], rules: &[RuleSpec]) -> Result<(), String> {
    distinct_names(chains)?;
    let chains: BTreeMap<&str, &ChainSpec> =
        chains.iter().map(|chain| (chain.name.as_str(), chain)).collect();
    check_chain_count(chains.len())?;
    check(chains.values().copied(), &numbered(rules)?, |_| true)
}

/// Checks chains with different names and rules. Rules that are not new have been checked before,
/// with each other.
///
/// # Errors
/// What contradicts, and what to do.
pub fn check<'a>(
    chains: impl Iterator<Item = &'a ChainSpec>,
    rules: &BTreeMap<u32, RuleSpec>,
    is_new: impl Fn(u32) -> bool,
) -> Result<(), String> {
    let mut balances = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (chain, number) in chains.zip(0..=u8::MAX) {
        let name = chain.name.escape_debug();
        check_chain(chain, &mut balances).map_err(|why| format!("chain {name}: {why}"))?;
        numbers.insert(chain.name.as_str(), number);
    }
    if balances.len() > usize::from(CHAINS_MAX) {
        return Err(format!("its chains have more than {CHAINS_MAX} services"));
    }
    // Ports that do not exist have no number, but differ from each other all the same.
    let named: BTreeSet<&str> = rules.values().flat_map(ports_of).collect();
    let named: BTreeMap<&str, usize> = named.into_iter().zip(0..).collect();
    let port = |name: &str| {
        let id = named.get(name).copied().and_then(PortId::new);
        id.ok_or_else(|| format!("more than {MAX_PORTS} ports in rules"))
    };
    let chain = |name: &str| numbers.get(name).copied();
    let rules = rules.iter().map(|(&id, spec)| {
        read_rule(id, spec, &port, &chain).map_err(|why| format!("rule {id}: {why}"))
    });
    let mut rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
    rule::check(&mut rules, is_new).map_err(|error| error.to_string())
}

/// Checks a chain beside others, which select instances of their services in these ways.
fn check_chain<'a>(
    chain: &'a ChainSpec,
    balances: &mut BTreeMap<&'a str, Option<Balance>>,
) -> Result<(), String> {
    if !is_ident(&chain.name) {
        return Err(IDENT.to_owned());
    }
    if !(1..=POSITIONS).contains(&chain.services.len()) {
        return Err(format!("it has {} services, expected 1 to {POSITIONS}", chain.services.len()));
    }
    let mut before = None;
    for text in &chain.services {
        let (name, balance) = hop(text)?;
        if before.replace(name) == Some(name) {
            return Err(format!("service {name} follows itself; name it once"));
        }
        if balances.insert(name, balance).is_some_and(|other| other != balance) {
            return Err(format!(
                "service {name} is used both with hash and with least; choose one"
            ));
        }
    }
    Ok(())
}

/// A rule with the numbers of its ports and its chain.
///
/// # Errors
/// A value that is wrong, or the error of `port`.
pub fn read_rule(
    id: u32,
    spec: &RuleSpec,
    port: &impl Fn(&str) -> Result<PortId, String>,
    chain: &impl Fn(&str) -> Option<u8>,
) -> Result<Rule, String> {
    let vlan = |number| VlanId::try_from(number).map_err(|error| format!("vlan: {error}"));
    let fields = Fields {
        port: spec.port.as_deref().map(port).transpose()?,
        src_mac: spec.src_mac,
        dst_mac: spec.dst_mac,
        vlan: spec.vlan.map(vlan).transpose()?,
        ethertype: spec.ethertype.as_deref().map(ethertype).transpose()?,
        src: spec.src.as_deref().map(network).transpose()?,
        dst: spec.dst.as_deref().map(network).transpose()?,
        protocol: spec.proto.as_deref().map(protocol).transpose()?,
        src_ports: spec.sport.as_deref().map(range).transpose()?,
        dst_ports: spec.dport.as_deref().map(range).transpose()?,
    };
    let action = read_action(&spec.action, port, chain)?;
    Ok(Rule { id, priority: spec.priority, fields, action })
}

fn read_action(
    text: &str,
    port: &impl Fn(&str) -> Result<PortId, String>,
    chain: &impl Fn(&str) -> Option<u8>,
) -> Result<Action, String> {
    match text.split_once(':') {
        None if text == "drop" => Ok(Action::Drop),
        None if text == "forward" => Ok(Action::Forward),
        Some(("port", name)) => Ok(Action::Port(port(name)?)),
        Some(("chain", name)) => chain(name).map(Action::Chain).ok_or_else(|| {
            format!("there is no chain {}; see: uvala chain list", name.escape_debug())
        }),
        None if text.is_empty() => {
            Err("action is missing: drop, forward, chain:NAME or port:NAME".to_owned())
        }
        _ => Err(format!("action {text:?}: expected drop, forward, chain:NAME or port:NAME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule with the last number, then rules without one: as many as a switch has.
    fn behind_the_last(count: usize) -> Vec<RuleSpec> {
        let last = RuleSpec { id: Some(u32::MAX), ..RuleSpec::default() };
        [last].into_iter().chain(vec![RuleSpec::default(); count - 1]).collect()
    }

    #[test]
    fn test_rules_behind_the_last_number_get_the_free_ones_in_one_walk() {
        let all = numbered(&behind_the_last(RULES_MAX)).unwrap();
        assert_eq!((all.len(), all.contains_key(&u32::MAX)), (RULES_MAX, true));
        assert!((1..=4095).all(|id| all.contains_key(&id)));
        // The search for the next begins behind those that were found to be taken.
        let mut numbers = RuleNumbers::default();
        assert_eq!(numbers.of(&RuleSpec::default(), &all), Ok(4096));
        assert_eq!(numbers.free, 4096);
        let taken = RuleSpec { id: Some(7), ..RuleSpec::default() };
        assert_eq!((numbers.of(&taken, &all), numbers.free), (Ok(7), 4096));
    }

    #[test]
    fn test_more_rules_than_a_switch_has_are_refused_before_they_are_numbered() {
        let many = behind_the_last(RULES_MAX + 1);
        let why = "more than 4096 rules of a switch";
        assert_eq!(numbered(&many), Err(why.to_owned()));
        assert_eq!(check_all(&[], &many), Err(why.to_owned()));
    }
}
