//! The receive filters: which frames the receiver stores (3.2.1, 9.3, 13.5).
//!
//! ```text
//!   length ─► VLAN table, if VFE ─► broadcast: BAM ─┐
//!                                   multicast: MPE ─┼─► or one of 16 addresses (exact),
//!                                   unicast:   UPE ─┘   or a bit of the multicast table
//! ```

use packet::bytes::u16_at;
use packet::ethernet::field;

use super::registers::{MTA, RAL, RCTL, Registers, VET, VFTA, rah, rctl};
use super::statistics::{Cast, FCS};

/// The longest frame with LPE or SBP, and without.
const LONG: usize = 16384;
const SHORT: usize = 1522;
/// Addresses that are compared as a whole.
const ADDRESSES: u32 = 16;
/// By how many bits to the right the last two octets of an address are an index of the multicast
/// table, for each value of RCTL.MO (13.5.1).
const MO_SHIFTS: [u32; 4] = [4, 3, 2, 0];

/// What the filters say of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The frame is stored.
    Exact,
    /// The frame is stored, and the driver has to look whether its group is wanted.
    Inexact,
    /// The frame is for other stations.
    Other,
    /// The frame is too long.
    Oversized,
}

/// Whether a frame has the tag that VET names.
pub(super) fn is_tagged(registers: &Registers, frame: &[u8]) -> bool {
    let ethertype = u16_at(frame, field::ETHERTYPE.start);
    frame.len() >= field::TCI.end && u32::from(ethertype) == registers.get(VET)
}

/// The longest frame that passes, with the FCS (13.7.15).
pub(super) fn longest(registers: &Registers) -> usize {
    if registers.has(RCTL, rctl::LPE | rctl::SBP) { LONG } else { SHORT }
}

/// What the filters say of a frame that has a whole Ethernet header.
pub(super) fn filter(registers: &Registers, frame: &[u8], cast: Cast) -> Verdict {
    let control = registers.get(RCTL);
    if frame.len() + FCS as usize > longest(registers) {
        return Verdict::Oversized;
    }
    if control & rctl::VFE != 0 && is_tagged(registers, frame) && !passes_vlan(registers, frame) {
        return Verdict::Other;
    }
    let promiscuous = match cast {
        Cast::Broadcast => rctl::BAM,
        Cast::Multicast => rctl::MPE,
        Cast::Unicast => rctl::UPE,
    };
    let octets = frame[field::DESTINATION].try_into().expect("a whole header");
    if control & promiscuous != 0 || is_ours(registers, octets) {
        return Verdict::Exact;
    }
    let is_group = cast != Cast::Unicast && in_multicast_table(registers, octets);
    if is_group { Verdict::Inexact } else { Verdict::Other }
}

/// 9.3: the bit of the frame's VLAN is set, and the CFI is as it has to be.
fn passes_vlan(registers: &Registers, frame: &[u8]) -> bool {
    let tci = u32::from(u16_at(frame, field::TCI.start));
    let control = registers.get(RCTL);
    let same_cfi = (tci >> 12 & 1 != 0) == (control & rctl::CFI != 0);
    let vlan = tci & 0xfff;
    let bit = registers.get(VFTA + vlan / 32 * 4) >> (vlan % 32) & 1;
    bit != 0 && (control & rctl::CFIEN == 0 || same_cfi)
}

/// 13.5.2: one of the addresses is the frame's.
fn is_ours(registers: &Registers, octets: [u8; 6]) -> bool {
    let [a, b, c, d, e, f] = octets;
    let address = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    (0..ADDRESSES).map(|at| registers.pair(RAL + 8 * at)).any(|entry| {
        let is_valid = entry >> 32 & u64::from(rah::AV) != 0;
        is_valid && entry << 16 == address << 16
    })
}

