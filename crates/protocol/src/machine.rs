//! Virtual machines, as ports.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Mode;

/// Most microseconds between two interrupts: the worker is awake meanwhile.
pub const COALESCE_USECS_MAX: u16 = 1000;

/// The socket of a port [of a machine](super::PortKind::is_machine).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The socket's path; by default `PORT.sock` in the daemon's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The machine's monitor listens there, and the daemon connects.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connect: bool,
    /// For vhost-user: most pairs of queues that a guest may use; by default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Least time between two interrupts of a queue, in microseconds, at most
    /// [`COALESCE_USECS_MAX`]; 0: none. By default it adapts to what comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce_usecs: Option<u16>,
    /// So many frames do not wait for that time to pass; by default there is no such number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce_frames: Option<u16>,
    /// For datagrams: the path of the monitor's own socket; by default ours, `.peer` in the place
    /// of its ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The port goes with the connection that adds it, and so with the daemon at the latest.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// The machine behind a port, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineInfo {
    /// Path of the socket.
    pub socket: String,
    /// The daemon connects to it.
    pub connect: bool,
    /// Most pairs of queues.
    pub queues: u16,
    /// Least time between two interrupts, in microseconds, if it does not adapt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_usecs: Option<u16>,
    /// So many frames do not wait for it, if there is such a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_frames: Option<u16>,
    /// For datagrams: path of the monitor's socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whether a machine can be reached.
    pub state: MachineState,
    /// The process of its monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What the last machine that is not up did wrong, or what it may not; of one that is closed,
    /// why there is no socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
    /// Another process that wants the port, and is turned away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<u32>,
    /// What is at the path of a socket that the daemon has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<SocketPlace>,
}

/// What is at the path of a socket that the daemon has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketPlace {
    /// The socket in the daemon's directory.
    Ours {
        /// The user that owns it.
        owner: u32,
        /// The UNIX group that owns it.
        group: u32,
        /// Who may connect (w).
        mode: Mode,
    },
    /// Nothing: it was removed.
    Gone,
    /// Another program's socket, or another file: no monitor reaches the daemon.
    Replaced,
}

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    /// No VMM has connected.
    Waiting,
    /// A monitor has, and its guest does not use the device yet.
    Connected,
    /// The guest's driver is at work; of a stream or datagrams, the monitor is there.
    Up,
    /// The daemon could not create the socket when it started: no VMM can connect.
    Closed,
}

impl fmt::Display for MachineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Up => "up",
            Self::Closed => "closed",
        })
    }
}
