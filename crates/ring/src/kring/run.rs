//! Moving frames from ring to ring: the loops that the project exists for.
//!
//! A *run* is the longest prefix of published frames that lie in one plain slot each and carry the
//! same header (addresses, type, VLAN tag): what was decided for the first holds for all of them,
//! so the loop does no look-up at all. Between regions the frame is copied; inside a region the
//! two slots swap their buffers.
//!
//! What does not fit that pattern (chains, tags to insert or strip, several destinations) goes
//! frame by frame through [`RxKring::put`].

#![allow(unsafe_code)] // UNSAFETY: copies between buffers that were bounded just before.

use std::sync::Arc;

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::slot::SlotWord;
use crate::kring::{RxKring, SlotFrame, TxKring};
use crate::memory::copy::{self, Block};

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
    pub(crate) fn blocks(self) -> (Block, Block) {
        (copy::block(self.mask), copy::block(self.want))
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
    /// The next frame lies in a buffer that is not its sender's, where that matters.
    Foreign,
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

/// Moves a run of at most `max` frames from `tx` to `rx`: by swap inside a region, else by copy.
#[inline]
pub fn deliver_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    if rx.is_staged() {
        return Run { frames: 0, bytes: 0, end: End::Complex };
    }
    if Arc::ptr_eq(tx.region(), rx.region()) {
        swap_run(tx, rx, key, max)
    } else {
        copy_run(tx, rx, key, max)
    }
}

/// Copies a run of at most `max` frames from `tx` to `rx`.
#[inline(never)] // The loop needs the registers.
pub fn copy_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    let to = rx.view();
    fill_run(tx, rx, key, max, |_, frame, spare| {
        if !to.holds(frame.len) {
            return Err(End::Complex);
        }
        let data = to.buffer(spare).ok_or(End::BadSlot)?;
        // SAFETY: both buffers are aligned to a line, `len` fits either's stride, which is a
        // whole number of lines; two regions do not overlap.
        unsafe { copy::copy_frame(data, frame.data, frame.header, usize::from(frame.len)) };
        Ok(SlotWord::new(spare, frame.len, 0))
    })
}

/// Swaps a run of at most `max` frames from `tx` to `rx`, which lie in one region.
#[inline(never)] // As `copy_run`.
pub fn swap_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    debug_assert!(Arc::ptr_eq(tx.region(), rx.region()));
    let (from, sender, receiver) = (tx.view(), tx.owner(), rx.owner());
    // SAFETY: both rings keep the region alive, and they are borrowed until the run is over.
    let owners = unsafe { &*Arc::as_ptr(tx.region()) }.owners();
    fill_run(tx, rx, key, max, |at, frame, spare| {
        from.buffer(spare).ok_or(End::BadSlot)?;
        owners.give(spare, sender);
        owners.give(frame.buffer, receiver);
        from.write(at, SlotWord::new(spare, frame.len, slot_flag::BUF_CHANGED));
        Ok(SlotWord::new(frame.buffer, frame.len, slot_flag::BUF_CHANGED))
    })
}

/// Takes a run of at most `max` frames from `tx` and drops it.
#[inline]
pub fn drop_run(tx: &mut TxKring, key: Key, max: u32) -> Run {
    run(tx, key, max, |_, _| Ok(()))
}

/// A run into the free slots of `rx`: `place` gets the free slot's buffer and says what the slot
/// will hold.
#[inline(always)]
fn fill_run(
    tx: &mut TxKring,
    rx: &mut RxKring,
    key: Key,
    max: u32,
    mut place: impl FnMut(Index, Head, u32) -> Result<SlotWord, End>,
) -> Run {
    let (to, room, mut tail, mut filled) = (rx.view(), rx.room(), rx.tail(), 0);
    let run = run(tx, key, max, |at, frame| {
        if filled == room {
            return Err(End::Full);
        }
        let word = place(at, frame, to.read(tail).buffer())?;
        to.write(tail, word);
        tail = to.span.next(tail);
        filled += 1;
        Ok(())
    });
    rx.filled(tail, filled);
    if run.end == End::BadSlot {
        rx.pass_over();
    }
    run
}

/// A frame of a run: where it is, and its first bytes, read once.
#[derive(Clone, Copy)]
struct Head {
    data: *mut u8,
    buffer: u32,
    len: u16,
    header: Block,
}

