//! One turn: at most one batch from one port to wherever its frames go.
//!
//! # Theory of operation
//!
//! ```text
//!  ┌─► next header ─► decide ─┬─ to one port with rings, tag kept ─► run: copy or swap ─┐
//!  │                          ├─ dropped ─────────────────────────► run: drop           │
//!  │                          └─ anything else ───────────────────► staged              │
//!  └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! *Runs.* Frames with the same addresses, type and tag that follow each other have one decision;
//! the port format moves them in a single loop. Where destinations interleave, runs are short and
//! a loop for each costs more than it saves: after one short run the rest of the batch is staged.
//!
//! *Staged.* The batch is taken as a whole, decided (again once for each run), and linked into one
//! list for each destination; then every destination gets its list in one call. A flood first
//! flushes the lists, so that no frame overtakes another between the same two ports.
//!
//! *Unfinished.* A port without rings may give frames out of which something is left to do. Each
//! destination gets them as it [accepts](crate::model::port::Adapter::accepts) them; for all others they
//! are finished when its list is sent (`edge`), so that a flood does right by both.
//!
//! Indexes are published once for each run or list; doorbells are rung at the end of the turn,
//! after one fence for all of them.
//!
//! *Back-pressure.* A frame for a full port that asks to be waited for (`on_full = wait`) stays in
//! its ring and blocks what is behind it, so nothing may be delivered before it is known that all
//! in front of it can be. A switch with such a port therefore stages plain frames to single ports
//! only, and only if every port that asks to be waited for has room for its whole list; otherwise
//! it goes on with one frame, or one run to be flooded, at a time: floods wait for nobody. The
//! worker tries again at its next turn; before it sleeps it asks for a kick
//! ([`Switch::want_room`]). A guest's queue is a ring, too, but what its frames are is known when
//! they are taken: it waits for the port that its last frames went to, if that is a guest's.
//!
//! *Chains.* A switch whose forwarding function is `chain` has a loop of its own (`steer`): frames
//! between functions go by what their slots say. It waits for nobody.

mod edge;
mod stage;
mod steer;

use std::io;

use packet::ethernet::Header;
use packet::{MAX_PORTS, PortId};
use ring::doorbell::store_load_fence;
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;
use ring::run::{End, Key, Run, deliver_run, drop_run};

use crate::decide::bridge::{Decision, TagAction};
use crate::decide::forward::Verdict;
use crate::deliver::groups::Groups;
use crate::model::config::OnFull;
use crate::model::now::Now;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery};
use crate::receive::slot_flags::Asks;
use crate::switch::{Entry, Switch};
use edge::Edge;
use steer::Seen;

/// Runs shorter than this are not worth a loop of their own.
const SHORT_RUN: u32 = 8;
/// How long a cached decision may keep an address from being refreshed, in milliseconds.
const CACHE_MS: u64 = 100;

/// Room to work in; one for each worker, with its whole capacity from the start.
pub struct Scratch {
    batch: Batch,
    groups: Groups,
    list: Vec<Delivery>,
    /// What is known of the frames of a batch that are to be steered.
    seen: Seen,
    edge: Edge,
    targets: Vec<PortId>,
    /// Marks of frames that were not their sender's to send.
    foreign: Vec<u64>,
    rung: Vec<PortId>,
    woken: Vec<PortId>,
    owed_wakes: Vec<PortId>,
    crowded: bool,
    frames_max: u32,
}

impl Scratch {
    /// Room for batches of at most `frames_max` frames.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files.
    pub fn new(frames_max: u16) -> io::Result<Self> {
        let capacity = usize::from(frames_max);
        Ok(Self {
            batch: Batch::new(capacity),
            groups: Groups::new(capacity),
            list: Vec::with_capacity(capacity),
            seen: Seen::new(capacity),
            edge: Edge::new()?,
            targets: Vec::with_capacity(MAX_PORTS),
            foreign: Vec::with_capacity(capacity),
            rung: Vec::with_capacity(MAX_PORTS),
            woken: Vec::with_capacity(MAX_PORTS),
            owed_wakes: Vec::with_capacity(MAX_PORTS),
            crowded: false,
            frames_max: u32::from(frames_max),
        })
    }

    /// Lets go of the last batch and its region: the port that it came from may be gone.
    pub fn release(&mut self) {
        self.batch.release();
    }
}

