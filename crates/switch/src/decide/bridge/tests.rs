//! The bridge, case by case; and floods against the rule for one port.

use packet::{MAX_PORTS, MacAddr, MacLock};

use super::*;
use crate::decide::forward::FloodClass;
use crate::model::security::{Disabled, PortSecurity};
use proptest::prelude::*;

const NOW: Now = Now::START;

fn port(index: usize) -> PortId {
    PortId::new(index).unwrap()
}

fn vlan(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

fn mac(number: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, number])
}

fn header(dst: MacAddr, src: MacAddr, tci: Option<u16>) -> Header {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&dst.octets());
    bytes[6..12].copy_from_slice(&src.octets());
    bytes[12..14].copy_from_slice(&if tci.is_some() { [0x81, 0] } else { [8, 0] });
    bytes[14..].copy_from_slice(&tci.unwrap_or(0x4500).to_be_bytes());
    Header::new(bytes)
}

fn untagged(dst: u8, src: u8) -> Header {
    header(mac(dst), mac(src), None)
}

fn carrying(mode: &str) -> PortConfig {
    PortConfig { vlan: mode.parse().unwrap(), ..PortConfig::default() }
}

fn secured(security: PortSecurity) -> PortConfig {
    PortConfig { security, ..PortConfig::default() }
}

/// A switch with one port per configuration.
fn bridge(forwarding: Forwarding, ports: &[PortConfig]) -> Bridge {
    let mut bridge = Bridge::new(SwitchConfig { forwarding, ..SwitchConfig::default() }, 7);
    for (index, config) in ports.iter().enumerate() {
        bridge.add_port(port(index), config.clone());
    }
    bridge
}

fn plain(forwarding: Forwarding, ports: usize) -> Bridge {
    bridge(forwarding, &vec![PortConfig::default(); ports])
}

fn decide(bridge: &mut Bridge, src: usize, header: Header) -> Verdict {
    bridge.decide(port(src), header, NOW).forward
}

fn targets(bridge: &Bridge, src: usize, verdict: &VlanVerdict) -> Vec<usize> {
    bridge.flood_targets(port(src), verdict).map(PortId::index).collect()
}

const UNKNOWN: Verdict = Verdict::Flood(FloodClass::Unicast);

#[test]
fn test_learning_floods_until_it_has_heard_the_destination() {
    let mut bridge = plain(Forwarding::Learning, 3);
    assert_eq!(decide(&mut bridge, 0, untagged(2, 1)), UNKNOWN);
    assert_eq!(decide(&mut bridge, 2, untagged(1, 2)), Verdict::To(port(0)));
    assert_eq!(decide(&mut bridge, 0, untagged(2, 1)), Verdict::To(port(2)));
}

#[test]
fn test_frame_for_its_own_port_is_dropped() {
    let mut bridge = plain(Forwarding::Learning, 2);
    decide(&mut bridge, 0, untagged(9, 1));
    let verdict = decide(&mut bridge, 0, untagged(1, 2));
    assert_eq!(verdict, Verdict::Drop(DropReason::SamePort));
}

#[test]
fn test_pause_frames_end_here_and_are_not_learned() {
    let mut bridge = plain(Forwarding::Learning, 2);
    let pause = header(MacAddr::PAUSE, mac(1), None);
    assert_eq!(decide(&mut bridge, 0, pause), Verdict::Drop(DropReason::Pause));
    assert_eq!(bridge.fdb().count(), 0);
}

#[test]
fn test_frames_whose_source_is_no_station_are_dropped_and_not_learned() {
    let group = MacAddr::new([0x33, 0x33, 0, 0, 0, 1]);
    for forwarding in [Forwarding::Learning, Forwarding::Hub, Forwarding::StaticFlood] {
        for src in [MacAddr::ZERO, MacAddr::BROADCAST, group] {
            let mut bridge = plain(forwarding, 2);
            let verdict = decide(&mut bridge, 0, header(mac(1), src, None));
            assert_eq!(verdict, Verdict::Drop(DropReason::BadSource), "{forwarding:?} {src}");
            bridge.set_port(port(0), PortConfig { zero_source: true, ..PortConfig::default() });
            let verdict = decide(&mut bridge, 0, header(mac(1), src, None));
            let passes = src == MacAddr::ZERO;
            assert_eq!(verdict == UNKNOWN, passes, "{forwarding:?} {src}: {verdict:?}");
            assert_eq!(bridge.fdb().count(), 0);
        }
    }
}

