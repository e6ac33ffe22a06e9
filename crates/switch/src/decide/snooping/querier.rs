//! Queriers: which one asks in a VLAN, and when the switch does so itself.
//!
//! The switch asks only where no other querier is heard. Its source is 0.0.0.0, as that of Linux's
//! bridge: any other wins the election against it, and it makes no port a router port. MLD wants a
//! link-local source, of which the lowest wins; the switch has a high one, so that routers do.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::mcast::{LAST_MEMBER_MS, QUERY_INTERVAL_S, Query, RESPONSE_MS};
use packet::{MacAddr, PortId, VlanId};

use super::{Domain, LAST_MEMBER_COUNT, McastFamily, after_ms, count_out};
use crate::model::now::Now;

/// How long a querier that is not heard is believed to be there.
const OTHER_MS: u64 = 255_000;
/// Between queries, and between the first ones.
const INTERVAL_MS: u64 = QUERY_INTERVAL_S as u64 * 1000;
const STARTUP_MS: u64 = INTERVAL_MS / 4;
const STARTUP_COUNT: u32 = 2;
/// Questions about groups that hosts have left, at a time: in all, and for a port.
const ASKED_MAX: usize = 1024;
const ASKED_PORT_MAX: u32 = 64;
/// Queries that are sent at once: a switch may have thousands of VLANs.
const ROUND: usize = 32;

/// A query of the switch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnQuery {
    pub domain: Domain,
    /// The group, and the port whose hosts are asked; `None`: all hosts of the VLAN.
    pub group: Option<(IpAddr, PortId)>,
}

/// The queriers of a switch.
#[derive(Debug)]
pub(super) struct Querier {
    /// The switch asks where no other querier is heard.
    asks: bool,
    domains: BTreeMap<Domain, State>,
    asked: Questions,
    /// When the switch looks at its VLANs again: it has something to send there, or may have.
    vlans_due: Now,
    /// No other querier ends before.
    first_end: Option<Now>,
    mac: MacAddr,
    link_local: Ipv6Addr,
}

/// Questions about groups that hosts have left, which are open.
#[derive(Debug, Default)]
struct Questions {
    /// When to ask next, and how often still.
    open: BTreeMap<(Domain, IpAddr, PortId), (Now, u64)>,
    /// Questions to each port that has some.
    of_ports: BTreeMap<PortId, u32>,
    /// The time of the next question; `None`: there is none.
    due: Option<Now>,
}

/// The querier of a domain.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Another one that is heard.
    other: Option<Other>,
    /// Before, hosts have had no time to answer.
    answered: Now,
    /// When the switch asks next, if it is the querier, and how often it has.
    next: Now,
    sent: u32,
}

/// A querier that is heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    pub address: IpAddr,
    pub port: PortId,
    pub until: Now,
}

