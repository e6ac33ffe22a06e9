//! A port that a client left in disorder, and that the next one gets as it is.
//!
//! A client exchanges the buffers of two slots by two stores. Killed between them it leaves one
//! buffer in two slots, and the other one in none. A port that ends with its client gives all its
//! buffers back ([`crate::group::owners`]). The port of a guest is its device's and stays when the
//! program in the guest dies; the device asks for this before the next program starts.
//!
//! ```text
//!   1  slots with frames, then the others:   the first that has a buffer of the port's keeps it
//!   2  slots that have kept none:            a buffer of the port's that no slot has kept
//! ```
//!
//! A slot with a frame comes first, so that no frame gets another's bytes; one that loses its
//! buffer all the same has no frame any more. Buffers in the list of extra buffers stay there; the
//! list is the client's word, so it is followed to a bound.
//!
//! *Not for all clients.* One that exchanges buffers between two ports of its group has buffers of
//! the one in slots of the other. This takes them out.

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::layout::BufferIndex;
use crate::format::slot::SlotWord;
use crate::group::owners::Owner;
use crate::kring::krings::Krings;
use crate::kring::{RingView, RxKring, TxKring};
use crate::region::extra::LIST_MAX;
use crate::shared::Shared;

/// A ring, and the slots of it that hold frames.
struct Ring {
    view: RingView,
    first: Index,
    frames: u32,
}

/// A slot that is to get another buffer, and the length that it then says.
struct Bare {
    view: RingView,
    at: Index,
    len: u16,
}

impl Krings {
    /// Gives each slot a buffer of the port's that stands nowhere else; returns how many slots got
    /// another one. To be called on the port's worker between two turns. It looks at all slots, at
    /// two bytes for each buffer of the region, and at no more than [`LIST_MAX`] buffers of the
    /// list, which may lie anywhere: behind a longer list no buffer is known to be free, and all
    /// slots stay as they are.
    ///
    /// # Panics
    /// If the port is another worker's.
    pub fn recover(&mut self) -> u32 {
        assert!(!self.tx.is_empty(), "the port's own worker does it");
        let Some(listed) = self.listed() else { return 0 };
        let mut placed = vec![false; self.region().layout().buffers as usize];
        listed.iter().for_each(|buffer| placed[buffer.get() as usize] = true);
        let (region, owner) = (self.region().clone(), Owner::of(self.layout()));
        let owners = region.owners();
        let is_own = |buffer: BufferIndex| owners.is_empty() || owners.of(buffer) == owner;
        self.sync_tx();
        // No other worker puts frames into any ring meanwhile: that changes whose buffers are.
        let mut rx: Vec<_> = self.rx.iter_mut().map(Shared::lock).collect();
        rx.iter_mut().for_each(|rx| _ = rx.sync());
        let tx = self.tx.iter().map(TxKring::recovered);
        let rings: Vec<_> = tx.chain(rx.iter().map(|rx| rx.recovered())).collect();
        let frames = rings.iter().flat_map(|ring| ring.slots(0..ring.frames, 0));
        let free = rings.iter().flat_map(|ring| {
            let room = u16::try_from(region.stride()).expect("a stride is below 64 KiB");
            ring.slots(ring.frames..ring.view.span.slots(), room)
        });
        let bare = frames.chain(free).filter(|slot| {
            let own = region.check(slot.view.read(slot.at).buffer()).filter(|it| is_own(*it));
            own.is_none_or(|it| std::mem::replace(&mut placed[it.get() as usize], true))
        });
        let bare: Vec<_> = bare.collect();
        let mut mended = 0;
        let spare = region.buffers().filter(|it| !placed[it.get() as usize] && is_own(*it));
        for (slot, buffer) in bare.iter().zip(spare) {
            let word = SlotWord::new(buffer.get(), slot.len, slot_flag::BUF_CHANGED);
            slot.view.write(slot.at, word);
            mended += 1;
        }
        mended
    }

    /// Buffers in the port's list, as many as it can have beside those of its slots. `None`: more
    /// than the worker follows.
    fn listed(&self) -> Option<Vec<BufferIndex>> {
        let (region, owners) = (self.region(), self.region().owners());
        let all = match owners.is_empty() {
            true => region.buffers().count(),
            false => owners.count(Owner::of(self.layout())),
        };
        let extra = all.saturating_sub(self.counts().buffers() as usize);
        let most = LIST_MAX as usize;
        let list = region.extra_buffers(self.layout()).take(extra.min(most + 1));
        let listed: Vec<_> = list.collect();
        (listed.len() <= most).then_some(listed)
    }
}

impl TxKring {
    /// Frames that were not taken stay.
    fn recovered(&self) -> Ring {
        Ring { view: self.view(), first: self.next, frames: self.ready() }
    }
}

impl RxKring {
    /// Frames that were not read stay.
    fn recovered(&self) -> Ring {
        let (first, view) = (self.head, self.view());
        Ring { view, first, frames: view.span.distance(first, self.tail()) }
    }
}

