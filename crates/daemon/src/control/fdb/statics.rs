//! Static addresses: they belong to the name of a port, not to the client that holds it.
//!
//! ```text
//!                        attach                          detach
//!  free port: stand-in ─────────► held port: the port ─────────► free port: stand-in ─► …
//! ```
//!
//! While no client holds a persistent port, the switch knows in its place a *stand-in*, which takes
//! no flood; what is for its addresses is dropped, as a `dead_port` of its sender. So no other port
//! can take one of them over meanwhile, and nothing for them is flooded. Ports without static
//! addresses have none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::StaticAddress;
use protocol::name::{PortName, SwitchName};

use crate::model::keys::PortKey;

/// Where the workers have the addresses of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the port itself: a client holds it, or it is a null port.
    Port(PortKey),
    /// On a stand-in.
    StandIn(PortKey),
}

impl Place {
    /// The key at the workers.
    pub fn key(self) -> PortKey {
        match self {
            Self::Port(key) | Self::StandIn(key) => key,
        }
    }
}

/// The static addresses of a port, and where they are.
#[derive(Debug, Default)]
struct Home {
    stations: BTreeSet<StaticAddress>,
    /// `None`: nowhere, as when the workers had no room for a stand-in.
    place: Option<Place>,
}

/// All static addresses: by port, those that have none are not here; and the ports by address.
#[derive(Debug, Default)]
pub struct Statics {
    homes: BTreeMap<PortName, Home>,
    switches: HashMap<SwitchName, HashMap<StaticAddress, PortName>>,
}

impl Statics {
    /// The addresses of a port.
    pub fn stations(&self, port: &PortName) -> impl Iterator<Item = StaticAddress> + '_ {
        self.homes.get(port).into_iter().flat_map(|home| home.stations.iter().copied())
    }

    /// Whether a port has any.
    pub fn has(&self, port: &PortName) -> bool {
        self.homes.contains_key(port)
    }

    /// The ports of a switch that have any, and where these are.
    pub fn places_of<'a>(
        &'a self,
        switch: &'a SwitchName,
    ) -> impl Iterator<Item = (&'a PortName, Option<Place>)> {
        let from = self.homes.range(PortName::first_of(switch)..);
        let homes = from.take_while(move |(port, _)| port.switch() == switch);
        homes.map(|(port, home)| (port, home.place))
    }

    /// How many addresses a switch has.
    pub fn count(&self, switch: &SwitchName) -> usize {
        self.switches.get(switch).map_or(0, HashMap::len)
    }

    /// The port of the switch that has this address.
    pub fn find(&self, switch: &SwitchName, station: StaticAddress) -> Option<&PortName> {
        self.switches.get(switch)?.get(&station)
    }

    /// Where the addresses of a port are.
    pub fn place(&self, port: &PortName) -> Option<Place> {
        self.homes.get(port)?.place
    }

    /// Notes where the addresses of a port are, also before it has any.
    pub fn set_place(&mut self, port: &PortName, place: Option<Place>) {
        self.homes.entry(port.clone()).or_default().place = place;
    }

    /// Puts an address on a port, wherever it was before.
    pub fn insert(&mut self, port: &PortName, station: StaticAddress) {
        let switch = self.switches.entry(port.switch().clone()).or_default();
        let before = switch.insert(station, port.clone());
        if let Some(home) = before.and_then(|before| self.homes.get_mut(&before)) {
            home.stations.remove(&station);
        }
        self.homes.entry(port.clone()).or_default().stations.insert(station);
    }

    /// Takes an address from its port.
    pub fn take(&mut self, switch: &SwitchName, station: StaticAddress) -> Option<PortName> {
        let ports = self.switches.get_mut(switch)?;
        let port = ports.remove(&station)?;
        if ports.is_empty() {
            self.switches.remove(switch);
        }
        self.homes.get_mut(&port).expect("both lists agree").stations.remove(&station);
        Some(port)
    }

    /// Forgets a port that has none left; returns where they were.
    pub fn tidy(&mut self, port: &PortName) -> Option<Place> {
        self.homes.get(port).filter(|home| home.stations.is_empty())?;
        self.homes.remove(port)?.place
    }

    /// Forgets a port with its addresses; returns where they were.
    pub fn remove(&mut self, port: &PortName) -> Option<Place> {
        let stations: Vec<StaticAddress> = self.stations(port).collect();
        for station in stations {
            self.take(port.switch(), station);
        }
        self.tidy(port)
    }
}
