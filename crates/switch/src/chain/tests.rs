//! Rules against a slow oracle, which reads frames by itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use packet::flow::PREFIX;
use packet::{EtherType, MacAddr, VlanId};
use proptest::collection::vec;
use proptest::prelude::*;
use ring::table::HugeTable;

use super::classifier::Classifier;
use super::rule::Rule;
use super::*;
use packet::fields::{Fields, Matcher, Network};
use packet::flow::{FlowKey, Prefix};

/// A frame as its parts: what is asked of it can be answered without reading bytes.
#[derive(Clone, Debug)]
struct Parts {
    port: usize,
    vlan: u16,
    macs: [u8; 2],
    tags: usize,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Ip { src: IpAddr, dst: IpAddr, protocol: u8, ports: [u16; 2], options: usize, piece: bool },
    Other(u16),
}

fn mac(number: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, number])
}

impl Parts {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [mac(self.macs[0]).octets(), mac(self.macs[1]).octets()].concat();
        (0..self.tags).for_each(|_| bytes.extend([0x81, 0, 0, 9]));
        match &self.body {
            Body::Other(kind) => {
                bytes.extend(kind.to_be_bytes());
                bytes.extend([0x45; 40]);
            }
            Body::Ip {
                src: IpAddr::V4(src),
                dst: IpAddr::V4(dst),
                protocol,
                ports,
                options,
                piece,
            } => {
                bytes.extend([8, 0, 0x45 + u8::try_from(*options).unwrap(), 0, 0, 0, 0, 0]);
                bytes.extend(if *piece { [0x20, 0] } else { [0x40, 0] });
                bytes.extend([64, *protocol, 0, 0]);
                bytes.extend(src.octets().iter().chain(&dst.octets()));
                (0..*options).for_each(|_| bytes.extend([1; 4]));
                ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
                bytes.extend([0; 20]);
            }
            Body::Ip {
                src: IpAddr::V6(src),
                dst: IpAddr::V6(dst),
                protocol,
                ports,
                options,
                piece,
            } => {
                let mut chain = vec![0u8; 0];
                let first = if *options > 0 { 0 } else { *protocol };
                if *options > 0 {
                    chain.extend([*protocol, 0, 1, 4, 0, 0, 0, 0]);
                }
                let (first, chain) = match piece {
                    true => (44, [&[first, 0, 0, 1, 0, 0, 0, 0][..], &chain].concat()),
                    false => (first, chain),
                };
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, first, 64]);
                bytes.extend(src.octets().iter().chain(&dst.octets()));
                bytes.extend(chain);
                ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
                bytes.extend([0; 20]);
            }
            Body::Ip { .. } => unreachable!("both addresses are of one kind"),
        }
        bytes
    }

    fn key(&self) -> FlowKey {
        let bytes = self.bytes();
        let mut prefix = [0; PREFIX];
        let len = bytes.len().min(PREFIX);
        prefix[..len].copy_from_slice(&bytes[..len]);
        let (vlan, port) = (VlanId::new(self.vlan).unwrap(), PortId::new(self.port).unwrap());
        FlowKey::read(Prefix::new(&prefix, len), vlan, port)
    }

    /// The oracle.
    fn is_asked_for(&self, fields: &Fields) -> bool {
        fn ask<T: PartialEq>(wanted: Option<T>, has: T) -> bool {
            wanted.is_none_or(|wanted| wanted == has)
        }
        let has_ports = |protocol: u8| [6, 17, 33, 132, 136].contains(&protocol);
        let within = |wanted: &Option<RangeInclusive<u16>>, port: Option<u16>| match wanted {
            None => true,
            Some(wanted) => port.is_some_and(|port| wanted.contains(&port)),
        };
        let (kind, ip) = match &self.body {
            Body::Other(kind) => (*kind, None),
            Body::Ip { src, dst, protocol, ports, piece, .. } => {
                let kind = if src.is_ipv4() { 0x0800 } else { 0x86dd };
                let ports = Some(*ports).filter(|_| !piece && has_ports(*protocol));
                (kind, Some((*src, *dst, *protocol, ports)))
            }
        };
        let ports = ip.and_then(|(.., ports)| ports);
        ask(fields.port, PortId::new(self.port).unwrap())
            && ask(fields.vlan, VlanId::new(self.vlan).unwrap())
            && ask(fields.dst_mac, mac(self.macs[0]))
            && ask(fields.src_mac, mac(self.macs[1]))
            && ask(fields.ethertype, EtherType(kind))
            && fields.protocol.is_none_or(|wanted| ip.is_some_and(|(_, _, has, _)| has == wanted))
            && fields.src.is_none_or(|net| ip.is_some_and(|(src, ..)| contains(net, src)))
            && fields.dst.is_none_or(|net| ip.is_some_and(|(_, dst, ..)| contains(net, dst)))
            && within(&fields.src_ports, ports.map(|[src, _]| src))
            && within(&fields.dst_ports, ports.map(|[_, dst]| dst))
    }
}

