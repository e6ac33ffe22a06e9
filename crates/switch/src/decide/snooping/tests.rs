//! Snooping, case by case. `tests/turns/groups.rs` has the model.

use packet::VlanMode;
use packet::ethernet::Header;
use packet::mcast::GroupAddr;

use super::*;
use crate::decide::bridge::Bridge;
use crate::model::config::SwitchConfig;

const VLAN: VlanId = VlanId::DEFAULT;
const IGMP: Domain = Domain { vlan: VLAN, family: McastFamily::Ipv4 };

fn port(index: usize) -> PortId {
    PortId::new(index).expect("few")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The group of this number.
fn group(number: u32) -> IpAddr {
    std::net::Ipv4Addr::from(0xef01_0000 + number).into()
}

fn listener(index: usize) -> Listener {
    Listener::new(port(index), &PortConfig::default())
}

fn at(ms: u64) -> Now {
    Now::from_ms(ms)
}

fn report(snooping: &mut Snooping, index: usize, number: u32, ms: u64) {
    let message = Ok(Message::Report(group(number)));
    snooping.observe(listener(index), IGMP, (message, &Members::default()), at(ms));
}

fn query(source: &str) -> Result<Message<'static>, Malformed> {
    let query = Query { source: ip(source), group: None, response_ms: 10_000, is_last: true };
    Ok(Message::Query(query))
}

fn counts(snooping: &Snooping) -> [usize; 2] {
    snooping.stats().1
}

#[test]
fn test_a_port_learns_as_many_groups_as_its_limit_and_takes_no_room_from_others() {
    let mut snooping = Snooping::new(1);
    (0..2000).for_each(|number| report(&mut snooping, 0, number, 0));
    assert_eq!(counts(&snooping), [512, 512]);
    assert_eq!(snooping.stats.refused_limit, 2000 - 512);
    report(&mut snooping, 1, 5000, 0);
    assert_eq!(counts(&snooping), [513, 513]);
    assert_eq!(snooping.open_until, Now::START, "a port's limit opens nothing");
    report(&mut snooping, 0, 7, 100_000);
    snooping.expire(at(260_000));
    assert_eq!(counts(&snooping), [1, 1], "one was reported again");
    assert!(snooping.timers.len() == 1 && snooping.learned == BTreeMap::from([(port(0), 1)]));
}

#[test]
fn test_a_full_table_restricts_nothing_until_what_was_refused_would_have_ended() {
    let mut snooping = Snooping::new(1);
    let per_port = 512;
    for index in 0..GROUPS_MAX / per_port {
        let first = u32::try_from(index * per_port).expect("few");
        (first..first + 512).for_each(|number| report(&mut snooping, index, number, 0));
    }
    assert_eq!(counts(&snooping), [GROUPS_MAX; 2]);
    report(&mut snooping, 30, 90_000, 5);
    assert_eq!((counts(&snooping), snooping.stats.refused_full), ([GROUPS_MAX; 2], 1));
    assert_eq!(snooping.open_until, at(260_005));
    report(&mut snooping, 30, 1, 5);
    assert_eq!(counts(&snooping), [GROUPS_MAX, GROUPS_MAX + 1], "a group that is known");
}

#[test]
fn test_the_lowest_address_is_the_querier_and_any_wins_against_none() {
    let mut snooping = Snooping::new(1);
    snooping.restart_querier(true);
    let mut hear = |index: usize, source: &str, ms: u64| {
        let message = (query(source), &Members::default());
        snooping.observe(listener(index), IGMP, message, at(ms));
        let querier = snooping.querier.all().next();
        querier.and_then(|(_, other)| other).map(|other| other.port.index())
    };
    assert_eq!(hear(1, "0.0.0.0", 0), Some(1), "even against the switch's own");
    assert_eq!(hear(2, "10.0.0.9", 1), Some(2));
    assert_eq!(hear(3, "10.0.0.10", 2), Some(2), "the lower stays");
    assert_eq!(hear(4, "10.0.0.1", 3), Some(4));
    assert_eq!(hear(1, "0.0.0.0", 4), Some(4), "no address is not the lowest");
    assert_eq!(hear(3, "10.0.0.10", 255_003), Some(3), "the lower is gone");
}

