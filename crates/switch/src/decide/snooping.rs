//! IGMP and MLD snooping: which ports get the frames of a multicast group.
//!
//! # Theory of operation
//!
//! ```text
//!   reports, leaves ──► members: (VLAN, group) ──► ports   ┐
//!   queries, PIM    ──► routers: (VLAN, family) ──► ports  ├─► ports of a frame
//!   queries         ──► querier: (VLAN, family)            ┘
//! ```
//!
//! Hosts say of which groups they are members when a *querier* asks, and each answer holds for the
//! membership interval. Frames of a group go to the ports with members, and to *router ports*:
//! those behind which a router asks, and those that an operator names. Where there is no querier
//! nothing keeps memberships alive, so frames are flooded; so are they until all hosts had time to
//! answer the first query. That is how Linux's bridge does it, whose times these are.
//!
//! The switch decides by the MAC address of a group, as it does about everything: 32 groups of IPv4
//! share one. A member of one of them gets the frames of all.
//!
//! - Always flooded: 224.0.0.0/24 and ff02::1, of which no host says that it is a member, groups of
//!   other protocols, and solicited-node groups without a member: a host that does not report must
//!   be found all the same.
//! - Reports of IGMPv2 and MLDv1 go to router ports only. A host that heard another's would not
//!   report itself.
//! - Each call first ends what is due, 1,024 time-outs at most: other workers wait for the lock.
//!   What is left ends in the next calls, and its ports get frames a moment longer. Time-outs are
//!   in one queue, so that a call pays for no more than what has been learned before.
//! - A port learns as many groups as its limit. When a table is full, nothing is restricted for a
//!   membership interval: a host that fills it takes no frames from others.
//! - A report may have hundreds of records. What was read of it is charged to the turn.
//!
//! The workers of a switch have one table, under a lock. Only multicast frames of a switch that
//! snoops take it, once for a run.

mod querier;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use packet::mcast::{LAST_MEMBER_MS, Malformed, Message, Query, group_mac, is_for_all};
use packet::{MacAddr, PortId, VlanId};

use crate::decide::members::{Members, PortSet};
use crate::model::config::{McastRouter, PortConfig};
use crate::model::now::Now;
pub(crate) use querier::OwnQuery;
use querier::Querier;
pub use rows::{McastMember, McastQuerier, McastRouterPort, McastRow};

/// Groups that a switch knows: as `mcast_hash_max` of Linux's bridge.
const GROUPS_MAX: usize = 4096;
/// Memberships that a switch knows.
const MEMBERS_MAX: usize = 16_384;
/// Routers that a switch knows, each counted once for a port, a VLAN and a family.
const ROUTERS_MAX: usize = 16_384;
/// Time-outs that end in one call.
const EXPIRED_MAX: usize = 1024;

/// How long a report holds: RFC 3376, 8.4, with the times of `packet::mcast`.
const MEMBERSHIP_MS: u64 = 260_000;
/// How long a port is a router port after a query or a hello.
const ROUTER_MS: u64 = 255_000;
/// Queries about a group before its last member is believed to be gone.
const LAST_MEMBER_COUNT: u64 = 2;

/// The protocol by which hosts report groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum McastFamily {
    /// IGMP.
    Ipv4,
    /// MLD.
    Ipv6,
}

/// A family in a VLAN, which has a querier and routers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Domain {
    pub vlan: VlanId,
    pub family: McastFamily,
}

/// Frames of groups in a VLAN, which the switch does not tell from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frames {
    vlan: VlanId,
    mac: MacAddr,
}

/// A group in a VLAN. An operator may name it by the address of its frames alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    frames: Frames,
    address: Option<IpAddr>,
}

impl Group {
    fn new(vlan: VlanId, mac: MacAddr, address: Option<IpAddr>) -> Self {
        Self { frames: Frames { vlan, mac }, address }
    }
}

/// What ends at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Member(Group, PortId),
    Router(Domain, PortId),
}

/// A port that hosts and routers are behind, and what it may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub port: PortId,
    pub router: McastRouter,
    pub fast_leave: bool,
    pub max_groups: u32,
}

impl Listener {
    pub(crate) fn new(port: PortId, config: &PortConfig) -> Self {
        let &PortConfig { mcast_router, mcast_fast_leave, mcast_max_groups, .. } = config;
        let (router, fast_leave) = (mcast_router, mcast_fast_leave);
        Self { port, router, fast_leave, max_groups: mcast_max_groups }
    }
}

/// What a multicast frame is, by which its destinations are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data of a group.
    Data,
    /// A report that other members must not hear.
    Report,
    /// A query.
    Query,
    /// Another message that all may hear.
    Flooded,
}

