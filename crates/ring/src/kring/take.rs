//! Frames taken one by one, for a switch that decides about each.
//!
//! ```text
//!  fetch_ahead ─► take ─► frag, header ─► … ─► swap_taken ─► publish
//!                   └──────────────────────────► untake
//! ```

use std::sync::Arc;

use super::{BadSlot, CHAIN_HEAD_MIN, FRAME_MIN, Frag, RxKring, TxKring};
use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::slot::SlotWord;
use crate::kring::metadata::Functions;
use crate::memory::copy;

/// A frame that [`TxKring::take`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A frame.
    Frame {
        /// Length of the frame.
        bytes: u32,
        /// First slot of the frame.
        slot: Index,
        /// The flags of that slot.
        flags: u16,
    },
    /// A frame that the switch cannot forward.
    Bad(BadSlot),
}

/// A frame of one piece that was taken, and is not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Single {
    /// Slot of the frame.
    pub slot: Index,
    /// Where the frame lies.
    pub piece: Frag,
    /// What its slot will say of it, if a function gets it.
    pub metadata: u64,
}

impl TxKring {
    /// Has the processor fetch the beginning of the frame `slots` slots behind the next, if there
    /// is one. Its sender's core has these lines; fetching several takes as long as fetching one.
    #[inline(always)]
    pub fn fetch_ahead(&self, slots: u32) {
        if slots < self.ready() {
            let view = self.view();
            let word = view.read(view.span.add(self.next, slots));
            if let Some(data) = view.buffer(word.buffer()) {
                copy::prefetch(data, false);
            }
        }
    }

    /// Takes the next frame of any shape: appends its pieces to `frags`, or says why it cannot be
    /// forwarded. Either way its slots are taken. `None`: nothing is ready.
    #[inline]
    pub fn take(&mut self, frags: &mut Vec<Frag>, frags_max: usize) -> Option<Taken> {
        debug_assert!(frags_max > 0);
        if self.ready() == 0 {
            return None;
        }
        let (view, slot) = (self.view(), self.next);
        let word = view.read(slot);
        match view.single(word) {
            Some(plain) if !self.is_staged() => {
                let buffer = self.ring.region.check(plain.buffer)?;
                frags.push(Frag { buffer, len: plain.len, offset: 0 });
                self.next = view.span.next(slot);
                Some(Taken::Frame { bytes: plain.len.into(), slot, flags: word.flags() })
            }
            _ => Some(self.take_any(frags, frags_max)),
        }
    }

    #[inline(never)]
    fn take_any(&mut self, frags: &mut Vec<Frag>, frags_max: usize) -> Taken {
        let (slot, start, mut bad, mut total) = (self.next, frags.len(), None, 0u32);
        let mut first_flags = None;
        loop {
            let word = self.ring.read(self.next);
            first_flags = first_flags.or(Some(word.flags()));
            let at = self.next;
            self.next = self.ring.span.next(at);
            match self.ring.frag(at, word) {
                Ok(frag) if frags.len() - start < frags_max => frags.push(frag),
                Ok(_) => bad = Some(BadSlot::Chain),
                Err(why) => bad = Some(why),
            }
            total += u32::from(word.len());
            if word.flags() & slot_flag::MOREFRAG == 0 {
                break;
            }
            if self.ready() == 0 {
                bad = Some(BadSlot::Chain);
                break;
            }
        }
        if self.ring.vnet_header_len != 0 {
            bad = bad.or(self.take_vnet_header(frags, start).err());
            total = total.saturating_sub(self.ring.vnet_header_len.into());
        }
        let head = frags.get(start).map_or(0, |first| first.len);
        let head_min = if frags.len() - start > 1 { CHAIN_HEAD_MIN } else { FRAME_MIN };
        if total < u32::from(FRAME_MIN) || head < head_min {
            bad = bad.or(Some(BadSlot::TooShort));
        }
        if let Some(why) = bad {
            frags.truncate(start);
            return Taken::Bad(why);
        }
        Taken::Frame { bytes: total, slot, flags: first_flags.unwrap_or(0) }
    }

    /// Gives back the slots from `slot` on that were taken and not published: the next take gets
    /// them again. Returns their number.
    pub fn untake(&mut self, slot: Index) -> u32 {
        let count = self.ring.span.distance(slot, self.next);
        self.next = slot;
        count
    }
}

