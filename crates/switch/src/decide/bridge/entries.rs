//! Entries of the forwarding database that are not learned: those of operators, and those of a
//! routing daemon.

use std::fmt;

use packet::{MacAddr, PortId, VlanId};

use super::Bridge;
use crate::decide::fdb::{FdbFull, Learned};

/// Why a static entry was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticError {
    /// There is no such port.
    NoPort,
    /// A group address is not behind one port.
    GroupAddress,
    /// The table is full of other static entries.
    Full,
}

impl fmt::Display for StaticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPort => "no such port",
            Self::GroupAddress => "a group address cannot be on one port; give a station's address",
            Self::Full => "no room among static entries; raise the FDB capacity",
        })
    }
}

impl std::error::Error for StaticError {}

impl Bridge {
    /// Adds a static entry to the forwarding database.
    pub fn add_static(
        &mut self,
        vlan: VlanId,
        mac: MacAddr,
        port: PortId,
    ) -> Result<(), StaticError> {
        if self.port(port).is_none() {
            return Err(StaticError::NoPort);
        }
        if mac.is_multicast() {
            return Err(StaticError::GroupAddress);
        }
        self.fdb.add_static(vlan, mac, port).map_err(|FdbFull| StaticError::Full)
    }

    /// Adds an external entry; returns whether it is in the forwarding database.
    pub fn add_external(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) -> bool {
        let may = self.port(port).is_some() && mac.is_station();
        let refused = |it| matches!(it, Learned::Static | Learned::PortLimit | Learned::Full);
        may && !refused(self.fdb.add_external(vlan, mac, port))
    }

    /// Removes what [`Bridge::add_external`] has added, unless the station has left the port.
    pub fn remove_external(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) {
        self.fdb.remove_external(vlan, mac, port);
    }

    /// Removes an entry, static or learned. Returns whether it was there.
    pub fn remove_entry(&mut self, vlan: VlanId, mac: MacAddr) -> bool {
        self.fdb.remove(vlan, mac)
    }
}