/// 13.5.1: twelve bits of the address are the number of a bit.
fn in_multicast_table(registers: &Registers, octets: [u8; 6]) -> bool {
    let offset = registers.get(RCTL) >> rctl::MO_SHIFT & 3;
    let last = u32::from(u16::from_le_bytes([octets[4], octets[5]]));
    let index = last >> MO_SHIFTS[offset as usize] & 0xfff;
    registers.get(MTA + index / 32 * 4) >> (index % 32) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0x12, 0x34];

    fn frame(to: [u8; 6], bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes];
        frame[..6].copy_from_slice(&to);
        frame
    }

    fn tagged(tci: u16) -> Vec<u8> {
        let mut frame = frame(OURS, 64);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame[14..16].copy_from_slice(&tci.to_be_bytes());
        frame
    }

    fn registers(control: u32) -> Registers {
        let mut registers = Registers::new();
        registers.set(RCTL, control);
        registers.set_pair(RAL, 0x8000_5634_1200_5452);
        registers
    }

    fn verdict(registers: &Registers, frame: &[u8]) -> Verdict {
        filter(registers, frame, Cast::of(frame[..6].try_into().expect("six")))
    }

    fn verdict_of(control: u32, to: [u8; 6]) -> Verdict {
        verdict(&registers(control), &frame(to, 60))
    }

    /// 13.5.2 and 13.5.3: all 16 addresses count, and only valid ones.
    #[test]
    fn an_address_passes_if_it_is_in_the_table_and_valid() {
        assert_eq!(verdict_of(0, OURS), Verdict::Exact);
        assert_eq!(verdict_of(0, [0x52, 0x54, 0, 0x12, 0x34, 0x57]), Verdict::Other);
        let mut registers = registers(0);
        registers.set_pair(RAL, 0x5634_1200_5452);
        assert_eq!(verdict(&registers, &frame(OURS, 60)), Verdict::Other);
        registers.set_pair(RAL + 15 * 8, 0x8003_5634_1200_5452);
        assert_eq!(verdict(&registers, &frame(OURS, 60)), Verdict::Exact, "AS is no address bit");
    }

    /// 3.2.1 and 13.4.22.
    #[test]
    fn each_promiscuous_bit_lets_its_kind_pass() {
        let other = [0x52, 0x54, 0, 0, 0, 9];
        for (to, bit) in [(other, rctl::UPE), (GROUP, rctl::MPE), ([0xff; 6], rctl::BAM)] {
            assert_eq!(verdict_of(0, to), Verdict::Other);
            assert_eq!(verdict_of(bit, to), Verdict::Exact);
            let others = (rctl::UPE | rctl::MPE | rctl::BAM) & !bit;
            assert_eq!(verdict_of(others, to), Verdict::Other);
        }
    }

    /// 13.5.1: bits 47:36, 46:35, 45:34 and 43:32 of the address. The octets 12:34 are bits 39:32
    /// and 47:40.
    #[test]
    fn the_multicast_table_is_looked_up_by_the_bits_that_mo_selects() {
        for (offset, index) in [(0, 0x341), (1, 0x682), (2, 0xd04), (3, 0x412)] {
            let mut registers = registers(offset << rctl::MO_SHIFT);
            assert_eq!(verdict(&registers, &frame(GROUP, 60)), Verdict::Other);
            registers.set(MTA + index / 32 * 4, 1 << (index % 32));
            assert_eq!(verdict(&registers, &frame(GROUP, 60)), Verdict::Inexact, "{offset}");
        }
    }

    /// 13.5.1: the manual's own example, xx:xx:xx:xx:9x:BC with the offset 0.
    #[test]
    fn the_manuals_address_is_bit_9_of_row_94() {
        let mut registers = registers(0);
        registers.set(MTA + 94 * 4, 1 << 9);
        let to = [1, 0, 0x5e, 0, 0x9a, 0xbc];
        assert_eq!(verdict(&registers, &frame(to, 60)), Verdict::Inexact);
        let station = [2, 0, 0x5e, 0, 0x9a, 0xbc];
        assert_eq!(verdict(&registers, &frame(station, 60)), Verdict::Other, "of groups only");
    }

    /// 9.3 and 13.5.4.
    #[test]
    fn with_the_vlan_filter_a_tagged_frame_needs_its_bit() {
        assert_eq!(verdict(&registers(0), &tagged(100)), Verdict::Exact, "no filter");
        let mut registers = registers(rctl::VFE);
        assert_eq!(verdict(&registers, &frame(OURS, 60)), Verdict::Exact, "no tag");
        assert_eq!(verdict(&registers, &tagged(0x2064)), Verdict::Other);
        registers.set(VFTA + 3 * 4, 1 << 4);
        assert_eq!(verdict(&registers, &tagged(0x2064)), Verdict::Exact, "VLAN 100, priority 1");
        assert_eq!(verdict(&registers, &tagged(101)), Verdict::Other);
        registers.set(VET, 0x88a8);
        assert_eq!(verdict(&registers, &tagged(101)), Verdict::Exact, "not the tag that VET names");
    }

    /// 13.4.22, CFIEN and CFI.
    #[test]
    fn the_canonical_form_indicator_is_compared_if_the_driver_asks() {
        for (control, of_clear, of_set) in [
            (rctl::VFE | rctl::CFIEN, Verdict::Exact, Verdict::Other),
            (rctl::VFE | rctl::CFIEN | rctl::CFI, Verdict::Other, Verdict::Exact),
            (rctl::VFE | rctl::CFI, Verdict::Exact, Verdict::Exact),
        ] {
            let mut registers = registers(control);
            registers.set(VFTA, 2);
            assert_eq!(verdict(&registers, &tagged(1)), of_clear);
            assert_eq!(verdict(&registers, &tagged(0x1001)), of_set);
        }
    }

    /// 13.7.15: 1522 bytes with the FCS, or 16384 with LPE.
    #[test]
    fn long_frames_pass_with_lpe_only() {
        for (control, bytes, is_oversized) in [
            (0, 1518, false),
            (0, 1519, true),
            (rctl::SBP, 1519, false),
            (rctl::LPE, 16380, false),
            (rctl::LPE, 16381, true),
            (rctl::SBP, 16381, true),
        ] {
            let verdict = verdict(&registers(control), &frame(OURS, bytes));
            assert_eq!(verdict == Verdict::Oversized, is_oversized, "{bytes}");
        }
    }
}
