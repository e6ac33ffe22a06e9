//! The bridge: forwarding function, forwarding database and the VLANs of ports give a verdict.
//!
//! # Theory of operation
//!
//! ```text
//!  frame from port src ──► decide:  does its guard admit it? ─ no ─► drop mac_lock, disabled
//!                                   is src a port?        ── no ─► drop dead_port
//!                                   which VLAN is it in?  ── none ─► drop vlan
//!                                   forwarding function   ──► drop …
//!                                        │
//!                       To(dst) ◄────────┴────────► Flood(class)
//!                          │                             │
//!                       egress: does dst carry        flood_targets: the same questions, asked
//!                       the VLAN? isolated?           64 ports at a time
//!                          │                             │
//!                          └──────► tag action ◄─────────┘
//! ```
//!
//! A verdict is a function of the state of the bridge, the source port, the [key] of the header and
//! the time. While [`Bridge::generation`], read before the verdict, stays the same, a second call
//! at the same `now` gives the same verdict and changes nothing. So the verdict holds for every
//! frame of one port and key. Time alone changes no generation: a cached verdict delays the refresh
//! of its source and the expiry of its destination. A caller should keep it for a small part of the
//! ageing time only. A program that changes a map by its verdict is the exception:
//! `Bridge::is_fleeting` says so.
//!
//! The cost of a unicast frame does not depend on the number of ports.
//!
//! [key]: packet::ethernet::Header::key

mod by_program;
mod entries;
mod groups;
pub(crate) mod security;
mod set_aside;

use packet::ethernet::{Header, Tag};
use packet::{MacAddr, PortId, VlanId, VlanMode};
use ring::shared::Shared;

use crate::decide::fdb::{Fdb, FdbChanges, Flush, Learned};
use crate::decide::forward::patch::Patch;
use crate::decide::forward::static_map::{DROP_UNKNOWN, FLOOD_UNKNOWN};
use crate::decide::forward::user::UserFunction;
use crate::decide::forward::{Ingress, Verdict, hub, learning, refused, static_map};
use crate::decide::members::Members;
use crate::decide::snooping::Snooping;
use crate::model::config::{Forwarding, PortConfig, SwitchConfig};
use crate::model::now::Now;
use crate::model::stats::DropReason;
use crate::receive::slot_flags::SlotFlags;
pub use entries::StaticError;
pub use security::News;
use security::{Guard, is_bpdu};
use set_aside::SetAside;

/// A verdict about a frame in its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanVerdict {
    /// The verdict of the forwarding function.
    pub forward: Verdict,
    /// The VLAN of the frame.
    pub vlan: VlanId,
    /// How the frame carries its VLAN.
    pub tagging: Tagging,
    /// What the frame is without the tag of its VLAN.
    pub payload: Payload,
}

/// What a frame is without the tag of its VLAN, as far as verdicts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Whatever it is.
    Other,
    /// An 802.1Q tag comes first. That is payload here, and a VLAN to the switch at the other end
    /// of a trunk.
    Tagged,
    /// A BPDU.
    Bpdu,
}

/// How a frame carries its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tagging {
    /// Without a tag, or with a tag that is payload (see [`VlanMode::Transparent`]).
    Untagged,
    /// With a tag that gives a priority, but no VLAN.
    Priority,
    /// With the tag of its VLAN.
    Tagged,
}

/// What is done to the tag of a frame on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TagAction {
    /// The frame leaves as it came.
    Keep,
    /// The tag is removed.
    Strip,
    /// A tag with this VLAN is put in, with priority 0.
    Insert(VlanId),
    /// The VLAN is written into the tag that is there; its priority stays.
    Replace(VlanId),
}

impl TagAction {
    /// How many bytes the frame grows by in front of its network header.
    #[inline]
    pub const fn growth(self) -> isize {
        match self {
            Self::Keep | Self::Replace(_) => 0,
            Self::Insert(_) => 4,
            Self::Strip => -4,
        }
    }
}