impl Scratch {
    /// Ports whose sleeping clients the last turn has woken: they will probably answer.
    #[must_use]
    pub fn woken(&self) -> &[PortId] {
        &self.woken
    }

    /// Ports that the last turn owes a wake-up ([`Switch::wake_if_due`]).
    #[must_use]
    pub fn owed_wakes(&self) -> &[PortId] {
        &self.owed_wakes
    }

    /// Did the last turn drop frames of a client that does take its frames and has not kept up? It
    /// may want the core that the switch runs on.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.crowded
    }
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slots taken from the port.
    pub slots: u32,
    /// The next frame waits for room there.
    pub blocked_on: Option<Full>,
}

/// A receive ring without room, whose port asks to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The port.
    pub port: PortId,
    /// Its ring.
    pub queue: usize,
    /// Free slots that the frame needs.
    pub slots: u32,
}

impl Moved {
    fn slots(slots: u32) -> Self {
        Self { slots, blocked_on: None }
    }
}

/// The last decision for frames of one port.
#[derive(Default)]
pub(crate) struct Cache {
    key: u128,
    generation: u64,
    now_ms: u64,
    fate: Option<Fate>,
}

/// A decision and what it means at its destination.
#[derive(Clone, Copy)]
enum Fate {
    /// To this port, with this change of the tag.
    To(PortId, TagAction),
    /// To several ports.
    Flood(Decision),
    /// To none.
    Drop(DropReason),
}

/// A turn of one port, under way.
pub(crate) struct TurnOf<'a> {
    switch: &'a mut Switch,
    scratch: &'a mut Scratch,
    src: PortId,
    queue: usize,
    /// Frames of each ring, at most.
    most: u32,
    now: Now,
}

impl<'a> TurnOf<'a> {
    pub(crate) fn new(
        switch: &'a mut Switch,
        scratch: &'a mut Scratch,
        src: PortId,
        now: Now,
    ) -> Self {
        let most = scratch.frames_max;
        Self { switch, scratch, src, queue: 0, most, now }
    }

    pub(crate) fn run(mut self) -> Moved {
        self.scratch.woken.clear();
        self.scratch.owed_wakes.clear();
        self.scratch.crowded = false;
        if self.switch.is_shut(self.src, self.now) {
            return Moved::default();
        }
        let (ahead, room) = self.room_ahead();
        let src = self.src;
        let most = self.switch.steering.as_mut().map_or(u16::MAX, |steer| steer.begin_turn(src));
        self.scratch.batch.restrict(room.min(most.into()));
        let Some(entry) = self.switch.entry_mut(self.src) else { return Moved::default() };
        let moved = match &mut entry.plug {
            Plug::Rings(host, _) => {
                let queues = host.tx.len();
                let each = u32::from(most) / u32::try_from(queues).unwrap_or(1).max(1);
                self.most = self.most.min(each.max(1));
                if entry.watch.is_some() {
                    self.show_returned();
                }
                self.take_rings(queues)
            }
            Plug::Adapter(adapter) => {
                self.scratch.batch.clear();
                adapter.recv(&mut self.scratch.batch, &mut entry.stats.drops);
                // What has come in waits for nobody: it was not taken if there was no room ahead.
                if self.switch.steering.is_some() {
                    self.switch.look_at_functions();
                    self.steer_batch();
                } else {
                    self.deliver_batch(false);
                }
                let slots = frames(self.scratch.batch.frames().len());
                self.give_back();
                Moved { slots, blocked_on: ahead }
            }
        };
        if let Some(steering) = &mut self.switch.steering {
            steering.end_turn(src, moved.slots);
        }
        if moved.slots > 0 || !self.scratch.rung.is_empty() {
            self.ring_doorbells();
        }
        moved
    }

    /// Lets go of what an adapter has given, and tells it.
    fn give_back(&mut self) {
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Plug::Adapter(adapter) = &mut entry.plug
        {
            adapter.take_back(&self.scratch.batch);
        }
        self.scratch.batch.clear();
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Plug::Adapter(adapter) = &mut entry.plug
            && adapter.delivered()
            && !std::mem::replace(&mut entry.rung, true)
        {
            self.scratch.rung.push(self.src);
        }
    }

