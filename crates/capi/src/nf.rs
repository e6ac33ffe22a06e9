//! Functions of a chain: a C callback for each frame.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::{c_int, c_void};

use client::nf::{Action, Frame, Made, Meta, step};

use super::{Handle, bad, fail, timeout, whole};

/// `struct uvala_nf_frame`.
#[repr(C)]
pub struct CFrame {
    data: *mut u8,
    len: u32,
    room: u32,
    meta: u64,
    target: u32,
    pad: u32,
}

/// `uvala_nf_callback`.
type Callback = unsafe extern "C" fn(*mut c_void, *mut CFrame) -> c_int;

/// Has C look at a frame.
fn ask(callback: Callback, context: *mut c_void, frame: &mut Frame<'_>) -> Action {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (len, room) = (number(frame.bytes().len()), number(frame.room()));
    let (data, meta) = (frame.bytes_mut().as_mut_ptr(), frame.meta.mark());
    let mut shown = CFrame { data, len, room, meta, target: 0, pad: 0 };
    // SAFETY: a function by the contract in uvala.h; the frame is ours until it returns.
    let action = unsafe { callback(context, &raw mut shown) };
    if shown.len != len {
        frame.resize(shown.len as usize);
    }
    frame.meta = Meta::new(shown.meta);
    match (action, u8::try_from(shown.target), u16::try_from(shown.target)) {
        (0, ..) => Action::Next,
        (2, Ok(service), _) => Action::Service(service),
        (3, _, Ok(port)) => Action::Port(port),
        // What is no action is none that passes a frame on.
        _ => Action::Drop,
    }
}

/// Handles one batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_step(
    port: *mut Handle,
    callback: Option<Callback>,
    context: *mut c_void,
    timeout_us: i64,
) -> c_int {
    let Some(callback) = callback else { return bad("the callback is NULL") };
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    let handle = match unsafe { whole(port) } {
        Ok(handle) => handle,
        Err(code) => return code,
    };
    let mut handler = |frame: &mut Frame<'_>, _: &mut Made| ask(callback, context, frame);
    let handled = step(&mut handle.port, &mut handler, timeout(timeout_us));
    handle.renew();
    match handled {
        Ok(slots) => c_int::try_from(slots).unwrap_or(c_int::MAX),
        Err(error) => fail(&error),
    }
}
