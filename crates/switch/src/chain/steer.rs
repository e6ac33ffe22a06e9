//! A turn in a switch whose forwarding function is `chain`.
//!
//! ```text
//!  ┌─► next frame ─┬─ from a function ─► metadata ─┬─ one next hop for all ───► run of equal marks
//!  │               │                               └─ else ────────────────► staged
//!  │               └─ from outside ─┬─ no rule, one instance each ─────────► run of one header,
//!  │                                │                                        of a wire of any
//!  │                                └─ else: classified frame by frame ────► staged
//!  └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! In a run from function to function the switch does not look at the frames: between ports of one
//! region it exchanges two slots, and writes the metadata of one of them.

use packet::PortId;
use packet::ethernet::Header;
use packet::metadata::Metadata;
use ring::metadata::{Functions, drop_by_metadata, metadata_run};
use ring::run::{End, Key, Run, drop_run};

use crate::chain::NextHop;
use crate::decide::bridge::{Bridge, TagAction, VlanVerdict};
use crate::decide::egress::Egress;
use crate::decide::forward::Verdict;
use crate::deliver::run::key;
use crate::model::stats::DropReason;
use crate::receive::batch::{Delivery, Entry as Taken, to_u16, to_u32};
use crate::receive::slot_flags::SlotFlags;
use crate::switch::Switch;
use crate::turn::{Moved, Turn};

/// How many flows ahead the switch fetches the tags of the flow cache before it searches them.
const TAGS_AHEAD: usize = 16;

/// Verdicts of this batch, by header and by what else they depend on. They hold as long as nothing
/// is learned that would change them.
pub(crate) struct Recent<K, V>([Option<(u128, K, V)>; 4]);

impl<K: Copy + Eq, V: Copy> Recent<K, V> {
    fn new() -> Self {
        Self([None; 4])
    }

    /// The known verdict, or the one that `decide` gives now.
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

/// The outcome of a run.
#[derive(Clone, Copy)]
pub(crate) struct Steered {
    /// The frames that were moved.
    run: Run,
    /// Frames dropped for want of room, or because the sender does not own their buffers.
    lost: u32,
}

/// Where a run goes, and which frames it consists of.
pub(crate) struct Leg {
    /// The destination.
    dst: PortId,
    /// The header of all frames, where that matters.
    header: Option<Header>,
    /// The metadata of the first frame, and the bits of it that all frames have in common.
    first: u64,
    same: u64,
    /// Bits of the metadata that stay, and bits that are new.
    keep: u64,
    new: u64,
}

impl Turn<'_> {
    /// Whether this port is an instance of a service.
    #[inline]
    pub(crate) fn is_function(&self, port: PortId) -> bool {
        let steering = self.switch.steering.as_ref();
        steering.is_some_and(|steering| steering.service_of(port).is_some())
    }

    /// Steers one run, or one batch.
    pub(crate) fn steer(&mut self, budget: u32) -> Moved {
        if let Some(moved) = self.steer_run(budget) {
            return moved;
        }
        let slots = self.take_batch(budget);
        self.steer_batch();
        Moved::slots(slots)
    }

    /// Moves a run of at least one frame, if the next frames make one.
    pub(crate) fn steer_run(&mut self, budget: u32) -> Option<Moved> {
        let src = self.src;
        let steering = self.switch.steering.as_mut()?;
        let Some(own) = steering.service_of(src) else { return self.entry_run(budget) };
        let mark = self.tx().peek_metadata()?;
        let meta = Metadata::read(mark)?;
        let steering = self.switch.steering.as_mut()?;
        if !steering.is_single(own, meta) {
            return None;
        }
        let next_hop = steering.hop(src, own, meta, 0);
        let leg = match next_hop {
            NextHop::Function(dst, moved) => {
                let (same, keep) = (Metadata::DECISION_MASK, !Metadata::DECISION_MASK);
                Leg { dst, header: None, first: mark, same, keep, new: moved.word() & !keep }
            }
            NextHop::Leave { from, out } => {
                let (dst, header) = self.single_destination(from, out)?;
                // By address also means: not back to where it came from.
                let same = Metadata::EXIT_MASK;
                Leg { dst, header, first: mark, same, keep: 0, new: 0 }
            }
            NextHop::Drop(reason) => return self.drop_alike(mark, reason, budget),
        };
        let run = self.marked_run(&leg, true, budget);
        self.count_run(&next_hop, false, run.as_ref());
        Self::after_run(run?)
    }

    /// Counts a run. The look-up of its next hop has counted one frame already.
    pub(crate) fn count_run(
        &mut self,
        next_hop: &NextHop,
        entered: bool,
        steered: Option<&Steered>,
    ) {
        let frames = |steered: &Steered| i64::from(steered.run.frames);
        let taken = |steered: &Steered| frames(steered) + i64::from(steered.lost);
        if let Some(steering) = &mut self.switch.steering {
            steering.count_sent_on(next_hop, steered.map_or(0, frames) - 1);
            if entered {
                steering.count_entered(next_hop, steered.map_or(0, taken) - 1);
            }
        }
    }