    /// How many frames a port without rings may take, and whom it waits for if none. Where its
    /// frames go is known when they are taken; the next are believed to go where the last went.
    fn room_ahead(&mut self) -> (Option<Full>, usize) {
        let any = (None, usize::MAX);
        // In a chain nothing says so.
        if !self.switch.in_order || self.switch.steering.is_some() {
            return any;
        }
        let generation = self.switch.bridge.generation();
        let Some(entry) = self.switch.entry_mut(self.src) else { return any };
        let (Plug::Adapter(from), Some(Fate::To(dst, _))) = (&entry.plug, entry.cache.fate) else {
            return any;
        };
        // While nothing is taken nothing is decided: they may go elsewhere by now.
        if !from.can_wait() || entry.cache.generation != generation {
            return any;
        }
        let to = self.switch.entry_mut(dst).filter(|to| to.on_full == OnFull::Wait);
        let Some(Entry { plug: Plug::Adapter(adapter), .. }) = to else { return any };
        match adapter.room() {
            0 => (Some(Full { port: dst, queue: 0, slots: 1 }), 0),
            room => (None, usize::try_from(room).unwrap_or(usize::MAX)),
        }
    }

    fn take_rings(&mut self, queues: usize) -> Moved {
        let mut moved = Moved::default();
        for queue in 0..queues {
            self.queue = queue;
            let one = self.take_ring();
            moved = Moved { slots: moved.slots + one.slots, ..one };
            if moved.blocked_on.is_some() {
                // Back-pressure stops the port as a whole: it waits for one ring at a time.
                break;
            }
        }
        moved
    }

    /// One transmit ring: runs, then staging if they are short.
    fn take_ring(&mut self) -> Moved {
        let budget = self.tx().sync().min(self.most);
        self.show_sent();
        if budget > 0 {
            self.switch.look_at_functions();
        }
        let mut moved = Moved::default();
        while moved.slots < budget && moved.blocked_on.is_none() {
            let mut step = if self.switch.steering.is_some() {
                self.steer(budget - moved.slots)
            } else {
                self.step(budget - moved.slots)
            };
            if step == Moved::default() && self.switch.steering.is_none() {
                // The frame has changed under our eyes: whatever it is now, it is taken.
                step = self.stage(budget - moved.slots);
            }
            if step == Moved::default() {
                break;
            }
            moved = Moved { slots: moved.slots + step.slots, ..step };
        }
        if moved.slots > 0 {
            self.tx().publish();
        }
        moved
    }

    /// Monitors see what the client has sent before it is taken.
    #[inline]
    fn show_sent(&mut self) {
        let Switch { ports, monitors, .. } = &mut *self.switch;
        if let Some(Some(entry)) = ports.get_mut(self.src.index())
            && let Some(watch) = &mut entry.watch
            && let Some(rings) = entry.plug.rings()
        {
            watch.show_sent(self.queue, &rings.tx[self.queue], monitors);
        }
    }

    /// Monitors see what the client has read and returned.
    #[cold]
    fn show_returned(&mut self) {
        let Switch { ports, monitors, .. } = &mut *self.switch;
        if let Some(Some(entry)) = ports.get_mut(self.src.index())
            && let Some(watch) = &mut entry.watch
            && let Some(rings) = entry.plug.rings()
        {
            for (queue, rx) in rings.rx.iter_mut().enumerate().filter(|(_, rx)| rx.is_mirrored()) {
                rx.sync();
                watch.show_returned(queue, rx, monitors);
            }
        }
    }

    /// The ring that frames are taken from.
    #[inline]
    fn tx(&mut self) -> &mut TxKring {
        let (entry, queue) = (self.switch.entry_mut(self.src), self.queue);
        let rings = entry.and_then(|entry| entry.plug.rings());
        &mut rings.expect("the source of a turn has rings").tx[queue]
    }

    /// One run, or one batch.
    #[inline]
    fn step(&mut self, budget: u32) -> Moved {
        let Some(header) = self.tx().peek() else { return self.stage(budget) };
        let header = Header::new(header.to_le_bytes());
        let moved = match self.decide(header) {
            Fate::To(dst, TagAction::Keep) => self.run_to(dst, header, budget),
            Fate::Drop(reason) => Some(self.run_drop(header, budget, reason)),
            Fate::Flood(_) if self.switch.in_order => Some(self.stage_run(header, budget)),
            Fate::To(..) | Fate::Flood(_) => None,
        };
        let Some(moved) = moved else { return self.stage(budget) };
        let long = moved.slots >= SHORT_RUN.min(budget);
        if long || moved.blocked_on.is_some() {
            return moved;
        }
        let budget = budget - moved.slots;
        let rest =
            if self.switch.in_order { self.stage_fitting(budget) } else { self.stage(budget) };
        Moved { slots: moved.slots + rest.slots, ..rest }
    }

