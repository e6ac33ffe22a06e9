//! Routes of this host that are there, and what is to be done about them and about the port.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::MacAddr;
use packet::neigh::Neighbour;

use crate::bgp::{Mobility, Subject};

/// What GoBGP has of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// The host gets floods.
    pub floods: bool,
    /// Stations.
    pub stations: BTreeMap<MacAddr, Mobility>,
    /// Stations with an IP address.
    pub neighbours: BTreeMap<(MacAddr, IpAddr), (Mobility, bool)>,
}

impl Announced {
    /// Notes what a route says.
    pub fn insert(&mut self, subject: Subject) {
        match subject {
            Subject::Floods => self.floods = true,
            Subject::Station(mac, mobility) => {
                self.stations.insert(mac, mobility);
            }
            Subject::Neighbour(Neighbour { ip, mac, is_router }, mobility) => {
                self.neighbours.insert((mac, ip), (mobility, is_router));
            }
        }
    }

    /// Removes what a route says.
    pub fn remove(&mut self, subject: Subject) {
        match subject {
            Subject::Floods => self.floods = false,
            Subject::Station(mac, _) => {
                self.stations.remove(&mac);
            }
            Subject::Neighbour(Neighbour { ip, mac, .. }, _) => {
                self.neighbours.remove(&(mac, ip));
            }
        }
    }

    /// The routes that were announced.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> + '_ {
        let stations = self.stations.iter().map(|(&mac, &said)| Subject::Station(mac, said));
        let neighbours = self.neighbours.iter().map(neighbour);
        stations.chain(neighbours).chain(self.floods.then_some(Subject::Floods))
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Todo {
    /// Remotes that the port gets.
    pub add_remotes: Vec<IpAddr>,
    /// Remotes that it loses, with their stations.
    pub del_remotes: Vec<IpAddr>,
    /// Stations that it gets, each with its remote.
    pub add_stations: Vec<(MacAddr, IpAddr)>,
    /// Stations that it loses.
    pub del_stations: Vec<MacAddr>,
    /// IP addresses of stations that it gets.
    pub add_neighbours: Vec<Neighbour>,
    /// IP addresses that it loses.
    pub del_neighbours: Vec<IpAddr>,
    /// Routes to announce.
    pub announce: Vec<Subject>,
    /// Routes to withdraw.
    pub withdraw: Vec<Subject>,
}

impl Todo {
    /// Whether the port is to be changed.
    #[must_use]
    pub fn is_for_port(&self) -> bool {
        let Self { add_remotes, del_remotes, add_stations, del_stations, .. } = self;
        let no_remotes = add_remotes.is_empty() && del_remotes.is_empty();
        let no_neighbours = self.add_neighbours.is_empty() && self.del_neighbours.is_empty();
        !(no_remotes && no_neighbours && add_stations.is_empty() && del_stations.is_empty())
    }

    /// Whether routes are to be changed.
    #[must_use]
    pub fn is_for_bgp(&self) -> bool {
        !self.announce.is_empty() || !self.withdraw.is_empty()
    }
}

/// The route of an entry of [`Announced::neighbours`].
pub(super) fn neighbour(entry: (&(MacAddr, IpAddr), &(Mobility, bool))) -> Subject {
    let (&(mac, ip), &(said, is_router)) = entry;
    Subject::Neighbour(Neighbour { ip, mac, is_router }, said)
}
