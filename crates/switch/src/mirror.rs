//! Mirrors: rings that get copies of the frames that pass a port.
//!
//! # Theory of operation
//!
//! ```text
//!   port ── PortMirrors ─┬─ sent ─────┐
//!                        ├─ received ─┼──► Mirror: rings, and a doorbell
//!                        └─ returned ─┘
//! ```
//!
//! A mirror is no member of the switch: the bridge never forwards a frame to it, and the switch
//! ignores what its client sends. A port with mirrors keeps a `PortMirrors`, which says which
//! mirror sees which rings at which point. All other ports pay one branch in each turn and one in
//! each run.
//!
//! A mirror takes what fits. The switch does not wait for it. A frame that finds no room in a
//! mirror counts as missed and not as dropped, because its destination has got it.

use std::ops::Range;
use std::sync::Arc;

use ring::abi::slot_flag;
use ring::cursor::Index;
use ring::doorbell::store_load_fence;
use ring::frame::Frag;
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;
use ring::shared::Shared;

use crate::model::port::Wake;
use crate::receive::batch::FRAGS_MAX;

/// Rings that get copies of frames which other ports send or receive.
pub struct Mirror {
    rings: Krings,
    wake: Arc<dyn Wake>,
    missed: u64,
}

/// The point of a frame's way at which it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorPoint {
    /// The port's client has sent the frame.
    Sent,
    /// The switch has put the frame into the port's receive ring.
    Received,
    /// The port's client has read the frame and returned the slot. The mirror is in the same
    /// region.
    Returned,
    /// The client at the other end of a pipe has read the frame and returned the slot, which
    /// mirrors what this end has sent.
    SentReturned,
}

/// The frames of a port that a mirror gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSource {
    /// When the frames are mirrored.
    pub point: MirrorPoint,
    /// The rings of the port.
    pub rings: Range<u16>,
}

/// The mirrors of a switch, each at a place of its own.
#[derive(Default)]
pub(crate) struct Mirrors(Vec<Option<Box<Mirror>>>);

/// The mirrors of one port, and the frames that they have got.
pub(crate) struct PortMirrors {
    /// Places of mirrors, and what each gets.
    taps: Vec<(usize, MirrorSource)>,
    /// By transmit ring, the first slot that is not mirrored yet.
    sent: Vec<Index>,
    /// By receive ring, the first slot that is not mirrored yet.
    received: Vec<Index>,
    /// Pieces of one frame.
    room: Vec<Frag>,
}

impl Mirror {
    /// A mirror with these rings, which are not plugged in anywhere else.
    #[must_use]
    pub fn new(rings: Krings, wake: Arc<dyn Wake>) -> Self {
        Self { rings, wake, missed: 0 }
    }

    /// Frames and returned slots that found no room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Replaces the doorbell of the mirror's client.
    pub fn set_wake(&mut self, wake: Arc<dyn Wake>) {
        self.wake = wake;
    }

    pub(crate) fn rings(&self) -> &Krings {
        &self.rings
    }

