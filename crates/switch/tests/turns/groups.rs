//! Multicast groups: a seeded world of hosts, routers and an operator, in which each frame must
//! come out of the ports that a model as naive as can be says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::checksum::{Sum, checksum};
use packet::mcast::{self, GroupAddr};
use packet::{MacAddr, VlanId, build};
use switch::{McastRouter, McastRow, PortSecurity};

use super::random::Random;
use super::*;

const PORTS: usize = 6;
const STEPS: usize = 6_000;
const GROUPS: [&str; 8] = [
    "239.1.1.1",
    "239.1.1.2",
    "225.129.1.1", // the frames of the first
    "224.0.0.251",
    "ff15::7",
    "ff02::fb",
    "ff02::1:ff00:1",
    "ff02::1",
];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn group_mac(group: IpAddr) -> MacAddr {
    mcast::group_mac(group).expect("a group")
}

/// A frame from `host`, with a message of IGMP or MLD whose checksum is made right.
fn control(host: u8, dst: IpAddr, mut message: Vec<u8>) -> Vec<u8> {
    let src = MacAddr::new(mac(host));
    let (ethertype, packet) = match dst {
        IpAddr::V4(dst) => {
            let sum = checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            (0x0800, build::ipv4(2, Ipv4Addr::new(10, 0, 0, host), dst, &message))
        }
        IpAddr::V6(dst) => {
            let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host.into());
            let addresses = [source.octets(), dst.octets()].concat();
            let length = u16::try_from(message.len()).expect("short");
            let sum = Sum::pseudo_header(&addresses, 58, length).and(Sum::of(&message));
            message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
            let [high, low] = (length + 8).to_be_bytes();
            let head = [0x60, 0, 0, 0, high, low, 0, 1];
            (0x86dd, [&head[..], &addresses, &[58, 0, 5, 2, 0, 0, 1, 0], &message].concat())
        }
    };
    build::ethernet(group_mac(dst), src, ethertype, &packet)
}

/// A report of the older version, which names one group.
fn report(host: u8, group: IpAddr) -> Vec<u8> {
    let message = match group {
        IpAddr::V4(it) => [&[0x16, 0, 0, 0][..], &it.octets()].concat(),
        IpAddr::V6(it) => [&[131, 0, 0, 0, 0, 0, 0, 0][..], &it.octets()].concat(),
    };
    control(host, group, message)
}

fn leave(host: u8, group: IpAddr) -> Vec<u8> {
    match group {
        IpAddr::V4(it) => {
            control(host, ip("224.0.0.2"), [&[0x17, 0, 0, 0][..], &it.octets()].concat())
        }
        IpAddr::V6(it) => {
            let message = [&[132, 0, 0, 0, 0, 0, 0, 0][..], &it.octets()].concat();
            control(host, ip("ff02::2"), message)
        }
    }
}

/// A report of the newer version: the host excludes no source of the group, or includes none.
fn record(host: u8, group: IpAddr, is_member: bool) -> Vec<u8> {
    let kind = if is_member { 4 } else { 3 };
    let (dst, head, octets) = match group {
        IpAddr::V4(it) => ("224.0.0.22", 0x22, it.octets().to_vec()),
        IpAddr::V6(it) => ("ff02::16", 143, it.octets().to_vec()),
    };
    let message = [&[head, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0][..], &octets].concat();
    control(host, ip(dst), message)
}

/// A query from a router with this last byte of its address; 0: from a switch without one.
fn query(host: u8, is_ipv6: bool, group: Option<IpAddr>) -> Vec<u8> {
    let source = match (is_ipv6, host) {
        (true, _) => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host.into()).into(),
        (false, 0) => Ipv4Addr::UNSPECIFIED.into(),
        (false, _) => Ipv4Addr::new(10, 0, 0, host).into(),
    };
    mcast::query(MacAddr::new(mac(host)), source, group)
}

fn data(host: u8, group: IpAddr) -> Vec<u8> {
    let src = MacAddr::new(mac(host));
    match group {
        IpAddr::V4(dst) => {
            let packet = build::ipv4(17, Ipv4Addr::new(10, 0, 0, host), dst, &[7; 30]);
            build::ethernet(group_mac(group), src, 0x0800, &packet)
        }
        IpAddr::V6(_) => build::ethernet(group_mac(group), src, 0x86dd, &[0x60; 60]),
    }
}

