//! Values of rules as people write them.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::ethernet::EtherType;
use crate::fields::Network;

/// Bytes in hexadecimal digits, with or without spaces between them.
#[must_use]
pub fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|character| *character != ' ')
        .map(|character| character.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

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
        _ => number(text).map(EtherType).ok_or(format!(
            "ethertype {text:?}: expected ipv4, ipv6, arp or a number such as \
             0x88cc"
        )),
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
        .ok_or(format!("proto {text:?}: expected tcp, udp, icmp, icmpv6, sctp or 0 to 255"))
}

/// A network, or one address. An address with the length of its network is refused: `10.0.0.1/8`
/// may mean one host, or sixteen million.
///
/// # Errors
/// What was expected.
pub fn network(text: &str) -> Result<Network, String> {
    let expected = || format!("{text:?} is no network, such as 10.0.0.0/8 or fd00::/8");
    let network = written(text).ok_or_else(expected)?;
    match of_host(network) {
        Some(meant) => Err(no_network(text, &meant)),
        None => Ok(network),
    }
}

/// What [`network`] refuses as the address of a host with the length of its network, as the
/// network that it was taken for once.
#[must_use]
pub fn masked(text: &str) -> Option<String> {
    of_host(written(text)?)
}

/// The address and the length that stand there.
fn written(text: &str) -> Option<Network> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    (bits <= width).then_some(Network { address, bits })
}

/// The network, if the address is that of a host in it.
fn of_host(network: Network) -> Option<String> {
    let first = network.first();
    (first != network.address).then(|| format!("{first}/{}", network.bits))
}

/// The error for a host's address that is given with the length of its network.
#[must_use]
pub fn no_network(text: &str, network: &str) -> String {
    let host = text.split('/').next().unwrap_or_default();
    format!("{text:?} is a host in a network; did you mean {network}, or {host} alone?")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_network_begins_with_its_first_address_or_says_which_that_is() {
        for (text, bits) in [
            ("10.0.0.0/8", 8),
            ("10.0.0.1", 32),
            ("10.0.0.1/32", 32),
            ("0.0.0.0/0", 0),
            ("::/0", 0),
            ("fd00::/8", 8),
            ("fd00::1", 128),
            ("fd00::1/128", 128),
        ] {
            assert_eq!(network(text).map(|network| network.bits), Ok(bits), "{text}");
        }
        for (text, meant) in [
            ("10.0.0.1/8", "did you mean 10.0.0.0/8, or 10.0.0.1 alone?"),
            ("10.255.0.0/9", "did you mean 10.128.0.0/9, or 10.255.0.0 alone?"),
            ("10.0.0.1/31", "did you mean 10.0.0.0/31"),
            ("1.0.0.0/0", "did you mean 0.0.0.0/0"),
            ("fd00::1/64", "did you mean fd00::/64, or fd00::1 alone?"),
            ("::1/0", "did you mean ::/0"),
            ("10.0.0.0/33", "is no network"),
            ("10.0.0.1/255", "is no network"),
            ("fd00::/129", "is no network"),
            ("10.0.0/8", "is no network"),
        ] {
            let why = network(text).unwrap_err();
            assert!(why.contains(meant), "{why}");
        }
    }
}
