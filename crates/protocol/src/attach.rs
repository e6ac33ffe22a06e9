//! Opening a port: what a client asks for, and where everything lies.

use serde::{Deserialize, Serialize};

use crate::name::PortName;

/// Opens a port. What is `None` has the daemon's configured default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The port's name: a port of a switch, or one end of a pipe.
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
    /// Extra buffers, for clients that keep frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_bufs: Option<u32>,
    /// Trust group: its ports share a region, frames between them are swapped, not copied. One of
    /// the caller's, or one of that name that the daemon's configuration declares for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Bytes of that region, where this is its first port: this many are charged to its user, and
    /// no port of the group is charged for anything else. Where there are others already, this says
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_memory: Option<u64>,
    /// Only open a port that exists already.
    #[serde(default)]
    pub existing: bool,
    /// The thread that uses it, where a process has several such, by its number: listings show its
    /// time and not that of all. One that is not there, or not to be seen, is as if none was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// No other process may have an instance of the port's service while this port is attached: the
    /// function cannot share flows with an instance that it knows nothing of.
    #[serde(default, skip_serializing_if = "is_not")]
    pub alone: bool,
}

impl Attach {
    /// Opens `port` with every default.
    #[must_use]
    pub fn new(port: PortName) -> Self {
        Self {
            port,
            tx_rings: None,
            rx_rings: None,
            tx_slots: None,
            rx_slots: None,
            extra_bufs: None,
            group: None,
            group_memory: None,
            existing: false,
            thread: None,
            alone: false,
        }
    }
}

/// A client's port that a daemon hands over to the next one. The descriptors beside the reply are,
/// in this order: the region, the eventfd that the client kicks by, the daemon's end of
/// the client's doorbell, the daemon's end of the control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedPort {
    /// The number by which the daemon that hands it over says more of it when it ends.
    pub key: u32,
    /// What the client calls itself.
    pub client: String,
    /// The call that opens such a port, with all sizes.
    pub attach: Attach,
    /// Distance from one buffer to the next in bytes.
    pub stride: u32,
}

/// Where everything lies in the region of an attached port.
///
/// A client computes its offsets from these numbers, not from the region's contents. The
/// descriptors beside the reply are, in this order: the region (map it shared), the eventfd to
/// kick by (write 1), the doorbell to read from (poll-able; end of file means that the other side
/// is gone).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// The port's name.
    pub port: PortName,
    /// Size of the region in bytes.
    pub region_bytes: u64,
    /// Offset of the port's block, at whose start the `netmap_if` lies.
    pub block: u64,
    /// Offset of buffer 0.
    pub pool: u64,
    /// Distance between buffers in bytes.
    pub stride: u32,
    /// Number of buffers, the two reserved ones included.
    pub buffers: u32,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Extra buffers, a list that starts in the `netmap_if`.
    pub extra_bufs: u32,
    /// For a pipe: offset of the other end's block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_block: Option<u64>,
    /// The port is an instance of a service, in a switch that has chains: frames come to it by
    /// chains alone, and what a function passes on goes on in them.
    #[serde(default, skip_serializing_if = "is_not")]
    pub function: bool,
}

fn is_not(flag: &bool) -> bool {
    !flag
}