fn hello(host: u8) -> Vec<u8> {
    let src = MacAddr::new(mac(host));
    let mut message = [0x20, 0, 0, 0, 0, 1, 0, 2, 0, 105];
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let dst = Ipv4Addr::new(224, 0, 0, 13);
    let packet = build::ipv4(103, Ipv4Addr::new(10, 0, 0, host), dst, &message);
    build::ethernet(group_mac(dst.into()), src, 0x0800, &packet)
}

fn snooping(mcast_querier: bool) -> SwitchConfig {
    SwitchConfig { mcast_snooping: true, mcast_querier, ..SwitchConfig::default() }
}

/// A group in a VLAN, by its frames and its address.
type Key = (u16, MacAddr, Option<IpAddr>);
/// A family in a VLAN.
type Domain = (u16, bool);

#[derive(Clone, Copy, Debug)]
struct Querier {
    other: Option<(IpAddr, usize, u64)>,
    answered: u64,
}

/// A switch that asks every port about every frame, and ends things by looking at the clock.
struct Model {
    ports: Vec<PortConfig>,
    asks: bool,
    now: u64,
    members: BTreeMap<(Key, usize), Option<u64>>,
    routers: BTreeMap<(Domain, usize), u64>,
    queriers: BTreeMap<Domain, Querier>,
}

impl Model {
    fn advance(&mut self, ms: u64) {
        self.now += ms;
        let now = self.now;
        self.members.retain(|_, until| until.is_none_or(|until| until > now));
        self.routers.retain(|_, until| *until > now);
        for querier in self.queriers.values_mut() {
            querier.other = querier.other.filter(|(_, _, until)| *until > now);
        }
    }

    /// The switch looks at its VLANs, and asks where it is the querier.
    fn ask(&mut self) {
        let named = self.ports.iter().flat_map(|port| match &port.vlan {
            VlanMode::Transparent(vlan) | VlanMode::Access(vlan) => vec![*vlan],
            VlanMode::Trunk { allowed, .. } => allowed.iter().collect(),
        });
        for (vlan, is_ipv6) in named.flat_map(|vlan| [(vlan.get(), false), (vlan.get(), true)]) {
            let new = Querier { other: None, answered: self.now + 10_000 };
            self.queriers.entry((vlan, is_ipv6)).or_insert(new);
        }
    }

    fn hear_router(&mut self, domain: Domain, port: usize) {
        if self.ports[port].mcast_router == McastRouter::Auto {
            self.routers.insert((domain, port), self.now + 255_000);
        }
    }

    fn hear_query(&mut self, domain: Domain, port: usize, source: IpAddr, group: Option<IpAddr>) {
        if self.ports[port].mcast_router == McastRouter::Off {
            return;
        }
        if let Some(group) = group {
            let (key, soon) = ((domain.0, group_mac(group), Some(group)), self.now + 2_000);
            let asked: Vec<usize> = self.reached(port, domain.0).collect();
            for (at, until) in &mut self.members {
                if at.0 == key && asked.contains(&at.1) {
                    *until = until.map(|until| until.min(soon));
                }
            }
            return;
        }
        let response = 10_000;
        let known = self.queriers.get(&domain).copied();
        let other = known.and_then(|it| it.other);
        let own = match domain.1 {
            // Higher than any in this test.
            true => ip("fe80::fe00:0:0:0"),
            false => ip("0.0.0.0"),
        };
        let current = other.map(|it| it.0).or(self.asks.then_some(own));
        if current.is_none_or(|it| it.is_unspecified() || !source.is_unspecified() && source <= it)
        {
            let answered = match (other, known) {
                (Some(_), Some(known)) => known.answered,
                _ => self.now + response,
            };
            let other = Some((source, port, self.now + 255_000));
            self.queriers.insert(domain, Querier { other, answered });
        }
        if !source.is_unspecified() {
            self.hear_router(domain, port);
        }
    }

