//! Plans: switches, ports and trust groups to make, and the quotas of a user.
//!
//! The configuration and the stored records are read into plans, and `control` makes what they say.

use std::collections::BTreeSet;

use port::machine::quota::Limits;
use protocol::name::{PortName, SwitchName};
use protocol::{
    ChainSpec, HostIf, Machine, Mode, NewPorts, PortKind, ProgramSpec, RuleSpec, StaticAddress,
    Vxlan,
};
use serde::{Deserialize, Serialize};
use switch::{PortConfig, SwitchConfig};

use super::policy::Grant;

/// What one user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Ports, pipe ends included.
    pub ports: u32,
    /// Bytes of shared memory.
    pub memory: u64,
    /// Switches.
    pub switches: u32,
    /// Addresses that the forwarding databases of these switches may hold, all together.
    pub addresses: u32,
    /// Rules and chains of these switches, all together.
    pub rules: u32,
    /// Static addresses of these switches, all together.
    pub static_addresses: u32,
    /// Control connections, one for each client process.
    pub connections: u32,
    /// What the machines behind these ports may take.
    pub machines: Limits,
}

/// A trust group that is for several users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// The owner of the group and the users that may join it. A group without an owner is the
    /// daemon's user's.
    pub grant: Grant,
    /// Bytes of the group's region; `None` for the default.
    pub memory: Option<u64>,
}

/// A switch to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Name of the switch.
    pub name: SwitchName,
    /// How it forwards.
    pub config: SwitchConfig,
    /// Stays without ports.
    pub persistent: bool,
    /// Owner; `None` for the daemon's user.
    pub owner: Option<u32>,
    /// Group; `None` for the daemon's group.
    pub group: Option<u32>,
    /// Permissions.
    pub mode: Option<Mode>,
    /// The users that may create ports by attaching.
    pub new_ports: NewPorts,
    /// Persistent ports of the switch.
    pub ports: Vec<PortPlan>,
    /// Chains of the switch.
    pub chains: Vec<ChainSpec>,
    /// Rules of the switch.
    pub rules: Vec<RuleSpec>,
    /// The forwarding program of the switch.
    pub program: Option<ProgramSpec>,
}

/// A persistent port to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Name of the port.
    pub name: PortName,
    /// What is behind it.
    pub kind: PortKind,
    /// How the switch treats it.
    pub config: PortConfig,
    /// Network interface of the port, if its kind has one.
    pub host: Option<HostIf>,
    /// Socket of the port, if a virtual machine is behind it.
    pub machine: Option<Machine>,
    /// Tunnel of the port, if other hosts are behind it.
    pub vxlan: Option<Vxlan>,
    /// Rings of a virtual interface, which only a command makes.
    pub interface: Option<InterfaceText>,
    /// Static addresses of the port.
    pub stations: BTreeSet<StaticAddress>,
    /// The user that made it; `None` for the owner of the switch.
    pub owner: Option<u32>,
    /// Owner, group and mode that an operator has set.
    pub grant: Grant,
}

/// What a persistent port is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A plan, when the daemon starts. What the port cannot have now, it may have later.
    Plan,
    /// A call, which is refused if the port cannot have what it needs.
    Call,
}

/// What a virtual interface is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceText {
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// The group of the switch in which it is alone.
    pub group: u32,
}