/// Bit by bit.
fn contains(network: Network, address: IpAddr) -> bool {
    let bits = |address: IpAddr| -> Vec<bool> {
        let octets = match address {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        octets.iter().flat_map(|octet| (0..8).rev().map(move |i| octet >> i & 1 != 0)).collect()
    };
    let (wanted, has) = (bits(network.address), bits(address));
    wanted.len() == has.len()
        && wanted.iter().zip(&has).take(network.bits.into()).all(|(a, b)| a == b)
}

fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    (any::<u8>(), 0u8..4).prop_map(move |(high, low)| match v6 {
        false => IpAddr::V4(Ipv4Addr::new(10, high & 3, 0, low)),
        true => IpAddr::V6(Ipv6Addr::new(0xfd00, (high & 3).into(), 0, 0, 0, 0, 0, low.into())),
    })
}

fn body() -> impl Strategy<Value = Body> {
    let protocol = prop_oneof![Just(6u8), Just(17), Just(1), Just(50)];
    let ip = any::<bool>().prop_flat_map(|v6| (address(v6), address(v6)));
    let ports = [78u16..84, 78u16..84];
    prop_oneof![
        5 => (ip, protocol, ports, 0usize..3, prop::bool::weighted(0.1)).prop_map(
            |((src, dst), protocol, ports, options, piece)| {
                Body::Ip { src, dst, protocol, ports, options, piece }
            },
        ),
        1 => prop_oneof![Just(0x0806u16), Just(0x88cc)].prop_map(Body::Other),
    ]
}

fn parts() -> impl Strategy<Value = Parts> {
    (0usize..3, 1u16..3, [0u8..3, 0u8..3], 0usize..3, body())
        .prop_map(|(port, vlan, macs, tags, body)| Parts { port, vlan, macs, tags, body })
}

fn network() -> impl Strategy<Value = Network> {
    any::<bool>().prop_flat_map(|v6| {
        (address(v6), 0..=if v6 { 128u8 } else { 32 })
            .prop_map(|(address, bits)| Network { address, bits })
    })
}

fn range() -> impl Strategy<Value = RangeInclusive<u16>> {
    (78u16..84, 0u16..3).prop_map(|(first, more)| first..=first + more)
}