#[test]
fn test_reserved_groups_pass_only_by_the_mask() {
    let masks = [(0, &[][..]), (0x4008, &[3, 14]), (0xffff, &[0, 2, 3, 7, 14, 15])];
    for (forwarding, (mask, open)) in [Forwarding::Learning, Forwarding::Hub, Forwarding::Static]
        .map(|f| masks.map(|m| (f, m)))
        .concat()
    {
        let mut bridge = plain(forwarding, 2);
        bridge.set_config(SwitchConfig {
            forwarding,
            group_fwd_mask: mask,
            ..SwitchConfig::default()
        });
        for last in [0, 1, 2, 3, 7, 14, 15, 16] {
            let group = MacAddr::new([0x01, 0x80, 0xc2, 0, 0, last]);
            let expected = match last {
                1 => Verdict::Drop(DropReason::Pause),
                0..16 if !open.contains(&last) => Verdict::Drop(DropReason::ReservedGroup),
                _ => Verdict::Flood(FloodClass::Multicast),
            };
            let verdict = decide(&mut bridge, 0, header(group, mac(1), None));
            assert_eq!(verdict, expected, "{forwarding:?} {mask:#x} {group}");
        }
    }
}

#[test]
fn test_frame_from_no_port_is_dropped() {
    let mut bridge = plain(Forwarding::Learning, 2);
    for src in [2, MAX_PORTS - 1] {
        assert_eq!(decide(&mut bridge, src, untagged(1, 2)), Verdict::Drop(DropReason::DeadPort));
    }
}

#[test]
fn test_port_that_does_not_learn_leaves_its_stations_unknown() {
    let quiet = PortConfig { learning: false, ..PortConfig::default() };
    let mut bridge = bridge(Forwarding::Learning, &[quiet, PortConfig::default()]);
    decide(&mut bridge, 0, untagged(2, 1));
    assert_eq!(decide(&mut bridge, 1, untagged(1, 2)), UNKNOWN);
}

#[test]
fn test_port_at_its_limit_still_forwards() {
    let limited = secured(PortSecurity { max_macs: Some(1), ..PortSecurity::default() });
    let mut bridge = bridge(Forwarding::Learning, &[limited, PortConfig::default()]);
    decide(&mut bridge, 0, untagged(9, 1));
    assert_eq!(decide(&mut bridge, 0, untagged(9, 2)), UNKNOWN);
    assert_eq!(decide(&mut bridge, 1, untagged(1, 9)), Verdict::To(port(0)));
    assert_eq!(decide(&mut bridge, 1, untagged(2, 9)), UNKNOWN);
}

#[test]
fn test_limit_of_addresses_is_the_port_s_or_the_switch_s_or_the_usual_one() {
    let (none, one) =
        (PortSecurity::default(), PortSecurity { max_macs: Some(1), ..Default::default() });
    let any = PortSecurity { max_macs: Some(0), ..Default::default() };
    for (own, switch, usual, learned) in [
        (none, none, None, 5),
        (one, none, None, 1),
        (none, one, Some(3), 1),
        (any, one, Some(3), 5),
        (none, none, Some(3), 3),
    ] {
        let config = PortConfig { usual_max_macs: usual, ..secured(own) };
        let mut bridge = bridge(Forwarding::Learning, &[config, PortConfig::default()]);
        bridge.set_config(SwitchConfig { security: switch, ..*bridge.config() });
        for host in 10..15 {
            decide(&mut bridge, 0, untagged(9, host));
        }
        assert_eq!(bridge.fdb().learned_on(port(0)), learned, "{own:?} {switch:?} {usual:?}");
    }
}

