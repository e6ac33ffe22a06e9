//! A port as the control plane knows it, and the client that holds it.

use std::collections::BTreeMap;

use protocol::name::PortName;
use protocol::{ClientInfo, HostIf, Machine, NewPorts, Peer, PortKind, PortStats, Vxlan};
use switch::PortConfig;

use super::Switch;
use super::shared::{Interface, Shared};
use crate::control::ports::refusal::PortRefusal;
use crate::model::groups::shown_group;
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey};
use crate::model::policy::{Grant, Permissions, Process};

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Key of the port at the workers; another one for each client.
    pub key: PortKey,
    /// The first of these keys, which tells the port from others of this name, before and after it.
    pub first_key: PortKey,
    /// What is behind it.
    pub kind: PortKind,
    /// For the end of a pipe: the pipe.
    pub pipe: Option<PipeKey>,
    /// Stays without a client.
    pub persistent: bool,
    /// The user that made it, and whose quota it counts against.
    pub owner: u32,
    /// The user or group that it was given to, if it stays.
    pub grant: Grant,
    /// How the switch treats it.
    pub config: PortConfig,
    /// The client that holds the port.
    pub holder: Option<Holder>,
    /// For a port that netmap programs have bound.
    pub bound: Option<Shared>,
    /// For a port that has a name of its own.
    pub interface: Option<Interface>,
    /// For a port that is joined to one of another switch: which. Of an interface in two switches
    /// the port where it was first is the interface, and the other is not.
    pub cable: Option<PortName>,
    /// For a port with a network interface of the host: which.
    pub host: Option<Box<HostIf>>,
    /// For the port of a machine: its socket.
    pub machine: Option<Box<Machine>>,
    /// For the port of a tunnel: which.
    pub vxlan: Option<Box<Vxlan>>,
    /// What was counted for clients that have left; kept by ports that stay.
    pub past: Option<Box<PortStats>>,
}

/// The client that holds a port, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Connection of the client.
    pub conn: ConnKey,
    /// PID of the client, for messages.
    pub pid: u32,
    /// The client's process.
    pub process: Process,
    /// Thread ID that the client gave.
    pub thread: Option<u32>,
    /// User of the client.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
    /// Bytes of shared memory, in a trust group of its region.
    pub memory: u64,
    /// No other process may have an instance of its service.
    pub alone: bool,
    /// The client has its port; before, the port is reserved for it and being built.
    pub ready: bool,
    /// The trust group.
    pub group: Option<GroupKey>,
    /// What its function has counted, as it said last.
    pub counts: BTreeMap<String, u64>,
    /// What grows and shrinks there.
    pub gauges: BTreeMap<String, u64>,
}

impl Holder {
    /// The name of its trust group; whose it is, if not its own user's.
    #[must_use]
    pub fn shown_group(&self) -> Option<String> {
        self.group.as_ref().map(|group| shown_group(group, self.uid))
    }
}

impl Port {
    /// An ephemeral port without a holder: it goes with its client.
    #[must_use]
    pub fn new(key: PortKey, kind: PortKind, owner: u32) -> Self {
        Self {
            key,
            first_key: key,
            kind,
            pipe: None,
            persistent: false,
            owner,
            grant: Grant::default(),
            config: PortConfig::of_user(owner),
            holder: None,
            bound: None,
            interface: None,
            cable: None,
            host: None,
            machine: None,
            vxlan: None,
            past: None,
        }
    }

    /// A persistent port without a holder.
    #[must_use]
    pub fn persistent(key: PortKey, kind: PortKind, owner: u32, config: PortConfig) -> Self {
        Self { persistent: true, config, ..Self::new(key, kind, owner) }
    }

    /// The user whose clients hold it.
    #[must_use]
    pub fn holding_user(&self) -> Option<u32> {
        let bound = self.bound.as_ref().map(|bound| bound.uid);
        self.holder.as_ref().map(|holder| holder.uid).or(bound)
    }

    /// The user that answers for what is at its other end: a client, or a VMM.
    #[must_use]
    pub fn peer_user(&self) -> Option<u32> {
        self.holding_user().or(self.kind.is_machine().then_some(self.owner))
    }

    /// Whether its key means something to the workers: it is live, or reserved.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let reserved = self.kind == PortKind::Shm && self.holder.is_some();
        self.is_live() || reserved || self.bound.is_some()
    }

    /// Whether others may see it: not while it is made for a client that waits for it, for they
    /// would take it to be there.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.persistent || self.is_bound() || self.holder.as_ref().is_some_and(|h| h.ready)
    }

    /// The users that may attach to a permanent port. A function sees the frames of all users, so
    /// by default only the switch's owner may attach to an instance of a service.
    #[must_use]
    pub fn permissions(&self, switch: &Switch) -> Permissions {
        let new_ports = match self.config.role.service {
            Some(_) => NewPorts::Owner,
            None => switch.new_ports,
        };
        self.grant.permissions(self.owner, &switch.permissions, new_ports)
    }

    /// Whether a client runs a function at this port.
    #[must_use]
    pub fn has_function(&self) -> bool {
        self.config.role.service.is_some() && self.is_live()
    }

    /// Whether a worker knows the port: it has counters and addresses.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.kind.peer() {
            Peer::Client => {
                let held = self.holder.as_ref().is_some_and(|holder| holder.ready);
                held || self.is_bound() || self.cable.is_some()
            }
            Peer::Sink | Peer::Interface(_) | Peer::Machine | Peer::Hosts => true,
            Peer::Pipe => self.is_bound(),
        }
    }

    /// The client that holds the port; of several, the one that came first.
    #[must_use]
    pub fn client(&self) -> Option<ClientInfo> {
        let holder = self.holder.as_ref().filter(|holder| holder.ready);
        let of_holder = |h: &Holder| ClientInfo { pid: h.pid, uid: h.uid, name: h.name.clone() };
        let binder = || {
            let (shared, first) =
                self.bound.as_ref().and_then(|it| Some((it, it.holders.first()?)))?;
            Some(ClientInfo { pid: first.pid, uid: shared.uid, name: first.name.clone() })
        };
        holder.map(of_holder).or_else(binder)
    }

    /// Refuses the end of a pipe whose two clients exchange frames without a switch. The pipes of
    /// netmap programs pass one.
    pub fn check_switched(&self, name: &PortName) -> Result<(), PortRefusal> {
        let is_direct = self.kind == PortKind::Pipe && self.bound.is_none();
        if is_direct { Err(PortRefusal::PipeFrames(name.clone())) } else { Ok(()) }
    }

    /// Whether netmap programs have the port open.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound.as_ref().is_some_and(|shared| shared.ready)
    }
}
