//! Descriptors that this process was started with, by their numbers.

#![allow(unsafe_code)] // UNSAFETY: a number becomes a descriptor.

use std::os::fd::{BorrowedFd, RawFd};

/// The one of this number, if it is open.
pub fn inherited(number: u32) -> Option<BorrowedFd<'static>> {
    let number = RawFd::try_from(number).ok()?;
    // SAFETY: whatever it is, it is only asked for its flags before we know that it is open; one
    // that this process was started with stay open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).ok().map(|_| fd)
}
