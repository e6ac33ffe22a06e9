//! What a device sees of rings that its guest drives, in a port's memory that the guest maps.
//!
//! The guest is the client of the port: it writes `head` and sleeps by `appl_need_kick`, and the
//! switch answers it in the same memory. One descriptor wakes the port, so the device looks which
//! rings the wake-up may be for. It writes nothing.
//!
//! The switch rings once for a number, also if the driver has found the frames in the meantime.
//! So the driver has to know of each wake-up that may have been for its number: it looks, and
//! stores another one. A wake-up that the device kept to itself, because the ring is empty, would
//! be the last.

use core::mem::offset_of;
use std::sync::Arc;

use crate::format::abi::CsbAtok;
use crate::format::doorbell::Ringer;
use crate::format::layout::PortLayout;
use crate::region::Region;

/// The rings of a port, transmit rings first.
#[derive(Debug)]
pub struct LentRings {
    region: Arc<Region>,
    port: PortLayout,
    /// For each, what of it remembers the number that its driver was told of last.
    ringers: Vec<Ringer>,
}

impl LentRings {
    /// The rings of the port at `port`.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Self {
        let counts = port.counts();
        let rings = usize::from(counts.tx_rings) + usize::from(counts.rx_rings);
        let ringers = (0..rings).map(|_| Ringer::default()).collect();
        Self { region: region.clone(), port: *port, ringers }
    }

    /// Numbers of the rings whose driver sleeps and was not told so far, after a wake-up.
    pub fn due(&mut self) -> impl Iterator<Item = u16> {
        let Self { region, port, ringers } = self;
        (0..).zip(ringers).filter_map(|(ring, ringer)| {
            let need = port.atok(usize::from(ring)) + offset_of!(CsbAtok, appl_need_kick);
            ringer.is_first(region.memory().read(need)).then_some(ring)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::port;

    fn due(rings: &mut LentRings) -> Vec<u16> {
        rings.due().collect()
    }

    #[test]
    fn a_driver_is_told_once_for_each_sleep_whatever_is_in_its_ring() {
        let mut both = port();
        let mut rings = LentRings::new(both.rx.region(), both.host.layout());
        assert_eq!(due(&mut rings), [], "no driver sleeps");
        for _ in 0..3 {
            assert!(both.rx.arm(1));
            assert_eq!((due(&mut rings), due(&mut rings)), (vec![1], vec![]));
        }
        let _ = both.tx.submit(10);
        assert!(both.tx.arm(12), "five slots are free");
        assert_eq!(due(&mut rings), [0]);
        both.rx.disarm();
        both.tx.disarm();
        assert_eq!(due(&mut rings), [], "both are awake");
    }
}