#[test]
fn test_an_address_of_the_switch_gives_no_seed_away() {
    let querier = Querier::new(0x0102_0304_0506_0708);
    let (mac, address) = querier.source(McastFamily::Ipv6);
    let IpAddr::V6(address) = address else { panic!("MLD") };
    assert!(address.is_unicast_link_local() && mac.octets()[0] == 2);
    assert!(!mac.octets()[1..].starts_with(&[1, 2, 3]), "{mac}");
    assert!(!address.octets()[9..].starts_with(&[1, 2, 3]), "{address}");
}

#[test]
fn test_vlans_of_new_ports_are_asked_at_once() {
    let mut snooping = Snooping::new(1);
    snooping.restart_querier(true);
    assert_eq!(snooping.take_due(std::iter::empty(), at(0)), []);
    assert!(snooping.due() > at(60_000), "no VLAN, nothing to do");
    snooping.set_port(port(1), &PortConfig::default());
    assert!(snooping.due() <= at(5));
    assert_eq!(snooping.take_due(std::iter::once(VLAN), at(5)).len(), 2);
    assert_eq!(snooping.due(), at(5 + 31_250));
    assert!(!snooping.querier.is_there(IGMP, at(9_000)), "no host had time to answer");
    assert!(snooping.querier.is_there(IGMP, at(10_005)));
}

fn frame_to(group: IpAddr) -> Header {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&group_mac(group).expect("a group").octets());
    bytes[6] = 2;
    bytes[12..14].copy_from_slice(&[8, 0]);
    Header::new(bytes)
}

#[test]
fn test_what_one_worker_hears_all_know_until_snooping_ends() {
    let config = SwitchConfig { mcast_snooping: true, ..SwitchConfig::default() };
    let mut workers = Bridge::new(config, 1).into_replicas(2);
    let own: VlanMode = "access:1".parse().expect("a mode");
    for bridge in &mut workers {
        for index in 0..4 {
            let statics = if index == 3 { vec![(VLAN, GroupAddr::Ip(group(9)))] } else { vec![] };
            let (vlan, mcast_groups) = (own.clone(), statics);
            bridge
                .add_port(port(index), PortConfig { vlan, mcast_groups, ..PortConfig::default() });
        }
    }
    let [one, two] = &mut workers[..] else { panic!("two") };
    let hear = |bridge: &mut Bridge, index, message| {
        let header = frame_to(group(1));
        bridge.hear((port(index), VLAN), header, Ok(Some(message)), at(1));
    };
    hear(one, 0, query("10.0.0.1").expect("a query"));
    hear(two, 1, Message::Report(group(1)));
    let targets = |bridge: &mut Bridge, src: usize, number: u32, ms: u64| {
        let mut to = Vec::new();
        let frame = (frame_to(group(number)), Kind::Data);
        let scope = bridge.group_targets((port(src), VLAN), frame, at(ms), &mut to);
        (scope, to.into_iter().map(PortId::index).collect::<Vec<_>>())
    };
    for bridge in [&mut *one, &mut *two] {
        assert_eq!(targets(bridge, 2, 1, 9_000).0, McastScope::NoQuerier);
        assert_eq!(targets(bridge, 2, 1, 10_001), (McastScope::Members, vec![0, 1]));
        assert_eq!(targets(bridge, 2, 2, 10_001), (McastScope::NoMember, vec![0]));
        assert_eq!(targets(bridge, 2, 9, 10_001), (McastScope::Members, vec![0, 3]));
    }
    one.remove_port(port(1));
    assert_eq!(targets(two, 2, 1, 10_001), (McastScope::NoMember, vec![0]));
    for bridge in [&mut *one, &mut *two] {
        bridge.set_config(SwitchConfig::default());
    }
    assert_eq!(two.mcast_stats().1, [1, 1], "the static entry");
}

#[test]
fn test_a_bridge_is_a_querier_as_its_settings_say() {
    let silent = SwitchConfig { mcast_snooping: true, ..SwitchConfig::default() };
    let asks = SwitchConfig { mcast_querier: true, ..silent };
    let mut bridge = Bridge::new(asks, 1);
    let vlan: VlanMode = "access:1".parse().expect("a mode");
    bridge.add_port(port(0), PortConfig { vlan, ..PortConfig::default() });
    let mut queriers = |config: SwitchConfig, ms: u64| {
        bridge.set_config(config);
        let due = bridge.take_due_queries(at(ms));
        (due.len(), bridge.mcast_stats().2)
    };
    assert_eq!(queriers(asks, 0), (2, 2), "of IGMP and MLD");
    assert_eq!(queriers(silent, 1).1, 0);
    assert_eq!(queriers(asks, 2), (2, 2));
}

