//! Static addresses: MAC addresses that an operator binds to a port.

use std::fmt;
use std::str::FromStr;

use packet::{MacAddr, VlanId};
use serde::{Deserialize, Serialize};

use crate::check;

/// Most static addresses of a switch.
pub const MAX_STATIC: usize = 16_384;

/// A unicast address in a VLAN that an operator binds to a port. As text it is `02:00:00:00:00:01`,
/// or `02:00:00:00:00:01@10` with the VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StaticAddress {
    /// The unicast MAC address.
    pub mac: MacAddr,
    /// The VLAN.
    pub vlan: VlanId,
}

impl StaticAddress {
    /// Checks the address and the VLAN of a request.
    ///
    /// # Errors
    /// The address is no station's, or there is no such VLAN.
    pub fn new(mac: MacAddr, vlan: u16) -> Result<Self, String> {
        let vlan = VlanId::try_from(vlan).map_err(|error| format!("vlan: {error}"))?;
        Self::checked(mac, vlan)
    }

    fn checked(mac: MacAddr, vlan: VlanId) -> Result<Self, String> {
        check::unicast(mac)?;
        Ok(Self { mac, vlan })
    }
}

impl FromStr for StaticAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mac, vlan) = match text.split_once('@') {
            Some((mac, vlan)) => (mac, vlan.parse().map_err(|error| format!("{error}"))?),
            None => (text, VlanId::DEFAULT),
        };
        let mac = MacAddr::from_short_text(mac).map_err(|error| format!("{error}"))?;
        Self::checked(mac, vlan)
    }
}

impl fmt::Display for StaticAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan == VlanId::DEFAULT {
            true => write!(f, "{}", self.mac),
            false => write!(f, "{}@{}", self.mac, self.vlan),
        }
    }
}

packet::text_form!(StaticAddress);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_static_addresses_survive_their_text() {
        for text in ["02:00:00:00:00:01", "02:00:00:00:00:01@10"] {
            assert_eq!(text.parse::<StaticAddress>().unwrap().to_string(), text);
        }
        let short: StaticAddress = "2:0:0:0:0:1@10".parse().unwrap();
        assert_eq!(short.to_string(), "02:00:00:00:00:01@10");
        for text in ["", "@", "02:00:00:00:00:01@", "02:00:00:00:00:01@0", "03:00:00:00:00:01"] {
            assert!(text.parse::<StaticAddress>().is_err(), "{text:?}");
        }
    }
}
