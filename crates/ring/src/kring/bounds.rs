//! Every number of a slot in the words of a ring, and numbers that name none; every length of a
//! slot: the switch takes and fills no slot that the client did not give it, and looks at no byte
//! outside of the region's buffers. The models count in whole numbers, round the ring.

use super::*;
use crate::fixture::port;
use crate::format::layout::DEFAULT_STRIDE;

const SLOTS: u32 = 16;

/// Numbers that name a slot, and numbers that name none.
fn words() -> impl Iterator<Item = u32> {
    (0..=SLOTS + 1).chain([1 << 15, 1 << 16, 1 << 31, u32::MAX - 1, u32::MAX])
}

fn indexes(span: RingSize) -> impl Iterator<Item = Index> {
    (0..SLOTS).map(move |slot| span.check(slot).expect("in range"))
}

#[test]
fn whatever_a_sender_writes_only_slots_that_it_published_are_taken() {
    let mut port = port();
    let tx = &mut port.host.tx[0];
    let (span, mut frags) = (tx.ring.span, Vec::new());
    for (next, head) in indexes(span).flat_map(|next| indexes(span).map(move |head| (next, head))) {
        for word in words() {
            (tx.next, tx.head) = (next, head);
            tx.ring.atok().head.store(word, Ordering::Relaxed);
            let published = if word < SLOTS { word } else { head.get() };
            let ready = (published + SLOTS - next.get()) % SLOTS;
            assert_eq!(tx.sync(), ready, "{next:?} {head:?} {word}");
            let frames = (0..).take_while(|_| tx.take(&mut frags, 4).is_some()).count();
            assert!(frames <= ready as usize && tx.next.get() == published);
            tx.publish();
            let words = [&tx.ring.ktoa().hwcur, &tx.ring.ktoa().hwtail];
            let words = words.map(|word| word.load(Ordering::Relaxed));
            assert_eq!(words, [published, (published + SLOTS - 1) % SLOTS]);
            frags.clear();
        }
    }
}

#[test]
fn whatever_a_receiver_writes_only_slots_that_it_returned_are_filled() {
    let mut port = port();
    let rx = &mut *port.host.rx[0].lock();
    let span = rx.ring.span;
    let places = indexes(span).flat_map(|from| indexes(span).map(move |to| (from, to)));
    for (returned, tail) in places {
        let unread = (tail.get() + SLOTS - returned.get()) % SLOTS;
        for (word, reserved) in words().flat_map(|word| [0, 1, 7, 15].map(|kept| (word, kept))) {
            (rx.returned, rx.head, rx.tail, rx.reserved) = (returned, returned, tail, reserved);
            rx.ring.atok().head.store(word, Ordering::Relaxed);
            let more = (word % SLOTS + SLOTS - returned.get()) % SLOTS;
            let is_good = word < SLOTS && more <= unread;
            let unread = if is_good { unread - more } else { unread };
            let room = (SLOTS - 1 - unread).saturating_sub(reserved);
            assert_eq!(rx.sync(), room, "{returned:?} {tail:?} {word} {reserved}");
            assert_eq!((rx.room(), rx.unread()), (room, unread));
        }
    }
}

/// Each bit of `shape` says of a slot that the frame goes on in the next.
#[test]
fn whatever_flags_slots_have_a_frame_ends_with_what_was_published() {
    const COUNT: u32 = 8;
    const PIECES: u32 = 3;
    let mut port = port();
    let tx = &mut port.host.tx[0];
    for shape in 0..1_u32 << COUNT {
        for slot in indexes(tx.ring.span).take(COUNT as usize) {
            let goes_on = shape >> slot.get() & 1 != 0;
            let flags = if goes_on { slot_flag::MOREFRAG } else { 0 };
            let buffer = tx.ring.read(slot).buffer();
            tx.ring.write(slot, SlotWord::new(buffer, 60, flags));
        }
        tx.next = Index::ZERO;
        tx.ring.atok().head.store(COUNT, Ordering::Relaxed);
        tx.sync();
        let mut frags = Vec::new();
        while tx.ready() > 0 {
            let first = tx.next.get();
            let taken = tx.take(&mut frags, PIECES as usize).expect("it is ready");
            let ends = (first..COUNT).find(|slot| shape >> slot & 1 == 0);
            let end = ends.map_or(COUNT, |last| last + 1);
            let is_whole = ends.is_some() && end - first <= PIECES;
            assert_eq!(tx.next.get(), end, "{shape:b}");
            match taken {
                Taken::Frame { bytes, .. } => assert!(is_whole && bytes == 60 * (end - first)),
                Taken::Bad(why) => assert!(!is_whole && why == BadSlot::Chain),
            }
        }
    }
}

#[test]
fn whatever_a_slot_says_a_frame_lies_in_one_buffer() {
    let port = port();
    let ring = &port.host.tx[0].ring;
    let (view, layout) = (ring.view(), ring.region.layout());
    let plain = slot_flag::BUF_CHANGED | slot_flag::REPORT;
    let flags = (0..16).map(|bit| 1 << bit).chain([0, plain, u16::MAX]);
    let edges = [0, FIRST_BUFFER - 1, FIRST_BUFFER, layout.buffers - 1, layout.buffers, u32::MAX];
    for (flags, buffer) in flags.flat_map(|flags| edges.map(|buffer| (flags, buffer))) {
        let is_ours = (FIRST_BUFFER..layout.buffers).contains(&buffer);
        for len in 0..=u16::MAX {
            let (word, fits) =
                (SlotWord::new(buffer, len, flags), u32::from(len) <= DEFAULT_STRIDE);
            let single = view.single(word).map(|frame| (frame.data, frame.len));
            let place = ring.region.pool().wrapping_add(buffer as usize * DEFAULT_STRIDE as usize);
            let is_single = is_ours && fits && len >= FRAME_MIN && flags & !plain == 0;
            assert_eq!(single, is_single.then_some((place, len)), "{:x}", word.0);
            let frag = ring.frag(Index::ZERO, word);
            let is_frag = is_ours && fits && flags & slot_flag::INDIRECT == 0;
            assert_eq!(frag.is_ok(), is_frag, "{:x}", word.0);
            assert!(
                frag.is_ok_and(|frag| frag.buffer.get() == buffer && frag.len == len) || !is_frag
            );
        }
    }
}
