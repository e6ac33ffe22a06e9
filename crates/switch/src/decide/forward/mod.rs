//! Forwarding functions: given a frame that was let in, where does it go?
//!
//! One function per file. Each is told the port, the VLAN and the header of a frame, and gives a
//! [`Verdict`]. Which VLAN the frame is in, and whether the destination may have it, is not their
//! business: the [bridge](crate::decide::bridge) asks before and after.

pub(crate) mod hub;
pub(crate) mod learning;
pub(crate) mod patch;
pub(crate) mod static_map;

use packet::ethernet::Header;
use packet::{MacAddr, PortId, VlanId};

use crate::model::now::Now;
use crate::model::stats::DropReason;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// To one port.
    To(PortId),
    /// To every other port that takes such frames.
    Flood(FloodClass),
    /// Nowhere.
    Drop(DropReason),
}

/// Why a frame is flooded: ports choose which of these they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloodClass {
    /// A unicast destination that is not known.
    Unicast,
    /// A group of stations.
    Multicast,
    /// Every station.
    Broadcast,
}

impl FloodClass {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Unicast, Self::Multicast, Self::Broadcast];
    /// How many classes there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The class that the frames for this address are in when they are flooded.
    #[inline]
    pub(crate) fn of(dst: MacAddr) -> Self {
        if !dst.is_multicast() {
            Self::Unicast
        } else if dst.is_broadcast() {
            Self::Broadcast
        } else {
            Self::Multicast
        }
    }

    /// The reason of a port that takes no such frames.
    pub const fn policy(self) -> DropReason {
        match self {
            Self::Unicast => DropReason::PolicyUnicast,
            Self::Multicast => DropReason::PolicyMulticast,
            Self::Broadcast => DropReason::PolicyBroadcast,
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A frame that was let in, as a forwarding function sees it.
#[derive(Clone, Copy)]
pub(crate) struct Ingress {
    pub src: PortId,
    /// Whether the source port lets its addresses be learned.
    pub learning: bool,
    pub vlan: VlanId,
    pub header: Header,
    pub now: Now,
}

/// The reason why a bridge ignores a frame with these addresses, if there is one.
///
/// Among the reserved link-local group addresses (01:80:C2:00:00:0X) only PAUSE ends here: a PAUSE
/// frame addresses the other end of one link, and a bridge that passes it on pauses other stations.
/// The others (STP, LACP, LLDP, …) pass as multicast, because uvala speaks none of them and the
/// stations around it may.
///
/// A source that is no station's ([`MacAddr::is_station`]) is no reason: Linux's bridge drops such
/// frames, VALE passes them, and netmap programs send them.
#[inline]
pub(crate) fn refused(header: Header) -> Option<DropReason> {
    (header.dst() == MacAddr::PAUSE).then_some(DropReason::Pause)
}
