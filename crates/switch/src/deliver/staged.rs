//! Staging, the general path of a turn: the switch decides a batch and delivers it list by list.
//!
//! # Theory of operation
//!
//! ```text
//!         ┌─ drop                                     ┌─ list of port 1 ─┐
//!  run ───┼─ to one port ──► what fits ──► linked ────┼─ list of port 2 ─┼─► one send for each
//!         │                                           └─ …               │
//!         └─ flood ──► lists are sent ──► what fits ──► within limits ───┴─► a send for each copy
//! ```
//!
//! Frames that follow each other and have one header are a *run*: they get one decision. A run to
//! one port is only linked to the port's list (`groups`), with its slots reserved in the port's
//! ring. Lists are sent at the end of the batch, and before a flood, so that frames between two
//! ports keep their order.
//!
//! A batch that was taken from a ring ends at the first frame that waits for room (`room`): what is
//! in front of it is delivered, and the ring gets the rest back. A batch that an adapter has given
//! cannot go back: none of it waits, and what finds no room is dropped.
//!
//! A list is sent in one call. Where frames carry offloads that the port does not accept, it is
//! sent in parts (`edge`).

use std::ops::Range;

use packet::PortId;
use ring::exchange::Giver;

use crate::decide::bridge::VlanVerdict;
use crate::decide::egress::Egress;
use crate::deliver::into_ring::{Source, Taps, send_to_ring};
use crate::deliver::room::Fitting;
use crate::deliver::run::queue_of;
use crate::mirror::MirrorPoint;
use crate::model::config::COPIES;
use crate::model::heartbeat::Stage;
use crate::model::port::Full;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, Entry, TAGGED_MIN, to_u16, to_u32};
use crate::switch::{Entry as PortEntry, Switch};
use crate::turn::{Moved, Scratch, Turn};

/// Where a run goes.
enum Target<'a> {
    /// To this port.
    One(PortId),
    /// To several ports.
    All(&'a VlanVerdict),
}

/// The frames that are sent.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// A part of the list.
    Batch(Range<usize>),
    /// Segments and completed frames made in software.
    Segments,
}

