//! Staging, the general path of a turn: the switch decides a batch and delivers it list by list.

use std::ops::Range;

use packet::PortId;
use ring::exchange::Giver;

use crate::decide::bridge::VlanVerdict;
use crate::decide::egress::Egress;
use crate::decide::forward::Verdict;
use crate::deliver::into_ring::{Source, send_to_ring};
use crate::deliver::run::{queue_of, yields_core};
use crate::model::config::{COPIES, OnFull};
use crate::model::heartbeat::Stage;
use crate::model::port::Full;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, Entry, to_u16, to_u32};
use crate::receive::take::Take;
use crate::switch::{Entry as PortEntry, Switch};
use crate::turn::{Moved, Scratch, Turn};

use packet::ethernet::Header;

/// The frames that are sent.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// A part of the list.
    Batch(Range<usize>),
    /// Segments and completed frames made in software.
    Segments,
}

impl Turn<'_> {
    /// Takes a run and floods it.
    pub(crate) fn stage_run(&mut self, header: Header, budget: u32) -> Moved {
        let slots = self.take_batch(budget, Take::Run(header.key()));
        self.deliver_batch(true);
        Moved::slots(slots)
    }

    /// Takes frames of any shape and delivers them.
    pub(crate) fn stage(&mut self, budget: u32) -> Moved {
        let budget = if self.switch.has_backpressure { 1 } else { budget };
        let slots = self.take_batch(budget, Take::Any);
        let blocked_on = self.deliver_batch(true);
        if blocked_on.is_none() {
            return Moved::slots(slots);
        }
        self.tx().untake(slots);
        Moved { slots: 0, blocked_on }
    }

    /// Takes plain frames for single ports and delivers them, if all of them fit where senders wait
    /// for room. Otherwise it takes none.
    pub(crate) fn stage_fitting(&mut self, budget: u32) -> Moved {
        let taken = self.take_batch(budget, Take::SingleSlot);
        let mut kept = self.link_unicast();
        if !self.lists_fit() {
            kept = 0;
            self.scratch.groups.clear();
        }
        self.scratch.batch.truncate(kept);
        debug_assert!(to_u32(kept) <= taken, "the batch keeps frames that it has taken");
        self.tx().untake(taken - to_u32(kept));
        let blocked_on = self.flush_groups(true);
        debug_assert_eq!(blocked_on, None, "every list fits");
        self.count_batch();
        Moved::slots(to_u32(kept))
    }

    /// Links the frames of the batch up to the first that does not go to one port. Returns how many
    /// frames it has linked.
    pub(crate) fn link_unicast(&mut self) -> usize {
        let (count, mut start) = (self.scratch.batch.frames().len(), 0);
        while start < count {
            let run = start..self.scratch.batch.run_end(start);
            let Entry { header, flags, .. } = self.scratch.batch.frames()[start];
            let Egress::To(dst, tag) = self.decide_taken(header, flags) else { break };
            if self.is_tag_truncated(&run) {
                break;
            }
            self.scratch.groups.link(dst, tag, run.clone());
            start = run.end;
        }
        start
    }

    /// Whether every port with `on_full = wait` has room for its list.
    pub(crate) fn lists_fit(&mut self) -> bool {
        let Scratch { batch, groups, .. } = &*self.scratch;
        groups.used().iter().all(|&dst| {
            let Some(entry) = self.switch.entry_mut(dst) else { return true };
            if entry.on_full != OnFull::Wait {
                return true;
            }
            let Some(rings) = entry.plug.rings() else { return true };
            let queue = queue_of(self.queue, rings);
            let rx = &mut rings.rx[queue];
            let wanted = groups.frames_of(dst).map(|i| rx.slots_for(batch.frames()[i].bytes)).sum();
            rx.room() >= wanted || rx.sync() >= wanted
        })
    }

    /// Decides and delivers the batch. `Some`: the batch is one frame that `may_wait`, and the ring
    /// that it is for is full.
    pub(crate) fn deliver_batch(&mut self, may_wait: bool) -> Option<Full> {
        let count = self.scratch.batch.frames().len();
        let mut start = 0;
        while start < count {
            let Entry { header, flags, .. } = self.scratch.batch.frames()[start];
            let run = start..self.scratch.batch.run_end(start);
            match self.decide_taken(header, flags) {
                Egress::Drop(reason) => self.count_drop(self.src, reason, to_u32(run.len())),
                _ if self.is_tag_truncated(&run) => {
                    self.count_drop(self.src, DropReason::TooShort, to_u32(run.len()));
                }
                Egress::To(dst, tag) => self.scratch.groups.link(dst, tag, run.clone()),
                Egress::Flood(verdict) => {
                    self.flush_groups(may_wait);
                    let admitted = self.limit_flood(&verdict, run.clone());
                    if !admitted.is_empty() {
                        self.flood(&verdict, admitted);
                    }
                }
            }
            start = run.end;
        }
        let waits = self.flush_groups(may_wait);
        if waits.is_none() {
            self.count_batch();
        }
        waits
    }

    /// Counts the batch at its source.
    pub(crate) fn count_batch(&mut self) {
        let batch = self.scratch.batch.frames();
        let bytes = batch.iter().map(|frame| u64::from(frame.bytes)).sum();
        self.count_taken(to_u32(batch.len()), bytes);
    }

    /// Whether a frame of the run ends inside of its VLAN tag.
    pub(crate) fn is_tag_truncated(&self, run: &Range<usize>) -> bool {
        const TAGGED_MIN: u32 = 18;
        let frames = &self.scratch.batch.frames()[run.clone()];
        frames[0].header.tag().is_some() && frames.iter().any(|frame| frame.bytes < TAGGED_MIN)
    }

    /// Gives every destination its list.
    pub(crate) fn flush_groups(&mut self, may_wait: bool) -> Option<Full> {
        let mut waits = None;
        while let Some(dst) = self.scratch.groups.next(&mut self.scratch.list) {
            waits = waits.or(self.send(dst, true, may_wait));
        }
        waits
    }

    /// The frames of a run that the source may flood now. The others are dropped.
    pub(crate) fn limit_flood(&mut self, verdict: &VlanVerdict, run: Range<usize>) -> Range<usize> {
        if !self.switch.bridge.has_flood_limits(self.src) {
            return run;
        }
        let may_flood = |frame: &usize| self.may_flood(self.src, verdict, *frame);
        let end = run.start + run.clone().take_while(may_flood).count();
        if let Verdict::Flood(class) = verdict.forward {
            self.count_drop(self.src, class.storm(), to_u32(run.end - end));
        }
        run.start..end
    }

    /// Whether a port may flood this frame of the batch now. All its segments count.
    pub(crate) fn may_flood(&mut self, from: PortId, verdict: &VlanVerdict, frame: usize) -> bool {
        let Verdict::Flood(class) = verdict.forward else { return true };
        let segments = self.scratch.batch.segments(frame);
        self.switch.bridge.may_flood(from, class, segments, self.now)
    }

    /// Copies a run of frames to every port in its VLAN that takes such frames.
    pub(crate) fn flood(&mut self, verdict: &VlanVerdict, run: Range<usize>) {
        let mut targets = std::mem::take(&mut self.scratch.targets);
        targets.clear();
        targets.extend(self.switch.bridge.flood_targets(self.src, verdict));
        debug_assert!(!targets.contains(&self.src), "a flood does not go back");
        if targets.is_empty() {
            self.count_drop(self.src, DropReason::NoDestination, to_u32(run.len()));
        }
        if self.pays_for(&run, to_u32(targets.len())) {
            for &dst in &targets {
                match self.switch.bridge.egress(self.src, dst, verdict) {
                    Ok(tag) => {
                        let list = run.clone().map(|i| Delivery { frame: to_u16(i), tag });
                        self.scratch.list.clear();
                        self.scratch.list.extend(list);
                        self.send(dst, false, false);
                    }
                    Err(reason) => self.count_drop(dst, reason, to_u32(run.len())),
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
            self.count_drop(self.src, DropReason::Offload, to_u32(run.len()));
        }
        !is_too_much
    }

    /// Sends the list to one port. `alone`: no other port gets these frames, so their buffers may
    /// be swapped. `Some`: the port is full, and the one frame, which `may_wait`, waits for it.
    pub(crate) fn send(&mut self, dst: PortId, alone: bool, may_wait: bool) -> Option<Full> {
        if !self.scratch.batch.has_offloads() {
            return self.send_part(dst, Part::Batch(0..self.scratch.list.len()), alone, may_wait);
        }
        self.send_with_offloads(dst);
        None
    }

    /// Sends a part of the list, with the arguments of [`send`](Turn::send).
    pub(crate) fn send_part(
        &mut self,
        dst: PortId,
        part: Part,
        alone: bool,
        may_wait: bool,
    ) -> Option<Full> {
        let (queue, from_function) = (self.queue, self.is_function(self.src));
        let marks = self.is_function(dst);
        let pair = [self.src.index(), dst.index()];
        let Scratch { batch, list, software, crowded, foreign, heartbeat, .. } = &mut *self.scratch;
        let (batch, list) = match part {
            Part::Batch(part) => (&mut *batch, &list[part]),
            Part::Segments => (&mut software.batch, &software.list[..]),
        };
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut(pair) else {
            let lost = to_u32(list.len());
            self.count_drop(self.src, DropReason::DeadPort, lost);
            return None;
        };
        let mut rx_queue = 0;
        let giver = giver(from, queue, batch).filter(|_| alone);
        if matches!(to.plug, Plug::Adapter(_)) {
            heartbeat.beat(Stage::Send, dst);
        }
        let sent = match (&mut to.plug, giver) {
            (Plug::Adapter(adapter), None) => adapter.send(batch, list),
            (Plug::Adapter(adapter), Some(giver)) => adapter.send_owned(batch, list, giver),
            (Plug::Rings(rings, _), giver) => {
                rx_queue = queue_of(queue, rings);
                let port_mirrors = to.mirrors.as_deref_mut();
                let mut taps = port_mirrors.map(|its| (rx_queue, its, mirrors));
                let foreign = from_function.then_some(foreign);
                let from = giver.map(|giver| Source { giver, foreign });
                let rx = &mut rings.rx[rx_queue];
                send_to_ring(rx, marks, batch, list, from, &mut taps)
            }
        };
        debug_assert!(sent.delivered.frames <= list.len() as u64, "a frame arrives once");
        let lost = list.len() as u64 - sent.delivered.frames;
        if sent.drops.get(DropReason::NoRoom) > 0
            && let Some(rings) = to.plug.rings()
        {
            if to.on_full == OnFull::Wait && may_wait {
                let bytes = batch.frames().first().map_or(0, |frame| frame.bytes);
                let slots = rings.rx[rx_queue].slots_for(bytes);
                return Some(Full { port: dst, queue: rx_queue, slots });
            }
            *crowded |= yields_core(&mut to.yields_left, &mut rings.rx[rx_queue]);
        }
        to.stats.queues[rx_queue].rx += sent.delivered;
        to.stats.drops += &sent.drops;
        if lost > 0 && self.switch.steering.is_some() {
            self.uncount_sent(dst, lost);
            while let Some(mark) = self.scratch.foreign.pop() {
                self.count_end(mark, DropReason::BadIndex, 1);
            }
        }
        self.note_rung(dst);
        None
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
