//! The system calls for a region's memory: a memfd that can neither shrink nor grow.

#![allow(unsafe_code)] // UNSAFETY: memory is mapped, committed and given back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::HUGE_PAGE;
use crate::format::layout::PAGE;

/// A sealed memfd of this size.
pub fn create(name: &str, size: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Whether this is a memfd of this size that will not shrink.
pub fn is_sealed(fd: BorrowedFd<'_>, size: usize) -> io::Result<bool> {
    let is_sealed = fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
    Ok(is_sealed && usize::try_from(fstat(fd)?.st_size) == Ok(size))
}

/// Whether this file has so many bytes or more.
pub fn is_as_large(fd: BorrowedFd<'_>, size: usize) -> io::Result<bool> {
    Ok(usize::try_from(fstat(fd)?.st_size).is_ok_and(|bytes| bytes >= size))
}

/// Device and inode.
pub fn identity(fd: impl AsFd) -> io::Result<[u64; 2]> {
    let stat = fstat(fd)?;
    Ok([stat.st_dev, stat.st_ino])
}

/// An address where `size` bytes are free now and huge pages can be mapped: they need the same
/// alignment in memory as in the file.
fn huge_page_hint(size: usize) -> io::Result<usize> {
    if size < HUGE_PAGE {
        return Ok(0);
    }
    let (room, flags) = (size + HUGE_PAGE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping that no code uses is made and taken away again.
    let free = unsafe {
        let first = mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::empty(), flags)?;
        let free = super::grown_unlocked(first, room)?;
        munmap(free, room)?;
        free
    };
    Ok(free.addr().next_multiple_of(HUGE_PAGE))
}

/// Maps `size` bytes, shared and writable.
pub fn map(fd: impl AsFd, size: usize) -> io::Result<NonNull<u8>> {
    let (hint, protection) = (huge_page_hint(size)?, ProtFlags::READ | ProtFlags::WRITE);
    let base = super::map_as_device(hint, size, protection, fd, 0)?;
    NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Commits memory.
///
/// # Safety
/// The range is mapped.
pub unsafe fn populate(start: *mut u8, size: usize) -> io::Result<()> {
    // SAFETY: the caller promises that the range is mapped; populating changes no contents.
    unsafe { Ok(madvise(start.cast(), size, Advice::LinuxPopulateWrite)?) }
}

/// Gives memory back to the system; it is zero at the next access.
///
/// # Safety
/// The range is mapped; others may change its contents at any time.
pub unsafe fn remove(start: *mut u8, size: usize) -> io::Result<()> {
    // SAFETY: the caller promises that the range is mapped.
    unsafe { Ok(madvise(start.cast(), size, Advice::LinuxRemove)?) }
}

/// Takes a mapping away.
///
/// # Safety
/// The mapping is the caller's, and no code uses it any more.
pub unsafe fn release(base: NonNull<u8>, size: usize) {
    // SAFETY: the caller promises that no code uses the mapping any more.
    unsafe { super::unmap(base, size) };
}
