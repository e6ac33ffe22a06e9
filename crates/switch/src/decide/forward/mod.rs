//! Forwarding functions: they choose the destination of a frame that was let in.
//!
//! One function per file. Each gets the port, the VLAN and the header of a frame, and returns a
//! [`Verdict`]. Which VLAN the frame is in, and whether the destination may have it, is not their
//! business: the [bridge](crate::decide::bridge) asks before and after.

pub(crate) mod hub;
pub(crate) mod learning;
pub(crate) mod patch;
pub(crate) mod static_map;
pub mod user;

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
    /// To the ports of the set that has this number (`forward::user`). Storm limits hold as for a
    /// flood of this class.
    Set(FloodClass, u16),
    /// To members of the frame's group and to routers, whatever floods these ports take: what
    /// becomes of a flood of multicast where the switch snoops (`decide::snooping`).
    Members,
    /// Nowhere.
    Drop(DropReason),
}

impl Verdict {
    /// The class of the storm limit that holds for a frame, if it may become several.
    #[inline]
    pub(crate) fn limited_as(self) -> Option<FloodClass> {
        match self {
            Self::Flood(class) | Self::Set(class, _) => Some(class),
            Self::Members => Some(FloodClass::Multicast),
            Self::To(_) | Self::Drop(_) => None,
        }
    }

    /// Why a frame is dropped for which there is no port.
    pub(crate) const fn unreached(self) -> DropReason {
        match self {
            Self::Members => DropReason::NoMember,
            _ => DropReason::NoDestination,
        }
    }
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

    /// The reason of a port that has sent too many such frames.
    pub const fn storm(self) -> DropReason {
        match self {
            Self::Unicast => DropReason::StormUnicast,
            Self::Multicast => DropReason::StormMulticast,
            Self::Broadcast => DropReason::StormBroadcast,
        }
    }

    /// The place of this class in a list of all.
    pub const fn index(self) -> usize {
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
    /// Reserved groups that are forwarded, by their last octet.
    pub group_fwd_mask: u16,
    /// Whether frames without a source address are let in.
    pub zero_source: bool,
}

/// The reason why a bridge ignores a frame with these addresses, if there is one.
///
/// Reserved groups (STP, PAUSE, LACP, 802.1X, LLDP and others) address the other end of one link; a
/// bridge that passes them on connects protocols that were not meant to meet. An operator may
/// [let](crate::SwitchConfig::group_fwd_mask) some of them pass, as on Linux's bridge.
///
/// No station has a group's address for a source, or zeros. Ports with rings may send zeros, as
/// with VALE: netmap's `pkt-gen` does.
#[inline]
pub(crate) fn refused(frame: &Ingress) -> Option<DropReason> {
    let (dst, src) = (frame.header.dst(), frame.header.src());
    let is_source = src.is_station() || frame.zero_source && src == MacAddr::ZERO;
    if !is_source {
        return Some(DropReason::BadSource);
    }
    let group = dst.reserved_group()?;
    if dst == MacAddr::PAUSE {
        return Some(DropReason::Pause);
    }
    (frame.group_fwd_mask & 1 << group == 0).then_some(DropReason::ReservedGroup)
}