impl Kind {
    /// What a frame is, of which this was read.
    pub(crate) const fn of(read: Result<Option<Message<'_>>, Malformed>) -> Self {
        match read {
            Ok(Some(Message::Query(_))) => Self::Query,
            Ok(Some(Message::Report(_))) => Self::Report,
            Ok(Some(Message::Leave(_) | Message::Records(_))) => Self::Flooded,
            Ok(Some(Message::Hello) | None) | Err(Malformed) => Self::Data,
        }
    }
}

/// Where the frames of a group go, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum McastScope {
    /// Flooded, as all frames for this address.
    Always,
    /// Flooded: the VLAN has no querier, or had none until a moment ago.
    NoQuerier,
    /// Flooded: the table was full.
    Full,
    /// To the group's members and to router ports.
    Members,
    /// To router ports: the group has no member.
    NoMember,
    /// To router ports: a report.
    Report,
    /// To all ports of the VLAN: a query.
    Query,
}

impl McastScope {
    /// Whether the frame is flooded as ever, to the ports that take multicast.
    #[must_use]
    pub const fn is_flood(self) -> bool {
        matches!(self, Self::Always | Self::NoQuerier | Self::Full)
    }
}

/// What snooping has counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McastStats {
    /// Reports heard: messages of hosts that are members.
    pub reports: u64,
    /// Leaves heard.
    pub leaves: u64,
    /// Queries heard.
    pub queries: u64,
    /// Queries that the switch has sent.
    pub queries_sent: u64,
    /// Messages that hosts and routers ignore.
    pub malformed: u64,
    /// Memberships that ended because no report came.
    pub expired: u64,
    /// Memberships not learned because of a port's limit.
    pub refused_limit: u64,
    /// Memberships and router ports not learned because a table was full.
    pub refused_full: u64,
}

/// A multicast frame, and the switch that it is in.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub src: PortId,
    pub vlan: VlanId,
    pub group: MacAddr,
    pub kind: Kind,
    pub members: &'a Members,
    pub now: Now,
}

/// What a switch knows of groups.
pub(crate) struct Snooping {
    /// The ports with members, which follow from those.
    groups: BTreeMap<Frames, PortSet>,
    /// Memberships of a port in groups with the same frames.
    with_frames: BTreeMap<(Frames, PortId), u32>,
    /// When each membership of a port ends; `None`: an operator has added it.
    members: BTreeMap<(Group, PortId), Option<Now>>,
    /// Learned memberships of each port that has some.
    learned: BTreeMap<PortId, u32>,
    routers: BTreeMap<Domain, PortSet>,
    router_until: BTreeMap<(Domain, PortId), Now>,
    /// Ports that an operator has made router ports.
    always: PortSet,
    timers: BTreeSet<(Now, Timer)>,
    querier: Querier,
    /// Nothing is restricted before.
    open_until: Now,
    stats: McastStats,
}

