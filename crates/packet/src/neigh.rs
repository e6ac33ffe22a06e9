//! ARP for IPv4 (RFC 826, RFC 5227) and neighbour discovery for IPv6 (RFC 4861): which station says
//! that it has an IP address, which address it asks for, and an answer to that.
//!
//! What breaks a rule of these standards is no message: a sender's link-layer address must be the
//! frame's source address, a hop limit 255, a checksum right. Frames with a VLAN tag are not read.

use std::net::{IpAddr, Ipv6Addr};

use crate::arp::Arp;
use crate::build::{arp, ethernet};
use crate::bytes::{ipv4_at, ipv6_at, mac_at, u16_at};
use crate::ethernet::{ETHERNET_HEADER, EtherType};
use crate::icmpv6::{self, ICMPV6, IPV6_HEADER};
use crate::mac::MacAddr;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// A message without options.
const FIXED: usize = 24;
/// The longest message that is read; those that hosts send have 32 bytes.
const LONGEST: usize = 512;
/// No router has forwarded the packet.
const HOP_LIMIT: u8 = 255;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Flags of an advertisement.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A station and an IP address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The IP address.
    pub ip: IpAddr,
    /// The station.
    pub mac: MacAddr,
    /// The station is a router, which is known with IPv6 only.
    pub is_router: bool,
}

/// What a frame says of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What the sender says of itself. A solicitation does not say whether it is a router, so it
    /// says nothing.
    pub told: Option<Neighbour>,
    /// The address that it asks all stations for. A probe (RFC 5227, RFC 4862) asks for none: its
    /// sender wants to hear the owner alone.
    pub asked: Option<IpAddr>,
}

/// Whether a single station can have the address.
#[must_use]
pub fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        // 0.0.0.0/8 and 240.0.0.0/4, too.
        IpAddr::V4(ip) => (1..224).contains(&ip.octets()[0]) && !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast(),
    }
}

/// Reads a frame without a VLAN tag. `None`: it is no message of ARP or neighbour discovery.
#[must_use]
pub fn read(frame: &[u8]) -> Option<Message> {
    let body = frame.get(ETHERNET_HEADER..)?;
    let source = mac_at(frame, 6);
    let is_for_all = frame[0] & 1 != 0;
    let mut message = match EtherType(u16_at(frame, 12)) {
        EtherType::ARP => read_arp(body, source)?,
        EtherType::IPV6 => read_nd(body, source)?,
        _ => return None,
    };
    message.told = message.told.filter(|it| is_unicast(it.ip));
    message.asked = message.asked.filter(|ip| is_for_all && is_unicast(*ip));
    source.is_station().then_some(message)
}

fn read_arp(body: &[u8], source: MacAddr) -> Option<Message> {
    let Arp { operation, sender: (mac, sender), target } = Arp::read(body)?;
    if !matches!(operation, Arp::REQUEST | Arp::REPLY) || mac != source {
        return None;
    }
    let told = Neighbour { ip: sender.into(), mac: source, is_router: false };
    // A sender that asks for itself says that it is there.
    let asks = operation == Arp::REQUEST && sender != target && !sender.is_unspecified();
    Some(Message { told: Some(told), asked: asks.then_some(target.into()) })
}

fn read_nd(body: &[u8], source: MacAddr) -> Option<Message> {
    let (header, message) = discovery(body)?;
    let (from, to) = (ipv6_at(header, 8), ipv6_at(header, 24));
    let target = ipv6_at(message, 8);
    let is_solicited = message[4] & SOLICITED != 0;
    let own = own_address(message)?;
    match (message[0], own) {
        (_, Some(mac)) if mac != source => None,
        (SOLICITATION, Some(_)) if from.is_unspecified() => None,
        (SOLICITATION, _) => {
            let asked = (!from.is_unspecified()).then_some(target.into());
            Some(Message { told: None, asked })
        }
        (ADVERTISEMENT, _) if from.is_unspecified() || to.is_multicast() && is_solicited => None,
        (ADVERTISEMENT, own) => {
            // One that was asked alone may leave its link-layer address out.
            let is_told = own.is_some() || is_solicited;
            let is_router = message[4] & ROUTER != 0;
            let told = Neighbour { ip: target.into(), mac: source, is_router };
            Some(Message { told: is_told.then_some(told), asked: None })
        }
        _ => None,
    }
}

/// The IPv6 header and the ICMPv6 message of a packet, if it can be one of neighbour discovery.
fn discovery(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = body.split_at_checked(IPV6_HEADER)?;
    let message = rest.get(..usize::from(u16_at(header, 4)))?;
    let [version, next, hops] = [header[0] >> 4, header[6], header[7]];
    let is_it = [version, next, hops] == [6, ICMPV6, HOP_LIMIT]
        && (FIXED..=LONGEST).contains(&message.len())
        && message[1] == 0;
    let addresses = (ipv6_at(header, 8), ipv6_at(header, 24));
    (is_it && icmpv6::checksum(addresses, message) == 0).then_some((header, message))
}

