//! Frames and packets that a function or a test sends, written from their fields.

use std::net::Ipv4Addr;

use crate::checksum::checksum;
use crate::ipv4::IPV4_HEADER;
use crate::mac::MacAddr;

/// The length of an ARP packet for IPv4.
pub const ARP_LEN: usize = 28;

/// An Ethernet frame.
#[must_use]
pub fn ethernet(
    dst: impl Into<MacAddr>,
    src: impl Into<MacAddr>,
    ethertype: u16,
    payload: &[u8],
) -> Vec<u8> {
    [&dst.into().octets()[..], &src.into().octets(), &ethertype.to_be_bytes()[..], payload].concat()
}

/// An ARP packet for IPv4. The operation is 1 for a request and 2 for a reply.
#[must_use]
pub fn arp(operation: u8, from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &from.0.octets(), &from.1.octets(), &to.0.octets(), &to.1.octets()].concat()
}

/// An IPv4 packet without options.
#[must_use]
pub fn ipv4(protocol: u8, src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(IPV4_HEADER + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut packet = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(src.octets().iter().chain(&dst.octets()));
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    packet
}

/// An ICMP error that quotes a packet.
#[must_use]
pub fn icmp_error(kind: u8, code: u8, about: &[u8]) -> Vec<u8> {
    let quoted = &about[..about.len().min(IPV4_HEADER + 8)];
    let mut message = [&[kind, code, 0, 0, 0, 0, 0, 0][..], quoted].concat();
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}