impl Snooping {
    /// A table without groups. The address of the switch's queries follows from the seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            groups: BTreeMap::new(),
            with_frames: BTreeMap::new(),
            members: BTreeMap::new(),
            learned: BTreeMap::new(),
            routers: BTreeMap::new(),
            router_until: BTreeMap::new(),
            always: PortSet::default(),
            timers: BTreeSet::new(),
            querier: Querier::new(seed),
            open_until: Now::START,
            stats: McastStats::default(),
        }
    }

    /// Learns from a message; returns its cost in records: one for the message, and its own.
    pub(crate) fn observe(
        &mut self,
        from: Listener,
        domain: Domain,
        (message, members): (Result<Message<'_>, Malformed>, &Members),
        now: Now,
    ) -> u32 {
        self.expire(now);
        let mut count = 1;
        match message {
            Err(Malformed) => self.stats.malformed += 1,
            Ok(Message::Hello) => self.hear_router(from, domain, now),
            Ok(Message::Query(query)) => self.hear_query(from, domain, (query, members), now),
            Ok(Message::Report(group)) => self.join(from, domain.vlan, group, now),
            Ok(Message::Leave(group)) => self.leave(from, domain, group, now),
            Ok(Message::Records(records)) => {
                for record in records {
                    count += 1;
                    match record.is_member {
                        true => self.join(from, domain.vlan, record.group, now),
                        false => self.leave(from, domain, record.group, now),
                    }
                }
            }
        }
        count
    }

    /// The ports that get a frame, ascending, and why those. What is due has
    /// [ended](Self::expire) before, as far as one call goes.
    pub(crate) fn find(&self, frame: &Destination<'_>, to: &mut Vec<PortId>) -> McastScope {
        let &Destination { src, vlan, group: mac, members, .. } = frame;
        let none = PortSet::default();
        let domain = family_of(mac).map(|family| Domain { vlan, family });
        let group = self.groups.get(&Frames { vlan, mac });
        let scope = self.scope(frame, domain, group.is_some());
        let group = group.unwrap_or(&none);
        let routers = domain.and_then(|domain| self.routers.get(&domain)).unwrap_or(&none);
        let always = if domain.is_some() { &self.always } else { &none };
        to.clear();
        match scope {
            McastScope::Always | McastScope::NoQuerier | McastScope::Full => {}
            McastScope::Query => to.extend(members.all(Some(src), vlan)),
            McastScope::Members => to.extend(members.among(src, vlan, [group, routers, always])),
            McastScope::NoMember | McastScope::Report => {
                to.extend(members.among(src, vlan, [&none, routers, always]));
            }
        }
        debug_assert!(to.is_sorted() && !to.contains(&src), "a frame does not go back");
        scope
    }

    /// Why a frame of this domain goes where it goes; `is_known`: its group has members.
    fn scope(&self, frame: &Destination<'_>, domain: Option<Domain>, is_known: bool) -> McastScope {
        let &Destination { group: mac, kind, now, .. } = frame;
        let Some(domain) = domain else {
            return if is_known { McastScope::Members } else { McastScope::Always };
        };
        let is_restricted = self.querier.is_there(domain, now);
        match kind {
            Kind::Query => McastScope::Query,
            Kind::Flooded => McastScope::Always,
            Kind::Report if is_restricted => McastScope::Report,
            Kind::Data if is_for_all(mac) => McastScope::Always,
            Kind::Report | Kind::Data if !is_restricted => McastScope::NoQuerier,
            _ if now < self.open_until => McastScope::Full,
            _ if is_known => McastScope::Members,
            _ if is_solicited_node(mac) => McastScope::Always,
            _ => McastScope::NoMember,
        }
    }

    /// Ends what is due, [`EXPIRED_MAX`] time-outs at most.
    pub(crate) fn expire(&mut self, now: Now) {
        for _ in 0..EXPIRED_MAX {
            let first = self.timers.first().filter(|(at, _)| *at <= now);
            let Some(&(_, timer)) = first else { break };
            self.timers.pop_first();
            match timer {
                Timer::Member(group, port) => {
                    self.stats.expired += 1;
                    self.remove_member(group, port);
                }
                Timer::Router(domain, port) => self.remove_router(domain, port),
            }
        }
        self.querier.expire(now);
    }

    /// Gives a port its settings: what it has learned stays where it may.
    pub(crate) fn set_port(&mut self, port: PortId, config: &PortConfig) {
        let statics = &config.mcast_groups;
        let stays = |group: Group, until: Option<Now>| match until {
            Some(_) => !config.vacant && config.vlan.carries(group.frames.vlan),
            None => statics.iter().any(|it| Group::new(it.0, it.1.mac(), it.1.ip()) == group),
        };
        self.forget_members(|at, group, until| at != port || stays(group, until));
        for &(vlan, address) in statics {
            let group = Group::new(vlan, address.mac(), address.ip());
            self.remove_member(group, port);
            self.insert_member(group, port, None);
        }
        match config.mcast_router {
            McastRouter::On => self.always.insert(port),
            McastRouter::Auto => self.always.remove(port),
            McastRouter::Off => {
                self.always.remove(port);
                self.querier.remove_port(port);
            }
        }
        let keeps = |domain: Domain| {
            let is_off = config.vacant || config.mcast_router == McastRouter::Off;
            !is_off && config.vlan.carries(domain.vlan)
        };
        self.forget_routers(|at, domain| at != port || keeps(domain));
        self.querier.look_again();
    }

    /// Forgets all about a port.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        self.forget_members(|at, _, _| at != port);
        self.forget_routers(|at, _| at != port);
        self.always.remove(port);
        self.querier.remove_port(port);
        debug_assert!(!self.learned.contains_key(&port), "no membership stays behind");
    }

    /// Forgets all that was learned.
    pub(crate) fn clear(&mut self) {
        self.forget_members(|_, _, until| until.is_none());
        self.forget_routers(|_, _| false);
        self.querier.clear();
        self.open_until = Now::START;
        assert!(self.timers.is_empty(), "nothing that was learned is left");
    }

    /// Begins anew as a querier (`asks`), or as none.
    pub(crate) fn restart_querier(&mut self, asks: bool) {
        self.querier.restart(asks);
    }

    /// The addresses of the switch's queries.
    pub(crate) fn source(&self, family: McastFamily) -> (MacAddr, IpAddr) {
        self.querier.source(family)
    }

    /// When there is a query to send.
    pub(crate) fn due(&self) -> Now {
        self.querier.due()
    }

    /// The queries to send now, in these VLANs and to ports that have left groups there.
    pub(crate) fn take_due(
        &mut self,
        vlans: impl Iterator<Item = VlanId>,
        now: Now,
    ) -> Vec<OwnQuery> {
        self.querier.expire(now);
        let due = self.querier.take_due(vlans, now);
        self.stats.queries_sent += due.len() as u64;
        due
    }

    /// What was counted; how many groups and memberships there are; how many queriers.
    pub(crate) fn stats(&self) -> (McastStats, [usize; 2], usize) {
        let queriers = self.querier.all().count();
        (self.stats, [self.groups.len(), self.members.len()], queriers)
    }

    fn join(&mut self, from: Listener, vlan: VlanId, address: IpAddr, now: Now) {
        self.stats.reports += 1;
        let Some(mac) = group_mac(address).filter(|&mac| !is_for_all(mac)) else { return };
        let (group, port) = (Group::new(vlan, mac, Some(address)), from.port);
        let until = after_ms(now, MEMBERSHIP_MS);
        if self.members.contains_key(&(group, port)) {
            return self.renew(group, port, until);
        }
        let count = self.learned.get(&port).copied().unwrap_or(0);
        if from.max_groups > 0 && count >= from.max_groups {
            self.stats.refused_limit += 1;
            return;
        }
        let is_new = !self.groups.contains_key(&group.frames);
        if is_new && self.groups.len() >= GROUPS_MAX || self.members.len() >= MEMBERS_MAX {
            return self.refuse_full(until);
        }
        self.insert_member(group, port, Some(until));
        *self.learned.entry(port).or_default() += 1;
        self.timers.insert((until, Timer::Member(group, port)));
    }

    fn leave(&mut self, from: Listener, domain: Domain, address: IpAddr, now: Now) {
        self.stats.leaves += 1;
        let Some(mac) = group_mac(address) else { return };
        let (group, port) = (Group::new(domain.vlan, mac, Some(address)), from.port);
        let Some(&Some(until)) = self.members.get(&(group, port)) else { return };
        if from.fast_leave {
            return self.remove_member(group, port);
        }
        // Another querier asks for the others that may be behind the port.
        if self.querier.has_other(domain) {
            return;
        }
        // Without a question, nothing tells that no member is left.
        let question = OwnQuery { domain, group: Some((address, port)) };
        if self.querier.asks() && !self.querier.ask(question, now) {
            return;
        }
        let soon = after_ms(now, LAST_MEMBER_COUNT * u64::from(LAST_MEMBER_MS));
        self.renew(group, port, until.min(soon));
    }

    fn hear_query(
        &mut self,
        from: Listener,
        domain: Domain,
        (query, members): (Query, &Members),
        now: Now,
    ) {
        self.stats.queries += 1;
        // A host that asks seldom, and for late answers, would let memberships of others end.
        if from.router == McastRouter::Off {
            return;
        }
        // One about a group keeps no other memberships alive.
        let Some(address) = query.group else {
            self.querier.hear(from.port, domain, query, now);
            // A switch that asks for want of a router is none (RFC 4541, 2.1.1).
            if !query.source.is_unspecified() {
                self.hear_router(from, domain, now);
            }
            return;
        };
        if let Some(mac) = group_mac(address).filter(|_| query.is_last) {
            let each = u64::from(query.response_ms.max(LAST_MEMBER_MS));
            let soon = after_ms(now, LAST_MEMBER_COUNT * each);
            let asked: Vec<PortId> = members.all(Some(from.port), domain.vlan).collect();
            self.shorten(Group::new(domain.vlan, mac, Some(address)), soon, &asked);
        }
    }

    /// A port is a router port for a while.
    fn hear_router(&mut self, from: Listener, domain: Domain, now: Now) {
        if from.router != McastRouter::Auto {
            return;
        }
        let (port, until) = (from.port, after_ms(now, ROUTER_MS));
        let is_known = self.router_until.contains_key(&(domain, port));
        if !is_known && self.router_until.len() >= ROUTERS_MAX {
            return self.refuse_full(until);
        }
        if let Some(before) = self.router_until.insert((domain, port), until) {
            self.timers.remove(&(before, Timer::Router(domain, port)));
        }
        self.timers.insert((until, Timer::Router(domain, port)));
        self.routers.entry(domain).or_default().insert(port);
        debug_assert!(self.routers.len() <= self.router_until.len(), "a router is at a port");
        debug_assert!(self.router_until.len() <= ROUTERS_MAX, "the table has a bound");
    }

    /// A table has no room for what holds until then: nothing is restricted meanwhile.
    fn refuse_full(&mut self, until: Now) {
        self.stats.refused_full += 1;
        self.open_until = self.open_until.max(until);
    }

    /// Memberships of a group end soon at the ports that are asked, which are ascending, unless
    /// members report again.
    fn shorten(&mut self, group: Group, soon: Now, asked: &[PortId]) {
        let first = PortId::from_low_bits(0);
        let of_group = self.members.range((group, first)..).take_while(|(key, _)| key.0 == group);
        let later = of_group.filter(|(_, until)| until.is_some_and(|until| until > soon));
        let is_asked = |port: &PortId| asked.binary_search(port).is_ok();
        let later = later.map(|((_, port), _)| *port).filter(is_asked);
        let later: Vec<PortId> = later.collect();
        later.into_iter().for_each(|port| self.renew(group, port, soon));
    }

    /// A learned membership ends at another time.
    fn renew(&mut self, group: Group, port: PortId, until: Now) {
        let Some(Some(before)) = self.members.get_mut(&(group, port)) else { return };
        let before = std::mem::replace(before, until);
        let timer = Timer::Member(group, port);
        let was_there = self.timers.remove(&(before, timer));
        debug_assert!(was_there, "a learned membership has a time-out");
        self.timers.insert((until, timer));
    }

    /// Adds a membership that is not there.
    fn insert_member(&mut self, group: Group, port: PortId, until: Option<Now>) {
        let before = self.members.insert((group, port), until);
        assert!(before.is_none(), "a membership is counted once");
        let count = self.with_frames.entry((group.frames, port)).or_default();
        *count += 1;
        if *count == 1 {
            self.groups.entry(group.frames).or_default().insert(port);
        }
        assert!(self.groups.len() <= self.members.len(), "a group has a member");
    }

    fn remove_member(&mut self, group: Group, port: PortId) {
        let Some(until) = self.members.remove(&(group, port)) else { return };
        if let Some(until) = until {
            self.timers.remove(&(until, Timer::Member(group, port)));
            count_out(&mut self.learned, port);
        }
        // Else another group has the same frames.
        if !count_out(&mut self.with_frames, (group.frames, port)) {
            return;
        }
        if let Some(ports) = self.groups.get_mut(&group.frames) {
            ports.remove(port);
            if ports.is_empty() {
                self.groups.remove(&group.frames);
            }
        }
    }

    fn remove_router(&mut self, domain: Domain, port: PortId) {
        if let Some(until) = self.router_until.remove(&(domain, port)) {
            self.timers.remove(&(until, Timer::Router(domain, port)));
        }
        if let Some(ports) = self.routers.get_mut(&domain) {
            ports.remove(port);
            if ports.is_empty() {
                self.routers.remove(&domain);
            }
        }
    }

    fn forget_members(&mut self, stays: impl Fn(PortId, Group, Option<Now>) -> bool) {
        let gone = self.members.iter().filter(|((group, port), it)| !stays(*port, *group, **it));
        let gone: Vec<(Group, PortId)> = gone.map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|(group, port)| self.remove_member(group, port));
    }

    fn forget_routers(&mut self, stays: impl Fn(PortId, Domain) -> bool) {
        let gone = self.router_until.keys().filter(|(domain, port)| !stays(*port, *domain));
        let gone: Vec<(Domain, PortId)> = gone.copied().collect();
        gone.into_iter().for_each(|(domain, port)| self.remove_router(domain, port));
    }
}

/// The family of a group by its MAC address; `None`: a group of neither.
pub(crate) const fn family_of(mac: MacAddr) -> Option<McastFamily> {
    match mac.octets() {
        [0x01, 0x00, 0x5e, 0..0x80, ..] => Some(McastFamily::Ipv4),
        [0x33, 0x33, ..] => Some(McastFamily::Ipv6),
        _ => None,
    }
}

/// Whether a group is one by which neighbours are looked for (RFC 4291, 2.7.1).
const fn is_solicited_node(mac: MacAddr) -> bool {
    matches!(mac.octets(), [0x33, 0x33, 0xff, ..])
}

/// Counts one less; returns whether it was the last, of which no count stays.
fn count_out<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    assert!(*count > 0, "what goes was counted when it came");
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        counts.remove(&key);
    }
    is_last
}

fn after_ms(now: Now, ms: u64) -> Now {
    now.after_us(ms * 1000)
}

#[cfg(test)]
mod tests;
