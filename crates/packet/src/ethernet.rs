//! The head of an Ethernet frame: addresses, type and 802.1Q tag.
//!
//! A frame lies in memory that its sender can change at any time. Its first 16 bytes are copied
//! out once into a [`Header`], and every decision uses that copy, so that a sender that rewrites
//! a frame while it is being switched changes what arrives, never where it goes.
//!
//! ```text
//!  0           6           12    14    16
//!  ┌───────────┬───────────┬─────┬─────┬──
//!  │destination│  source   │8100 │ TCI │ inner type …     tagged
//!  ├───────────┼───────────┼─────┼─────┴──
//!  │destination│  source   │type │ payload …            untagged
//!  └───────────┴───────────┴─────┴────────
//! ```

use std::fmt;
use std::ops::Range;

use crate::bytes::u16_at;
use crate::mac::MacAddr;
use crate::vlan::VlanId;

/// Where the fields of a frame lie.
pub mod field {
    use std::ops::Range;

    /// Destination address.
    pub const DESTINATION: Range<usize> = 0..6;
    /// Source address.
    pub const SOURCE: Range<usize> = 6..12;
    /// EtherType, or the tag protocol identifier (TPID) of a tagged frame.
    pub const ETHERTYPE: Range<usize> = 12..14;
    /// Tag control information (PCP, DEI, VLAN) of a tagged frame.
    pub const TCI: Range<usize> = 14..16;
    /// What a [`Header`](super::Header) copies out.
    pub const HEADER: Range<usize> = 0..16;
    /// EtherType behind the tag of a tagged frame.
    pub const INNER_ETHERTYPE: Range<usize> = 16..18;
}

/// The length of a header without tags.
pub const ETHERNET_HEADER: usize = 14;

/// The type of what follows in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag follows (the TPID of a customer tag).
    pub const VLAN: Self = Self(0x8100);
    /// An 802.1ad service tag follows.
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);

    /// Whether a VLAN tag follows, a customer's or a service provider's.
    #[inline]
    #[must_use]
    pub const fn is_tag(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }

    /// Whether the field is a length instead of a type, and an LLC header follows it.
    #[inline]
    #[must_use]
    pub const fn is_length(self) -> bool {
        self.0 < 0x600
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// What an 802.1Q tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The 12 bits of the VLAN field as they stand: 0 is a priority tag (no VLAN), 4095 reserved.
    pub vid: u16,
    /// Priority code point, 0 to 7.
    pub pcp: u8,
    /// Drop eligible indicator.
    pub dei: bool,
}

impl Tag {
    /// Reads the tag control information.
    #[inline]
    pub const fn from_tci(tci: u16) -> Self {
        Self { vid: tci & 0x0fff, pcp: (tci >> 13) as u8, dei: tci & 0x1000 != 0 }
    }

    /// The tag control information of this tag.
    #[inline]
    pub const fn tci(self) -> u16 {
        let [pcp, dei] = [self.pcp as u16, self.dei as u16];
        (pcp & 7) << 13 | dei << 12 | (self.vid & 0x0fff)
    }

    /// The VLAN that the tag names, if it names one.
    #[inline]
    pub fn vlan(self) -> Option<VlanId> {
        VlanId::new(self.vid)
    }

    /// Whether this tag carries a priority and no VLAN.
    #[inline]
    pub const fn is_priority(self) -> bool {
        self.vid == 0
    }
}

/// The EtherType behind up to two VLAN tags, and the offset of the network header behind it. The
/// type of a frame that ends before is 0.
#[inline]
#[must_use]
pub fn network_header(frame: &[u8]) -> (EtherType, usize) {
    let mut at = field::ETHERTYPE.start;
    for _ in 0..2 {
        if !EtherType(u16_at(frame, at)).is_tag() {
            break;
        }
        at += 4;
    }
    (EtherType(u16_at(frame, at)), at + 2)
}

/// The first 16 bytes of a frame, copied out of its sender's memory once.
///
/// The code that copies a frame of 14 or 15 bytes pads it with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(u128);

impl Header {
    /// The header with these bytes.
    #[inline]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// The bytes, in the order of the wire.
    #[inline]
    pub const fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The destination address.
    #[inline]
    pub const fn dst(self) -> MacAddr {
        MacAddr::from_u64(low_48(self.0))
    }