    fn join(&mut self, vlan: u16, group: IpAddr, port: usize) {
        let mac = group_mac(group);
        let is_for_all = ["01:00:5e:00:00:", "33:33:00:00:00:01"];
        if is_for_all.iter().any(|all| mac.to_string().starts_with(all)) {
            return;
        }
        let (key, most) = (((vlan, mac, Some(group)), port), self.ports[port].mcast_max_groups);
        match self.members.get_mut(&key) {
            Some(None) => {}
            Some(until) => *until = Some(self.now + 260_000),
            None => {
                let is_learned =
                    |it: &(&(Key, usize), &Option<u64>)| it.0.1 == port && it.1.is_some();
                let learned = self.members.iter().filter(is_learned).count();
                if most == 0 || learned < most as usize {
                    self.members.insert(key, Some(self.now + 260_000));
                }
            }
        }
    }

    fn leave(&mut self, domain: Domain, group: IpAddr, port: usize) {
        let key = ((domain.0, group_mac(group), Some(group)), port);
        let Some(Some(until)) = self.members.get(&key).copied() else { return };
        if self.ports[port].mcast_fast_leave {
            self.members.remove(&key);
        } else if self.queriers.get(&domain).is_none_or(|it| it.other.is_none()) {
            self.members.insert(key, Some(until.min(self.now + 2_000)));
        }
    }

    fn set_port(&mut self, port: usize, config: PortConfig) {
        let carries = |vlan: u16| config.vlan.carries(VlanId::new(vlan).expect("a VLAN"));
        self.members
            .retain(|((vlan, _, _), at), until| *at != port || until.is_some() && carries(*vlan));
        for (vlan, group) in &config.mcast_groups {
            self.members.insert(((vlan.get(), group.mac(), group.ip()), port), None);
        }
        let is_off = config.mcast_router == McastRouter::Off;
        self.routers.retain(|((vlan, _), at), _| *at != port || !is_off && carries(*vlan));
        self.queriers.retain(|_, it| !is_off || it.other.is_none_or(|(_, at, _)| at != port));
        self.ports[port] = config;
    }

    fn reset_port(&mut self, port: usize, config: PortConfig) {
        self.members.retain(|(_, at), _| *at != port);
        self.routers.retain(|(_, at), _| *at != port);
        self.queriers.retain(|_, it| it.other.is_none_or(|(_, at, _)| at != port));
        self.set_port(port, config);
    }

