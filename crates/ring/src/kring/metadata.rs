//! Metadata: eight bytes that travel with a frame from slot to slot.
//!
//! A slot has a word that native ports do not use ([`Slot::ptr`](crate::abi::Slot)). Inside a chain
//! of network functions it carries what the switch and the functions tell each other about the
//! frame. The word lies beside the buffer's number, in the same 16 bytes: reading and writing it
//! costs no cache line. The meaning of its bits is not known here.
//!
//! Rings with netmap's offsets use the word for these, and have no metadata.
//!
//! [`metadata_run`] is the loop for frames between functions. Their metadata decides what is done
//! with them, so between ports of one region the switch does not touch the frames at all.

#![allow(unsafe_code)] // UNSAFETY: a word of a slot is read and written; buffers are copied.

use std::sync::Arc;

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::slot::SlotWord;
use crate::frame::Frag;
use crate::kring::run::{End, Key, Run, drop_run};
use crate::kring::{RingView, RxKring, SlotFrame, TxKring};
use crate::memory::copy::{self, Block};

impl RingView {
    /// The metadata in a slot, read once.
    #[inline(always)]
    fn metadata(&self, i: Index) -> u64 {
        // SAFETY: an index is below `span`, and that many slots are mapped.
        unsafe { (&raw const (*self.slot(i)).ptr).read_volatile() }
    }

    #[inline(always)]
    pub(crate) fn set_metadata(&self, i: Index, metadata: u64) {
        // SAFETY: as in `metadata`; no reference to a slot exists.
        unsafe { (&raw mut (*self.slot(i)).ptr).write_volatile(metadata) }
    }
}

impl TxKring {
    /// The metadata of the next frame, if that lies in one plain slot.
    #[inline]
    #[must_use]
    pub fn peek_metadata(&self) -> Option<u64> {
        if self.ready() == 0 || self.is_staged() {
            return None;
        }
        let (view, next) = (self.view(), self.next_index());
        view.single(view.read(next)).map(|_| view.metadata(next))
    }

    /// Clears the metadata of all slots that were taken since `first` was the next and are not
    /// published yet: the next frame in a slot has none unless its sender writes some. Returns the
    /// metadata of `first`.
    #[inline]
    #[must_use]
    pub fn take_metadata(&self, first: Index) -> u64 {
        if self.is_staged() {
            return 0;
        }
        let (view, end) = (self.view(), self.next_index());
        let (metadata, mut at) = (view.metadata(first), first);
        while at != end {
            if view.metadata(at) != 0 {
                view.set_metadata(at, 0);
            }
            at = view.span.next(at);
        }
        metadata
    }

    /// Whether the sender owns the piece's buffer, in a region that it shares.
    #[inline]
    #[must_use]
    pub fn owns(&self, piece: Frag) -> bool {
        self.region().owners().is(piece.buffer.get(), self.owner())
    }
}

impl RxKring {
    /// The next free slot will have this metadata; call it before the slot is filled.
    #[inline]
    pub fn set_next_metadata(&self, metadata: u64) {
        if !self.is_staged() && self.room() > 0 {
            self.view().set_metadata(self.tail(), metadata);
        }
    }
}

/// Which sides of a run are functions.
///
/// What a function sends on must be its own: a buffer that it sends twice is another's the second
/// time. So must be what it gives back, for the sender gets that where frames are swapped: a slot
/// with another's buffer is passed over. Else two would send one buffer, and the one that did
/// nothing wrong is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// The sender: its slots come back without metadata.
    pub sender: bool,
    /// The receiver.
    pub receiver: bool,
}

/// Moves frames from `tx` to `rx`, at most `max`, as long as `change` has a new metadata for theirs
/// and, where there is a `key`, they have that header. By swap inside a region, else by copy.
#[inline]
pub fn metadata_run(
    tx: &mut TxKring,
    rx: &mut RxKring,
    key: Option<Key>,
    functions: Functions,
    max: u32,
    change: impl Fn(u64) -> Option<u64>,
) -> Run {
    if rx.is_staged() || tx.is_staged() {
        return Run { frames: 0, bytes: 0, end: End::Complex };
    }
    let shared = Arc::ptr_eq(tx.region(), rx.region());
    match (key, shared) {
        (None, true) => marked::<false, true>(tx, rx, Key::new(0, 0), functions, max, change),
        (None, false) => marked::<false, false>(tx, rx, Key::new(0, 0), functions, max, change),
        (Some(key), true) => marked::<true, true>(tx, rx, key, functions, max, change),
        (Some(key), false) => marked::<true, false>(tx, rx, key, functions, max, change),
    }
}

