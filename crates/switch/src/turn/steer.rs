//! A turn in a switch whose forwarding function is `chain`.
//!
//! ```text
//!  ┌─► next frame ─┬─ from a function ─► its mark ─┬─ one course for all ───► run of equal marks
//!  │               │                               └─ else ────────────────► staged
//!  │               └─ from outside ─┬─ no rule, one instance each ─────────► run of one header,
//!  │                                │                                        of a wire of any
//!  │                                └─ else: classified frame by frame ────► staged
//!  └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! In a run from function to function nobody looks at the frames: between ports of one region two
//! slots are exchanged, and the mark is written into one of them.

use packet::PortId;
use packet::ethernet::Header;
use ring::krings::Krings;
use ring::metadata::{Functions, drop_by_metadata, metadata_run};
use ring::run::{End, Key, Run, drop_run};

use super::stage::{Take, narrow};
use super::{Fate, Moved, TurnOf, key};
use crate::chain::Course;
use crate::chain::cache::Flow;
use crate::chain::meta::Meta;
use crate::chain::service::Instance;
use crate::decide::bridge::{Decision, TagAction};
use crate::decide::forward::Verdict;
use crate::model::now::Now;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Delivery, Entry as Taken};
use crate::receive::slot_flags::Asks;
use crate::switch::{Entry, Switch};

/// The tags of a flow are fetched so many flows before they are searched.
const TAGS_AHEAD: usize = 16;

/// What is known of frames that come from outside.
pub(super) struct Seen {
    flows: Vec<Flow>,
    /// Why the switch itself does not take them.
    refused: Vec<Option<DropReason>>,
}

impl Seen {
    pub(super) fn new(capacity: usize) -> Self {
        Self { flows: Vec::with_capacity(capacity), refused: Vec::with_capacity(capacity) }
    }
}

/// What was decided in a batch about headers, and about what else matters: as long as nothing is
/// learned that would change it.
struct Recent<K, V>([Option<(u128, K, V)>; 4]);

impl<K: Copy + Eq, V: Copy> Recent<K, V> {
    fn new() -> Self {
        Self([None; 4])
    }

    /// What was decided, or is now.
    #[inline(always)]
    fn get(&mut self, header: Header, more: K, decide: impl FnOnce() -> V) -> V {
        let (key, place) = (header.key(), header.dst().octets()[5] % 4);
        let place = &mut self.0[usize::from(place)];
        match *place {
            Some((known, also, value)) if known == key && also == more => value,
            _ => place.insert((key, more, decide())).2,
        }
    }
}

/// What became of a run.
#[derive(Clone, Copy)]
struct Steered {
    /// What was moved.
    run: Run,
    /// Frames that were dropped: they found no room, or were not their sender's to send.
    lost: u32,
}

/// What may be done with a run.
struct Leg {
    /// Where to.
    dst: PortId,
    /// The header that its frames have, where that matters.
    header: Option<Header>,
    /// The mark of its first frame, and the bits of it that its frames have in common.
    first: u64,
    same: u64,
    /// What their marks become: the bits that stay, and those that are new.
    keep: u64,
    new: u64,
}

