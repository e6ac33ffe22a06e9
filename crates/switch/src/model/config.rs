//! What an operator can set on a switch and on a port. Names are those of `bridge(8)`.

use packet::mcast::GroupAddr;
use packet::{VlanId, VlanMode};

use crate::decide::forward::FloodClass;
use crate::model::security::{PortSecurity, SecurityState};

/// What happens to a frame for a port that has no room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// The frame is dropped and counted, as VALE does, after a brief wait while the client reads
    /// (`model::patience`).
    #[default]
    Drop,
    /// The sender waits, with everything behind the frame; floods wait briefly at most. A port that
    /// does not read applies backpressure to all of its senders, so this is for ports whose users
    /// trust each other.
    Wait,
}

/// A port's part in chains of functions, by names. A switch works with numbers: its caller makes a
/// [`Plan`](crate::chain::Plan) of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The service that it is an instance of.
    pub service: Option<String>,
    /// Number of the instance.
    pub instance: u16,
    /// The chain that its frames enter.
    pub chain: Option<String>,
}

/// The ports that a mirror port gets copies of, by names. A switch works with numbers: its caller
/// tells it those that are there ([`Switch::set_mirror_port`](crate::Switch::set_mirror_port)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Names of the ports, within the switch.
    pub from: Vec<String>,
    /// Whether it gets what they send into the switch.
    pub entering: bool,
    /// Whether it gets what they receive from the switch.
    pub leaving: bool,
    /// Most copies in a second; 0 for any number.
    pub rate: u32,
}

/// Whether a port leads to a multicast router, as `mcast_router` of Linux's bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McastRouter {
    /// Never; queries that are heard there count for nothing.
    Off,
    /// While one is heard there.
    #[default]
    Auto,
    /// Always.
    On,
}

/// Groups that are learned on a port, if its settings do not say.
pub const MCAST_GROUPS: u32 = 512;

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
    /// Whether the port leads to a multicast router.
    pub mcast_router: McastRouter,
    /// A leave ends the membership at once: there is one host behind the port.
    pub mcast_fast_leave: bool,
    /// How many groups may be learned on the port, 0 for any number.
    pub mcast_max_groups: u32,
    /// Groups of which the port is a member in any case, in their VLANs.
    pub mcast_groups: Vec<(VlanId, GroupAddr)>,
    /// What the port may send, where it differs from the switch's other ports.
    pub security: PortSecurity,
    /// How many addresses may be learned on the port if neither its own settings nor the switch's
    /// say so.
    pub usual_max_macs: Option<u32>,
    /// What port security remembers from before the port was added.
    pub security_state: SecurityState,
    /// What happens to a frame that finds no room.
    pub on_full: OnFull,
    /// The worker that takes the port's frames, where several run the switch. `None`: any.
    pub worker: Option<u32>,
    /// Bytes of the virtio-net header in front of each of its frames: 0, 10 or 12. Between ports
    /// that have the same the header is passed on, others get zeros or none.
    pub vnet_header: u8,
    /// Frames that may wait in front of a guest's ring. The kind of the port sees to that.
    pub queue_frames: u32,
    /// What listings call what is behind the port.
    pub label: Option<String>,
    /// The user of the port: workers and the forwarding database give each user a share.
    pub user: u32,
    /// The part that the port has in chains of functions.
    pub role: Role,
    /// Whether the port is a mirror port, and of which ports.
    pub mirror: Option<Box<MirrorConfig>>,
    /// Whether the port accepts frames with a source address of zeros. The kind of the port decides
    /// that.
    pub zero_source: bool,
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
            mcast_router: McastRouter::default(),
            mcast_fast_leave: false,
            mcast_max_groups: MCAST_GROUPS,
            mcast_groups: Vec::new(),
            security: PortSecurity::default(),
            usual_max_macs: None,
            security_state: SecurityState::default(),
            on_full: OnFull::default(),
            worker: None,
            vnet_header: 0,
            queue_frames: 0,
            label: None,
            user: 0,
            role: Role::default(),
            mirror: None,
            zero_source: false,
            vacant: false,
        }
    }
}

impl PortConfig {
    /// The usual settings, for a port of this user.
    #[must_use]
    pub fn of_user(user: u32) -> Self {
        Self { user, ..Self::default() }
    }

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
    /// As a program of the switch's owner says.
    Program,
}

impl Forwarding {
    /// Every function.
    pub const ALL: [Self; 7] = [
        Self::Learning,
        Self::Hub,
        Self::Patch,
        Self::Static,
        Self::StaticFlood,
        Self::Chain,
        Self::Program,
    ];
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
    /// Reserved groups, 01:80:C2:00:00:00 to 0F, whose frames are forwarded: bit 0 for the first,
    /// as `group_fwd_mask` of a Linux bridge. PAUSE frames (bit 1) never are.
    pub group_fwd_mask: u16,
    /// Frames of a multicast group go to its members only. The forwarding function has to be one
    /// that looks addresses up.
    pub mcast_snooping: bool,
    /// The switch asks for members where no other querier does.
    pub mcast_querier: bool,
    /// What all ports may send, where a port's own settings do not say.
    pub security: PortSecurity,
    /// All workers run the switch; else one does.
    pub is_spread: bool,
}

/// Copies that floods make in a turn: two milliseconds or less. A turn ends when it has made them,
/// and a batch that may be flooded as a whole has no more frames than that leaves.
pub(crate) const COPIES: u32 = 32_768;

/// Largest capacity of a forwarding database: 32 MiB, for all stations of a large site.
pub const FDB_CAPACITY_MAX: usize = 1 << 20;

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            forwarding: Forwarding::default(),
            ageing_ms: 300_000,
            fdb_capacity: 65_536,
            group_fwd_mask: 0,
            mcast_snooping: false,
            mcast_querier: false,
            security: PortSecurity::default(),
            is_spread: false,
        }
    }
}
