//! `struct uvala_stop`: ends waits.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::c_int;

use client::Stop;

use crate::error::{ESYSTEM, bad, fail_as};

/// Makes one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_stop_new(stop: *mut *mut Stop) -> c_int {
    if stop.is_null() {
        return bad("the place for a stop is NULL");
    }
    match Stop::new() {
        Ok(new) => {
            // SAFETY: not NULL; a place for a pointer by the contract in uvala.h.
            unsafe { stop.write(Box::into_raw(Box::new(new))) };
            0
        }
        Err(error) => fail_as(ESYSTEM, &format!("cannot make an eventfd: {error}")),
    }
}

/// Says it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_stop(stop: *const Stop) {
    // SAFETY: NULL or made by `uvala_stop_new` and not freed, by the contract in uvala.h.
    if let Some(stop) = unsafe { stop.as_ref() } {
        stop.stop();
    }
}

/// Frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_stop_free(stop: *mut Stop) {
    if !stop.is_null() {
        // SAFETY: made by `uvala_stop_new` and not freed before, by the contract in uvala.h.
        drop(unsafe { Box::from_raw(stop) });
    }
}
