//! Direct hops: a pipe between two functions of a trust group, in one direction.
//!
//! Its rings lie in the group's region, so its buffers change places with those of the ports at its
//! ends. The daemon makes it and keeps both doorbells; it carries nothing itself.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::Region;
use ring::cursor::Span;
use ring::family::Traffic;
use ring::layout::{PortLayout, RingCounts};

use crate::group::Group;
use crate::sys::Waker;

/// Slots of the ring that frames go through, and of the one that nobody uses.
const SLOTS: [u32; 2] = [1024, 8];

/// Its rings.
#[must_use]
pub fn counts() -> RingCounts {
    let [rx_slots, tx_slots] = SLOTS.map(|slots| Span::new(slots).expect("legal"));
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots, rx_slots }
}

/// A hop as the daemon keeps it.
#[derive(Debug)]
pub struct Hop {
    region: Arc<Region>,
    layout: PortLayout,
    /// Of the sender, and of the receiver.
    ends: [(OwnedFd, Waker); 2],
}

impl Hop {
    /// A hop in the region of a group.
    ///
    /// # Errors
    /// No descriptors left, or the group is full; nothing is left behind.
    pub fn new(group: &mut Group) -> io::Result<Self> {
        let ends = [Waker::new()?, Waker::new()?];
        let plot = group.join("hop", counts(), 0)?.plot;
        if let Err(error) = plot.build() {
            group.abandon(plot.layout());
            return Err(error);
        }
        Ok(Self { region: plot.region().clone(), layout: *plot.layout(), ends })
    }

    /// Where it lies.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.layout
    }

    /// What it has carried.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic::of(&self.region, &self.layout)
    }

    /// The doorbells of one end, 0 for the sender and 1 for the receiver: the one to write to, and
    /// the one to read from.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn open(&self, end: usize) -> io::Result<[OwnedFd; 2]> {
        let (mine, other) = (&self.ends[end], &self.ends[1 - end]);
        Ok([other.1.other_end()?, mine.0.try_clone()?])
    }
}
