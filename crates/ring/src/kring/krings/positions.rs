//! Where the switch is in the rings of a port, for another process to go on there.
//!
//! A daemon that is replaced tells the next one, which has the same region. The CSB has copies of
//! the same indexes, but there the client may have written others. What is not told is found again:
//! how far the client has published ([`TxKring::sync`]), and for which of its sleeps the doorbell
//! was rung, which at worst rings once more.
//!
//! The numbers with which the switch sleeps go on from the last ones ([`Sleeper`]): the client
//! rings once for each number, and remembers the last.

use std::sync::Arc;

use super::Krings;
use crate::format::cursor::Index;
use crate::format::doorbell::Sleeper;
use crate::format::layout::PortLayout;
use crate::kring::{Kring, RxKring, TxKring};
use crate::region::Region;

/// Where the switch is in the rings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The last number in [`Bell::need_kick`](crate::abi::Bell::need_kick).
    pub bell: u32,
    /// Transmit rings.
    pub tx: Vec<TxPosition>,
    /// Receive rings.
    pub rx: Vec<RxPosition>,
}

/// Where the switch is in a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPosition {
    /// The next slot to be taken.
    pub next: u32,
    /// How often the ring was re-synchronised.
    pub resyncs: u32,
}

/// Where the switch is in a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPosition {
    /// The first slot that is not filled.
    pub tail: u32,
    /// How far the client has returned slots.
    pub returned: u32,
    /// Slots filled so far.
    pub filled: u64,
    /// The last number in [`CsbKtoa::kern_need_kick`](crate::abi::CsbKtoa::kern_need_kick).
    pub waiter: u32,
    /// How often the ring was re-synchronised.
    pub resyncs: u32,
}

impl Krings {
    /// Where the switch is, between two turns. The port's own worker asks.
    #[must_use]
    pub fn positions(&self) -> Positions {
        Positions {
            bell: self.sleeper.number(),
            tx: self.tx.iter().map(TxKring::position).collect(),
            rx: self.rx.iter().map(|rx| rx.with(RxKring::position)).collect(),
        }
    }

    /// The switch's half of a port whose rings another process has served up to here. `None`: the
    /// port has no such rings or slots.
    #[must_use]
    pub fn resumed(region: &Arc<Region>, port: &PortLayout, at: &Positions) -> Option<Self> {
        let mut krings = Self::new(region, port);
        if (krings.tx.len(), krings.rx.len()) != (at.tx.len(), at.rx.len()) {
            return None;
        }
        krings.sleeper = Sleeper::starting_at(at.bell);
        for (tx, at) in krings.tx.iter_mut().zip(&at.tx) {
            tx.resume(at)?;
        }
        for (rx, at) in krings.rx.iter_mut().zip(&at.rx) {
            rx.lock().resume(at)?;
        }
        Some(krings)
    }
}

impl TxKring {
    fn position(&self) -> TxPosition {
        TxPosition { next: self.next.get(), resyncs: self.ring.resyncs }
    }

    fn resume(&mut self, at: &TxPosition) -> Option<()> {
        self.next = self.ring.slot(at.next)?;
        self.head = self.next;
        self.ring.resyncs = at.resyncs;
        Some(())
    }
}

impl RxKring {
    fn position(&self) -> RxPosition {
        RxPosition {
            tail: self.tail.get(),
            returned: self.returned.get(),
            filled: self.filled,
            waiter: self.waiter.number(),
            resyncs: self.ring.resyncs,
        }
    }

    /// A monitor that mirrored the ring has gone: what is returned is free.
    fn resume(&mut self, at: &RxPosition) -> Option<()> {
        self.tail = self.ring.slot(at.tail)?;
        self.returned = self.ring.slot(at.returned)?;
        self.head = self.returned;
        self.filled = at.filled;
        self.waiter = Sleeper::starting_at(at.waiter);
        self.ring.resyncs = at.resyncs;
        Some(())
    }
}

impl Kring {
    fn slot(&self, raw: u32) -> Option<Index> {
        self.span.check(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, port};
    use crate::run::{Key, swap_run};

    /// Has another process go on with the port.
    fn replaced(half: &mut BothHalves) {
        let at = half.host.positions();
        let next = Krings::resumed(half.host.region(), half.host.layout(), &at);
        half.host = next.expect("the same rings");
        assert_eq!(half.host.positions(), at);
    }

    /// Sends frames from the port to itself, of which the switch takes so many.
    fn forward(half: &mut BothHalves, taken: u32) {
        half.host.sync_tx();
        let mut rx = half.host.rx[0].lock();
        rx.sync();
        let run = swap_run(&mut half.host.tx[0], &mut rx, Key::new(0, 0), taken);
        assert_eq!(run.frames, taken);
        rx.publish();
        half.host.tx[0].publish();
    }

    #[test]
    fn frames_in_rings_come_in_order_whoever_serves_them() {
        let mut half = port();
        let (mut sent, mut got) = (0u8, 0u8);
        for _ in 0..20 {
            half.tx.refresh();
            for i in 0..3 {
                half.tx.frame(i, 60).fill(sent);
                sent += 1;
            }
            let _ = half.tx.submit(3);
            forward(&mut half, 2);
            replaced(&mut half);
            forward(&mut half, 1);
            let count = half.rx.refresh();
            for i in 0..count {
                assert_eq!(half.rx.frame(i), &[got; 60][..]);
                got += 1;
            }
            let _ = half.rx.release(count);
        }
        assert_eq!((sent, got), (60, 60));
        assert_eq!(half.host.resyncs(), 0);
    }

    #[test]
    fn numbers_of_sleeps_go_on() {
        let mut half = port();
        (0..3).for_each(|_| half.host.arm());
        let before = half.host.positions().bell;
        replaced(&mut half);
        half.host.arm();
        assert_eq!(half.host.positions().bell, before + 1);
    }

    #[test]
    fn what_the_port_does_not_have_is_refused() {
        let half = port();
        let (region, layout, good) =
            (half.host.region(), half.host.layout(), half.host.positions());
        let mut bad = [good.clone(), good.clone(), good.clone(), good];
        bad[0].tx[0].next = 16;
        bad[1].rx[0].tail = u32::MAX;
        bad[2].rx[0].returned = 16;
        bad[3].tx.push(TxPosition { next: 0, resyncs: 0 });
        assert!(bad.iter().all(|at| Krings::resumed(region, layout, at).is_none()));
    }
}
