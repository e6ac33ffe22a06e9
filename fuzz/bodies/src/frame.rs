//! Headers against their definition, and verdicts against what they may depend on.

use packet::ethernet::Header;
use packet::{MacAddr, PortId, VlanId, VlanMode};
use switch::decide::bridge::{Bridge, Payload, VlanVerdict};
use switch::{DropReason, Now, PortConfig, SwitchConfig};

use crate::Input;

const PORTS: usize = 5;

/// A header says what its bytes say; a frame's verdict depends on its key and nothing more; and
/// no frame goes back where it came from.
pub fn frame_header(data: &[u8]) {
    let mut input = Input(data);
    let (mut bridge, mut twin) = (bridge(&mut input), None);
    while !input.is_empty() {
        let bytes: [u8; 16] = input.bytes();
        let (header, src) = (Header::new(bytes), port(input.below(PORTS)));
        check_fields(header, bytes);
        let now = Now::from_ms(input.u16().into());
        let twin = twin.get_or_insert_with(|| self::bridge(&mut Input(data)));
        let verdict = bridge.decide(src, header, now);
        assert_eq!(verdict, twin.decide(src, same_key(header, input.u16()), now));
        check_targets(&bridge, src, &verdict);
    }
}

fn check_fields(header: Header, bytes: [u8; 16]) {
    assert_eq!(header.bytes(), bytes);
    assert_eq!(header.dst().octets(), bytes[..6]);
    assert_eq!(header.src().octets(), bytes[6..12]);
    assert_eq!(header.ethertype().0.to_be_bytes(), bytes[12..14]);
    assert_eq!(header.tag().is_some(), bytes[12..14] == [0x81, 0]);
    if let Some(tag) = header.tag() {
        assert_eq!(tag.tci().to_be_bytes(), bytes[14..]);
    }
    let text = header.dst().to_string();
    assert_eq!(text.parse::<MacAddr>(), Ok(header.dst()), "{text}");
}

/// Another header with the same key: the payload of an untagged frame is changed.
fn same_key(header: Header, payload: u16) -> Header {
    let mut bytes = header.bytes();
    if header.tag().is_none() {
        bytes[14..].copy_from_slice(&payload.to_be_bytes());
    }
    let other = Header::new(bytes);
    assert_eq!(other.key(), header.key());
    other
}

fn check_targets(bridge: &Bridge, src: PortId, verdict: &VlanVerdict) {
    assert!(bridge.egress(src, src, verdict).is_err());
    let mut last = None;
    for target in bridge.flood_targets(src, verdict) {
        assert!(Some(target) > last, "targets ascend, and none is named twice");
        let refusal = bridge.egress(src, target, verdict).err();
        let is_tagged = verdict.payload == Payload::Tagged;
        let is_nested = is_tagged && refusal == Some(DropReason::NestedTag);
        assert!(refusal.is_none() || is_nested, "{src} to {target}");
        last = Some(target);
    }
}

/// A switch whose ports are of every kind that the input asks for.
fn bridge(input: &mut Input<'_>) -> Bridge {
    let forwarding = switch::Forwarding::ALL[input.below(switch::Forwarding::ALL.len())];
    let config = SwitchConfig { forwarding, fdb_capacity: 64, ..SwitchConfig::default() };
    let mut bridge = Bridge::new(config, 1);
    for index in 0..PORTS {
        bridge.add_port(port(index), port_config(input));
    }
    bridge
}

fn port_config(input: &mut Input<'_>) -> PortConfig {
    let (bits, vlan) = (input.u8(), VlanId::new(u16::from(input.u8()) % 4 + 1));
    let vlan = vlan.unwrap_or(VlanId::DEFAULT);
    let vlan = match bits & 3 {
        0 | 1 => VlanMode::Transparent(vlan),
        2 => VlanMode::Access(vlan),
        _ => VlanMode::Trunk { native: Some(vlan), allowed: packet::VlanSet::all() },
    };
    PortConfig {
        vlan,
        isolated: bits & 4 != 0,
        learning: bits & 8 == 0,
        unicast_flood: bits & 16 == 0,
        multicast_flood: bits & 32 == 0,
        broadcast_flood: bits & 64 == 0,
        ..PortConfig::default()
    }
}

fn port(index: usize) -> PortId {
    PortId::new(index).expect("few ports")
}
