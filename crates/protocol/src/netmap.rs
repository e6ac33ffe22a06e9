//! Calls of netmap programs: ports opened as `/dev/netmap` opens them.
//!
//! These calls differ from [`Attach`](super::Attach) in what a connection stands for: here it *is*
//! the program's descriptor. It opens one port, or some rings of it; others may hold the same rings
//! at the same time. A process that gets the descriptor later may ask what it is
//! ([`SessionRequest::Resume`]). The port goes with its last holder.
//!
//! [`SessionRequest::Resume`]: super::SessionRequest::Resume

use serde::{Deserialize, Serialize};

use super::{Attached, DropReasonName};
use crate::name::PortName;

/// Opens a port, or one end of a pipe, as netmap's `REGISTER` does. What is `None` has the daemon's
/// configured default, or is as it is where others hold the port already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// The port's name.
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
    /// Buffers beyond those in the slots; fewer may be granted.
    #[serde(default)]
    pub extra_bufs: u32,
    /// The region to live in, by its number; 0 for one of the port's own.
    #[serde(default)]
    pub mem_id: u16,
    /// A new region is to be like this; a port that is there already has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// Which rings.
    #[serde(default)]
    pub rings: RingChoice,
    /// No receive rings.
    #[serde(default)]
    pub tx_only: bool,
    /// No transmit rings.
    #[serde(default)]
    pub rx_only: bool,
    /// No other descriptor may hold these rings.
    #[serde(default)]
    pub exclusive: bool,
    /// Waiting for frames does not send (`NR_NO_TX_POLL`): kept for the process that has the
    /// connection later.
    #[serde(default)]
    pub no_tx_poll: bool,
    /// The program copes with a virtio-net header, if the port's frames have one; others do not get
    /// such a port.
    #[serde(default)]
    pub accepts_header: bool,
    /// What is opened: the port, or something else.
    #[serde(default)]
    pub kind: BindKind,
    /// The host's side of the interface as well, by one descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRings>,
}

/// Rings on the host's side of an interface, likewise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRings {
    /// Transmit rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rings: Option<u16>,
    /// Receive rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rings: Option<u16>,
}

/// What is opened under the name of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindKind {
    /// The port.
    #[default]
    Port,
    /// Rings and buffers in the region `mem_id`, which nothing comes out of; the name is a label.
    Null,
    /// Monitor rings of the port: copies of what the port sends or receives.
    Monitor(MonitorOf),
    /// One receive ring with copies of the frames of a port of a switch. The metadata in a slot is
    /// the time at which the switch saw the frame, in nanoseconds since 1970.
    Capture(CaptureOf),
    /// One receive ring with copies of the frames that a switch drops, each behind a
    /// [`Dropped`](packet::dropped::Dropped), with times as in a capture. The name says the switch;
    /// behind the colon it is a label.
    Drops(DropsOf),
}

/// The drops that a capture gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropsOf {
    /// Only drops for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DropReasonName>,
}

/// The frames that a capture gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureOf {
    /// Frames that enter the switch by the port: their slots have the flag `TXMON`.
    pub entering: bool,
    /// Frames that leave the switch by the port.
    pub leaving: bool,
}

/// What a monitor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorOf {
    /// What the port sends.
    pub tx: bool,
    /// What it receives.
    pub rx: bool,
    /// The monitor lives in the port's region and sees what is received once it has been read.
    #[serde(default)]
    pub zero_copy: bool,
}

impl Bind {
    /// Opens all rings of `port` with every default.
    #[must_use]
    pub fn new(port: PortName) -> Self {
        Self {
            port,
            tx_rings: None,
            rx_rings: None,
            tx_slots: None,
            rx_slots: None,
            extra_bufs: 0,
            mem_id: 0,
            room: None,
            rings: RingChoice::All,
            tx_only: false,
            rx_only: false,
            exclusive: false,
            no_tx_poll: false,
            accepts_header: false,
            kind: BindKind::Port,
            host: None,
        }
    }

    /// The transmit and receive rings that a program binds of a port with so many, as netmap picks
    /// them: where there are fewer in one direction, that direction's first. `None`: there is no
    /// ring of the wanted number.
    #[must_use]
    pub fn rings_of(&self, tx_rings: u16, rx_rings: u16) -> Option<[BoundRings; 2]> {
        if let RingChoice::One(ring) = self.rings
            && ring >= tx_rings.max(rx_rings)
        {
            return None;
        }
        let pick = |rings: u16, excluded: bool| match self.rings {
            _ if excluded => BoundRings { first: 0, count: 0 },
            RingChoice::All => BoundRings { first: 0, count: rings },
            RingChoice::One(ring) if ring < rings => BoundRings { first: ring, count: 1 },
            RingChoice::One(_) => BoundRings { first: 0, count: 1 },
        };
        Some([pick(tx_rings, self.rx_only), pick(rx_rings, self.tx_only)])
    }
}

/// What a region is to be like that takes the place of a program's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// The region's largest size in bytes.
    pub bytes: u64,
    /// Bytes of a buffer.
    pub stride: u32,
}

/// Which rings of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingChoice {
    /// All of them.
    #[default]
    All,
    /// The transmit and the receive ring of this number.
    One(u16),
}

/// What a connection has bound. The descriptors beside it are those of [`Attached`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Where everything of the port lies; its `extra_bufs` are those of this connection.
    pub attached: Attached,
    /// Offset of this connection's own `netmap_if`, in which rings that it did not bind have the
    /// offset 0.
    pub nifp: u64,
    /// Number of the region.
    pub mem_id: u16,
    /// Where the port block of a pipe's other end begins, for the end of a pipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_block: Option<u64>,
    /// The transmit rings that are bound.
    pub tx: BoundRings,
    /// The receive rings that are bound.
    pub rx: BoundRings,
    /// As it was asked for in [`Bind`].
    pub exclusive: bool,
    /// Likewise.
    pub no_tx_poll: bool,
    /// The host's side of the interface, where that is bound too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostBound>>,
}

/// What a connection has bound on the host's side, in the region of the other side. A process that
/// writes to the doorbell writes both numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostBound {
    /// Where everything of it lies.
    pub attached: Attached,
    /// The transmit rings that are bound.
    pub tx: BoundRings,
    /// The receive rings that are bound.
    pub rx: BoundRings,
}

/// Rings in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundRings {
    /// The first.
    pub first: u16,
    /// How many, 0 for none.
    pub count: u16,
}

/// Asks for the sizes of a port, or of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometryQuery {
    /// The port; where there is none, what it would be like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
    /// Without a port: the region of this number. With a port: the one that it would live in.
    #[serde(default)]
    pub mem_id: u16,
    /// Transmit rings that a new port would be asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rings: Option<u16>,
    /// Receive rings, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rings: Option<u16>,
    /// Slots of each transmit ring, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_slots: Option<u32>,
    /// Slots of each receive ring, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_slots: Option<u32>,
}

/// Sizes of a port and of its region, in the order in which netmap names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortGeometry {
    /// Number of the region.
    pub mem_id: u16,
    /// The region's size in bytes.
    pub region_bytes: u64,
    /// Transmit rings; 0 where only a region was asked for, like the three that follow.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Where descriptions of ports and rings begin.
    pub ifs: Pool,
    /// Where rings are.
    pub rings: Pool,
    /// Where the buffers are.
    pub buffers: Pool,
}

/// A part of a region: objects of one size in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Offset of the first.
    pub offset: u64,
    /// Room for this many entries.
    pub count: u32,
    /// Bytes of each.
    pub size: u32,
}
