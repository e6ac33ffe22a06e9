//! A frame as an expression: `icmp 10.0.0.1 > 10.0.0.2`.

use std::net::IpAddr;

use packet::build::{arp, ethernet, ipv4, udp};
use packet::{EtherType, MacAddr};

/// What an expression leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Source address.
    pub src: Option<MacAddr>,
    /// Destination address.
    pub dst: Option<MacAddr>,
    /// VLAN in the tag.
    pub vlan: Option<u16>,
}

/// Length of the shortest frame, without its checksum.
const SHORTEST: usize = 60;

/// Builds the frame of an expression.
///
/// # Errors
/// What was expected.
pub fn frame(text: &str, ends: Ends) -> Result<Vec<u8>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [kind, from, ">", to] = words[..] else { return Err(expected(text)) };
    let (from, to) = (end(from)?, end(to)?);
    let src = ends.src.ok_or("name the source address of the frame with --src MAC")?;
    let (ethertype, packet, usual) = match kind {
        "arp" => (EtherType::ARP, who_has(src, from, to)?, Some(MacAddr::BROADCAST)),
        _ => {
            let (ethertype, packet) = ip(kind, from, to)?;
            (ethertype, packet, None)
        }
    };
    let dst = ends.dst.or(usual);
    let dst = dst.ok_or("name the destination address of the frame with --dst MAC")?;
    let mut frame = match ends.vlan {
        None => ethernet(dst, src, ethertype.0, &packet),
        Some(vlan) => {
            let tag = [vlan.to_be_bytes(), ethertype.0.to_be_bytes()].concat();
            ethernet(dst, src, EtherType::VLAN.0, &[&tag[..], &packet].concat())
        }
    };
    frame.resize(frame.len().max(SHORTEST), 0);
    Ok(frame)
}

/// An address, and a port where there is one: `10.0.0.1:80`, `[fe80::1]:80`.
type End = (IpAddr, Option<u16>);

fn end(text: &str) -> Result<End, String> {
    let alone = text.parse().map(|ip: IpAddr| (ip, None));
    let with_port =
        || text.parse().map(|end: std::net::SocketAddr| (end.ip(), Some(end.port()))).ok();
    alone.ok().or_else(with_port).ok_or_else(|| {
        format!("{text:?} is no address, such as 10.0.0.1, 10.0.0.1:80 or [fd00::1]:80")
    })
}

fn who_has(mac: MacAddr, from: End, to: End) -> Result<Vec<u8>, String> {
    match (from, to) {
        ((IpAddr::V4(from), None), (IpAddr::V4(to), None)) => {
            Ok(arp(1, (mac, from), (MacAddr::ZERO, to)))
        }
        _ => Err("arp has two IPv4 addresses without ports".to_owned()),
    }
}

fn ip(kind: &str, from: End, to: End) -> Result<(EtherType, Vec<u8>), String> {
    let number = packet::text::protocol(kind)?;
    let ports = match packet::flow::has_ports(number) {
        true => from.1.zip(to.1).ok_or(format!("{kind} has ports, such as 10.0.0.1:80"))?,
        false if from.1.or(to.1).is_some() => return Err(format!("{kind} has no ports")),
        false => (0, 0),
    };
    match (kind, from.0.is_ipv6()) {
        ("icmp", true) => return Err("icmp is of IPv4; of IPv6 it is icmpv6".to_owned()),
        ("icmpv6", false) => return Err("icmpv6 is of IPv6; of IPv4 it is icmp".to_owned()),
        _ => {}
    }
    let payload = match kind {
        "icmp" => vec![8, 0, 0, 0, 0, 0, 0, 0],
        "icmpv6" => vec![128, 0, 0, 0, 0, 0, 0, 0],
        "tcp" => tcp_syn(ports),
        _ if packet::flow::has_ports(number) => udp(ports.0, ports.1, &[]),
        _ => Vec::new(),
    };
    match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            Ok((EtherType::IPV4, ipv4(number, from, to, &payload)))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes();
            let head = [0x60, 0, 0, 0, high, low, number, 64];
            let parts = [&head[..], &from.octets(), &to.octets(), &payload];
            Ok((EtherType::IPV6, parts.concat()))
        }
        _ => Err("one address is of IPv4, the other of IPv6".to_owned()),
    }
}

/// The header of a segment that opens a connection.
fn tcp_syn((source, destination): (u16, u16)) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    (header[12], header[13]) = (5 << 4, 2);
    header
}

fn expected(text: &str) -> String {
    format!(
        "{text:?} is no frame: expected one such as 'icmp 10.0.0.1 > 10.0.0.2', \
         'tcp 10.0.0.1:1024 > 10.0.0.2:80' or 'arp 10.0.0.1 > 10.0.0.2', or hexadecimal digits"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::flow::{FlowKey, Prefix};
    use packet::{PortId, VlanId};

    fn ends() -> Ends {
        let mac = |last| Some(MacAddr::new([2, 0, 0, 0, 0, last]));
        Ends { src: mac(1), dst: mac(2), vlan: None }
    }

    #[test]
    fn test_expressions_make_the_frames_that_they_name() {
        let port = PortId::new(0).unwrap();
        for (text, protocol, ports) in [
            ("icmp 10.0.0.1 > 10.0.0.2", 1, None),
            ("tcp 10.0.0.1:1024 > 10.0.0.2:80", 6, Some([1024, 80])),
            ("udp [fd00::1]:53 > [fd00::2]:5353", 17, Some([53, 5353])),
            ("icmpv6 fd00::1 > fd00::2", 58, None),
        ] {
            let frame = frame(text, ends()).unwrap();
            let key = FlowKey::read(Prefix::of(&frame), VlanId::DEFAULT, port);
            let flow = key.five_tuple().unwrap();
            assert_eq!(flow.protocol, protocol, "{text}");
            assert!(ports.is_none_or(|ports| ports == flow.ports), "{text}: {flow:?}");
            assert!(text.contains(&flow.src.to_string()) && text.contains(&flow.dst.to_string()));
        }
        let tagged = frame("arp 10.0.0.1 > 10.0.0.2", Ends { dst: None, vlan: Some(7), ..ends() });
        let tagged = tagged.unwrap();
        assert_eq!((&tagged[..6], &tagged[12..18]), (&[0xff; 6][..], &[0x81, 0, 0, 7, 8, 6][..]));
    }

    #[test]
    fn test_what_is_no_frame_is_refused_with_the_right_form() {
        for (text, why) in [
            ("icmp 10.0.0.1", "expected one such as"),
            ("tcp 10.0.0.1 > 10.0.0.2", "tcp has ports"),
            ("icmp 10.0.0.1:1 > 10.0.0.2", "icmp has no ports"),
            ("icmp 10.0.0.1 > fd00::1", "of IPv6"),
            ("icmp fd00::1 > fd00::2", "it is icmpv6"),
            ("icmpv6 10.0.0.1 > 10.0.0.2", "it is icmp"),
            ("icmp a > b", "is no address"),
            ("gre2 10.0.0.1 > 10.0.0.2", "expected tcp, udp"),
        ] {
            let error = frame(text, ends()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = frame("icmp 10.0.0.1 > 10.0.0.2", Ends { dst: None, ..ends() }).unwrap_err();
        assert!(error.contains("--dst"), "{error}");
    }
}
