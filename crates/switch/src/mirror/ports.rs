//! Mirror ports: ports of the switch that get copies of what other ports send and receive (SPAN).
//!
//! # Theory of operation
//!
//! ```text
//!   turn begins ──► entries of mirror ports are lent to the mirrors ──► turn ends: given back
//!                        ▲                                                   │
//!        PortMirrors ────┘ copies, before the mirrored port's client         ▼
//!                          can change or take the frames                 doorbells
//! ```
//!
//! The bridge has set a mirror port [aside](crate::Bridge::set_aside): no frame is forwarded to it,
//! and none of its frames enters. So the switch lends its entry for the turns of other ports to the
//! mirrors, which then reach it while both ports of a run are in use. A switch without mirror ports
//! pays a branch in each turn.
//!
//! A copy is the frame as it is on the wire of the mirrored port, with its tag. A port that does
//! not accept pending offloads gets them completed, and segments in the place of GSO runs.
//!
//! What finds no room at the mirror port, or is beyond its rate, is lost and counted there; no
//! mirrored port waits for it. The caller makes no mirror port the source of another one; captures
//! of it see its copies.

use std::sync::Arc;

use packet::PortId;
use ring::Region;
use ring::cursor::Index;
use ring::frame::Frag;

use super::{CopyRate, MirrorPoint, Mirrors, Place};
use crate::decide::bridge::TagAction;
use crate::deliver::into_ring::{Taps, Unsent, send_to_ring};
use crate::deliver::run::queue_of;
use crate::deliver::software_offload::SoftwareOffload;
use crate::model::heartbeat::Heartbeat;
use crate::model::now::Now;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, to_u16};
use crate::switch::Entry;

/// A port that gets copies.
pub(super) struct MirrorPort {
    id: PortId,
    rate: CopyRate,
    /// Entry of the port in its switch, lent during the turns of other ports.
    entry: Option<Box<Entry>>,
    /// The port has got something in this turn.
    is_rung: bool,
}

/// Memory for copies of slots.
pub(super) struct Copying {
    batch: Batch,
    list: Vec<Delivery>,
    refused: Vec<Unsent>,
    /// The time of the turn.
    now: Now,
}

/// What it takes to send copies: all but the frames.
struct Means<'a> {
    /// The port whose memory the frames are in, and the ring that they are from.
    from: PortId,
    queue: usize,
    now: Now,
    refused: &'a mut Vec<Unsent>,
    software: Option<&'a mut SoftwareOffload>,
    /// All other mirrors: captures of the mirror port are among them.
    mirrors: &'a mut Mirrors,
    heartbeat: &'a mut Heartbeat,
}

impl Copying {
    /// Most frames that are sent at a time.
    const FRAMES: usize = 256;

    fn new() -> Self {
        Self {
            batch: Batch::new(Self::FRAMES),
            list: Vec::with_capacity(Self::FRAMES),
            refused: Vec::with_capacity(Self::FRAMES),
            now: Now::START,
        }
    }
}

impl Mirrors {
    /// Adds a mirror port; returns its place, and a handle of the rate. One that is there already
    /// is replaced by it, so it has used of the rate what that one has.
    pub fn add_port(&mut self, id: PortId, rate: CopyRate) -> (usize, CopyRate) {
        self.copying.get_or_insert_with(|| Copying::new().into());
        let before = self.ports().find(|port| port.id == id);
        let rate = rate.in_place_of(before.map(|port| &port.rate));
        let handle = rate.handle();
        let port = MirrorPort { id, rate, entry: None, is_rung: false };
        (self.put(Place::Port(port.into())), handle)
    }

    /// The place of a mirror port.
    pub fn place_of(&self, id: PortId) -> Option<usize> {
        let is_it = |place: &Option<Place>| matches!(place, Some(Place::Port(it)) if it.id == id);
        self.places.iter().position(is_it)
    }

    /// Whether there are mirror ports.
    #[inline]
    pub fn has_ports(&self) -> bool {
        self.copying.is_some()
    }

    /// Forgets the memory for copies, if there is no mirror port left.
    pub fn tidy(&mut self) {
        if self.ports().next().is_none() {
            self.copying = None;
        }
    }

    fn ports(&mut self) -> impl Iterator<Item = &mut MirrorPort> {
        self.places.iter_mut().flatten().filter_map(|place| match place {
            Place::Rings(_) => None,
            Place::Port(port) => Some(&mut **port),
        })
    }

    /// Takes the entries of mirror ports for a turn of `src`.
    pub fn borrow(&mut self, entries: &mut [Option<Box<Entry>>], src: PortId, now: Now) {
        self.copying.iter_mut().for_each(|copying| copying.now = now);
        for port in self.ports().filter(|port| port.id != src) {
            port.entry = entries.get_mut(port.id.index()).and_then(Option::take);
        }
    }

    /// Gives them back. Adds those to `rung` whose doorbells may have to be rung.
    pub fn give_back(&mut self, entries: &mut [Option<Box<Entry>>], rung: &mut Vec<PortId>) {
        for port in self.ports() {
            let Some(mut entry) = port.entry.take() else { continue };
            if std::mem::take(&mut port.is_rung) && !std::mem::replace(&mut entry.rung, true) {
                rung.push(port.id);
            }
            debug_assert!(entries[port.id.index()].is_none(), "a number is one port's");
            entries[port.id.index()] = Some(entry);
        }
    }

