//! A frame as one line of text.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use packet::ethernet::{ETHERNET_HEADER, Header, network_header};
use packet::flow::{FlowKey, Prefix};
use packet::{EtherType, MacAddr, PortId, VlanId};

use super::{Lost, Seen};

/// The line of a captured frame.
#[must_use]
pub fn line(seen: Seen<'_>) -> String {
    let passed = if seen.is_entering { "in " } else { "out" };
    let what = match seen.lost {
        None => passed.to_owned(),
        Some(Lost { reason, at, from }) if at == from => format!("{reason} at {at}:"),
        Some(Lost { reason, at, from }) => format!("{reason} at {at}, from {from}:"),
    };
    let (time, frame) = (time_of_day(seen.time_ns), frame(seen.bytes));
    format!("{time} {what} {frame}, {} bytes\n", seen.bytes.len())
}

/// The time of day in UTC.
pub fn time_of_day(time_ns: u64) -> String {
    const NS: u64 = 1_000_000_000;
    let (seconds, ns) = (time_ns / NS % 86_400, time_ns % NS);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{ns:09}")
}

/// What is in a frame.
fn frame(bytes: &[u8]) -> String {
    let Some(head) = bytes.first_chunk::<16>() else { return "short frame".to_owned() };
    let header = Header::new(*head);
    let (src, dst) = (header.src(), header.dst());
    let mut text = format!("{src} > {dst} ");
    if let Some(tag) = header.tag() {
        let _ = write!(text, "vlan {} ", tag.vid);
    }
    let (ethertype, at) = network_header(bytes);
    text + &packet(bytes, ethertype, at)
}

fn packet(bytes: &[u8], ethertype: EtherType, at: usize) -> String {
    if ethertype == EtherType::ARP
        && let Some(arp) = bytes.get(at..).and_then(arp)
    {
        return arp;
    }
    let port = PortId::from_low_bits(0);
    let key = FlowKey::read(Prefix::of(bytes), VlanId::DEFAULT, port);
    match key.five_tuple() {
        Some(flow) if packet::flow::has_ports(flow.protocol) => {
            let [src, dst] = [flow.src, flow.dst].map(|ip| match ip.is_ipv6() {
                true => format!("[{ip}]"),
                false => ip.to_string(),
            });
            let [from, to] = flow.ports;
            format!("{} {src}:{from} > {dst}:{to}", protocol(flow.protocol))
        }
        Some(flow) => format!("{} {} > {}", protocol(flow.protocol), flow.src, flow.dst),
        None if ethertype.is_length() => "802.3".to_owned(),
        None => format!("ethertype {:#06x}", ethertype.0),
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        _ => format!("ip proto {number}"),
    }
}

/// An ARP packet for IPv4.
fn arp(packet: &[u8]) -> Option<String> {
    let (head, rest) = packet.split_first_chunk::<8>()?;
    let body = rest.first_chunk::<20>()?;
    let ip = |at: usize| Some(Ipv4Addr::from(*body.get(at..)?.first_chunk::<4>()?));
    let (sender, target) = (ip(6)?, ip(16)?);
    let mac = MacAddr::new(*body.first_chunk::<6>()?);
    match head {
        [0, 1, 8, 0, 6, 4, 0, 1] => Some(format!("arp who-has {target} tell {sender}")),
        [0, 1, 8, 0, 6, 4, 0, 2] => Some(format!("arp {sender} is-at {mac}")),
        _ => None,
    }
}

const _: () = assert!(ETHERNET_HEADER < 16, "a header and what follows it are looked at");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{self, Ends};

    #[test]
    fn test_frames_are_one_line_each() {
        let mac = |last| Some(MacAddr::new([2, 0, 0, 0, 0, last]));
        let ends = Ends { src: mac(1), dst: mac(2), vlan: None };
        for (expression, expected) in [
            ("tcp 10.0.0.1:1024 > 10.0.0.2:80", "tcp 10.0.0.1:1024 > 10.0.0.2:80"),
            ("icmp 10.0.0.1 > 10.0.0.2", "icmp 10.0.0.1 > 10.0.0.2"),
            ("udp [fd00::1]:5 > [fd00::2]:6", "udp [fd00::1]:5 > [fd00::2]:6"),
            ("arp 10.0.0.1 > 10.0.0.2", "arp who-has 10.0.0.2 tell 10.0.0.1"),
        ] {
            let bytes = expression::frame(expression, ends).unwrap();
            let time_ns = 86_399_000_000_001;
            let seen = Seen { bytes: &bytes, time_ns, is_entering: true, lost: None };
            let text = line(seen);
            let head = "23:59:59.000000001 in  02:00:00:00:00:01 > 02:00:00:00:00:02 ";
            assert_eq!(
                text.strip_prefix(head).unwrap(),
                format!("{expected}, {} bytes\n", bytes.len())
            );
        }
        for len in 0..64 {
            frame(&vec![8; len]);
        }
    }

    #[test]
    fn test_drops_have_reason_and_ports() {
        let text = |from| {
            let lost = Some(Lost { reason: "no_room", at: "vale0:b", from });
            line(Seen { bytes: &[8; 60], time_ns: 0, is_entering: false, lost })
        };
        let head = "00:00:00.000000000 no_room at vale0:b";
        assert!(text("vale0:a").starts_with(&format!("{head}, from vale0:a: 08:")));
        assert!(text("vale0:b").starts_with(&format!("{head}: 08:")), "{}", text("vale0:b"));
    }
}
