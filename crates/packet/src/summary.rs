//! A frame in one line of text: what people look for first.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use crate::ethernet::{ETHERNET_HEADER, Header, network_header};
use crate::flow::{FlowKey, Prefix, has_ports};
use crate::{EtherType, MacAddr, PortId, VlanId};

/// Addresses, VLAN and protocol of a frame, with the ends of a flow.
#[must_use]
pub fn summary(bytes: &[u8]) -> String {
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
        Some(flow) if has_ports(flow.protocol) => {
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
    use crate::build::{ethernet, ipv4, udp};

    #[test]
    fn frames_are_summed_up_and_cut_ones_are_no_trouble() {
        let macs = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let packet = ipv4(17, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &udp(1024, 53, &[]));
        let frame = ethernet(macs.0, macs.1, 0x0800, &packet);
        let head = "02:00:00:00:00:01 > 02:00:00:00:00:02 ";
        assert_eq!(summary(&frame), format!("{head}udp 10.0.0.1:1024 > 10.0.0.2:53"));
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        let text = summary(&tagged);
        assert_eq!(text, format!("{head}vlan 7 udp 10.0.0.1:1024 > 10.0.0.2:53"));
        for len in 0..64 {
            let cut = [summary(&vec![8; len]), summary(&tagged[..len.min(tagged.len())])];
            assert!(cut.iter().all(|text| !text.is_empty()), "{len} bytes");
        }
    }
}
