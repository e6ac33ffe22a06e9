//! Chains, services and rules by their names, and the numbers that a switch works with.
//!
//! ```text
//!  ChainSpec, RuleSpec, roles of ports ──── check ───► refused, with a line that says why
//!            │
//!            └── plan: names and ports of now ──► switch::chain::Plan
//! ```
//!
//! Ports come and go, and services with them. A chain or rule can name only what exists when it is
//! added. When a named port or service goes, the chain or rule stays, and the switch drops its
//! frames until the port or service is back.
//!
//! A chain or a service keeps its number as long as it exists, because frames on their way carry
//! it; a free number is reused last. So that these frames finish in the order with which they
//! entered, former orders of a chain are kept for a while, with their order numbers. Ports have
//! numbers only while they carry frames: whenever one comes or goes, the switch may need another
//! plan. Pure.

mod plan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use packet::PortId;
use packet::rule::Rule;
use protocol::check::steering::{
    self, RuleNumbers, check_rule_count, distinct_names, numbered, ports_of,
};
use protocol::{ChainSpec, RuleSpec, sent_by_function};
use switch::Role;
use switch::chain::{NUMBERS, PAST};

/// The chains and rules of a switch.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    chains: BTreeMap<String, (u8, ChainSpec)>,
    /// The order number of the chain with a number, or of the next chain with it; 0 at first.
    orders: BTreeMap<u8, u8>,
    /// Former chains, with numbers and orders, the oldest first.
    past: VecDeque<(u8, u8, ChainSpec)>,
    rules: BTreeMap<u32, RuleSpec>,
    services: BTreeMap<String, u8>,
    /// Where the search for a number begins.
    next_chain: u8,
    next_service: u8,
}

/// Stands for no chain or service.
const NOTHING: u8 = steering::CHAINS_MAX;
const _: () = assert!((NOTHING as usize) < NUMBERS);

/// A port as rules and chains know it.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Name of the port, without the switch's.
    pub name: &'a str,
    /// Service, instance and chain of the port.
    pub role: &'a Role,
    /// Number of the port, while it carries frames.
    pub id: Option<PortId>,
}

/// The first number from `next` on that is not taken, round and round.
fn free<'a>(next: &mut u8, taken: impl Iterator<Item = &'a u8>) -> Option<u8> {
    let taken: BTreeSet<u8> = taken.copied().collect();
    let number = (*next..NOTHING).chain(0..*next).find(|number| !taken.contains(number))?;
    *next = number + 1;
    Some(number)
}

/// The port by which a chain's frames leave, and its service, if that is one of the chain's own.
fn own_exit<'a>(chain: &ChainSpec, ports: &[View<'a>]) -> Option<(&'a str, &'a str)> {
    let out = ports.iter().find(|port| chain.out.as_deref() == Some(port.name))?;
    let service = out.role.service.as_deref()?;
    chain.service_names().any(|name| name == service).then_some((out.name, service))
}

