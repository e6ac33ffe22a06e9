//! Switches: made, changed, listed.

use serde::{Deserialize, Serialize};

use super::{ChainSpec, Mode, NewPorts, RuleSpec};
use crate::name::SwitchName;

/// Names a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRef {
    /// The switch's name.
    pub switch: SwitchName,
}

/// A switch and the settings to give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// The switch's name.
    pub switch: SwitchName,
    /// Settings; what is missing keeps its value.
    #[serde(default)]
    pub settings: SwitchSettings,
}

/// Settings of a switch; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSettings {
    /// How frames find their port: `learning`, `hub`, `patch`, `static`, `static-flood` or `chain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<String>,
    /// Seconds until a learnt address is forgotten; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
    /// Addresses that the forwarding database holds, 1 to 1048576.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_capacity: Option<u32>,
    /// Numeric user that owns the switch (only root and the daemon's user may give it away).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Numeric group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Who may attach (`w`) and look (`r`), as for a file: `0o660`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Who of those who may attach may do so to ports that were not there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_ports: Option<NewPorts>,
    /// All its chains, in place of those that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chains: Option<Vec<ChainSpec>>,
    /// All its rules, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<RuleSpec>>,
}

/// What has happened to the entries of a forwarding database since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbCounters {
    /// Addresses learned that were not known.
    pub learned: u64,
    /// Addresses that changed port: a few are stations that move, many are a loop or a forgery.
    pub moved: u64,
    /// Entries forgotten because their station was silent.
    pub aged: u64,
    /// Entries that made room for another, because all of `fdb_capacity` were taken.
    pub evicted: u64,
    /// Addresses not learned because of a port's limit (`max_macs`).
    pub refused_limit: u64,
    /// Addresses not learned because static entries take all the room.
    pub refused_full: u64,
}

/// A switch in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchInfo {
    /// The switch's name.
    pub switch: SwitchName,
    /// Stays without ports.
    pub persistent: bool,
    /// How frames find their port.
    pub forwarding: String,
    /// Seconds until a learnt address is forgotten; 0 for never.
    pub age_s: u32,
    /// Addresses that the forwarding database holds.
    pub fdb_capacity: u32,
    /// Numeric owner.
    pub owner: u32,
    /// Numeric group.
    pub group: u32,
    /// Permissions.
    pub mode: Mode,
    /// Who may make ports by opening them.
    pub new_ports: NewPorts,
    /// Number of ports.
    pub ports: u32,
    /// Entries of the forwarding database.
    pub fdb_entries: u32,
    /// What has happened to its entries.
    pub fdb: FdbCounters,
    /// Number of the worker that runs it.
    pub worker: u32,
}
