//! What a C function counts itself.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::{c_char, c_int};

use client::nf::Metric;

use super::kept;
use crate::error::{ESYSTEM, bad, fail_as};
use crate::{Handle, options};

/// Shows what was counted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_count(
    port: *mut Handle,
    name: *const c_char,
    count: u64,
) -> c_int {
    // SAFETY: an open port and a text by the contract in uvala.h.
    unsafe { show(port, name, Metric::Count(count)) }
}

/// Shows what there is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_gauge(
    port: *mut Handle,
    name: *const c_char,
    gauge: u64,
) -> c_int {
    // SAFETY: an open port and a text by the contract in uvala.h.
    unsafe { show(port, name, Metric::Gauge(gauge)) }
}

/// # Safety
/// As for [`kept`]; `name` is NULL or zero-terminated.
unsafe fn show(port: *mut Handle, name: *const c_char, number: Metric) -> c_int {
    // SAFETY: as promised.
    let (kept, name) = unsafe { (kept(port), options::text(name)) };
    let (kept, name) = match (kept, name) {
        (Err(code), _) | (_, Err(code)) => return code,
        (_, Ok(None)) => return bad("the name is NULL"),
        (Ok(kept), Ok(Some(name))) => (kept, name),
    };
    match kept.shown.update(|numbers| numbers.put(name, number)) {
        Ok(true) => 0,
        Ok(false) => bad("a name has 1 to 64 letters, digits and '_', and a port 256 of them"),
        Err(error) => fail_as(ESYSTEM, &format!("cannot start a thread: {error}")),
    }
}
