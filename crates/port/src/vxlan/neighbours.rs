//! Which station has which IP address, and answers in the name of those behind remotes
//! (`neigh_suppress`; RFC 7432, section 10; RFC 9161).
//!
//! ```text
//!   stations of this host ── ARP, ND ──► local ─────► neigh_list ─► routing daemon ─► other hosts
//!   other hosts ─► routing daemon ─► extern_learn ──► external ──► answers
//! ```
//!
//! # Theory of operation
//!
//! The port reads the ARP and neighbour discovery messages that pass it, in both directions, and
//! changes none. A station of this host is *local* with each address that it says it has. A routing
//! daemon names *external* neighbours: stations behind remotes. A request to all stations for the
//! address of one of these is answered here, and goes to no remote.
//!
//! What is not certain is not answered, and floods as without this:
//!
//! - a station of this host says that it has the address, too;
//! - a remote's frame says that another station has it: *disputed*, until the right one speaks from
//!   its own remote;
//! - the port does not know the station behind a remote;
//! - the asker is the station itself, which may have moved here.
//!
//! A frame from a remote that gives a local address to another station ends the local neighbour. So
//! nothing that a stranger sends makes the port answer anything; it only makes it flood again.
//!
//! A message to a single station, such as a check whether it still answers, goes there always, and
//! so does a probe of a station that looks whether its address is free: the owner may be gone.
//!
//! Limits: `LOCAL_MAX` local neighbours, `PER_STATION` of one MAC address, which are forgotten
//! `AGE_MS` after they were heard; [`EXTERN_NEIGH_MAX`] external ones. What came first stays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use packet::MacAddr;
use packet::neigh::{self, Neighbour};
use protocol::{EXTERN_NEIGH_MAX, ExternNeigh, NeighEntry, NeighInfo};
use switch::Now;

/// Most local neighbours.
const LOCAL_MAX: usize = 4096;
/// Most addresses of a local station.
const PER_STATION: u8 = 16;
/// Time after which a local neighbour that says nothing is forgotten: four times as long as Linux
/// believes an address without asking again, and as long as a switch remembers by default.
const AGE_MS: u64 = 20 * 60 * 1000;
/// Time between two looks for those.
const AGE_LOOK_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
struct Local {
    mac: MacAddr,
    is_router: bool,
    heard: Now,
}

#[derive(Clone, Copy, Debug)]
struct External {
    mac: MacAddr,
    is_router: bool,
    /// A remote's frame has named another station.
    is_disputed: bool,
    /// Named before the last [mark](Neighbours::mark).
    is_old: bool,
}

/// The neighbours of a port, if it looks for them.
#[derive(Debug, Default)]
pub struct Neighbours {
    is_on: bool,
    local: BTreeMap<IpAddr, Local>,
    /// How many local addresses a station has.
    addresses: BTreeMap<MacAddr, u8>,
    external: BTreeMap<IpAddr, External>,
    changes: u64,
    suppressed: u64,
    refused: u64,
    swept: Now,
}

impl Neighbours {
    /// Looks for neighbours and answers, or does not, and then knows none.
    pub fn set(&mut self, is_on: bool) {
        if !is_on {
            *self = Self { changes: self.changes, ..Self::default() };
        }
        self.is_on = is_on;
    }

    /// Reads a frame of a station of this host, without the tag of the port's VLAN. Returns the
    /// answer that it gets instead of being flooded; the caller says whether that was
    /// [given](Self::count_suppressed). `is_remote`: whether a station is behind a remote.
    pub fn hear_local(
        &mut self,
        frame: &[u8],
        now: Now,
        is_remote: impl FnOnce(MacAddr) -> bool,
    ) -> Option<Vec<u8>> {
        let message = self.read(frame)?;
        if let Some(told) = message.told {
            self.learn(told, now);
        }
        let ip = message.asked?;
        let &External { mac, is_router, is_disputed, .. } = self.external.get(&ip)?;
        let is_asker = packet::bytes::mac_at(frame, 6) == mac;
        if is_disputed || is_asker || self.local.contains_key(&ip) || !is_remote(mac) {
            return None;
        }
        neigh::answer(frame, Neighbour { ip, mac, is_router })
    }