/// The tables of one switch, and what it decides by them.
pub struct Bridge {
    config: SwitchConfig,
    /// By index of the port.
    ports: Vec<Option<PortConfig>>,
    /// Mirror ports, which are not among the others.
    set_aside: SetAside,
    members: Members,
    patch: Patch,
    fdb: Fdb,
    snooping: Shared<Snooping>,
    /// The program of the switch's owner.
    function: Option<Box<UserFunction>>,
    /// Guards of the ports that have security settings, by index.
    guards: Vec<Option<Box<Guard>>>,
    /// Whether a guard has something to report.
    has_news: bool,
    /// Changes of configuration and ports; with those of the FDB and the program's maps they make
    /// the generation.
    changes: u64,
    /// The generation that the last verdict of the program is for.
    asked_at: u64,
}

impl Bridge {
    /// A switch without ports. The seed of the forwarding database's hash should be random, so that
    /// clients cannot choose addresses that collide.
    pub fn new(config: SwitchConfig, seed: u64) -> Self {
        let fdb = Fdb::new(config.fdb_capacity, config.ageing_ms, seed);
        let mut snooping = Snooping::new(seed);
        snooping.restart_querier(config.mcast_querier);
        Self::with_tables(config, fdb, Shared::sole(snooping))
    }

    fn with_tables(config: SwitchConfig, fdb: Fdb, snooping: Shared<Snooping>) -> Self {
        Self {
            config,
            ports: Vec::new(),
            set_aside: SetAside::default(),
            members: Members::default(),
            patch: Patch::default(),
            fdb,
            snooping,
            function: None,
            guards: Vec::new(),
            has_news: false,
            changes: 0,
            asked_at: 0,
        }
    }

    /// A bridge for each of so many workers: the settings are the same, the forwarding database is
    /// one, and there is no port yet.
    #[must_use]
    pub fn into_replicas(self, workers: usize) -> Vec<Self> {
        assert!(self.ports.is_empty(), "ports are added to each replica");
        if workers == 1 {
            return vec![self];
        }
        assert!(workers > 0, "a switch has a worker");
        let (config, fdb) = (self.config, self.fdb.into_common());
        let snooping = self.snooping.into_common();
        let replica = |_| Self::with_tables(config, fdb.handle(), snooping.handle());
        (0..workers).map(replica).collect()
    }

