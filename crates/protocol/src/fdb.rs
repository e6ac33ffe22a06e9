//! The forwarding database of a switch.

use packet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::name::{PortName, SwitchName};

/// Which forwarding database to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbList {
    /// The switch.
    pub switch: SwitchName,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// An entry of the forwarding database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FdbEntry {
    /// Address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: MacAddr,
    /// VLAN.
    pub vlan: u16,
    /// The port behind which it is.
    pub port: PortName,
    /// An operator added the entry; it never ages.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// A routing daemon has named it; it never ages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extern_learn: bool,
    /// Seconds since it was last seen.
    pub age_s: u32,
}

/// Adds a static entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FdbAdd {
    /// The port, which names the switch too.
    pub port: PortName,
    /// Address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: MacAddr,
    /// VLAN, 1 unless said otherwise.
    #[serde(default = "default_vlan")]
    pub vlan: u16,
}

/// Deletes an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbDel {
    /// The switch.
    pub switch: SwitchName,
    /// Address.
    pub mac: MacAddr,
    /// VLAN, 1 unless said otherwise.
    #[serde(default = "default_vlan")]
    pub vlan: u16,
}

/// The VLAN of ports without a VLAN setting.
pub(crate) fn default_vlan() -> u16 {
    1
}

/// Forgets learnt entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbFlush {
    /// The switch.
    pub switch: SwitchName,
    /// Only those behind this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
}