#[test]
fn test_stations_of_a_port_at_its_limit_evict_no_others() {
    let config = SwitchConfig { fdb_capacity: 64, ..SwitchConfig::default() };
    let mut bridge = Bridge::new(config, 7);
    let flooder = PortConfig { usual_max_macs: Some(8), ..PortConfig::default() };
    bridge.add_port(port(0), flooder);
    (1..3).for_each(|index| bridge.add_port(port(index), PortConfig::default()));
    decide(&mut bridge, 1, untagged(9, 1));
    decide(&mut bridge, 2, untagged(9, 2));
    for number in 0..100_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        let src = MacAddr::new([6, 0, 0, a, b, c]);
        decide(&mut bridge, 0, header(mac(9), src, None));
    }
    assert_eq!(bridge.fdb().stats().evicted, 0);
    assert_eq!(decide(&mut bridge, 1, untagged(2, 1)), Verdict::To(port(2)));
    assert_eq!(decide(&mut bridge, 2, untagged(1, 2)), Verdict::To(port(1)));
}

#[test]
fn test_locked_port_sends_from_its_addresses_only() {
    let lock = format!("{},{}", mac(1), mac(2)).parse().unwrap();
    let locked = secured(PortSecurity { mac_lock: Some(lock), ..Default::default() });
    for forwarding in [Forwarding::Learning, Forwarding::Hub, Forwarding::Patch] {
        let mut bridge = bridge(forwarding, &[locked.clone(), PortConfig::default()]);
        for src in [mac(3), MacAddr::ZERO, MacAddr::BROADCAST] {
            let verdict = decide(&mut bridge, 0, header(mac(9), src, None));
            assert_eq!(verdict, Verdict::Drop(DropReason::MacLock), "{src}");
        }
        for src in [1, 2] {
            assert!(!matches!(decide(&mut bridge, 0, untagged(9, src)), Verdict::Drop(_)));
        }
        assert!(!matches!(decide(&mut bridge, 1, untagged(9, 3)), Verdict::Drop(_)));
    }
}

#[test]
fn test_port_locked_to_its_first_addresses_keeps_them() {
    let first = |count| {
        let mac_lock = Some(MacLock::First(count));
        secured(PortSecurity { mac_lock, ..Default::default() })
    };
    let mut bridge = bridge(Forwarding::Learning, &[first(2), PortConfig::default()]);
    let passes = |bridge: &mut Bridge, src| {
        decide(bridge, 0, untagged(9, src)) != Verdict::Drop(DropReason::MacLock)
    };
    let zero = header(mac(9), MacAddr::ZERO, None);
    assert_eq!(decide(&mut bridge, 0, zero), Verdict::Drop(DropReason::MacLock));
    assert_eq!([1, 2, 3, 1].map(|src| passes(&mut bridge, src)), [true, true, false, true]);
    bridge.set_port(port(0), PortConfig { isolated: true, ..first(2) });
    bridge.flush(Flush::All);
    assert_eq!([3, 2].map(|src| passes(&mut bridge, src)), [false, true], "as before");
    let state = bridge.security_state(port(0));
    assert_eq!(state.first_macs.as_slice(), [mac(1), mac(2)]);
    bridge.remove_port(port(0));
    bridge.add_port(port(0), PortConfig { security_state: state, ..first(2) });
    assert_eq!([3, 1].map(|src| passes(&mut bridge, src)), [false, true], "remembered");
    bridge.set_port(port(0), first(1));
    assert_eq!([3, 1].map(|src| passes(&mut bridge, src)), [true, false], "another lock");
}

#[test]
fn test_requested_destination_does_not_evade_limits() {
    let flood_limits = [None, None, Some(10)];
    let limited = secured(PortSecurity { flood_limits, ..Default::default() });
    let ports = [limited, PortConfig::default(), PortConfig::default()];
    let mut bridge = bridge(Forwarding::Learning, &ports);
    let broadcast = header(MacAddr::BROADCAST, mac(1), None);
    let flags = SlotFlags::new(2 << 8, false);
    let verdict = bridge.decide_with_flags(port(0), broadcast, flags, NOW).forward;
    assert_eq!(verdict, Verdict::Flood(FloodClass::Broadcast));
}

