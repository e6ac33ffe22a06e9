//! Direct hops: a pipe between two functions of a trust group, in one direction.
//!
//! Its rings lie in the group's region, so its buffers change places with those of the ports at its
//! ends. The daemon makes it and keeps both doorbells; it carries nothing itself.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::Region;
use ring::cursor::RingSize;
use ring::family::Traffic;
use ring::layout::{PortLayout, RingCounts};

use crate::group::Group;
use crate::sys::Waker;

/// Slots of the ring that frames go through, and of the one that nobody uses.
const SLOTS: [u32; 2] = [1024, 8];

/// Its rings.
#[must_use]
pub fn counts() -> RingCounts {
    let [rx_slots, tx_slots] = SLOTS.map(|slots| RingSize::new(slots).expect("legal"));
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots, rx_slots }
}

/// A hop as the daemon keeps it.
#[derive(Debug)]
pub struct Hop {
    region: Arc<Region>,
    layout: PortLayout,
    /// Of the sender, and of the receiver.
    ends: [(OwnedFd, Waker); 2],
    counted: Cell<Counted>,
}

/// What is believed of the number of frames that its clients write.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The number as it was last seen, and when.
    seen: u64,
    at: Instant,
    /// Frames that it can have been.
    frames: u64,
}

impl Counted {
    /// No frame takes less of a sender's time.
    const FASTEST: Duration = Duration::from_nanos(1);

    /// The number is `seen` now. What cannot have been carried since the last time counts as
    /// nothing: somebody has written there, and what is carried from now on counts again.
    fn look(&mut self, seen: u64, now: Instant) {
        let time = now.saturating_duration_since(self.at).as_nanos() / Self::FASTEST.as_nanos();
        let most = time.saturating_add(SLOTS[0].into());
        let more = seen.wrapping_sub(self.seen);
        if u128::from(more) <= most {
            self.frames = self.frames.saturating_add(more);
        }
        (self.seen, self.at) = (seen, now);
    }
}

impl Hop {
    /// A hop in the region of a group.
    ///
    /// # Errors
    /// No descriptors left, or the group is full; nothing is left behind.
    pub fn new(group: &mut Group) -> io::Result<Self> {
        let ends = [Waker::new()?, Waker::new()?];
        let reservation = group.join("hop", counts(), 0)?.reservation;
        if let Err(error) = reservation.build() {
            group.abandon(reservation.layout());
            return Err(error);
        }
        let counted = Cell::new(Counted { seen: 0, at: Instant::now(), frames: 0 });
        Ok(Self {
            region: reservation.region().clone(),
            layout: *reservation.layout(),
            ends,
            counted,
        })
    }

    /// Where it lies.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.layout
    }

    /// What it has carried, as far as that can be.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let (said, mut counted) = (Traffic::of(&self.region, &self.layout), self.counted.get());
        counted.look(said.frames, Instant::now());
        self.counted.set(counted);
        Traffic { frames: counted.frames, ..said }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_believed_as_far_as_they_can_have_been() {
        let begin = Instant::now();
        let mut counted = Counted { seen: 0, at: begin, frames: 0 };
        let mut look = |micros: u64, seen| {
            counted.look(seen, begin + Duration::from_micros(micros));
            counted.frames
        };
        assert_eq!([look(0, 7), look(10, 500)], [7, 500]);
        // Somebody writes what he likes, and the sender goes on from there.
        let wild = 5_663_827_747_521_260_315;
        assert_eq!([look(20, wild), look(30, wild + 9)], [500, 509]);
        // Or with its own number, which was more meanwhile.
        assert_eq!([look(40, 530), look(50, 540)], [509, 519]);
        assert_eq!([look(60, u64::MAX), look(70, 4)], [519, 524], "a number that begins anew");
        assert_eq!(look(65, 4 + 2000), 524, "more than a ring, in no time");
    }
}
