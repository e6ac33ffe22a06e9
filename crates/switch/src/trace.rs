//! Trace: what the switch would do with a frame now, and why, step by step.
//!
//! The steps come from the functions that decide about real frames, in the order in which a turn
//! calls them, each in the form that leaves no trace: nothing is learned, counted or delivered.
//! `tests/turns/trace.rs` holds them against what becomes of real frames.
//!
//! Limits. A trace ends where the frame is handed to a port: whether the port has room, or takes
//! frames of this length, is known at delivery only. Functions may do anything with a frame; the
//! trace takes it that they pass it on unchanged. The requests of slot flags and pending offloads
//! are properties of a slot, and no part of a frame here; nor are the bytes behind a frame that
//! ends inside of its VLAN tag.

use packet::ethernet::{ETHERNET_HEADER, Header, field};
use packet::flow::{FlowKey, Prefix};
use packet::{EtherType, MacAddr, PortId, VlanId, mcast};

use crate::chain::NextHop;
use crate::chain::steer::{redirected, refusal};
use crate::decide::bridge::{TagAction, Tagging, VlanVerdict};
use crate::decide::egress::Egress;
use crate::decide::fdb::{FdbEntry, Learned};
use crate::decide::forward::{FloodClass, Verdict};
use crate::decide::snooping::{Kind, McastScope};
use crate::model::config::Forwarding;
use crate::model::now::Now;
use crate::model::stats::DropReason;
use crate::receive::batch::TAGGED_MIN;
use crate::receive::slot_flags::SlotFlags;
use crate::switch::Switch;

/// A step of a frame through the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// The frame is in a VLAN.
    Vlan {
        /// The VLAN.
        vlan: VlanId,
        /// How the frame carries it.
        tagging: Tagging,
        /// Whether the frame has a tag, which may be payload.
        has_tag: bool,
    },
    /// The forwarding database would do this with the source address.
    Learn(MacAddr, Learned),
    /// A rule of this number matches.
    Rule(u32),
    /// The frame enters the chain of this number.
    Chain(u8),
    /// The function on a port gets the frame.
    Function(PortId),
    /// The forwarding program was asked.
    Program,
    /// The destination address was looked up.
    Lookup(MacAddr, Option<FdbEntry>),
    /// The frame is flooded.
    Flood(FloodClass),
    /// The frame is for this group, whose frames go there.
    Group(MacAddr, McastScope),
    /// The frame is sent to a port, with this change of its tag.
    Send(PortId, TagAction),
    /// The frame, or its copy for one port of a flood, is dropped; the port that counts it.
    Drop(PortId, DropReason),
}

impl Switch {
    /// What the switch would do with a frame of `bytes` bytes from `src`, of which `head` is the
    /// beginning: as many as a [flow](packet::flow::PREFIX) has.
    #[must_use]
    pub fn trace(&mut self, src: PortId, head: &[u8], bytes: u32, now: Now) -> Vec<TraceStep> {
        self.bridge.show_packet(head);
        self.bridge.expire_groups(now);
        let mut trace = Trace { switch: self, src, head, bytes, now, steps: Vec::new() };
        trace.enter();
        let is_end = |step: &TraceStep| matches!(step, TraceStep::Send(..) | TraceStep::Drop(..));
        assert!(trace.steps.last().is_some_and(is_end), "a frame is sent or dropped");
        trace.steps
    }
}

/// A trace under way.
struct Trace<'a> {
    switch: &'a Switch,
    src: PortId,
    head: &'a [u8],
    bytes: u32,
    now: Now,
    steps: Vec<TraceStep>,
}