    /// Drops frames of a function that end like the first one.
    pub(crate) fn drop_alike(
        &mut self,
        first: u64,
        reason: DropReason,
        budget: u32,
    ) -> Option<Moved> {
        let alike = |mark: u64| (mark ^ first) & Metadata::EXIT_MASK == 0;
        let from = self.tx().next_index();
        let run = drop_by_metadata(self.tx(), None, true, budget, alike);
        self.count_taken(run.frames, run.bytes);
        self.count_drop(self.src, reason, run.frames);
        self.show_taken(self.src, reason, from);
        if let (Some(steering), Some(meta)) = (&mut self.switch.steering, Metadata::read(first)) {
            // The look-up of the next hop has counted one.
            steering.adjust_drops(meta.chain(), reason, i64::from(run.frames) - 1);
        }
        // None: the client has changed the metadata meanwhile.
        (run.frames > 0).then(|| Moved::slots(run.frames))
    }

    /// Moves a run into a chain: all frames of a wire, or frames with one header.
    pub(crate) fn entry_run(&mut self, budget: u32) -> Option<Moved> {
        let src = self.src;
        let chain = self.switch.steering.as_ref()?.plain_entry(src)?;
        let header = match self.switch.bridge.is_wire(src) {
            true => None,
            false => Some(Header::new(self.tx().peek()?.to_le_bytes())),
        };
        // The switch itself drops such a frame, for example because it is in no VLAN: the staged
        // path counts it.
        if header.is_some_and(|header| matches!(self.decide(header), Egress::Drop(_))) {
            return None;
        }
        let next_hop = self.switch.steering.as_mut()?.start(chain, 0, src);
        let (dst, new) = match next_hop {
            NextHop::Function(dst, meta) => (dst, meta.word()),
            NextHop::Leave { .. } => return None,
            NextHop::Drop(reason) => return self.refuse_alike(header, reason, budget),
        };
        let leg = Leg { dst, header, first: 0, same: 0, keep: 0, new };
        let run = self.marked_run(&leg, false, budget);
        self.count_run(&next_hop, true, run.as_ref());
        Self::after_run(run?)
    }

    /// Drops frames that cannot enter the chain of their port, like the first one.
    pub(crate) fn refuse_alike(
        &mut self,
        header: Option<Header>,
        reason: DropReason,
        budget: u32,
    ) -> Option<Moved> {
        let src = self.src;
        let from = self.tx().next_index();
        let run = drop_run(self.tx(), header.map_or(Key::new(0, 0), key), budget);
        self.count_taken(run.frames, run.bytes);
        self.count_drop(src, reason, run.frames);
        self.show_taken(src, reason, from);
        debug_assert!(run.frames <= budget, "a run takes no more than its budget");
        let more = i64::from(run.frames) - 1;
        self.switch.steering.as_mut()?.adjust_refused(src, reason, more);
        (run.frames > 0).then(|| Moved::slots(run.frames))
    }

    /// The one port with rings that a frame goes to unchanged, and the header that other frames
    /// need to go there, too.
    pub(crate) fn single_destination(
        &mut self,
        from: PortId,
        out: Option<PortId>,
    ) -> Option<(PortId, Option<Header>)> {
        let unseen = out.and_then(|out| self.switch.bridge.decide_without_header(from, out));
        let (verdict, header) = match unseen {
            Some(verdict) => (verdict, None),
            None => {
                let header = Header::new(self.tx().peek()?.to_le_bytes());
                // If the outer tag stays, nothing depends on an inner one.
                let flags = SlotFlags::NONE.without_learning();
                (self.decide_by_header(from, out, header, flags), Some(header))
            }
        };
        let Verdict::To(dst) = verdict.forward else { return None };
        let tag = self.switch.bridge.egress(from, dst, &verdict).ok()?;
        (tag == TagAction::Keep && dst != self.src).then_some((dst, header))
    }

