//! Mirrors: rings and ports that get copies of the frames that pass other ports.
//!
//! # Theory of operation
//!
//! ```text
//!   port ── PortMirrors ─┬─ sent ─────┐
//!                        ├─ received ─┼──► Mirror: rings, and a doorbell
//!                        └─ returned ─┘    or a MirrorPort: a port of the switch ([`ports`])
//! ```
//!
//! A mirror is no member of the switch: the bridge never forwards a frame to it, and the switch
//! ignores what its client sends. A port with mirrors keeps a `PortMirrors`, which says which
//! mirror sees which rings at which point. All other ports pay one branch in each turn and one in
//! each run.
//!
//! A port without rings is mirrored batch by batch: what it has received, before the switch
//! decides, and what it is about to send. Only ports with rings have returned slots.
//!
//! A mirror takes what fits. The switch does not wait for it. A frame that finds no room in a
//! mirror counts as missed and not as dropped, because its destination has got it. A mirror with a
//! clock gets the time of each batch in its slots.
//!
//! Mirrors of `drops` get what the switch drops, of all ports.
//!
//! In a switch of several workers each replica has a handle of each mirror, at the same place: any
//! worker may deliver to a mirrored port. Its receive ring is locked while it is mirrored, and the
//! mirror's ring is locked within. So locks are taken in this order only, and released before
//! another of the same row is taken:
//!
//! ```text
//!   a ring that is delivered to ──► a mirror port: its ring, or it ──► the ring of a mirror
//! ```

mod drops;
mod ports;
mod rate;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use packet::PortId;
use ring::abi::slot_flag;
use ring::cursor::Index;
use ring::doorbell::store_load_fence;
use ring::frame::Frag;
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;
use ring::shared::Shared;

use crate::deliver::software_offload::SoftwareOffload;
use crate::model::heartbeat::Heartbeat;
use crate::model::port::Wake;
use crate::receive::batch::{Batch, Delivery, FRAGS_MAX};
pub(crate) use drops::DropMirrors;
pub use drops::DropReasons;
use ports::{Copying, MirrorPort};
pub use rate::CopyRate;

/// Rings that get copies of frames which other ports send or receive.
pub struct Mirror {
    rings: Krings,
    wake: Arc<dyn Wake>,
    clock: Option<Clock>,
    missed: u64,
}

/// Tells the time in nanoseconds.
pub type Clock = fn() -> u64;

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
pub(crate) struct Mirrors {
    places: Vec<Option<Place>>,
    /// Where there are mirror ports.
    copying: Option<Box<Copying>>,
}

/// What gets the copies.
enum Place {
    Rings(Box<Mirror>),
    Port(Box<MirrorPort>),
}

/// The mirrors of one port, and the frames that they have got.
pub(crate) struct PortMirrors {
    /// The port.
    id: PortId,
    /// Places of mirrors, and what each gets.
    taps: Vec<(usize, MirrorSource)>,
    /// By transmit ring, the first slot that is not mirrored yet.
    sent: Vec<Index>,
    /// Pieces of one frame.
    room: Vec<Frag>,
}

impl Mirror {
    /// A mirror with these rings, which are not plugged in anywhere else.
    #[must_use]
    pub fn new(rings: Krings, wake: Arc<dyn Wake>) -> Self {
        Self { rings, wake, clock: None, missed: 0 }
    }

    /// This mirror with a clock.
    #[must_use]
    pub fn with_clock(self, clock: Option<Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Puts a lock around the rings, so that there may be [other handles](Self::handle).
    #[must_use]
    pub fn into_common(self) -> Self {
        Self { rings: self.rings.into_common(), ..self }
    }

    /// A handle of the mirror for another worker, which counts for itself what it has missed.
    ///
    /// # Panics
    /// If the rings have no lock: see [`Mirror::into_common`].
    #[must_use]
    pub fn handle(&self) -> Self {
        let (wake, clock) = (self.wake.clone(), self.clock);
        Self { rings: self.rings.for_delivery(), wake, clock, missed: 0 }
    }

    /// Frames and returned slots that found no room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Counts what another worker has missed.
    pub fn add_missed(&mut self, missed: u64) {
        self.missed += missed;
    }

    /// Replaces the doorbell of the mirror's client.
    pub fn set_wake(&mut self, wake: Arc<dyn Wake>) {
        self.wake = wake;
    }

    /// Whether the frames get the time.
    #[must_use]
    pub fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// The rings that get the frames.
    #[must_use]
    pub fn rings(&self) -> &Krings {
        &self.rings
    }

    /// Lets `fill` put frames into a ring and return how many found no room. Wakes the client at
    /// once.
    fn fill(&mut self, queue: usize, fill: impl FnOnce(&mut RxKring) -> u64) {
        // A mirror has a ring for each of the port, or one for all.
        let place = queue % self.rings.rx.len().max(1);
        let Some(rx) = self.rings.rx.get_mut(place) else { return };
        let rx = &mut *rx.lock();
        let before = rx.tail();
        rx.sync();
        self.missed += fill(rx);
        debug_assert!(rx.room() <= rx.capacity(), "a mirror gets what fits");
        if rx.tail() == before {
            return;
        }
        if let Some(clock) = self.clock {
            rx.stamp(before, clock());
        }
        rx.publish();
        store_load_fence();
        if rx.wants_kick() {
            self.wake.wake();
        }
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mirror = f.debug_struct("Mirror");
        mirror.field("rings", &self.rings).field("missed", &self.missed).finish_non_exhaustive()
    }
}

impl Mirrors {
    /// Adds a mirror; returns its place.
    pub fn add(&mut self, mirror: Mirror) -> usize {
        self.put(Place::Rings(mirror.into()))
    }