#[test]
fn test_bpdu_disables_a_guarded_port_until_it_is_enabled() {
    let guarded = secured(PortSecurity { bpdu_guard: Some(true), ..Default::default() });
    let ports = [guarded.clone(), PortConfig::default(), PortConfig::default()];
    let mut bridge = bridge(Forwarding::Learning, &ports);
    let mut bytes = header(MacAddr::BRIDGE_GROUP, mac(1), None).bytes();
    let lldp = Header::new(bytes);
    let reserved = Verdict::Drop(DropReason::ReservedGroup);
    assert_eq!(decide(&mut bridge, 0, lldp), reserved, "it has a type");
    decide(&mut bridge, 0, untagged(9, 7));
    bytes[12..16].copy_from_slice(&[0, 38, 0x42, 0x42]);
    let (bpdu, disabled) = (Header::new(bytes), Verdict::Drop(DropReason::Disabled));
    assert_eq!(decide(&mut bridge, 1, bpdu), reserved, "this one is not guarded");
    assert_eq!(decide(&mut bridge, 0, bpdu), disabled);
    let generation = bridge.generation();
    assert_eq!(decide(&mut bridge, 0, untagged(9, 7)), disabled);
    assert_eq!(bridge.generation(), generation);
    let flood = bridge.decide(port(1), header(MacAddr::BROADCAST, mac(2), None), NOW);
    assert_eq!(targets(&bridge, 1, &flood), [2]);
    let to_it = bridge.decide(port(1), untagged(7, 2), NOW);
    assert_eq!(bridge.egress(port(1), port(0), &to_it), Err(DropReason::Disabled));
    assert_eq!(bridge.take_news(), Some(News::Disabled(port(0), Disabled::BpduGuard)));
    assert_eq!(bridge.take_news(), None);
    bridge.set_port(port(0), PortConfig { isolated: true, ..guarded });
    assert_eq!(decide(&mut bridge, 0, untagged(9, 7)), disabled);
    bridge.enable_port(port(0));
    assert!(matches!(decide(&mut bridge, 0, untagged(9, 7)), Verdict::Flood(_)));
    assert_eq!(targets(&bridge, 1, &flood), [0, 2]);
}

/// A broadcast of one station comes back by two ports, again and again.
#[test]
fn test_loop_is_reported_and_the_port_that_it_came_to_is_disabled() {
    let protected = secured(PortSecurity { loop_protect: Some(true), ..Default::default() });
    for (ports, expected) in [
        (vec![PortConfig::default(); 4], None),
        (vec![protected.clone(); 4], Some(2)),
        (vec![PortConfig::default(), protected, PortConfig::default()], Some(1)),
    ] {
        let mut bridge = bridge(Forwarding::Learning, &ports);
        let frame = header(MacAddr::BROADCAST, mac(1), None);
        for src in [0].into_iter().chain([1, 2].repeat(100)) {
            decide(&mut bridge, src, frame);
        }
        let Some(News::Loop(found)) = bridge.take_news() else { panic!("a loop") };
        assert_eq!((found.ports, found.mac), ([port(1), port(2)], mac(1)));
        let disabled = expected.map(|at| News::Disabled(port(at), Disabled::LoopProtect));
        assert_eq!(bridge.take_news(), disabled);
    }
}

#[test]
fn test_hub_floods_everything_and_learns_nothing() {
    let mut bridge = plain(Forwarding::Hub, 3);
    assert_eq!(decide(&mut bridge, 0, untagged(2, 1)), UNKNOWN);
    assert_eq!(decide(&mut bridge, 1, untagged(1, 2)), UNKNOWN);
    assert_eq!(bridge.fdb().count(), 0);
}

#[test]
fn test_patch_is_connected_while_it_has_two_ports() {
    let mut bridge = plain(Forwarding::Patch, 2);
    let pause = header(MacAddr::PAUSE, MacAddr::BROADCAST, None);
    assert_eq!(decide(&mut bridge, 0, pause), Verdict::To(port(1)));
    assert_eq!(decide(&mut bridge, 1, untagged(2, 2)), Verdict::To(port(0)));
    bridge.add_port(port(9), PortConfig::default());
    let unconnected = Verdict::Drop(DropReason::PatchUnconnected);
    assert_eq!(decide(&mut bridge, 0, untagged(1, 2)), unconnected);
    bridge.remove_port(port(0));
    assert_eq!(decide(&mut bridge, 9, untagged(1, 2)), Verdict::To(port(1)));
    bridge.remove_port(port(1));
    assert_eq!(decide(&mut bridge, 9, untagged(1, 2)), unconnected);
}