impl Turn<'_> {
    /// Takes frames of any shape, and delivers them up to the first that waits for room.
    pub(crate) fn stage(&mut self, budget: u32) -> Moved {
        let taken = self.take_batch(budget);
        let (kept, blocked_on) = self.deliver_fitting();
        let untaken = match self.scratch.batch.truncate(kept) {
            Some(slot) => self.tx().untake(slot),
            None => 0,
        };
        self.count_batch();
        debug_assert!(untaken <= taken, "the batch gives back frames that it has taken");
        Moved { slots: taken - untaken, blocked_on }
    }

    /// Decides and delivers the whole batch. What has no room is dropped.
    pub(crate) fn deliver_batch(&mut self) {
        let mut start = 0;
        while start < self.scratch.batch.frames().len() {
            let run = self.run_at(start);
            start = run.end;
            self.deliver_some(run, |_, run, _| (run, None));
        }
        self.flush_groups();
        self.count_batch();
    }

    /// Decides and delivers the batch up to the first frame that waits. Returns the number of
    /// frames before it, and the ring that it waits for.
    fn deliver_fitting(&mut self) -> (usize, Option<Full>) {
        let (mut start, mut blocked_on) = (0, None);
        while blocked_on.is_none() && start < self.scratch.batch.frames().len() {
            let run = self.run_at(start);
            (start, blocked_on) = self.deliver_some(run, |turn, run, to| match to {
                Target::One(dst) => turn.fitting(dst, run),
                Target::All(verdict) => turn.fitting_flood(verdict, run),
            });
        }
        self.flush_groups();
        (start, blocked_on)
    }

    /// Decides a run, and delivers or links as much of it as `fitting` says. Returns where it ends,
    /// and the ring that the next frame waits for.
    fn deliver_some(
        &mut self,
        run: Range<usize>,
        fitting: impl FnOnce(&mut Self, Range<usize>, Target<'_>) -> Fitting,
    ) -> (usize, Option<Full>) {
        let Entry { header, flags, .. } = self.scratch.batch.frames()[run.start];
        let end = run.end;
        match self.decide_taken(header, flags) {
            Egress::Drop(reason) => self.drop_batch(self.src, reason, run),
            // One that leaves as it came would have passed in a run, too.
            egress if !egress.keeps_frame() && self.is_tag_truncated(&run) => {
                self.drop_batch(self.src, DropReason::TooShort, run);
            }
            Egress::To(dst, tag) => {
                let (run, full) = fitting(self, run, Target::One(dst));
                let end = run.end;
                self.scratch.groups.link(dst, tag, run);
                return (end, full);
            }
            Egress::Flood(verdict) => {
                self.flush_groups();
                let (verdict, run) = self.find_targets(verdict, run);
                let (run, full) = fitting(self, run, Target::All(&verdict));
                let end = run.end;
                let admitted = self.limit_flood(&verdict, run);
                if !admitted.is_empty() {
                    self.flood(&verdict, admitted);
                }
                return (end, full);
            }
        }
        (end, None)
    }

    /// Finds the ports that get a run. Returns the verdict about it there, and as much of the run
    /// as goes to them.
    #[inline]
    fn find_targets(
        &mut self,
        verdict: VlanVerdict,
        run: Range<usize>,
    ) -> (VlanVerdict, Range<usize>) {
        if self.switch.bridge.snoops(&verdict) {
            return self.find_members(verdict, run);
        }
        let targets = self.switch.bridge.flood_targets(self.src, &verdict);
        self.scratch.targets.clear();
        self.scratch.targets.extend(targets);
        (verdict, run)
    }

    /// The frames from `start` on that get one decision.
    #[inline]
    fn run_at(&mut self, start: usize) -> Range<usize> {
        match self.switch.bridge.looks_into_packets() {
            true => self.show_packet(start),
            false => start..self.scratch.batch.run_end(start),
        }
    }

    /// Shows a packet to the program of the switch. Returns the frames that begin with the same
    /// bytes.
    #[cold]
    fn show_packet(&mut self, start: usize) -> Range<usize> {
        let batch = &self.scratch.batch;
        let first = batch.packet(start);
        let flags = |frame: usize| batch.frames()[frame].flags;
        let is_same = |&frame: &usize| flags(frame) == flags(start) && batch.packet(frame) == first;
        let same = (start + 1..batch.frames().len()).take_while(is_same).count();
        let (bytes, count) = first;
        debug_assert!(count <= bytes.len(), "a packet shows what there is");
        self.switch.bridge.show_packet(&bytes[..count]);
        start..start + 1 + same
    }

    /// Counts the batch at its source.
    pub(crate) fn count_batch(&mut self) {
        let batch = self.scratch.batch.frames();
        let bytes = batch.iter().map(|frame| u64::from(frame.bytes)).sum();
        self.count_taken(to_u32(batch.len()), bytes);
    }

    /// Whether a frame of the run ends inside of its VLAN tag.
    pub(crate) fn is_tag_truncated(&self, run: &Range<usize>) -> bool {
        let frames = &self.scratch.batch.frames()[run.clone()];
        frames[0].header.tag().is_some() && frames.iter().any(|frame| frame.bytes < TAGGED_MIN)
    }

    /// Gives every destination its list.
    pub(crate) fn flush_groups(&mut self) {
        while let Some((dst, slots)) = self.scratch.groups.next(&mut self.scratch.list) {
            self.scratch.reserved = slots;
            self.send(dst, true);
            debug_assert!(self.scratch.reserved == 0, "a list takes the slots that it reserved");
        }
    }

    /// The frames of a run that the source may flood now. The others are dropped.
    pub(crate) fn limit_flood(&mut self, verdict: &VlanVerdict, run: Range<usize>) -> Range<usize> {
        if !self.switch.bridge.has_flood_limits(self.src) {
            return run;
        }
        let may_flood = |frame: &usize| self.may_flood(self.src, verdict, *frame);
        let end = run.start + run.clone().take_while(may_flood).count();
        if let Some(class) = verdict.forward.limited_as() {
            self.drop_batch(self.src, class.storm(), end..run.end);
        }
        run.start..end
    }

    /// Whether a port may flood this frame of the batch now. All its segments count.
    pub(crate) fn may_flood(&mut self, from: PortId, verdict: &VlanVerdict, frame: usize) -> bool {
        let Some(class) = verdict.forward.limited_as() else { return true };
        let segments = self.scratch.batch.segments(frame);
        self.switch.bridge.may_flood(from, class, segments, self.now)
    }

    /// Copies a run of frames to the ports in `scratch.targets`, as far as each may carry them.
    pub(crate) fn flood(&mut self, verdict: &VlanVerdict, run: Range<usize>) {
        let targets = std::mem::take(&mut self.scratch.targets);
        debug_assert!(!targets.contains(&self.src), "a flood does not go back");
        if targets.is_empty() {
            self.drop_batch(self.src, verdict.forward.unreached(), run.clone());
        }
        if self.pays_for(&run, to_u32(targets.len())) {
            for &dst in &targets {
                match self.switch.bridge.egress(self.src, dst, verdict) {
                    Ok(tag) => {
                        let list = run.clone().map(|i| Delivery { frame: to_u16(i), tag });
                        self.scratch.list.clear();
                        self.scratch.list.extend(list);
                        self.send(dst, false);
                    }
                    Err(reason) => self.drop_batch(dst, reason, run.clone()),
                }
            }
        }
        self.scratch.targets = targets;
    }

    /// Charges the copies of a flood to the turn. `false`: they are too many, and the frames are
    /// dropped.
    pub(crate) fn pays_for(&mut self, run: &Range<usize>, targets: u32) -> bool {
        let segments: u32 = run.clone().map(|frame| self.scratch.batch.segments(frame)).sum();
        let copies = segments.saturating_mul(targets);
        self.copies_left = self.copies_left.saturating_sub(copies);
        let is_too_much = copies > 2 * COPIES && segments > to_u32(run.len());
        if is_too_much {
            self.drop_batch(self.src, DropReason::Offload, run.clone());
        }
        !is_too_much
    }

    /// Sends the list to one port. `alone`: no other port gets these frames, so their buffers may
    /// be swapped.
    pub(crate) fn send(&mut self, dst: PortId, alone: bool) {
        if self.scratch.batch.has_offloads() {
            self.send_with_offloads(dst);
        } else {
            self.send_part(dst, Part::Batch(0..self.scratch.list.len()), alone);
        }
    }

    /// Sends a part of the list, with the arguments of [`send`](Turn::send).
    pub(crate) fn send_part(&mut self, dst: PortId, part: Part, alone: bool) {
        let (queue, from_function) = (self.queue, self.is_function(self.src));
        let marks = self.is_function(dst);
        let pair = [self.src.index(), dst.index()];
        let reserved = std::mem::take(&mut self.scratch.reserved);
        let Scratch { batch, list, software, crowded, foreign, refused, heartbeat, .. } =
            &mut *self.scratch;
        // Also of segments: they are made of these frames.
        let is_own = batch.is_own_memory();
        let (batch, list, software) = match &part {
            Part::Batch(part) => (&mut *batch, &list[part.clone()], Some(software)),
            Part::Segments => (&mut software.batch, &software.list[..], None),
        };
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut(pair) else {
            let lost = to_u32(list.len());
            self.count_drop(self.src, DropReason::DeadPort, lost);
            return self.show_list(self.src, DropReason::DeadPort, &part);
        };
        let mut rx_queue = 0;
        match (&from.plug, &to.plug) {
            (Plug::Adapter(_), Plug::Adapter(_)) if is_own => heartbeat.beat(Stage::Send, dst),
            _ => heartbeat.between(self.src, dst),
        }
        if let (Plug::Adapter(_), Some(port_mirrors)) = (&to.plug, &to.mirrors) {
            let (point, frames) = (MirrorPoint::Received, (&mut *batch, list));
            port_mirrors.mirror_list(point, frames, self.src, software, mirrors, heartbeat);
        }
        let giver = giver(from, queue, batch).filter(|_| alone);
        let sent = match (&mut to.plug, giver) {
            (Plug::Adapter(adapter), None) => adapter.lock().send(batch, list),
            (Plug::Adapter(adapter), Some(giver)) => adapter.lock().send_owned(batch, list, giver),
            (Plug::Rings(rings, _), giver) => {
                rx_queue = queue_of(queue, rings);
                let port_mirrors = to.mirrors.as_deref_mut();
                let mut taps =
                    port_mirrors.map(|its| Taps { queue: rx_queue, its, mirrors, heartbeat });
                let foreign = from_function.then_some(foreign);
                let from = giver.map(|giver| Source { giver, foreign });
                let rx = &mut *rings.rx[rx_queue].lock();
                rx.release(reserved);
                send_to_ring(rx, marks, batch, list, from, &mut taps, refused)
            }
        };
        debug_assert!(sent.delivered.frames <= list.len() as u64, "a frame arrives once");
        let lost = list.len() as u64 - sent.delivered.frames;
        to.stats.queues[rx_queue].rx += sent.delivered;
        to.stats.drops += &sent.drops;
        if sent.drops.get(DropReason::NoRoom) > 0 {
            *crowded |= to.look_full(rx_queue, 0, self.now);
        }
        if lost > 0 {
            self.show_unsent(dst, &part, &sent);
        }
        if lost > 0 && self.switch.steering.is_some() {
            self.uncount_sent(dst, lost);
            while let Some(mark) = self.scratch.foreign.pop() {
                self.count_end(mark, DropReason::BadIndex, 1);
            }
        }
        self.note_rung(dst);
    }
}

/// The port that exchanges the buffers of a batch for others.
#[inline]
fn giver<'a>(from: &'a mut PortEntry, queue: usize, batch: &Batch) -> Option<Giver<'a>> {
    match &mut from.plug {
        Plug::Rings(rings, _) => Some(Giver::Ring(&rings.tx[queue])),
        Plug::Adapter(_) => batch.exchange().map(Giver::Port),
    }
}