    fn put(&mut self, place: Place) -> usize {
        let free = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if free == self.places.len() {
            self.places.push(None);
        }
        assert!(self.places[free].is_none(), "the place is free");
        self.places[free] = Some(place);
        free
    }

    pub fn remove(&mut self, place: usize) -> Option<Box<Mirror>> {
        match self.places.get_mut(place)?.take()? {
            Place::Rings(mirror) => Some(mirror),
            Place::Port(_) => None,
        }
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Mirror> {
        match self.places.get_mut(place)?.as_mut()? {
            Place::Rings(mirror) => Some(mirror),
            Place::Port(_) => None,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mirror> {
        self.places.iter().flatten().filter_map(|place| match place {
            Place::Rings(mirror) => Some(&**mirror),
            Place::Port(_) => None,
        })
    }
}

impl PortMirrors {
    /// No mirror yet, of a port with these rings, if it has some.
    pub fn new(id: PortId, port: Option<&Krings>) -> Self {
        let sent = port.iter().flat_map(|port| port.tx.iter().map(TxKring::untaken));
        let room = Vec::with_capacity(FRAGS_MAX);
        Self { id, taps: Vec::new(), sent: sent.collect(), room }
    }

    /// How far the transmit rings are mirrored, for the worker that takes the port over.
    pub fn give_sent(&mut self) -> Vec<Index> {
        std::mem::take(&mut self.sent)
    }

    /// Goes on where another worker has ended.
    pub fn take_sent(&mut self, sent: Vec<Index>) {
        self.sent = sent;
    }

    pub fn add(&mut self, mirror: usize, source: MirrorSource, port: Option<&mut Krings>) {
        assert!(source.rings.start <= source.rings.end, "a range of rings goes upwards");
        self.taps.push((mirror, source));
        self.hold_returned(port);
    }

    /// Removes a mirror. `false`: it was the last one.
    pub fn remove(&mut self, mirror: usize, port: Option<&mut Krings>) -> bool {
        self.taps.retain(|(tap, _)| *tap != mirror);
        self.hold_returned(port);
        !self.taps.is_empty()
    }

    /// Holds returned slots back in rings whose returned slots are mirrored.
    fn hold_returned(&self, port: Option<&mut Krings>) {
        let Some(port) = port else { return };
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
    pub fn mirror_sent(
        &mut self,
        queue: usize,
        tx: &TxKring,
        mirrors: &mut Mirrors,
        heartbeat: &mut Heartbeat,
    ) {
        let (mut from, mut room) = (self.sent[queue], std::mem::take(&mut self.room));
        // A client that takes `head` back gets some frames mirrored twice.
        if !tx.is_ready(from) {
            from = tx.untaken();
        }
        for place in self.mirrors_at(queue, MirrorPoint::Sent) {
            match mirrors.get_mut(place) {
                Some(mirror) => mirror.fill(queue, |to| tx.mirror(from, to, &mut room)),
                None => {
                    mirrors.copy_slots((place, self.id, queue), tx.region(), heartbeat, |copy| {
                        tx.each_sent(from, &mut room, copy);
                    });
                }
            }
        }
        (self.sent[queue], self.room) = (tx.published(), room);
    }

    /// Mirrors slots that the switch has filled in a receive ring from `from` on, before it
    /// publishes them.
    #[cold]
    pub fn mirror_received(
        &mut self,
        queue: usize,
        from: Index,
        rx: &RxKring,
        mirrors: &mut Mirrors,
        heartbeat: &mut Heartbeat,
    ) {
        let mut room = std::mem::take(&mut self.room);
        for place in self.mirrors_at(queue, MirrorPoint::Received) {
            match mirrors.get_mut(place) {
                Some(mirror) => mirror.fill(queue, |to| rx.mirror(from, to, &mut room)),
                None => {
                    mirrors.copy_slots((place, self.id, queue), rx.region(), heartbeat, |copy| {
                        rx.each_received(from, &mut room, copy);
                    });
                }
            }
        }
        self.room = room;
    }

    /// Mirrors frames of a port without rings: what it has received, or what it is about to send.
    /// `from` is the port that the frames come from. Without `software`, no frame has an offload.
    #[cold]
    pub fn mirror_list(
        &self,
        point: MirrorPoint,
        (batch, list): (&mut Batch, &[Delivery]),
        from: PortId,
        mut software: Option<&mut SoftwareOffload>,
        mirrors: &mut Mirrors,
        heartbeat: &mut Heartbeat,
    ) {
        assert!(self.sent.is_empty(), "ports with rings are mirrored slot by slot");
        debug_assert!(matches!(point, MirrorPoint::Sent | MirrorPoint::Received));
        let flags = if point == MirrorPoint::Sent { slot_flag::TXMON } else { 0 };
        for place in self.mirrors_at(0, point) {
            let Some(mirror) = mirrors.get_mut(place) else {
                let software = software.as_deref_mut();
                mirrors.copy_list((place, from), (&mut *batch, list), software, heartbeat);
                continue;
            };
            let is_missed = |rx: &mut RxKring, &delivery: &Delivery| {
                let (frame, head) = batch.outgoing(delivery);
                u64::from(!rx.put_copy(frame, head, flags))
            };
            mirror.fill(0, |rx| list.iter().map(|delivery| is_missed(rx, delivery)).sum());
        }
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