    /// Moves a run of frames with this metadata. Frames without room are dropped.
    pub(crate) fn marked_run(
        &mut self,
        leg: &Leg,
        from_function: bool,
        budget: u32,
    ) -> Option<Steered> {
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
                let from = self.tx().next_index();
                let lost =
                    drop_by_metadata(self.tx(), key, from_function, budget - run.frames, is_same);
                self.count_drop(leg.dst, DropReason::NoRoom, lost.frames);
                self.show_taken(leg.dst, DropReason::NoRoom, from);
                lost
            }
            End::Foreign => {
                let mark = self.tx().peek_metadata().unwrap_or(0);
                let from = self.tx().next_index();
                let lost = drop_by_metadata(self.tx(), None, from_function, 1, |_| true);
                self.count_end(mark, DropReason::BadIndex, lost.frames);
                self.show_taken(self.src, DropReason::BadIndex, from);
                lost
            }
            _ => return Some(Steered { run, lost: 0 }),
        };
        debug_assert!(run.frames + lost.frames <= budget, "a run takes no more than its budget");
        self.count_taken(lost.frames, lost.bytes);
        Some(Steered { run, lost: lost.frames })
    }

    /// Counts frames that are dropped because of their sender: at the sender, and in their chain.
    #[cold]
    pub(crate) fn count_end(&mut self, mark: u64, reason: DropReason, frames: u32) {
        self.count_drop(self.src, reason, frames);
        if let Some(steering) = &mut self.switch.steering {
            steering.count_ended(mark, reason, frames);
        }
    }

    /// Drops a frame of the batch because of its sender.
    #[cold]
    fn end_frame(&mut self, frame: usize, mark: u64, reason: DropReason) {
        self.count_end(mark, reason, 1);
        self.show_batch(self.src, reason, frame..frame + 1);
    }

    /// Corrects the count of an instance that did not get these frames.
    #[cold]
    pub(crate) fn uncount_sent(&mut self, dst: PortId, lost: u64) {
        let lost = i32::try_from(lost).expect("a batch is small");
        if let Some(steering) = &mut self.switch.steering {
            steering.count_sent(dst, -lost);
        }
    }

    /// The work of a run. `None`: the run could take nothing, and the batch must.
    pub(crate) fn after_run(Steered { run, lost }: Steered) -> Option<Moved> {
        let taken = run.frames + lost;
        (taken > 0).then(|| Moved::slots(taken))
    }

    /// Steers the batch frame by frame.
    pub(crate) fn steer_batch(&mut self) {
        if !self.is_function(self.src) {
            self.classify_batch();
        }
        let (count, mut recent) = (self.scratch.batch.frames().len(), Recent::new());
        for frame in 0..count {
            let run = frame..frame + 1;
            if self.is_tag_truncated(&run) {
                self.drop_batch(self.src, DropReason::TooShort, run);
                continue;
            }
            match self.next_hop_of(frame) {
                Ok(NextHop::Function(dst, meta)) => {
                    self.scratch.batch.set_metadata(frame, meta.word());
                    self.scratch.groups.link(dst, TagAction::Keep, run);
                }
                Ok(NextHop::Leave { from, out }) => self.leave(frame, from, out, &mut recent),
                Ok(NextHop::Drop(reason)) | Err(reason) => {
                    self.drop_batch(self.src, reason, run);
                }
            }
        }
        debug_assert_eq!(count, self.scratch.batch.frames().len(), "steering keeps the batch");
        self.flush_groups();
        self.count_batch();
    }

    /// Classifies all frames that come from outside, before the first is steered, so that cache
    /// lines of their flows arrive meanwhile.
    pub(crate) fn classify_batch(&mut self) {
        let (src, now) = (self.src, self.now);
        let Switch { bridge, steering, .. } = &mut *self.switch;
        let Some(steering) = steering else { return };
        let (batch, classified) = (&self.scratch.batch, &mut self.scratch.classified);
        classified.flows.clear();
        classified.refused.clear();
        let mut recent = Recent::new();
        for entry in batch.frames() {
            let (vlan, refused) = recent.get(entry.header, (), || {
                let verdict = bridge.decide(src, entry.header, now);
                (verdict.vlan, refusal(bridge, src, &verdict))
            });
            classified.flows.push(steering.flow(batch.flow_key(entry, vlan, src)));
            classified.refused.push(refused);
            if let Some(at) = classified.flows.len().checked_sub(TAGS_AHEAD) {
                steering.locate(&mut classified.flows[at..=at]);
            }
        }
        debug_assert_eq!(classified.flows.len(), classified.refused.len(), "one each");
        let rest = classified.flows.len().saturating_sub(TAGS_AHEAD - 1);
        steering.locate(&mut classified.flows[rest..]);
    }

    /// The next hop of a frame of the batch.
    pub(crate) fn next_hop_of(&mut self, frame: usize) -> Result<NextHop, DropReason> {
        let entry = self.scratch.batch.frames()[frame];
        let (src, now) = (self.src, self.now);
        let steering = self.switch.steering.as_mut().expect("the caller has looked");
        if let Some(own) = steering.service_of(src) {
            return Ok(match Metadata::read(entry.metadata) {
                Some(meta) => steering.hop(src, own, meta, entry.named),
                // The function has made it.
                None => NextHop::Leave { from: src, out: None },
            });
        }
        let classified = &self.scratch.classified;
        match classified.refused[frame] {
            Some(reason) => Err(reason),
            None => Ok(steering.enter(src, &classified.flows[frame], entry.bytes, now)),
        }
    }

    /// Sends a frame out of all chains. Nothing is learned here, so `recent` verdicts hold for the
    /// whole batch.
    pub(crate) fn leave(
        &mut self,
        frame: usize,
        from: PortId,
        out: Option<PortId>,
        recent: &mut Recent<(PortId, Option<PortId>, SlotFlags), Egress>,
    ) {
        let Taken { header, flags, metadata: mark, .. } = self.scratch.batch.frames()[frame];
        let flags = flags.without_learning();
        let decide = || self.egress_leaving(from, out, header, flags);
        match recent.get(header, (from, out, flags), decide) {
            Egress::Drop(reason) => self.end_frame(frame, mark, reason),
            Egress::Flood(verdict) if !self.may_flood(from, &verdict, frame) => {
                let Verdict::Flood(class) = verdict.forward else { return };
                self.end_frame(frame, mark, class.storm());
            }
            Egress::Flood(verdict) => self.flood_out(frame, from, &verdict),
            Egress::To(dst, tag) => {
                // Until the frame is sent, its metadata names the chain that counts a drop.
                if mark != 0 && self.is_function(dst) {
                    self.scratch.batch.set_metadata(frame, 0);
                }
                self.scratch.groups.link(dst, tag, frame..frame + 1);
            }
        }
    }

    /// What happens to a frame with this header that leaves a chain.
    #[inline(never)]
    pub(crate) fn egress_leaving(
        &mut self,
        from: PortId,
        out: Option<PortId>,
        header: Header,
        flags: SlotFlags,
    ) -> Egress {
        let verdict = self.decide_leaving(from, out, header, flags);
        Egress::of(&self.switch.bridge, from, verdict)
    }

    /// The verdict by port, or by address. The switch learns no address from a function.
    pub(crate) fn decide_leaving(
        &mut self,
        from: PortId,
        out: Option<PortId>,
        header: Header,
        flags: SlotFlags,
    ) -> VlanVerdict {
        let unseen = out.and_then(|out| self.switch.bridge.decide_without_header(from, out));
        unseen.unwrap_or_else(|| self.decide_by_header(from, out, header, flags))
    }

    /// The verdict by address, or to `out` if the bridge lets the frame pass.
    pub(crate) fn decide_by_header(
        &mut self,
        from: PortId,
        out: Option<PortId>,
        header: Header,
        flags: SlotFlags,
    ) -> VlanVerdict {
        let verdict = self.switch.bridge.decide_admitted(from, header, flags, self.now);
        redirected(verdict, out)
    }

    /// Floods a frame to all ports but functions, and but the port that it came by.
    pub(crate) fn flood_out(&mut self, frame: usize, from: PortId, verdict: &VlanVerdict) {
        self.flush_groups();
        let mut targets = std::mem::take(&mut self.scratch.targets);
        targets.clear();
        let all = self.switch.bridge.flood_targets(from, verdict);
        targets.extend(all.filter(|&dst| dst != self.src && !self.is_function(dst)));
        if targets.is_empty() {
            self.drop_batch(self.src, DropReason::NoDestination, frame..frame + 1);
        }
        if !self.pays_for(&(frame..frame + 1), to_u32(targets.len())) {
            targets.clear();
        }
        for &dst in &targets {
            match self.switch.bridge.egress(from, dst, verdict) {
                Ok(tag) => {
                    self.scratch.list.clear();
                    self.scratch.list.push(Delivery { frame: to_u16(frame), tag });
                    self.send(dst, false);
                }
                Err(reason) => self.drop_batch(dst, reason, frame..frame + 1),
            }
        }
        self.scratch.targets = targets;
    }
}

/// Why a frame from outside may not enter a chain, if it may not.
pub(crate) fn refusal(bridge: &Bridge, src: PortId, verdict: &VlanVerdict) -> Option<DropReason> {
    match verdict.forward {
        Verdict::Drop(DropReason::SamePort) | Verdict::To(_) | Verdict::Flood(_) => None,
        Verdict::Set(..) | Verdict::Members => None,
        Verdict::Drop(reason) => Some(reason).filter(|_| !bridge.is_wire(src)),
    }
}

/// The verdict about a frame that leaves its chain to `out`, if the bridge lets it pass.
pub(crate) fn redirected(verdict: VlanVerdict, out: Option<PortId>) -> VlanVerdict {
    match (verdict.forward, out) {
        (Verdict::To(_) | Verdict::Flood(_) | Verdict::Drop(DropReason::SamePort), Some(out)) => {
            VlanVerdict { forward: Verdict::To(out), ..verdict }
        }
        _ => verdict,
    }
}