    /// Adds a port, which must not be there.
    pub fn add_port(&mut self, port: PortId, config: PortConfig) {
        assert!(self.port(port).is_none(), "port {port} is there already");
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, None);
            self.guards.resize_with(port.index() + 1, || None);
        }
        self.guards[port.index()] = Guard::new(self.security_of(&config), config.security_state);
        self.install(port, config);
        self.connect_patch();
    }

    /// Changes the configuration of a port, which must be there. Addresses learned in VLANs that
    /// it carries no more are forgotten.
    pub fn set_port(&mut self, port: PortId, config: PortConfig) {
        if let Some(aside) = self.set_aside.get_mut(&port) {
            *aside = config;
            return;
        }
        assert!(self.port(port).is_some(), "port {port} is not there");
        self.fdb.flush_port_except(port, |vlan| config.vlan.carries(vlan));
        self.members.remove(port);
        self.install(port, config);
    }

    /// Removes a port, if it is there, and all that is known to be behind it. Of bridges with one
    /// forwarding database, the one that takes the port's frames removes it first: it alone learns
    /// what is behind the port.
    pub fn remove_port(&mut self, port: PortId) {
        self.set_aside.remove(&port);
        if self.port(port).is_some() {
            self.ports[port.index()] = None;
            self.guards[port.index()] = None;
            self.members.remove(port);
            self.fdb.remove_port(port);
            self.snooping.lock().remove_port(port);
            self.connect_patch();
            // In the wrong order another worker may have learned one by now, which goes as soon as
            // that worker removes the port.
            debug_assert!(self.fdb.learned_on(port) == 0, "the port's own worker comes first");
            self.changes += 1;
        }
    }

    /// Changes the configuration of the switch. With another forwarding function, only static and
    /// external entries stay; if the forwarding database holds more than its new capacity, only
    /// static ones.
    pub fn set_config(&mut self, config: SwitchConfig) {
        if config.forwarding != self.config.forwarding {
            self.fdb.flush(Flush::All);
        }
        self.fdb.set_ageing(config.ageing_ms);
        self.fdb.set_capacity(config.fdb_capacity);
        let is_other_security = config.security != self.config.security;
        self.set_snooping(&config);
        self.config = config;
        self.changes += 1;
        if is_other_security {
            let ports: Vec<_> = self.ports().map(|(port, config)| (port, config.clone())).collect();
            for (port, config) in ports {
                self.members.remove(port);
                self.install(port, config);
            }
        }
    }

    /// Forgets learned addresses; returns how many.
    pub fn flush(&mut self, what: Flush<'_>) -> usize {
        self.fdb.flush(what)
    }

    /// Changes of the forwarding database since the last call: see [`Fdb::take_changes`].
    pub fn take_fdb_changes(&mut self, next: Option<Box<FdbChanges>>) -> Option<Box<FdbChanges>> {
        self.fdb.take_changes(next)
    }

    /// Housekeeping: forgets silent stations, looking at no more than `budget` slots of the
    /// forwarding database. Returns how many it forgot.
    pub fn age(&mut self, now: Now, budget: usize) -> usize {
        self.fdb.age(now, budget)
    }

    /// Learns an address that another daemon has learned behind a port, as if its station had just
    /// sent a frame. A port that learns nothing, or does not carry the VLAN, is left alone.
    pub fn learn_again(&mut self, vlan: VlanId, mac: MacAddr, port: PortId, now: Now) {
        let learns = |port: &PortConfig| port.learning && port.vlan.carries(vlan);
        if self.port(port).is_some_and(learns) {
            self.fdb.learn(vlan, mac, port, now);
        }
    }

    /// Decides where a frame goes, and learns where it came from.
    #[inline]
    pub fn decide(&mut self, src: PortId, header: Header, now: Now) -> VlanVerdict {
        self.decide_with_flags(src, header, SlotFlags::NONE, now)
    }

    /// Decides as [`decide`](Self::decide), with the frame's flags. In a learning switch and in a
    /// hub a requested destination replaces a unicast or a flood. In the other switches, and on a
    /// port whose floods are limited, an operator restricts the destinations, and the request is
    /// ignored. [`egress`](Self::egress) applies to all.
    #[inline]
    pub fn decide_with_flags(
        &mut self,
        src: PortId,
        header: Header,
        flags: SlotFlags,
        now: Now,
    ) -> VlanVerdict {
        match self.refuse(src, header) {
            Some(reason) => dropped(reason),
            None => self.decide_admitted(src, header, flags, now),
        }
    }

    /// Decides about a frame that was admitted before, and may have changed since. Port security
    /// has no say in it.
    #[inline]
    pub(crate) fn decide_admitted(
        &mut self,
        src: PortId,
        header: Header,
        flags: SlotFlags,
        now: Now,
    ) -> VlanVerdict {
        match self.ingress(src, header, flags, now) {
            Ok((frame, tagging)) => {
                let verdict = self.forward(frame);
                self.conclude(frame, tagging, flags, verdict)
            }
            Err(reason) => dropped(reason),
        }
    }

    /// What [`decide_with_flags`](Self::decide_with_flags) would say now. The bridge learns nothing
    /// and remembers nothing.
    #[must_use]
    pub fn peek(&self, src: PortId, header: Header, flags: SlotFlags, now: Now) -> VlanVerdict {
        match self.would_refuse(src, header) {
            Some(reason) => dropped(reason),
            None => self.peek_admitted(src, header, flags, now),
        }
    }

    /// What [`decide_admitted`](Self::decide_admitted) would say now, likewise.
    pub(crate) fn peek_admitted(
        &self,
        src: PortId,
        header: Header,
        flags: SlotFlags,
        now: Now,
    ) -> VlanVerdict {
        match self.ingress(src, header, flags, now) {
            Ok((frame, tagging)) => self.conclude(frame, tagging, flags, self.peek_forward(frame)),
            Err(reason) => dropped(reason),
        }
    }

    /// What the forwarding database would learn of a frame; `None`: the bridge does not look at the
    /// source.
    pub(crate) fn would_learn(&self, frame: Ingress) -> Option<Learned> {
        let learns = matches!(self.config.forwarding, Forwarding::Learning | Forwarding::Chain);
        let is_let_in = learns && refused(&frame).is_none();
        is_let_in.then(|| learning::would_learn(&self.fdb, frame)).flatten()
    }

    /// A frame that comes in by a port, and how it carries its VLAN.
    #[inline]
    pub(crate) fn ingress(
        &self,
        src: PortId,
        header: Header,
        flags: SlotFlags,
        now: Now,
    ) -> Result<(Ingress, Tagging), DropReason> {
        let port = self.port(src).ok_or_else(|| self.refuse_absent(src))?;
        let (vlan, tagging) = classify(&port.vlan, header.tag()).ok_or(DropReason::Vlan)?;
        let learning = port.learning && flags.learning();
        let (group_fwd_mask, zero_source) = (self.config.group_fwd_mask, port.zero_source);
        let frame = Ingress { src, learning, vlan, header, now, group_fwd_mask, zero_source };
        Ok((frame, tagging))
    }

    /// The verdict about a frame, by that of the forwarding function.
    #[inline]
    fn conclude(
        &self,
        frame: Ingress,
        tagging: Tagging,
        flags: SlotFlags,
        verdict: Verdict,
    ) -> VlanVerdict {
        let Ingress { src, vlan, header, .. } = frame;
        let is_open = matches!(self.config.forwarding, Forwarding::Learning | Forwarding::Hub)
            && !self.has_flood_limits(src);
        let verdict = match (verdict, flags.destination().filter(|_| is_open)) {
            (Verdict::To(_) | Verdict::Flood(_) | Verdict::Set(..), Some(dst)) => Verdict::To(dst),
            (verdict, _) => verdict,
        };
        let payload = payload(header, flags, tagging);
        VlanVerdict { forward: not_back(verdict, src), vlan, tagging, payload }
    }

    /// Whether the port lets every frame in and learns nothing from it. The switch then need not
    /// read its frames, if it knows their destination from a chain.
    #[inline]
    #[must_use]
    pub fn is_wire(&self, src: PortId) -> bool {
        let is_guarded = self.guards.get(src.index()).is_some_and(Option::is_some);
        self.port(src).is_some_and(|port| !port.learning && port.vlan.is_transparent())
            && !is_guarded
    }

    /// The verdict about every frame of `src` that a rule or a function has sent to `dst`, whatever
    /// its header says. `None`: one of the ports looks at tags.
    #[inline]
    pub fn decide_without_header(&self, src: PortId, dst: PortId) -> Option<VlanVerdict> {
        let port = self.port(src).filter(|port| port.vlan.is_transparent())?;
        let (vlan, tagging) = classify(&port.vlan, None)?;
        if self.port(dst).is_some_and(|to| to.vlan.is_native(vlan)) || self.filters_bpdus(dst) {
            return None;
        }
        let forward = not_back(Verdict::To(dst), src);
        Some(VlanVerdict { forward, vlan, tagging, payload: Payload::Other })
    }

    /// Whether `dst` gets a frame, and what is done to its tag. For the port of a [`Verdict::To`],
    /// and for each port of a flood.
    #[inline]
    pub fn egress(
        &self,
        src: PortId,
        dst: PortId,
        verdict: &VlanVerdict,
    ) -> Result<TagAction, DropReason> {
        let (Some(from), Some(to)) = (self.port(src), self.port(dst)) else {
            return Err(DropReason::DeadPort);
        };
        if src == dst {
            return Err(DropReason::SamePort);
        }
        if to.vacant {
            return Err(DropReason::DeadPort);
        }
        if self.is_disabled(dst) {
            return Err(DropReason::Disabled);
        }
        if !to.vlan.carries(verdict.vlan) {
            return Err(DropReason::Vlan);
        }
        if from.isolated && to.isolated {
            return Err(DropReason::Isolated);
        }
        match (verdict.forward, verdict.payload) {
            (Verdict::Flood(class), _) if !to.takes(class) => Err(class.policy()),
            (_, Payload::Tagged) if to.vlan.is_native(verdict.vlan) => Err(DropReason::NestedTag),
            (_, Payload::Bpdu) if self.filters_bpdus(dst) => Err(DropReason::BpduFilter),
            _ => Ok(tag_action(&to.vlan, verdict)),
        }
    }

    /// The ports that get a flooded frame, or are of the set of a verdict, ascending; none for
    /// other verdicts. [`egress`] says what is done to the tag. It lets all ports of a flood pass
    /// but a trunk for a nested tag, and one that filters BPDUs for a BPDU.
    ///
    /// [`egress`]: Self::egress
    pub fn flood_targets(
        &self,
        src: PortId,
        verdict: &VlanVerdict,
    ) -> impl Iterator<Item = PortId> + '_ {
        let vlan = verdict.vlan;
        let (class, set) = match verdict.forward {
            Verdict::Flood(class) => (Some(class), None),
            Verdict::Set(_, set) => (None, self.function.as_deref().map(|it| it.ports(set))),
            Verdict::To(_) | Verdict::Members | Verdict::Drop(_) => (None, None),
        };
        let flooded =
            class.into_iter().flat_map(move |class| self.members.targets(src, vlan, class));
        let chosen = set.into_iter().flatten().copied();
        flooded.chain(chosen.filter(move |&port| port != src && self.port(port).is_some()))
    }

    /// A number that changes with every change that can alter a decision or the receivers of a
    /// flood.
    #[inline]
    pub fn generation(&self) -> u64 {
        // All only grow, so their sum changes with each.
        self.changes + self.fdb.generation() + self.map_changes()
    }

    /// The forwarding database, to read.
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// The configuration of the switch.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// The configuration of a port, if there is such a port.
    #[inline]
    pub fn port(&self, port: PortId) -> Option<&PortConfig> {
        self.ports.get(port.index())?.as_ref()
    }

    /// The ports, ascending.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &PortConfig)> + '_ {
        let numbered = self.ports.iter().enumerate();
        numbered.filter_map(|(index, config)| PortId::new(index).zip(config.as_ref()))
    }

    #[inline]
    fn forward(&mut self, frame: Ingress) -> Verdict {
        match self.config.forwarding {
            Forwarding::Learning | Forwarding::Chain => learning::decide(&mut self.fdb, frame),
            Forwarding::Hub => hub::decide(frame),
            Forwarding::Patch => self.patch.decide(frame.src),
            Forwarding::Static => static_map::decide(&self.fdb, frame, DROP_UNKNOWN),
            Forwarding::StaticFlood => static_map::decide(&self.fdb, frame, FLOOD_UNKNOWN),
            Forwarding::Program => self.ask_program(frame),
        }
    }

    /// What [`forward`](Self::forward) would say.
    fn peek_forward(&self, frame: Ingress) -> Verdict {
        match self.config.forwarding {
            Forwarding::Learning | Forwarding::Chain => learning::peek(&self.fdb, frame),
            Forwarding::Hub => hub::decide(frame),
            Forwarding::Patch => self.patch.decide(frame.src),
            Forwarding::Static => static_map::decide(&self.fdb, frame, DROP_UNKNOWN),
            Forwarding::StaticFlood => static_map::decide(&self.fdb, frame, FLOOD_UNKNOWN),
            Forwarding::Program => {
                let asked = || self.peek_program(frame).map(|(verdict, _)| verdict);
                let verdict = refused(&frame).map(Verdict::Drop).or_else(asked);
                verdict.unwrap_or(Verdict::Drop(DropReason::ProgramFault))
            }
        }
    }

    fn install(&mut self, port: PortId, config: PortConfig) {
        assert!(port.index() < self.ports.len(), "the caller has made room");
        self.set_guard(port, &config);
        if !self.is_disabled(port) {
            self.members.add(port, &config);
        }
        let own = self.security_of(&config).max_macs;
        let max_macs = own.or(config.usual_max_macs).filter(|&max| max > 0);
        // An operator that sets a limit knows what the port is for.
        let user = config.usual_max_macs.filter(|_| own.is_none()).map(|_| config.user);
        self.fdb.set_limit(port, max_macs, user);
        self.snooping.lock().set_port(port, &config);
        self.ports[port.index()] = Some(config);
        self.changes += 1;
    }

    fn connect_patch(&mut self) {
        self.patch = Patch::new(self.ports().map(|(port, _)| port));
    }
}

