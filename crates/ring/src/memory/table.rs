//! A large table of words, zero at first, on huge pages where the system has some.
//!
//! What is looked up at random in more memory than a TLB has entries for waits for page tables
//! first, so the system is asked for huge pages. What is never written is never committed, in such
//! pieces.

#![allow(unsafe_code)] // UNSAFETY: memory is mapped, and seen as a slice.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::format::abi::LINE;
use crate::memory::{HUGE_PAGE, copy};

/// Words, from the beginning of a page on.
#[derive(Debug)]
pub struct HugeTable {
    base: NonNull<u64>,
    count: usize,
}

// SAFETY: the mapping is this value's alone, as a vector's memory would be.
unsafe impl Send for HugeTable {}

impl HugeTable {
    /// A table of `count` zeros.
    ///
    /// # Panics
    /// If there is no room for this many.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let (size, protection) = (Self::size(count), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, which no other code knows.
        let base = unsafe {
            let base = mmap_anonymous(core::ptr::null_mut(), size, protection, flags);
            let base = base.expect("room for a table");
            if size >= HUGE_PAGE {
                // Without huge pages it is slower.
                let _ = madvise(base, size, Advice::LinuxHugepage);
            }
            base
        };
        Self { base: NonNull::new(base.cast()).expect("no mapping is at 0"), count }
    }

    /// Has the processor fetch the line that a word is in.
    #[inline(always)]
    pub fn fetch(&self, at: usize, writes: bool) {
        copy::prefetch(self.base.as_ptr().wrapping_add(at).cast(), writes);
    }

    fn size(count: usize) -> usize {
        (count * size_of::<u64>()).max(1)
    }
}

impl Deref for HugeTable {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        // SAFETY: this many words are mapped, and only the owner of `self` writes to them.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl DerefMut for HugeTable {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and `self` is had alone.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

impl Drop for HugeTable {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no reference to it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Self::size(self.count)) };
    }
}

/// Words in a cache line.
const LINE_WORDS: usize = LINE / size_of::<u64>();

/// Which of the 16-bit lanes of a line are `lane`, a bit each, the lowest of the first word first.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub fn lanes(line: &[u64; LINE_WORDS], lane: u16) -> u32 {
    use core::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16};
    let of = |at: usize| copy::block(u128::from(line[at]) | u128::from(line[at + 1]) << 64);
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        let wanted = _mm_set1_epi16(lane.cast_signed());
        let equal = |at| _mm_cmpeq_epi16(of(at), wanted);
        let [low, high] = [0, 4].map(|at| _mm_packs_epi16(equal(at), equal(at + 2)));
        let [low, high] = [low, high].map(|bytes| _mm_movemask_epi8(bytes).cast_unsigned());
        low | high << 16
    }
}

/// Which of the 16-bit lanes of a line are `lane`, a bit each, the lowest of the first word first.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn lanes(line: &[u64; LINE_WORDS], lane: u16) -> u32 {
    let all = line.iter().flat_map(|word| [0, 16, 32, 48].map(|at| word >> at & 0xffff));
    (0..32).zip(all).fold(0, |found, (at, it)| found | u32::from(it == lane.into()) << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_found_wherever_they_are() {
        let line: [u64; LINE_WORDS] = core::array::from_fn(|word| {
            (0..4).fold(0, |all, lane| all | (word as u64 * 4 + lane + 1) << (16 * lane))
        });
        for lane in 1..=32 {
            assert_eq!(lanes(&line, lane), 1 << (lane - 1));
        }
        assert_eq!([lanes(&line, 0), lanes(&[0; LINE_WORDS], 0)], [0, u32::MAX]);
        let line = [0xffff_8000_7fff_0001; LINE_WORDS];
        let found = [1, 0x7fff, 0x8000, 0xffff].map(|lane| lanes(&line, lane));
        assert_eq!(found, [0x1111_1111, 0x2222_2222, 0x4444_4444, 0x8888_8888]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes take Miri minutes")]
    fn they_are_zero_at_a_page_and_keep_what_is_written() {
        for count in [0, 1, 3 * HUGE_PAGE / 8 + 1] {
            let mut words = HugeTable::new(count);
            assert_eq!((words.len(), words.as_ptr().addr() % 4096), (count, 0));
            assert!(words.iter().all(|&word| word == 0));
            words.iter_mut().zip(1..).for_each(|(word, number)| *word = number);
            assert!(words.iter().zip(1..).all(|(&word, number)| word == number));
        }
    }
}
