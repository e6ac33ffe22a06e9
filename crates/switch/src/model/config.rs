//! What an operator can set on a switch and on a port. Names are those of `bridge(8)`.

use std::fmt;
use std::str::FromStr;

use packet::{ParseError, VlanId, VlanSet};

use crate::decide::forward::FloodClass;

/// How a port takes part in VLANs. Its text is `transparent[:VLAN]`, `access:VLAN` or
/// `trunk:VLANS[,native=VLAN]`, for example `trunk:10,20-30,native=1`.
///
/// | mode | untagged in | tagged in | out |
/// |---|---|---|---|
/// | transparent | its VLAN | its VLAN; the tag is payload | without the tag of a trunk |
/// | access | its VLAN | only if tagged with its VLAN | untagged |
/// | trunk | the native VLAN, if any | the tag's VLAN, if allowed | tagged, but the native VLAN |
///
/// A priority tag (VLAN 0) counts as untagged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanMode {
    /// The port does not look at tags: what it carries is a VLAN of the switch as a whole (a
    /// "dot1q tunnel"). The default, because it is how VALE, and a bridge that does not filter
    /// VLANs, treat tagged frames.
    Transparent(VlanId),
    /// One VLAN, without tags.
    Access(VlanId),
    /// Several VLANs, told apart by tags.
    Trunk {
        /// The VLAN of untagged frames; a member even where `allowed` does not name it.
        native: Option<VlanId>,
        /// The VLANs of tagged frames.
        allowed: VlanSet,
    },
}

impl VlanMode {
    /// Whether frames of this VLAN may pass the port.
    #[inline]
    pub fn carries(&self, vlan: VlanId) -> bool {
        match self {
            Self::Transparent(own) | Self::Access(own) => *own == vlan,
            Self::Trunk { native, allowed } => *native == Some(vlan) || allowed.contains(vlan),
        }
    }

    /// Are tags payload?
    #[inline]
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        matches!(self, Self::Transparent(_))
    }
}

impl Default for VlanMode {
    fn default() -> Self {
        Self::Transparent(VlanId::DEFAULT)
    }
}

impl fmt::Display for VlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transparent(vlan) => write!(f, "transparent:{vlan}"),
            Self::Access(vlan) => write!(f, "access:{vlan}"),
            Self::Trunk { native: None, allowed } => write!(f, "trunk:{allowed}"),
            Self::Trunk { native: Some(vlan), allowed } => {
                write!(f, "trunk:{allowed},native={vlan}")
            }
        }
    }
}

impl FromStr for VlanMode {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once(':') {
            None if text == "transparent" => Ok(Self::default()),
            Some(("transparent", vlan)) => vlan.parse().map(Self::Transparent),
            Some(("access", vlan)) => vlan.parse().map(Self::Access),
            Some(("trunk", vlans)) => parse_trunk(vlans),
            _ => {
                Err(ParseError::new("transparent, access:VLAN or trunk:VLANS[,native=VLAN]", text))
            }
        }
    }
}

fn parse_trunk(text: &str) -> Result<VlanMode, ParseError> {
    let (vlans, native) = match text.rsplit_once(",native=") {
        Some((vlans, native)) => (vlans, Some(native.parse()?)),
        None => (text, None),
    };
    Ok(VlanMode::Trunk { native, allowed: vlans.parse()? })
}

/// What happens to a frame for a port that has no room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// The frame is dropped and counted, as VALE does.
    #[default]
    Drop,
    /// The sender waits, with everything behind the frame; floods do not wait, and are dropped. A
    /// port that does not read applies backpressure to all of its senders, so this is for ports
    /// whose users trust each other.
    Wait,
}

impl FromStr for OnFull {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "drop" => Ok(Self::Drop),
            "wait" => Ok(Self::Wait),
            _ => Err(ParseError::new("drop or wait", text)),
        }
    }
}

impl fmt::Display for OnFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drop => "drop",
            Self::Wait => "wait",
        })
    }
}

/// What a port is to chains of functions, by names. A switch works with numbers: who gives it a
/// [`Plan`](crate::chain::Plan) makes them of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The service that it is an instance of.
    pub service: Option<String>,
    /// Which instance.
    pub instance: u16,
    /// The chain that its frames enter.
    pub chain: Option<String>,
}

