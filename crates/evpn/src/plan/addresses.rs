//! The IP addresses of stations.
//!
//! An IP address goes with its station: this host announces those that the port has heard of for
//! stations that it claims, and names those of stations that are elsewhere to the port, which then
//! answers requests for them. An address that two hosts announce for different stations, or that is
//! one of a station here, too, is not named: the port floods, and the stations find out themselves.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::MacAddr;
use packet::neigh::Neighbour;

use super::todo::neighbour;
use super::{Plan, There, Todo};
use crate::bgp::{Route, Subject};

/// Most IP addresses of a station of another host.
pub(super) const ADDRESSES_MAX: usize = 64;

impl Plan {
    /// The IP addresses that the port has heard of stations of this host, and those that it answers
    /// for: all of them. `None`: the port does neither. Stations were [seen](Self::see_stations)
    /// before. What an earlier process has named counts as not named: the caller sweeps it.
    pub fn see_neighbours(&mut self, seen: Option<(&[Neighbour], &[Neighbour])>) {
        let (local, answered) = seen.unzip();
        self.here.values_mut().filter(|it| it.until.is_none()).for_each(|it| it.addresses.clear());
        for &Neighbour { ip, mac, is_router } in local.unwrap_or_default() {
            if let Some(here) = self.here.get_mut(&mac) {
                here.addresses.insert(ip, is_router);
            }
        }
        let named = self.port_neighbours.take().unwrap_or_default();
        let is_named = |it: &&Neighbour| named.get(&it.ip) == Some(&(it.mac, it.is_router));
        self.port_neighbours = answered.map(|answered| {
            let left = answered.iter().filter(is_named);
            left.map(|it| (it.ip, (it.mac, it.is_router))).collect()
        });
    }

    /// Adds the IP addresses that the host of each station announces for it.
    pub(super) fn see_addresses(&mut self, routes: &[Route], there: &mut BTreeMap<MacAddr, There>) {
        let neighbours = routes.iter().filter_map(|route| match route.subject {
            Subject::Neighbour(neighbour, _) => Some((neighbour, route.host)),
            _ => None,
        });
        let (known, new): (Vec<_>, Vec<_>) = neighbours.partition(|(it, _)| {
            self.there.get(&it.mac).is_some_and(|there| there.addresses.contains_key(&it.ip))
        });
        let mut count = 0;
        for (Neighbour { ip, mac, is_router }, host) in known.into_iter().chain(new) {
            let Some(station) = there.get_mut(&mac).filter(|it| it.host == host) else { continue };
            if station.addresses.len() < ADDRESSES_MAX && count < self.limits.neighbours {
                station.addresses.insert(ip, is_router);
                count += 1;
            } else {
                self.refused.stations += 1;
            }
        }
    }

    /// The IP addresses of stations that this host claims.
    pub(super) fn plan_addresses(&self, todo: &mut Todo) {
        if !self.has_routes {
            return;
        }
        let mut wanted = BTreeMap::new();
        for (&mac, here) in &self.here {
            let Some(claim) = here.claim else { continue };
            wanted.extend(here.addresses.iter().map(|(&ip, &router)| ((mac, ip), (claim, router))));
        }
        let has = &self.announced.neighbours;
        let gone = has.iter().filter(|(key, _)| !wanted.contains_key(key));
        todo.withdraw.extend(gone.map(neighbour));
        let new = wanted.iter().filter(|(key, said)| has.get(key) != Some(said));
        todo.announce.extend(new.map(neighbour));
    }

    /// The IP addresses that the port is to answer for: each of one station, which is elsewhere.
    pub(super) fn plan_answers(&self, todo: &mut Todo) {
        let Some(has) = &self.port_neighbours else { return };
        let is_there = |(mac, it): &(&MacAddr, &There)| {
            self.hosts.contains_key(&it.host) && !self.here.contains_key(mac)
        };
        // `None`: of several stations.
        let mut wanted = BTreeMap::<IpAddr, Option<(MacAddr, bool)>>::new();
        for (&mac, it) in self.there.iter().filter(is_there) {
            for (&ip, &is_router) in &it.addresses {
                let new = Some((mac, is_router));
                wanted.entry(ip).and_modify(|it| *it = None).or_insert(new);
            }
        }
        for ip in self.here.values().flat_map(|it| it.addresses.keys()) {
            wanted.remove(ip);
        }
        wanted.retain(|_, it| it.is_some());
        let gone = has.keys().filter(|ip| !wanted.contains_key(ip));
        todo.del_neighbours.extend(gone);
        let known = wanted.into_iter().filter_map(|(ip, it)| Some((ip, it?)));
        let new = known.filter(|(ip, it)| has.get(ip) != Some(it));
        todo.add_neighbours.extend(new.map(|(ip, (mac, is_router))| Neighbour {
            ip,
            mac,
            is_router,
        }));
    }
}
