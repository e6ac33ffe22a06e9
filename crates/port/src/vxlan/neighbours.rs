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
//! An address is one of its network's: where VLANs have networks of their own, each has neighbours
//! of its own.
//!
//! A message to a single station, such as a check whether it still answers, goes there always, and
//! so does a probe of a station that looks whether its address is free: the owner may be gone.
//!
//! Limits: `LOCAL_MAX` local neighbours, `PER_STATION` of one MAC address in a VLAN (a router has
//! addresses in many), which are forgotten `AGE_MS` after they were heard; [`EXTERN_NEIGH_MAX`]
//! external ones. What came first stays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use packet::neigh::{self, Neighbour};
use packet::{MacAddr, VlanId, VlanSet};
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

/// An IP address, and the VLAN in which it is a station's, as
/// [`Inside::vlan`](super::networks::Inside::vlan) says.
pub type Place = (VlanId, IpAddr);

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
    local: BTreeMap<Place, Local>,
    /// How many local addresses a station has in a VLAN.
    addresses: BTreeMap<(VlanId, MacAddr), u8>,
    external: BTreeMap<Place, External>,
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

    /// Reads a frame of a station of this host, without the tag of its VLAN. Returns the answer
    /// that it gets instead of being flooded; the caller says whether that was
    /// [given](Self::count_suppressed). `is_remote`: whether a station is behind a remote.
    pub fn hear_local(
        &mut self,
        vlan: VlanId,
        frame: &[u8],
        now: Now,
        is_remote: impl FnOnce(MacAddr) -> bool,
    ) -> Option<Vec<u8>> {
        let message = self.read(frame)?;
        if let Some(told) = message.told {
            self.learn(vlan, told, now);
        }
        let ip = message.asked?;
        let place = (vlan, ip);
        let &External { mac, is_router, is_disputed, .. } = self.external.get(&place)?;
        let is_asker = packet::bytes::mac_at(frame, 6) == mac;
        if is_disputed || is_asker || self.local.contains_key(&place) || !is_remote(mac) {
            return None;
        }
        neigh::answer(frame, Neighbour { ip, mac, is_router })
    }

    /// Reads a frame from a remote, without a tag. `is_behind`: whether a station is behind this
    /// one.
    pub fn hear_remote(
        &mut self,
        vlan: VlanId,
        frame: &[u8],
        is_behind: impl FnOnce(MacAddr) -> bool,
    ) {
        let Some(told) = self.read(frame).and_then(|message| message.told) else { return };
        let place = (vlan, told.ip);
        match self.external.get_mut(&place) {
            Some(known) if known.mac != told.mac => known.is_disputed = true,
            Some(known) => known.is_disputed &= !is_behind(told.mac),
            None => {}
        }
        if self.local.get(&place).is_some_and(|local| local.mac != told.mac) {
            self.forget(place);
        }
    }

    /// Counts an answer that was given.
    pub fn count_suppressed(&mut self) {
        self.suppressed += 1;
    }

    fn read(&self, frame: &[u8]) -> Option<neigh::Message> {
        if self.is_on { neigh::read(frame) } else { None }
    }

    fn learn(&mut self, vlan: VlanId, told: Neighbour, now: Now) {
        let Neighbour { ip, mac, is_router } = told;
        let place = (vlan, ip);
        let new = Local { mac, is_router, heard: now };
        if let Some(known) = self.local.get_mut(&place).filter(|known| known.mac == mac) {
            self.changes += u64::from(known.is_router != is_router);
            *known = new;
            return;
        }
        self.forget(place);
        let count = self.addresses.get(&(vlan, mac)).copied().unwrap_or(0);
        if self.local.len() >= LOCAL_MAX || count >= PER_STATION {
            self.refused += 1;
            return;
        }
        self.local.insert(place, new);
        self.addresses.insert((vlan, mac), count + 1);
        self.changes += 1;
    }

    fn forget(&mut self, place: Place) {
        let Some(Local { mac, .. }) = self.local.remove(&place) else { return };
        self.changes += 1;
        let station = (place.0, mac);
        let left = self.addresses.get(&station).map_or(0, |count| count - 1);
        match left {
            0 => self.addresses.remove(&station),
            left => self.addresses.insert(station, left),
        };
    }

    fn forget_locals(&mut self, is_over: impl Fn(&Place, &Local) -> bool) {
        let gone = self.local.iter().filter(|(place, local)| is_over(place, local));
        let gone: Vec<Place> = gone.map(|(place, _)| *place).collect();
        gone.into_iter().for_each(|place| self.forget(place));
    }

    /// Forgets all of these VLANs, which are other networks now, or none.
    pub fn forget_vlans(&mut self, vlans: &VlanSet) {
        self.forget_locals(|(vlan, _), _| vlans.contains(*vlan));
        self.external.retain(|(vlan, _), _| !vlans.contains(*vlan));
    }

    /// Forgets what has not been heard for long, from time to time.
    pub fn sweep(&mut self, now: Now) {
        if now.ms_since(self.swept) < AGE_LOOK_MS {
            return;
        }
        self.swept = now;
        self.forget_locals(|_, local| now.ms_since(local.heard) >= AGE_MS);
    }

    /// Names a station behind a remote. It may have been one of this host until now.
    pub fn add_external(&mut self, vlan: VlanId, neighbour: ExternNeigh) {
        let ExternNeigh { address, mac, router: is_router } = neighbour;
        let place = (vlan, address);
        let has_room = self.external.len() < EXTERN_NEIGH_MAX;
        if !self.is_on || !has_room && !self.external.contains_key(&place) {
            return;
        }
        if self.local.get(&place).is_some_and(|local| local.mac == mac) {
            self.forget(place);
        }
        let before = self.external.get(&place).filter(|before| before.mac == mac);
        let is_disputed = before.is_some_and(|before| before.is_disputed);
        let new = External { mac, is_router, is_disputed, is_old: false };
        self.external.insert(place, new);
    }

    /// Takes one back.
    pub fn remove_external(&mut self, place: Place) {
        self.external.remove(&place);
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

    /// At most `count` entries in the order of their places, from `from` on, each with its VLAN;
    /// and where to go on. An address that is local and external has two.
    #[must_use]
    pub fn page(
        &self,
        from: Option<Place>,
        count: usize,
        now: Now,
    ) -> (Vec<NeighEntry>, Option<Place>) {
        let range = (from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        let local = self.local.range(range).take(count + 1).map(|(&place, it)| {
            let age_s = u32::try_from(now.ms_since(it.heard) / 1000).unwrap_or(u32::MAX);
            (place, NeighEntry { age_s, ..entry(place, it.mac, it.is_router) })
        });
        let external = self.external.range(range).take(count + 1).map(|(&place, it)| {
            let (extern_learn, disputed) = (true, it.is_disputed);
            let entry = entry(place, it.mac, it.is_router);
            (place, NeighEntry { extern_learn, disputed, ..entry })
        });
        let mut entries: Vec<_> = local.chain(external).collect();
        entries.sort_by_key(|(place, _)| *place);
        let next = entries.get(count).map(|(place, _)| *place);
        // Both of one address are on one page.
        let entries =
            entries.into_iter().take_while(|(place, _)| next.is_none_or(|it| *place < it));
        (entries.map(|(_, entry)| entry).collect(), next)
    }
}

fn entry((vlan, address): Place, mac: MacAddr, router: bool) -> NeighEntry {
    let (vlan, extern_learn, disputed, age_s) = (Some(vlan.get()), false, false, 0);
    NeighEntry { vlan, address, mac, router, extern_learn, disputed, age_s }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use packet::EtherType;
    use packet::build::{arp, ethernet};
    use proptest::prelude::*;

    use super::*;

    const VLAN: VlanId = VlanId::DEFAULT;
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
        neighbours.hear_local(VLAN, &ask(A, 1, target), at(0), |_| true).is_some()
    }

    #[test]
    fn a_request_for_a_station_behind_a_remote_is_answered_and_its_sender_is_learned() {
        let mut neighbours = on();
        assert!(!is_answered(&mut neighbours, 2), "it is not known");
        neighbours.add_external(VLAN, external(2, B));
        assert!(is_answered(&mut neighbours, 2));
        assert_eq!(local(&neighbours), [(1, A)]);
        assert_eq!(
            neighbours.hear_local(VLAN, &ask(A, 1, 2), at(0), |_| false),
            None,
            "not behind one"
        );
        assert_eq!(
            neighbours.hear_local(VLAN, &ask(B, 9, 2), at(0), |_| true),
            None,
            "it asks itself"
        );
        neighbours.remove_external((VLAN, ip(2).into()));
        assert!(!is_answered(&mut neighbours, 2));
    }

    #[test]
    fn nothing_is_learned_or_answered_while_it_is_off() {
        let mut neighbours = on();
        neighbours.add_external(VLAN, external(2, B));
        assert!(is_answered(&mut neighbours, 2));
        neighbours.set(false);
        neighbours.add_external(VLAN, external(2, B));
        assert!(!is_answered(&mut neighbours, 2));
        assert_eq!((neighbours.info(), local(&neighbours)), (None, vec![]));
        neighbours.set(true);
        assert!(!is_answered(&mut neighbours, 2), "what it knew is gone");
    }

    #[test]
    fn an_address_that_two_stations_claim_is_not_answered_until_the_right_one_speaks() {
        let mut neighbours = on();
        neighbours.add_external(VLAN, external(2, B));
        neighbours.hear_remote(VLAN, &ask(A, 2, 9), |_| true);
        assert!(!is_answered(&mut neighbours, 2), "another remote station says that it has it");
        neighbours.add_external(VLAN, external(2, B));
        assert!(!is_answered(&mut neighbours, 2), "the route is what it was");
        neighbours.hear_remote(VLAN, &ask(B, 2, 9), |_| false);
        assert!(!is_answered(&mut neighbours, 2), "another remote says so in its name");
        neighbours.hear_remote(VLAN, &ask(B, 2, 9), |_| true);
        assert!(is_answered(&mut neighbours, 2));
        // A station of this host.
        let other = MacAddr::new([2, 0, 0, 0, 0, 7]);
        neighbours.hear_local(VLAN, &ask(other, 2, 9), at(0), |_| true);
        assert!(!is_answered(&mut neighbours, 2));
        neighbours.hear_remote(VLAN, &ask(B, 2, 9), |_| true);
        assert!(is_answered(&mut neighbours, 2), "what was heard last counts");
        assert_eq!(local(&neighbours), [(1, A)]);
    }

    #[test]
    fn a_station_that_moves_takes_its_address_along() {
        let mut neighbours = on();
        neighbours.hear_local(VLAN, &ask(B, 2, 9), at(0), |_| true);
        let before = neighbours.info().map(|info| info.changes);
        neighbours.add_external(VLAN, external(2, B));
        assert!(local(&neighbours).is_empty() && neighbours.info().map(|it| it.changes) != before);
        assert!(is_answered(&mut neighbours, 2));
        neighbours.hear_local(VLAN, &ask(B, 2, 9), at(1), |_| true);
        assert!(!is_answered(&mut neighbours, 2), "it is here again");
    }

    #[test]
    fn old_neighbours_go_at_the_sweep_and_silent_ones_with_their_time() {
        let mut neighbours = on();
        neighbours.add_external(VLAN, external(2, B));
        neighbours.add_external(VLAN, external(3, B));
        neighbours.mark();
        neighbours.add_external(VLAN, external(3, B));
        neighbours.remove_old();
        assert!(!is_answered(&mut neighbours, 2) && is_answered(&mut neighbours, 3));
        neighbours.sweep(at(1199));
        assert_eq!(local(&neighbours).len(), 1);
        neighbours.sweep(at(1300));
        assert!(local(&neighbours).is_empty() && neighbours.addresses.is_empty());
    }

    #[test]
    fn neighbours_of_one_vlan_are_none_of_another() {
        let [ten, twenty] = [10, 20].map(|vlan| VlanId::new(vlan).expect("a VLAN"));
        let mut neighbours = on();
        neighbours.add_external(ten, external(2, B));
        let is_answered = |neighbours: &mut Neighbours, vlan| {
            neighbours.hear_local(vlan, &ask(A, 1, 2), at(0), |_| true).is_some()
        };
        assert!(is_answered(&mut neighbours, ten) && !is_answered(&mut neighbours, twenty));
        assert_eq!(local(&neighbours), [(1, A), (1, A)], "one in each");
        // Another has the address in one VLAN, here and there.
        let other = MacAddr::new([2, 0, 0, 0, 0, 7]);
        neighbours.add_external(twenty, external(2, other));
        neighbours.hear_remote(twenty, &ask(other, 1, 9), |_| true);
        assert_eq!(local(&neighbours), [(1, A)]);
        neighbours.hear_local(twenty, &ask(B, 2, 9), at(0), |_| true);
        assert!(is_answered(&mut neighbours, ten) && !is_answered(&mut neighbours, twenty));
        neighbours.forget_vlans(&[ten].into_iter().collect());
        let (entries, _) = neighbours.page(None, 9, at(0));
        assert!(entries.len() == 3 && entries.iter().all(|it| it.vlan == Some(20)), "{entries:?}");
        neighbours.remove_external((ten, ip(2).into()));
        assert_eq!(neighbours.info().expect("it is on").extern_learned, 1, "it was of the other");
    }

    #[test]
    fn one_station_cannot_fill_the_table_of_all() {
        let mut neighbours = on();
        (1..=20)
            .for_each(|last| drop(neighbours.hear_local(VLAN, &ask(A, last, 99), at(0), |_| true)));
        let info = neighbours.info().expect("it is on");
        assert_eq!((info.local, info.refused), (u32::from(PER_STATION), 4));
        for i in 0..5000u16 {
            let [high, low] = i.to_be_bytes();
            let (mac, sender) = (MacAddr::new([2, 1, 0, 0, high, low]), [10, 0, high, low]);
            let packet = arp(1, (mac, sender.into()), (MacAddr::ZERO, ip(99)));
            let frame = ethernet(MacAddr::BROADCAST, mac, EtherType::ARP.0, &packet);
            neighbours.hear_local(VLAN, &frame, at(0), |_| true);
        }
        let info = neighbours.info().expect("it is on");
        assert_eq!(info.local as usize, LOCAL_MAX);
        neighbours.hear_local(VLAN, &ask(B, 1, 99), at(1), |_| true);
        assert!(local(&neighbours).contains(&(1, B)), "an address that is known may move");
    }

    #[test]
    fn pages_hold_every_address_once_and_in_order() {
        let mut neighbours = on();
        (1..=9).for_each(|last| neighbours.add_external(VLAN, external(last, B)));
        (5..=12)
            .for_each(|last| drop(neighbours.hear_local(VLAN, &ask(A, last, 99), at(0), |_| true)));
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
                    0 => neighbours.hear_remote(VLAN, &ask(mac, last, 99), |_| true),
                    1 => neighbours.add_external(VLAN, external(last, mac)),
                    2 => neighbours.remove_external((VLAN, ip(last).into())),
                    _ => drop(neighbours.hear_local(VLAN, &ask(mac, last, 99), at(0), |_| true)),
                }
                let mut counts = BTreeMap::<(VlanId, MacAddr), u8>::new();
                for it in neighbours.local.values() {
                    *counts.entry((VLAN, it.mac)).or_default() += 1;
                }
                prop_assert_eq!(&counts, &neighbours.addresses);
            }
        }
    }
}