/// Why no frame can leave by a chain's `out` port, if so.
#[must_use]
pub fn closed_exit(chain: &ChainSpec, ports: &[View<'_>]) -> Option<String> {
    own_exit(chain, ports).map(|(out, service)| {
        format!(
            "out is {out}, an instance of its own service {service}, so no frame would leave; name \
             a port outside the chain"
        )
    })
}

/// Why a rule matches nothing, if it names the port of a function as ingress.
#[must_use]
pub fn deaf(rule: &RuleSpec, ports: &[View<'_>]) -> Option<String> {
    let port = ports.iter().find(|port| rule.port.as_deref() == Some(port.name))?;
    port.role.service.as_deref().map(|service| sent_by_function(port.name, service))
}

impl Steering {
    /// The chains.
    #[must_use]
    pub fn chains(&self) -> Vec<ChainSpec> {
        self.chains.values().map(|(_, chain)| chain.clone()).collect()
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleSpec> {
        self.rules.values().cloned().collect()
    }

    /// How many rules and chains there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.rules.len() + self.chains.len()
    }

    /// The order number of the chain with this number.
    #[must_use]
    pub fn order(&self, number: u8) -> u8 {
        self.orders.get(&number).copied().unwrap_or_default()
    }

    /// The chains with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u8, &ChainSpec)> {
        self.chains.values().map(|(number, chain)| (*number, chain))
    }

    /// Whether there is such a chain.
    #[must_use]
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// Whether there is such a rule.
    #[must_use]
    pub fn has_rule(&self, id: u32) -> bool {
        self.rules.contains_key(&id)
    }

    /// The services with their numbers.
    pub fn services(&self) -> impl Iterator<Item = (&str, u8)> {
        self.services.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// Adds a chain, or replaces the one with its name.
    pub fn put_chain(&mut self, chain: ChainSpec) -> Result<(), String> {
        let known = self.chains.get(&chain.name).map(|(number, _)| *number);
        let taken = self.chains.values().map(|(number, _)| number);
        let number = known.or_else(|| free(&mut self.next_chain, taken));
        let number = number.ok_or(format!("a switch has at most {NOTHING} chains"))?;
        if let Some((_, was)) = self.chains.insert(chain.name.clone(), (number, chain.clone()))
            && !was.service_names().eq(chain.service_names())
        {
            self.shelve(number, was);
        }
        Ok(())
    }

    /// Removes a chain.
    pub fn drop_chain(&mut self, name: &str) {
        if let Some((number, was)) = self.chains.remove(name) {
            self.shelve(number, was);
        }
    }

    /// Remembers a former chain, so that frames in it finish in their order.
    fn shelve(&mut self, number: u8, was: ChainSpec) {
        let order = self.orders.entry(number).or_default();
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back((number, *order, was));
        *order = order.wrapping_add(1);
    }

    /// Adds rules, or replaces those with their numbers. Returns the number of each: by default the
    /// next, or the first free one if the last is taken.
    pub fn put_rules(&mut self, rules: Vec<RuleSpec>) -> Result<Vec<u32>, String> {
        check_rule_count(rules.len())?;
        let (mut ids, mut numbers) = (Vec::with_capacity(rules.len()), RuleNumbers::default());
        for rule in rules {
            let id = numbers.of(&rule, &self.rules)?;
            self.rules.insert(id, RuleSpec { id: Some(id), ..rule });
            ids.push(id);
        }
        Ok(ids)
    }

    /// Removes a rule.
    pub fn drop_rule(&mut self, id: u32) {
        self.rules.remove(&id);
    }

    /// Replaces the chains, the rules, or both.
    pub fn replace(
        &mut self,
        chains: Option<&Vec<ChainSpec>>,
        rules: Option<&Vec<RuleSpec>>,
    ) -> Result<(), String> {
        if let Some(chains) = chains {
            distinct_names(chains)?;
            let wanted: BTreeSet<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
            let unwanted = self.chains.keys().filter(|name| !wanted.contains(name.as_str()));
            let unwanted: Vec<_> = unwanted.cloned().collect();
            unwanted.iter().for_each(|name| self.drop_chain(name));
            chains.iter().try_for_each(|chain| self.put_chain(chain.clone()))?;
        }
        if let Some(rules) = rules {
            self.rules = numbered(rules)?;
        }
        Ok(())
    }

    /// Checks all chains and rules as far as that needs no ports. What `old` has, too, was checked
    /// then.
    pub fn check(&self, old: Option<&Self>) -> Result<(), String> {
        let is_new = |id| old.is_none_or(|old| old.rules.get(&id) != self.rules.get(&id));
        steering::check(self.numbered().map(|(_, chain)| chain), &self.rules, is_new)
    }

    /// Removes invalid rules, some of which older daemons accepted. Returns the reason for each.
    pub fn leave_out(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (id, rule) in std::mem::take(&mut self.rules) {
            let before = self.clone();
            self.rules.insert(id, rule);
            if let Err(why) = self.check(Some(&before)) {
                self.rules.remove(&id);
                left.push(why);
            }
        }
        left
    }

    /// Checks a change of `old`. A port that is not there comes first: a rule for it contradicts
    /// others only by chance.
    pub fn check_change(&self, old: Option<&Self>, ports: &[View<'_>]) -> Result<(), String> {
        self.check_ports(old, ports)?;
        self.check(old)?;
        self.check_names(old, ports)
    }

    /// Checks that rules name ports that exist, except rules that `old` has, too.
    pub fn check_ports(&self, old: Option<&Self>, ports: &[View<'_>]) -> Result<(), String> {
        let there: BTreeSet<&str> = ports.iter().map(|port| port.name).collect();
        for (id, rule) in &self.rules {
            if old.is_some_and(|old| old.rules.get(id) == Some(rule)) {
                continue;
            }
            if let Some(port) = ports_of(rule).find(|port| !there.contains(port)) {
                return Err(format!("rule {id}: {}", no_port(port)));
            }
            if let Some(why) = deaf(rule, ports) {
                return Err(format!("rule {id}: {why}"));
            }
        }
        Ok(())
    }

    /// Checks that chains name services and ports that exist, and ports name chains, except names
    /// that `old` has, too.
    pub fn check_names(&self, old: Option<&Self>, ports: &[View<'_>]) -> Result<(), String> {
        let services: BTreeSet<&str> =
            ports.iter().filter_map(|port| port.role.service.as_deref()).collect();
        let there: BTreeSet<&str> = ports.iter().map(|port| port.name).collect();
        for (name, (_, chain)) in &self.chains {
            let known = old.and_then(|old| old.chains.get(name));
            if known.is_some_and(|(_, known)| known == chain) {
                continue;
            }
            if let Some(service) = chain.service_names().find(|service| !services.contains(service))
            {
                return Err(format!(
                    "chain {name}: there is no service {service}; \
                     make one: uvala port add PORT --service {service}"
                ));
            }
            if let Some(out) = chain.out.as_ref().filter(|out| !there.contains(out.as_str())) {
                return Err(format!("chain {name}: {}", no_port(out)));
            }
            if let Some(why) = closed_exit(chain, ports) {
                return Err(format!("chain {name}: {why}"));
            }
        }
        let lost = ports.iter().find_map(|port| {
            let chain = port.role.chain.as_ref().filter(|chain| !self.has_chain(chain))?;
            old.is_none_or(|old| old.has_chain(chain)).then(|| {
                format!("the frames of port {} enter chain {chain}, which is not there", port.name)
            })
        });
        lost.map_or(Ok(()), Err)
    }

    fn rule(
        &self,
        id: u32,
        spec: &RuleSpec,
        number: &impl Fn(&str) -> Result<PortId, String>,
    ) -> Result<Rule, String> {
        let chain = |name: &str| self.chains.get(name).map(|(number, _)| *number);
        steering::read_rule(id, spec, number, &chain)
    }

    /// The first rule, else the first port, that uses a chain.
    #[must_use]
    pub fn user_of(&self, chain: &str, ports: &[View<'_>]) -> Option<String> {
        let action = format!("chain:{chain}");
        let rule = self.rules.iter().find(|(_, rule)| rule.action == action);
        let port = ports.iter().find(|port| port.role.chain.as_deref() == Some(chain));
        let rule = rule.map(|(id, _)| format!("rule {id}"));
        rule.or(port.map(|port| format!("port {}", port.name)))
    }
}

/// The lowest free instance number.
pub fn lowest_free(is_taken: impl Fn(u16) -> bool) -> u16 {
    (0..=u16::MAX).find(|number| !is_taken(*number)).expect("there are few instances")
}

fn no_port(name: &str) -> String {
    format!("there is no port {} in this switch; see: uvala port list", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use packet::metadata::POSITIONS;
    use packet::rule::{Action, RULES_MAX};
    use switch::chain::service::Balance;
    use switch::chain::{Chain, Out, ServicePlan};

    use crate::model::steering::*;

    fn chain(name: &str, services: &[&str]) -> ChainSpec {
        let services = services.iter().map(|&service| service.to_owned()).collect();
        ChainSpec { name: name.to_owned(), services, out: None }
    }

    fn roles() -> Vec<(&'static str, Role)> {
        let service =
            |name: &str, instance| Role { service: Some(name.to_owned()), instance, chain: None };
        let from = Role { chain: Some("web".to_owned()), ..Role::default() };
        vec![
            ("a", from),
            ("fw1", service("fw", 1)),
            ("fw0", service("fw", 0)),
            ("b", Role::default()),
        ]
    }

    fn with<R>(roles: &[(&str, Role)], act: impl FnOnce(&[View<'_>]) -> R) -> R {
        let views: Vec<_> = (0..)
            .zip(roles)
            .map(|(number, (name, role))| View { name, role, id: PortId::new(number) })
            .collect();
        act(&views)
    }

    fn refusal(chains: &[ChainSpec], rules: &[&str]) -> String {
        let mut steering = Steering::default();
        let rules = rules.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        let replaced = steering.replace(Some(&chains.to_vec()), Some(&rules));
        let checked =
            replaced.and_then(|()| with(&roles(), |ports| steering.check_change(None, ports)));
        checked.err().unwrap_or_default()
    }

    #[test]
    fn test_a_plan_has_the_numbers_of_now() {
        let mut steering = Steering::default();
        steering.put_chain(chain("web", &["fw@least"])).unwrap();
        let rule = r#"{"action":"port:b","in":"a","dport":"80-90","priority":3}"#;
        assert_eq!(steering.put_rules(vec![serde_json::from_str(rule).unwrap()]), Ok(vec![1]));
        let id = |at: usize| PortId::new(at).unwrap();
        with(&roles(), |ports| {
            steering.check_change(None, ports).unwrap();
            let plan = steering.plan(ports);
            let instances = vec![(id(2), 0), (id(1), 1)];
            let service = ServicePlan { balance: Balance::Least, instances };
            assert_eq!(plan.services[0], Some(service));
            assert_eq!(
                plan.chains[0],
                Some(Chain { order: 0, services: vec![0], out: Out::Address })
            );
            assert_eq!(plan.ingress, [(id(0), 0)]);
            assert_eq!(plan.rules[0].action, Action::Port(id(3)));
        });
        let mut absent = roles();
        absent.remove(3);
        with(&absent, |ports| {
            assert!(steering.check_ports(None, ports).is_err(), "the port is gone for good");
            assert_eq!(steering.check_change(Some(&steering), ports), Ok(()), "it was there");
            assert_eq!(steering.plan(ports).rules[0].action, Action::Drop, "it takes no frames");
        });
    }

    #[test]
    fn test_a_chain_that_is_changed_is_known_as_it_was() {
        let mut steering = Steering::default();
        let plan = |steering: &mut Steering| with(&[], |ports| steering.plan(ports));
        steering.put_chain(chain("web", &["ids", "fw"])).unwrap();
        let first = plan(&mut steering).chains[0].clone().unwrap();
        // Another way to choose instances, or another way out, is the same order.
        let out = Some("b".to_owned());
        steering.put_chain(ChainSpec { out, ..chain("web", &["ids@least", "fw"]) }).unwrap();
        assert_eq!(plan(&mut steering).past, []);
        steering.put_chain(chain("web", &["ids", "fw"])).unwrap();
        steering.put_chain(chain("web", &["fw"])).unwrap();
        let second = plan(&mut steering);
        assert_eq!(second.past, [(0, first.clone())]);
        let now = second.chains[0].clone().unwrap();
        assert_eq!((now.services.len(), now.order), (1, 1));
        // One that goes is known, too; another one that gets its number counts as new.
        steering.replace(Some(&vec![]), None).unwrap();
        assert_eq!(plan(&mut steering).past, [(0, first), (0, now)]);
        for at in 0..NUMBERS {
            steering.put_chain(chain(&format!("c{at}"), &["fw"])).unwrap();
            steering.drop_chain(&format!("c{at}"));
        }
        let orders: Vec<_> = (0..=3).map(|number| steering.order(number)).collect();
        assert_eq!(orders, [3, 2, 1, 1]);
    }

    #[test]
    fn test_rules_get_the_next_number_also_where_somebody_took_the_last() {
        let mut steering = Steering::default();
        let mut put = |id| {
            let rule = serde_json::json!({ "action": "drop", "id": id });
            steering.put_rules(vec![serde_json::from_value(rule).unwrap()]).unwrap()[0]
        };
        assert_eq!([put(None), put(Some(7)), put(None)], [1, 7, 8]);
        assert_eq!([put(Some(u32::MAX)), put(None), put(None)], [u32::MAX, 2, 3]);
        let ids = steering.put_rules(vec![RuleSpec::default(); 5]).unwrap();
        assert_eq!(ids, [4, 5, 6, 9, 10], "all at once");
    }

    #[test]
    fn test_more_rules_than_a_switch_has_are_refused_before_they_are_numbered() {
        let mut steering = Steering::default();
        let many = vec![RuleSpec::default(); RULES_MAX + 1];
        let why = "more than 4096 rules of a switch";
        assert_eq!(steering.put_rules(many.clone()), Err(why.to_owned()));
        assert_eq!(steering.replace(None, Some(&many)), Err(why.to_owned()));
        assert_eq!(steering.size(), 0);
    }

    #[test]
    fn test_what_cannot_be_meant_is_refused_and_says_why() {
        let web = chain("web", &["fw"]);
        let ok = r#"{"action":"chain:web","src":"10.0.0.0/8"}"#;
        assert_eq!(refusal(std::slice::from_ref(&web), &[ok]), "");
        for (chains, rules, why) in [
            (vec![chain("web", &["ids"])], vec![], "there is no service ids"),
            (vec![chain("web", &[])], vec![], "0 services"),
            (vec![chain("web", &["fw"; 9])], vec![], "9 services"),
            (vec![chain("a b", &["fw"])], vec![], "only letters"),
            (vec![chain("web", &["fw", "fw@hash"])], vec![], "service fw follows itself"),
            (vec![chain("web", &["fw@best"])], vec![], "expected hash or least"),
            (
                vec![chain("web", &["fw@least"]), chain("x", &["fw@hash"])],
                vec![],
                "both with hash and with least",
            ),
            (vec![ChainSpec { out: Some("z".into()), ..web.clone() }], vec![], "no port z"),
            (vec![ChainSpec { out: Some("fw1".into()), ..web.clone() }], vec![], "own service fw"),
            (vec![web.clone(), web.clone()], vec![], "two chains are named web;"),
            (vec![], vec![], "enter chain web"),
            (vec![web.clone()], vec![r#"{"action":"chain:x"}"#], "no chain x"),
            (vec![web.clone()], vec![r#"{"action":"port:z"}"#], "no port z"),
            (vec![web.clone()], vec![r#"{"action":"chain:\n"}"#], "no chain \\n"),
            (vec![web.clone()], vec![r#"{"action":"port:\u001b[2J"}"#], "no port \\u{1b}"),
            (vec![chain("a\n", &["fw"])], vec![], "chain a\\n"),
            (vec![chain("web", &["fw@\n"])], vec![], "fw@\\n"),
            (vec![web.clone()], vec![r#"{"action":"pass"}"#], "expected drop, forward,"),
            (vec![web.clone()], vec!["{}"], "rule 1: action is missing: drop, forward"),
            (
                vec![web.clone()],
                vec![r#"{"action":"drop","in":"fw1"}"#],
                "rule 1: port fw1 is an instance of service fw",
            ),
            (vec![web.clone()], vec![r#"{"action":"drop","src":"10/33"}"#], "no network"),
            (vec![web.clone()], vec![r#"{"action":"drop","dport":"9-1"}"#], "no range"),
            (vec![web.clone()], vec![r#"{"action":"drop","proto":"ipx"}"#], "expected tcp"),
            (vec![web.clone()], vec![r#"{"action":"drop"}"#, ok], "differ in action"),
            (
                vec![web.clone()],
                vec![r#"{"action":"drop"}"#, r#"{"action":"port:vale9:b"}"#],
                "rule 2: there is no port vale9:b",
            ),
            (vec![web.clone()], vec![r#"{"action":"drop","id":3}"#; 2], "two rules 3"),
        ] {
            let refusal = refusal(&chains, &rules);
            assert!(refusal.contains(why), "{refusal:?} does not say {why:?}");
        }
        let shadow =
            refusal(std::slice::from_ref(&web), &[r#"{"action":"drop","priority":5}"#, ok]);
        assert!(shadow.contains("would never be reached"), "{shadow}");
        let contradict = refusal(&[web], &[r#"{"action":"drop","dst":"10.0.0.0/9"}"#, ok]);
        assert!(contradict.contains("differ in action"), "{contradict}");
    }

    #[test]
    fn test_services_and_chains_that_go_make_room_for_others() {
        let mut steering = Steering::default();
        let number = |steering: &Steering, name| {
            steering.numbered().find(|(_, chain)| chain.name == name).unwrap().0
        };
        for at in 0..2 * NUMBERS {
            let service = format!("s{at}");
            steering.put_chain(chain("web", &[&service])).unwrap();
            assert_eq!(steering.check(None), Ok(()));
            let plan = with(&[], |ports| steering.plan(ports));
            let planned = plan.chains[usize::from(number(&steering, "web"))].as_ref().unwrap();
            let services: BTreeMap<_, _> = steering.services().collect();
            assert_eq!(planned.services, [services[&*service]], "never one that is left out");
        }
        let all: Vec<_> = (0..NUMBERS).map(|at| format!("s{at}")).collect();
        for (at, services) in all.chunks(POSITIONS).enumerate() {
            let services: Vec<_> = services.iter().map(String::as_str).collect();
            steering.put_chain(chain(&format!("c{at}"), &services)).unwrap();
        }
        assert!(steering.check(None).unwrap_err().contains("more than 255 services"));
        assert!(steering.past.len() <= PAST);
        // Frames of a chain that has gone are on their way, with its number.
        let old = number(&steering, "web");
        steering.drop_chain("web");
        steering.put_chain(chain("new", &["s1"])).unwrap();
        assert_ne!(number(&steering, "new"), old);
    }
}
