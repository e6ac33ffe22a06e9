//! Static addresses: they belong to the name of a port, not to the client that holds it.
//!
//! ```text
//!                        attach                          detach
//!  free port: stand-in ─────────► held port: the port ─────────► free port: stand-in ─► …
//! ```
//!
//! While no client holds a persistent port, the switch knows in its place a *stand-in*, which takes
//! no flood; what is for its addresses is dropped, as a `dead_port` of its sender. So nobody else
//! can take one of them over meanwhile, and nothing for them is flooded. Ports without static
//! addresses have none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use packet::{MacAddr, VlanId};
use protocol::Mac;
use protocol::name::{PortName, SwitchName};
use serde::{Deserialize, Serialize};

use crate::model::keys::PortKey;

/// Most static addresses of a switch.
pub const MAX_STATIONS: usize = 16_384;

/// An address that somebody put on a port; as text `02:00:00:00:00:01`, or with its VLAN
/// `02:00:00:00:00:01@10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Station {
    /// The address of a single station.
    pub mac: MacAddr,
    /// The VLAN.
    pub vlan: VlanId,
}

impl Station {
    /// An address of a call.
    pub fn new(mac: Mac, vlan: u16) -> Result<Self, String> {
        let vlan = VlanId::try_from(vlan).map_err(|error| format!("vlan: {error}"))?;
        Self::checked(MacAddr::new(mac.0), vlan)
    }

    fn checked(mac: MacAddr, vlan: VlanId) -> Result<Self, String> {
        check_station(mac)?;
        Ok(Self { mac, vlan })
    }
}

/// Whether one station can have this address: a port's neighbour, or an interface.
pub fn check_station(mac: MacAddr) -> Result<(), String> {
    if mac.is_multicast() {
        return Err(format!(
            "{mac} is a group address, of no single station; choose one whose first byte is even, \
             like 02:00:00:00:00:01"
        ));
    }
    if mac.octets() == [0; 6] {
        return Err(format!("{mac} is no station's address; choose one like 02:00:00:00:00:01"));
    }
    Ok(())
}

impl FromStr for Station {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mac, vlan) = match text.split_once('@') {
            Some((mac, vlan)) => (mac, vlan.parse().map_err(|error| format!("{error}"))?),
            None => (text, VlanId::DEFAULT),
        };
        let mac: MacAddr = mac.parse().map_err(|error| format!("{error}"))?;
        Self::checked(mac, vlan)
    }
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan == VlanId::DEFAULT {
            true => write!(f, "{}", self.mac),
            false => write!(f, "{}@{}", self.mac, self.vlan),
        }
    }
}

impl TryFrom<String> for Station {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Station> for String {
    fn from(station: Station) -> Self {
        station.to_string()
    }
}

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
    stations: BTreeSet<Station>,
    /// `None`: nowhere, as when the workers had no room for a stand-in.
    place: Option<Place>,
}

/// All static addresses: by port, those that have none are not here; and the ports by address.
#[derive(Debug, Default)]
pub struct Statics {
    homes: BTreeMap<PortName, Home>,
    switches: HashMap<SwitchName, HashMap<Station, PortName>>,
}

impl Statics {
    /// The addresses of a port.
    pub fn stations(&self, port: &PortName) -> impl Iterator<Item = Station> + '_ {
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
    pub fn find(&self, switch: &SwitchName, station: Station) -> Option<&PortName> {
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
    pub fn insert(&mut self, port: &PortName, station: Station) {
        let switch = self.switches.entry(port.switch().clone()).or_default();
        let before = switch.insert(station, port.clone());
        if let Some(home) = before.and_then(|before| self.homes.get_mut(&before)) {
            home.stations.remove(&station);
        }
        self.homes.entry(port.clone()).or_default().stations.insert(station);
    }

    /// Takes an address from its port.
    pub fn take(&mut self, switch: &SwitchName, station: Station) -> Option<PortName> {
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
        let stations: Vec<Station> = self.stations(port).collect();
        for station in stations {
            self.take(port.switch(), station);
        }
        self.tidy(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_stations_survive_their_text() {
        for text in ["02:00:00:00:00:01", "02:00:00:00:00:01@10"] {
            assert_eq!(text.parse::<Station>().unwrap().to_string(), text);
        }
        for text in ["", "@", "02:00:00:00:00:01@", "02:00:00:00:00:01@0", "03:00:00:00:00:01"] {
            assert!(text.parse::<Station>().is_err(), "{text:?}");
        }
    }
}