#[inline(always)]
fn marked<const KEYED: bool, const SHARED: bool>(
    tx: &mut TxKring,
    rx: &mut RxKring,
    key: Key,
    functions: Functions,
    max: u32,
    change: impl Fn(u64) -> Option<u64>,
) -> Run {
    let (from, to, room) = (tx.view(), rx.view(), rx.room());
    let (sender, receiver, (mask, want)) = (tx.owner(), rx.owner(), key.blocks());
    // SAFETY: both rings keep their regions alive, and they are borrowed until the run is over.
    let owners = unsafe { &*Arc::as_ptr(tx.region()) }.owners();
    // Only swaps change whose a buffer is: the line of its owner is written then, and is read here
    // at no cost.
    let checks_owner = SHARED && functions.receiver;
    let (mut at, mut tail, max) = (tx.next_index(), rx.tail(), max.min(tx.ready()));
    let (mut frames, mut bytes) = (0, 0);
    let end = loop {
        if frames == max {
            break End::Done;
        }
        let Some(plain) = from.single(from.read(at)) else { break End::Complex };
        let Some(metadata) = change(from.metadata(at)) else { break End::Other };
        // SAFETY: `plain` hands out aligned buffers of at least one line.
        let header = if KEYED || !SHARED { unsafe { copy::header(plain.data) } } else { mask };
        if KEYED && !copy::equal(header, mask, want) {
            break End::Other;
        }
        if frames == room {
            break End::Full;
        }
        let spare = to.read(tail).buffer();
        if to.buffer(spare).is_none() || checks_owner && !owners.is(spare, receiver) {
            break End::BadSlot;
        }
        let word = if SHARED {
            if functions.sender && !owners.is(plain.buffer, sender) {
                break End::Foreign;
            }
            owners.give(spare, sender);
            owners.give(plain.buffer, receiver);
            from.write(at, SlotWord::new(spare, plain.len, slot_flag::BUF_CHANGED));
            Some(SlotWord::new(plain.buffer, plain.len, slot_flag::BUF_CHANGED))
        } else {
            copied(&to, spare, &plain, header)
        };
        let Some(word) = word else { break End::Complex };
        if functions.sender {
            from.set_metadata(at, 0);
        }
        to.write(tail, word);
        to.set_metadata(tail, metadata);
        (at, tail) = (from.span.next(at), to.span.next(tail));
        frames += 1;
        bytes += u64::from(plain.len);
    };
    tx.set_next(at);
    rx.filled(tail, frames);
    if end == End::BadSlot {
        rx.pass_over();
    }
    Run { frames, bytes, end }
}

/// Takes frames from `tx` and drops them: those that [`metadata_run`] would move if there were
/// room.
#[inline]
pub fn drop_by_metadata(
    tx: &mut TxKring,
    key: Option<Key>,
    from_function: bool,
    max: u32,
    is_same: impl Fn(u64) -> bool,
) -> Run {
    let (from, first, max) = (tx.view(), tx.next_index(), max.min(tx.ready()));
    let (mut at, mut count) = (first, 0);
    while count < max && is_same(from.metadata(at)) {
        (at, count) = (from.span.next(at), count + 1);
    }
    let run = drop_run(tx, key.unwrap_or(Key::new(0, 0)), count);
    let mut at = first;
    for _ in 0..if from_function { run.frames } else { 0 } {
        from.set_metadata(at, 0);
        at = from.span.next(at);
    }
    run
}