impl Ring {
    /// Slots, counted from the first.
    fn slots(&self, from_first: std::ops::Range<u32>, len: u16) -> impl Iterator<Item = Bare> {
        let (view, first) = (self.view, self.first);
        from_first.map(move |i| Bare { view, at: view.span.add(first, i), len })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::audit::{Held, Member, Tally};
    use crate::fixture::{BothHalves, port, ports};
    use crate::format::cursor::RingSize;
    use crate::format::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
    use crate::region::Region;
    use crate::user::TxRing;

    /// The buffers of both rings, each once.
    fn buffers(half: &BothHalves) -> BTreeSet<u32> {
        let own = half.host.region().slot_buffers(half.host.layout());
        own.map(BufferIndex::get).collect()
    }

    /// Puts the buffer of another slot, that of a received frame if there is one, into a transmit
    /// slot, and dies.
    fn die_in_an_exchange(half: &mut BothHalves) {
        half.tx.refresh();
        let has_received = half.rx.refresh() > 0;
        let other = if has_received { half.rx.buffer_index(0) } else { half.tx.buffer_index(7) };
        half.tx.set_buffer_index(0, other);
    }

    fn receive(from: &mut BothHalves, to: &mut BothHalves, count: u32) {
        (0..count).for_each(|i| from.tx.frame(i, 60).fill(u8::try_from(i).expect("few")));
        let _ = from.tx.submit(count);
        from.host.sync_tx();
        to.host.rx[0].lock().sync();
        let key = crate::run::Key::new(0, 0);
        let run = crate::run::swap_run(&mut from.host.tx[0], &mut to.host.rx[0].lock(), key, count);
        assert_eq!(run.frames, count);
        to.host.rx[0].lock().publish();
        from.host.tx[0].publish();
    }

    #[test]
    fn a_buffer_that_was_lost_in_an_exchange_is_back_in_a_slot() {
        let mut half = port();
        let all = buffers(&half);
        assert_eq!(half.host.recover(), 0, "nothing is wrong");
        assert_eq!(buffers(&half), all);
        die_in_an_exchange(&mut half);
        assert_eq!(buffers(&half).len(), 31);
        assert_eq!(half.host.recover(), 1);
        assert_eq!(buffers(&half), all, "each stands in one slot");
    }

    #[test]
    fn a_member_has_its_own_buffers_again_and_unread_frames_as_they_were() {
        let [mut a, mut b] = ports();
        receive(&mut a, &mut b, 3);
        die_in_an_exchange(&mut b);
        // And writes nonsense, and a buffer of another member.
        let others = a.tx.buffer_index(9);
        b.tx.set_buffer_index(1, others);
        b.tx.set_buffer_index(2, u32::MAX);
        assert_eq!(b.host.recover(), 3);
        b.rx.refresh();
        assert_eq!((b.rx.frame(0), b.rx.frame(2)), (&[0; 60][..], &[2; 60][..]));
        for half in [&mut a, &mut b] {
            let mut tally = Tally::new(half.host.region());
            let held = tally.slots(&Member::new(half.host.layout(), 32));
            let wanted = Held { given: 32, owned: 32, tx: 16, rx: 16, extra: 0, wrong: 0 };
            assert_eq!(held, wanted);
        }
    }

    #[test]
    fn a_frame_whose_buffer_another_frame_has_is_none_any_more() {
        let [mut a, mut b] = ports();
        receive(&mut a, &mut b, 2);
        b.rx.refresh();
        let first = b.rx.buffer_index(0);
        b.rx.set_buffer_index(1, first);
        assert_eq!(b.host.recover(), 1);
        b.rx.refresh();
        assert_eq!((b.rx.frame(0).len(), b.rx.frame(1).len()), (60, 0));
        assert_ne!(b.rx.buffer_index(1), first);
    }

    #[test]
    fn buffers_in_a_list_stay_in_it() {
        let mut half = port();
        // A list that leads through buffers of the slots has no place for them.
        let all: Vec<_> = half.host.region().buffers().collect();
        half.host.region().format_extra(half.host.layout(), &all);
        assert_eq!(half.host.recover(), 0);
    }

    /// A port alone in its region, with so many extra buffers, all of them in its list.
    fn with_list(extra: u32) -> (Krings, TxRing) {
        let slots = RingSize::new(16).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let port = PortLayout::new(FIRST_BLOCK, counts);
        let buffers = counts.buffers() + extra;
        let layout = RegionLayout::new(port.end() - FIRST_BLOCK, 64, buffers).expect("legal");
        let (region, _) = Region::create("test", layout).expect("memory");
        region.format_port("test", &port, region.buffers(), true).expect("memory");
        let rest: Vec<_> = region.buffers().skip(counts.buffers() as usize).collect();
        region.format_extra(&port, &rest);
        (Krings::new(&region, &port), TxRing::new(&region, &port, 0))
    }

    #[test]
    #[cfg_attr(miri, ignore = "32,768 buffers take Miri minutes")]
    fn a_list_is_followed_to_a_bound_and_behind_it_no_buffer_is_free() {
        for (extra, mended) in [(LIST_MAX, 1), (LIST_MAX + 1, 0)] {
            let (mut host, mut tx) = with_list(extra);
            tx.refresh();
            let twice = tx.buffer_index(1);
            tx.set_buffer_index(0, twice);
            assert_eq!(host.recover(), mended, "{extra} extra buffers");
        }
    }
}