#[inline(always)]
fn run(
    tx: &mut TxKring,
    key: Key,
    max: u32,
    mut put: impl FnMut(Index, Head) -> Result<(), End>,
) -> Run {
    let (from, max, (mask, want)) = (tx.view(), max.min(tx.ready()), key.blocks());
    let (mut at, mut frames, mut bytes, mut end) = (tx.next_index(), 0, 0, End::Done);
    while frames < max {
        let Some(SlotFrame { data, buffer, len }) = from.single(from.read(at)) else {
            end = End::Complex;
            break;
        };
        // SAFETY: `plain` hands out aligned buffers of at least one line.
        let header = unsafe { copy::header(data) };
        if !copy::equal(header, mask, want) {
            end = End::Other;
            break;
        }
        if let Err(why) = put(at, Head { data, buffer, len, header }) {
            end = why;
            break;
        }
        frames += 1;
        bytes += u64::from(len);
        at = from.span.next(at);
    }
    tx.set_next(at);
    Run { frames, bytes, end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{port, ports};
    use crate::user::TxRing;

    fn fill(tx: &mut TxRing, frames: u32, len: u16, header: u8) {
        for i in 0..frames {
            let data = tx.frame(i, len);
            data.fill(header);
            data[20] = u8::try_from(i).expect("few");
        }
        let _ = tx.submit(frames);
    }

    fn key(byte: u8) -> Key {
        Key::new(u128::from_ne_bytes([byte; 16]), u128::MAX)
    }

    #[test]
    fn a_run_is_copied_with_its_payload_and_ends_at_another_header() {
        let (mut a, mut b) = (port(), port());
        fill(&mut a.tx, 3, 300, 1);
        fill(&mut a.tx, 2, 60, 2);
        assert_eq!(a.host.sync_tx(), 5);
        b.host.rx[0].sync();
        let run = copy_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100);
        assert_eq!(run, Run { frames: 3, bytes: 900, end: End::Other });
        b.host.rx[0].publish();
        assert_eq!(b.rx.refresh(), 3);
        for i in 0..3 {
            assert_eq!(b.rx.frame(i).len(), 300);
            assert_eq!(u32::from(b.rx.frame(i)[20]), i);
            assert_eq!(b.rx.frame(i)[299], 1);
        }
        a.host.tx[0].publish();
        assert_eq!(a.tx.refresh(), 15 - 2);
    }

    #[test]
    fn a_full_destination_ends_the_run_without_losing_a_frame() {
        let (mut a, mut b) = (port(), port());
        for _ in 0..2 {
            fill(&mut a.tx, 10, 60, 1);
            a.host.sync_tx();
            b.host.rx[0].sync();
            copy_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100);
            a.host.tx[0].publish();
            b.host.rx[0].publish();
            a.tx.refresh();
        }
        assert_eq!((b.rx.refresh(), b.host.rx[0].room()), (15, 0));
        assert_eq!(a.host.tx[0].ready(), 5);
        let _ = b.rx.release(15);
        assert_eq!(b.host.rx[0].sync(), 15);
    }

    #[test]
    fn a_swap_exchanges_the_buffers() {
        let [mut a, mut b] = ports();
        let (sent, spare) = (a.tx.buffer_index(0), {
            fill(&mut a.tx, 1, 60, 1);
            a.host.sync_tx();
            b.host.rx[0].sync();
            swap_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100)
        });
        assert_eq!(spare.frames, 1);
        let (region, got) = (a.host.region(), a.host.tx[0].view().read(Index::ZERO).buffer());
        let owner = |buffer| region.owners().of(region.check(buffer).expect("a buffer"));
        assert_eq!([owner(sent), owner(got)], [b.host.rx[0].owner(), a.host.tx[0].owner()]);
        assert_ne!(owner(sent), owner(got));
        b.host.rx[0].publish();
        a.host.tx[0].publish();
        assert_eq!(b.rx.refresh(), 1);
        assert_eq!(b.rx.buffer_index(0), sent);
        assert_eq!(
            b.rx.frame(0)[20..60],
            [
                0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
            ]
        );
    }

    #[test]
    fn dropping_takes_only_the_run() {
        let mut a = port();
        fill(&mut a.tx, 3, 60, 1);
        fill(&mut a.tx, 2, 60, 2);
        a.host.sync_tx();
        assert_eq!(drop_run(&mut a.host.tx[0], key(1), 100).frames, 3);
        assert_eq!(a.host.tx[0].ready(), 2);
    }
}
