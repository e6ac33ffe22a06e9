//! MAC addresses.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::error::ParseError;

/// A MAC address. As text, and so in JSON and TOML, it is `02:00:00:00:00:01`.
///
/// The type keeps a number in the byte order of the frame, so comparing and hashing an address does
/// not take it apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct MacAddr(u64);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self(MAC_MASK);
    /// The address of no station: all zeros.
    pub const ZERO: Self = Self(0);
    /// The destination of 802.3x PAUSE frames, which no bridge forwards.
    pub const PAUSE: Self = Self::new([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);

    /// The destination of BPDUs, the frames of spanning tree protocols.
    pub const BRIDGE_GROUP: Self = Self::new([0x01, 0x80, 0xc2, 0x00, 0x00, 0x00]);

    /// The address with these octets.
    #[inline]
    pub const fn new(o: [u8; 6]) -> Self {
        Self(u64::from_le_bytes([o[0], o[1], o[2], o[3], o[4], o[5], 0, 0]))
    }

    /// The octets, in the order of the wire.
    #[inline]
    pub const fn octets(self) -> [u8; 6] {
        let o = self.0.to_le_bytes();
        [o[0], o[1], o[2], o[3], o[4], o[5]]
    }

    /// A number that identifies the address: 48 bits, the first octet lowest.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The address of a number made by [`as_u64`](Self::as_u64); higher bits are ignored.
    #[inline]
    pub const fn from_u64(bits: u64) -> Self {
        Self(bits & MAC_MASK)
    }

    /// Reads an address whose octets may lack the leading zero, such as `2:0:0:0:0:1`.
    /// Configuration files may have this form; `FromStr`, and so JSON, wants two digits.
    ///
    /// # Errors
    /// The text is no address.
    pub fn from_short_text(text: &str) -> Result<Self, ParseError> {
        parse(text, 1..=2)
    }

    /// Whether this is a group address (broadcast is one).
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether a station can be found by this address: it is neither a group's nor all zeros.
    #[inline]
    pub const fn is_station(self) -> bool {
        !self.is_multicast() && self.0 != Self::ZERO.0
    }

    /// The last octet of a reserved group address, 01:80:C2:00:00:00 to 0F, which a bridge does not
    /// forward (802.1Q, 8.6.3).
    #[inline]
    pub const fn reserved_group(self) -> Option<u8> {
        const LAST: u64 = 0x0f << 40;
        let [.., last, _, _] = self.0.to_le_bytes();
        if self.0 & !LAST == MacAddr::new([0x01, 0x80, 0xc2, 0, 0, 0]).0 {
            Some(last)
        } else {
            None
        }
    }

    /// Whether this is the broadcast address.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        self.0 == MAC_MASK
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(octets: [u8; 6]) -> Self {
        Self::new(octets)
    }
}

/// Addresses sort as they are written.
impl Ord for MacAddr {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.octets().cmp(&other.octets())
    }
}

impl PartialOrd for MacAddr {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.octets();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text, 2..=2)
    }
}

crate::text_form!(MacAddr);

/// Six octets of `digits` hexadecimal digits each, with colons between them.
fn parse(text: &str, digits: RangeInclusive<usize>) -> Result<MacAddr, ParseError> {
    let error = || ParseError::new("a MAC address such as 02:00:00:00:00:01", text);
    // `from_str_radix` alone would also take a sign.
    let octet = |part: &str| {
        let is_octet = digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        if is_octet { u8::from_str_radix(part, 16).ok() } else { None }
    };
    let mut octets = [0; 6];
    let mut parts = text.split(':');
    for to in &mut octets {
        *to = parts.next().and_then(octet).ok_or_else(error)?;
    }
    if parts.next().is_some() { Err(error()) } else { Ok(MacAddr::new(octets)) }
}

/// The 48 bits of an address.
const MAC_MASK: u64 = 0xffff_ffff_ffff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn test_addresses_know_their_kind() {
        assert!(MacAddr::BROADCAST.is_broadcast() && MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr::PAUSE.is_multicast() && !MacAddr::PAUSE.is_broadcast());
        let station = MacAddr::new([2, 0, 0, 0, 0, 1]);
        assert!(!station.is_multicast() && station.is_station());
        assert!(!MacAddr::ZERO.is_station() && !MacAddr::BROADCAST.is_station());
    }

    #[test]
    fn test_sixteen_groups_are_reserved() {
        let group = |last| MacAddr::new([0x01, 0x80, 0xc2, 0, 0, last]);
        assert!((0..16).all(|last| group(last).reserved_group() == Some(last)));
        for other in [group(16), group(0x80), MacAddr::new([1, 0x80, 0xc2, 0, 1, 0])] {
            assert_eq!(other.reserved_group(), None, "{other}");
        }
        assert_eq!(MacAddr::BROADCAST.reserved_group(), None);
    }

    #[test]
    fn test_text_that_is_no_address_is_refused() {
        for text in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:+1", "g::::::"] {
            let error = text.parse::<MacAddr>().unwrap_err();
            assert!(error.to_string().starts_with("expected a MAC address"), "{error}");
            assert_eq!(MacAddr::from_short_text(text), Err(error));
        }
    }

    #[test]
    fn test_only_short_text_may_lack_leading_zeros() {
        let station = MacAddr::new([2, 0, 0, 0, 0, 0xa]);
        for text in ["2:0:0:0:0:a", "02:0:00:00:00:A"] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
            assert_eq!(MacAddr::from_short_text(text), Ok(station));
        }
        assert_eq!("02:00:00:00:00:0A".parse(), Ok(station));
    }

    proptest! {
        #[test]
        fn prop_address_survives_its_text_and_number(octets: [u8; 6]) {
            let mac = MacAddr::new(octets);
            prop_assert_eq!(mac.to_string().parse(), Ok(mac));
            prop_assert_eq!(MacAddr::from_u64(mac.as_u64()), mac);
            prop_assert_eq!(mac.octets(), octets);
        }

        #[test]
        fn prop_addresses_sort_as_they_are_written(a: [u8; 6], b: [u8; 6]) {
            let [a, b] = [MacAddr::new(a), MacAddr::new(b)];
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }
    }
}