    /// The ports that may get a frame of this VLAN from a port.
    fn reached(&self, src: usize, vlan: u16) -> impl Iterator<Item = usize> + '_ {
        let (from, vlan) = (&self.ports[src], VlanId::new(vlan).expect("a VLAN"));
        (0..PORTS).filter(move |&port| {
            let to = &self.ports[port];
            port != src && to.vlan.carries(vlan) && !(from.isolated && to.isolated)
        })
    }

    /// The ports that get a frame.
    fn targets(&self, src: usize, vlan: u16, what: What, dst: MacAddr) -> Vec<usize> {
        let is_ipv6 = dst.octets()[0] == 0x33;
        let querier = self.queriers.get(&(vlan, is_ipv6));
        let is_restricted =
            querier.is_some_and(|it| self.now >= it.answered && (self.asks || it.other.is_some()));
        let has = |key: &Key| (key.0, key.1) == (vlan, dst);
        let is_known = self.members.keys().any(|(key, _)| has(key));
        let text = dst.to_string();
        let is_for_all = text.starts_with("01:00:5e:00:00:") || text == "33:33:00:00:00:01";
        let is_free = !is_known && text.starts_with("33:33:ff") || is_for_all;
        let takes = |port: usize| {
            let config = &self.ports[port];
            let leads = config.mcast_router == McastRouter::On
                || self.routers.contains_key(&((vlan, is_ipv6), port));
            let is_member = self.members.keys().any(|(key, at)| has(key) && *at == port);
            match what {
                What::Query => true,
                What::Flooded => config.multicast_flood,
                What::Report if is_restricted => leads,
                What::Data if is_restricted && !is_free => leads || is_member,
                What::Report | What::Data => config.multicast_flood,
            }
        };
        self.reached(src, vlan).filter(|&port| takes(port)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Data,
    Report,
    Query,
    Flooded,
}

fn config(random: &mut Random) -> PortConfig {
    let vlan = random.pick(&["transparent", "access:1", "access:2", "trunk:1-2"]);
    let statics: [&[(u16, &str)]; 3] = [&[], &[], &[(1, "239.1.1.1"), (2, "ff15::7")]];
    let statics = random
        .pick(&statics)
        .iter()
        .map(|&(vlan, group)| (VlanId::new(vlan).expect("a VLAN"), GroupAddr::Ip(ip(group))));
    PortConfig {
        vlan: vlan.parse().expect("a mode"),
        isolated: random.one_in(5),
        multicast_flood: !random.one_in(4),
        mcast_router: random.pick(&[
            McastRouter::Auto,
            McastRouter::Auto,
            McastRouter::Off,
            McastRouter::On,
        ]),
        mcast_fast_leave: random.one_in(3),
        mcast_max_groups: random.pick(&[0, 2, 512]),
        mcast_groups: statics.collect(),
        ..PortConfig::default()
    }
}

struct World {
    net: Net,
    model: Model,
    random: Random,
    /// How often frames were restricted, and flooded.
    counts: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(asks: bool, seed: u64) -> Self {
        let (mut net, mut random) = (Net::new(snooping(asks)), Random(seed));
        let ports: Vec<_> = (0..PORTS).map(|_| config(&mut random)).collect();
        let model = Model {
            ports: vec![PortConfig::default(); PORTS],
            asks,
            now: 0,
            members: BTreeMap::new(),
            routers: BTreeMap::new(),
            queriers: BTreeMap::new(),
        };
        let mut world = {
            ports.iter().for_each(|port| net.add(port.clone()));
            Self { net, model, random, counts: BTreeMap::new() }
        };
        ports.into_iter().enumerate().for_each(|(at, port)| world.model.set_port(at, port));
        world.model.now = 1;
        world
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0 if self.random.one_in(4) => self.replug(),
            0..2 => {
                let (port, config) = (self.random.below(PORTS), config(&mut self.random));
                self.net.switch.set_port(id(port), config.clone());
                // The switch adds what the port's kind says.
                self.model.set_port(port, config);
            }
            2..10 => self.wait(),
            _ => self.talk(),
        }
    }

    /// A port goes, and comes back with what a new one knows.
    fn replug(&mut self) {
        let (port, config) = (self.random.below(PORTS), config(&mut self.random));
        let plug = self.net.switch.remove_port(id(port)).expect("it is there");
        self.net.switch.add_port(id(port), plug, config.clone());
        self.model.reset_port(port, config);
    }

    fn wait(&mut self) {
        let ms = match self.random.below(10) {
            0 => 100_000,
            1..4 => 9_000,
            _ => self.random.below(1_500),
        };
        self.model.advance(u64::try_from(ms).expect("short"));
        self.net.now = Now::from_ms(self.model.now);
        let Net { switch, scratch, now, .. } = &mut self.net;
        switch.send_queries(*now, scratch);
        if self.model.asks {
            self.model.ask();
        }
        (0..PORTS).for_each(|port| drop(self.net.received(port)));
    }

    /// A host or a router says something, and what the model hears of it.
    fn talk(&mut self) {
        let (port, group) = (self.random.below(PORTS), ip(self.random.pick(&GROUPS)));
        let host = u8::try_from(port + 1).expect("few");
        let (vlan, tag) = match &self.model.ports[port].vlan {
            VlanMode::Transparent(vlan) | VlanMode::Access(vlan) => (vlan.get(), None),
            VlanMode::Trunk { .. } => {
                let vlan = self.random.pick(&[1, 2]);
                (vlan, Some(vlan))
            }
        };
        let domain = (vlan, group.is_ipv6());
        let model = &mut self.model;
        let is_specific =
            self.random.one_in(3) && !["ff02::1", "224.0.0.251"].map(ip).contains(&group);
        let (frame, what) = match self.random.below(12) {
            0 | 1 => {
                model.join(vlan, group, port);
                (report(host, group), What::Report)
            }
            2 => {
                model.join(vlan, group, port);
                (record(host, group, true), What::Flooded)
            }
            3 => {
                model.leave(domain, group, port);
                (leave(host, group), What::Flooded)
            }
            4 => {
                model.leave(domain, group, port);
                (record(host, group, false), What::Flooded)
            }
            5 => {
                let about = is_specific.then_some(group);
                let host = if domain.1 { host } else { self.random.pick(&[host, host, 0]) };
                let frame = query(host, domain.1, about);
                let source = match (domain.1, host) {
                    (true, _) => ip(&format!("fe80::{host}")),
                    (false, host) if host > 0 => ip(&format!("10.0.0.{host}")),
                    _ => ip("0.0.0.0"),
                };
                model.hear_query(domain, port, source, about);
                (frame, What::Query)
            }
            6 if self.random.one_in(4) => {
                model.hear_router((vlan, false), port);
                (hello(host), What::Data)
            }
            _ => (data(host, group), What::Data),
        };
        let frame = match tag {
            None => frame,
            Some(vlan) => {
                let [high, low] = u16::to_be_bytes(vlan);
                [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
            }
        };
        self.send(port, vlan, (what, &frame));
    }

    fn send(&mut self, port: usize, vlan: u16, (what, frame): (What, &[u8])) {
        let dst = MacAddr::new(*frame.first_chunk().expect("a frame"));
        self.net.send(port, &[frame.to_vec()]);
        assert_eq!(self.net.turn(port).slots, 1);
        let got = (0..PORTS).filter(|&at| !self.net.received(at).is_empty());
        let (got, expected) = (got.collect::<Vec<_>>(), self.model.targets(port, vlan, what, dst));
        assert_eq!(got, expected, "{what:?} to {dst} in {vlan} from {port}, {} ms", self.model.now);
        let is_data = matches!(what, What::Data);
        let flooded = self.model.targets(port, vlan, What::Flooded, dst);
        let kind = match (is_data, expected == flooded) {
            (false, _) => "control",
            (true, true) => "flooded",
            (true, false) => "restricted",
        };
        *self.counts.entry(kind).or_default() += 1;
        // A trace foretells it, and changes nothing.
        let len = u32::try_from(frame.len()).expect("short");
        let steps = self.net.switch.trace(id(port), frame, len, self.net.now);
        let sent = steps.iter().filter_map(|step| match step {
            switch::TraceStep::Send(port, _) => Some(port.index()),
            _ => None,
        });
        assert_eq!(sent.collect::<Vec<_>>(), expected, "{steps:?}");
    }

    /// What the switch lists is what the model knows.
    fn compare(&mut self) {
        let now = self.net.now;
        let rows = self.net.switch.bridge_mut().mcast_rows(now, 0, usize::MAX);
        let listed = rows.iter().filter_map(|row| match row {
            McastRow::Member(it) => {
                Some((((it.vlan.get(), it.mac, it.address), it.port.index()), it.expires_ms))
            }
            _ => None,
        });
        let left = |until: Option<u64>| until.map(|until| until - self.model.now);
        let known = self.model.members.iter().map(|(key, until)| (*key, left(*until)));
        assert_eq!(listed.collect::<BTreeMap<_, _>>(), known.collect::<BTreeMap<_, _>>());
    }
}

#[test]
fn frames_of_groups_go_where_the_model_says() {
    for asks in [false, true] {
        let mut counts = BTreeMap::<_, u32>::new();
        for seed in 1..5 {
            let mut world = World::new(asks, seed);
            for step in 0..STEPS {
                world.step();
                if step % 50 == 0 {
                    world.compare();
                }
            }
            world
                .counts
                .into_iter()
                .for_each(|(kind, count)| *counts.entry(kind).or_default() += count);
        }
        let is_rich = |kind| counts.get(kind).is_some_and(|&count: &u32| count > 500);
        assert!(["control", "flooded", "restricted"].into_iter().all(is_rich), "{counts:?}");
    }
}

/// Two ports with hosts and one with a router that is heard, and its answers due.
fn with_router(config: &PortConfig) -> Net {
    let mut net = Net::new(snooping(false));
    (0..4).for_each(|_| net.add(config.clone()));
    net.send(3, &[query(9, false, None)]);
    net.turn(3);
    net.now = Now::from_ms(10_001);
    (0..4).for_each(|port| drop(net.received(port)));
    net
}

#[test]
fn a_report_among_data_is_heard_before_the_data_behind_it() {
    let mut net = with_router(&PortConfig::default());
    let group = ip("239.1.1.1");
    let (one, another) = (data(1, group), report(1, group));
    // One header, so one run.
    net.send(1, &[one.clone(), another.clone(), one.clone(), one.clone()]);
    assert_eq!(net.turn(1).slots, 4);
    assert_eq!(net.received(3), [one.clone(), another, one.clone(), one.clone()], "the router");
    assert!(net.received(0).is_empty() && net.received(2).is_empty());
    net.send(2, std::slice::from_ref(&one));
    net.turn(2);
    assert_eq!((net.received(1), net.received(0)), (vec![one], vec![]));
    assert_eq!(net.drops(1, DropReason::NoMember), 0, "the router got them");
}

#[test]
fn a_frame_without_members_and_routers_is_dropped_with_its_reason() {
    let mut net = Net::new(snooping(false));
    (0..3).for_each(|_| net.add(PortConfig::default()));
    net.send(2, &[query(0, false, None)]);
    net.turn(2);
    net.now = Now::from_ms(10_001);
    net.send(0, &[data(1, ip("239.1.1.1"))]);
    net.turn(0);
    assert_eq!(net.drops(0, DropReason::NoMember), 1, "a query of 0.0.0.0 is no router's");
    // What limits floods limits these, too.
    let mut security = PortSecurity::default();
    security.flood_limits[switch::FloodClass::Multicast.index()] = Some(1);
    net.switch.set_port(id(0), PortConfig { security, ..PortConfig::default() });
    net.send(1, &[report(2, ip("239.1.1.1"))]);
    net.turn(1);
    net.received(1);
    net.send(0, &vec![data(1, ip("239.1.1.1")); 3]);
    while net.turn(0).slots > 0 {}
    assert_eq!((net.received(1).len(), net.drops(0, DropReason::StormMulticast)), (1, 2));
}

/// Frames of IPv4 with an address of IPv6 in front, and the other way: they name a group of one
/// family and reach the hosts of the other.
#[test]
fn a_message_in_a_frame_of_another_group_is_malformed_and_harms_nothing() {
    let mut net = Net::new(snooping(true));
    (0..3).for_each(|_| net.add(PortConfig::default()));
    let (group, group6) = (ip("239.1.1.1"), ip("ff15::7"));
    net.send(0, &[report(1, group), report(1, group6)]);
    for mut wrong in [leave(1, group), query(1, false, None), report(2, ip("239.1.1.2"))] {
        wrong[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 2]);
        net.send(0, &[wrong]);
    }
    let mut wrong = leave(1, group6);
    wrong[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 2]);
    net.send(0, &[wrong]);
    while net.turn(0).slots > 0 {}
    net.now = Now::from_ms(2_000);
    let Net { switch, scratch, now, .. } = &mut net;
    assert!(switch.send_queries(*now, scratch));
    let (stats, [groups, _], queriers) = net.switch.bridge().mcast_stats();
    assert_eq!((stats.malformed, stats.leaves, stats.queries, groups, queriers), (4, 0, 0, 2, 2));
}