impl TurnOf<'_> {
    /// Is this port an instance of a service?
    #[inline]
    pub(super) fn is_function(&self, port: PortId) -> bool {
        let steering = self.switch.steering.as_ref();
        steering.is_some_and(|steering| steering.service_of(port).is_some())
    }

    /// One run, or one batch.
    pub(super) fn steer(&mut self, budget: u32) -> Moved {
        if let Some(moved) = self.steer_run(budget) {
            return moved;
        }
        let slots = self.take_batch(budget, Take::Any);
        self.steer_batch();
        Moved::slots(slots)
    }

    /// Moves a run, where there is one: some frames at least.
    fn steer_run(&mut self, budget: u32) -> Option<Moved> {
        let src = self.src;
        let steering = self.switch.steering.as_mut()?;
        let Some(own) = steering.service_of(src) else { return self.entry_run(budget) };
        let mark = self.tx().peek_metadata()?;
        let meta = Meta::of(mark)?;
        let steering = self.switch.steering.as_mut()?;
        if !steering.is_single(own, meta) {
            return None;
        }
        let course = steering.hop(src, own, meta, 0);
        let leg = match course {
            Course::Function(dst, moved) => {
                let (same, keep) = (Meta::DECISION, !Meta::DECISION);
                Leg { dst, header: None, first: mark, same, keep, new: moved.mark() & !keep }
            }
            Course::Leave { from, out } => {
                let (dst, header) = self.single_destination(from, out)?;
                // By address also means: not back to where it came from.
                let same = Meta::WAY_OUT;
                Leg { dst, header, first: mark, same, keep: 0, new: 0 }
            }
            Course::Drop(reason) => return self.drop_alike(mark, reason, budget),
        };
        let run = self.marked_run(&leg, true, budget);
        self.count_run(&course, false, run.as_ref());
        Self::after_run(run?)
    }

    /// One frame was counted when its course was asked for.
    fn count_run(&mut self, course: &Course, entered: bool, steered: Option<&Steered>) {
        let frames = |steered: &Steered| i64::from(steered.run.frames);
        let taken = |steered: &Steered| frames(steered) + i64::from(steered.lost);
        if let Some(steering) = &mut self.switch.steering {
            steering.count_sent_on(course, steered.map_or(0, frames) - 1);
            if entered {
                steering.count_entered(course, steered.map_or(0, taken) - 1);
            }
        }
    }

    /// Frames of a function whose marks ask for the same as the first, which ends here.
    fn drop_alike(&mut self, first: u64, reason: DropReason, budget: u32) -> Option<Moved> {
        let alike = |mark: u64| (mark ^ first) & Meta::WAY_OUT == 0;
        let run = drop_by_metadata(self.tx(), None, true, budget, alike);
        self.count_taken(run.frames, run.bytes);
        self.count_drop(self.src, reason, run.frames);
        if let (Some(steering), Some(meta)) = (&mut self.switch.steering, Meta::of(first)) {
            // One was counted when its course was asked for.
            steering.adjust_drops(meta.chain(), reason, i64::from(run.frames) - 1);
        }
        // None: its mark is another by now.
        (run.frames > 0).then(|| Moved::slots(run.frames))
    }

    /// All frames of a wire, or of one header, enter one chain.
    fn entry_run(&mut self, budget: u32) -> Option<Moved> {
        let src = self.src;
        let chain = self.switch.steering.as_ref()?.plain_entry(src)?;
        let header = match self.switch.bridge.is_wire(src) {
            true => None,
            false => Some(Header::new(self.tx().peek()?.to_le_bytes())),
        };
        // By the switch itself, as a frame of no VLAN: counted where frames are staged.
        if header.is_some_and(|header| matches!(self.decide(header), Fate::Drop(_))) {
            return None;
        }
        let course = self.switch.steering.as_mut()?.start(chain, 0, src);
        let (dst, new) = match course {
            Course::Function(dst, meta) => (dst, meta.mark()),
            Course::Leave { .. } => return None,
            Course::Drop(reason) => return self.refuse_alike(header, reason, budget),
        };
        let leg = Leg { dst, header, first: 0, same: 0, keep: 0, new };
        let run = self.marked_run(&leg, false, budget);
        self.count_run(&course, true, run.as_ref());
        Self::after_run(run?)
    }

    /// Frames like the first do not enter the chain of their port, where that one was counted.
    fn refuse_alike(
        &mut self,
        header: Option<Header>,
        reason: DropReason,
        budget: u32,
    ) -> Option<Moved> {
        let src = self.src;
        let run = drop_run(self.tx(), header.map_or(Key::new(0, 0), key), budget);
        self.count_taken(run.frames, run.bytes);
        self.count_drop(src, reason, run.frames);
        let more = i64::from(run.frames) - 1;
        self.switch.steering.as_mut()?.adjust_refused(src, reason, more);
        (run.frames > 0).then(|| Moved::slots(run.frames))
    }

    /// The port with rings that a frame goes to as it is, if it is one, and the header that others
    /// must have to go there, too.
    fn single_destination(
        &mut self,
        from: PortId,
        out: Option<PortId>,
    ) -> Option<(PortId, Option<Header>)> {
        let unseen = out.and_then(|out| self.switch.bridge.decide_unseen(from, out));
        let (decision, header) = match unseen {
            Some(decision) => (decision, None),
            None => {
                let header = Header::new(self.tx().peek()?.to_le_bytes());
                (self.decide_by_header(from, out, header), Some(header))
            }
        };
        let Verdict::To(dst) = decision.verdict else { return None };
        let tag = self.switch.bridge.egress(from, dst, &decision).ok()?;
        (tag == TagAction::Keep && dst != self.src).then_some((dst, header))
    }

    /// Moves a run of frames that have its mark; what has no room is lost.
    fn marked_run(&mut self, leg: &Leg, from_function: bool, budget: u32) -> Option<Steered> {
        let (first, same, keep, new) = (leg.first, leg.same, leg.keep, leg.new);
        let change = |mark: u64| ((mark ^ first) & same == 0).then_some(mark & keep | new);
        let key = leg.header.map(key);
        let functions = Functions { sender: from_function, receiver: self.is_function(leg.dst) };
        let (run, queue) = self.run_between(leg.dst, budget, |tx, rx| {
            metadata_run(tx, rx, key, functions, budget, change)
        })?;
        let lost = match run.end {
            End::Full => {
                self.note_crowded(leg.dst, queue);
                let is_same = |mark: u64| change(mark).is_some();
                let lost =
                    drop_by_metadata(self.tx(), key, from_function, budget - run.frames, is_same);
                self.count_drop(leg.dst, DropReason::NoRoom, lost.frames);
                lost
            }
            End::Foreign => {
                let mark = self.tx().peek_metadata().unwrap_or(0);
                let lost = drop_by_metadata(self.tx(), None, from_function, 1, |_| true);
                self.end(mark, DropReason::BadIndex, lost.frames);
                lost
            }
            _ => return Some(Steered { run, lost: 0 }),
        };
        self.count_taken(lost.frames, lost.bytes);
        Some(Steered { run, lost: lost.frames })
    }

    /// Frames with this mark end, by a fault of their sender: at it, and in the chain that they are
    /// in.
    #[cold]
    pub(super) fn end(&mut self, mark: u64, reason: DropReason, frames: u32) {
        self.count_drop(self.src, reason, frames);
        if let Some(steering) = &mut self.switch.steering {
            steering.count_ended(mark, reason, frames);
        }
    }

    /// Frames that were meant for an instance did not get there.
    #[cold]
    pub(super) fn note_lost(&mut self, dst: PortId, lost: u64) {
        let lost = i32::try_from(lost).expect("a batch is small");
        if let Some(steering) = &mut self.switch.steering {
            steering.count_sent(dst, -lost);
        }
    }

    /// What a run could not take, the batch does.
    fn after_run(Steered { run, lost }: Steered) -> Option<Moved> {
        let taken = run.frames + lost;
        (taken > 0).then(|| Moved::slots(taken))
    }

    /// Steers what is in the batch, frame by frame.
    pub(super) fn steer_batch(&mut self) {
        if !self.is_function(self.src) {
            self.see_batch();
        }
        let (count, mut recent) = (self.scratch.batch.frames().len(), Recent::new());
        for frame in 0..count {
            let run = frame..frame + 1;
            if self.is_cut_off(&run) {
                self.count_drop(self.src, DropReason::TooShort, 1);
                continue;
            }
            match self.course_of(frame) {
                Ok(Course::Function(dst, meta)) => {
                    self.scratch.batch.set_mark(frame, meta.mark());
                    self.scratch.groups.link(dst, TagAction::Keep, run);
                }
                Ok(Course::Leave { from, out }) => self.leave(frame, from, out, &mut recent),
                Ok(Course::Drop(reason)) | Err(reason) => self.count_drop(self.src, reason, 1),
            }
        }
        self.flush_groups(false);
        self.count_batch();
    }

    /// Looks at all frames that come from outside, before any is steered: what is known of their
    /// flows comes from memory meanwhile.
    fn see_batch(&mut self) {
        let (src, now) = (self.src, self.now);
        let Switch { bridge, steering, .. } = &mut *self.switch;
        let Some(steering) = steering else { return };
        let (batch, seen) = (&self.scratch.batch, &mut self.scratch.seen);
        seen.flows.clear();
        seen.refused.clear();
        let mut recent = Recent::new();
        for entry in batch.frames() {
            let (vlan, refused) = recent.get(entry.header, (), || {
                let decision = bridge.decide(src, entry.header, now);
                let refused = match decision.verdict {
                    Verdict::Drop(reason) => Some(reason)
                        .filter(|&why| why != DropReason::SamePort && !bridge.is_wire(src)),
                    Verdict::To(_) | Verdict::Flood(_) => None,
                };
                (decision.vlan, refused)
            });
            seen.flows.push(steering.flow(batch.flow_key(entry, vlan, src)));
            seen.refused.push(refused);
            if let Some(at) = seen.flows.len().checked_sub(TAGS_AHEAD) {
                steering.locate(&mut seen.flows[at..=at]);
            }
        }
        let rest = seen.flows.len().saturating_sub(TAGS_AHEAD - 1);
        steering.locate(&mut seen.flows[rest..]);
    }

    fn course_of(&mut self, frame: usize) -> Result<Course, DropReason> {
        let entry = self.scratch.batch.frames()[frame];
        let (src, now) = (self.src, self.now);
        let steering = self.switch.steering.as_mut().expect("the caller has looked");
        if let Some(own) = steering.service_of(src) {
            return Ok(match Meta::of(entry.mark) {
                Some(meta) => steering.hop(src, own, meta, entry.named),
                // The function has made it.
                None => Course::Leave { from: src, out: None },
            });
        }
        let seen = &self.scratch.seen;
        match seen.refused[frame] {
            Some(reason) => Err(reason),
            None => Ok(steering.enter(src, &seen.flows[frame], entry.bytes, now)),
        }
    }

    /// Out of all chains. `recent` is what was decided about others: nothing is learned here, so it
    /// holds for the whole batch.
    fn leave(
        &mut self,
        frame: usize,
        from: PortId,
        out: Option<PortId>,
        recent: &mut Recent<(PortId, Option<PortId>), Fate>,
    ) {
        let Taken { header, mark, .. } = self.scratch.batch.frames()[frame];
        match recent.get(header, (from, out), || self.fate_leaving(from, out, header)) {
            Fate::Drop(reason) => self.end(mark, reason, 1),
            Fate::Flood(decision) => self.flood_out(frame, from, &decision),
            Fate::To(dst, tag) => {
                // Until it is sent its mark says in which chain it may end.
                if mark != 0 && self.is_function(dst) {
                    self.scratch.batch.set_mark(frame, 0);
                }
                self.scratch.groups.link(dst, tag, frame..frame + 1);
            }
        }
    }

    #[inline(never)]
    fn fate_leaving(&mut self, from: PortId, out: Option<PortId>, header: Header) -> Fate {
        let decision = self.decide_leaving(from, out, header);
        match decision.verdict {
            Verdict::Drop(reason) => Fate::Drop(reason),
            Verdict::Flood(_) => Fate::Flood(decision),
            Verdict::To(dst) => match self.switch.bridge.egress(from, dst, &decision) {
                Ok(tag) => Fate::To(dst, tag),
                Err(reason) => Fate::Drop(reason),
            },
        }
    }

    /// By its address, of which a function teaches nothing, or by a port.
    fn decide_leaving(&mut self, from: PortId, out: Option<PortId>, header: Header) -> Decision {
        let unseen = out.and_then(|out| self.switch.bridge.decide_unseen(from, out));
        unseen.unwrap_or_else(|| self.decide_by_header(from, out, header))
    }

    fn decide_by_header(&mut self, from: PortId, out: Option<PortId>, header: Header) -> Decision {
        let decision = self.switch.bridge.decide_asked(from, header, Asks::NO_LEARN, self.now);
        match (decision.verdict, out) {
            (
                Verdict::To(_) | Verdict::Flood(_) | Verdict::Drop(DropReason::SamePort),
                Some(out),
            ) => Decision { verdict: Verdict::To(out), ..decision },
            _ => decision,
        }
    }

    /// To all ports but functions, and but the one that it came by.
    fn flood_out(&mut self, frame: usize, from: PortId, decision: &Decision) {
        self.flush_groups(false);
        let mut targets = std::mem::take(&mut self.scratch.targets);
        targets.clear();
        let all = self.switch.bridge.flood_targets(from, decision);
        targets.extend(all.filter(|&dst| dst != self.src && !self.is_function(dst)));
        if targets.is_empty() {
            self.count_drop(self.src, DropReason::NoDestination, 1);
        }
        for &dst in &targets {
            match self.switch.bridge.egress(from, dst, decision) {
                Ok(tag) => {
                    self.scratch.list.clear();
                    self.scratch.list.push(Delivery { frame: narrow(frame), tag });
                    self.send(dst, false, false);
                }
                Err(reason) => self.count_drop(dst, reason, 1),
            }
        }
        self.scratch.targets = targets;
    }
}