#[test]
fn test_static_map_knows_only_what_it_was_told() {
    let mut bridge = plain(Forwarding::Static, 2);
    bridge.add_static(VlanId::DEFAULT, mac(1), port(1)).unwrap();
    assert_eq!(decide(&mut bridge, 0, untagged(1, 2)), Verdict::To(port(1)));
    let unknown = Verdict::Drop(DropReason::Unknown);
    assert_eq!(decide(&mut bridge, 1, untagged(2, 1)), unknown);
    let broadcast = header(MacAddr::BROADCAST, mac(2), None);
    assert_eq!(decide(&mut bridge, 0, broadcast), Verdict::Flood(FloodClass::Broadcast));
    bridge.set_config(SwitchConfig { forwarding: Forwarding::StaticFlood, ..*bridge.config() });
    assert_eq!(decide(&mut bridge, 1, untagged(2, 1)), UNKNOWN);
}

#[test]
fn test_another_forwarding_function_begins_with_what_is_static() {
    let mut bridge = plain(Forwarding::Learning, 2);
    decide(&mut bridge, 0, untagged(9, 1));
    bridge.add_static(VlanId::DEFAULT, mac(2), port(1)).unwrap();
    bridge.set_config(SwitchConfig { forwarding: Forwarding::Static, ..*bridge.config() });
    let unknown = Verdict::Drop(DropReason::Unknown);
    assert_eq!(decide(&mut bridge, 1, untagged(1, 2)), unknown);
    assert_eq!(decide(&mut bridge, 0, untagged(2, 1)), Verdict::To(port(1)));
}

#[test]
fn test_static_entries_that_make_no_sense_are_refused() {
    let mut bridge = plain(Forwarding::Learning, 1);
    let refused = |bridge: &mut Bridge, mac, on| bridge.add_static(VlanId::DEFAULT, mac, port(on));
    assert_eq!(refused(&mut bridge, mac(1), 3), Err(StaticError::NoPort));
    let group = refused(&mut bridge, MacAddr::BROADCAST, 0);
    assert_eq!(group, Err(StaticError::GroupAddress));
}

#[test]
fn test_removed_port_takes_its_stations_along() {
    let mut bridge = plain(Forwarding::Learning, 3);
    decide(&mut bridge, 0, untagged(9, 1));
    bridge.add_static(VlanId::DEFAULT, mac(5), port(0)).unwrap();
    let verdict = bridge.decide(port(1), untagged(1, 2), NOW);
    bridge.remove_port(port(0));
    assert_eq!(bridge.egress(port(1), port(0), &verdict), Err(DropReason::DeadPort));
    bridge.add_port(port(0), PortConfig::default());
    assert_eq!(decide(&mut bridge, 1, untagged(1, 2)), UNKNOWN);
    assert_eq!(decide(&mut bridge, 1, untagged(5, 2)), UNKNOWN);
}

#[test]
fn test_vacant_port_keeps_its_stations_and_gets_nothing() {
    let vacant = PortConfig { vacant: true, ..PortConfig::default() };
    let mut bridge = bridge(Forwarding::Learning, &[vacant, PortConfig::default()]);
    bridge.add_static(VlanId::DEFAULT, mac(5), port(0)).unwrap();
    let verdict = bridge.decide(port(1), untagged(5, 1), NOW);
    assert_eq!(verdict.forward, Verdict::To(port(0)));
    assert_eq!(bridge.egress(port(1), port(0), &verdict), Err(DropReason::DeadPort));
}

#[test]
fn test_port_that_leaves_a_vlan_is_forgotten_there() {
    let trunk = [carrying("trunk:10,20"), carrying("access:10"), carrying("access:20")];
    let mut bridge = bridge(Forwarding::Learning, &trunk);
    for id in [10, 20] {
        decide(&mut bridge, 0, header(mac(9), mac(1), Some(id)));
    }
    bridge.set_port(port(0), carrying("trunk:20"));
    assert_eq!(decide(&mut bridge, 1, untagged(1, 2)), UNKNOWN);
    assert_eq!(decide(&mut bridge, 2, untagged(1, 2)), Verdict::To(port(0)));
}

