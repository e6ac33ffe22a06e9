//! Functions of a chain: a C callback for each frame.
//!
//! What a callback holds is copied, and its handle with it, until it is sent on. A callback may ask
//! for that about the port whose batch is being handled: so a batch borrows the port's rings, and
//! what is kept for the function ([`Kept`]) only between two calls of it.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

mod lookup;
mod metrics;
mod threads;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, take};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use client::nf::{Action, Frame, Generated, Handler, Held, Metadata, MetricsReport, send, step};
use client::{Error, FRAME_MAX, FRAME_MIN, Port, Stop};

use super::{Handle, bad, check, fail, timeout, whole};

/// `struct uvala_nf_frame`.
#[repr(C)]
pub struct CFrame {
    data: *mut u8,
    len: u32,
    room: u32,
    meta: u64,
    target: u32,
    held: u32,
}

// tests/abi.c asserts the same numbers of uvala.h.
const _: () = assert!(size_of::<CFrame>() == 32 && offset_of!(CFrame, meta) == 16);
const _: () = assert!(offset_of!(CFrame, target) == 24 && offset_of!(CFrame, held) == 28);

/// `uvala_nf_callback`.
type Callback = unsafe extern "C" fn(*mut c_void, *mut CFrame) -> c_int;
/// `uvala_nf_batch`.
type Batch = unsafe extern "C" fn(*mut c_void, u32);

/// `UVALA_NF_HELD_MAX`.
const HELD_MAX: usize = 1 << 16;

/// Handles are of one port and one frame: another port's is none here.
static HANDLES: AtomicU32 = AtomicU32::new(1);

/// What a port keeps for its function from batch to batch.
#[derive(Debug)]
pub struct Kept {
    /// What it counts itself.
    shown: MetricsReport,
    held: HashMap<u32, Held>,
    /// The handle of the next; 0: there is none yet.
    next: u32,
    /// What is to be sent behind the batch.
    generated: Generated,
    batch: Option<Batch>,
}

impl Kept {
    /// Nothing yet, for a port.
    pub fn new(port: &Port) -> Self {
        let (held, generated) = (HashMap::new(), Generated::default());
        Self { shown: MetricsReport::of(port), held, next: 0, generated, batch: None }
    }

    /// The handle that a frame would have; 0: there is no room.
    fn handle(&mut self) -> u32 {
        while self.next == 0 || self.held.contains_key(&self.next) {
            self.next = HANDLES.fetch_add(1, Ordering::Relaxed);
        }
        if self.held.len() < HELD_MAX { self.next } else { 0 }
    }

    fn hold(&mut self, frame: &Frame<'_>) {
        self.held.insert(self.next, frame.to_held());
        self.next = 0;
    }
}

/// An action by its number; what is none is `None`.
fn action(number: c_int, target: u32) -> Option<Action> {
    match number {
        0 => Some(Action::Next),
        1 => Some(Action::Drop),
        2 => u8::try_from(target).ok().map(Action::Service),
        3 => u16::try_from(target).ok().map(Action::Port),
        4 => Some(Action::Hold),
        _ => None,
    }
}

/// What a port keeps for its function.
///
/// # Safety
/// As for [`whole`]; where a batch is being handled, the caller is its callback.
unsafe fn kept<'a>(port: *mut Handle) -> Result<&'a mut Kept, c_int> {
    if port.is_null() {
        return Err(bad("the port is NULL"));
    }
    // SAFETY: as promised; a batch has no reference to this field while it calls.
    Ok(unsafe { &mut (*port).kept })
}

/// A C function as one in Rust.
struct Calls {
    /// Not NULL.
    port: *mut Handle,
    callback: Callback,
    context: *mut c_void,
}

impl Calls {
    fn kept(&mut self) -> &mut Kept {
        // SAFETY: the port of this batch; the reference ends before the program calls anything.
        unsafe { &mut (*self.port).kept }
    }

    fn ask(&mut self, frame: &mut Frame<'_>) -> Action {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (len, room) = (number(frame.bytes().len()), number(frame.room()));
        let (data, meta) = (frame.bytes_mut().as_mut_ptr(), frame.meta.word());
        let held = if frame.is_whole() { self.kept().handle() } else { 0 };
        let mut shown = CFrame { data, len, room, meta, target: 0, held };
        // SAFETY: a function by the contract in uvala.h; the frame is ours until it returns.
        let said = unsafe { (self.callback)(self.context, &raw mut shown) };
        let fits = shown.len == len || frame.resize(shown.len as usize);
        frame.meta = Metadata::new(shown.meta);
        match action(said, shown.target).filter(|_| fits).unwrap_or(Action::NONE) {
            Action::Hold if held == 0 => Action::Drop,
            Action::Hold => {
                self.kept().hold(frame);
                Action::Hold
            }
            action => action,
        }
    }
}

