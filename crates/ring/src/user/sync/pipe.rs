//! What the sender of a pipe sees of its slots.
//!
//! The switch takes frames out of a pipe's transmit ring as soon as the receive ring at the other
//! end has room, and gives the sender other buffers for them. netmap knows one ring where there are
//! two here: to its programs a frame is pending until the receiver has released it, and some count
//! pending frames. So `tail` is held back by what stands in the receiver's ring, as long as that
//! leaves the sender a slot; a sender without any is shown all there are. No sender waits longer
//! because of it, and a pipe still holds two rings of frames.
//!
//! ```text
//!   cur          held back           hwtail
//!    │ ─── shown ───► │ ── held ───────► │
//! ```

#![allow(unsafe_code)] // UNSAFETY: words of shared memory, by raw pointers.

use core::sync::atomic::Ordering;

use crate::format::abi::{CsbAtok, CsbKtoa};
use crate::format::cursor::{Index, RingSize};
use crate::format::layout::PortLayout;
use crate::memory::Memory;

/// The receive ring at the other end.
#[derive(Debug)]
pub struct Receiver {
    atok: *const CsbAtok,
    ktoa: *const CsbKtoa,
    span: RingSize,
}

impl Receiver {
    /// Receive ring `number` of `peer`; `None` where it has no such ring, or not as many slots as
    /// the transmit ring, which has `span`. The region must outlive it.
    pub fn new(memory: &Memory, peer: &PortLayout, number: u16, span: RingSize) -> Option<Self> {
        let counts = peer.counts();
        if number >= counts.rx_rings || counts.rx_slots != span {
            return None;
        }
        let ring = usize::from(counts.tx_rings) + usize::from(number);
        Some(Self { atok: memory.at(peer.atok(ring)), ktoa: memory.at(peer.ktoa(ring)), span })
    }

    /// Frames that the receiver has not released, as far as its last sync has told.
    fn held(&self) -> u32 {
        // SAFETY: a CSB line of the region; atomics may be shared.
        let (atok, ktoa) = unsafe { (&*self.atok, &*self.ktoa) };
        let head = self.span.check(atok.head.load(Ordering::Relaxed));
        let tail = self.span.check(ktoa.hwtail.load(Ordering::Relaxed));
        head.zip(tail).map_or(0, |(head, tail)| self.span.distance(head, tail))
    }

    /// The sender's `tail`, after `seen`; it moves forwards only.
    pub fn shown(&self, seen: u32, cur: Index, hwtail: Index) -> Index {
        let free = self.span.distance(cur, hwtail);
        let before = self.span.check(seen).map_or(0, |seen| self.span.distance(cur, seen));
        let before = if before <= free { before } else { 0 };
        match free.saturating_sub(self.held()).max(before) {
            0 => hwtail,
            shown => self.span.add(cur, shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOTS: u32 = 8;

    fn receiver(atok: &CsbAtok, ktoa: &CsbKtoa) -> Receiver {
        Receiver { atok, ktoa, span: RingSize::new(SLOTS).expect("legal") }
    }

    fn index(at: u32) -> Index {
        RingSize::new(SLOTS).and_then(|span| span.check(at)).expect("small")
    }

    #[test]
    fn frames_that_the_receiver_holds_are_pending_until_they_are_all_there_is() {
        let (atok, ktoa) = (CsbAtok::default(), CsbKtoa::default());
        let receiver = receiver(&atok, &ktoa);
        ktoa.hwtail.store(3, Ordering::Relaxed);
        // Three were sent: four slots are left, and three more when the receiver has released.
        assert_eq!(receiver.shown(7, index(3), index(2)).get(), 7);
        atok.head.store(2, Ordering::Relaxed);
        assert_eq!(receiver.shown(7, index(3), index(2)).get(), 1);
        // All seven at the receiver: none would be left, so all are shown.
        ktoa.hwtail.store(1, Ordering::Relaxed);
        assert_eq!(receiver.shown(7, index(7), index(6)).get(), 6);
    }

    proptest! {
        /// `tail` goes forwards, not past hwtail, and stands at `cur` only where hwtail does.
        #[test]
        fn a_sender_has_slots_where_there_are_some(words in proptest::array::uniform5(0..SLOTS)) {
            let (atok, ktoa) = (CsbAtok::default(), CsbKtoa::default());
            let [head, tail, cur, free, before] = words;
            atok.head.store(head, Ordering::Relaxed);
            ktoa.hwtail.store(tail, Ordering::Relaxed);
            let span = RingSize::new(SLOTS).expect("legal");
            let (cur, before) = (index(cur), before.min(free));
            let seen = span.add(cur, before).get();
            let hwtail = span.add(cur, free);
            let shown = receiver(&atok, &ktoa).shown(seen, cur, hwtail);
            let shown = span.distance(cur, shown);
            prop_assert!((before..=free).contains(&shown));
            prop_assert_eq!(shown == 0, free == 0);
        }
    }
}