impl RxKring {
    /// Moves frames that were taken from `tx`, a ring of the same region, by swap: up to the first
    /// that needs more care, or finds no room. Returns how many, and their bytes.
    #[inline]
    pub fn swap_taken(
        &mut self,
        tx: &TxKring,
        functions: Functions,
        frames: impl Iterator<Item = Single>,
    ) -> (u32, u64) {
        debug_assert!(Arc::ptr_eq(tx.region(), self.region()));
        if tx.is_staged() || self.is_staged() {
            return (0, 0);
        }
        let (from, to, room) = (tx.view(), self.view(), self.room());
        let (sender, receiver, owners) = (tx.owner(), self.owner(), tx.region().owners());
        let (mut tail, mut count, mut bytes) = (self.tail(), 0, 0);
        for Single { slot, piece, metadata } in frames {
            let (buffer, spare) = (piece.buffer.get(), to.read(tail).buffer());
            let is_good = to.buffer(spare).is_some()
                && (!functions.receiver || owners.is(spare, receiver))
                && (!functions.sender || owners.is(buffer, sender));
            if count == room || !is_good {
                break;
            }
            owners.give(spare, sender);
            owners.give(buffer, receiver);
            from.write(slot, SlotWord::new(spare, piece.len, slot_flag::BUF_CHANGED));
            to.write(tail, SlotWord::new(buffer, piece.len, slot_flag::BUF_CHANGED));
            if functions.receiver {
                to.set_metadata(tail, metadata);
            }
            tail = to.span.next(tail);
            (count, bytes) = (count + 1, bytes + u64::from(piece.len));
        }
        self.filled(tail, count);
        (count, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, ports};
    use crate::kring::Refused;

    const BOTH: Functions = Functions { sender: true, receiver: true };

    /// Sends frames of these first bytes, and takes them.
    fn sent(from: &mut BothHalves, bytes: impl ExactSizeIterator<Item = u8>) -> Vec<Single> {
        let count = u32::try_from(bytes.len()).expect("few");
        from.tx.refresh();
        (0..).zip(bytes).for_each(|(i, byte)| from.tx.frame(i, 60).fill(byte));
        let _ = from.tx.submit(count);
        taken(from)
    }

    fn taken(from: &mut BothHalves) -> Vec<Single> {
        from.host.sync_tx();
        let (tx, mut frags, mut all) = (&mut from.host.tx[0], Vec::new(), Vec::new());
        (0..99).for_each(|slots| tx.fetch_ahead(slots));
        while let Some(taken) = tx.take(&mut frags, 1) {
            if let Taken::Frame { slot, bytes: 60, .. } = taken {
                all.push(Single { slot, piece: *frags.last().expect("one"), metadata: 7 });
            }
        }
        all
    }

    fn swap(a: &mut BothHalves, b: &mut BothHalves, frames: &[Single]) -> (u32, u64) {
        let rx = &mut b.host.rx[0];
        rx.sync();
        let done = rx.swap_taken(&a.host.tx[0], BOTH, frames.iter().copied());
        rx.publish();
        done
    }

    /// The first bytes of what has arrived, and the metadata.
    fn received(at: &mut BothHalves) -> Vec<(u8, u64)> {
        let count = at.rx.refresh();
        let got = (0..count).map(|i| (at.rx.frame(i)[0], at.rx.metadata(i))).collect();
        let _ = at.rx.release(count);
        got
    }

    #[test]
    fn frames_for_several_are_swapped_in_order_and_no_buffer_is_lost() {
        let [mut a, mut b, mut c] = ports();
        let owners = [&a, &b, &c].map(|port| port.host.rx[0].owner());
        for _ in 0..5 {
            let all = sent(&mut a, 0..10);
            let (odd, even): (Vec<_>, Vec<_>) =
                (0..).zip(all).partition(|(number, _): &(u8, _)| number % 2 == 1);
            for (to, list) in [(&mut b, &odd), (&mut c, &even)] {
                let frames: Vec<_> = list.iter().map(|(_, frame)| *frame).collect();
                assert_eq!(swap(&mut a, to, &frames), (5, 300));
                let expected: Vec<_> = list.iter().map(|(number, _)| (*number, 7)).collect();
                assert_eq!(received(to), expected);
            }
            a.host.tx[0].publish();
            let owners = owners.map(|owner| a.host.region().owners().count(owner));
            assert_eq!(owners, [32; 3]);
        }
    }

    #[test]
    fn a_full_ring_takes_as_many_as_it_has_room_for() {
        let [mut a, mut b] = ports();
        for expected in [10, 5, 0] {
            let frames = sent(&mut a, 0..10);
            assert_eq!(swap(&mut a, &mut b, &frames).0, expected);
            a.host.tx[0].publish();
        }
        assert_eq!(received(&mut b).len(), 15);
    }

    #[test]
    fn a_frame_in_anothers_buffer_and_a_slot_with_one_end_it() {
        let [mut a, mut b, c] = ports();
        let others = c.tx.buffer_index(3);
        (0..3).for_each(|i| a.tx.frame(i, 60).fill(1));
        a.tx.set_buffer_index(1, others);
        a.tx.set(1, 60, 0);
        let _ = a.tx.submit(3);
        let frames = taken(&mut a);
        assert_eq!(frames.len(), 3);
        assert_eq!(swap(&mut a, &mut b, &frames).0, 1, "the second is not its sender's");
        a.host.tx[0].publish();
        b.host.rx[0].view().write(b.host.rx[0].tail(), SlotWord::new(others, 0, 0));
        let frames = sent(&mut a, 1..3);
        assert_eq!(swap(&mut a, &mut b, &frames).0, 0, "what it gives for it is another's");
        b.host.rx[0].view().write(b.host.rx[0].tail(), SlotWord::new(u32::MAX, 0, 0));
        assert_eq!(swap(&mut a, &mut b, &frames).0, 0, "or no buffer's");
        let piece = frames[0].piece;
        let rx = &mut b.host.rx[0];
        let put = rx.put_swapped(&a.host.tx[0], frames[0].slot, piece, true);
        assert_eq!(put, Err(Refused::BadSlot), "a put of this frame alone skips that slot");
        assert_eq!(swap(&mut a, &mut b, &frames).0, 2);
    }
}