    /// What happens to frames with this header. Asks the bridge once for each run.
    #[inline]
    fn decide(&mut self, header: Header) -> Fate {
        let (key, now_ms) = (header.key(), self.now.as_ms());
        let generation = self.switch.bridge.generation();
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Some(fate) = entry.cache.fate
            && entry.cache.key == key
            && entry.cache.generation == generation
            && now_ms.wrapping_sub(entry.cache.now_ms) < CACHE_MS
        {
            return fate;
        }
        self.decide_anew(header)
    }

    #[inline(never)]
    fn decide_anew(&mut self, header: Header) -> Fate {
        let fate = self.ask(header, Asks::NOTHING);
        let generation = self.switch.bridge.generation();
        if let Some(entry) = self.switch.entry_mut(self.src) {
            let (key, now_ms) = (header.key(), self.now.as_ms());
            entry.cache = Cache { key, generation, now_ms, fate: Some(fate) };
        }
        fate
    }

    fn ask(&mut self, header: Header, asks: Asks) -> Fate {
        let decision = self.switch.bridge.decide_asked(self.src, header, asks, self.now);
        match decision.verdict {
            Verdict::Drop(reason) => Fate::Drop(reason),
            Verdict::Flood(_) => Fate::Flood(decision),
            Verdict::To(dst) => match self.switch.bridge.egress(self.src, dst, &decision) {
                Ok(tag) => Fate::To(dst, tag),
                Err(reason) => Fate::Drop(reason),
            },
        }
    }

    /// Moves a run to one port with rings. `None`: that takes staging.
    fn run_to(&mut self, dst: PortId, header: Header, budget: u32) -> Option<Moved> {
        let key = key(header);
        let (run, queue) =
            self.run_between(dst, budget, |tx, rx| deliver_run(tx, rx, key, budget))?;
        match run.end {
            End::Full => Some(self.find_full(dst, queue, header, run, budget)),
            End::BadSlot => Some(self.lose(dst, DropReason::BadIndex, header, run, 1)),
            End::Complex if run.frames == 0 => None,
            _ => Some(Moved::slots(run.frames)),
        }
    }

    /// Lets `run` move frames from the ring to one of `dst`, publishes and counts them; returns
    /// which ring that is, too. `None`: one of the two has no rings.
    #[inline]
    fn run_between(
        &mut self,
        dst: PortId,
        budget: u32,
        run: impl FnOnce(&mut TxKring, &mut RxKring) -> Run,
    ) -> Option<(Run, usize)> {
        let queue = self.queue;
        let pair = [self.src.index(), dst.index()];
        let Switch { ports, monitors, .. } = &mut *self.switch;
        let [Some(from), Some(to)] = ports.get_disjoint_mut(pair).ok()? else { return None };
        let (tx, rings) = (&mut from.plug.rings()?.tx[queue], to.plug.rings()?);
        let rx_queue = queue_of(queue, rings);
        let rx = &mut rings.rx[rx_queue];
        if rx.room() < budget {
            rx.sync();
            if let Some(watch) = &mut to.watch {
                watch.show_returned(rx_queue, rx, monitors);
            }
        }
        let run = run(tx, rx);
        if run.frames > 0 || run.end == End::BadSlot {
            if let Some(watch) = &mut to.watch {
                watch.show_received(rx_queue, rx, monitors);
            }
            rx.publish();
            from.stats.queues[queue].rx.add(u64::from(run.frames), run.bytes);
            to.stats.queues[rx_queue].tx.add(u64::from(run.frames), run.bytes);
            if !std::mem::replace(&mut to.rung, true) {
                self.scratch.rung.push(dst);
            }
        }
        Some((run, rx_queue))
    }