    /// Sends copies of slots to the mirror port at a place. `each` calls its argument for each
    /// frame, with its pieces in the region, its length and its first slot; `from` and `queue` are
    /// the port and the ring that they are in.
    pub(super) fn copy_slots(
        &mut self,
        (place, from, queue): (usize, PortId, usize),
        region: &Arc<Region>,
        heartbeat: &mut Heartbeat,
        each: impl FnOnce(&mut dyn FnMut(&[Frag], u32, Index)),
    ) {
        self.with_port(place, |port, copying, mirrors| {
            let Copying { batch, list, refused, now } = copying;
            let (now, software) = (*now, None);
            let mut means = Means { from, queue, now, refused, software, mirrors, heartbeat };
            batch.restart(region);
            list.clear();
            each(&mut |pieces, bytes, slot| {
                if !batch.has_room() {
                    port.send(batch, list, &mut means);
                    batch.restart(region);
                    list.clear();
                }
                let first = batch.frags().len();
                batch.frags().extend_from_slice(pieces);
                let frame = to_u16(batch.frames().len());
                batch.push(first, bytes, slot, 0);
                list.push(Delivery { frame, tag: TagAction::Keep });
            });
            port.send(batch, list, &mut means);
            batch.release();
        });
    }

    /// Sends copies of listed frames to the mirror port at a place.
    pub(super) fn copy_list(
        &mut self,
        (place, from): (usize, PortId),
        (batch, list): (&mut Batch, &[Delivery]),
        software: Option<&mut SoftwareOffload>,
        heartbeat: &mut Heartbeat,
    ) {
        self.with_port(place, |port, copying, mirrors| {
            let Copying { refused, now, .. } = copying;
            let (now, queue) = (*now, 0);
            let mut means = Means { from, queue, now, refused, software, mirrors, heartbeat };
            port.send(batch, list, &mut means);
        });
    }

    /// Calls `with` with the mirror port at a place, and with all others: captures of the mirror
    /// port are among them.
    fn with_port(
        &mut self,
        place: usize,
        with: impl FnOnce(&mut MirrorPort, &mut Copying, &mut Self),
    ) {
        let Some(mut copying) = self.copying.take() else { return };
        match self.places.get_mut(place).and_then(Option::take) {
            Some(Place::Port(mut port)) => {
                with(&mut port, &mut copying, self);
                self.places[place] = Some(Place::Port(port));
            }
            other => debug_assert!(other.is_none(), "rings get theirs elsewhere"),
        }
        self.copying = Some(copying);
    }
}

impl MirrorPort {
    /// Sends copies of the listed frames, as far as the rate allows.
    fn send(&mut self, batch: &mut Batch, list: &[Delivery], means: &mut Means<'_>) {
        let Some(entry) = &mut self.entry else { return };
        let admitted = self.rate.admit(batch, list, means.now);
        entry.stats.drops.add(DropReason::MirrorRate, (list.len() - admitted) as u64);
        if admitted == 0 {
            return;
        }
        self.is_rung = true;
        let before = means.heartbeat.current();
        means.heartbeat.between(means.from, self.id);
        match batch.has_offloads() {
            false => deliver(entry, batch, &list[..admitted], means),
            true => list[..admitted].iter().for_each(|&one| deliver_one(entry, batch, one, means)),
        }
        means.heartbeat.resume(before);
    }
}

/// Delivers a copy of a frame that may have a pending offload.
fn deliver_one(entry: &mut Entry, batch: &mut Batch, one: Delivery, means: &mut Means<'_>) {
    let accepts = entry.plug.accepts();
    if batch.offload(one).is_none_or(|offload| accepts.contain(offload.left())) {
        return deliver(entry, batch, &[one], means);
    }
    let Some(software) = means.software.take() else {
        return entry.stats.drops.add(DropReason::Offload, 1);
    };
    software.clear();
    match software.begin(batch, one) {
        Err(why) => entry.stats.drops.add(why, 1),
        Ok(()) => loop {
            let is_all = software.fill();
            deliver(entry, &mut software.batch, &software.list, means);
            software.clear();
            if is_all {
                break;
            }
        },
    }
    means.software = Some(software);
}

/// Delivers copies, and counts them.
fn deliver(entry: &mut Entry, batch: &mut Batch, list: &[Delivery], means: &mut Means<'_>) {
    let Means { from, refused, mirrors, heartbeat, .. } = means;
    let (mut rx_queue, its) = (0, entry.mirrors.as_deref_mut());
    let sent = match &mut entry.plug {
        Plug::Adapter(adapter) => {
            if let Some(its) = its {
                let (point, frames) = (MirrorPoint::Received, (&mut *batch, list));
                its.mirror_list(point, frames, *from, None, mirrors, heartbeat);
            }
            adapter.lock().send(batch, list)
        }
        Plug::Rings(rings, _) => {
            rx_queue = queue_of(means.queue, rings);
            let mut taps = its.map(|its| Taps { queue: rx_queue, its, mirrors, heartbeat });
            let rx = &mut *rings.rx[rx_queue].lock();
            send_to_ring(rx, false, batch, list, None, &mut taps, refused)
        }
    };
    refused.clear();
    debug_assert!(sent.delivered.frames <= list.len() as u64, "a copy arrives once");
    entry.stats.queues[rx_queue].rx += sent.delivered;
    entry.stats.drops += &sent.drops;
}