impl Switch {
    /// Notes how much room functions have, before frames of a ring are taken: there may be
    /// thousands of them, and a run for every frame. Those with much room are not asked, unless it
    /// matters which frames they have read.
    pub(super) fn look_at_functions(&mut self) {
        let Self { ports, steering, .. } = self;
        let Some(steering) = steering else { return };
        for service in steering.services_mut() {
            let exact = service.is_unsettled();
            for instance in service.instances_mut() {
                look(ports, instance, exact);
            }
        }
    }

    /// Have frames of this port to wait until others have left a chain?
    #[inline]
    pub(super) fn is_shut(&mut self, src: PortId, now: Now) -> bool {
        let shuts = |it: &Self| it.steering.as_ref().is_some_and(|it| it.shuts(src));
        shuts(self) && {
            self.tend_gate(now);
            shuts(self)
        }
    }

    #[cold]
    pub(crate) fn tend_gate(&mut self, now: Now) {
        let Self { ports, steering, .. } = self;
        if let Some(steering) = steering {
            steering.tend_gate(now, |instance| look(ports, instance, true));
        }
    }

    /// Finds functions that do nothing.
    pub(crate) fn watch_functions(&mut self, now: Now) {
        let Self { ports, steering, .. } = self;
        let Some(steering) = steering else { return };
        for service in steering.services_mut() {
            service.instances_mut().iter_mut().for_each(|instance| look(ports, instance, true));
            service.watch(now.as_ms());
        }
    }
}

/// Looks at the rings of an instance.
fn look(ports: &mut [Option<Box<Entry>>], instance: &mut Instance, exact: bool) {
    let Some(Some(entry)) = ports.get_mut(instance.port.index()) else { return };
    let Plug::Rings(Krings { tx, rx, .. }, _) = &mut entry.plug else { return };
    let (mut slots, mut room) = (0, 0);
    for rx in rx.iter_mut() {
        slots += rx.capacity();
        if exact || rx.room() < rx.capacity() / 2 {
            rx.sync();
        }
        room += rx.room();
    }
    instance.room = room;
    instance.capacity = slots;
    instance.pending = slots.saturating_sub(room);
    instance.crowded = room < slots / 2;
    instance.drained = !exact || tx.iter_mut().all(|tx| tx.sync() == 0);
}
