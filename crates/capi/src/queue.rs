//! Rings as C sees them: a struct whose fields inline functions read, kept up to date by the calls
//! that move an index.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::Arc;

use client::{Buffer, ExtraBufs, Lost, Rx, Tx};
use ring::abi::{Slot, dir};
use ring::user::RawRing;

use crate::error::{bad, fail};
use crate::{outcome, timeout};

/// `struct uvala_queue` of uvala.h, field by field.
#[repr(C)]
#[derive(Debug)]
pub struct Queue {
    slots: *mut Slot,
    pool: *mut u8,
    num_slots: u32,
    stride: u32,
    buffers: u32,
    head: u32,
    count: u32,
    dir: u32,
    /// The `Tx` or `Rx`, by `dir`; NULL where the port has no such ring.
    ring: *mut c_void,
}

// tests/abi.c asserts the same numbers of uvala.h.
const _: () = assert!(size_of::<Queue>() == 48 && offset_of!(Queue, num_slots) == 16);
const _: () = assert!(offset_of!(Queue, count) == 32 && offset_of!(Queue, ring) == 40);

/// The ring behind a queue.
enum Half<'a> {
    Tx(&'a mut Tx),
    Rx(&'a mut Rx),
}

impl Queue {
    /// A ring that the port does not have.
    pub const NONE: Self = Self {
        slots: null_mut(),
        pool: null_mut(),
        num_slots: 0,
        stride: 0,
        buffers: 0,
        head: 0,
        count: 0,
        dir: 0,
        ring: null_mut(),
    };

    /// The view of a transmit ring.
    pub fn of_tx(tx: &mut Tx) -> Self {
        let ring = (&raw mut *tx).cast();
        let mut queue = Self { dir: u32::from(dir::TX), ring, ..Self::NONE };
        queue.update(tx.raw(), tx.owned());
        queue
    }

    /// The view of a receive ring.
    pub fn of_rx(rx: &mut Rx) -> Self {
        let ring = (&raw mut *rx).cast();
        let mut queue = Self { dir: u32::from(dir::RX), ring, ..Self::NONE };
        queue.update(rx.raw(), rx.owned());
        queue
    }

    /// Whether the port has this ring.
    pub fn exists(&self) -> bool {
        !self.ring.is_null()
    }

    fn update(&mut self, raw: RawRing, count: u32) {
        (self.slots, self.pool) = (raw.slots, raw.pool);
        (self.num_slots, self.stride, self.buffers) = (raw.num_slots, raw.stride, raw.buffers);
        (self.head, self.count) = (raw.head, count);
    }

    /// The ring. It is an object of its own: not borrowed from the queue.
    fn half<'a>(&self) -> Option<Half<'a>> {
        if !self.exists() {
            return None;
        }
        if self.dir == u32::from(dir::TX) {
            // SAFETY: set by `of_tx` to a ring that lives as long as the port; uvala.h keeps the
            // queues of a direction to one thread.
            return Some(Half::Tx(unsafe { &mut *self.ring.cast() }));
        }
        // SAFETY: as above, set by `of_rx`.
        Some(Half::Rx(unsafe { &mut *self.ring.cast() }))
    }

    fn extra_bufs(&self) -> Option<&Arc<ExtraBufs>> {
        self.half().map(|half| match half {
            Half::Tx(tx) => tx.extra_bufs(),
            Half::Rx(rx) => rx.extra_bufs(),
        })
    }

    fn look(&mut self) -> u32 {
        match self.half() {
            Some(Half::Tx(tx)) => {
                tx.space();
                self.update(tx.raw(), tx.owned());
            }
            Some(Half::Rx(rx)) => {
                rx.available();
                self.update(rx.raw(), rx.owned());
            }
            None => {}
        }
        self.count
    }
}

/// Looks how far the other side has got; returns the number of owned slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_look(queue: *mut Queue) -> u32 {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    unsafe { queue.as_mut() }.map_or(0, Queue::look)
}

/// Takes an extra buffer of the port; returns its number, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_extra_take(queue: *mut Queue) -> u32 {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let extra = unsafe { queue.as_mut() }.and_then(|queue| queue.extra_bufs());
    extra.and_then(ExtraBufs::take).map_or(0, Buffer::into_index)
}

/// Gives an extra buffer back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_extra_give(queue: *mut Queue, buffer: u32) -> c_int {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return bad("the queue is NULL") };
    let Some(extra) = queue.extra_bufs() else { return bad("the port has no such ring") };
    // SAFETY: a number that only the caller holds, by the contract in uvala.h.
    match unsafe { extra.adopt(buffer) } {
        Some(buffer) => drop(buffer),
        None => return bad("no buffer has this number"),
    }
    0
}

/// Hands the first `count` slots to the other side.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_submit(queue: *mut Queue, count: u32) -> c_int {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return bad("the queue is NULL") };
    let Some(Half::Tx(tx)) = queue.half() else { return bad("not a transmit queue") };
    if count > tx.owned() {
        return bad("more slots submitted than uvala_look found");
    }
    let result = tx.submit(count);
    queue.update(tx.raw(), tx.owned());
    done(result)
}

/// Gives the first `count` slots back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_release(queue: *mut Queue, count: u32) -> c_int {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return bad("the queue is NULL") };
    let Some(Half::Rx(rx)) = queue.half() else { return bad("not a receive queue") };
    if count > rx.owned() {
        return bad("more slots released than uvala_look found");
    }
    let result = rx.release(count);
    queue.update(rx.raw(), rx.owned());
    done(result)
}

/// A ring never has more free slots than its capacity.
pub(crate) fn check_room(tx: &Tx, count: u32) -> Result<(), c_int> {
    if count <= tx.capacity() {
        return Ok(());
    }
    Err(bad("more slots waited for than the ring ever has free: its tx_slots less one"))
}

/// Waits until `count` slots are owned (receive queues: until one is).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_queue_wait(queue: *mut Queue, count: u32, timeout_us: i64) -> c_int {
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return bad("the queue is NULL") };
    let result = match queue.half() {
        Some(Half::Tx(tx)) => match check_room(tx, count) {
            Ok(()) => tx.wait(count, timeout(timeout_us)),
            Err(code) => return code,
        },
        Some(Half::Rx(rx)) => rx.wait(timeout(timeout_us)),
        None => return bad("the port has no such ring"),
    };
    queue.look();
    outcome(result)
}

/// Moves whole frames from a receive queue to a transmit queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_forward(from: *mut Queue, to: *mut Queue, max: u32) -> c_int {
    if from == to {
        return bad("a queue cannot forward to itself");
    }
    // SAFETY: NULL or a queue of an open port, by the contract in uvala.h.
    let from = unsafe { from.as_mut() };
    // SAFETY: likewise, and another one.
    let to = unsafe { to.as_mut() };
    let (Some(from), Some(to)) = (from, to) else { return bad("a queue is NULL") };
    let (Some(Half::Rx(rx)), Some(Half::Tx(tx))) = (from.half(), to.half()) else {
        return bad("frames go from a receive queue to a transmit queue");
    };
    let result = rx.forward(tx, max);
    from.update(rx.raw(), rx.owned());
    to.update(tx.raw(), tx.owned());
    match result {
        Ok(slots) => c_int::try_from(slots).unwrap_or(c_int::MAX),
        Err(lost) => fail(&lost.into()),
    }
}

fn done(result: Result<(), Lost>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(lost) => fail(&lost.into()),
    }
}
