//! The answer to a packet that is too long for a link: "fragmentation needed" (RFC 792, RFC 1191)
//! and "packet too big" (RFC 4443, 3.2).
//!
//! A router sends it from an address of its own. A switch has none, so it answers in the name of
//! the packet's destination, as Linux's tunnels do below a bridge.

use crate::build::{self, DONT_FRAGMENT};
use crate::bytes::{ipv4_at, ipv6_at, u16_at};
use crate::checksum::Sum;
use crate::ethernet::{ETHERNET_HEADER, EtherType, network_header};
use crate::icmpv6::{self, ICMPV6, IPV6_HEADER};
use crate::ipv4::{Fragment, IPV4_HEADER, Packet, icmp};

/// The most bytes of an answer's IP packet (RFC 1812, 4.3.2.3; RFC 4443, 2.4): what any path takes.
const IPV4_ANSWER: usize = 576;
const IPV6_ANSWER: usize = 1280;
/// The least MTU that hosts believe (RFC 1191, 3; RFC 8200, 5).
const IPV4_LEAST: u16 = 68;
const IPV6_LEAST: u16 = 1280;
/// The length of an ICMP header, of either version.
const ICMP_HEADER: usize = 8;
/// The protocol's number, and the code of "fragmentation needed and DF set".
const ICMP: u8 = 1;
const FRAGMENTATION_NEEDED: u8 = 4;
/// ICMPv6: "packet too big", and the first type that is no error.
const PACKET_TOO_BIG: u8 = 2;
const FIRST_INFORMATION: u8 = 128;
/// The hop limit of an answer.
const HOP_LIMIT: u8 = 64;

/// A frame for the sender of this one, which says that packets may have `mtu` bytes.
///
/// `None`: the frame carries no IP packet, or a short one; or one about which no error may be sent
/// (RFC 1122, 3.2.2): for several hosts, from no host, an ICMP error, a later fragment; or an IPv4
/// packet that routers may fragment.
#[must_use]
pub fn answer(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (dst, src) = (frame.get(..6)?, frame.get(6..12)?);
    let (ethertype, l3) = network_header(frame);
    let packet = frame.get(l3..)?;
    if (dst[0] | src[0]) & 1 != 0 || packet.len() <= usize::from(mtu) {
        return None;
    }
    let packet = match ethertype {
        EtherType::IPV4 => ipv4(packet, mtu)?,
        EtherType::IPV6 => ipv6(packet, mtu)?,
        _ => return None,
    };
    Some([src, dst, &frame[ETHERNET_HEADER - 2..l3], &packet].concat())
}

fn ipv4(bytes: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let packet = Packet::at(bytes, 0).ok()?;
    let (src, dst) = (ipv4_at(bytes, 12), ipv4_at(bytes, 16));
    let is_one_host = !src.is_multicast() && !src.is_broadcast() && !src.is_unspecified();
    let is_for_one = !dst.is_multicast() && !dst.is_broadcast();
    let is_whole_or_first = packet.fragment != Fragment::Later;
    let may_fragment = u16_at(bytes, 6) & DONT_FRAGMENT == 0;
    let is_icmp = packet.protocol(bytes) == ICMP;
    let is_error = is_icmp && bytes.get(packet.l4).is_none_or(|&kind| icmp::is_error(kind));
    if !is_one_host || !is_for_one || !is_whole_or_first || may_fragment || is_error {
        return None;
    }
    let quoted = &bytes[..bytes.len().min(IPV4_ANSWER - IPV4_HEADER - ICMP_HEADER)];
    let head = [icmp::UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, 0, 0];
    let mut message = [&head[..], &mtu.to_be_bytes(), quoted].concat();
    let sum = Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    (mtu >= IPV4_LEAST).then(|| build::ipv4(ICMP, dst, src, &message))
}

fn ipv6(bytes: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let header = bytes.first_chunk::<IPV6_HEADER>().filter(|header| header[0] >> 4 == 6)?;
    let (src, dst) = (ipv6_at(header, 8), ipv6_at(header, 24));
    let is_one_host = !src.is_multicast() && !src.is_unspecified();
    if !is_one_host || dst.is_multicast() || !may_be_answered(bytes) || mtu < IPV6_LEAST {
        return None;
    }
    let quoted = &bytes[..bytes.len().min(IPV6_ANSWER - IPV6_HEADER - ICMP_HEADER)];
    let head = [PACKET_TOO_BIG, 0, 0, 0, 0, 0];
    let message = [&head[..], &mtu.to_be_bytes(), quoted].concat();
    Some(icmpv6::packet((dst, src), HOP_LIMIT, message))
}

