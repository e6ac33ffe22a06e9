//! Fields of packets that may be shorter than they say: behind the end, a field reads as zeros.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mac::MacAddr;

/// A 16-bit number in network order; 0 behind the end.
#[inline]
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// An IPv4 address; 0.0.0.0 behind the end.
#[inline]
#[must_use]
pub fn ipv4_at(bytes: &[u8], at: usize) -> Ipv4Addr {
    let octets = bytes.get(at..at + 4).and_then(<[u8]>::first_chunk::<4>);
    octets.copied().unwrap_or_default().into()
}

/// An IPv6 address; `::` behind the end.
#[inline]
#[must_use]
pub fn ipv6_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets = bytes.get(at..at + 16).and_then(<[u8]>::first_chunk::<16>);
    octets.copied().unwrap_or_default().into()
}

/// A MAC address; all zeros behind the end.
#[inline]
#[must_use]
pub fn mac_at(bytes: &[u8], at: usize) -> MacAddr {
    let octets = bytes.get(at..at + 6).and_then(<[u8]>::first_chunk::<6>);
    MacAddr::new(octets.copied().unwrap_or_default())
}
