//! Descriptor rings (3.2.6, 3.4): where a ring lies, and the descriptors in it.
//!
//! ```text
//!            BAL, BAH                              LEN bytes
//!   ring:    [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ] … [ n−1 ]
//!                       ▲              ▲
//!                       head           tail
//!                       written by     written by the driver: it gives the
//!                       the device     descriptors from head to tail away
//! ```
//!
//! A descriptor is two little-endian words of eight bytes in the guest's memory. The device reads
//! both once, and writes the second back:
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | both, before the tail moves | driver | device | the register write, or the CSB, orders them |
//! | second, when it is done | device | driver | Release, behind a frame's bytes / the driver's |
//!
//! A head or tail that lies outside of the ring makes it an empty one.

use core::sync::atomic::Ordering;

use ring::guest::GuestMemory;

use super::registers::Registers;

/// The length of a descriptor.
const DESCRIPTOR: u32 = 16;

/// The registers of a ring, from its BAL register on (13.4.25 to 13.4.29, 13.4.36 to 13.4.40).
const BAL: u32 = 0x00;
const LEN: u32 = 0x08;

/// A ring as its registers say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    base: u64,
    /// Descriptors.
    pub len: u32,
}

/// A descriptor that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Where it lies.
    at: u64,
    pub words: [u64; 2],
}

impl Ring {
    /// The ring whose registers begin at `first`.
    #[inline]
    pub fn new(registers: &Registers, first: u32) -> Self {
        Self { base: registers.pair(first + BAL), len: registers.get(first + LEN) / DESCRIPTOR }
    }

    #[inline]
    pub fn next(&self, index: u32) -> u32 {
        if index + 1 >= self.len { 0 } else { index + 1 }
    }

    /// Descriptors from `from` up to `to`; none if one of them is outside of the ring.
    #[inline]
    pub fn between(&self, from: u32, to: u32) -> u32 {
        match (from < self.len && to < self.len, to >= from) {
            (false, _) => 0,
            (true, true) => to - from,
            (true, false) => self.len - from + to,
        }
    }

    /// Reads a descriptor; none if the ring is not in the guest's memory, where words are aligned.
    #[inline]
    pub fn read(&self, memory: &GuestMemory, index: u32) -> Option<Descriptor> {
        let at = self.base.checked_add(u64::from(index) * u64::from(DESCRIPTOR))?;
        let word = |at| Some(u64::from_le(memory.atomic_u64(at)?.load(Ordering::Relaxed)));
        Some(Descriptor { at, words: [word(at)?, word(at.checked_add(8)?)?] })
    }
}

impl Descriptor {
    /// Writes the second word back, behind everything that was written before. If the memory is no
    /// longer there, nothing happens.
    #[inline]
    pub fn write_back(&self, memory: &GuestMemory, word: u64) {
        if let Some(shared) = memory.atomic_u64(self.at + 8) {
            shared.store(word.to_le(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3.2.6 and 3.4.
    #[test]
    fn distances_go_round_the_ring_and_stay_in_it() {
        let ring = Ring { base: 0, len: 8 };
        assert_eq!((ring.next(6), ring.next(7)), (7, 0));
        assert_eq!([ring.between(2, 2), ring.between(2, 5), ring.between(5, 2)], [0, 3, 5]);
        for (from, to) in [(8, 0), (0, 8), (u32::MAX, 3), (3, u32::MAX)] {
            assert_eq!(ring.between(from, to), 0);
        }
        let none = Ring { base: 0, len: 0 };
        assert_eq!((none.between(0, 0), none.next(0)), (0, 0));
    }

    #[test]
    fn a_ring_at_the_end_of_all_addresses_has_no_descriptors() {
        let ring = Ring { base: !0xf, len: 8 };
        assert_eq!(ring.read(&GuestMemory::default(), 0), None);
        assert_eq!(ring.read(&GuestMemory::default(), 1), None);
    }
}
