//! Virtual machines, as ports.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Mode;

/// Most microseconds between two interrupts: the worker is awake meanwhile.
pub const COALESCE_USECS_MAX: u16 = 1000;

/// Most pairs of virtqueues of a port. QEMU's own limit is far above; a guest seldom has as many
/// processors.
pub const PAIRS_MAX: u16 = 64;

/// What stands between fault and cure in a [complaint](MachineInfo::complaint) whose cure is to
/// bind the driver anew.
pub const CURE_IN_GUEST: &str = "; in the guest, ";

/// What stands there in a complaint whose cure is to add the port with more queues.
pub const CURE_BY_QUEUES: &str = "; if it uses more, ";

/// The socket of a port [of a machine](super::PortKind::is_machine).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The socket's path; by default `PORT.sock` in the daemon's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The VMM listens there, and the daemon connects.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connect: bool,
    /// For vhost-user: most pairs of queues that a guest may use; by default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Least time between two interrupts of a queue, in microseconds, at most
    /// [`COALESCE_USECS_MAX`]; 0: none. By default it adapts to what comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce_usecs: Option<u16>,
    /// Interrupt after this many frames, regardless of that time; by default there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce_frames: Option<u16>,
    /// For datagrams: the path of the VMM's own socket; by default ours, `.peer` in the place
    /// of its ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The port goes with the connection that adds it, and so with the daemon at the latest.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// The machine behind a port, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// Interrupt after this many frames regardless of it, if there is such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_frames: Option<u16>,
    /// For datagrams: path of the VMM's socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whether a machine can be reached.
    pub state: MachineState,
    /// PID of the VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What the last machine that is not up did wrong, or what it may not; of one that is closed,
    /// why there is no socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
    /// PID of a second VMM, rejected.
    // Earlier builds write `rival`; read for one release.
    #[serde(alias = "rival", default, skip_serializing_if = "Option::is_none")]
    pub rejected_peer: Option<u32>,
    /// What is at the path of a socket that the daemon has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<SocketPlace>,
}

/// What is at the path of a socket that the daemon has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SocketPlace {
    /// The socket in the daemon's directory.
    Ours {
        /// The user that owns it.
        owner: u32,
        /// The UNIX group that owns it.
        group: u32,
        /// The users that may connect (`w`).
        mode: Mode,
    },
    /// Nothing: it was removed.
    Gone,
    /// Another program's socket, or another file: no VMM reaches the daemon.
    Replaced,
}

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    /// No VMM has connected.
    Waiting,
    /// A VMM has, and its guest does not use the device yet.
    Connected,
    /// The guest's driver is at work; of a stream or datagrams, the VMM is connected.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_name_of_a_rejected_peer_is_read() {
        let machine = |key: &str| {
            let text =
                format!(r#"{{"socket":"s","connect":false,"queues":1,"state":"up","{key}":7}}"#);
            serde_json::from_str::<MachineInfo>(&text)
        };
        let info = machine("rival").expect("the daemon of an earlier build writes it");
        assert_eq!(info.rejected_peer, Some(7));
        assert_eq!(machine("rejected_peer").expect("today's name"), info);
        let text = serde_json::to_string(&info).expect("an object");
        assert!(text.contains("\"rejected_peer\":7") && !text.contains("rival"), "{text}");
    }
}