/// The VLAN of a frame that comes in by a port, and how the frame says so; none if the port does
/// not let it in.
#[inline]
fn classify(mode: &VlanMode, tag: Option<Tag>) -> Option<(VlanId, Tagging)> {
    match mode {
        VlanMode::Transparent(vlan) => Some((*vlan, Tagging::Untagged)),
        VlanMode::Access(vlan) => classify_by_tag(mode, Some(*vlan), tag),
        VlanMode::Trunk { native, .. } => classify_by_tag(mode, *native, tag),
    }
}

#[inline]
fn classify_by_tag(
    mode: &VlanMode,
    native: Option<VlanId>,
    tag: Option<Tag>,
) -> Option<(VlanId, Tagging)> {
    match tag {
        None => native.map(|vlan| (vlan, Tagging::Untagged)),
        Some(tag) if tag.is_priority() => native.map(|vlan| (vlan, Tagging::Priority)),
        Some(tag) => tag.vlan().filter(|&v| mode.carries(v)).map(|v| (v, Tagging::Tagged)),
    }
}

/// What a frame that comes in is without the tag of its VLAN.
#[inline]
fn payload(header: Header, flags: SlotFlags, tagging: Tagging) -> Payload {
    // A port that lets tags pass as payload shows the first one, others the second.
    let is_tagged = match tagging {
        Tagging::Untagged => header.tag().is_some(),
        Tagging::Priority | Tagging::Tagged => flags.has_inner_tag(),
    };
    match is_tagged {
        true => Payload::Tagged,
        false if is_bpdu(header) => Payload::Bpdu,
        false => Payload::Other,
    }
}

