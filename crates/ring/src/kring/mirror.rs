//! Mirroring: copies of a port's frames for a monitor port.
//!
//! A monitor gets a frame at one of three moments:
//!
//! ```text
//!            sent                    received                   returned
//!   client ────────► transmit ring ────────────► receive ring ────────────► free slot
//!                  │                           │                          │
//!                  ▼ copy                      ▼ copy                     ▼ buffer, or copy
//!            ring of a monitor          ring of a monitor          ring of a monitor
//! ```
//!
//! *Copies.* The switch copies a sent frame before it takes it, and a received frame before it
//! publishes it: the mirrored port's client cannot change the frame before the monitor has it.
//!
//! *Returned slots.* In a ring that is [mirrored](RxKring::set_mirrored), slots that the client
//! returns stay in use until the monitor has got them: `head` waits at the first one that it has
//! not. Their buffers are exchanged with buffers of the monitor's slots in the same region.
//!
//! A monitor delays no port: a frame that finds no room in the monitor's ring is not mirrored. The
//! switch checks again each word that the port's client or the monitor's could have written.

use std::sync::Arc;

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::slot::SlotWord;
use crate::frame::{Frag, Frame, Pieces, Prologue};
use crate::kring::{FRAME_MIN, Kring, RxKring, TxKring};
use crate::region::Region;

impl TxKring {
    /// How far the client had published at the last [`TxKring::sync`].
    #[must_use]
    pub fn published(&self) -> Index {
        self.head
    }

    /// Whether this slot is published and not taken, or is the next to be published.
    #[must_use]
    pub fn is_ready(&self, slot: Index) -> bool {
        self.ring.span.contains(self.next, self.head, slot)
    }

    /// The first slot that has not been taken.
    #[must_use]
    pub fn untaken(&self) -> Index {
        self.next
    }

    /// Copies to `to` the frames that the client has published since `from`, taken or not; returns
    /// how many frames found no room.
    pub fn mirror(&self, from: Index, to: &mut RxKring, room: &mut Vec<Frag>) -> u64 {
        mirror(&self.ring, from, self.published(), slot_flag::TXMON, to, room)
    }

    /// Calls `frame` for each frame that the client has published since `from`, taken or not: with
    /// its pieces, which `room` holds, its length and its first slot.
    pub fn each_sent(
        &self,
        from: Index,
        room: &mut Vec<Frag>,
        frame: impl FnMut(&[Frag], u32, Index),
    ) {
        each(&self.ring, from, self.published(), room, frame);
    }

    /// Copies to `to` the frames in the slots from `from` on that were taken and not published,
    /// each with `head` in the place of its virtio-net header; returns how many frames found no
    /// room.
    pub fn mirror_taken(
        &self,
        from: Index,
        head: &[u8],
        to: &mut RxKring,
        room: &mut Vec<Frag>,
    ) -> u64 {
        let (mut at, mut missed) = (from, 0);
        let prologue = Prologue { skip: self.vnet_header_len(), ..Prologue::NONE };
        while at != self.next {
            if let Some(bytes) = gather(&self.ring, &mut at, self.next, room) {
                let frame = Frame { pieces: Pieces::Region(&self.ring.region, room), bytes };
                missed += u64::from(to.put_behind(head, frame, prologue).is_err());
            }
        }
        missed
    }
}

impl RxKring {
    /// Copies to `to` the frames that the switch has put into the ring since `from`; returns how
    /// many frames found no room.
    pub fn mirror(&self, from: Index, to: &mut RxKring, room: &mut Vec<Frag>) -> u64 {
        mirror(&self.ring, from, self.tail(), 0, to, room)
    }

    /// Calls `frame` for each frame that the switch has put into the ring since `from`, as
    /// [`TxKring::each_sent`] does.
    pub fn each_received(
        &self,
        from: Index,
        room: &mut Vec<Frag>,
        frame: impl FnMut(&[Frag], u32, Index),
    ) {
        each(&self.ring, from, self.tail(), room, frame);
    }

    /// Copies a frame that lies in no ring, with these flags; `false`: there is no room.
    #[must_use]
    pub fn put_copy(&mut self, frame: Frame<'_>, head: Prologue, flags: u16) -> bool {
        let before = self.tail();
        let is_put = self.put(frame, head).is_ok();
        self.ring.add_flags(before, self.tail(), flags);
        is_put
    }