/// The link-layer address that the sender of a message names as its own; `None`: an option is
/// malformed.
#[expect(clippy::option_option, reason = "no address, and no message")]
fn own_address(message: &[u8]) -> Option<Option<MacAddr>> {
    let wanted = if message[0] == SOLICITATION { SOURCE_ADDRESS } else { TARGET_ADDRESS };
    let (mut options, mut own) = (&message[FIXED..], None);
    while let Some((&[kind, eights], _)) = options.split_first_chunk() {
        let (option, rest) = options.split_at_checked(usize::from(eights) * 8)?;
        if option.is_empty() {
            return None;
        }
        if kind == wanted {
            own = Some(mac_at(option, 2));
        }
        options = rest;
    }
    options.is_empty().then_some(own)
}

/// The answer to a frame that [asks](Message::asked) for this neighbour's address, as it would send
/// it itself.
#[must_use]
pub fn answer(frame: &[u8], neighbour: Neighbour) -> Option<Vec<u8>> {
    let (asker, body) = (mac_at(frame, 6), frame.get(ETHERNET_HEADER..)?);
    match neighbour.ip {
        IpAddr::V4(ip) => {
            let reply = arp(Arp::REPLY, (neighbour.mac, ip), (asker, ipv4_at(body, 14)));
            Some(ethernet(asker, neighbour.mac, EtherType::ARP.0, &reply))
        }
        IpAddr::V6(ip) => {
            let router = if neighbour.is_router { ROUTER } else { 0 };
            let asker_ip = ipv6_at(body.get(..IPV6_HEADER)?, 8);
            let flags = router | SOLICITED | OVERRIDE;
            let packet = advertisement((ip, asker_ip), flags, neighbour.mac);
            Some(ethernet(asker, neighbour.mac, EtherType::IPV6.0, &packet))
        }
    }
}

