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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use client::name::{PortName, SwitchName};
use serde::{Deserialize, Serialize};
use switch::{MacAddr, VlanId};

use super::datapath::PortKey;

/// Most static addresses of a switch.
pub const MAX_STATIONS: usize = 16_384;

/// An address that somebody put on a port; as text `02:00:00:00:00:01`, or with its VLAN
/// `02:00:00:00:00:01@10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Station {
    /// The address of a single station.
    pub mac: MacAddr,
    /// The VLAN.
    pub vlan: VlanId,
}

impl FromStr for Station {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mac, vlan) = match text.split_once('@') {
            Some((mac, vlan)) => (mac, vlan.parse().map_err(|error| format!("{error}"))?),
            None => (text, VlanId::DEFAULT),
        };
        let mac: MacAddr = mac.parse().map_err(|error| format!("{error}"))?;
        if mac.is_multicast() {
            return Err(format!("{mac} is a group address: it has no port"));
        }
        Ok(Self { mac, vlan })
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
#[derive(Debug)]
pub struct Home {
    /// The addresses.
    pub stations: BTreeSet<Station>,
    /// Where they are; nowhere if the workers had no room for a stand-in.
    pub place: Option<Place>,
}

/// All static addresses, by port. Ports that have none are not here.
#[derive(Debug, Default)]
pub struct Statics {
    homes: BTreeMap<PortName, Home>,
}

impl Statics {
    /// The addresses of a port.
    pub fn stations(&self, port: &PortName) -> impl Iterator<Item = Station> + '_ {
        self.homes.get(port).into_iter().flat_map(|home| home.stations.iter().copied())
    }

    /// The ports of a switch that have any.
    pub fn homes_of<'a>(
        &'a self,
        switch: &'a SwitchName,
    ) -> impl Iterator<Item = (&'a PortName, &'a Home)> {
        let from = self.homes.range(PortName::first_of(switch)..);
        from.take_while(move |(port, _)| port.switch() == switch)
    }

    /// How many addresses a switch has.
    pub fn count(&self, switch: &SwitchName) -> usize {
        self.homes_of(switch).map(|(_, home)| home.stations.len()).sum()
    }

    /// The port of the switch that has this address.
    pub fn find(&self, switch: &SwitchName, station: Station) -> Option<PortName> {
        let mut homes = self.homes_of(switch);
        homes.find(|(_, home)| home.stations.contains(&station)).map(|(port, _)| port.clone())
    }

    /// The home of a port.
    pub fn get_mut(&mut self, port: &PortName) -> Option<&mut Home> {
        self.homes.get_mut(port)
    }

    /// The home of a port, made if there is none.
    pub fn home(&mut self, port: &PortName) -> &mut Home {
        let none = || Home { stations: BTreeSet::new(), place: None };
        self.homes.entry(port.clone()).or_insert_with(none)
    }

    /// Forgets the home of a port.
    pub fn remove(&mut self, port: &PortName) -> Option<Home> {
        self.homes.remove(port)
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
