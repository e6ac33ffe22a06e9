//! Interfaces: ports that have a name of their own, and come into a switch and leave it.

use serde::{Deserialize, Serialize};

use crate::name::PortName;

/// Makes a virtual interface, which stays until it is deleted. What is `None` has the daemon's
/// configured default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceAdd {
    /// The interface's name, such as `netmap:v0`.
    pub port: PortName,
    /// Transmit rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rings: Option<u16>,
    /// Receive rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rings: Option<u16>,
    /// Slots of each transmit ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_slots: Option<u32>,
    /// Slots of each receive ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_slots: Option<u32>,
    /// The region to live in, by its number; 0 for one of its own.
    #[serde(default)]
    pub mem_id: u16,
}

/// Puts an interface into a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceAttach {
    /// The port that it becomes: `vale0:v0` for the interface `netmap:v0`.
    pub port: PortName,
    /// The host's side of it too, where it has one.
    #[serde(default)]
    pub host: bool,
    /// A region that has to be there, by its number; 0 for none.
    #[serde(default)]
    pub mem_id: u16,
}

/// Threads that poll an interface of the system, in place of its interrupts. A worker that moves
/// its frames has no use for them: it is a hint, and remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfacePoll {
    /// The port.
    pub port: PortName,
    /// Which threads; none from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<PollThreads>,
}

/// Which threads poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollThreads {
    /// One for each ring, on the core of the ring's number.
    pub per_ring: bool,
    /// The first core.
    pub first: u32,
    /// How many cores, less than there are.
    pub count: u32,
}
