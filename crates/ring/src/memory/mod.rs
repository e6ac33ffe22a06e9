//! Mapped memory that others can write at any moment.
//!
//! A [`Memory`] is a mapping of a sealed memfd. Nothing in it is ever seen as `&[u8]` or `&T`:
//! single words go through atomics, structures are copied whole by [`Memory::read`] and
//! [`Memory::write`], payload moves by the routines of [`crate::memory::copy`]. Every access is
//! checked against the size of the mapping. The seal against shrinking is what makes that check
//! enough: memory that is mapped stays there, so no access can fault.

#![allow(unsafe_code)] // UNSAFETY: this is where raw memory is mapped and bounded.

pub mod copy;
#[cfg(miri)]
pub(crate) mod miri;
#[cfg(not(miri))]
pub(crate) mod sealed;
pub mod table;

use core::ffi::c_void;
use core::mem::{align_of, size_of};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU16;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::format::abi::Pod;
use crate::format::layout::PAGE;
#[cfg(miri)]
pub(crate) use miri as sealed;

/// Size and alignment of a huge page on x86-64, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;
/// Bytes that are committed by one call: the kernel keeps every other change to the memory of this
/// process waiting so long.
const SLICE: usize = 1 << 20;
/// Bytes that are unmapped by one call, likewise; that is much faster.
const DROP_SLICE: usize = 64 << 20;