/// Whether an IPv6 packet is neither an ICMP error nor a later fragment, as far as its extension
/// headers can be read.
fn may_be_answered(bytes: &[u8]) -> bool {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const OPTIONS: u8 = 60;
    /// Extension headers of a packet that are looked at.
    const MOST: usize = 8;
    let (mut next, mut at) = (bytes[6], IPV6_HEADER);
    for _ in 0..MOST {
        let Some(&[following, length]) = bytes.get(at..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        match next {
            ICMPV6 => return following >= FIRST_INFORMATION,
            FRAGMENT if u16_at(bytes, at + 2) >> 3 != 0 => return false,
            FRAGMENT => at += 8,
            HOP_BY_HOP | ROUTING | OPTIONS => at += (usize::from(length) + 1) * 8,
            _ => return true,
        }
        next = following;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::checksum::checksum;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

    /// A frame from A to B with this payload, which routers may not fragment.
    fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header = build::ipv4_header(protocol, DONT_FRAGMENT, (A, B), payload.len());
        [&MACS[..], &[8, 0], &header, payload].concat()
    }

    /// A frame with an IPv6 packet whose first header behind its own is `next`.
    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let address = |last| [&[0xfd][..], &[0; 14], &[last]].concat();
        let header = [0x60, 0, 0, 0, high, low, next, 64];
        [&MACS[..], &[0x86, 0xdd], &header, &address(1), &address(2), payload].concat()
    }

    #[test]
    fn an_ipv4_sender_is_told_the_mtu_in_the_name_of_the_destination() {
        let frame = v4(6, &[7; 1480]);
        let answer = answer(&frame, 1450).expect("it may not be fragmented");
        assert_eq!(answer[..14], [&MACS[6..], &MACS[..6], &[8, 0]].concat());
        let packet = &answer[14..];
        assert_eq!((packet.len(), checksum(&packet[..20]), packet[9]), (IPV4_ANSWER, 0, 1));
        assert_eq!((ipv4_at(packet, 12), ipv4_at(packet, 16)), (B, A));
        let message = &packet[20..];
        assert_eq!((message[..2].to_vec(), checksum(message)), (vec![3, 4], 0));
        assert_eq!((u16_at(message, 6), &message[8..]), (1450, &frame[14..][..548]));
    }

    #[test]
    fn an_ipv6_sender_is_told_likewise_behind_its_tag() {
        let plain = v6(6, &[7; 1460]);
        let frame = [&plain[..12], &[0x81, 0, 0, 10], &plain[12..]].concat();
        let answer = answer(&frame, 1426).expect("IPv6");
        assert_eq!(answer[12..18], [0x81, 0, 0, 10, 0x86, 0xdd]);
        let packet = &answer[18..];
        assert_eq!((packet.len(), packet[23], packet[39]), (IPV6_ANSWER, 2, 1));
        let sum = Sum::pseudo_header(&packet[8..40], ICMPV6, u16_at(packet, 4));
        assert_eq!(sum.and(Sum::of(&packet[40..])).checksum(), 0);
        assert_eq!((packet[40], u16_at(packet, 46)), (PACKET_TOO_BIG, 1426));
        assert_eq!(packet[48..], frame[18..][..1232]);
    }

    #[test]
    fn packets_about_which_no_error_may_be_sent_get_none() {
        let long = [7; 1480];
        let with = |at: usize, byte: u8| {
            let mut frame = v4(17, &long);
            frame[at] = byte;
            frame
        };
        let error = [&[3, 0][..], &long].concat();
        let behind_options = [&[ICMPV6, 0, 0, 0, 0, 0, 0, 0, 1][..], &long].concat();
        let later = [&[6, 0, 0, 8][..], &long].concat();
        for (what, frame) in [
            ("for all stations", with(0, 0xff)),
            ("from a group", with(6, 3)),
            ("may be fragmented", with(20, 0)),
            ("a later fragment", with(21, 1)),
            ("from a multicast address", with(26, 224)),
            ("for a multicast address", with(30, 239)),
            ("an ICMP error", v4(1, &error)),
            ("a header alone, which says ICMP", v4(1, &long)[..34].to_vec()),
            ("an ICMPv6 error", v6(ICMPV6, &error)),
            ("an ICMPv6 error behind options", v6(60, &behind_options)),
            ("a later fragment of IPv6", v6(44, &later)),
            ("ARP", [&MACS[..], &[8, 6], &long].concat()),
        ] {
            assert_eq!(answer(&frame, 1400), None, "{what}");
        }
        assert!(answer(&v4(1, &[8; 1480]), 1400).is_some(), "an echo request");
        assert_eq!(answer(&v4(6, &long), 1500), None, "it fits");
        assert_eq!(answer(&v6(6, &long), 1279), None, "hosts do not believe it");
    }

    proptest! {
        #[test]
        fn no_bytes_make_an_answer_longer_than_what_it_is_about(
            head in prop::collection::vec(any::<u8>(), 0..64),
            version in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100]),
            len in 0usize..1600,
            mtu in any::<u16>(),
        ) {
            let mut frame = [&MACS[..], &version.to_be_bytes(), &head].concat();
            frame.resize(len, 0x45);
            if let Some(answer) = answer(&frame, mtu) {
                prop_assert!(answer.len() <= frame.len() + IPV4_HEADER + ICMP_HEADER);
                prop_assert!(answer.len() <= 22 + IPV6_ANSWER);
            }
        }
    }
}