    /// Writes a time into the slots that were filled since `from`, in the place of metadata.
    pub fn stamp(&self, from: Index, time: u64) {
        let (view, mut at) = (self.view(), from);
        while at != self.tail() {
            view.set_metadata(at, time);
            at = self.ring.span.next(at);
        }
    }

    /// Sets whether returned slots wait until a monitor has got them.
    pub fn set_mirrored(&mut self, mirrored: bool) {
        // A new monitor does not get slots that were returned before it came.
        self.sync();
        self.mirrored = mirrored;
        self.free_returned();
    }

    /// Whether returned slots wait for a monitor.
    #[inline(always)]
    #[must_use]
    pub fn is_mirrored(&self) -> bool {
        self.mirrored
    }

    /// Whether the client has returned slots that no monitor has got yet.
    pub fn has_returned(&mut self) -> bool {
        self.mirrored && {
            self.sync();
            self.head != self.returned
        }
    }

    /// Frees the slots that waited: all monitors have got them.
    pub fn free_returned(&mut self) {
        self.head = self.returned;
        self.count_room();
    }

    /// Copies the frames of the slots that wait to `to`, with `flags` besides their own; returns
    /// how many found no room.
    pub fn copy_returned(&self, to: &mut RxKring, flags: u16) -> u64 {
        self.for_returned(|word, at| {
            let piece = [self.ring.frag(at, word).ok()?];
            let pieces = Pieces::Region(self.region(), &piece);
            let frame = Frame { pieces, bytes: u32::from(word.len()) };
            let before = to.tail();
            to.put(frame, Prologue::NONE).ok()?;
            to.ring.add_flags(before, to.tail(), word.flags() & KEPT | flags);
            Some(())
        })
    }

    /// Exchanges the buffers of the slots that wait for buffers of `to`, which lies in the same
    /// region, with `flags` besides their own; returns how many found no room.
    pub fn move_returned(&self, to: &mut RxKring, flags: u16) -> u64 {
        assert!(Arc::ptr_eq(self.region(), to.region()), "buffers stay in their region");
        if self.has_offsets() || to.has_offsets() {
            return self.copy_returned(to, flags);
        }
        let owners = self.region().owners();
        self.for_returned(|word, at| {
            let frag = self.ring.frag(at, word).ok().filter(|_| to.room() > 0)?;
            let spare = to.free_buffer().ok()?;
            owners.give(spare.get(), self.owner());
            owners.give(word.buffer(), to.owner());
            self.ring.write(at, SlotWord::new(spare.get(), 0, slot_flag::BUF_CHANGED));
            let flags = word.flags() & KEPT | flags | slot_flag::BUF_CHANGED;
            to.fill(SlotWord::new(word.buffer(), frag.len(), flags));
            Some(())
        })
    }

    /// Calls `mirror` for each slot that waits and holds a frame; returns how often it said `None`.
    fn for_returned(&self, mut mirror: impl FnMut(SlotWord, Index) -> Option<()>) -> u64 {
        let (mut at, mut missed) = (self.head, 0);
        while at != self.returned {
            let word = self.ring.read(at);
            if word.len() > 0 {
                missed += u64::from(mirror(word, at).is_none());
            }
            at = self.ring.span.next(at);
        }
        missed
    }
}

/// Flags that describe the frame in any ring: more slots follow, and how many the frame has.
const KEPT: u16 = slot_flag::MOREFRAG | 0xff << slot_flag::RFRAGS_SHIFT;

/// Copies the frames in the slots from `from` to `end` to `to`; returns how many found no room.
fn mirror(
    ring: &Kring,
    from: Index,
    end: Index,
    flags: u16,
    to: &mut RxKring,
    room: &mut Vec<Frag>,
) -> u64 {
    let mut missed = 0;
    each(ring, from, end, room, |pieces, bytes, _| {
        let before = to.tail();
        missed += u64::from(put(to, &ring.region, pieces, bytes).is_none());
        to.ring.add_flags(before, to.tail(), flags);
    });
    missed
}

