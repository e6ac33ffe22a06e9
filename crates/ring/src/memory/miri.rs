//! Regions under Miri, which knows neither memfds nor shared mappings: heap memory that everything
//! that maps the same descriptor shares. It is never given back.

#![allow(unsafe_code)] // UNSAFETY: memory that several mappings of a test share.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::format::layout::PAGE;

#[derive(Clone, Copy)]
struct Shared {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: all access is by atomics or by copies that assume that others write at the same time.
unsafe impl Send for Shared {}

/// The memory behind each descriptor, the newest of each number.
static REGIONS: Mutex<BTreeMap<RawFd, Shared>> = Mutex::new(BTreeMap::new());

/// A descriptor with `size` zeros behind it.
pub fn create(_: &str, size: usize) -> io::Result<OwnedFd> {
    let fd = OwnedFd::from(io::pipe()?.0);
    let layout = Layout::from_size_align(size, PAGE).expect("a legal size");
    // SAFETY: a region is not empty.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
    regions().insert(fd.as_raw_fd(), Shared { start, size });
    Ok(fd)
}

fn find(fd: impl AsFd) -> Shared {
    regions()[&fd.as_fd().as_raw_fd()]
}

fn regions() -> MutexGuard<'static, BTreeMap<RawFd, Shared>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the descriptor has this many bytes.
pub fn is_sealed(fd: BorrowedFd<'_>, size: usize) -> io::Result<bool> {
    Ok(find(fd).size == size)
}

/// Whether the descriptor has so many bytes or more.
pub fn is_as_large(fd: BorrowedFd<'_>, size: usize) -> io::Result<bool> {
    Ok(find(fd).size >= size)
}

/// What tells the memory from all other.
pub fn identity(fd: impl AsFd) -> io::Result<[u64; 2]> {
    Ok([0, find(fd).start.addr().get() as u64])
}

/// The memory of a descriptor.
pub fn map(fd: impl AsFd, size: usize) -> io::Result<NonNull<u8>> {
    let shared = find(fd);
    assert!(size <= shared.size, "it is as large as it was made");
    Ok(shared.start)
}

/// Nothing: all memory is there.
///
/// # Safety
/// None is needed here.
pub unsafe fn populate(_: *mut u8, _: usize) -> io::Result<()> {
    Ok(())
}

/// Makes bytes zero.
///
/// # Safety
/// The range is mapped.
pub unsafe fn remove(start: *mut u8, size: usize) -> io::Result<()> {
    // SAFETY: the caller's word.
    unsafe { start.write_bytes(0, size) };
    Ok(())
}

/// Nothing: other mappings of it may be left.
///
/// # Safety
/// None is needed here.
pub unsafe fn release(_: NonNull<u8>, _: usize) {}
