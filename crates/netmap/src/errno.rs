//! The program's `errno`: what a function of the C library leaves behind.

#![allow(unsafe_code)] // UNSAFETY: the thread's own `errno`, through the C library.

use std::ffi::c_int;

use rustix::io::Errno;

/// The program's `errno`.
fn errno() -> *mut c_int {
    // SAFETY: every thread has one.
    unsafe { libc::__errno_location() }
}

/// The number that it is now.
#[must_use]
pub fn get_errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *errno() }
}

/// Sets it, for a function that reports an error or must leave it as it was.
pub fn set_errno(value: c_int) {
    // SAFETY: this thread's own.
    unsafe { *errno() = value }
}

/// The result of a function that fails: -1, with `error` in `errno`.
pub fn fail(error: Errno) -> c_int {
    set_errno(error.raw_os_error());
    -1
}

/// Runs `f`, which may call the C library, and gives its result as a system call does.
pub fn result(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    let before = get_errno();
    match f() {
        Ok(value) => {
            set_errno(before);
            value
        }
        Err(error) => fail(error),
    }
}