/// Two groups of IPv4 with the same frames: a leave of one leaves the other.
#[test]
fn a_leave_ends_the_membership_of_its_group_and_of_no_other_with_the_same_frames() {
    let mut net = with_router(&PortConfig { mcast_fast_leave: true, ..PortConfig::default() });
    let (one, same) = (ip("239.1.1.1"), ip("225.129.1.1"));
    net.send(1, &[report(1, one), report(1, same), leave(1, same)]);
    net.turn(1);
    (0..4).for_each(|port| drop(net.received(port)));
    net.send(2, &[data(2, one)]);
    net.turn(2);
    assert_eq!(net.received(1).len(), 1);
    net.send(1, &[leave(1, one)]);
    net.turn(1);
    (0..4).for_each(|port| drop(net.received(port)));
    net.send(2, &[data(2, one)]);
    net.turn(2);
    assert!(net.received(1).is_empty());
}

#[test]
fn a_tag_that_is_payload_hides_what_is_behind_it() {
    let mut net = with_router(&PortConfig::default());
    let tagged = |frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    net.send(1, &[tagged(report(1, ip("239.1.1.1"))), tagged(data(1, ip("239.1.1.2")))]);
    net.turn(1);
    assert_eq!([0, 2, 3].map(|port| net.received(port).len()), [2, 2, 2], "flooded");
    let (_, [groups, _], _) = net.switch.bridge().mcast_stats();
    assert_eq!(groups, 0);
}

