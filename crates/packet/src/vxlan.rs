//! The header of VXLAN (RFC 7348, section 5), which stands between a UDP header and an Ethernet
//! frame.
//!
//! ```text
//!   0       1       2       3       4       5       6       7
//!  ┌───────┬───────────────────────┬───────────────────────┬───────┐
//!  │ flags │       reserved        │          VNI          │  rsv  │ frame …
//!  └───────┴───────────────────────┴───────────────────────┴───────┘
//!   0x08: the VNI is valid
//! ```
//!
//! A sender writes zeros into what is reserved, and a receiver ignores it.

use std::ops::Range;

/// The UDP port of VXLAN, which IANA has assigned.
pub const UDP_PORT: u16 = 4789;
/// The length of the header.
pub const HEADER: usize = 8;

/// Fields of the header.
mod field {
    use super::Range;

    pub const FLAGS: usize = 0;
    pub const VNI: Range<usize> = 4..7;
}

/// The flag "I": the VNI is valid.
const VNI_IS_VALID: u8 = 0x08;

/// A VXLAN Network Identifier, the number of a virtual network: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The greatest number.
    pub const MAX: u32 = 0x00ff_ffff;

    /// `None` for a number of more than 24 bits.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// The header of a frame in this network.
#[must_use]
pub fn header(vni: Vni) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[field::FLAGS] = VNI_IS_VALID;
    header[field::VNI].copy_from_slice(&vni.0.to_be_bytes()[1..]);
    header
}

/// The network and the frame of a UDP datagram's payload. `None`: it has no header with a VNI.
#[must_use]
pub fn read(payload: &[u8]) -> Option<(Vni, &[u8])> {
    let (header, frame) = payload.split_first_chunk::<HEADER>()?;
    let [.., a, b, c, _] = *header;
    let vni = Vni(u32::from_be_bytes([0, a, b, c]));
    (header[field::FLAGS] & VNI_IS_VALID != 0).then_some((vni, frame))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_is_the_one_of_the_rfc() {
        let vni = Vni::new(0x12_3456).expect("24 bits");
        assert_eq!(header(vni), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!((Vni::new(Vni::MAX).map(Vni::get), Vni::new(1 << 24)), (Some(Vni::MAX), None));
    }

    #[test]
    fn a_payload_without_the_flag_or_with_less_than_a_header_is_refused() {
        let good = header(Vni(7));
        assert_eq!(read(&good), Some((Vni(7), &[][..])));
        assert_eq!(read(&good[..7]), None);
        assert_eq!(read(&[0xf7, 0, 0, 0, 0, 0, 7, 0, 1]), None);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let payload = [0xff, 1, 2, 3, 0, 0, 7, 4, 9];
        assert_eq!(read(&payload), Some((Vni(7), &[9][..])));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(number in 0..=Vni::MAX, frame: Vec<u8>) {
            let vni = Vni::new(number).expect("24 bits");
            let payload = [&header(vni)[..], &frame].concat();
            prop_assert_eq!(read(&payload), Some((vni, &frame[..])));
        }

        #[test]
        fn what_is_read_has_the_flag_and_the_number_at_its_place(payload: Vec<u8>) {
            match read(&payload) {
                Some((vni, frame)) => {
                    prop_assert_eq!(frame, &payload[8..]);
                    prop_assert_eq!(&vni.get().to_be_bytes()[1..], &payload[4..7]);
                    prop_assert!(payload[0] & 8 != 0);
                }
                None => prop_assert!(payload.len() < 8 || payload[0] & 8 == 0),
            }
        }
    }
}
