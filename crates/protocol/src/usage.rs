//! What the daemon uses, and what it gives its users.

use serde::{Deserialize, Serialize};

use crate::name::PortName;

/// What the daemon uses now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Bytes of memory that are resident.
    pub resident_memory: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Descriptors that it may have open; `None`: any number.
    pub descriptors_max: Option<u64>,
    /// Milliseconds that its threads have run.
    pub cpu_ms: u64,
    /// Files of the state directory that it could not write, each with the reason; 16 at most. It
    /// tries again every few seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
    /// The number of these files, named or not.
    #[serde(default)]
    pub unsaved_files: u64,
    /// Ports that it forgot when it started, because their interface ended with the daemon before
    /// it, and that are not there again; 16 at most. For root and the daemon's user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<PortName>,
}

/// What a user has, and its quota counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UserUsage {
    /// Numeric user.
    pub uid: u32,
    /// Switches that the user owns.
    pub switches: u64,
    /// Ports that the user made.
    pub ports: u64,
    /// Bytes of memory that the user is charged for.
    pub memory: u64,
    /// Connections to the control socket.
    pub connections: u64,
    /// Rules and chains of these switches.
    #[serde(default)]
    pub rules: u64,
    /// Static addresses of these switches.
    #[serde(default)]
    pub static_addresses: u64,
}
