//! ARP packets for Ethernet and IPv4 (RFC 826).

use std::net::Ipv4Addr;

use crate::bytes::{ipv4_at, mac_at, u16_at};
use crate::mac::MacAddr;

/// How a packet begins: hardware and protocol, and the lengths of their addresses.
pub(crate) const ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// The length of a packet.
const LEN: usize = 28;

/// What a packet says. [`build::arp`](crate::build::arp) writes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// [`REQUEST`](Self::REQUEST), [`REPLY`](Self::REPLY), or any other number.
    pub operation: u16,
    /// The station that has sent it, and its IP address.
    pub sender: (MacAddr, Ipv4Addr),
    /// The IP address that it asks for, or of the station that had asked.
    pub target: Ipv4Addr,
}

impl Arp {
    /// The operation of a packet that asks for a station.
    pub const REQUEST: u16 = 1;
    /// The operation of an answer.
    pub const REPLY: u16 = 2;

    /// Reads what is behind an Ethernet header. `None`: it is no such packet, or its sender is no
    /// station. No neighbour has the MAC address of a group (RFC 1812, 3.3.2).
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        // The rest is padding.
        let packet = body.get(..LEN)?;
        let sender = (mac_at(packet, 8), ipv4_at(packet, 14));
        let is_it = packet[..6] == ETHERNET_AND_IPV4 && sender.0.is_station();
        is_it.then(|| Self { operation: u16_at(packet, 6), sender, target: ipv4_at(packet, 24) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::arp;

    const A: (MacAddr, Ipv4Addr) =
        (MacAddr::new([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(192, 168, 7, 1));
    const B: (MacAddr, Ipv4Addr) =
        (MacAddr::new([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(192, 168, 7, 2));

    #[test]
    fn test_what_was_written_is_read_with_and_without_padding() {
        for operation in [Arp::REQUEST, Arp::REPLY, 0, 0x0102, u16::MAX] {
            let mut packet = arp(operation, A, B);
            let expected = Some(Arp { operation, sender: A, target: B.1 });
            assert_eq!(Arp::read(&packet), expected);
            packet.resize(46, 7);
            assert_eq!(Arp::read(&packet), expected);
        }
    }

    #[test]
    fn test_what_is_cut_or_of_other_kinds_of_addresses_or_no_stations_is_not_read() {
        let packet = arp(Arp::REQUEST, A, B);
        for len in 0..LEN {
            assert_eq!(Arp::read(&packet[..len]), None, "{len} bytes");
        }
        for at in 0..6 {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert_eq!(Arp::read(&other), None, "byte {at}");
        }
        for group in [MacAddr::BROADCAST, MacAddr::new([1, 0, 0x5e, 0, 0, 1]), MacAddr::ZERO] {
            assert_eq!(Arp::read(&arp(Arp::REPLY, (group, A.1), B)), None, "{group}");
        }
    }
}
