//! Rings that one holder has bound: of a port, or of both sides of an interface.

use core::ops::Range;

use super::abi::dir;
use super::layout::{PortLayout, RingCounts};

/// Rings of a port that somebody has bound.
#[derive(Clone, Debug)]
pub struct HeldRings {
    /// The port.
    pub port: PortLayout,
    /// Its transmit rings that are bound.
    pub tx: Range<u16>,
    /// Its receive rings that are bound.
    pub rx: Range<u16>,
}

/// Rings of an interface that somebody has bound, on one side of it or on both.
#[derive(Clone, Debug, Default)]
pub struct HeldSides {
    /// Those of the cable, or of a port that has one side only.
    pub nic: Option<HeldRings>,
    /// Those of the host's stack.
    pub host: Option<HeldRings>,
}

impl HeldSides {
    /// Both sides, in netmap's order.
    pub fn both(&self) -> impl Iterator<Item = &Option<HeldRings>> {
        [&self.nic, &self.host].into_iter()
    }

    /// The ports whose rings they are.
    pub fn ports(&self) -> impl Iterator<Item = &PortLayout> {
        self.both().flatten().map(|lease| &lease.port)
    }
}

impl HeldRings {
    /// Rings of one side, transmit and receive. A side that is not bound counts as one pair.
    pub(crate) fn counts(side: &Option<Self>) -> [u32; 2] {
        let counts = side.as_ref().map(|lease| lease.port.counts());
        counts.map_or([1, 1], |counts| [counts.tx_rings, counts.rx_rings].map(u32::from))
    }

    /// Offsets of its rings of one direction in the region; `None` for those that are not bound.
    pub(crate) fn rings(side: &Option<Self>, direction: u16) -> Vec<Option<usize>> {
        let Some(Self { port, tx, rx }) = side else { return vec![None] };
        let RingCounts { tx_rings, rx_rings, .. } = port.counts();
        let (first, count, bound) = match direction {
            dir::TX => (0, tx_rings, tx),
            _ => (tx_rings, rx_rings, rx),
        };
        let at = |i: u16| bound.contains(&i).then(|| port.ring(usize::from(first + i)));
        (0..count).map(at).collect()
    }
}