/// So many zeros. Where they are large, what is never written is never committed.
pub(crate) fn zeros(count: usize) -> Box<[AtomicU16]> {
    // SAFETY: all zeros are one of these.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

/// Maps `size` bytes of a region, shared, as the memory of a device would be mapped: what a program
/// says of its memory as a whole, that it be locked (`mlockall`) or be in core dumps, is not meant
/// for it. Either would commit all of a region that was made large because that costs nothing.
/// The mapping is at `hint` if that is not 0 and there is room.
///
/// # Errors
/// What `mmap` says.
pub fn map_as_device(
    hint: usize,
    size: usize,
    protection: ProtFlags,
    fd: impl AsFd,
    offset: u64,
) -> rustix::io::Result<*mut c_void> {
    let hint = std::ptr::without_provenance_mut(hint);
    // SAFETY: a new mapping at an address of the kernel's choice (the hint is no more than that)
    // aliases nothing.
    let first = unsafe { rustix::mm::mmap(hint, PAGE, protection, MapFlags::SHARED, &fd, offset)? };
    // SAFETY: this is the mapping of one page that was just made.
    let base = match unsafe { grown_unlocked(first, size) } {
        // SAFETY: as above. A region of a PCI device does not grow, and the kernel never locks it.
        Err(Errno::FAULT) => unsafe {
            rustix::mm::mmap(hint, size, protection, MapFlags::SHARED, &fd, offset)?
        },
        grown => grown?,
    };
    // SAFETY: a mapping of `size` bytes; it stays as it is.
    let advised = unsafe { rustix::mm::madvise(base, size, Advice::LinuxDontDump) };
    debug_assert!(advised.is_ok(), "a mapping of a file: {advised:?}");
    Ok(base)
}

/// Makes a mapping of one page `size` bytes long, and never locked: after `mlockall(MCL_FUTURE)`
/// the kernel locks a new mapping at once, whole, but not what one grows by that is not locked.
///
/// # Safety
/// `first` is a mapping of one page that no code uses yet; it may be elsewhere afterwards.
unsafe fn grown_unlocked(first: *mut c_void, size: usize) -> rustix::io::Result<*mut c_void> {
    // SAFETY: the caller's promise.
    let grown = unsafe {
        rustix::mm::munlock(first, PAGE)
            .and_then(|()| rustix::mm::mremap(first, PAGE, size, MremapFlags::MAYMOVE))
    };
    grown.inspect_err(|_| {
        // SAFETY: no code has used it. If it cannot be unmapped, one page stays.
        let _ = unsafe { rustix::mm::munmap(first, PAGE) };
    })
}

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to no thread; all access is by atomics or by copies that assume
// that others write at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `size` bytes of `fd`, shared and writable. `fd` must be sealed against shrinking.
    ///
    /// # Errors
    /// What `mmap` says: no memory, too many mappings, `fd` not writable.
    pub fn map(fd: impl AsFd, size: usize) -> io::Result<Self> {
        Ok(Self { base: sealed::map(fd, size)?, size })
    }

    /// Commits `size` bytes at `offset` now, so that a lack of memory shows here and not later.
    ///
    /// # Errors
    /// `ENOMEM` where the memory cannot be had.
    pub fn populate(&self, offset: usize, size: usize) -> io::Result<()> {
        let end = offset + size;
        for offset in (offset..end).step_by(SLICE) {
            let size = SLICE.min(end - offset);
            let start = self.range(offset, size);
            // SAFETY: the range lies in this mapping.
            unsafe { sealed::populate(start, size)? };
        }
        Ok(())
    }

    /// Gives `size` bytes at `offset` back to the system: they are zero at the next access. Both
    /// are multiples of a page.
    pub fn decommit(&self, offset: usize, size: usize) {
        let start = self.range(offset, size);
        // SAFETY: the range lies in this mapping, whose contents others may change at any time.
        let done = unsafe { sealed::remove(start, size) };
        debug_assert!(done.is_ok(), "a writable shared mapping of a memfd: {done:?}");
    }

    /// Returns all pages to the system, slice by slice; other processes that map them read zeros.
    pub fn empty(&self) {
        for offset in (0..self.size).step_by(DROP_SLICE) {
            self.decommit(offset, DROP_SLICE.min(self.size - offset));
        }
    }

    /// Moves the small pages of the huge pages in `size` bytes at `offset` together, where the
    /// kernel can. What is not committed of these bytes will be. Both are multiples of
    /// [`HUGE_PAGE`].
    pub fn collapse(&self, offset: usize, size: usize) {
        assert!(offset.is_multiple_of(HUGE_PAGE) && size.is_multiple_of(HUGE_PAGE));
        let start = self.range(offset, size);
        // SAFETY: the range lies in this mapping; collapsing does not change its contents. After an
        // error, small pages stay.
        let _ = unsafe { libc::madvise(start.cast(), size, libc::MADV_COLLAPSE) };
    }

    /// Size of the mapping in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Address of `size` bytes at `offset`.
    ///
    /// # Panics
    /// If they do not lie in the mapping: a bug of ours, peers' numbers are bounded before.
    #[inline(always)]
    pub(crate) fn range(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset <= self.size && size <= self.size - offset, "outside of the mapping");
        // SAFETY: just checked to lie in the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Address of a `T` at `offset`.
    pub(crate) fn at<T>(&self, offset: usize) -> *mut T {
        let p = self.range(offset, size_of::<T>()).cast::<T>();
        assert!(p.is_aligned(), "offset {offset} is not aligned to {}", align_of::<T>());
        p
    }

    /// Copies a structure out.
    pub(crate) fn read<T: Pod>(&self, offset: usize) -> T {
        // SAFETY: in bounds and aligned; any bytes are a valid `T`.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Copies a structure in.
    pub(crate) fn write<T: Pod>(&self, offset: usize, value: T) {
        // SAFETY: in bounds and aligned; no reference into the mapping exists.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and its users held a reference to `self`.
        unsafe { sealed::release(self.base, self.size) };
    }
}

/// Takes a mapping away, slice by slice.
///
/// # Safety
/// The mapping is the caller's, and no code uses it any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, size: usize) {
    let unmapped = in_slices(size, |part| {
        // SAFETY: the caller's word; each part is taken away once.
        unsafe { rustix::mm::munmap(base.as_ptr().add(part.start).cast::<c_void>(), part.len()) }
    });
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

/// Calls `unmap` slice by slice. The kernel does not unmap parts of a huge page that is larger than
/// a slice: from the slice that fails on, one call takes all the rest. The memory before it may
/// belong to another mapping by then.
fn in_slices<E>(
    size: usize,
    mut unmap: impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    for offset in (0..size).step_by(DROP_SLICE) {
        if unmap(offset..size.min(offset + DROP_SLICE)).is_err() {
            return unmap(offset..size);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_unmapped_is_left_alone_when_the_rest_goes_at_once() {
        const SIZE: usize = 3 * DROP_SLICE + 1;
        for (fails_at, last) in [(None, 3), (Some(0), 0), (Some(2), 2)] {
            let mut parts = Vec::new();
            let done = in_slices(SIZE, |part| {
                let fails = fails_at.map(|slice| slice * DROP_SLICE) == Some(part.start);
                if fails && part.end < SIZE {
                    return Err(());
                }
                parts.push(part);
                Ok(())
            });
            let expected = (0..=last).map(|slice| {
                let end = if slice == last { SIZE } else { (slice + 1) * DROP_SLICE };
                slice * DROP_SLICE..end
            });
            assert_eq!((done, parts), (Ok(()), expected.collect()), "{fails_at:?}");
        }
        assert_eq!(in_slices(SIZE, |_| Err(())), Err(()));
    }
}