#[test]
fn the_switch_asks_where_no_other_does_and_the_port_that_was_left() {
    let mut net = Net::new(snooping(true));
    net.add(PortConfig::default());
    net.add(PortConfig { vlan: "trunk:1-2".parse().expect("a mode"), ..PortConfig::default() });
    let ask = |net: &mut Net, ms: u64| {
        net.now = Now::from_ms(ms);
        let Net { switch, scratch, now, .. } = net;
        let due = switch.next_query().expect("it asks");
        assert_eq!(switch.send_queries(*now, scratch), due <= *now);
        [net.received(0), net.received(1)]
    };
    let [untagged, tagged] = ask(&mut net, 0);
    assert_eq!([untagged.len(), tagged.len()], [2, 4], "IGMP and MLD in each VLAN");
    assert_eq!(tagged[0][12..16], [0x81, 0, 0, 1]);
    let Ok(Some(mcast::Message::Query(first))) = mcast::read(&untagged[0]) else { panic!() };
    assert_eq!((first.source, first.group), (ip("0.0.0.0"), None));
    let Ok(Some(mcast::Message::Query(second))) = mcast::read(&untagged[1]) else { panic!() };
    assert!(second.source.to_string().starts_with("fe80::fe"), "{}", second.source);
    assert_eq!(ask(&mut net, 31_250).map(|it| it.len()), [2, 4], "once more soon");
    assert_eq!(ask(&mut net, 31_251).map(|it| it.len()), [0, 0]);
    // A host leaves: those behind its port are asked twice.
    net.send(0, &[report(1, ip("239.1.1.1")), leave(1, ip("239.1.1.1"))]);
    net.turn(0);
    net.received(1);
    assert_eq!(ask(&mut net, 31_252).map(|it| it.len()), [1, 0]);
    assert_eq!(ask(&mut net, 32_252).map(|it| it.len()), [1, 0]);
    assert_eq!(ask(&mut net, 33_252).map(|it| it.len()), [0, 0]);
    let (stats, _, queriers) = net.switch.bridge().mcast_stats();
    assert_eq!((stats.queries_sent, queriers), (10, 4), "{stats:?}");
    assert!(net.switch.bridge_mut().mcast_rows(net.now, 0, 9).len() == 4, "no member is left");
    // A router asks: the switch does not, in its VLAN and family.
    net.send(0, &[query(9, false, None)]);
    net.turn(0);
    net.received(1);
    assert_eq!(ask(&mut net, 156_300).map(|it| it.len()), [1, 3]);
}

