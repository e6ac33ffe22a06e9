//! The daemon's own memory, as the C library manages it.

#![allow(unsafe_code)] // UNSAFETY: mallopt is in no safe wrapper that we use.

/// Bytes from which on a piece of memory has a mapping of its own.
const LARGE: libc::c_int = 128 << 10;

/// Has the C library give large pieces of memory back to the system as soon as they are freed.
/// By default it takes them from its heap once the first one was freed, and keeps the heap for the
/// sake of any small piece behind them: tables of the regions of ports that are closed.
pub fn give_large_pieces_back() {
    // SAFETY: two numbers, of which it checks the second.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    debug_assert!(set == 1, "it is a legal size");
}