/// Ingress, the whole table: port mode, tag, and what is to come of it.
#[test]
fn test_ingress_classifies_by_port_and_tag() {
    use Tagging::{Priority, Tagged, Untagged};
    let rows = [
        ("transparent:5", None::<u16>, Some((5, Untagged))),
        ("transparent:5", Some(0xe000), Some((5, Untagged))),
        ("transparent:5", Some(9), Some((5, Untagged))),
        ("transparent:5", Some(4095), Some((5, Untagged))),
        ("access:5", None, Some((5, Untagged))),
        ("access:5", Some(0xe000), Some((5, Priority))),
        ("access:5", Some(0xe005), Some((5, Tagged))),
        ("access:5", Some(9), None),
        ("access:5", Some(4095), None),
        ("trunk:5-7", None, None),
        ("trunk:5-7", Some(0), None),
        ("trunk:5-7", Some(6), Some((6, Tagged))),
        ("trunk:5-7", Some(8), None),
        ("trunk:all", Some(4095), None),
        ("trunk:5-7,native=1", None, Some((1, Untagged))),
        ("trunk:5-7,native=1", Some(0x2000), Some((1, Priority))),
        ("trunk:5-7,native=1", Some(1), Some((1, Tagged))),
        ("trunk:none,native=1", Some(2), None),
    ];
    for (mode, tci, expected) in rows {
        let mut bridge = bridge(Forwarding::Learning, &[carrying(mode)]);
        let verdict = bridge.decide(port(0), header(mac(1), mac(2), tci), NOW);
        let got = (verdict.forward == UNKNOWN).then(|| (verdict.vlan.get(), verdict.tagging));
        assert_eq!(got, expected, "{mode} {tci:?}");
        assert!(got.is_some() || verdict.forward == Verdict::Drop(DropReason::Vlan));
    }
}

/// Egress, the whole table: how the frame came, port mode, and what is done to its tag.
#[test]
fn test_egress_sets_the_tag_by_port() {
    use TagAction::{Insert, Keep, Replace, Strip};
    use Tagging::{Priority, Tagged, Untagged};
    let rows = [
        (Untagged, "transparent:5", Ok(Keep)),
        (Tagged, "transparent:5", Ok(Strip)),
        (Untagged, "access:5", Ok(Keep)),
        (Priority, "access:5", Ok(Strip)),
        (Tagged, "access:5", Ok(Strip)),
        (Untagged, "access:6", Err(DropReason::Vlan)),
        (Untagged, "trunk:5", Ok(Insert(vlan(5)))),
        (Priority, "trunk:5", Ok(Replace(vlan(5)))),
        (Tagged, "trunk:all", Ok(Keep)),
        (Tagged, "trunk:6,native=5", Ok(Strip)),
        (Untagged, "trunk:6,native=5", Ok(Keep)),
        (Tagged, "trunk:6", Err(DropReason::Vlan)),
    ];
    for (tagging, mode, expected) in rows {
        let bridge = bridge(Forwarding::Learning, &[PortConfig::default(), carrying(mode)]);
        let verdict = VlanVerdict {
            forward: Verdict::To(port(1)),
            vlan: vlan(5),
            tagging,
            payload: Payload::Other,
        };
        assert_eq!(bridge.egress(port(0), port(1), &verdict), expected, "{tagging:?} {mode}");
    }
}

