//! Switches: made, changed, listed.

use packet::MacAddr;
use serde::{Deserialize, Serialize};

use super::{
    ChainSpec, Forwarding, McastCounters, Mode, NewPorts, PortSettings, ProgramSpec, RuleSpec,
    RunBy,
};
use crate::name::{PortName, SwitchName};

/// Most addresses that a forwarding database may hold.
pub const FDB_CAPACITY_MAX: u32 = 1 << 20;

/// Names a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRef {
    /// The switch's name.
    pub switch: SwitchName,
}

/// A switch and the settings to give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSettings {
    /// How frames find their port: `learning`, `hub`, `patch`, `static`, `static-flood`, `chain` or
    /// `program`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<Forwarding>,
    /// The program of `forwarding` `program`, in place of the one that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramSpec>,
    /// Seconds until a learnt address is forgotten; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
    /// Addresses that the forwarding database holds, 1 to [`FDB_CAPACITY_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_capacity: Option<u32>,
    /// Reserved group addresses whose frames are forwarded, one bit for each last octet 0 to 15;
    /// not bit 1 (PAUSE).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_fwd_mask: Option<u16>,
    /// Frames of multicast groups go to members only (IGMP and MLD snooping).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcast_snooping: Option<bool>,
    /// Where no other querier is heard, the switch asks for members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcast_querier: Option<bool>,
    /// The workers that run the switch: `one` or `all`. To be changed while it has no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<RunBy>,
    /// Numeric user that owns the switch (only root and the daemon's user may give it away).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Numeric group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The users that may attach (`w`) and look (`r`), as for a file: `0o660`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The users, of those that may attach, that may create ports by attaching.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_ports: Option<NewPorts>,
    /// Most addresses learnt on a port; 0 for no limit. This and the settings below are those of
    /// all ports that have none of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_macs: Option<u32>,
    /// Source addresses that a port may send from: `off`, `first:N` or addresses with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_lock: Option<String>,
    /// Broadcast frames that a port may send in a second; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast_limit: Option<u32>,
    /// Multicast frames, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_limit: Option<u32>,
    /// Frames to unknown unicast addresses, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_unicast_limit: Option<u32>,
    /// BPDUs from and for a port are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpdu_filter: Option<bool>,
    /// A BPDU disables a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpdu_guard: Option<bool>,
    /// A loop disables a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loop_protect: Option<bool>,
    /// All its chains, in place of those that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chains: Option<Vec<ChainSpec>>,
    /// All its rules, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<RuleSpec>>,
}

/// What has happened to the entries of a forwarding database since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// Seconds in which addresses moved back and forth between two ports: a loop, or two stations
    /// with one address.
    #[serde(default)]
    pub loop_seconds: u64,
}

/// A loop between two ports: addresses move back and forth between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LoopInfo {
    /// The ports.
    pub ports: [PortName; 2],
    /// An address that moves.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: MacAddr,
    /// The VLAN of the address.
    pub vlan: u16,
    /// Milliseconds since the switch has seen that last.
    pub age_ms: u64,
}

/// A switch in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// Reserved group addresses whose frames are forwarded, by bits.
    #[serde(default)]
    pub group_fwd_mask: u16,
    /// Frames of multicast groups go to members only.
    #[serde(default)]
    pub mcast_snooping: bool,
    /// Where no other querier is heard, the switch asks for members.
    #[serde(default)]
    pub mcast_querier: bool,
    /// What snooping knows and has counted.
    #[serde(default)]
    pub mcast: McastCounters,
    /// The workers that run the switch.
    #[serde(default)]
    pub workers: RunBy,
    /// Numeric owner.
    pub owner: u32,
    /// Numeric group.
    pub group: u32,
    /// Permissions.
    pub mode: Mode,
    /// The users that may create ports by attaching.
    pub new_ports: NewPorts,
    /// Number of ports.
    pub ports: u32,
    /// Entries of the forwarding database.
    pub fdb_entries: u32,
    /// What has happened to its entries.
    pub fdb: FdbCounters,
    /// The loop that was seen last, within a minute.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub looped: Option<LoopInfo>,
    /// The settings of all ports that have none of their own.
    pub port_settings: PortSettings,
    /// Number of the worker that runs it.
    pub worker: u32,
}
