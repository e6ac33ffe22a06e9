//! What is to be done, decided without doing it: no socket, no clock.
//!
//! # Theory of operation
//!
//! ```text
//!   forwarding database ─► stations ─┐            ┌─► routes of this host   ─► GoBGP
//!                                    ├─► todo ────┤
//!   GoBGP's table ───────► routes ───┘            └─► remotes and stations  ─► the port
//! ```
//!
//! Both sides are read whole ([`Plan::see_stations`], [`Plan::see_routes`]), never by what changed:
//! a message that was lost costs time, not truth. [`Plan::todo`] compares what should be with what
//! is known to be there, and says the difference. The caller does it, reports what was done
//! ([`Plan::did_port`], [`Plan::did_bgp`]), and reads both sides again when they change.
//!
//! Of a station that is heard here while another host announces it, one of them is right. The
//! *sequence number* says which (RFC 7432, 7.7 and 15):
//!
//! | | |
//! |---|---|
//! | heard here, and not announced yet | it moved here: announce, one above theirs |
//! | announced here, and theirs is higher | it moved there: withdraw, and forget it here |
//! | announced by both with one number | the host with the lowest address has it |
//! | sticky on one side | that side has it |
//!
//! A static station of this host is never given up. One that moves here for the fifth time in
//! [`WINDOW_MS`] is a duplicate: two stations have one address. Until the window is over this host
//! does not claim it again.
//!
//! What a side that was lost knew is kept until its *hold time* is over, and so is what was there
//! before the process started: restarts lose no station. A remote that is withdrawn is kept for
//! [`GRACE_MS`], for its routes may be announced again at once by a BGP speaker that has started.
//!
//! What goes with the stations are their IP addresses ([`addresses`]).
//!
//! Limits: [`Limits`]. What came first stays. Where each VLAN of a port has a network, each network
//! has a plan, and these share the limits ([`share()`]).

mod addresses;
mod share;
mod todo;

pub use share::{admit, share};
pub use todo::{Announced, Todo};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use packet::MacAddr;
use packet::neigh::Neighbour;

use crate::bgp::{Mobility, Route, Subject};

/// How long moves are counted.
pub const WINDOW_MS: u64 = 180_000;
/// Moves to this host in that time which make a duplicate.
const MOVES_MAX: u32 = 5;
/// How long a remote stays after its route is gone.
pub const GRACE_MS: u64 = 15_000;

/// What the process keeps at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Remotes of the port.
    pub remotes: usize,
    /// Stations behind them.
    pub stations: usize,
    /// IP addresses of these.
    pub neighbours: usize,
    /// Stations of this host that are announced.
    pub announced: usize,
    /// How long a side that is lost counts.
    pub hold_ms: u64,
}

/// How much was beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Remotes.
    pub remotes: usize,
    /// Stations behind remotes, and IP addresses of these.
    pub stations: usize,
}

/// A station that the switch has on a port of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The address.
    pub mac: MacAddr,
    /// An operator has put it there.
    pub is_static: bool,
}

/// The time in milliseconds until which something counts; `None`: it has no end.
type Until = Option<u64>;
/// IP addresses of a station, and whether it says there that it is a router.
type Addresses = BTreeMap<IpAddr, bool>;

#[derive(Clone, Debug)]
struct Here {
    is_static: bool,
    /// What this host says of its moves, once it does.
    claim: Option<Mobility>,
    addresses: Addresses,
    until: Until,
}

#[derive(Clone, Debug)]
struct There {
    host: IpAddr,
    mobility: Mobility,
    addresses: Addresses,
    until: Until,
}

#[derive(Clone, Copy, Debug)]
struct Moves {
    since: u64,
    count: u32,
}

/// What is known, and what was done about it.
#[derive(Debug)]
pub struct Plan {
    local: IpAddr,
    limits: Limits,
    here: BTreeMap<MacAddr, Here>,
    /// Hosts that get floods.
    hosts: BTreeMap<IpAddr, Until>,
    there: BTreeMap<MacAddr, There>,
    moves: BTreeMap<MacAddr, Moves>,
    announced: Announced,
    port_remotes: BTreeSet<IpAddr>,
    /// Stations that the port has, with the remote of each; none, if the switch has heard the
    /// station elsewhere since.
    port_stations: BTreeMap<MacAddr, Option<IpAddr>>,
    /// IP addresses that were named to the port, and that it answers for; `None`: it does not.
    port_neighbours: Option<BTreeMap<IpAddr, (MacAddr, bool)>>,
    /// Routes were read since GoBGP was there last.
    has_routes: bool,
    /// Whether the switch is there, or was until lately.
    has_switch: bool,
    /// The switch is lost, and counts until then.
    switch_until: Until,
    /// What was beyond a limit, at the last look.
    refused: Refused,
    next_end: Option<u64>,
}

