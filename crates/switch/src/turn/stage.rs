//! The general path of a turn: frames taken into a batch, decided, and delivered list by list.

use std::ops::Range;
use std::sync::Arc;

use packet::PortId;
use packet::ethernet::Header;
use ring::exchange::Giver;
use ring::kring::{BadSlot, Refused, RxKring, Taken, TxKring};
use ring::metadata::Functions;

use super::{Fate, Full, Moved, Scratch, TurnOf, frames, give_way, queue_of};
use crate::decide::bridge::{Decision, TagAction};
use crate::mirror::{Monitors, Watch};
use crate::model::config::OnFull;
use crate::model::port::{Plug, Sent};
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, Entry, FRAGS_MAX, prologue};
use crate::receive::slot_flags::Asks;
use crate::switch::{Entry as PortEntry, Switch};

/// Of frames that are classified, the beginnings of so many are fetched before they are read.
const AHEAD: u32 = 32;

/// Which frames a batch takes.
#[derive(Clone, Copy)]
pub(super) enum Take {
    /// Those of any shape.
    Any,
    /// Those that lie in one plain slot.
    Plain,
    /// Plain ones with this key.
    Run(u128),
}

/// Which frames are sent.
#[derive(Clone, Debug)]
pub(super) enum Part {
    /// These of the list.
    Taken(Range<usize>),
    /// Those that the edge has finished.
    Finished,
}

impl Take {
    /// May the next frame of a ring be taken?
    fn allows(self, tx: &TxKring) -> bool {
        let key = |bits: u128| Header::new(bits.to_le_bytes()).key();
        match self {
            Take::Any => true,
            Take::Plain => tx.peek().is_some(),
            Take::Run(wanted) => tx.peek().map(key) == Some(wanted),
        }
    }
}

