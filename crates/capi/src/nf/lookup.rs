//! Numbers that functions use, by the names of what they stand for.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::{c_char, c_int};

use client::nf::{chain_number, port_number, service_number};
use client::{Error, Port};

use crate::error::{bad, fail};
use crate::{Handle, options, whole};

/// The number of a service.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_service(port: *mut Handle, name: *const c_char) -> c_int {
    // SAFETY: an open port and a text by the contract in uvala.h.
    unsafe { number(port, name, service_number) }
}

/// The number of a chain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_chain(port: *mut Handle, name: *const c_char) -> c_int {
    // SAFETY: an open port and a text by the contract in uvala.h.
    unsafe { number(port, name, chain_number) }
}

/// The number of a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_port(port: *mut Handle, name: *const c_char) -> c_int {
    // SAFETY: an open port and a text by the contract in uvala.h.
    unsafe { number(port, name, port_number) }
}

/// # Safety
/// As for [`whole`]; `name` is NULL or zero-terminated.
unsafe fn number<N: Into<c_int>>(
    port: *mut Handle,
    name: *const c_char,
    find: impl Fn(&Port, &str) -> Result<N, Error>,
) -> c_int {
    // SAFETY: as promised.
    let (handle, name) = unsafe { (whole(port), options::text(name)) };
    match (handle, name) {
        (Err(code), _) | (_, Err(code)) => code,
        (_, Ok(None)) => bad("the name is NULL"),
        (Ok(handle), Ok(Some(name))) => {
            find(&handle.port, name).map_or_else(|error| fail(&error), N::into)
        }
    }
}
