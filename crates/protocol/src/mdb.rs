//! The multicast database of a switch: groups, router ports and queriers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use packet::mcast::GroupAddr;
use packet::{MacAddr, VlanId};
use serde::{Deserialize, Serialize};

use crate::McastFamily;
use crate::name::{PortName, SwitchName};

/// Most groups of which one port is a static member.
pub const STATIC_GROUPS_MAX: usize = 64;
/// Most groups that a port's limit lets it learn.
pub const MCAST_GROUPS_MAX: u32 = 4096;

/// A group in a VLAN. As text it is `239.1.1.1` or `239.1.1.1@10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StaticGroup {
    /// The VLAN.
    pub vlan: VlanId,
    /// The group.
    pub group: GroupAddr,
}

impl FromStr for StaticGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (group, vlan) = match text.split_once('@') {
            Some((group, vlan)) => (group, vlan.parse().map_err(|error| format!("{error}"))?),
            None => (text, VlanId::DEFAULT),
        };
        let group = group.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { vlan, group })
    }
}

impl fmt::Display for StaticGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan == VlanId::DEFAULT {
            true => write!(f, "{}", self.group),
            false => write!(f, "{}@{}", self.group, self.vlan),
        }
    }
}

packet::text_form!(StaticGroup);

/// Which multicast database to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdbList {
    /// The switch.
    pub switch: SwitchName,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A static entry, to be added or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MdbChange {
    /// The port, which names the switch too.
    pub port: PortName,
    /// The group.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub group: GroupAddr,
    /// VLAN, 1 unless said otherwise.
    #[serde(default = "crate::fdb::default_vlan")]
    pub vlan: u16,
}

/// An entry of the multicast database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum MdbEntry {
    /// The querier of a VLAN.
    Querier {
        /// VLAN.
        vlan: u16,
        /// The family that it asks for.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        family: McastFamily,
        /// The source of its queries.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        address: IpAddr,
        /// The port behind which it is; none: it is the switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<PortName>,
        /// Seconds until it is forgotten, if it is not heard again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_s: Option<u32>,
    },
    /// A port that leads to a multicast router.
    Router {
        /// The port.
        port: PortName,
        /// VLAN of the router that was heard; none: the port's setting says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        /// The family of that router.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        family: Option<McastFamily>,
        /// Seconds until the port leads to none, if no router is heard again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_s: Option<u32>,
    },
    /// A port with a member of a group.
    Member {
        /// VLAN.
        vlan: u16,
        /// The group, as a host reported it last, or an operator named it.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        group: GroupAddr,
        /// The destination of its frames, by which the switch forwards.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// The port.
        port: PortName,
        /// An operator added the entry; it never expires.
        #[serde(rename = "static")]
        is_static: bool,
        /// Seconds until the membership ends, if no host reports it again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_s: Option<u32>,
    },
}

/// What snooping knows and has counted since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct McastCounters {
    /// Groups with members.
    pub groups: u32,
    /// Members: ports, each counted once for a group.
    pub members: u32,
    /// VLANs with a querier, counted for IGMP and for MLD.
    pub queriers: u32,
    /// Reports of members.
    pub reports: u64,
    /// Reports of hosts that leave a group.
    pub leaves: u64,
    /// Queries heard.
    pub queries: u64,
    /// Queries that the switch has sent.
    pub queries_sent: u64,
    /// Messages that hosts and routers ignore.
    pub malformed: u64,
    /// Memberships that ended because no host reported them again.
    pub expired: u64,
    /// Memberships not learned because of a port's limit (`mcast_max_groups`).
    pub refused_limit: u64,
    /// Memberships and router ports not learned because the database was full; nothing is
    /// restricted then.
    pub refused_full: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_static_groups_survive_their_text() {
        for text in ["239.1.1.1", "ff15::7@10", "01:00:5e:01:01:01@4094"] {
            assert_eq!(text.parse::<StaticGroup>().unwrap().to_string(), text);
        }
        for text in ["", "@", "239.1.1.1@", "239.1.1.1@0", "10.0.0.1", "224.0.0.1"] {
            assert!(text.parse::<StaticGroup>().is_err(), "{text:?}");
        }
    }
}