/// A tag that is payload does not become the VLAN of the next switch.
#[test]
fn test_a_nested_tag_does_not_leave_a_trunk_as_the_first() {
    let rows = [
        // How it comes, whether a second tag follows, how it would leave.
        ("access:5", Some(5), true, "trunk:9,native=5", Err(DropReason::NestedTag)),
        ("access:5", Some(0), true, "trunk:9,native=5", Err(DropReason::NestedTag)),
        ("trunk:5", Some(5), true, "trunk:9,native=5", Err(DropReason::NestedTag)),
        ("transparent:5", Some(9), false, "trunk:9,native=5", Err(DropReason::NestedTag)),
        ("access:5", Some(5), false, "trunk:9,native=5", Ok(TagAction::Strip)),
        ("transparent:5", None, false, "trunk:9,native=5", Ok(TagAction::Keep)),
        ("access:5", Some(5), true, "trunk:5", Ok(TagAction::Keep)),
        ("access:5", Some(0), true, "trunk:5", Ok(TagAction::Replace(vlan(5)))),
        ("transparent:5", Some(9), false, "trunk:5", Ok(TagAction::Insert(vlan(5)))),
        ("access:5", Some(5), true, "access:5", Ok(TagAction::Strip)),
        ("transparent:5", Some(9), true, "transparent:5", Ok(TagAction::Keep)),
    ];
    for (from, tci, inner, to, expected) in rows {
        let mut bridge = bridge(Forwarding::Learning, &[carrying(from), carrying(to)]);
        let flags = if inner { SlotFlags::NONE.with_inner_tag() } else { SlotFlags::NONE };
        let frame = header(mac(1), mac(2), tci);
        let verdict = bridge.decide_with_flags(port(0), frame, flags, NOW);
        assert_eq!(bridge.egress(port(0), port(1), &verdict), expected, "{from} {tci:?} {to}");
    }
}

#[test]
fn test_isolated_ports_reach_only_ports_that_are_not() {
    let isolated = PortConfig { isolated: true, ..PortConfig::default() };
    let ports = [isolated.clone(), isolated, PortConfig::default()];
    let mut bridge = bridge(Forwarding::Learning, &ports);
    let flood = bridge.decide(port(0), untagged(9, 1), NOW);
    assert_eq!(targets(&bridge, 0, &flood), [2]);
    let unicast = bridge.decide(port(1), untagged(1, 2), NOW);
    assert_eq!(unicast.forward, Verdict::To(port(0)));
    assert_eq!(bridge.egress(port(1), port(0), &unicast), Err(DropReason::Isolated));
    assert_eq!(bridge.egress(port(2), port(0), &unicast), Ok(TagAction::Keep));
}

#[test]
fn test_flood_policies_name_their_class() {
    let closed = PortConfig {
        unicast_flood: false,
        multicast_flood: false,
        broadcast_flood: false,
        ..PortConfig::default()
    };
    let mut bridge = bridge(Forwarding::Learning, &[PortConfig::default(), closed]);
    let group = MacAddr::new([1, 0, 0x5e, 0, 0, 1]);
    let rows = [
        (mac(9), DropReason::PolicyUnicast),
        (group, DropReason::PolicyMulticast),
        (MacAddr::BROADCAST, DropReason::PolicyBroadcast),
    ];
    for (dst, reason) in rows {
        let verdict = bridge.decide(port(0), header(dst, mac(1), None), NOW);
        assert_eq!(bridge.egress(port(0), port(1), &verdict), Err(reason));
        assert_eq!(targets(&bridge, 0, &verdict), []);
    }
    decide(&mut bridge, 1, untagged(1, 9));
    let known = bridge.decide(port(0), untagged(9, 1), NOW);
    assert_eq!(bridge.egress(port(0), port(1), &known), Ok(TagAction::Keep));
}

#[test]
fn test_verdicts_other_than_flood_have_no_targets() {
    let bridge = plain(Forwarding::Learning, 3);
    for forward in [Verdict::To(port(1)), Verdict::Drop(DropReason::Vlan)] {
        let verdict = VlanVerdict {
            forward,
            vlan: VlanId::DEFAULT,
            tagging: Tagging::Untagged,
            payload: Payload::Other,
        };
        assert_eq!(targets(&bridge, 0, &verdict), []);
    }
}

#[test]
fn test_generation_changes_with_what_can_alter_a_decision_only() {
    let mut bridge = plain(Forwarding::Learning, 2);
    let mut last = bridge.generation();
    let mut changed = |bridge: &Bridge| std::mem::replace(&mut last, bridge.generation()) != last;
    decide(&mut bridge, 0, untagged(9, 1));
    assert!(changed(&bridge), "a new station");
    decide(&mut bridge, 0, untagged(9, 1));
    assert!(!changed(&bridge), "the same again");
    decide(&mut bridge, 1, untagged(9, 1));
    assert!(changed(&bridge), "a move");
    bridge.set_port(port(0), PortConfig::default());
    assert!(changed(&bridge), "a port's configuration");
    bridge.set_config(SwitchConfig::default());
    assert!(changed(&bridge), "the switch's configuration");
    bridge.flush(Flush::All);
    assert!(changed(&bridge), "a flush");
    bridge.remove_port(port(0));
    assert!(changed(&bridge), "a port less");
    bridge.remove_port(port(0));
    assert!(!changed(&bridge), "no port less");
}

