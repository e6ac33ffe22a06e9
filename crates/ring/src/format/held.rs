//! Rings that one holder has bound: of a port, or of both sides of an interface.

use core::ops::Range;

use super::abi::dir;
use super::layout::{PortLayout, RingCounts};

/// The rings of a port that one holder has bound.
#[derive(Clone, Debug)]
pub struct HeldRings {
    /// The port.
    pub port: PortLayout,
    /// Numbers of the transmit rings that are bound.
    pub tx: Range<u16>,
    /// Numbers of the receive rings that are bound.
    pub rx: Range<u16>,
}

/// The rings of an interface that one holder has bound, on one side of it or on both.
#[derive(Clone, Debug, Default)]
pub struct HeldSides {
    /// Rings of the interface's own side, or of a port that has one side only.
    pub nic: Option<HeldRings>,
    /// Rings of the side of the host's network stack.
    pub host: Option<HeldRings>,
}

impl HeldSides {
    /// Both sides, in netmap's order.
    pub fn both(&self) -> impl Iterator<Item = &Option<HeldRings>> {
        [&self.nic, &self.host].into_iter()
    }

    /// The ports whose rings are bound.
    pub fn ports(&self) -> impl Iterator<Item = &PortLayout> {
        self.both().flatten().map(|held| &held.port)
    }
}

impl HeldRings {
    /// How many rings one side has, transmit and receive. A side that is not bound counts as one
    /// pair.
    pub(crate) fn counts(side: &Option<Self>) -> [u32; 2] {
        let counts = side.as_ref().map(|held| held.port.counts());
        counts.map_or([1, 1], |counts| [counts.tx_rings, counts.rx_rings].map(u32::from))
    }

    /// Offsets in the region of one side's rings of one direction; `None` for each that is not
    /// bound.
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