    /// A run ended at a full ring: its port is waited for, or what is left of the run is lost.
    fn find_full(
        &mut self,
        dst: PortId,
        queue: usize,
        header: Header,
        run: Run,
        budget: u32,
    ) -> Moved {
        if self.switch.entry_mut(dst).is_some_and(|to| to.on_full == OnFull::Wait) {
            let full = Full { port: dst, queue, slots: 1 };
            return Moved { slots: run.frames, blocked_on: Some(full) };
        }
        self.note_crowded(dst, queue);
        self.lose(dst, DropReason::NoRoom, header, run, budget - run.frames)
    }

    /// Frames for a ring without room are to be dropped: its client may want this core.
    fn note_crowded(&mut self, dst: PortId, queue: usize) {
        if let Some(to) = self.switch.entry_mut(dst)
            && let Some(rings) = to.plug.rings()
        {
            let gives = give_way(&mut to.ways, &mut rings.rx[queue]);
            self.scratch.crowded |= gives;
        }
    }

    /// Up to `max` more frames of a run cannot be delivered: counted at the destination.
    fn lose(
        &mut self,
        dst: PortId,
        reason: DropReason,
        header: Header,
        run: Run,
        max: u32,
    ) -> Moved {
        let lost = self.drop_frames(header, max);
        self.count_drop(dst, reason, lost);
        Moved::slots(run.frames + lost)
    }

    fn run_drop(&mut self, header: Header, budget: u32, reason: DropReason) -> Moved {
        let lost = self.drop_frames(header, budget);
        self.count_drop(self.src, reason, lost);
        Moved::slots(lost)
    }

    /// Takes a run that goes nowhere; the caller counts why.
    fn drop_frames(&mut self, header: Header, max: u32) -> u32 {
        let run = drop_run(self.tx(), key(header), max);
        self.count_taken(run.frames, run.bytes);
        run.frames
    }

    fn count_taken(&mut self, frames: u32, bytes: u64) {
        let queue = self.queue;
        if let Some(entry) = self.switch.entry_mut(self.src) {
            entry.stats.queues[queue].rx.add(u64::from(frames), bytes);
        }
    }

    fn count_drop(&mut self, port: PortId, reason: DropReason, frames: u32) {
        if let Some(entry) = self.switch.entry_mut(port) {
            entry.stats.drops.add(reason, u64::from(frames));
        }
    }

    /// Wakes whoever sleeps: destinations that got something, and the sender that has room again.
    fn ring_doorbells(&mut self) {
        store_load_fence();
        while let Some(dst) = self.scratch.rung.pop() {
            let Some(entry) = self.switch.entry_mut(dst) else { continue };
            entry.rung = false;
            match &mut entry.plug {
                Plug::Adapter(adapter) => {
                    adapter.flush();
                    self.scratch.crowded |= adapter.is_socket();
                    if adapter.owes_wake() {
                        self.scratch.owed_wakes.push(dst);
                    }
                }
                Plug::Rings(rings, wake) => {
                    if any(rings.rx.iter_mut().map(RxKring::wants_kick)) {
                        wake.wake();
                        self.scratch.woken.push(dst);
                    }
                }
            }
        }
        if let Some(Entry { plug: Plug::Rings(rings, wake), .. }) = self.switch.entry_mut(self.src)
            && any(rings.tx.iter_mut().map(TxKring::wants_kick))
        {
            wake.wake();
        }
    }
}

/// Frames for a ring without room were dropped: is its client to be given way? Some times for each
/// time it has taken frames, so that one who takes none costs the others nothing.
#[cold]
fn give_way(ways: &mut u8, rx: &mut RxKring) -> bool {
    /// The system may let a thread that gives its core away go on at once.
    const WAYS: u8 = 8;
    if rx.has_moved() {
        *ways = WAYS;
    }
    let gives = *ways > 0;
    *ways = ways.saturating_sub(1);
    gives
}

/// Is any of them true? Asks all.
#[inline]
fn any(flags: impl Iterator<Item = bool>) -> bool {
    flags.fold(false, |any, flag| any | flag)
}

/// The receive ring for frames of transmit ring `queue`, as VALE pairs them.
#[inline]
fn queue_of(queue: usize, rings: &Krings) -> usize {
    let count = rings.rx.len();
    if queue < count { queue } else { queue % count }
}

fn key(header: Header) -> Key {
    Key::new(u128::from_le_bytes(header.bytes()), header.key_mask())
}

fn frames(count: usize) -> u32 {
    u32::try_from(count).expect("a batch is small")
}