    /// Reads a frame from a remote. `is_behind`: whether a station is behind this one.
    pub fn hear_remote(&mut self, frame: &[u8], is_behind: impl FnOnce(MacAddr) -> bool) {
        let Some(told) = self.read(frame).and_then(|message| message.told) else { return };
        match self.external.get_mut(&told.ip) {
            Some(known) if known.mac != told.mac => known.is_disputed = true,
            Some(known) => known.is_disputed &= !is_behind(told.mac),
            None => {}
        }
        if self.local.get(&told.ip).is_some_and(|local| local.mac != told.mac) {
            self.forget(told.ip);
        }
    }

    /// Counts an answer that was given.
    pub fn count_suppressed(&mut self) {
        self.suppressed += 1;
    }

    fn read(&self, frame: &[u8]) -> Option<neigh::Message> {
        if self.is_on { neigh::read(frame) } else { None }
    }

    fn learn(&mut self, told: Neighbour, now: Now) {
        let Neighbour { ip, mac, is_router } = told;
        let new = Local { mac, is_router, heard: now };
        if let Some(known) = self.local.get_mut(&ip).filter(|known| known.mac == mac) {
            self.changes += u64::from(known.is_router != is_router);
            *known = new;
            return;
        }
        self.forget(ip);
        let count = self.addresses.get(&mac).copied().unwrap_or(0);
        if self.local.len() >= LOCAL_MAX || count >= PER_STATION {
            self.refused += 1;
            return;
        }
        self.local.insert(ip, new);
        self.addresses.insert(mac, count + 1);
        self.changes += 1;
    }

    fn forget(&mut self, ip: IpAddr) {
        let Some(Local { mac, .. }) = self.local.remove(&ip) else { return };
        self.changes += 1;
        let left = self.addresses.get(&mac).map_or(0, |count| count - 1);
        match left {
            0 => self.addresses.remove(&mac),
            left => self.addresses.insert(mac, left),
        };
    }

    /// Forgets what has not been heard for long, from time to time.
    pub fn sweep(&mut self, now: Now) {
        if now.ms_since(self.swept) < AGE_LOOK_MS {
            return;
        }
        self.swept = now;
        let is_over = |local: &Local| now.ms_since(local.heard) >= AGE_MS;
        let gone = self.local.iter().filter(|(_, local)| is_over(local)).map(|(ip, _)| *ip);
        gone.collect::<Vec<_>>().into_iter().for_each(|ip| self.forget(ip));
    }

    /// Names a station behind a remote. It may have been one of this host until now.
    pub fn add_external(&mut self, neighbour: ExternNeigh) {
        let ExternNeigh { address, mac, router: is_router } = neighbour;
        let has_room = self.external.len() < EXTERN_NEIGH_MAX;
        if !self.is_on || !has_room && !self.external.contains_key(&address) {
            return;
        }
        if self.local.get(&address).is_some_and(|local| local.mac == mac) {
            self.forget(address);
        }
        let before = self.external.get(&address).filter(|before| before.mac == mac);
        let is_disputed = before.is_some_and(|before| before.is_disputed);
        let new = External { mac, is_router, is_disputed, is_old: false };
        self.external.insert(address, new);
    }

    /// Takes one back.
    pub fn remove_external(&mut self, address: IpAddr) {
        self.external.remove(&address);
    }

    /// Marks all external neighbours as old, until they are named again.
    pub fn mark(&mut self) {
        self.external.values_mut().for_each(|it| it.is_old = true);
    }

    /// Takes back those that are old.
    pub fn remove_old(&mut self) {
        self.external.retain(|_, it| !it.is_old);
    }

