//! Ports: made, changed, listed.

use std::collections::BTreeMap;

use packet::{MacAddr, VlanMode};
use serde::{Deserialize, Serialize};

use super::Mode;
use super::choices::{McastRouter, OnFull};
use super::host::{HostIf, HostIfInfo};
use super::machine::{Machine, MachineInfo};
use crate::kind::PortKind;
use crate::mdb::StaticGroup;
use crate::mirror::Mirror;
use crate::name::{PortName, SwitchName};
use crate::vxlan::{Vxlan, VxlanChange, VxlanInfo};
use crate::worker::PortWorker;

/// Most frames that may wait in front of a guest's ring.
pub const QUEUE_FRAMES_MAX: u32 = 4096;

/// Names a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRef {
    /// The port's name.
    pub port: PortName,
}

/// Makes a persistent port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PortAdd {
    /// The port's name.
    pub port: PortName,
    /// What is behind it.
    #[serde(default)]
    pub kind: PortKind,
    /// Settings; what is missing has its default.
    #[serde(default)]
    pub settings: PortSettings,
    /// For the kinds that have one: the network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostIf>,
    /// For a virtual machine: its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// For other hosts: the tunnel to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Vxlan>,
}

/// Changes a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSet {
    /// The port's name.
    pub port: PortName,
    /// Settings; what is missing keeps its value.
    pub settings: PortSettings,
    /// Changes of a tunnel's remotes and static entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Box<VxlanChange>>,
}

impl PortSet {
    /// Whether it changes nothing but the remotes that a routing daemon has found.
    #[must_use]
    pub fn is_of_a_routing_daemon(&self) -> bool {
        let Some(vxlan) = self.vxlan.as_deref() else { return false };
        let (add_extern_remote, del_extern_remote) = (Vec::new(), Vec::new());
        let rest = VxlanChange { add_extern_remote, del_extern_remote, ..vxlan.clone() };
        self.settings == PortSettings::default() && rest == VxlanChange::default()
    }
}

/// Most characters of a port's label.
pub const LABEL_MAX: usize = 64;

/// Settings of a port; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PortSettings {
    /// VLANs: `transparent[:VLAN]`, `access:VLAN` or `trunk:VLANS[,native=VLAN]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub vlan: Option<VlanMode>,
    /// The worker that takes its frames: `auto`, or the number of one. One of a file that the
    /// daemon does not have counts as `auto`; a request with such a number is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<PortWorker>,
    /// Exchanges frames only with ports that are not isolated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<bool>,
    /// Source addresses that arrive here are learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// Gets unicast frames to unknown addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unicast_flood: Option<bool>,
    /// Gets multicast frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_flood: Option<bool>,
    /// Gets broadcast frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast_flood: Option<bool>,
    /// Whether the port leads to a multicast router: `off`, `auto` or `on`. A `vxlan` port does
    /// unless set otherwise, others while a router is heard there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub mcast_router: Option<McastRouter>,
    /// A host that leaves a group was the only member behind the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcast_fast_leave: Option<bool>,
    /// Most multicast groups learnt here, at most [`crate::MCAST_GROUPS_MAX`]; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcast_max_groups: Option<u32>,
    /// All groups of which the port is a member in any case, as `239.1.1.1` or `239.1.1.1@10`, at
    /// most [`crate::STATIC_GROUPS_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<String>>))]
    pub mcast_groups: Option<Vec<StaticGroup>>,
    /// Most addresses learnt here; 0 for no limit. Like the seven settings below, a value that was
    /// never set is the switch's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_macs: Option<u32>,
    /// Source addresses that the port may send from: `off`, `first:N` or addresses with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_lock: Option<String>,
    /// Broadcast frames that the port may send in a second; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast_limit: Option<u32>,
    /// Multicast frames, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_limit: Option<u32>,
    /// Frames to unknown unicast addresses, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_unicast_limit: Option<u32>,
    /// BPDUs from the port and for it are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpdu_filter: Option<bool>,
    /// A BPDU disables the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpdu_guard: Option<bool>,
    /// A loop disables the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loop_protect: Option<bool>,
    /// What happens to a frame that finds no room: `drop` or `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// Bytes of the virtio-net header in front of each of its frames: 0, 10 or 12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vnet_header: Option<u8>,
    /// Frames that may wait in front of a guest's ring (`vhost-user`), at most
    /// [`QUEUE_FRAMES_MAX`]; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_frames: Option<u32>,
    /// The service that it is an instance of; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Which instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u16>,
    /// The chain that its frames enter; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// What an operator calls what is behind it, such as a container: at most [`LABEL_MAX`]
    /// printable characters; empty for none. It changes no frame's way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The ports whose frames it gets copies of: it is a mirror port. For permanent ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
    /// Numeric user that owns a persistent port. `owner`, `group` and `mode` say which of the users
    /// that the switch lets in may attach to the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Numeric group, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The users that may attach (`w`), as for a file: `0o660`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// A port in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PortInfo {
    /// The port's name.
    pub port: PortName,
    /// What is behind it.
    pub kind: PortKind,
    /// The port's number in its switch, while it carries frames: what a slot's destination means.
    pub number: Option<u16>,
    /// The number of the worker that takes its frames, while it carries some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Stays without a client.
    pub persistent: bool,
    /// Numeric user that made it, whose quota it counts against.
    pub creator: u32,
    /// The client that holds it.
    pub client: Option<ClientInfo>,
    /// What that counts itself, by name ([`FunctionNote`](super::FunctionNote)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// Bytes of shared memory; of a port in a trust group, what it has of that.
    pub memory: u64,
    /// Trust group whose region it lives in.
    pub trust_group: Option<String>,
    /// All settings, with the switch's where the port has none. A port that goes with its client
    /// has no owner, group and mode among them.
    pub settings: PortSettings,
    /// The setting that has disabled the port, `bpdu_guard` or `loop_protect`, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// The first addresses that the port has sent from, where `mac_lock` is `first:N`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub first_macs: Vec<MacAddr>,
    /// The network interface behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostIfInfo>>,
    /// The virtual machine behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Box<MachineInfo>>,
    /// The tunnel behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Box<VxlanInfo>>,
}

/// A client process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientInfo {
    /// Process number when it connected.
    pub pid: u32,
    /// Numeric user.
    pub uid: u32,
    /// What it said in [`Hello::client`](super::Hello::client).
    pub name: String,
}

/// Which ports to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortList {
    /// Only those of one switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchName>,
    /// Rows have only the labels of the settings, so that a page has several times as many ports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}