impl Handler for Calls {
    fn frame(&mut self, frame: &mut Frame<'_>, generated: &mut Generated) -> Action {
        let action = self.ask(frame);
        generated.append(&mut self.kept().generated);
        action
    }

    fn batch(&mut self, frames: u32, generated: &mut Generated) {
        if let Some(batch) = self.kept().batch {
            // SAFETY: a function by the contract in uvala.h.
            unsafe { batch(self.context, frames) };
            generated.append(&mut self.kept().generated);
        }
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
    // SAFETY: NULL or an open port by the contract in uvala.h.
    if let Err(code) = unsafe { check(port) } {
        return code;
    }
    // SAFETY: not NULL; the field never changes.
    if unsafe { (*port).stop.as_ref() }.is_some_and(Stop::is_said) {
        return fail(&Error::Stopped);
    }
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    let handled = unsafe { handle(port, Calls { port, callback, context }, timeout_us) };
    // SAFETY: as before, and the batch is over.
    match unsafe { whole(port) } {
        Ok(handle) => handle.renew(),
        Err(code) => return code,
    }
    match handled {
        Ok(slots) => c_int::try_from(slots).unwrap_or(c_int::MAX),
        Err(error) => fail(&error),
    }
}

/// Has a port's batch handled, to which it is lent meanwhile.
///
/// # Safety
/// An open port, used by this thread alone, that is not lent.
unsafe fn handle(port: *mut Handle, mut calls: Calls, timeout_us: i64) -> Result<u32, Error> {
    // SAFETY: as promised.
    let generated = take(unsafe { &mut (*port).kept.generated });
    // SAFETY: as promised; callbacks borrow other fields.
    let rings = unsafe {
        (*port).is_lent = true;
        &mut (*port).port
    };
    let handled =
        send(rings, generated).and_then(|()| step(rings, &mut calls, timeout(timeout_us)));
    // SAFETY: as promised; no other thread writes the field.
    unsafe { (*port).is_lent = false };
    handled
}

/// Has a function called before each batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_on_batch(port: *mut Handle, batch: Option<Batch>) -> c_int {
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    match unsafe { whole(port) } {
        Ok(handle) => {
            handle.kept.batch = batch;
            0
        }
        Err(code) => code,
    }
}

/// What is not, or not any more, held.
fn not_held(held: u32) -> c_int {
    bad(&format!("no frame of this port is held as {held}: it was sent on already, or never held"))
}

/// The bytes of a frame that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_held(port: *mut Handle, held: u32, len: *mut u32) -> *mut u8 {
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    let Ok(kept) = (unsafe { kept(port) }) else { return ptr::null_mut() };
    let Some(Held { bytes: frame, .. }) = kept.held.get_mut(&held) else {
        not_held(held);
        return ptr::null_mut();
    };
    if !len.is_null() {
        // SAFETY: not NULL; a place for a number by the contract in uvala.h.
        unsafe { len.write(u32::try_from(frame.len()).unwrap_or(u32::MAX)) };
    }
    frame.as_mut_ptr()
}

/// Sends a held frame on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_send_on(
    port: *mut Handle,
    held: u32,
    number: c_int,
    target: u32,
) -> c_int {
    let Some(action) = action(number, target).filter(|action| *action != Action::Hold) else {
        return bad("send on as UVALA_NF_NEXT, _DROP, _SERVICE or _PORT, with a number there is");
    };
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    let kept = match unsafe { kept(port) } {
        Ok(kept) => kept,
        Err(code) => return code,
    };
    match kept.held.remove(&held) {
        Some(frame) => {
            kept.generated.send_as(frame, action);
            0
        }
        None => not_held(held),
    }
}

/// Makes a frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_send(port: *mut Handle, frame: *const u8, len: usize) -> c_int {
    if frame.is_null() || !(usize::from(FRAME_MIN)..=FRAME_MAX).contains(&len) {
        return bad("the frame is NULL or has not 14 to 65553 bytes");
    }
    // SAFETY: an open port by the contract in uvala.h, used by this thread alone.
    let kept = match unsafe { kept(port) } {
        Ok(kept) => kept,
        Err(code) => return code,
    };
    // SAFETY: not NULL; `len` bytes by the contract in uvala.h.
    kept.generated.send(unsafe { std::slice::from_raw_parts(frame, len) });
    0
}