impl TurnOf<'_> {
    /// Takes a run that is flooded.
    pub(super) fn stage_run(&mut self, header: Header, budget: u32) -> Moved {
        let slots = self.take_batch(budget, Take::Run(header.key()));
        self.deliver_batch(true);
        Moved::slots(slots)
    }

    /// Takes frames of any shape and delivers them.
    pub(super) fn stage(&mut self, budget: u32) -> Moved {
        let budget = if self.switch.in_order { 1 } else { budget };
        let slots = self.take_batch(budget, Take::Any);
        let blocked_on = self.deliver_batch(true);
        if blocked_on.is_none() {
            return Moved::slots(slots);
        }
        self.tx().untake(slots);
        Moved { slots: 0, blocked_on }
    }

    /// Takes plain frames to single ports and delivers them, if all find room where they would be
    /// waited for; none otherwise.
    pub(super) fn stage_fitting(&mut self, budget: u32) -> Moved {
        let taken = self.take_batch(budget, Take::Plain);
        let mut kept = self.link_single();
        if !self.lists_fit() {
            kept = 0;
            self.scratch.groups.clear();
        }
        self.scratch.batch.truncate(kept);
        self.tx().untake(taken - frames(kept));
        let blocked_on = self.flush_groups(true);
        debug_assert_eq!(blocked_on, None);
        self.count_batch();
        Moved::slots(frames(kept))
    }

    /// Links the frames of the batch up to the first that does not go to one port; returns how
    /// many.
    fn link_single(&mut self) -> usize {
        let (count, mut start) = (self.scratch.batch.frames().len(), 0);
        while start < count {
            let run = start..self.scratch.batch.run_end(start);
            let Fate::To(dst, tag) = self.decide(self.scratch.batch.frames()[start].header) else {
                break;
            };
            if self.is_cut_off(&run) {
                break;
            }
            self.scratch.groups.link(dst, tag, run.clone());
            start = run.end;
        }
        start
    }

    /// Has every port that asks to be waited for room for its list?
    fn lists_fit(&mut self) -> bool {
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

    /// Moves up to `budget` slots' worth of frames from the ring into the batch.
    pub(super) fn take_batch(&mut self, budget: u32, take: Take) -> u32 {
        let (queue, steered) = (self.queue, self.is_function(self.src));
        let is_seen = !steered && self.switch.steering.is_some();
        let Some(entry) = self.switch.entry_mut(self.src) else { return 0 };
        let Some(rings) = entry.plug.rings() else { return 0 };
        let (tx, batch) = (&mut rings.tx[queue], &mut self.scratch.batch);
        let before = tx.ready();
        batch.restart(tx.region());
        if is_seen {
            (0..AHEAD).for_each(|slots| tx.fetch_ahead(slots));
        }
        while before - tx.ready() < budget && batch.has_room() && take.allows(tx) {
            if is_seen {
                tx.fetch_ahead(AHEAD);
            }
            let (first, at) = (batch.frags().len(), tx.next_index());
            let taken = tx.take(batch.frags(), FRAGS_MAX);
            // Also of what is dropped, and of all its slots: the next frame there is another.
            let mark = if steered { tx.take_metadata(at) } else { 0 };
            match taken {
                None => break,
                Some(Taken::Bad(why)) => entry.stats.drops.add(bad_slot(why), 1),
                Some(Taken::Frame { bytes, slot, flags }) => {
                    batch.push(first, bytes, slot, flags);
                    batch.set_mark(batch.frames().len() - 1, mark);
                    if tx.vnet_header_len() != 0 {
                        batch.push_front(tx.vnet_header(), tx.vnet_header_len());
                    }
                }
            }
        }
        before - tx.ready()
    }

    /// Decides and delivers what is in the batch. `Some`: the batch is one frame that `may_wait`,
    /// and its destination, whose ring this is, wants it to.
    pub(super) fn deliver_batch(&mut self, may_wait: bool) -> Option<Full> {
        let count = self.scratch.batch.frames().len();
        let mut start = 0;
        while start < count {
            let Entry { header, asks, .. } = self.scratch.batch.frames()[start];
            let run = start..self.scratch.batch.run_end(start);
            let fate = if asks == Asks::NOTHING {
                self.decide(header)
            } else {
                // No other frame has this decision: it is not kept.
                self.ask(header, asks)
            };
            match fate {
                Fate::Drop(reason) => self.count_drop(self.src, reason, frames(run.len())),
                _ if self.is_cut_off(&run) => {
                    self.count_drop(self.src, DropReason::TooShort, frames(run.len()));
                }
                Fate::To(dst, tag) => self.scratch.groups.link(dst, tag, run.clone()),
                Fate::Flood(decision) => {
                    self.flush_groups(may_wait);
                    self.flood(&decision, run.clone());
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

    pub(super) fn count_batch(&mut self) {
        let batch = self.scratch.batch.frames();
        let bytes = batch.iter().map(|frame| u64::from(frame.bytes)).sum();
        self.count_taken(frames(batch.len()), bytes);
    }

    /// Does a tag end where the frame ends?
    pub(super) fn is_cut_off(&self, run: &Range<usize>) -> bool {
        const TAGGED_MIN: u32 = 18;
        let frames = &self.scratch.batch.frames()[run.clone()];
        frames[0].header.tag().is_some() && frames.iter().any(|frame| frame.bytes < TAGGED_MIN)
    }

    /// Gives every destination its list.
    pub(super) fn flush_groups(&mut self, may_wait: bool) -> Option<Full> {
        let mut waits = None;
        while let Some(dst) = self.scratch.groups.next(&mut self.scratch.list) {
            waits = waits.or(self.send(dst, true, may_wait));
        }
        waits
    }

    /// Copies a run of frames to every port that is to get it.
    fn flood(&mut self, decision: &Decision, run: Range<usize>) {
        let mut targets = std::mem::take(&mut self.scratch.targets);
        targets.clear();
        targets.extend(self.switch.bridge.flood_targets(self.src, decision));
        if targets.is_empty() {
            self.count_drop(self.src, DropReason::NoDestination, frames(run.len()));
        }
        for &dst in &targets {
            match self.switch.bridge.egress(self.src, dst, decision) {
                Ok(tag) => {
                    let list = run.clone().map(|i| Delivery { frame: narrow(i), tag });
                    self.scratch.list.clear();
                    self.scratch.list.extend(list);
                    self.send(dst, false, false);
                }
                Err(reason) => self.count_drop(dst, reason, frames(run.len())),
            }
        }
        self.scratch.targets = targets;
    }

    /// Sends the list to one port; `alone`: no other port gets these frames, their buffers may be
    /// swapped. `Some`: the port is full and wants the one frame, which `may_wait`, to wait.
    pub(super) fn send(&mut self, dst: PortId, alone: bool, may_wait: bool) -> Option<Full> {
        if self.scratch.batch.is_finished() {
            return self.send_part(dst, Part::Taken(0..self.scratch.list.len()), alone, may_wait);
        }
        self.send_over_edge(dst);
        None
    }

    /// Sends a part of it, in the same way.
    pub(super) fn send_part(
        &mut self,
        dst: PortId,
        part: Part,
        alone: bool,
        may_wait: bool,
    ) -> Option<Full> {
        let (queue, from_function) = (self.queue, self.is_function(self.src));
        let marks = self.is_function(dst);
        let pair = [self.src.index(), dst.index()];
        let Scratch { batch, list, edge, crowded, foreign, .. } = &mut *self.scratch;
        let (batch, list) = match part {
            Part::Taken(part) => (&mut *batch, &list[part]),
            Part::Finished => (&mut edge.batch, &edge.list[..]),
        };
        let Switch { ports, monitors, .. } = &mut *self.switch;
        let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut(pair) else {
            let lost = frames(list.len());
            self.count_drop(self.src, DropReason::DeadPort, lost);
            return None;
        };
        let mut rx_queue = 0;
        let giver = giver(from, queue, batch).filter(|_| alone);
        let sent = match (&mut to.plug, giver) {
            (Plug::Adapter(adapter), None) => adapter.send(batch, list),
            (Plug::Adapter(adapter), Some(giver)) => adapter.send_owned(batch, list, giver),
            (Plug::Rings(rings, _), giver) => {
                rx_queue = queue_of(queue, rings);
                let mut watch = to.watch.as_deref_mut().map(|watch| (rx_queue, watch, monitors));
                let foreign = from_function.then_some(foreign);
                let from = giver.map(|giver| From { giver, foreign });
                let rx = &mut rings.rx[rx_queue];
                send_to_ring(rx, marks, batch, list, from, &mut watch)
            }
        };
        let lost = list.len() as u64 - sent.delivered.frames;
        if sent.drops.get(DropReason::NoRoom) > 0
            && let Some(rings) = to.plug.rings()
        {
            if to.on_full == OnFull::Wait && may_wait {
                let bytes = batch.frames().first().map_or(0, |frame| frame.bytes);
                let slots = rings.rx[rx_queue].slots_for(bytes);
                return Some(Full { port: dst, queue: rx_queue, slots });
            }
            *crowded |= give_way(&mut to.ways, &mut rings.rx[rx_queue]);
        }
        to.stats.queues[rx_queue].tx += sent.delivered;
        to.stats.drops += &sent.drops;
        if lost > 0 && self.switch.steering.is_some() {
            self.note_lost(dst, lost);
            while let Some(mark) = self.scratch.foreign.pop() {
                self.end(mark, DropReason::BadIndex, 1);
            }
        }
        self.note_rung(dst);
        None
    }

    fn note_rung(&mut self, dst: PortId) {
        if let Some(entry) = self.switch.entry_mut(dst)
            && !entry.rung
        {
            entry.rung = true;
            self.scratch.rung.push(dst);
        }
    }
}

/// Who gives the buffers of a batch for others.
#[inline]
fn giver<'a>(from: &'a mut PortEntry, queue: usize, batch: &Batch) -> Option<Giver<'a>> {
    match &mut from.plug {
        Plug::Rings(rings, _) => Some(Giver::Ring(&rings.tx[queue])),
        Plug::Adapter(_) => batch.trader().map(Giver::Exchange),
    }
}

/// Who frames come from.
struct From<'a> {
    giver: Giver<'a>,
    /// Its client is a function of a chain: what it sends must be its own. The marks of frames that
    /// are not.
    foreign: Option<&'a mut Vec<u64>>,
}

/// Why a frame was not sent.
enum Unsent {
    Refused(Refused),
    /// It was not its sender's to send.
    Foreign,
}

/// Delivers a list into a receive ring. Where the frames come from the same region, buffers are
/// exchanged with who gives them. `marks`: a function reads what slots say of frames.
fn send_to_ring(
    rx: &mut RxKring,
    marks: bool,
    batch: &mut Batch,
    list: &[Delivery],
    from: Option<From<'_>>,
    watch: &mut Option<(usize, &mut Watch, &mut Monitors)>,
) -> Sent {
    let mut sent = Sent::default();
    rx.sync();
    if let Some((queue, watch, monitors)) = watch {
        watch.show_returned(*queue, rx, monitors);
    }
    let shared = Arc::ptr_eq(batch.region(), rx.region());
    // A header that was taken off may have had a slot of its own: not the frame's, then.
    let behind = |giver: &Giver<'_>| matches!(giver, Giver::Ring(tx) if tx.vnet_header_len() != 0);
    let from = from.filter(|from| shared && !behind(&from.giver));
    let (giver, mut foreign) = from.map_or((None, None), |from| (Some(from.giver), from.foreign));
    let functions = Functions { sender: foreign.is_some(), receiver: marks };
    let mut rest = list;
    while let Some((delivery, others)) = rest.split_first() {
        if let Some(Giver::Ring(tx)) = giver {
            let singles = rest.iter().map_while(|&delivery| batch.single(delivery));
            let (frames, bytes) = rx.swap_taken(tx, functions, singles);
            if frames > 0 {
                sent.delivered.add(frames.into(), bytes);
                rest = &rest[frames as usize..];
                continue;
            }
        }
        rest = others;
        if marks {
            // Also none, where a rule or a static address leads past the chains: what the slot said
            // was of another frame.
            rx.set_next_metadata(batch.frames()[usize::from(delivery.frame)].mark);
        }
        match put(rx, batch, *delivery, giver, functions) {
            Ok(bytes) => sent.delivered.add(1, u64::from(bytes)),
            Err(Unsent::Refused(why)) => sent.drops.add(refusal(why), 1),
            Err(Unsent::Foreign) => {
                let mark = batch.frames()[usize::from(delivery.frame)].mark;
                foreign.iter_mut().for_each(|marks| marks.push(mark));
            }
        }
    }
    if let Some((queue, watch, monitors)) = watch {
        watch.show_received(*queue, rx, monitors);
    }
    rx.publish();
    sent
}

#[inline]
fn put(
    rx: &mut RxKring,
    batch: &mut Batch,
    delivery: Delivery,
    from: Option<Giver<'_>>,
    functions: Functions,
) -> Result<u32, Unsent> {
    let entry = &batch.frames()[usize::from(delivery.frame)];
    if rx.vnet_header_len() != 0 {
        let head = prologue(entry.header, entry.bytes, delivery.tag);
        let front = batch.front(delivery.frame, rx.vnet_header_len());
        return rx.put_behind(front, batch.frame(entry), head).map_err(Unsent::Refused);
    }
    if let (TagAction::Keep, &[piece]) = (delivery.tag, batch.pieces(entry)) {
        match (from.filter(|_| rx.can_swap(piece)), entry.slot) {
            (Some(Giver::Ring(tx)), Some(slot)) => {
                if functions.sender && !tx.owns(piece) {
                    return Err(Unsent::Foreign);
                }
                let sent = rx.put_swapped(tx, slot, piece, functions.receiver);
                return sent.map_err(Unsent::Refused);
            }
            (Some(Giver::Exchange(trader)), _) => {
                if let Some(spare) = rx.put_exchanged(piece, trader).map_err(Unsent::Refused)? {
                    batch.exchange(delivery.frame, spare);
                    return Ok(u32::from(piece.len()));
                }
            }
            _ => {}
        }
        if rx.fits(piece) {
            let header = u128::from_le_bytes(entry.header.bytes());
            return rx.put_single(batch.region(), piece, header).map_err(Unsent::Refused);
        }
    }
    let head = prologue(entry.header, entry.bytes, delivery.tag);
    rx.put(batch.frame(entry), head).map_err(Unsent::Refused)
}

fn bad_slot(why: BadSlot) -> DropReason {
    match why {
        BadSlot::Buffer => DropReason::BadIndex,
        BadSlot::TooLong | BadSlot::Flags => DropReason::BadSlot,
        BadSlot::TooShort => DropReason::TooShort,
        BadSlot::Chain => DropReason::BadFragments,
    }
}

fn refusal(why: Refused) -> DropReason {
    match why {
        Refused::NoRoom => DropReason::NoRoom,
        Refused::BadSlot => DropReason::BadIndex,
        Refused::TooLong => DropReason::TooLong,
    }
}

pub(super) fn narrow(index: usize) -> u16 {
    u16::try_from(index).expect("a batch is small")
}