/// Copies a frame into a buffer of another region; `None` where that is too small.
#[inline(always)]
fn copied(to: &RingView, spare: u32, frame: &SlotFrame, header: Block) -> Option<SlotWord> {
    let data = to.buffer(spare).filter(|_| to.holds(frame.len))?;
    // SAFETY: both buffers are aligned to a line, `len` fits either's stride, which is a whole
    // number of lines; two regions do not overlap.
    unsafe { copy::copy_frame(data, frame.data, header, usize::from(frame.len)) };
    Some(SlotWord::new(spare, frame.len, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, port, ports};

    const BOTH: Functions = Functions { sender: true, receiver: true };

    fn send(from: &mut BothHalves, metadata: &[u64]) {
        for (i, &metadata) in (0..).zip(metadata) {
            from.tx.frame(i, 60).fill(u8::try_from(metadata).expect("small"));
            from.tx.set_metadata(i, metadata);
        }
        let _ = from.tx.submit(u32::try_from(metadata.len()).expect("few"));
        from.host.sync_tx();
    }

    fn run(from: &mut BothHalves, to: &mut BothHalves, key: Option<Key>) -> Run {
        to.host.rx[0].sync();
        let small = |metadata| (metadata < 5).then_some(metadata + 100);
        let run = metadata_run(&mut from.host.tx[0], &mut to.host.rx[0], key, BOTH, 100, small);
        to.host.rx[0].publish();
        from.host.tx[0].publish();
        run
    }

    #[test]
    fn marks_decide_and_travel_by_swap_and_by_copy() {
        let [a, b] = ports();
        for (mut a, mut b) in [(a, b), (port(), port())] {
            send(&mut a, &[1, 4, 2, 7, 3]);
            let done = run(&mut a, &mut b, None);
            assert_eq!(done, Run { frames: 3, bytes: 180, end: End::Other });
            assert_eq!(b.rx.refresh(), 3);
            let got: Vec<_> = (0..3).map(|i| (b.rx.metadata(i), b.rx.frame(i)[59])).collect();
            assert_eq!(got, [(101, 1), (104, 4), (102, 2)]);
            assert_eq!(a.host.tx[0].peek_metadata(), Some(7));
        }
    }

    #[test]
    fn a_buffer_is_sent_once_and_by_its_owner() {
        let [mut a, mut b] = ports();
        let others = b.tx.buffer_index(3);
        let first = a.tx.buffer_index(0);
        for i in 0..3 {
            a.tx.frame(i, 60).fill(1);
            a.tx.set_metadata(i, 1);
        }
        a.tx.set_buffer_index(1, first);
        a.tx.set_buffer_index(2, others);
        let _ = a.tx.submit(3);
        a.host.sync_tx();
        assert_eq!(run(&mut a, &mut b, None), Run { frames: 1, bytes: 60, end: End::Foreign });
        assert_eq!(run(&mut a, &mut b, None).end, End::Foreign, "it stays until it is dropped");
        let _ = drop_by_metadata(&mut a.host.tx[0], None, true, 1, |_| true);
        assert_eq!(run(&mut a, &mut b, None).end, End::Foreign);
    }

    #[test]
    fn a_slot_that_comes_back_with_anothers_buffer_is_passed_over() {
        let [mut a, mut b, c] = ports();
        let (region, others) = (b.host.region().clone(), c.tx.buffer_index(3));
        let [own_a, own_b] = [&a, &b].map(|it| it.host.rx[0].owner());
        b.host.rx[0].view().write(Index::ZERO, SlotWord::new(others, 0, 0));
        send(&mut a, &[1, 2]);
        let done = run(&mut a, &mut b, None);
        assert_eq!(done, Run { frames: 0, bytes: 0, end: End::BadSlot });
        assert_eq!(run(&mut a, &mut b, None).frames, 2, "the next slots are good");
        assert_eq!((b.rx.refresh(), b.rx.frame(0).len(), b.rx.buffer_index(0)), (3, 0, others));
        let count = |owner| region.owners().count(owner);
        assert_eq!([own_a, own_b].map(count), [32, 32], "what was exchanged is one for one");
        assert!(region.owners().is(others, c.host.rx[0].owner()), "it stays whose it was");
    }

    #[test]
    fn a_mark_is_for_one_frame() {
        let [mut a, mut b] = ports();
        for _ in 0..2 {
            send(&mut a, &[1; 10]);
            run(&mut a, &mut b, None);
            assert_eq!(b.rx.refresh(), 10);
            let _ = b.rx.release(10);
            a.tx.refresh();
        }
        assert!((0..10).all(|i| a.tx.metadata(i) == 0), "slots come back without");
    }

    #[test]
    fn what_has_no_room_is_dropped_as_far_as_its_marks_are_the_same() {
        let mut a = port();
        send(&mut a, &[1, 1, 1, 2]);
        let run = drop_by_metadata(&mut a.host.tx[0], None, true, 100, |metadata| metadata == 1);
        assert_eq!(run, Run { frames: 3, bytes: 180, end: End::Done });
        assert_eq!(a.host.tx[0].peek_metadata(), Some(2));
        a.host.tx[0].publish();
        a.tx.refresh();
        assert_eq!([11, 12, 13].map(|i| a.tx.metadata(i)), [0; 3], "they come back without");
    }

    #[test]
    fn a_keyed_run_ends_at_another_header() {
        let [mut a, mut b] = ports();
        send(&mut a, &[1, 1, 2]);
        let key = Key::new(u128::from_ne_bytes([1; 16]), u128::MAX);
        assert_eq!(run(&mut a, &mut b, Some(key)).frames, 2);
    }
}