impl Trace<'_> {
    /// Lets the frame in, or not.
    fn enter(&mut self) {
        let (bridge, src, now) = (&self.switch.bridge, self.src, self.now);
        if usize::try_from(self.bytes).is_ok_and(|bytes| bytes < ETHERNET_HEADER) {
            return self.drop(src, DropReason::TooShort);
        }
        let (header, flags) = self.header();
        if let Some(reason) = bridge.would_refuse(src, header) {
            return self.drop(src, reason);
        }
        let (frame, tagging) = match bridge.ingress(src, header, flags, now) {
            Ok(entered) => entered,
            Err(reason) => return self.drop(src, reason),
        };
        let has_tag = header.tag().is_some();
        self.steps.push(TraceStep::Vlan { vlan: frame.vlan, tagging, has_tag });
        let learned = bridge.would_learn(frame);
        self.steps.extend(learned.map(|learned| TraceStep::Learn(header.src(), learned)));
        if self.switch.steering.is_some() {
            return self.steer(header, flags);
        }
        self.leave(src, None, header, flags);
    }

    /// The header, and what its flags say of a frame from a slot without any.
    fn header(&self) -> (Header, SlotFlags) {
        let mut head = [0; field::INNER_ETHERTYPE.end];
        let count = head.len().min(self.head.len());
        head[..count].copy_from_slice(&self.head[..count]);
        let [.., high, low] = head;
        let inner = EtherType(u16::from_be_bytes([high, low]));
        let mut bytes = [0; field::HEADER.end];
        bytes.copy_from_slice(&head[field::HEADER]);
        let header = Header::new(bytes);
        match header.tag().is_some() && inner == EtherType::VLAN {
            true => (header, SlotFlags::NONE.with_inner_tag()),
            false => (header, SlotFlags::NONE),
        }
    }

    /// Whether the frame ends inside of its VLAN tag.
    fn is_tag_truncated(&self, header: Header) -> bool {
        header.tag().is_some() && self.bytes < TAGGED_MIN
    }

    /// Rules, and chains of functions.
    fn steer(&mut self, header: Header, flags: SlotFlags) {
        let (bridge, src) = (&self.switch.bridge, self.src);
        let Some(steering) = &self.switch.steering else { return };
        if self.is_tag_truncated(header) {
            return self.drop(src, DropReason::TooShort);
        }
        if steering.service_of(src).is_some() {
            return self.leave(src, None, header, flags);
        }
        let verdict = bridge.peek_admitted(src, header, SlotFlags::NONE, self.now);
        if let Some(reason) = refusal(bridge, src, &verdict) {
            return self.drop(src, reason);
        }
        let key = FlowKey::read(Prefix::of(self.head), verdict.vlan, src);
        let way = steering.way(src, &key);
        self.steps.extend(way.rule.map(TraceStep::Rule));
        self.steps.extend(way.chain.map(TraceStep::Chain));
        self.steps.extend(way.functions.iter().copied().map(TraceStep::Function));
        match way.end {
            NextHop::Leave { from, out } => self.leave(from, out, header, flags),
            NextHop::Drop(reason) => self.drop(src, reason),
            NextHop::Function(..) => unreachable!("a way ends behind its functions"),
        }
    }

    /// Forwards the frame to `out`, or by its address.
    fn leave(&mut self, from: PortId, out: Option<PortId>, header: Header, flags: SlotFlags) {
        let bridge = &self.switch.bridge;
        let has_chains = self.switch.steering.is_some();
        let unseen = out.and_then(|out| bridge.decide_without_header(from, out));
        let verdict = unseen.unwrap_or_else(|| {
            let flags = if has_chains { flags.without_learning() } else { flags };
            redirected(bridge.peek_admitted(from, header, flags, self.now), out)
        });
        if out.is_none() {
            self.ask(header.dst(), &verdict);
        }
        match Egress::of(bridge, from, verdict) {
            Egress::Drop(reason) => self.drop(self.src, reason),
            egress if !egress.keeps_frame() && self.is_tag_truncated(header) => {
                self.drop(self.src, DropReason::TooShort);
            }
            Egress::To(dst, tag) => self.steps.push(TraceStep::Send(dst, tag)),
            Egress::Flood(verdict) => self.flood(from, header, &verdict),
        }
    }

    /// What decides: the forwarding database, the program, or nothing that has a step.
    fn ask(&mut self, dst: MacAddr, verdict: &VlanVerdict) {
        let bridge = &self.switch.bridge;
        let refusal = match verdict.forward {
            Verdict::Drop(DropReason::SamePort | DropReason::Unknown) => None,
            Verdict::Drop(reason) => Some(reason),
            _ => None,
        };
        match (bridge.config().forwarding, refusal) {
            (Forwarding::Hub | Forwarding::Patch, _) => {}
            (Forwarding::Program, None | Some(DropReason::Program | DropReason::ProgramFault)) => {
                self.steps.push(TraceStep::Program);
            }
            (Forwarding::Program, Some(_)) => {}
            (_, None) if !dst.is_multicast() => {
                let entry = bridge.fdb().find(verdict.vlan, dst, self.now);
                self.steps.push(TraceStep::Lookup(dst, entry));
            }
            _ => {}
        }
    }

    /// Copies for all ports that take such a flood, or that a program chooses.
    fn flood(&mut self, from: PortId, header: Header, verdict: &VlanVerdict) {
        let (bridge, src) = (&self.switch.bridge, self.src);
        if let Verdict::Flood(class) = verdict.forward {
            self.steps.push(TraceStep::Flood(class));
        }
        if let Some(class) = verdict.forward.limited_as()
            && !bridge.could_flood(from, class, self.now)
        {
            return self.drop(src, class.storm());
        }
        let steering = self.switch.steering.as_ref();
        let is_function = |port| steering.is_some_and(|it| it.service_of(port).is_some());
        let members = bridge.snoops(verdict).then(|| self.group(from, header, verdict)).flatten();
        let is_group = members.is_some();
        let targets: Vec<PortId> = match (members, verdict.forward) {
            (Some(members), _) => members,
            (None, Verdict::Set(..)) => bridge.peek_set(from, header, self.now),
            _ => bridge.flood_targets(from, verdict).collect(),
        };
        let forward = if is_group { Verdict::Members } else { verdict.forward };
        let verdict = &VlanVerdict { forward, ..*verdict };
        let before = self.steps.len();
        for dst in targets.into_iter().filter(|&dst| dst != src && !is_function(dst)) {
            self.steps.push(match bridge.egress(from, dst, verdict) {
                Ok(tag) => TraceStep::Send(dst, tag),
                Err(reason) => TraceStep::Drop(dst, reason),
            });
        }
        if self.steps.len() == before {
            self.drop(src, forward.unreached());
        }
    }

    /// The ports that get a frame of a group; `None`: it is flooded all the same.
    fn group(
        &mut self,
        from: PortId,
        header: Header,
        verdict: &VlanVerdict,
    ) -> Option<Vec<PortId>> {
        let is_cut = usize::try_from(self.bytes).is_ok_and(|bytes| bytes > self.head.len());
        let kind = match mcast::read(self.head) {
            // Only a report of many groups is longer than a trace's head.
            Err(_) if is_cut => Kind::Flooded,
            read => Kind::of(read),
        };
        let (at, frame) = ((from, verdict.vlan), (header, kind));
        let (scope, ports) = self.switch.bridge.peek_group_targets(at, frame, self.now);
        self.steps.push(TraceStep::Group(header.dst(), scope));
        (!scope.is_flood()).then_some(ports)
    }

    fn drop(&mut self, port: PortId, reason: DropReason) {
        self.steps.push(TraceStep::Drop(port, reason));
    }
}