impl Plan {
    /// A host with this address, that knows nothing.
    #[must_use]
    pub fn new(local: IpAddr, limits: Limits) -> Self {
        Self {
            local,
            limits,
            here: BTreeMap::new(),
            hosts: BTreeMap::new(),
            there: BTreeMap::new(),
            moves: BTreeMap::new(),
            announced: Announced::default(),
            port_remotes: BTreeSet::new(),
            port_stations: BTreeMap::new(),
            port_neighbours: None,
            has_routes: false,
            has_switch: false,
            switch_until: None,
            refused: Refused::default(),
            next_end: None,
        }
    }

    /// Changes what is kept at most.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The port is there, with these remotes of an earlier process or of this one, and with
    /// whatever stations and IP addresses; the caller marks them, and sweeps when the hold time is
    /// over.
    pub fn find_port(&mut self, remotes: &[IpAddr], now: u64) {
        (self.has_switch, self.switch_until) = (true, None);
        self.port_remotes = remotes.iter().copied().collect();
        self.port_stations.clear();
        self.port_neighbours = None;
        let until = Some(now + self.limits.hold_ms);
        for &remote in remotes {
            self.hosts.entry(remote).or_insert(until);
        }
    }

    /// The switch does not answer any more.
    pub fn lose_switch(&mut self, now: u64) {
        let until = Some(now + self.limits.hold_ms);
        self.switch_until = until;
        self.here.values_mut().for_each(|it| it.until = it.until.or(until));
    }

    /// GoBGP does not answer any more. What it has of this host may be gone when it answers again.
    pub fn lose_bgp(&mut self, now: u64) {
        let until = Some(now + self.limits.hold_ms);
        self.hosts.values_mut().for_each(|it| *it = it.or(until));
        self.there.values_mut().for_each(|it| it.until = it.until.or(until));
        (self.announced, self.has_routes) = (Announced::default(), false);
    }

    /// Whether the switch is there, or was until its hold time was over.
    #[must_use]
    pub fn has_switch(&self) -> bool {
        self.has_switch
    }

    /// Whether a port with these remotes has those that it was given.
    #[must_use]
    pub fn has_remotes(&self, remotes: &BTreeSet<IpAddr>) -> bool {
        self.port_remotes.is_subset(remotes)
    }

    /// The stations that the switch has as they were named behind the port: all of them. Others are
    /// named again.
    pub fn see_named(&mut self, named: &BTreeSet<MacAddr>) {
        let lost = self.port_stations.iter_mut().filter(|(mac, _)| !named.contains(mac));
        lost.for_each(|(_, remote)| *remote = None);
    }

    /// The stations that the switch has on ports of this host: all of them.
    pub fn see_stations(&mut self, stations: &[Station]) {
        let seen: BTreeSet<MacAddr> = stations.iter().map(|it| it.mac).collect();
        self.here.retain(|mac, it| it.until.is_some() || seen.contains(mac));
        for &Station { mac, is_static } in stations {
            if let Some(remote) = self.port_stations.get_mut(&mac) {
                *remote = None;
            }
            if self.here.len() >= self.limits.announced && !self.here.contains_key(&mac) {
                continue;
            }
            let addresses = Addresses::new();
            let here = Here { is_static, claim: None, addresses, until: None };
            let it = self.here.entry(mac).or_insert(here);
            (it.is_static, it.until) = (is_static, None);
        }
    }

    /// The routes of other hosts, and what GoBGP has of this one: all of them.
    pub fn see_routes(&mut self, routes: &[Route], announced: Announced, now: u64) {
        (self.announced, self.has_routes) = (announced, true);
        let mut hosts = BTreeSet::new();
        let mut there = BTreeMap::<MacAddr, There>::new();
        for &Route { subject, host } in routes.iter().filter(|it| it.host != self.local) {
            match subject {
                Subject::Floods => {
                    hosts.insert(host);
                }
                Subject::Station(mac, mobility)
                | Subject::Neighbour(Neighbour { mac, .. }, mobility) => {
                    see_station(&mut there, mac, mobility, host);
                }
            }
        }
        self.refused = Refused::default();
        self.see_addresses(routes, &mut there);
        self.see_hosts(&hosts, now);
        self.see_there(there);
    }

