//! Values of rules as people write them.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::rule::Network;
use crate::frame::EtherType;

/// A type.
///
/// # Errors
/// What was expected.
pub fn ethertype(text: &str) -> Result<EtherType, String> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match text {
        "ipv4" => Ok(EtherType::IPV4),
        "ipv6" => Ok(EtherType::IPV6),
        "arp" => Ok(EtherType::ARP),
        _ => number(text)
            .map(EtherType)
            .ok_or(format!("ethertype {text:?} is none of ipv4, ipv6, arp and 0x88cc")),
    }
}

/// An IP protocol.
///
/// # Errors
/// What was expected.
pub fn protocol(text: &str) -> Result<u8, String> {
    let known = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58), ("sctp", 132)];
    let named = known.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let number = || text.parse().ok();
    named
        .or_else(number)
        .ok_or(format!("proto {text:?} is none of tcp, udp, icmp, icmpv6, sctp, 0-255"))
}

/// A network, or one address.
///
/// # Errors
/// What was expected.
pub fn network(text: &str) -> Result<Network, String> {
    let expected = || format!("{text:?} is no network, such as 10.0.0.0/8 or fd00::/8");
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| expected())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| expected())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    if bits > width { Err(expected()) } else { Ok(Network { address, bits }) }
}

/// A port, or a range of ports.
///
/// # Errors
/// What was expected.
pub fn range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let expected = || format!("{text:?} is no port, and no range of ports such as 1000-1999");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [first, last] = [first, last].map(str::parse::<u16>);
    let range = first.map_err(|_| expected())?..=last.map_err(|_| expected())?;
    if range.is_empty() { Err(expected()) } else { Ok(range) }
}