    /// Lets `fill` put frames into a ring and return how many found no room. Wakes the client at
    /// once.
    fn fill(&mut self, queue: usize, fill: impl FnOnce(&mut RxKring) -> u64) {
        let Some(rx) = self.rings.rx.get_mut(queue) else { return };
        let rx = &mut *rx.lock();
        let before = rx.tail();
        rx.sync();
        self.missed += fill(rx);
        debug_assert!(rx.room() <= rx.capacity(), "a mirror gets what fits");
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

impl Mirrors {
    /// Adds a mirror; returns its place.
    pub fn add(&mut self, mirror: Mirror) -> usize {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(None);
        }
        assert!(self.0[place].is_none(), "the place is free");
        self.0[place] = Some(mirror.into());
        place
    }

    pub fn remove(&mut self, place: usize) -> Option<Box<Mirror>> {
        self.0.get_mut(place)?.take()
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Mirror> {
        self.0.get_mut(place)?.as_deref_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mirror> {
        self.0.iter().flatten().map(Box::as_ref)
    }
}

impl PortMirrors {
    /// No mirror yet, of a port with these rings.
    pub fn new(port: &Krings) -> Self {
        Self {
            taps: Vec::new(),
            sent: port.tx.iter().map(TxKring::untaken).collect(),
            received: port.rx.iter().map(|rx| rx.with(RxKring::tail)).collect(),
            room: Vec::with_capacity(FRAGS_MAX),
        }
    }

    pub fn add(&mut self, mirror: usize, source: MirrorSource, port: &mut Krings) {
        assert!(source.rings.start <= source.rings.end, "a range of rings goes upwards");
        self.taps.push((mirror, source));
        self.hold_returned(port);
    }

    /// Removes a mirror. `false`: it was the last one.
    pub fn remove(&mut self, mirror: usize, port: &mut Krings) -> bool {
        self.taps.retain(|(tap, _)| *tap != mirror);
        self.hold_returned(port);
        !self.taps.is_empty()
    }

    /// Holds returned slots back in rings whose returned slots are mirrored.
    fn hold_returned(&self, port: &mut Krings) {
        for (queue, mut rx) in port.rx.iter_mut().map(Shared::lock).enumerate() {
            let wanted = self.mirrors_at(queue, MirrorPoint::Returned).next().is_some()
                || self.mirrors_at(queue, MirrorPoint::SentReturned).next().is_some();
            if wanted != rx.is_mirrored() {
                rx.set_mirrored(wanted);
            }
        }
    }

    fn mirrors_at(&self, queue: usize, point: MirrorPoint) -> impl Iterator<Item = usize> + '_ {
        let sees = move |source: &MirrorSource| {
            let rings = usize::from(source.rings.start)..usize::from(source.rings.end);
            source.point == point && rings.contains(&queue)
        };
        self.taps.iter().filter(move |(_, source)| sees(source)).map(|(place, _)| *place)
    }

    /// Mirrors slots that the client has published in a transmit ring since the last call.
    #[cold]
    pub fn mirror_sent(&mut self, queue: usize, tx: &TxKring, mirrors: &mut Mirrors) {
        let (mut from, mut room) = (self.sent[queue], std::mem::take(&mut self.room));
        // A client that takes `head` back gets some frames mirrored twice.
        if !tx.is_ready(from) {
            from = tx.untaken();
        }
        for place in self.mirrors_at(queue, MirrorPoint::Sent) {
            if let Some(mirror) = mirrors.get_mut(place) {
                mirror.fill(queue, |to| tx.mirror(from, to, &mut room));
            }
        }
        (self.sent[queue], self.room) = (tx.published(), room);
    }

    /// Mirrors slots that the switch has filled in a receive ring, before it publishes them.
    #[cold]
    pub fn mirror_received(&mut self, queue: usize, rx: &RxKring, mirrors: &mut Mirrors) {
        let (from, mut room) = (self.received[queue], std::mem::take(&mut self.room));
        for place in self.mirrors_at(queue, MirrorPoint::Received) {
            if let Some(mirror) = mirrors.get_mut(place) {
                mirror.fill(queue, |to| rx.mirror(from, to, &mut room));
            }
        }
        (self.received[queue], self.room) = (rx.tail(), room);
    }

    /// Mirrors slots that the client has returned, as of the last sync, and frees them.
    #[cold]
    pub fn mirror_returned(&mut self, queue: usize, rx: &mut RxKring, mirrors: &mut Mirrors) {
        if !rx.is_mirrored() {
            return;
        }
        let points = [(MirrorPoint::Returned, 0), (MirrorPoint::SentReturned, slot_flag::TXMON)];
        let mut left: usize =
            points.iter().map(|(when, _)| self.mirrors_at(queue, *when).count()).sum();
        debug_assert!(left > 0, "the ring holds slots back for a mirror");
        for (point, flags) in points {
            for place in self.mirrors_at(queue, point) {
                left -= 1;
                let Some(mirror) = mirrors.get_mut(place) else { continue };
                // The last mirror gets the buffers themselves.
                let hand = left == 0 && Arc::ptr_eq(mirror.rings.region(), rx.region());
                mirror.fill(queue, |to| match hand {
                    true => rx.move_returned(to, flags),
                    false => rx.copy_returned(to, flags),
                });
            }
        }
        rx.free_returned();
    }
}
