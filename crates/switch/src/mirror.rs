//! Monitors: rings that see what passes a port of the switch.
//!
//! A monitor is no member of the switch: nothing is decided about it, and what its client sends
//! goes nowhere. A port that is looked at keeps a `Watch`, which says who sees what of it; for
//! all others there is one branch in each turn and one in each run.
//!
//! ```text
//!   port ── Watch ─┬─ sent ────┐
//!                  ├─ received ├──► Monitor: rings, whom to wake
//!                  └─ returned ┘
//! ```
//!
//! A monitor takes what it can: nobody waits for it, and what finds no room in it is not counted as
//! dropped, for it has been delivered to whom it was meant for.

use std::ops::Range;
use std::sync::Arc;

use ring::abi::slot_flag;
use ring::cursor::Index;
use ring::doorbell::store_load_fence;
use ring::frame::Frag;
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;

use crate::model::port::Wake;
use crate::receive::batch::FRAGS_MAX;

/// Rings that get what others send or receive.
pub struct Monitor {
    rings: Krings,
    wake: Box<dyn Wake>,
    missed: u64,
}

/// Which moment of a frame's way a monitor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The port has sent it.
    Sent,
    /// It is put into the port's receive ring.
    Received,
    /// The port's client has read it and returned the slot. The monitor is in the same region.
    Returned,
    /// The same at the other end of a pipe, which shows what this end has sent.
    SentReturned,
}

/// What a monitor sees of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// When.
    pub moment: Moment,
    /// In which rings.
    pub rings: Range<u16>,
}

/// The monitors of a switch, each at a place of its own.
#[derive(Default)]
pub(crate) struct Monitors(Vec<Option<Box<Monitor>>>);

/// Who looks at a port, and how far they have seen.
pub(crate) struct Watch {
    /// Places of monitors.
    eyes: Vec<(usize, Sight)>,
    sent: Vec<Index>,
    received: Vec<Index>,
    /// Pieces of one frame.
    room: Vec<Frag>,
}

impl Monitor {
    /// Rings of a monitor that is not plugged in anywhere else.
    #[must_use]
    pub fn new(rings: Krings, wake: Box<dyn Wake>) -> Self {
        Self { rings, wake, missed: 0 }
    }

    /// Frames, or slots that were returned, that found no room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// From now on, wakes its client like this.
    pub fn set_wake(&mut self, wake: Box<dyn Wake>) {
        self.wake = wake;
    }

    pub(crate) fn rings(&self) -> &Krings {
        &self.rings
    }

    /// Lets `fill` put frames into a ring, which says how many found no room; tells the client of
    /// them at once.
    fn show(&mut self, queue: usize, fill: impl FnOnce(&mut RxKring) -> u64) {
        let Some(rx) = self.rings.rx.get_mut(queue) else { return };
        let before = rx.tail();
        rx.sync();
        self.missed += fill(rx);
        if rx.tail() == before {
            return;
        }
        rx.publish();
        store_load_fence();
        if rx.wants_kick() {
            self.wake.wake();
        }
    }
}

impl Monitors {
    /// Adds a monitor; returns its place.
    pub fn add(&mut self, monitor: Monitor) -> usize {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(monitor.into());
        place
    }

    pub fn remove(&mut self, place: usize) -> Option<Box<Monitor>> {
        self.0.get_mut(place)?.take()
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Monitor> {
        self.0.get_mut(place)?.as_deref_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Monitor> {
        self.0.iter().flatten().map(Box::as_ref)
    }
}

impl Watch {
    /// Nobody looks yet at a port with these rings.
    pub fn new(port: &Krings) -> Self {
        Self {
            eyes: Vec::new(),
            sent: port.tx.iter().map(TxKring::untaken).collect(),
            received: port.rx.iter().map(RxKring::tail).collect(),
            room: Vec::with_capacity(FRAGS_MAX),
        }
    }

    pub fn add(&mut self, monitor: usize, sight: Sight, port: &mut Krings) {
        self.eyes.push((monitor, sight));
        self.watch(port);
    }

    /// Takes a monitor out; `false`: nobody looks any more.
    pub fn remove(&mut self, monitor: usize, port: &mut Krings) -> bool {
        self.eyes.retain(|(eye, _)| *eye != monitor);
        self.watch(port);
        !self.eyes.is_empty()
    }

    /// Returned slots of rings wait where somebody wants to see them.
    fn watch(&self, port: &mut Krings) {
        for (queue, rx) in port.rx.iter_mut().enumerate() {
            let wanted = self.who(queue, Moment::Returned).next().is_some()
                || self.who(queue, Moment::SentReturned).next().is_some();
            if wanted != rx.is_mirrored() {
                rx.set_mirrored(wanted);
            }
        }
    }

    fn who(&self, queue: usize, moment: Moment) -> impl Iterator<Item = usize> + '_ {
        let sees = move |sight: &Sight| {
            let rings = usize::from(sight.rings.start)..usize::from(sight.rings.end);
            sight.moment == moment && rings.contains(&queue)
        };
        self.eyes.iter().filter(move |(_, sight)| sees(sight)).map(|(place, _)| *place)
    }

    /// Shows what has been published in a transmit ring and not been shown.
    #[cold]
    pub fn show_sent(&mut self, queue: usize, tx: &TxKring, monitors: &mut Monitors) {
        let (mut from, mut room) = (self.sent[queue], std::mem::take(&mut self.room));
        // A client that takes `head` back shows some frames twice.
        if !tx.is_ready(from) {
            from = tx.untaken();
        }
        for place in self.who(queue, Moment::Sent) {
            if let Some(monitor) = monitors.get_mut(place) {
                monitor.show(queue, |to| tx.mirror(from, to, &mut room));
            }
        }
        (self.sent[queue], self.room) = (tx.published(), room);
    }

    /// Shows what has been put into a receive ring, before it is published.
    #[cold]
    pub fn show_received(&mut self, queue: usize, rx: &RxKring, monitors: &mut Monitors) {
        let (from, mut room) = (self.received[queue], std::mem::take(&mut self.room));
        for place in self.who(queue, Moment::Received) {
            if let Some(monitor) = monitors.get_mut(place) {
                monitor.show(queue, |to| rx.mirror(from, to, &mut room));
            }
        }
        (self.received[queue], self.room) = (rx.tail(), room);
    }

    /// Shows the slots that the client has returned, as of the last sync, and frees them.
    #[cold]
    pub fn show_returned(&mut self, queue: usize, rx: &mut RxKring, monitors: &mut Monitors) {
        if !rx.is_mirrored() {
            return;
        }
        let moments = [(Moment::Returned, 0), (Moment::SentReturned, slot_flag::TXMON)];
        let mut left: usize = moments.iter().map(|(when, _)| self.who(queue, *when).count()).sum();
        for (moment, flags) in moments {
            for place in self.who(queue, moment) {
                left -= 1;
                let Some(monitor) = monitors.get_mut(place) else { continue };
                // The last one gets the buffers themselves.
                let hand = left == 0 && Arc::ptr_eq(monitor.rings.region(), rx.region());
                monitor.show(queue, |to| match hand {
                    true => rx.move_returned(to, flags),
                    false => rx.copy_returned(to, flags),
                });
            }
        }
        rx.free_returned();
    }
}
