//! What a device sees of rings that its guest drives, in a port's memory that the guest maps.
//!
//! The guest is the client of the port: it writes `head` and sleeps by `appl_need_kick`, and the
//! switch answers it in the same memory. One descriptor wakes the port, so the device looks which
//! rings the wake-up may be for. It writes nothing while the guest has the rings.
//!
//! Between two programs of the guest it has them ([`LentRings::begin`]). Programs of netmap's find
//! in a `netmap_ring` where their ring stands; others, and the device itself while it drops frames,
//! move the CSB only. So the words of the one are brought to where the other is, or a netmap
//! program would begin out of order.
//!
//! The switch rings once for a number, also if the driver has found the frames in the meantime.
//! So the driver has to know of each wake-up that may have been for its number: it looks, and
//! stores another one. A wake-up that the device kept to itself, because the ring is empty, would
//! be the last.

use core::mem::offset_of;
use std::sync::Arc;

use crate::format::abi::{CsbAtok, CsbKtoa, NetmapRing};
use crate::format::cursor::Index;
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

    /// Makes the rings ready for a program, while none has them: `netmap_ring` says what the CSB
    /// says, and frames begin where their buffers do.
    pub fn begin(&self) {
        let (memory, port, counts) = (self.region.memory(), &self.port, self.port.counts());
        for ring in 0..self.ringers.len() {
            let is_tx = ring < usize::from(counts.tx_rings);
            let span = if is_tx { counts.tx_slots } else { counts.rx_slots };
            let word = |at| span.check(memory.read(at)).map_or(0, Index::get);
            let (atok, at) = (port.atok(ring), port.ring(ring));
            let head = word(atok + offset_of!(CsbAtok, head));
            let tail = word(port.ktoa(ring) + offset_of!(CsbKtoa, hwtail));
            for (offset, value) in [
                (offset_of!(NetmapRing, head), head),
                (offset_of!(NetmapRing, cur), head),
                (offset_of!(NetmapRing, tail), tail),
                (offset_of!(NetmapRing, turn), 0),
            ] {
                memory.write(at + offset, value);
            }
            memory.write(at + offset_of!(NetmapRing, offset_mask), 0u64);
            memory.write(atok + offset_of!(CsbAtok, sync_flags), 0u32);
        }
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
    use crate::run::{Key, copy_run};
    use crate::sync::offsets::Offsets;
    use crate::sync::{SyncRings, Synced};

    fn due(rings: &mut LentRings) -> Vec<u16> {
        rings.due().collect()
    }

    #[test]
    fn a_netmap_program_begins_in_order_after_clients_that_move_the_csb_only() {
        let mut both = port();
        let (region, layout) = (both.rx.region().clone(), *both.host.layout());
        let rings = LentRings::new(&region, &layout);
        let netmap = || SyncRings::new(&region, &layout, 0..1, 0..1);
        for _ in 0..3 {
            // Frames that are sent, and others that are dropped while no program runs.
            let _ = both.tx.submit(5);
            both.host.sync_tx();
            let key = Key::new(0, 0);
            both.host.rx[0].lock().sync();
            let run = copy_run(&mut both.host.tx[0], &mut both.host.rx[0].lock(), key, 5);
            assert_eq!(run.frames, 5);
            both.host.tx[0].publish();
            both.host.rx[0].lock().publish();
            both.tx.refresh();
            both.rx.refresh();
            let _ = both.rx.release(5);
            assert!(netmap().rxsync([0; 2]).bad, "as they are");
            rings.begin();
            assert_eq!(netmap().txsync(false), Synced { ready: true, ..Synced::default() });
            assert_eq!(netmap().rxsync([0; 2]), Synced::default());
            assert_eq!(both.host.sync_tx(), 0, "it has sent nothing");
        }
    }

    #[test]
    fn frames_do_not_begin_where_a_program_before_said() {
        let both = port();
        let (region, layout) = (both.rx.region(), both.host.layout());
        let rings = SyncRings::new(region, layout, 0..1, 0..1);
        assert_eq!(rings.set_offsets(Offsets { mask: 0xff, max: 64, initial: 0 }), Ok(64));
        LentRings::new(region, layout).begin();
        let other = Offsets { mask: 0xffff, max: 512, initial: 0 };
        assert_eq!(rings.set_offsets(other), Ok(512));
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