/// An advertisement that a station sends of an address of its own.
fn advertisement((ip, to): (Ipv6Addr, Ipv6Addr), flags: u8, mac: MacAddr) -> Vec<u8> {
    let head = [ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    let option = [TARGET_ADDRESS, 1];
    let message = [&head[..], &ip.octets(), &option, &mac.octets()].concat();
    icmpv6::packet((ip, to), HOP_LIMIT, message)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const A: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 2]);
    const A4: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
    const B4: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
    const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    /// A station asks all others for an IPv4 address.
    fn arp_request(from: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
        let packet = arp(Arp::REQUEST, from, (MacAddr::ZERO, target));
        ethernet(MacAddr::BROADCAST, from.0, EtherType::ARP.0, &packet)
    }

    fn neighbour(ip: impl Into<IpAddr>, mac: MacAddr) -> Neighbour {
        Neighbour { ip: ip.into(), mac, is_router: false }
    }

    /// A solicitation of A for B's address, from this address, with an option.
    fn solicitation(from: Ipv6Addr, option: &[u8]) -> Vec<u8> {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2);
        let head = [SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        let message = [&head[..], &B6.octets(), option].concat();
        let packet = icmpv6::packet((from, group), HOP_LIMIT, message);
        ethernet(MacAddr::new([0x33, 0x33, 0xff, 0, 0, 2]), A, EtherType::IPV6.0, &packet)
    }

    fn own_option() -> Vec<u8> {
        [&[SOURCE_ADDRESS, 1][..], &A.octets()].concat()
    }

    #[test]
    fn an_arp_request_tells_of_its_sender_and_asks_for_another() {
        let frame = arp_request((A, A4), B4);
        let message = read(&frame).expect("a request");
        assert_eq!(message.told, Some(neighbour(A4, A)));
        assert_eq!(message.asked, Some(B4.into()));
        let reply = answer(&frame, neighbour(B4, B)).expect("an answer");
        assert_eq!(reply[..12], [A.octets(), B.octets()].concat());
        let told = read(&reply).expect("a reply");
        assert_eq!((told.told, told.asked), (Some(neighbour(B4, B)), None));
        assert_eq!((mac_at(&reply, 32), ipv4_at(&reply, 38)), (A, A4));
    }

    #[test]
    fn a_probe_asks_no_port_and_tells_nothing_and_an_announcement_tells() {
        let probe = read(&arp_request((A, Ipv4Addr::UNSPECIFIED), B4)).expect("a request");
        assert_eq!((probe.told, probe.asked), (None, None));
        let probe = read(&solicitation(Ipv6Addr::UNSPECIFIED, &[])).expect("a solicitation");
        assert_eq!((probe.told, probe.asked), (None, None));
        let announcement = read(&arp_request((A, A4), A4)).expect("a request");
        assert_eq!((announcement.told, announcement.asked), (Some(neighbour(A4, A)), None));
    }

    #[test]
    fn a_request_for_one_station_asks_the_others_nothing() {
        let mut frame = arp_request((A, A4), B4);
        frame[..6].copy_from_slice(&B.octets());
        assert_eq!(read(&frame).expect("a request").asked, None);
    }

    #[test]
    fn a_solicitation_is_answered_to_its_sender() {
        let frame = solicitation(A6, &own_option());
        assert_eq!(read(&frame), Some(Message { told: None, asked: Some(B6.into()) }));
        let router = Neighbour { is_router: true, ..neighbour(B6, B) };
        let reply = answer(&frame, router).expect("an answer");
        assert_eq!(read(&reply), Some(Message { told: Some(router), asked: None }));
        assert_eq!(reply[..6], A.octets());
        assert_eq!((ipv6_at(&reply, 38), reply[58]), (A6, ROUTER | SOLICITED | OVERRIDE));
        // Without its own address, where it was asked alone.
        let short = |flags| {
            let head = [ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
            let message = [&head[..], &B6.octets()].concat();
            let packet = icmpv6::packet((B6, A6), HOP_LIMIT, message);
            read(&ethernet(A, B, EtherType::IPV6.0, &packet)).and_then(|it| it.told)
        };
        assert_eq!((short(SOLICITED), short(0)), (Some(neighbour(B6, B)), None));
    }

    /// A frame with the byte at `at` set to `value`, and with a right checksum if it is of IPv6.
    fn changed(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
        frame[at] = value;
        if u16_at(&frame, 12) == EtherType::IPV6.0 {
            let addresses = (ipv6_at(&frame, 22), ipv6_at(&frame, 38));
            let mut message = frame[54..].to_vec();
            message[2..4].fill(0);
            icmpv6::fill_checksum(addresses, &mut message);
            frame[54..].copy_from_slice(&message);
        }
        frame
    }

    #[test]
    fn what_breaks_a_rule_is_no_message() {
        let arp = arp_request((A, A4), B4);
        let ask = solicitation(A6, &own_option());
        let tell = answer(&ask, neighbour(B6, B)).expect("an answer");
        let mut tagged = arp.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        let mut wrong_sum = ask.clone();
        wrong_sum[57] ^= 1;
        for (bad, why) in [
            (changed(arp.clone(), 27, 9), "another sender than the frame's"),
            (changed(arp.clone(), 15, 6), "another hardware"),
            (changed(arp.clone(), 21, 3), "RARP"),
            (changed(changed(arp.clone(), 6, 3), 22, 3), "a group as a sender"),
            (arp[..41].to_vec(), "short"),
            (tagged, "a tag"),
            (changed(ask.clone(), 21, 254), "a router between"),
            (changed(ask.clone(), 55, 1), "a code"),
            (changed(ask.clone(), 79, 0), "an option without a length"),
            (changed(ask.clone(), 79, 2), "an option that is longer than the message"),
            (changed(ask.clone(), 85, 9), "another sender than the frame's"),
            (solicitation(Ipv6Addr::UNSPECIFIED, &own_option()), "a probe with an address"),
            (wrong_sum, "a wrong checksum"),
            (changed(tell.clone(), 38, 0xff), "an answer to all that was asked for"),
            (changed(tell, 20, 17), "another protocol"),
        ] {
            assert_eq!(read(&bad), None, "{why}");
        }
    }

    #[test]
    fn an_address_that_no_station_can_have_is_neither_told_nor_asked_for() {
        for ip in ["0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"] {
            let ip: Ipv4Addr = ip.parse().expect("an address");
            assert_eq!(read(&arp_request((A, ip), B4)).expect("a request").told, None, "{ip}");
            assert_eq!(read(&arp_request((A, A4), ip)).expect("a request").asked, None, "{ip}");
        }
        for ip in ["::", "::1", "ff02::1"] {
            assert!(!is_unicast(ip.parse().expect("an address")), "{ip}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(frame: Vec<u8>, at in 0usize..86, value: u8, cut in 0usize..86) {
            let _ = read(&frame);
            let mut near = solicitation(A6, &own_option());
            near[at] = value;
            for frame in [&near[..], &near[..cut]] {
                if read(frame).is_some_and(|message| message.asked.is_some()) {
                    prop_assert!(answer(frame, neighbour(B6, B)).is_some());
                    let _ = answer(frame, neighbour(B4, B));
                }
            }
        }
    }
}
