//! What a lender sees of rings that another party drives: a guest, to which its device passes a
//! port's memory.
//!
//! The guest is the client of the port then: it writes `head` and sleeps by `appl_need_kick`, and
//! the switch answers it in the same memory. One descriptor wakes the port, so the lender looks
//! which rings the wake-up was for. It writes nothing, and what the words say decides about
//! interrupts of that guest alone.

use core::mem::offset_of;
use std::sync::Arc;

use crate::format::abi::{CsbAtok, CsbKtoa};
use crate::format::cursor::RingSize;
use crate::format::layout::PortLayout;
use crate::region::Region;

/// The rings of a port, transmit rings first.
#[derive(Debug)]
pub struct LentRings {
    region: Arc<Region>,
    port: PortLayout,
}

impl LentRings {
    /// The rings of the port at `port`.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Self {
        Self { region: region.clone(), port: *port }
    }

    /// The region that they lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where they lie.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.port
    }

    /// Numbers of the rings whose driver sleeps although the switch has passed its wake-up point:
    /// the other half of the handshake of [`crate::doorbell`], whose wake-up has just come.
    pub fn due(&self) -> impl Iterator<Item = u16> {
        let counts = self.port.counts();
        let tx = (0..counts.tx_rings).map(move |ring| (ring, counts.tx_slots));
        let rx = (0..counts.rx_rings).map(move |ring| (counts.tx_rings + ring, counts.rx_slots));
        tx.chain(rx).filter(|(ring, span)| self.is_due(*ring, *span)).map(|(ring, _)| ring)
    }

    fn is_due(&self, ring: u16, span: RingSize) -> bool {
        let (atok, ktoa) = (self.port.atok(ring.into()), self.port.ktoa(ring.into()));
        let word = |at: usize| self.region.memory().read::<u32>(at);
        if word(atok + offset_of!(CsbAtok, appl_need_kick)) == 0 {
            return false;
        }
        let words = [
            atok + offset_of!(CsbAtok, head),
            atok + offset_of!(CsbAtok, cur),
            ktoa + offset_of!(CsbKtoa, hwtail),
        ];
        let [Some(head), Some(cur), Some(tail)] = words.map(|at| span.check(word(at))) else {
            return false;
        };
        span.distance(head, tail) > span.distance(head, cur)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::port;

    fn due(rings: &LentRings) -> Vec<u16> {
        rings.due().collect()
    }

    #[test]
    fn a_ring_is_due_once_its_driver_sleeps_and_the_switch_has_passed_its_wake_up_point() {
        let mut both = port();
        let rings = LentRings::new(both.rx.region(), both.host.layout());
        assert_eq!(due(&rings), [], "no ring asks for anything");
        assert!(both.rx.arm(1));
        assert_eq!(due(&rings), [], "there is no frame");
        let _ = both.tx.submit(10);
        assert!(both.tx.arm(12), "five slots are free");
        assert_eq!(due(&rings), []);
        both.host.sync_tx();
        let (tx, mut frags) = (&mut both.host.tx[0], Vec::new());
        let taken = (0..6).filter_map(|_| tx.take(&mut frags, 1)).count();
        tx.publish();
        assert_eq!((taken, due(&rings)), (6, vec![]), "eleven are free");
        tx.take(&mut frags, 1).expect("ten were sent");
        tx.publish();
        assert_eq!(due(&rings), [0], "twelve are");
        both.tx.disarm();
        assert_eq!(due(&rings), [], "it is awake");
    }

    #[test]
    fn words_out_of_range_are_due_for_nothing() {
        let both = port();
        let rings = LentRings::new(both.rx.region(), both.host.layout());
        for at in [both.host.layout().atok(1), both.host.layout().ktoa(1)] {
            for word in 0..3 {
                both.rx.region().memory().write(at + 4 * word, u32::MAX);
            }
            assert_eq!(due(&rings), []);
        }
    }
}