    fn see_hosts(&mut self, hosts: &BTreeSet<IpAddr>, now: u64) {
        for (host, until) in &mut self.hosts {
            if !hosts.contains(host) {
                *until = until.or(Some(now + GRACE_MS));
            }
        }
        for &host in hosts {
            if self.hosts.contains_key(&host) || self.hosts.len() < self.limits.remotes {
                self.hosts.insert(host, None);
            } else {
                self.refused.remotes += 1;
            }
        }
    }

    fn see_there(&mut self, there: BTreeMap<MacAddr, There>) {
        self.there.retain(|mac, it| it.until.is_some() || there.contains_key(mac));
        for (mac, it) in there {
            if self.there.contains_key(&mac) || self.there.len() < self.limits.stations {
                self.there.insert(mac, it);
            } else {
                self.refused.stations += 1;
            }
        }
    }

    /// What was beyond a limit when routes were read last.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The next moment at which something is over, as of the last [`Plan::todo`].
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.next_end
    }

    fn find_end(&self) -> Option<u64> {
        let here = self.here.values().filter_map(|it| it.until);
        let there = self.there.values().filter_map(|it| it.until);
        let hosts = self.hosts.values().filter_map(|it| *it);
        here.chain(there).chain(hosts).chain(self.switch_until).min()
    }

    /// Compares what should be with what is.
    pub fn todo(&mut self, now: u64) -> Todo {
        self.end(now);
        let mut todo = Todo::default();
        self.plan_remotes(&mut todo);
        let all: BTreeSet<MacAddr> = (self.here.keys().chain(self.there.keys()))
            .chain(self.announced.stations.keys())
            .chain(self.port_stations.keys())
            .copied()
            .collect();
        for mac in all {
            self.plan_station(mac, now, &mut todo);
        }
        self.plan_addresses(&mut todo);
        self.plan_answers(&mut todo);
        self.next_end = self.find_end();
        todo
    }

    /// Forgets what is over.
    fn end(&mut self, now: u64) {
        let is_over = |until: Until| until.is_some_and(|until| until <= now);
        self.here.retain(|_, it| !is_over(it.until));
        self.there.retain(|_, it| !is_over(it.until));
        self.hosts.retain(|_, until| !is_over(*until));
        self.moves.retain(|_, it| now < it.since + WINDOW_MS);
        if is_over(self.switch_until) {
            (self.has_switch, self.switch_until) = (false, None);
        }
    }

    fn plan_remotes(&self, todo: &mut Todo) {
        let new = self.hosts.keys().filter(|host| !self.port_remotes.contains(host));
        let gone = self.port_remotes.iter().filter(|host| !self.hosts.contains_key(host));
        (todo.add_remotes, todo.del_remotes) = (new.copied().collect(), gone.copied().collect());
        let list = match (self.has_switch, self.announced.floods) {
            (true, false) => &mut todo.announce,
            (false, true) => &mut todo.withdraw,
            _ => return,
        };
        list.push(Subject::Floods);
    }

    fn plan_station(&mut self, mac: MacAddr, now: u64, todo: &mut Todo) {
        let there = self.there.get(&mac).filter(|it| self.hosts.contains_key(&it.host));
        let there = there.map(|it| (it.mobility, it.host));
        if !self.has_routes && self.here.contains_key(&mac) {
            // Another host may have it: this one says nothing before it has heard.
            todo.del_stations.extend(self.port_stations.contains_key(&mac).then_some(mac));
            return;
        }
        let claim = match self.here.get(&mac).map(|it| (it.is_static, it.claim)) {
            None => None,
            Some((is_sticky, before)) => self.claim(mac, is_sticky, before, there, now),
        };
        match self.here.get_mut(&mac) {
            Some(here) if claim.is_some() => here.claim = claim,
            // The station has moved away: it is here again when the switch hears it here again.
            _ => {
                self.here.remove(&mac);
            }
        }
        match (claim, self.announced.stations.get(&mac)) {
            (Some(claim), said) if said != Some(&claim) => {
                todo.announce.push(Subject::Station(mac, claim));
            }
            (None, Some(&said)) => todo.withdraw.push(Subject::Station(mac, said)),
            _ => {}
        }
        let wanted = there.filter(|_| claim.is_none()).map(|(_, host)| host);
        match (wanted, self.port_stations.get(&mac)) {
            (Some(host), has) if has != Some(&Some(host)) => todo.add_stations.push((mac, host)),
            (None, Some(_)) => todo.del_stations.push(mac),
            _ => {}
        }
    }

    /// What this host says of a station that is heard here, with what it has said; `None`: the
    /// station is there.
    fn claim(
        &mut self,
        mac: MacAddr,
        is_sticky: bool,
        before: Option<Mobility>,
        there: Option<(Mobility, IpAddr)>,
        now: u64,
    ) -> Option<Mobility> {
        // GoBGP may have raised what this host has said.
        let said = before.into_iter().chain(self.announced.stations.get(&mac).copied());
        let sequence = said.map(|said| said.sequence).max();
        let keep = sequence.map(|sequence| Mobility { sequence, is_sticky });
        let Some((there, host)) = there.filter(|_| !(is_sticky && keep.is_some())) else {
            return keep.or(Some(Mobility { sequence: 0, is_sticky }));
        };
        match keep {
            Some(keep) => {
                let stays = wins(keep, self.local, there, host);
                stays.then_some(keep)
            }
            None if there.is_sticky && !is_sticky => None,
            None if self.is_duplicate(mac) => None,
            None => {
                let moves = self.moves.entry(mac).or_insert(Moves { since: now, count: 0 });
                moves.count += 1;
                let sequence = there.sequence.saturating_add(1);
                Some(Mobility { sequence, is_sticky })
            }
        }
    }

    fn is_duplicate(&self, mac: MacAddr) -> bool {
        self.moves.get(&mac).is_some_and(|it| it.count >= MOVES_MAX)
    }

    /// Stations that seem to be two, each with one address.
    pub fn duplicates(&self) -> impl Iterator<Item = MacAddr> + '_ {
        self.moves.keys().copied().filter(|mac| self.is_duplicate(*mac))
    }

    /// The port was changed.
    pub fn did_port(&mut self, todo: &Todo) {
        self.port_remotes.extend(&todo.add_remotes);
        self.port_remotes.retain(|remote| !todo.del_remotes.contains(remote));
        self.port_stations.extend(todo.add_stations.iter().map(|(mac, host)| (*mac, Some(*host))));
        let gone: BTreeSet<_> = todo.del_stations.iter().collect();
        let is_left = |host: Option<IpAddr>| host.is_some_and(|it| todo.del_remotes.contains(&it));
        self.port_stations.retain(|mac, host| !gone.contains(mac) && !is_left(*host));
        if let Some(answered) = &mut self.port_neighbours {
            for ip in &todo.del_neighbours {
                answered.remove(ip);
            }
            answered.extend(todo.add_neighbours.iter().map(|it| (it.ip, (it.mac, it.is_router))));
        }
    }

    /// Routes were changed.
    pub fn did_bgp(&mut self, todo: &Todo) {
        todo.withdraw.iter().for_each(|it| self.announced.remove(*it));
        todo.announce.iter().for_each(|it| self.announced.insert(*it));
    }

    /// What undoes everything.
    #[must_use]
    pub fn farewell(&self) -> Todo {
        let answered = self.port_neighbours.iter().flat_map(BTreeMap::keys);
        Todo {
            withdraw: self.announced.subjects().collect(),
            del_remotes: self.port_remotes.iter().copied().collect(),
            del_stations: self.port_stations.keys().copied().collect(),
            del_neighbours: answered.copied().collect(),
            ..Todo::default()
        }
    }
}

/// Notes that a host announces a station, if it wins.
fn see_station(
    there: &mut BTreeMap<MacAddr, There>,
    mac: MacAddr,
    mobility: Mobility,
    host: IpAddr,
) {
    // No host could ever say more than the greatest number.
    if !mac.is_station() || mobility.sequence == u32::MAX {
        return;
    }
    let new = || There { host, mobility, addresses: Addresses::new(), until: None };
    let it = there.entry(mac).or_insert_with(new);
    if wins(mobility, host, it.mobility, it.host) {
        *it = new();
    }
}

/// Whether the first of two hosts that announce a station has it.
fn wins(a: Mobility, a_host: IpAddr, b: Mobility, b_host: IpAddr) -> bool {
    let rank = |it: Mobility, host| (it.is_sticky, it.sequence, std::cmp::Reverse(host));
    rank(a, a_host) > rank(b, b_host)
}

#[cfg(test)]
mod tests;