    /// How many there are, and what was done; `None` if the port does not look for them.
    #[must_use]
    pub fn info(&self) -> Option<NeighInfo> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.is_on.then(|| NeighInfo {
            local: count(self.local.len()),
            extern_learned: count(self.external.len()),
            changes: self.changes,
            suppressed: self.suppressed,
            refused: self.refused,
        })
    }

    /// At most `count` entries in the order of their addresses, from `from` on; and where to go on.
    /// An address that is local and external has two.
    #[must_use]
    pub fn page(
        &self,
        from: Option<IpAddr>,
        count: usize,
        now: Now,
    ) -> (Vec<NeighEntry>, Option<IpAddr>) {
        let range = (from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        let local = self.local.range(range).take(count + 1).map(|(&address, it)| NeighEntry {
            address,
            mac: it.mac,
            router: it.is_router,
            extern_learn: false,
            disputed: false,
            age_s: u32::try_from(now.ms_since(it.heard) / 1000).unwrap_or(u32::MAX),
        });
        let external = self.external.range(range).take(count + 1).map(|(&address, it)| {
            let (mac, router, disputed) = (it.mac, it.is_router, it.is_disputed);
            NeighEntry { address, mac, router, extern_learn: true, disputed, age_s: 0 }
        });
        let mut entries: Vec<_> = local.chain(external).collect();
        entries.sort_by_key(|entry| entry.address);
        let next = entries.get(count).map(|entry| entry.address);
        // Both of one address are on one page.
        let is_before = |entry: &NeighEntry| next.is_none_or(|next| entry.address < next);
        entries.truncate(entries.partition_point(is_before));
        (entries, next)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use packet::EtherType;
    use packet::build::{arp, ethernet};
    use proptest::prelude::*;

    use super::*;

    const A: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 2]);

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, 7, last)
    }

    fn at(s: u64) -> Now {
        Now::from_ms(1000 * s)
    }

    fn ask(from: MacAddr, sender: u8, target: u8) -> Vec<u8> {
        let packet = arp(1, (from, ip(sender)), (MacAddr::ZERO, ip(target)));
        ethernet(MacAddr::BROADCAST, from, EtherType::ARP.0, &packet)
    }

    fn external(last: u8, mac: MacAddr) -> ExternNeigh {
        ExternNeigh { address: ip(last).into(), mac, router: false }
    }

    fn on() -> Neighbours {
        let mut neighbours = Neighbours::default();
        neighbours.set(true);
        neighbours
    }

    /// The local neighbours, by the last byte of their address.
    fn local(neighbours: &Neighbours) -> Vec<(u8, MacAddr)> {
        let (entries, _) = neighbours.page(None, 10_000, at(10_000));
        let local = entries.iter().filter(|entry| !entry.extern_learn);
        let last = |ip| match ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => panic!("none was told"),
        };
        local.map(|entry| (last(entry.address), entry.mac)).collect()
    }

    /// Whether A, which has address 1, gets an answer for this address.
    fn is_answered(neighbours: &mut Neighbours, target: u8) -> bool {
        neighbours.hear_local(&ask(A, 1, target), at(0), |_| true).is_some()
    }

    #[test]
    fn a_request_for_a_station_behind_a_remote_is_answered_and_its_sender_is_learned() {
        let mut neighbours = on();
        assert!(!is_answered(&mut neighbours, 2), "it is not known");
        neighbours.add_external(external(2, B));
        assert!(is_answered(&mut neighbours, 2));
        assert_eq!(local(&neighbours), [(1, A)]);
        assert_eq!(neighbours.hear_local(&ask(A, 1, 2), at(0), |_| false), None, "not behind one");
        assert_eq!(neighbours.hear_local(&ask(B, 9, 2), at(0), |_| true), None, "it asks itself");
        neighbours.remove_external(ip(2).into());
        assert!(!is_answered(&mut neighbours, 2));
    }

    #[test]
    fn nothing_is_learned_or_answered_while_it_is_off() {
        let mut neighbours = on();
        neighbours.add_external(external(2, B));
        assert!(is_answered(&mut neighbours, 2));
        neighbours.set(false);
        neighbours.add_external(external(2, B));
        assert!(!is_answered(&mut neighbours, 2));
        assert_eq!((neighbours.info(), local(&neighbours)), (None, vec![]));
        neighbours.set(true);
        assert!(!is_answered(&mut neighbours, 2), "what it knew is gone");
    }

    #[test]
    fn an_address_that_two_stations_claim_is_not_answered_until_the_right_one_speaks() {
        let mut neighbours = on();
        neighbours.add_external(external(2, B));
        neighbours.hear_remote(&ask(A, 2, 9), |_| true);
        assert!(!is_answered(&mut neighbours, 2), "another remote station says that it has it");
        neighbours.add_external(external(2, B));
        assert!(!is_answered(&mut neighbours, 2), "the route is what it was");
        neighbours.hear_remote(&ask(B, 2, 9), |_| false);
        assert!(!is_answered(&mut neighbours, 2), "another remote says so in its name");
        neighbours.hear_remote(&ask(B, 2, 9), |_| true);
        assert!(is_answered(&mut neighbours, 2));
        // A station of this host.
        let other = MacAddr::new([2, 0, 0, 0, 0, 7]);
        neighbours.hear_local(&ask(other, 2, 9), at(0), |_| true);
        assert!(!is_answered(&mut neighbours, 2));
        neighbours.hear_remote(&ask(B, 2, 9), |_| true);
        assert!(is_answered(&mut neighbours, 2), "what was heard last counts");
        assert_eq!(local(&neighbours), [(1, A)]);
    }

    #[test]
    fn a_station_that_moves_takes_its_address_along() {
        let mut neighbours = on();
        neighbours.hear_local(&ask(B, 2, 9), at(0), |_| true);
        let before = neighbours.info().map(|info| info.changes);
        neighbours.add_external(external(2, B));
        assert!(local(&neighbours).is_empty() && neighbours.info().map(|it| it.changes) != before);
        assert!(is_answered(&mut neighbours, 2));
        neighbours.hear_local(&ask(B, 2, 9), at(1), |_| true);
        assert!(!is_answered(&mut neighbours, 2), "it is here again");
    }

    #[test]
    fn old_neighbours_go_at_the_sweep_and_silent_ones_with_their_time() {
        let mut neighbours = on();
        neighbours.add_external(external(2, B));
        neighbours.add_external(external(3, B));
        neighbours.mark();
        neighbours.add_external(external(3, B));
        neighbours.remove_old();
        assert!(!is_answered(&mut neighbours, 2) && is_answered(&mut neighbours, 3));
        neighbours.sweep(at(1199));
        assert_eq!(local(&neighbours).len(), 1);
        neighbours.sweep(at(1300));
        assert!(local(&neighbours).is_empty() && neighbours.addresses.is_empty());
    }

    #[test]
    fn one_station_cannot_fill_the_table_of_all() {
        let mut neighbours = on();
        (1..=20).for_each(|last| drop(neighbours.hear_local(&ask(A, last, 99), at(0), |_| true)));
        let info = neighbours.info().expect("it is on");
        assert_eq!((info.local, info.refused), (u32::from(PER_STATION), 4));
        for i in 0..5000u16 {
            let [high, low] = i.to_be_bytes();
            let (mac, sender) = (MacAddr::new([2, 1, 0, 0, high, low]), [10, 0, high, low]);
            let packet = arp(1, (mac, sender.into()), (MacAddr::ZERO, ip(99)));
            let frame = ethernet(MacAddr::BROADCAST, mac, EtherType::ARP.0, &packet);
            neighbours.hear_local(&frame, at(0), |_| true);
        }
        let info = neighbours.info().expect("it is on");
        assert_eq!(info.local as usize, LOCAL_MAX);
        neighbours.hear_local(&ask(B, 1, 99), at(1), |_| true);
        assert!(local(&neighbours).contains(&(1, B)), "an address that is known may move");
    }

    #[test]
    fn pages_hold_every_address_once_and_in_order() {
        let mut neighbours = on();
        (1..=9).for_each(|last| neighbours.add_external(external(last, B)));
        (5..=12).for_each(|last| drop(neighbours.hear_local(&ask(A, last, 99), at(0), |_| true)));
        let (mut from, mut all) = (None, Vec::new());
        loop {
            let (entries, next) = neighbours.page(from, 3, at(0));
            assert!(!entries.is_empty() && entries.len() <= 4);
            all.extend(entries);
            from = next;
            if from.is_none() {
                break;
            }
        }
        let shown: Vec<_> = all.iter().map(|it| (it.address, it.extern_learn)).collect();
        assert_eq!((shown.len(), shown.is_sorted_by_key(|it| it.0)), (9 + 8, true));
        assert_eq!(shown.iter().filter(|it| it.1).count(), 9);
    }

    proptest! {
        /// The count of each station is that of its addresses.
        #[test]
        fn counts_are_right(steps in prop::collection::vec((0u8..5, 1u8..5, 1u8..40), 1..200)) {
            let mut neighbours = on();
            for (what, station, last) in steps {
                let mac = MacAddr::new([2, 0, 0, 0, 0, station]);
                match what {
                    0 => neighbours.hear_remote(&ask(mac, last, 99), |_| true),
                    1 => neighbours.add_external(external(last, mac)),
                    2 => neighbours.remove_external(ip(last).into()),
                    _ => drop(neighbours.hear_local(&ask(mac, last, 99), at(0), |_| true)),
                }
                let mut counts = BTreeMap::<MacAddr, u8>::new();
                neighbours.local.values().for_each(|it| *counts.entry(it.mac).or_default() += 1);
                prop_assert_eq!(&counts, &neighbours.addresses);
            }
        }
    }
}