    /// The source address.
    #[inline]
    pub const fn src(self) -> MacAddr {
        MacAddr::from_u64(low_48(self.0 >> bit(field::SOURCE)))
    }

    /// The EtherType; of a tagged frame that is [`EtherType::VLAN`].
    #[inline]
    pub const fn ethertype(self) -> EtherType {
        EtherType(self.u16_at(field::ETHERTYPE))
    }

    /// The 802.1Q tag, if the frame has one.
    #[inline]
    pub const fn tag(self) -> Option<Tag> {
        if self.is_tagged() { Some(Tag::from_tci(self.u16_at(field::TCI))) } else { None }
    }

    /// What the switch decides by: the addresses, the type, and the tag if there is one. Two
    /// frames with one key that come from one port get one decision.
    #[inline]
    pub const fn key(self) -> u128 {
        self.0 & self.key_mask()
    }

    /// The bits of the header that make its key.
    #[inline]
    pub const fn key_mask(self) -> u128 {
        if self.is_tagged() { u128::MAX } else { UNTAGGED_MASK }
    }

    #[inline]
    const fn is_tagged(self) -> bool {
        self.ethertype().0 == EtherType::VLAN.0
    }

    #[inline]
    const fn u16_at(self, field: Range<usize>) -> u16 {
        ((self.0 >> bit(field) & 0xffff) as u16).swap_bytes()
    }
}

/// The lowest 48 bits of a header: an address, once it is shifted there.
#[inline]
const fn low_48(bits: u128) -> u64 {
    (bits & 0xffff_ffff_ffff) as u64
}

/// The addresses and the EtherType: the header of an untagged frame, without its payload.
const UNTAGGED_MASK: u128 = (1 << bit(field::TCI)) - 1;

/// The lowest bit of a field in the little-endian number.
const fn bit(field: Range<usize>) -> usize {
    field.start * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(ethertype: [u8; 2], tci: [u8; 2]) -> Header {
        let mut bytes = [0; 16];
        bytes[field::DESTINATION].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes[field::SOURCE].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        bytes[field::ETHERTYPE].copy_from_slice(&ethertype);
        bytes[field::TCI].copy_from_slice(&tci);
        Header::new(bytes)
    }

    #[test]
    fn test_untagged_frame_has_no_tag_and_a_key_without_payload() {
        let frame = header([0x08, 0x00], [0x45, 0x00]);
        assert_eq!(frame.dst().to_string(), "02:00:00:00:00:01");
        assert_eq!(frame.src().to_string(), "02:00:00:00:00:02");
        assert_eq!(frame.ethertype(), EtherType::IPV4);
        assert_eq!(frame.tag(), None);
        assert_eq!(frame.key(), header([0x08, 0x00], [0xff, 0xff]).key());
    }

    #[test]
    fn test_tagged_frame_is_keyed_by_its_tag() {
        let frame = header([0x81, 0x00], [0xb0, 0x64]);
        assert_eq!(frame.tag(), Some(Tag { vid: 100, pcp: 5, dei: true }));
        assert_ne!(frame.key(), header([0x81, 0x00], [0xb0, 0x65]).key());
    }

    #[test]
    fn test_priority_and_reserved_tags_name_no_vlan() {
        let priority = header([0x81, 0x00], [0xe0, 0x00]).tag().unwrap();
        assert!(priority.is_priority());
        assert_eq!(priority.vlan(), None);
        assert_eq!(header([0x81, 0x00], [0x0f, 0xff]).tag().unwrap().vlan(), None);
    }

    proptest! {
        #[test]
        fn prop_header_reads_the_bytes_it_was_given(bytes: [u8; 16]) {
            let header = Header::new(bytes);
            prop_assert_eq!(header.bytes(), bytes);
            prop_assert_eq!(&header.dst().octets()[..], &bytes[field::DESTINATION]);
            prop_assert_eq!(&header.src().octets()[..], &bytes[field::SOURCE]);
            let ethertype = u16::from_be_bytes([bytes[12], bytes[13]]);
            prop_assert_eq!(header.ethertype(), EtherType(ethertype));
            prop_assert_eq!(header.tag().is_some(), ethertype == 0x8100);
        }

        #[test]
        fn prop_tag_survives_its_encoding(tci: u16) {
            prop_assert_eq!(Tag::from_tci(tci).tci(), tci);
        }
    }
}