fn fields() -> impl Strategy<Value = Fields> {
    let maybe = 0.25;
    let option = move |strategy: BoxedStrategy<u16>| prop::option::weighted(maybe, strategy);
    let l2 = (
        option((0u16..3).boxed()),
        option((1u16..3).boxed()),
        prop::option::weighted(maybe, 0u8..3),
        prop::option::weighted(maybe, 0u8..3),
        option(prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x0806)].boxed()),
    );
    let l3 = (
        prop::option::weighted(maybe, network()),
        prop::option::weighted(maybe, network()),
        prop::option::weighted(maybe, prop_oneof![Just(6u8), Just(17), Just(1), Just(0)]),
        prop::option::weighted(maybe, range()),
        prop::option::weighted(maybe, range()),
    );
    (l2, l3).prop_map(|((port, vlan, dst_mac, src_mac, kind), (src, dst, protocol, from, to))| {
        Fields {
            port: port.and_then(|port| PortId::new(port.into())),
            vlan: vlan.and_then(VlanId::new),
            dst_mac: dst_mac.map(mac),
            src_mac: src_mac.map(mac),
            ethertype: kind.map(EtherType),
            src,
            dst,
            protocol,
            src_ports: from,
            dst_ports: to,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn test_matcher_agrees_with_the_oracle(parts in parts(), fields in fields()) {
        let matcher = Matcher::from(&fields);
        prop_assert_eq!(matcher.matches(&parts.key()), parts.is_asked_for(&fields));
    }

    /// Some ask for the same as a dozen others, but for the port.
    #[test]
    fn test_the_classifier_finds_the_first_rule_that_matches(
        parts in parts(),
        rules in vec((fields(), prop::option::weighted(0.2, 0..12_u16)), 0..60),
        common in fields(),
    ) {
        let one = |(fields, port): (Fields, Option<u16>)| match port {
            Some(port) => Fields { dst_ports: Some(port..=port), ..common.clone() },
            None => fields,
        };
        let matchers: Box<[_]> = rules.into_iter().map(|it| Matcher::from(&one(it))).collect();
        let found = matchers.iter().position(|matcher| matcher.matches(&parts.key()));
        let classifier = Classifier::new(matchers);
        prop_assert_eq!(classifier.find(&parts.key()).0.map(usize::from), found);
    }

    #[test]
    fn test_what_contradicts_itself_is_for_no_frame(parts in parts(), fields in fields()) {
        if fields.contradiction().is_some() {
            prop_assert!(!parts.is_asked_for(&fields));
        }
    }

    #[test]
    fn test_covers_and_meets_mean_it(parts in parts(), a in fields(), b in fields()) {
        let (a, b, key) = (Matcher::from(&a), Matcher::from(&b), parts.key());
        if a.covers(&b) && b.matches(&key) {
            prop_assert!(a.matches(&key));
        }
        if a.matches(&key) && b.matches(&key) {
            prop_assert!(a.meets(&b));
        }
        prop_assert!(a.covers(&a) && a.meets(&a));
    }

    #[test]
    fn test_both_directions_have_one_hash(parts in parts(), seed: u64) {
        let mut back = parts.clone();
        back.macs.reverse();
        if let Body::Ip { src, dst, ports, .. } = &mut back.body {
            std::mem::swap(src, dst);
            ports.reverse();
        }
        prop_assert_eq!(parts.key().hash(seed), back.key().hash(seed));
    }

    #[test]
    fn test_the_cache_finds_what_the_rules_say(
        frames in vec(parts(), 1..40),
        rules in vec((0u32..4, fields()), 1..12),
    ) {
        let rules = (0..).zip(rules).map(|(id, (priority, fields))| {
            let action = Action::Port(PortId::new(usize::try_from(id).unwrap() + 100).unwrap());
            Rule { id, priority, fields, action }
        });
        let rules: Vec<_> = rules.collect();
        let mut steering = Steering::new(7, 64, HugeTable::new);
        let plan = Plan { rules: rules.clone(), ..Plan::default() };
        let tables = Planner::default().next(plan).expect("it is new");
        let _ = steering.set(tables, std::iter::empty(), Now::START);
        for parts in frames.iter().chain(&frames) {
            let best = rules.iter().filter(|rule| parts.is_asked_for(&rule.fields));
            let best = best.max_by_key(|rule| (rule.priority, std::cmp::Reverse(rule.id)));
            let port = |id: u32| PortId::new(usize::try_from(id).unwrap() + 100).unwrap();
            let out = best.map(|rule| port(rule.id));
            let bytes = parts.bytes();
            let mut prefix = [0; PREFIX];
            let len = bytes.len().min(PREFIX);
            prefix[..len].copy_from_slice(&bytes[..len]);
            let from = PortId::new(parts.port).unwrap();
            let vlan = VlanId::new(parts.vlan).unwrap();
            let flow = steering.flow(FlowKey::read(Prefix::new(&prefix, len), vlan, from));
            let next_hop = steering.enter(from, &flow, 60, Now::START);
            prop_assert_eq!(next_hop, NextHop::Leave { from, out });
        }
    }
}

/// A rule for each of these VLANs, whose number it has.
fn rules_of(vlans: impl Iterator<Item = u16>) -> Vec<Rule> {
    let rule = |vlan: u16| {
        let fields = Fields { vlan: VlanId::new(vlan), ..Fields::default() };
        Rule { id: vlan.into(), priority: u32::from(vlan) % 3, fields, action: Action::Drop }
    };
    vlans.map(rule).collect()
}

fn enter(steering: &mut Steering, vlan: u16) -> NextHop {
    let (from, vlan) = (PortId::new(1).unwrap(), VlanId::new(vlan).unwrap());
    let flow = steering.flow(FlowKey::read(Prefix::of(&[0; 60]), vlan, from));
    steering.enter(from, &flow, 60, Now::START)
}

proptest! {
    #[test]
    fn test_rules_that_stay_are_counted_on_and_others_begin_at_none(
        steps in vec((any::<u16>(), vec(1u16..=16, 0..9)), 1..9),
    ) {
        let mut steering = Steering::new(7, 64, HugeTable::new);
        let mut planner = Planner::default();
        let mut counted = std::collections::BTreeMap::new();
        for (mask, frames) in steps {
            let there = |vlan: &u16| mask >> (vlan - 1) & 1 == 1;
            let rules = rules_of((1..=16).filter(there));
            if let Some(tables) = planner.next(Plan { rules: rules.clone(), ..Plan::default() }) {
                drop(steering.set(tables, std::iter::empty(), Now::START));
            }
            counted.retain(|&id, _| rules.iter().any(|rule| rule.id == id));
            for rule in &rules {
                counted.entry(rule.id).or_insert(0u64);
            }
            for vlan in frames {
                let is_known = counted.get_mut(&vlan.into()).map(|frames| *frames += 1).is_some();
                let next_hop = enter(&mut steering, vlan);
                prop_assert_eq!(next_hop == NextHop::Drop(DropReason::Rule), is_known);
            }
            let report = steering.report().rules.into_iter();
            let seen: std::collections::BTreeMap<_, _> =
                report.map(|(id, Counters { frames, .. })| (id, frames)).collect();
            prop_assert_eq!(&seen, &counted);
        }
    }
}

#[test]
fn test_what_is_as_it_was_is_not_sent_and_what_was_is_handed_out() {
    let (mut steering, mut planner) = (Steering::new(7, 64, HugeTable::new), Planner::default());
    let mut plan = Plan { rules: rules_of(1..=4000), ..Plan::default() };
    let first = planner.next(plan.clone()).expect("it is new");
    assert!(!steering.set(first, std::iter::empty(), Now::START).has_rules(), "there were none");
    assert!(planner.next(plan.clone()).is_none());
    let dropped = [7, 7].map(|vlan| enter(&mut steering, vlan));
    assert_eq!(dropped, [NextHop::Drop(DropReason::Rule); 2]);
    plan.ingress.push((PortId::new(3).unwrap(), 0));
    let second = planner.next(plan.clone()).expect("a port has come");
    assert!(
        !steering.set(second, std::iter::empty(), Now::START).has_rules(),
        "they stay where they are"
    );
    enter(&mut steering, 7);
    assert_eq!((steering.cache.stats.hits, steering.cache.stats.misses), (2, 1));
    plan.rules.pop();
    let third = planner.next(plan).expect("a rule has gone");
    assert!(
        steering.set(third, std::iter::empty(), Now::START).has_rules(),
        "for the caller to free"
    );
    enter(&mut steering, 7);
    assert_eq!((steering.cache.stats.hits, steering.cache.stats.misses), (2, 2));
}

#[test]
fn test_services_that_were_more_lose_their_instances() {
    let (mut steering, mut planner) = (Steering::new(7, 64, HugeTable::new), Planner::default());
    let service = |port| {
        let instances = vec![(PortId::new(port).unwrap(), 0)];
        Some(ServicePlan { instances, ..ServicePlan::default() })
    };
    let ports = |steering: &Steering| -> Vec<usize> {
        steering.report().instances.iter().map(|seen| seen.port.index()).collect()
    };
    for services in [&[2, 3, 4][..], &[2], &[], &[5, 6]] {
        let services = services.iter().map(|&port| service(port)).collect();
        let plan = Plan { services, ..Plan::default() };
        let wanted: Vec<_> = plan.services.iter().flatten().map(|s| s.instances[0].0).collect();
        drop(planner.next(plan).map(|tables| steering.set(tables, std::iter::empty(), Now::START)));
        let wanted: Vec<_> = wanted.iter().map(|port| port.index()).collect();
        assert_eq!(ports(&steering), wanted);
        assert!((0..9).all(|port| {
            let is_instance = steering.service_of(PortId::new(port).unwrap()).is_some();
            is_instance == wanted.contains(&port)
        }));
    }
}

#[test]
fn test_rules_that_cannot_be_meant_are_refused() {
    use super::rule::{RuleError, check};
    let net = |bits| Some(Network { address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), bits });
    let rule = |id, priority, bits, action| Rule {
        id,
        priority,
        fields: Fields { src: net(bits), ..Fields::default() },
        action,
    };
    let wide = rule(1, 5, 8, Action::Drop);
    let with = |new: Rule| check(&mut [new, wide.clone()], |_| true);
    assert_eq!(with(rule(2, 4, 24, Action::Forward)), Err(RuleError::Shadowed(1, 2)));
    assert_eq!(with(rule(2, 9, 4, Action::Forward)), Err(RuleError::Shadowed(2, 1)));
    assert_eq!(with(rule(2, 5, 24, Action::Forward)), Err(RuleError::Contradict(1, 2)));
    assert_eq!(with(rule(2, 5, 24, Action::Drop)), Err(RuleError::Shadowed(1, 2)));
    assert_eq!(with(rule(2, 6, 24, Action::Forward)), Ok(()));
}

/// Much memory, which a worker has no time to give back.
#[test]
fn test_flows_that_are_no_longer_remembered_are_handed_out() {
    let mut steering = Steering::new(1, 64, HugeTable::new);
    assert!(steering.set_flows(64).is_none());
    assert_eq!(steering.set_flows(128).map(|old| old.capacity()), Some(64));
}

#[test]
fn test_rules_for_no_frame_are_refused() {
    use super::rule::{RuleError, check};
    let net = |text: &str| Some(packet::text::network(text).unwrap());
    let ports = Some(80..=80);
    for (fields, why) in [
        (Fields { protocol: Some(1), dst_ports: ports.clone(), ..Fields::default() }, "no ports"),
        (Fields { src: net("10.0.0.0/8"), dst: net("fd00::/8"), ..Fields::default() }, "IPv6"),
        (
            Fields { ethertype: Some(EtherType::ARP), protocol: Some(6), ..Fields::default() },
            "of its type",
        ),
        (
            Fields { ethertype: Some(EtherType::ARP), src_ports: ports, ..Fields::default() },
            "of its type",
        ),
        (
            Fields { ethertype: Some(EtherType::IPV6), dst: net("10.0.0.1"), ..Fields::default() },
            "another version",
        ),
        (Fields { protocol: Some(58), src: net("10.0.0.0/8"), ..Fields::default() }, "icmpv6"),
        (Fields { protocol: Some(1), dst: net("fd00::/8"), ..Fields::default() }, "icmp is"),
        (
            Fields { protocol: Some(1), ethertype: Some(EtherType::IPV6), ..Fields::default() },
            "icmp is",
        ),
    ] {
        let rule = Rule { id: 7, priority: 0, fields, action: Action::Drop };
        let Err(error @ RuleError::Impossible(7, _)) = check(&mut [rule], |_| true) else {
            panic!("it is taken: {why}")
        };
        assert!(error.to_string().contains(why), "{error}");
    }
    let fields = Fields {
        ethertype: Some(EtherType::IPV4),
        src: net("10.0.0.0/8"),
        protocol: Some(17),
        dst_ports: Some(53..=53),
        ..Fields::default()
    };
    assert_eq!(fields.mistake(), None);
    let icmp = Fields { protocol: Some(1), dst: net("10.0.0.1"), ..Fields::default() };
    assert_eq!(icmp.mistake(), None);
}