#[test]
#[should_panic(expected = "port 0 is there already")]
fn test_port_added_twice_is_our_bug() {
    plain(Forwarding::Learning, 1).add_port(port(0), PortConfig::default());
}

#[test]
fn test_4096_ports_learn_and_reach_each_other() {
    let mut bridge = plain(Forwarding::Learning, MAX_PORTS);
    let station = |index: usize| {
        let [high, low] = port(index).number().to_be_bytes();
        MacAddr::new([2, 0, 0, 0, high, low])
    };
    let announce = |index| header(MacAddr::BROADCAST, station(index), None);
    for index in 0..MAX_PORTS {
        let verdict = bridge.decide(port(index), announce(index), NOW);
        assert_eq!(bridge.flood_targets(port(index), &verdict).count(), MAX_PORTS - 1);
    }
    for index in 1..MAX_PORTS {
        let frame = header(station(index), station(0), None);
        assert_eq!(decide(&mut bridge, 0, frame), Verdict::To(port(index)));
    }
}

fn any_port() -> impl Strategy<Value = PortConfig> {
    let mode = prop::sample::select(vec![
        "transparent",
        "transparent:2",
        "access:1",
        "access:2",
        "trunk:1-3",
        "trunk:all",
        "trunk:2,native=1",
    ]);
    (mode, any::<[bool; 4]>()).prop_map(|(mode, [isolated, unicast, multicast, broadcast])| {
        PortConfig {
            isolated,
            unicast_flood: unicast,
            multicast_flood: multicast,
            broadcast_flood: broadcast,
            ..carrying(mode)
        }
    })
}

proptest! {
    /// What is decided without the header is what is decided with any.
    #[test]
    fn prop_unseen_frames_are_decided_as_seen_ones(
        ports in prop::collection::vec(any_port(), 2),
        tci in prop::option::of(any::<u16>()),
        addresses: [u8; 2],
    ) {
        let mut bridge = bridge(Forwarding::Chain, &ports);
        let [dst, src] = addresses.map(mac);
        let seen = bridge.decide(port(0), header(dst, src, tci), NOW);
        match bridge.decide_without_header(port(0), port(1)) {
            Some(unseen) => {
                prop_assert_eq!((unseen.vlan, unseen.tagging), (seen.vlan, seen.tagging));
                prop_assert_eq!(unseen.forward, Verdict::To(port(1)));
            }
            None => prop_assert!(
                !ports[0].vlan.is_transparent() || ports[1].vlan.is_native(seen.vlan)
            ),
        }
        prop_assert!(!bridge.is_wire(port(0)), "it learns");
    }

    /// Floods are found by sets of ports; the rule for one port is written apart. They agree.
    #[test]
    fn prop_flood_reaches_whom_egress_lets_pass(
        ports in prop::collection::vec(any_port(), 2..140),
        changed in any_port(),
        victim: u8,
        class in prop::sample::select(FloodClass::ALL.to_vec()),
        id in 1..4_u16,
    ) {
        let mut bridge = bridge(Forwarding::Learning, &ports);
        bridge.set_port(port(1), changed);
        bridge.remove_port(port((usize::from(victim) % ports.len()) | 1));
        let forward = Verdict::Flood(class);
        let (vlan, tagging) = (vlan(id), Tagging::Untagged);
        let verdict = VlanVerdict { forward, vlan, tagging, payload: Payload::Other };
        for src in [0, (ports.len() / 2) & !1] {
            let reached = targets(&bridge, src, &verdict);
            let passes = |&dst: &usize| bridge.egress(port(src), port(dst), &verdict).is_ok();
            let expected: Vec<_> = (0..ports.len()).filter(passes).collect();
            prop_assert_eq!(reached, expected);
        }
    }
}