/// A report of so many groups, as long as no host's.
fn long_report(host: u8, count: u16) -> Vec<u8> {
    let record = |number: u16| {
        let [high, low] = number.to_be_bytes();
        [4, 0, 0, 0, 239, 1, high, low]
    };
    let [high, low] = count.to_be_bytes();
    let head = [0x22, 0, 0, 0, 0, 0, high, low];
    let message = head.into_iter().chain((0..count).flat_map(record)).collect();
    control(host, ip("224.0.0.22"), message)
}

#[test]
fn records_of_reports_are_charged_to_the_turn_which_reads_no_more_when_it_is_spent() {
    let mut net = Net::new(snooping(false));
    let config = PortConfig { mcast_max_groups: 0, ..PortConfig::default() };
    (0..2).for_each(|_| net.add(config.clone()));
    let send = |net: &mut Net, count: u16| {
        let frame = long_report(1, count);
        net.send_chain(0, &frame.chunks(2000).collect::<Vec<_>>());
    };
    let reports = |net: &Net| net.switch.bridge().mcast_stats().0.reports;
    (0..3).for_each(|_| send(&mut net, 1_200));
    assert_eq!(net.turn(0).slots, 15);
    assert_eq!(net.received(1).len(), 3, "all are sent on");
    assert_eq!(reports(&net), 2 * 1_200);
    assert!(net.scratch.work() > 32_768, "{}", net.scratch.work());
    // The next turn reads on, as many records as a report may have.
    send(&mut net, 1_300);
    net.turn(0);
    assert_eq!(reports(&net), 3 * 1_200);
    let (_, [groups, members], _) = net.switch.bridge().mcast_stats();
    assert_eq!((groups, members), (1_200, 1_200));
}
