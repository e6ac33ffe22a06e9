//! The log of pages that were written: how a machine moves to another host while it runs.
//!
//! The VMM copies the machine's memory, and then copies again the pages that were written
//! meanwhile. The processor does not tell it of pages that the daemon writes, so the daemon does:
//! it sets a bit for each page of 4096 bytes, from guest address 0 on, in memory that the VMM has
//! lent for this.
//!
//! | word | writers | reader | ordering |
//! |---|---|---|---|
//! | a byte, bits set | the daemon | the VMM | Release after the page / Acquire before it |
//! | a byte, cleared | the VMM, as it reads | the VMM | one exchange |
//!
//! The daemon sets a bit after each write of the page, also where it is set already: between a
//! write and a look at the bit, the VMM could take the bit and miss the write.
//!
//! Pages beyond the log's size have no bit and are not noted. The VMM may take the log's memory
//! away like any other that it lends ([`super::lost`]).

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use super::{GuestMapping, GuestMemory, GuestSlice};

/// Bytes for which a bit stands, whatever the size of the guest's pages.
const PAGE: u64 = 4096;

/// A log in use.
#[derive(Debug)]
pub struct DirtyLog {
    lent: Arc<GuestMapping>,
    /// Where the log begins in the mapping.
    offset: usize,
    bytes: usize,
}

impl DirtyLog {
    /// The log of `bytes` bytes at `offset` of a mapping; `None`: the mapping is shorter.
    #[must_use]
    pub fn new(lent: Arc<GuestMapping>, offset: usize, bytes: usize) -> Option<Self> {
        let end = offset.checked_add(bytes).filter(|end| *end <= lent.size);
        end.map(|_| Self { lent, offset, bytes })
    }

    /// Whether the VMM has taken the log's memory away.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lent.guard.is_lost()
    }

    /// Notes that `len` bytes at a guest address were written.
    pub fn mark(&self, guest: u64, len: u32) {
        let Some(more) = len.checked_sub(1) else { return };
        let (first, last) = (guest / PAGE, guest.saturating_add(more.into()) / PAGE);
        for byte in first / 8..=last / 8 {
            let low = if byte == first / 8 { first % 8 } else { 0 };
            let high = if byte == last / 8 { last % 8 } else { 7 };
            self.set(byte, (u8::MAX << low) & (u8::MAX >> (7 - high)));
        }
    }

    /// Notes that the first `bytes` bytes of these slices were written.
    pub fn mark_slices(&self, memory: &GuestMemory, slices: &[GuestSlice], mut bytes: u64) {
        for slice in slices {
            let part = u32::try_from(bytes).map_or(slice.len, |left| left.min(slice.len));
            self.mark(memory.guest_address(*slice), part);
            bytes -= u64::from(part);
            if bytes == 0 {
                break;
            }
        }
    }

    fn set(&self, byte: u64, bits: u8) {
        let inside = usize::try_from(byte).ok().filter(|byte| *byte < self.bytes);
        let Some(byte) = inside else { return };
        let place = self.lent.at(self.offset + byte, 1);
        // SAFETY: mapped as long as `lent` is; an atomic may be shared with its other writers.
        let byte = unsafe { AtomicU8::from_ptr(place) };
        byte.fetch_or(bits, Ordering::Release);
    }
}

#[cfg(all(test, not(miri)))] // Miri has neither memfds nor SIGBUS.
mod tests {
    use super::*;
    use crate::guest::Extent;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    /// A log of this many bytes behind one that is not its own.
    fn log(bytes: usize) -> (OwnedFd, DirtyLog) {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 4096).expect("ours");
        let lent = GuestMapping::map(&file, 0, 4096).expect("memory");
        (file, DirtyLog::new(lent, 1, bytes).expect("it is there"))
    }

    fn marked(file: &OwnedFd) -> Vec<u64> {
        let mut bytes = [0; 4096];
        rustix::io::pread(file, &mut bytes, 0).expect("a file");
        assert_eq!(bytes[0], 0, "before the log");
        let bit = |page: &u64| bytes[1 + usize::try_from(page / 8).unwrap()] >> (page % 8) & 1 == 1;
        (0..8 * 4095).filter(bit).collect()
    }

    #[test]
    fn what_has_no_place_in_the_log_is_not_noted() {
        let (file, log) = log(2);
        for (guest, len) in [(16 * PAGE, 1), (u64::MAX, u32::MAX), (0, 0)] {
            log.mark(guest, len);
        }
        assert_eq!(marked(&file), []);
        log.mark(15 * PAGE + 4095, 8192);
        assert_eq!(marked(&file), [15]);
        assert!(DirtyLog::new(log.lent.clone(), 1, 4096).is_none());
        assert!(DirtyLog::new(log.lent.clone(), usize::MAX, 2).is_none());
        ftruncate(&file, 0).expect("ours");
        log.mark(0, 1);
        assert!(log.is_lost());
    }

    #[test]
    fn of_spans_the_pages_that_were_written_are_noted() {
        let (file, log) = log(4095);
        let lent = log.lent.clone();
        let extent =
            |guest: u64| Extent { guest, user: guest, size: 4096, offset: 0, lent: lent.clone() };
        let memory = GuestMemory::new(vec![extent(3 * PAGE), extent(9 * PAGE)]).expect("apart");
        let mut slices = Vec::new();
        assert!(memory.slices(9 * PAGE + 5, 100, &mut slices, 9));
        assert!(memory.slices(3 * PAGE + 4000, 96, &mut slices, 9));
        log.mark_slices(&memory, &slices, 100);
        assert_eq!(marked(&file), [9]);
        log.mark_slices(&memory, &slices, 101);
        assert_eq!(marked(&file), [3, 9]);
    }

    proptest! {
        #[test]
        fn each_page_that_was_written_is_noted_and_no_other(
            guest in 0..2000 * PAGE, len in 1..100_000_u32,
        ) {
            let (file, log) = log(4095);
            log.mark(guest, len);
            let last = (guest + u64::from(len) - 1) / PAGE;
            prop_assert_eq!(marked(&file), (guest / PAGE..=last).collect::<Vec<_>>());
        }
    }
}
