//! Virtual machines, as ports.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The socket of a port of kind [`VhostUser`](super::PortKind::VhostUser).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vhost {
    /// Its path; by default `PORT.sock` in the daemon's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The machine's monitor listens there, and the daemon connects.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connect: bool,
    /// Most pairs of queues that a guest may use; by default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
}

/// The machine behind a port, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostInfo {
    /// Path of the socket.
    pub socket: String,
    /// The daemon connects to it.
    pub connect: bool,
    /// Most pairs of queues.
    pub queues: u16,
    /// Whether a machine can be reached.
    pub state: MachineState,
    /// The process of its monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    /// Nobody has connected.
    Waiting,
    /// A monitor has, and its guest does not use the device yet.
    Connected,
    /// The guest's driver is at work.
    Up,
}

impl fmt::Display for MachineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Up => "up",
        })
    }
}
