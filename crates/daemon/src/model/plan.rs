//! Plans: switches, ports and trust groups to make, and the quotas of a user.
//!
//! The configuration and the stored records are read into plans, and `control` makes what they say.

use std::collections::BTreeSet;

use port::machine::quota::Limits;
use protocol::name::{PortName, SwitchName};
use protocol::{ChainSpec, HostIf, Machine, Mode, NewPorts, PortKind, RuleSpec};
use serde::{Deserialize, Serialize};
use switch::{PortConfig, SwitchConfig};

use super::address::StaticAddress;
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
    /// Control connections, one for each client process.
    pub connections: u32,
    /// What the machines behind these ports may take.
    pub machines: Limits,
}

/// A trust group that is for several users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Whose it is, and who may be in it; its owner is the daemon's user where nobody is named.
    pub grant: Grant,
    /// Bytes of its region; `None` for as many as others have.
    pub memory: Option<u64>,
}

/// A switch to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Its name.
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
    /// Who may make ports of it by opening them.
    pub new_ports: NewPorts,
    /// Its persistent ports.
    pub ports: Vec<PortPlan>,
    /// Its chains.
    pub chains: Vec<ChainSpec>,
    /// Its rules.
    pub rules: Vec<RuleSpec>,
}

/// A persistent port to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Its name.
    pub name: PortName,
    /// What is behind it.
    pub kind: PortKind,
    /// How the switch treats it.
    pub config: PortConfig,
    /// Its network interface, if its kind has one.
    pub host: Option<HostIf>,
    /// Its socket, if it is a machine's.
    pub machine: Option<Machine>,
    /// For a virtual interface; those are made by command.
    pub interface: Option<InterfaceText>,
    /// Its static addresses.
    pub stations: BTreeSet<StaticAddress>,
    /// The user who made it; `None` for the owner of the switch.
    pub owner: Option<u32>,
    /// To whom it is given.
    pub grant: Grant,
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
