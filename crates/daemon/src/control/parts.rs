//! The parts of [`Control`](super::Control) beside the state and the datapath.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Instant;

use port::host::TapQueues;
use protocol::name::PortName;
use protocol::{Mode, RunBy};

use super::deferred::{Deferred, Opened};
use super::machines;
use super::workers::Stalls;
use crate::control::groups::declared::Declared;
use crate::control::ports::attach::Building;
use crate::control::switches::multipart::PartialPlan;
use crate::model::keys::{ConnKey, PortKey};
use crate::model::specs::RingSpec;

/// What the configuration says of switches, ports and groups whose makers do not say.
#[derive(Debug)]
pub(super) struct Defaults {
    /// Directory of the sockets of virtual machines.
    pub(super) dir: PathBuf,
    /// Rings of a port.
    pub(super) rings: RingSpec,
    /// Bytes of a trust group's region.
    pub(super) new_group: u64,
    /// Trust groups that the configuration declares.
    pub(super) declared: Declared,
    /// Mode of a switch.
    pub(super) switch_mode: Mode,
    /// Workers of a switch that comes with its first port.
    pub(super) switch_workers: RunBy,
    /// Addresses that are learned on a port of an ordinary user.
    pub(super) max_macs: u32,
    /// When the daemon started.
    pub(super) started: Instant,
}

/// Requests that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Connections that wait for the memory of a port.
    pub(super) building: HashMap<ConnKey, Building>,
    /// Requests that wait until a network interface is opened or closed.
    pub(super) deferred: HashMap<ConnKey, Deferred>,
    /// Network interfaces that another thread opened for the request in hand.
    pub(super) opened: Vec<Opened>,
    /// Descriptors that came with the request in hand.
    pub(super) given: Option<TapQueues>,
    /// Chains and rules whose last part has not come yet.
    pub(super) drafts: HashMap<ConnKey, PartialPlan>,
    /// The next daemon has asked for ports of clients.
    pub(super) ports_are_handed: bool,
    /// The connection of the port that is being handed over.
    pub(super) handed: Option<ConnKey>,
    /// The process of the next daemon, which has asked for the end of this one.
    pub(super) successor: Option<u32>,
}

/// What control remembers of some ports beside the state.
#[derive(Debug)]
pub(super) struct PortNotes {
    /// Ports whose interface ended with the daemon before this one.
    pub(super) forgotten: BTreeSet<PortName>,
    /// The port of the system's interface, by the port that a netmap program has bound to it.
    pub(super) uplinks: HashMap<PortKey, PortKey>,
    /// Ports that a client asked to poll.
    pub(super) polled: BTreeSet<PortKey>,
    /// The next functions of which functions that share a thread were told.
    pub(super) followers: BTreeMap<PortKey, Vec<protocol::NextFunction>>,
    /// What the virtual machines of each user use of their quota.
    pub(super) allowances: machines::Allowances,
    /// Mirror ports.
    pub(super) mirrors: BTreeSet<PortName>,
    /// The connection of the routing daemon of a tunnel, and its process and user.
    pub(super) routing: BTreeMap<PortName, (ConnKey, u32, u32)>,
    /// How often ports have held up their workers.
    pub(super) stalls: Stalls,
}
