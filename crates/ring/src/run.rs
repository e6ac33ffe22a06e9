//! Moving frames from ring to ring: the loops that the project exists for.
//!
//! A *run* is the longest prefix of published frames that lie in one plain slot each and carry the
//! same header (addresses, type, VLAN tag): what was decided for the first holds for all of them,
//! so the loop does no look-up at all. Between regions the frame is copied; inside a region the
//! two slots swap their buffers.
//!
//! What does not fit that pattern (chains, tags to insert or strip, several destinations) goes
//! frame by frame through [`RxKring::put`](crate::put).

#![allow(unsafe_code)] // UNSAFETY: copies between buffers that were bounded just before.

use std::sync::Arc;

use crate::abi::slot_flag;
use crate::copy;
use crate::cursor::Index;
use crate::kring::{RxKring, Simple, SlotWord, TxKring};

/// The header that all frames of a run share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    want: u128,
    mask: u128,
}

impl Key {
    /// Frames whose first 16 bytes equal `header` where `mask` has ones.
    #[inline]
    #[must_use]
    pub fn new(header: u128, mask: u128) -> Self {
        Self { want: header & mask, mask }
    }

    #[inline(always)]
    fn matches(self, header: u128) -> bool {
        header & self.mask == self.want
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As many frames as allowed, or nothing more is published.
    Done,
    /// The next frame has another header.
    Other,
    /// The next frame is not plain, or does not fit a slot of the destination.
    Complex,
    /// The destination is full.
    Full,
    /// The destination's client spoilt the slot; that frame is not taken.
    BadSlot,
}

/// What a run has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Frames.
    pub frames: u32,
    /// Bytes.
    pub bytes: u64,
    /// Why it is over.
    pub end: End,
}

/// Copies a run of at most `max` frames from `tx` to `rx`.
#[inline]
pub fn copy_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    let limit = rx.region().stride();
    run(tx, key, max, |_, _, frame, header| {
        if rx.room() == 0 {
            return Err(End::Full);
        }
        if u32::from(frame.len) > limit {
            return Err(End::Complex);
        }
        let to = rx.free_buffer().map_err(|_| End::BadSlot)?;
        let data = rx.region().buffer(to);
        // SAFETY: both buffers are aligned to a line, `len` fits either's stride, which is a
        // whole number of lines; two regions do not overlap.
        unsafe { copy::copy_frame(data, frame.data, header, usize::from(frame.len)) };
        rx.fill(SlotWord::new(to.get(), frame.len, 0));
        Ok(())
    })
}

/// Swaps a run of at most `max` frames from `tx` to `rx`, which lie in one region.
#[inline]
pub fn swap_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    debug_assert!(Arc::ptr_eq(tx.region(), rx.region()));
    run(tx, key, max, |tx, at, frame, _| {
        if rx.room() == 0 {
            return Err(End::Full);
        }
        let spare = rx.free_buffer().map_err(|_| End::BadSlot)?;
        tx.replace(at, spare.get());
        rx.fill(SlotWord::new(frame.buffer, frame.len, slot_flag::BUF_CHANGED));
        Ok(())
    })
}

/// Takes a run of at most `max` frames from `tx` and drops it.
#[inline]
pub fn drop_run(tx: &mut TxKring, key: Key, max: u32) -> Run {
    run(tx, key, max, |_, _, _, _| Ok(()))
}

#[inline(always)]
fn run(
    tx: &mut TxKring,
    key: Key,
    max: u32,
    mut put: impl FnMut(&TxKring, Index, Simple, u128) -> Result<(), End>,
) -> Run {
    let (span, max) = (tx.span(), max.min(tx.ready()));
    let (mut at, mut frames, mut bytes, mut end) = (tx.next_index(), 0, 0, End::Done);
    while frames < max {
        let Some(frame) = tx.simple(at) else {
            end = End::Complex;
            break;
        };
        // SAFETY: `simple` hands out aligned buffers of at least one line.
        let header = unsafe { copy::header(frame.data) };
        if !key.matches(header) {
            end = End::Other;
            break;
        }
        if let Err(why) = put(tx, at, frame, header) {
            end = why;
            break;
        }
        frames += 1;
        bytes += u64::from(frame.len);
        at = span.next(at);
    }
    tx.set_next(at);
    Run { frames, bytes, end }
}
