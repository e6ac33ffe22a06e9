//! Large tables of one process: words that are zero at first.
//!
//! What is looked up at random in more memory than a TLB has entries for waits for page tables
//! first, so the system is asked for huge pages. What is never written is never committed, in such
//! pieces.

#![allow(unsafe_code)] // UNSAFETY: memory is mapped, and seen as a slice.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::memory::HUGE_PAGE;

/// Words, from the beginning of a page on.
#[derive(Debug)]
pub struct Words {
    base: NonNull<u64>,
    count: usize,
}

// SAFETY: the mapping is this value's alone, as a vector's memory would be.
unsafe impl Send for Words {}

impl Words {
    /// So many zeros.
    ///
    /// # Panics
    /// If there is no room for so many.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let (size, protection) = (Self::size(count), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, which nobody else knows.
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

    fn size(count: usize) -> usize {
        (count * size_of::<u64>()).max(1)
    }
}

impl Deref for Words {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        // SAFETY: so many words are mapped, and only who has `self` writes to them.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl DerefMut for Words {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and `self` is had alone.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Self::size(self.count)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_zero_at_a_page_and_keep_what_is_written() {
        for count in [0, 1, 3 * HUGE_PAGE / 8 + 1] {
            let mut words = Words::new(count);
            assert_eq!((words.len(), words.as_ptr().addr() % 4096), (count, 0));
            assert!(words.iter().all(|&word| word == 0));
            words.iter_mut().zip(1..).for_each(|(word, number)| *word = number);
            assert!(words.iter().zip(1..).all(|(&word, number)| word == number));
        }
    }
}
