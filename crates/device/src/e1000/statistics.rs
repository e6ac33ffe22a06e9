//! The statistics registers that frames count in (13.7).
//!
//! All lengths are those on a wire: with the FCS, which no frame has here. Counters stay at their
//! greatest value.

use packet::MacAddr;

use super::registers::{
    BPRC, BPTC, GORCL, GOTCL, GPRC, GPTC, MPC, MPRC, MPTC, PRC64, PTC64, RLEC, RNBC, ROC, RUC,
    Registers, TORL, TOTL, TPR, TPT, TSCTC, TSCTFC,
};

/// The length of the FCS.
pub(super) const FCS: u32 = 4;

/// How many stations a destination stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

impl Cast {
    pub fn of(destination: [u8; 6]) -> Self {
        match MacAddr::new(destination) {
            address if address.is_broadcast() => Self::Broadcast,
            address if address.is_multicast() => Self::Multicast,
            _ => Self::Unicast,
        }
    }
}

/// The registers of one direction.
struct Direction {
    /// The first of six, by length.
    lengths: u32,
    good: u32,
    total: u32,
    multicast: u32,
    broadcast: u32,
    good_octets: u32,
    total_octets: u32,
}

const RECEIVED: Direction = Direction {
    lengths: PRC64,
    good: GPRC,
    total: TPR,
    multicast: MPRC,
    broadcast: BPRC,
    good_octets: GORCL,
    total_octets: TORL,
};
const TRANSMITTED: Direction = Direction {
    lengths: PTC64,
    good: GPTC,
    total: TPT,
    multicast: MPTC,
    broadcast: BPTC,
    good_octets: GOTCL,
    total_octets: TOTL,
};

/// The greatest length that each of the first five registers counts (13.7.21 to 13.7.26).
const LENGTHS: [u32; 5] = [64, 127, 255, 511, 1023];

impl Direction {
    /// Counts frames that are alike.
    fn count(&self, registers: &mut Registers, cast: Cast, bytes: u32, frames: u32) {
        let on_wire = (bytes + FCS).max(LENGTHS[0]);
        let bucket = LENGTHS.iter().take_while(|most| on_wire > **most).count();
        add(registers, self.lengths + 4 * u32::try_from(bucket).expect("six"), frames);
        add(registers, self.good, frames);
        add(registers, self.total, frames);
        match cast {
            Cast::Unicast => {}
            Cast::Multicast => add(registers, self.multicast, frames),
            Cast::Broadcast => add(registers, self.broadcast, frames),
        }
        let octets = u64::from(on_wire) * u64::from(frames);
        add_pair(registers, self.good_octets, octets);
        add_pair(registers, self.total_octets, octets);
    }
}

fn add(registers: &mut Registers, counter: u32, more: u32) {
    registers.set(counter, registers.get(counter).saturating_add(more));
}

fn add_pair(registers: &mut Registers, low: u32, more: u64) {
    registers.set_pair(low, registers.pair(low).saturating_add(more));
}

/// A frame was stored.
pub(super) fn received(registers: &mut Registers, cast: Cast, bytes: u32) {
    RECEIVED.count(registers, cast, bytes, 1);
}

/// Frames that are alike were sent.
pub(super) fn transmitted(registers: &mut Registers, cast: Cast, bytes: u32, frames: u32) {
    TRANSMITTED.count(registers, cast, bytes, frames);
}

/// A TCP segmentation context was done, or could not be (13.7.53, 13.7.54).
pub(super) fn segmented(registers: &mut Registers, well: bool) {
    add(registers, if well { TSCTC } else { TSCTFC }, 1);
}

/// There was no buffer for a frame (13.7.5, 13.7.33).
pub(super) fn missed(registers: &mut Registers, bytes: u32) {
    add(registers, MPC, 1);
    add(registers, RNBC, 1);
    add(registers, TPR, 1);
    add_pair(registers, TORL, u64::from(bytes + FCS));
}

/// A frame was longer than allowed (13.7.15, 13.7.36).
pub(super) fn oversized(registers: &mut Registers) {
    add(registers, RLEC, 1);
    add(registers, ROC, 1);
}

/// A frame was shorter than its header (13.7.15, 13.7.34).
pub(super) fn undersized(registers: &mut Registers) {
    add(registers, RLEC, 1);
    add(registers, RUC, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_are_told_by_the_destination() {
        assert_eq!(Cast::of([0xff; 6]), Cast::Broadcast);
        assert_eq!(Cast::of([1, 0, 0x5e, 0, 0, 1]), Cast::Multicast);
        assert_eq!(Cast::of([0x52, 0x54, 0, 0, 0, 1]), Cast::Unicast);
    }

    /// 13.7.21 to 13.7.26 and 13.7.45 to 13.7.50: both ends of each range, with the FCS.
    #[test]
    fn each_length_has_its_counter() {
        let lengths = [60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1518, 9000];
        for (direction, first) in [(&RECEIVED, PRC64), (&TRANSMITTED, PTC64)] {
            let mut registers = Registers::new();
            for bytes in lengths {
                direction.count(&mut registers, Cast::Unicast, bytes, 1);
            }
            let counts = [0, 1, 2, 3, 4, 5].map(|at| registers.get(first + 4 * at));
            assert_eq!(counts, [1, 2, 2, 2, 2, 3]);
        }
    }

    /// 13.7.27 to 13.7.32 and 13.7.41 to 13.7.44.
    #[test]
    fn frames_and_octets_are_counted_by_direction_and_cast() {
        let mut registers = Registers::new();
        received(&mut registers, Cast::Broadcast, 60);
        received(&mut registers, Cast::Multicast, 42);
        transmitted(&mut registers, Cast::Unicast, 1514, 3);
        let read =
            |counters: &[u32]| counters.iter().map(|at| registers.get(*at)).collect::<Vec<_>>();
        assert_eq!(read(&[GPRC, TPR, BPRC, MPRC, GORCL, TORL]), [2, 2, 1, 1, 128, 128]);
        assert_eq!(read(&[GPTC, TPT, BPTC, MPTC, GOTCL, TOTL]), [3, 3, 0, 0, 4554, 4554]);
    }

    /// 13.7: a counter does not wrap.
    #[test]
    fn counters_stay_at_their_greatest_value() {
        let mut registers = Registers::new();
        registers.set(GPRC, u32::MAX);
        registers.set_pair(GORCL, u64::MAX - 1);
        received(&mut registers, Cast::Unicast, 60);
        assert_eq!((registers.get(GPRC), registers.pair(GORCL)), (u32::MAX, u64::MAX));
    }
}