/// Calls `frame` for each frame in the slots from `from` to `end`: with its pieces, its length and
/// its first slot.
fn each(
    ring: &Kring,
    from: Index,
    end: Index,
    room: &mut Vec<Frag>,
    mut frame: impl FnMut(&[Frag], u32, Index),
) {
    debug_assert!(room.capacity() > 0, "a frame has one piece at least");
    let mut at = from;
    while at != end {
        let first = at;
        // A frame that cannot be gathered is dropped by the switch, too.
        if let Some(bytes) = gather(ring, &mut at, end, room) {
            frame(room, bytes, first);
        }
    }
}

/// Collects the pieces of the frame at `at`, its virtio-net header included, and moves `at` past
/// it; returns their length. `None`: the frame is not one that the switch forwards.
fn gather(ring: &Kring, at: &mut Index, end: Index, pieces: &mut Vec<Frag>) -> Option<u32> {
    pieces.clear();
    let (mut bytes, mut good) = (0, true);
    while *at != end {
        let word = ring.read(*at);
        let frag = ring.frag(*at, word).ok().filter(|_| pieces.len() < pieces.capacity());
        good &= frag.is_some();
        pieces.extend(frag);
        bytes += u32::from(word.len());
        *at = ring.span.next(*at);
        if word.flags() & slot_flag::MOREFRAG == 0 {
            return Some(bytes).filter(|bytes| good && *bytes >= u32::from(FRAME_MIN));
        }
    }
    None
}

/// Puts a copy of a frame into a ring; `None`: there is no room.
fn put(to: &mut RxKring, region: &Region, frags: &[Frag], bytes: u32) -> Option<()> {
    if let [piece] = *frags
        && to.fits(piece)
    {
        return to.put_single(region, piece, region.header(piece)).ok().map(drop);
    }
    let frame = Frame { pieces: Pieces::Region(region, frags), bytes };
    to.put(frame, Prologue::NONE).ok().map(drop)
}