impl Querier {
    pub(super) fn new(seed: u64) -> Self {
        // The seed itself is a secret of hash tables.
        let mut hash = DefaultHasher::new();
        hash.write_u64(seed);
        let [a, b, c, d, e, f, g, _] = hash.finish().to_be_bytes();
        let mac = MacAddr::new([2, a, b, c, d, e]);
        let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0xfe, a, b, c, d, e, f, g];
        let link_local = Ipv6Addr::from(octets);
        assert!(link_local.is_unicast_link_local() && mac.is_station(), "hosts believe them");
        let (domains, asked, vlans_due) = (BTreeMap::new(), Questions::default(), Now::START);
        Self { asks: false, domains, asked, vlans_due, first_end: None, mac, link_local }
    }

    /// The addresses of the switch's queries.
    pub(super) fn source(&self, family: McastFamily) -> (MacAddr, IpAddr) {
        let ip = match family {
            McastFamily::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            McastFamily::Ipv6 => self.link_local.into(),
        };
        (self.mac, ip)
    }

    /// Whether the switch asks where no other querier is heard.
    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    /// Whether memberships are kept alive, so that frames may be restricted by them.
    pub(super) fn is_there(&self, domain: Domain, now: Now) -> bool {
        let state = self.domains.get(&domain);
        state.is_some_and(|it| now >= it.answered && (self.asks || it.other.is_some()))
    }

    /// Whether another querier is heard.
    pub(super) fn has_other(&self, domain: Domain) -> bool {
        self.domains.get(&domain).is_some_and(|state| state.other.is_some())
    }

    /// Forgets queriers that were not heard for long.
    pub(super) fn expire(&mut self, now: Now) {
        if self.first_end.is_none_or(|end| now < end) {
            return;
        }
        let is_over = |other: &Other| other.until <= now;
        for state in self.domains.values_mut().filter(|it| it.other.as_ref().is_some_and(is_over)) {
            (state.other, state.next, state.sent) = (None, now, 0);
        }
        let others = self.domains.values().filter_map(|state| state.other);
        self.first_end = others.map(|other| other.until).min();
    }

    /// Hears a query of another querier, which is the VLAN's if it wins against the one that was:
    /// any does against 0.0.0.0, else the lowest address.
    pub(super) fn hear(&mut self, port: PortId, domain: Domain, query: Query, now: Now) {
        debug_assert!(query.group.is_none_or(|group| group.is_multicast()), "about a group");
        let (_, own) = self.source(domain.family);
        let known = self.domains.get(&domain);
        let before = known.and_then(|state| state.other);
        let current = before.map(|other| other.address).or(self.asks.then_some(own));
        let is_lower = |it: IpAddr| !query.source.is_unspecified() && query.source <= it;
        let wins = current.is_none_or(|it| it.is_unspecified() || is_lower(it));
        if !wins {
            return;
        }
        let answered = match (before, known) {
            (Some(_), Some(state)) => state.answered,
            _ => after_ms(now, query.response_ms.into()),
        };
        let other = Other { address: query.source, port, until: after_ms(now, OTHER_MS) };
        self.domains.insert(domain, State { other: Some(other), answered, next: now, sent: 0 });
        self.first_end = Some(self.first_end.map_or(other.until, |end| end.min(other.until)));
    }

    /// Asks the hosts behind a port whether they are members of a group that one has left.
    /// `false`: too many questions are open.
    pub(super) fn ask(&mut self, query: OwnQuery, now: Now) -> bool {
        let Some((group, port)) = query.group else { return false };
        self.asked.add(query.domain, group, port, now)
    }

    /// The queries that the switch sends now.
    pub(super) fn take_due(
        &mut self,
        vlans: impl Iterator<Item = VlanId>,
        now: Now,
    ) -> Vec<OwnQuery> {
        let mut due = self.asked.take_due(now);
        if now < self.vlans_due {
            return due;
        }
        let answered = after_ms(now, RESPONSE_MS.into());
        for vlan in vlans {
            for family in [McastFamily::Ipv4, McastFamily::Ipv6] {
                let domain = Domain { vlan, family };
                let new = State { other: None, answered, next: now, sent: 0 };
                let state = self.domains.entry(domain).or_insert(new);
                if state.other.is_none() && state.next <= now {
                    if due.len() >= ROUND {
                        self.vlans_due = now;
                        return due;
                    }
                    due.push(OwnQuery { domain, group: None });
                    state.sent = state.sent.saturating_add(1);
                    let is_startup = state.sent < STARTUP_COUNT;
                    let wait = if is_startup { STARTUP_MS } else { INTERVAL_MS };
                    state.next = after_ms(now, wait);
                }
            }
        }
        let others = |state: &State| state.other.map_or(state.next, |other| other.until);
        let next = self.domains.values().map(others).min();
        self.vlans_due = next.unwrap_or_else(|| after_ms(now, INTERVAL_MS)).max(now.after_us(1));
        due
    }

    /// When [`take_due`](Self::take_due) has something to do again.
    pub(super) fn due(&self) -> Now {
        self.asked.due.map_or(self.vlans_due, |due| due.min(self.vlans_due))
    }

    /// Looks at the VLANs again: they may be others.
    pub(super) fn look_again(&mut self) {
        self.vlans_due = Now::START;
    }

    /// Begins anew where no other querier is heard: to ask (`asks`), or without.
    pub(super) fn restart(&mut self, asks: bool) {
        self.asks = asks;
        self.domains.retain(|_, state| state.other.is_some());
        self.asked = Questions::default();
        self.look_again();
    }

    pub(super) fn clear(&mut self) {
        self.domains.clear();
        self.asked = Questions::default();
        self.look_again();
    }

    /// Asks no hosts behind a port. The querier there is heard no more, which ends it in time.
    pub(super) fn remove_port(&mut self, port: PortId) {
        self.asked.remove_port(port);
        let is_there = |other: Other| other.port == port;
        self.domains.retain(|_, state| !state.other.is_some_and(is_there));
    }

    /// The querier of each domain that has one: another, or `None` for the switch.
    pub(super) fn all(&self) -> impl Iterator<Item = (Domain, Option<Other>)> + '_ {
        let known = self.domains.iter().map(|(domain, state)| (*domain, state.other));
        known.filter(move |(_, other)| self.asks || other.is_some())
    }
}

impl Questions {
    /// Adds a question, unless it is open. `false`: too many are.
    fn add(&mut self, domain: Domain, group: IpAddr, port: PortId, now: Now) -> bool {
        let key = (domain, group, port);
        // One that is open is asked in its time.
        if self.open.contains_key(&key) {
            return true;
        }
        let of_port = self.of_ports.get(&port).copied().unwrap_or(0);
        if self.open.len() >= ASKED_MAX || of_port >= ASKED_PORT_MAX {
            return false;
        }
        self.open.insert(key, (now, LAST_MEMBER_COUNT));
        self.of_ports.insert(port, of_port + 1);
        self.due = Some(self.due.map_or(now, |due| due.min(now)));
        true
    }

    /// The queries to send now, a round at most.
    fn take_due(&mut self, now: Now) -> Vec<OwnQuery> {
        let mut due = Vec::new();
        if self.due.is_none_or(|at| now < at) {
            return due;
        }
        self.open.retain(|&(domain, group, port), (next, left)| {
            if *next <= now && due.len() < ROUND {
                due.push(OwnQuery { domain, group: Some((group, port)) });
                (*next, *left) = (after_ms(now, LAST_MEMBER_MS.into()), *left - 1);
            }
            if *left == 0 {
                count_out(&mut self.of_ports, port);
            }
            *left > 0
        });
        self.due = self.open.values().map(|(next, _)| *next).min();
        assert!(self.open.len() <= ASKED_MAX && self.of_ports.len() <= self.open.len(), "counted");
        due
    }

    fn remove_port(&mut self, port: PortId) {
        if self.of_ports.remove(&port).is_some() {
            self.open.retain(|&(_, _, at), _| at != port);
            self.due = self.open.values().map(|(next, _)| *next).min();
        }
    }
}