/// The configuration of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The VLANs that the port carries.
    pub vlan: VlanMode,
    /// An isolated port exchanges frames only with ports that are not isolated.
    pub isolated: bool,
    /// Whether source addresses that arrive here are learned.
    pub learning: bool,
    /// Whether the port gets unicast frames whose destination is not known.
    pub unicast_flood: bool,
    /// Whether the port gets multicast frames.
    pub multicast_flood: bool,
    /// Whether the port gets broadcast frames.
    pub broadcast_flood: bool,
    /// How many addresses may be learned on this port; those beyond are forwarded but not learned.
    pub max_macs: Option<u32>,
    /// What happens to a frame that finds no room.
    pub on_full: OnFull,
    /// Bytes of the virtio-net header in front of each of its frames: 0, 10 or 12. Between ports
    /// that have the same the header is passed on, others get zeros or none.
    pub vnet_header: u8,
    /// What it is to chains of functions.
    pub role: Role,
    /// No client holds the port. It keeps its addresses, and the switch drops frames for them.
    pub vacant: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            vlan: VlanMode::default(),
            isolated: false,
            learning: true,
            unicast_flood: true,
            multicast_flood: true,
            broadcast_flood: true,
            max_macs: None,
            on_full: OnFull::default(),
            vnet_header: 0,
            role: Role::default(),
            vacant: false,
        }
    }
}

impl PortConfig {
    /// Whether the port gets flooded frames of this class.
    #[inline]
    pub fn takes(&self, class: FloodClass) -> bool {
        match class {
            FloodClass::Unicast => self.unicast_flood,
            FloodClass::Multicast => self.multicast_flood,
            FloodClass::Broadcast => self.broadcast_flood,
        }
    }
}

/// Which function decides where frames go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// An 802.1D bridge: learns sources, looks destinations up, floods what it does not know.
    #[default]
    Learning,
    /// Every frame to every other port.
    Hub,
    /// Two ports, cross-connected.
    Patch,
    /// Only static entries; an unknown unicast destination is dropped.
    Static,
    /// Only static entries; an unknown unicast destination is flooded.
    StaticFlood,
    /// Through chains of functions, and from there as `Learning` does it.
    Chain,
}

impl Forwarding {
    /// Every function.
    pub const ALL: [Self; 6] =
        [Self::Learning, Self::Hub, Self::Patch, Self::Static, Self::StaticFlood, Self::Chain];

    /// The name that an operator gives.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::Hub => "hub",
            Self::Patch => "patch",
            Self::Static => "static",
            Self::StaticFlood => "static-flood",
            Self::Chain => "chain",
        }
    }
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const FORWARDING: &str = "learning, hub, patch, static, static-flood or chain";

impl FromStr for Forwarding {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let known = Self::ALL.into_iter().find(|forwarding| forwarding.name() == text);
        known.ok_or_else(|| ParseError::new(FORWARDING, text))
    }
}

/// The configuration of one switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// The forwarding function.
    pub forwarding: Forwarding,
    /// A learned address is forgotten when it was not seen for so long; 0 is never.
    pub ageing_ms: u64,
    /// Addresses that the forwarding database holds, at most [`FDB_CAPACITY_MAX`]; one more pushes
    /// out another.
    pub fdb_capacity: usize,
}

/// Largest capacity of a forwarding database: 32 MiB, for all stations of a large site.
pub const FDB_CAPACITY_MAX: usize = 1 << 20;

impl Default for SwitchConfig {
    fn default() -> Self {
        Self { forwarding: Forwarding::default(), ageing_ms: 300_000, fdb_capacity: 65_536 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_vlan_modes_survive_their_text() {
        for text in ["transparent:1", "access:10", "trunk:10,20-30", "trunk:all,native=1"] {
            assert_eq!(text.parse::<VlanMode>().unwrap().to_string(), text);
        }
        assert_eq!("transparent".parse(), Ok(VlanMode::default()));
    }

    #[test]
    fn test_text_that_is_no_vlan_mode_is_refused() {
        for text in ["", "access", "access:0", "trunk:", "trunk:1,native=", "trunk:native=1", "hub"]
        {
            assert!(text.parse::<VlanMode>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn test_trunk_carries_its_native_vlan() {
        let trunk: VlanMode = "trunk:10,native=1".parse().unwrap();
        let carried: Vec<_> =
            [1, 2, 10].into_iter().filter_map(VlanId::new).filter(|v| trunk.carries(*v)).collect();
        assert_eq!(carried.iter().map(|vlan| vlan.get()).collect::<Vec<_>>(), [1, 10]);
    }

    #[test]
    fn test_choices_survive_their_text() {
        for forwarding in Forwarding::ALL {
            assert_eq!(forwarding.to_string().parse(), Ok(forwarding));
        }
        assert_eq!(OnFull::Wait.to_string().parse(), Ok(OnFull::Wait));
        assert!("block".parse::<OnFull>().is_err());
    }
}
