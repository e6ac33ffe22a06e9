//! Frames, packets and headers that a function, a benchmark or a test sends, written from their
//! fields. The functions that return an array allocate nothing, and may run for every frame.

use std::net::Ipv4Addr;

use crate::arp::ETHERNET_AND_IPV4;
use crate::checksum::checksum;
use crate::ethernet::ETHERNET_HEADER;
use crate::ipv4::IPV4_HEADER;
use crate::mac::MacAddr;

/// The length of a UDP header.
pub const UDP_HEADER: usize = 8;
/// The flag of an IPv4 header that forbids routers to fragment the packet.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The header of an Ethernet frame without a VLAN tag.
#[inline]
#[must_use]
pub fn ethernet_header(
    dst: impl Into<MacAddr>,
    src: impl Into<MacAddr>,
    ethertype: u16,
) -> [u8; ETHERNET_HEADER] {
    let mut header = [0; ETHERNET_HEADER];
    header[..6].copy_from_slice(&dst.into().octets());
    header[6..12].copy_from_slice(&src.into().octets());
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    header
}

/// The header of an IPv4 packet without options, in front of a payload of `len` bytes. `fragment`
/// holds the flags and the fragment offset: 0 or [`DONT_FRAGMENT`] for a whole packet.
#[inline]
#[must_use]
pub fn ipv4_header(
    protocol: u8,
    fragment: u16,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    len: usize,
) -> [u8; IPV4_HEADER] {
    let [high, low] = be16(IPV4_HEADER + len);
    let [flags, offset] = fragment.to_be_bytes();
    let mut header = [0; IPV4_HEADER];
    header[..10].copy_from_slice(&[0x45, 0, high, low, 0, 0, flags, offset, 64, protocol]);
    header[12..16].copy_from_slice(&src.octets());
    header[16..].copy_from_slice(&dst.octets());
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

/// The header of a UDP datagram with a payload of `len` bytes, without a checksum.
#[inline]
#[must_use]
pub fn udp_header(source: u16, destination: u16, len: usize) -> [u8; UDP_HEADER] {
    let [a, b] = source.to_be_bytes();
    let [c, d] = destination.to_be_bytes();
    let [high, low] = be16(UDP_HEADER + len);
    [a, b, c, d, high, low, 0, 0]
}

/// A length in network order; the greatest, if it has no room in 16 bits.
#[inline]
pub(crate) fn be16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// An Ethernet frame.
#[must_use]
pub fn ethernet(
    dst: impl Into<MacAddr>,
    src: impl Into<MacAddr>,
    ethertype: u16,
    payload: &[u8],
) -> Vec<u8> {
    [&ethernet_header(dst, src, ethertype)[..], payload].concat()
}

/// An ARP packet for IPv4, such as a [request](crate::arp::Arp::REQUEST).
#[must_use]
pub fn arp(operation: u16, from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    let (operation, [from_mac, to_mac]) =
        (operation.to_be_bytes(), [from, to].map(|it| it.0.octets()));
    let [from_ip, to_ip] = [from, to].map(|it| it.1.octets());
    [&ETHERNET_AND_IPV4[..], &operation, &from_mac, &from_ip, &to_mac, &to_ip].concat()
}

/// An IPv4 packet without options.
#[must_use]
pub fn ipv4(protocol: u8, src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    [&ipv4_header(protocol, 0, (src, dst), payload.len())[..], payload].concat()
}

/// A UDP datagram without a checksum.
#[must_use]
pub fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    [&udp_header(source, destination, payload.len())[..], payload].concat()
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