fn hello(snooping: &mut Snooping, index: usize, domain: Domain, ms: u64) {
    let message = (Ok(Message::Hello), &Members::default());
    let records = snooping.observe(listener(index), domain, message, at(ms));
    assert_eq!(records, 1);
}

#[test]
fn test_a_table_full_of_routers_restricts_nothing_and_ends_in_parts() {
    let mut snooping = Snooping::new(1);
    let families = [McastFamily::Ipv4, McastFamily::Ipv6];
    for index in 0..3 {
        for vlan in (1..=4094).map(|vlan| VlanId::new(vlan).expect("a VLAN")) {
            families.iter().for_each(|&family| {
                hello(&mut snooping, index, Domain { vlan, family }, 0);
            });
        }
    }
    assert_eq!(snooping.router_until.len(), ROUTERS_MAX);
    assert_eq!(snooping.stats.refused_full, 3 * 2 * 4094 - 16_384);
    assert_eq!(snooping.open_until, at(255_000));
    let refused = snooping.stats.refused_full;
    hello(&mut snooping, 0, IGMP, 100);
    assert_eq!(snooping.stats.refused_full, refused, "one that is known");
    snooping.expire(at(255_000));
    assert_eq!(snooping.router_until.len(), ROUTERS_MAX - EXPIRED_MAX);
    (0..ROUTERS_MAX / EXPIRED_MAX).for_each(|_| snooping.expire(at(255_000)));
    assert_eq!(snooping.router_until, BTreeMap::from([((IGMP, port(0)), at(255_100))]));
    assert_eq!((snooping.routers.len(), snooping.timers.len()), (1, 1));
}

#[test]
fn test_a_port_stays_a_member_of_frames_until_it_leaves_the_last_group_that_has_them() {
    let mut snooping = Snooping::new(1);
    // 32 groups of IPv4 have the same frames.
    let groups: Vec<IpAddr> = (0..32)
        .map(|at| std::net::Ipv4Addr::new(224 + at / 2, at % 2 * 128 + 1, 1, 1).into())
        .collect();
    for &group in &groups {
        for index in [0, 1] {
            snooping.join(listener(index), VLAN, group, at(0));
        }
    }
    assert_eq!((counts(&snooping), snooping.with_frames.len()), ([1, 64], 2));
    for &address in &groups {
        let mac = group_mac(address).expect("a group");
        assert_eq!(snooping.groups[&Frames { vlan: VLAN, mac }].iter().count(), 2);
        snooping.remove_member(Group::new(VLAN, mac, Some(address)), port(0));
    }
    assert_eq!((counts(&snooping), snooping.with_frames.len()), ([1, 32], 1));
    snooping.remove_port(port(1));
    assert!(snooping.groups.is_empty() && snooping.with_frames.is_empty());
}

fn question(querier: &mut Querier, index: usize, number: u32, ms: u64) -> bool {
    querier.ask(OwnQuery { domain: IGMP, group: Some((group(number), port(index))) }, at(ms))
}

#[test]
fn test_questions_of_a_port_are_bounded_and_one_that_is_open_is_asked_in_its_time() {
    let mut querier = Querier::new(1);
    assert_eq!(querier.take_due(std::iter::once(VLAN), at(0)).len(), 2);
    assert!((0..64).all(|number| question(&mut querier, 0, number, 1)));
    assert!(!question(&mut querier, 0, 64, 1) && question(&mut querier, 1, 64, 1));
    assert_eq!(querier.due(), at(1));
    // For questions no VLAN is looked at.
    let asked = |querier: &mut Querier, ms: u64| {
        let no_vlan = std::iter::from_fn(|| -> Option<VlanId> { panic!("a look at VLANs") });
        querier.take_due(no_vlan, at(ms)).len()
    };
    assert_eq!([1, 1, 1].map(|ms| asked(&mut querier, ms)), [32, 32, 1], "a round at a time");
    assert_eq!(querier.due(), at(1_001));
    assert!(question(&mut querier, 0, 7, 500), "the question is open");
    assert_eq!((querier.due(), asked(&mut querier, 500)), (at(1_001), 0));
    assert_eq!([1_001; 3].map(|ms| asked(&mut querier, ms)), [32, 32, 1], "the last time");
    assert_eq!(querier.due(), at(31_250));
    assert!((0..64).all(|number| question(&mut querier, 0, number, 1_002)), "all are closed");
    querier.remove_port(port(0));
    assert_eq!(querier.due(), at(31_250));
    assert!((0..64).all(|number| question(&mut querier, 0, number, 1_003)));
}