/// What is done to the tag of a frame that leaves by a port which carries its VLAN.
#[inline]
fn tag_action(mode: &VlanMode, verdict: &VlanVerdict) -> TagAction {
    let vlan = verdict.vlan;
    let leaves_tagged = matches!(mode, VlanMode::Trunk { native, .. } if *native != Some(vlan));
    match (verdict.tagging, leaves_tagged) {
        (Tagging::Untagged, false) | (Tagging::Tagged, true) => TagAction::Keep,
        (Tagging::Untagged, true) => TagAction::Insert(vlan),
        (Tagging::Priority, true) => TagAction::Replace(vlan),
        (Tagging::Priority | Tagging::Tagged, false) => TagAction::Strip,
    }
}

/// Drops a frame for the port that it came by: its station has got it already.
#[inline]
fn not_back(verdict: Verdict, src: PortId) -> Verdict {
    if verdict == Verdict::To(src) { Verdict::Drop(DropReason::SamePort) } else { verdict }
}

/// The decision about a frame that is in no VLAN.
#[cold]
fn dropped(reason: DropReason) -> VlanVerdict {
    let forward = Verdict::Drop(reason);
    let (vlan, tagging) = (VlanId::DEFAULT, Tagging::Untagged);
    VlanVerdict { forward, vlan, tagging, payload: Payload::Other }
}

const _: () = assert!(size_of::<VlanVerdict>() == 8, "a decision is handed about in a register");

#[cfg(test)]
mod tests;