impl Kring {
    /// Sets flags in the slots from `from` to `end`.
    fn add_flags(&self, from: Index, end: Index, flags: u16) {
        let mut at = from;
        while flags != 0 && at != end {
            let word = self.read(at);
            self.write(at, SlotWord::new(word.buffer(), word.len(), word.flags() | flags));
            at = self.span.next(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, ports};
    use crate::kring::run::{Key, swap_run};

    fn send(end: &mut BothHalves, bytes: &[u8]) {
        end.tx.refresh();
        for (i, &byte) in (0..).zip(bytes) {
            end.tx.frame(i, 100 + u16::from(byte)).fill(byte);
        }
        let _ = end.tx.submit(u32::try_from(bytes.len()).expect("few"));
        end.host.tx[0].sync();
    }

    /// What arrives: its filling and the flags of its slots. The slots are given back.
    fn arrived(end: &mut BothHalves) -> Vec<(u8, u16)> {
        end.host.rx[0].publish();
        let count = end.rx.refresh();
        let frame = |i| (*end.rx.frame(i).last().expect("not empty"), end.rx.flags(i));
        let seen = (0..count).map(frame).collect();
        let _ = end.rx.release(count);
        seen
    }

    /// Sends from `a` to `b`, by exchange of buffers.
    fn pass(a: &mut BothHalves, b: &mut BothHalves, bytes: &[u8]) {
        send(a, bytes);
        b.host.rx[0].sync();
        let any = Key::new(0, 0);
        let run = swap_run(&mut a.host.tx[0], &mut b.host.rx[0], any, 16);
        assert_eq!(run.frames as usize, bytes.len());
        a.host.tx[0].publish();
    }

    fn room() -> Vec<Frag> {
        Vec::with_capacity(64)
    }

    #[test]
    fn what_is_sent_is_shown_before_it_is_taken_and_once() {
        let [mut a, mut eye] = ports();
        let (a, to) = (&mut a, &mut eye.host.rx[0]);
        let from = a.host.tx[0].published();
        send(a, &[1, 2, 3]);
        to.sync();
        assert_eq!(a.host.tx[0].mirror(from, to, &mut room()), 0);
        assert_eq!(a.host.tx[0].ready(), 3);
        let from = a.host.tx[0].published();
        assert_eq!(a.host.tx[0].mirror(from, to, &mut room()), 0);
        let mon = slot_flag::TXMON;
        assert_eq!(arrived(&mut eye), [(1, mon), (2, mon), (3, mon)]);
    }

    #[test]
    fn what_is_received_is_shown_before_it_is_published_and_a_full_ring_misses_it() {
        let [mut a, mut b, mut eye] = ports();
        let from = b.host.rx[0].tail();
        pass(&mut a, &mut b, &[1, 2]);
        eye.host.rx[0].sync();
        assert_eq!(b.host.rx[0].mirror(from, &mut eye.host.rx[0], &mut room()), 0);
        assert_eq!(b.rx.refresh(), 0);
        assert_eq!(arrived(&mut eye), [(1, 0), (2, 0)]);
        assert_eq!(arrived(&mut b).len(), 2);
        let (mut from, mut missed) = (b.host.rx[0].tail(), 0);
        for _ in 0..3 {
            pass(&mut a, &mut b, &[5; 10]);
            missed += b.host.rx[0].mirror(from, &mut eye.host.rx[0], &mut room());
            from = b.host.rx[0].tail();
            assert_eq!(arrived(&mut b).len(), 10, "no port waits for the monitor");
        }
        assert_eq!(missed, 30 - 13, "what was given back is not known before a sync");
    }

    #[test]
    fn a_chain_is_shown_whole_or_not_at_all() {
        let [mut a, mut eye] = ports();
        let from = a.host.tx[0].published();
        for (i, len) in [2112, 2112, 100].into_iter().enumerate() {
            let slot = u32::try_from(i).expect("few");
            a.tx.frame(slot, len).fill(9);
            a.tx.set(slot, len, if i < 2 { slot_flag::MOREFRAG } else { 0 });
        }
        let _ = a.tx.submit(3);
        a.host.tx[0].sync();
        let to = &mut eye.host.rx[0];
        to.sync();
        assert_eq!(a.host.tx[0].mirror(from, to, &mut room()), 0);
        let (count, mon) = (3 << slot_flag::RFRAGS_SHIFT, slot_flag::TXMON);
        let more = count | mon | slot_flag::MOREFRAG;
        assert_eq!(arrived(&mut eye), [(9, more), (9, more), (9, count | mon)]);
    }

    #[test]
    fn returned_slots_are_shown_before_they_are_free_and_their_buffers_change_hands() {
        let [mut a, mut b, mut eye] = ports();
        b.host.rx[0].set_mirrored(true);
        let owned = |end: &BothHalves| end.host.region().owners().count(end.host.rx[0].owner());
        let before = [&a, &b, &eye].map(owned);
        pass(&mut a, &mut b, &[1, 2, 3]);
        assert!(!b.host.has_returned());
        let numbers = [0, 1, 2]
            .map(|i| b.host.rx[0].ring.read(b.host.rx[0].ring.span.add(Index::ZERO, i)).buffer());
        assert_eq!(arrived(&mut b).len(), 3);
        assert!(b.host.has_returned());
        assert_eq!((b.host.rx[0].sync(), b.host.rx[0].room()), (15, 12));
        let to = &mut eye.host.rx[0];
        to.sync();
        assert_eq!(b.host.rx[0].move_returned(to, 0), 0);
        b.host.rx[0].free_returned();
        assert_eq!(b.host.rx[0].room(), 15);
        assert!(!b.host.has_returned());
        to.publish();
        assert_eq!(eye.rx.refresh(), 3);
        assert_eq!([0, 1, 2].map(|i| eye.rx.buffer_index(i)), numbers);
        let changed = slot_flag::BUF_CHANGED;
        assert_eq!(arrived(&mut eye), [(1, changed), (2, changed), (3, changed)]);
        assert_eq!([&a, &b, &eye].map(owned), before);
    }

    #[test]
    fn returned_slots_are_copied_where_several_look_on() {
        let [mut a, mut b, mut eye] = ports();
        b.host.rx[0].set_mirrored(true);
        pass(&mut a, &mut b, &[7, 8]);
        arrived(&mut b);
        b.host.rx[0].sync();
        let to = &mut eye.host.rx[0];
        to.sync();
        let mon = slot_flag::TXMON;
        assert_eq!(b.host.rx[0].copy_returned(to, mon), 0);
        assert_eq!(arrived(&mut eye), [(7, mon), (8, mon)]);
        assert_eq!(b.host.rx[0].room(), 13, "they wait for the next mirror");
        b.host.rx[0].set_mirrored(false);
        assert_eq!(b.host.rx[0].room(), 15);
    }
}
