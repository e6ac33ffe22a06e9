//! Packets of ICMPv6 (RFC 4443): their lengths, their checksum, and the header in front of them.

use std::net::Ipv6Addr;

use crate::build::be16;
use crate::bytes::u16_at;
use crate::checksum::Sum;

/// The length of an IPv6 header without extension headers.
pub(crate) const IPV6_HEADER: usize = 40;
/// The protocol's number behind IPv6.
pub(crate) const ICMPV6: u8 = 58;

/// What a packet's checksum covers besides its message: source and destination.
pub(crate) type Addresses = (Ipv6Addr, Ipv6Addr);

/// The checksum of a message: 0, if the message holds the right one; what it has to hold, if its
/// field is zero.
pub(crate) fn checksum(addresses: Addresses, message: &[u8]) -> u16 {
    let header = header(addresses, [ICMPV6, 0], message.len());
    let pseudo_header = Sum::pseudo_header(&header[8..], ICMPV6, u16_at(&header, 4));
    pseudo_header.and(Sum::of(message)).checksum()
}

/// Fills in the checksum of a message, whose field for it is zero.
pub(crate) fn fill_checksum(addresses: Addresses, message: &mut [u8]) {
    let sum = checksum(addresses, message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
}

/// The packet of a message, whose checksum is filled in.
pub(crate) fn packet(addresses: Addresses, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    fill_checksum(addresses, &mut message);
    let header = header(addresses, [ICMPV6, hop_limit], message.len());
    [&header[..], &message].concat()
}

/// The IPv6 header in front of a payload of `len` bytes: the number of what follows, and the hop
/// limit.
pub(crate) fn header(
    (src, dst): Addresses,
    [next, hop_limit]: [u8; 2],
    len: usize,
) -> [u8; IPV6_HEADER] {
    let [high, low] = be16(len);
    let mut header = [0; IPV6_HEADER];
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, next, hop_limit]);
    header[8..24].copy_from_slice(&src.octets());
    header[24..].copy_from_slice(&dst.octets());
    header
}
