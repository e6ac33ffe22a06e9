//! Specifications: what `control` orders from `engine` when it makes a port.
//!
//! `control` has checked names, permissions, quotas and ranges before it fills one in.

use std::sync::Arc;

use port::netmap_region::Parts;
use protocol::name::PortName;
use protocol::{BoundRings, HostIf, PortKind, Vxlan};
use ring::layout::RingCounts;
use switch::{DropReasons, MirrorSource, PortConfig};

use super::keys::{GroupKey, PortKey, SwitchKey};
use super::opening::Opening;

/// Most extra buffers of a port.
pub const MAX_EXTRA_BUFS: u32 = 1 << 20;

/// Bytes of a trust group's region, unless its first port or the configuration says otherwise.
pub const NEW_GROUP: u64 = 512 << 20;
/// Fewest bytes of a trust group's region.
pub const GROUP_MEMORY_MIN: u64 = 1 << 20;
/// Most bytes of a trust group's region.
pub const GROUP_MEMORY_MAX: u64 = 4095 << 20;

/// Rings and buffers of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Rings and slots.
    pub counts: RingCounts,
    /// Extra buffers, at most [`MAX_EXTRA_BUFS`].
    pub extra_bufs: u32,
    /// Distance from one buffer to the next in bytes.
    pub stride: u32,
}

impl RingSpec {
    /// Buffers that a port with these rings gets.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        self.counts.buffers().saturating_add(self.extra_bufs)
    }
}

/// A port of a switch that a client attaches.
#[derive(Clone, Debug)]
pub struct ShmSpec {
    /// Key of the port.
    pub key: PortKey,
    /// Name of the port, which the `netmap_if` shows.
    pub name: PortName,
    /// The switch that gets the port.
    pub switch: SwitchKey,
    /// The worker that its configuration asks for.
    pub worker: Option<u32>,
    /// Rings and buffers.
    pub rings: RingSpec,
    /// The trust group to join: ports of one group share a region.
    pub group: Option<GroupKey>,
    /// Bytes of the group's region, if this port is the first of the group.
    pub group_memory: u64,
}

/// A port of a switch that netmap programs bind.
#[derive(Clone, Debug)]
pub struct BoundSpec {
    /// Key of the port.
    pub key: PortKey,
    /// Name of the port, which the `netmap_if` shows.
    pub name: PortName,
    /// The switch that gets the port.
    pub switch: SwitchKey,
    /// Rings and buffers. Extra buffers belong to the programs that bind the port.
    pub rings: RingSpec,
    /// The region to use.
    pub region: RegionSpec,
}

/// A region of bound ports.
#[derive(Clone, Debug)]
pub enum RegionSpec {
    /// An existing region, by its number.
    Known(u16),
    /// A region that is made for this port.
    New(NewRegion),
}

/// A region that is to be made.
#[derive(Clone, Debug)]
pub struct NewRegion {
    /// The size, and where everything lies.
    pub parts: Parts,
    /// Dropped when the region is gone and the system has its memory again.
    pub life: Arc<()>,
}

/// A port with a network interface of the host behind it.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Key of the port.
    pub key: PortKey,
    /// Name of the port, for the log.
    pub name: PortName,
    /// The switch that gets the port.
    pub switch: SwitchKey,
    /// Kind of interface.
    pub kind: PortKind,
    /// The interface; its name is always set.
    pub host: HostIf,
    /// How the switch treats the port.
    pub config: PortConfig,
    /// The interface itself, if a thread has opened it already.
    pub opening: Option<Opening>,
}

/// The port of a virtual machine.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Key of the port.
    pub key: PortKey,
    /// The protocol that the VMM speaks on the socket.
    pub kind: PortKind,
    /// Name of the port, for the log.
    pub name: PortName,
    /// The switch that gets the port.
    pub switch: SwitchKey,
    /// Where the socket is and which users may connect.
    pub socket: port::machine::Spec,
    /// How the switch treats the port.
    pub config: PortConfig,
}

/// The port of a tunnel to other hosts.
#[derive(Clone, Debug)]
pub struct VxlanSpec {
    /// Key of the port.
    pub key: PortKey,
    /// Name of the port, for the log.
    pub name: PortName,
    /// The switch that gets the port.
    pub switch: SwitchKey,
    /// The tunnel.
    pub vxlan: Vxlan,
    /// How the switch treats the port.
    pub config: PortConfig,
    /// The switch's ageing time.
    pub ageing_ms: u64,
}

/// What rings get that no switch serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mirrored {
    /// Nothing: a null port.
    Nothing,
    /// Frames of ports of one switch.
    Ports(Vec<(PortKey, MirrorSource)>),
    /// Frames that a switch drops for these reasons.
    Drops(SwitchKey, DropReasons),
}

/// Rings of one connection that no switch serves: a netmap null port or a netmap monitor.
#[derive(Clone, Debug)]
pub struct UnswitchedSpec {
    /// Key of the rings.
    pub key: PortKey,
    /// The name that the program asked for.
    pub name: PortName,
    /// The name that the `netmap_if` shows.
    pub label: String,
    /// Rings and buffers.
    pub rings: RingSpec,
    /// The region to use.
    pub region: RegionSpec,
    /// What is mirrored into the rings.
    pub mirrored: Mirrored,
    /// The worker writes the time into the slots.
    pub is_stamped: bool,
}

/// The rings of a port that one connection binds, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Transmit rings.
    pub tx: BoundRings,
    /// Receive rings.
    pub rx: BoundRings,
    /// No other connection may bind the same rings (`NR_EXCLUSIVE`).
    pub exclusive: bool,
    /// The program transmits only when it asks to (`NR_NO_TX_POLL`). The daemon passes it on.
    pub no_tx_poll: bool,
}

impl Claim {
    /// Whether two connections may hold these claims at the same time.
    #[must_use]
    pub fn goes_with(&self, other: &Self) -> bool {
        let overlap = |a: BoundRings, b: BoundRings| {
            a.first.max(b.first) < (a.first + a.count).min(b.first + b.count)
        };
        let apart = !overlap(self.tx, other.tx) && !overlap(self.rx, other.rx);
        apart || !(self.exclusive || other.exclusive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(tx: (u16, u16), rx: (u16, u16), exclusive: bool) -> Claim {
        let rings = |(first, count)| BoundRings { first, count };
        Claim { tx: rings(tx), rx: rings(rx), exclusive, no_tx_poll: false }
    }

    #[test]
    fn test_only_overlapping_rings_exclude_each_other() {
        let all = claim((0, 4), (0, 4), false);
        let (first, last) = (claim((0, 1), (0, 1), true), claim((3, 1), (3, 1), true));
        assert!(all.goes_with(&all));
        assert!(first.goes_with(&last));
        assert!(!all.goes_with(&first) && !last.goes_with(&all));
        let (tx, rx) = (claim((0, 4), (0, 0), true), claim((0, 0), (0, 4), true));
        assert!(tx.goes_with(&rx));
        assert!(claim((0, 0), (0, 0), true).goes_with(&all));
    }
}
