//! What exists and which connections hold it: switches, ports, quotas. Pure: no descriptor, no
//! thread, no clock.
//!
//! # Life of a port
//!
//! ```text
//!            attach, name unknown                 detach, connection closed, port del
//!  (none) ─────────────────────────► ephemeral ──────────────────────────────────────► (none)
//!     │                               held
//!     │ port add, configuration                attach
//!     └──────────────────────► persistent ─────────────► persistent ──┐
//!                                 free    ◄───────────── held         │ port del
//!                                  │       detach, connection closed  │
//!                                  └───────────── port del ───────────┴──────────────► (none)
//! ```
//!
//! A switch is made by command and stays until it is deleted, or it comes with its first port and
//! goes with its last. Each end of a pipe is an ephemeral port; the pipe itself lives as long as
//! one of its ends.
//!
//! # Two steps
//!
//! Everything that needs memory or descriptors happens between a check ([`State::check`]), which
//! changes nothing, and an entry ([`State::hold`]), which cannot fail. So a refusal of the workers
//! leaves nothing half-made here.
//!
//! The usage of a user is counted from the entries each time; there are no counters that could
//! disagree with them. An `index` says where to look: what each connection holds, and which
//! switches and ports each user has.

mod bound;
pub mod departures;
pub mod groups;
pub mod index;
pub mod leases;
mod port;
pub mod regions;
pub mod service;
pub mod shared;
pub mod touched;
pub mod unswitched;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use ::port::queue::QueueMemory;
use protocol::name::{PortName, SwitchName};
use protocol::{NewPorts, Peer, ProgramSpec, SwitchSettings, UserUsage, check};
use switch::SwitchConfig;
use switch::chain;

use super::interfaces::refusal::InterfaceRefusal;
use super::ports::refusal::PortRefusal;
use super::refusal::{AccessRefusal, QuotaRefusal, Refusal};
use super::shares::{PORT, Shares};
use super::switches::refusal::SwitchRefusal;
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::plan::Quota;
use crate::model::policy::{Access, Caller, Permissions};
use crate::model::programs::LoadedProgram;
use crate::model::settings::new_switch;
use crate::model::steering::Steering;
use departures::{Departures, Left};
use groups::{Charge, GroupWish};
use index::{Index, visited};
use leases::Leases;
pub use port::{Holder, Port};
use regions::{charges, regions_of};
use shared::Binder;
use touched::Touched;
use unswitched::UnswitchedPort;

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Key of the switch at the workers.
    pub key: SwitchKey,
    /// Stays without ports.
    pub persistent: bool,
    /// Owner, group and mode.
    pub permissions: Permissions,
    /// The users that may create ports by attaching.
    pub new_ports: NewPorts,
    /// How it forwards.
    pub config: SwitchConfig,
    /// Chains and rules of the switch.
    pub steering: Steering,
    /// The forwarding program of the switch.
    pub program: Option<LoadedProgram>,
    /// A saved program that this daemon refuses.
    pub refused_program: Option<ProgramSpec>,
    /// The plan of chains and rules that the switch's worker has.
    pub planner: Option<chain::Planner>,
    /// What the worker had counted of chains and rules when a client began to list them.
    pub listed: Option<Arc<chain::Report>>,
}

/// Everything that control knows to exist.
#[derive(Debug)]
pub struct State {
    switches: BTreeMap<SwitchName, Switch>,
    ports: BTreeMap<PortName, Port>,
    /// The names of held ports by their holders' connections.
    held: BTreeMap<ConnKey, BTreeSet<PortName>>,
    /// Null ports and monitors, by connection.
    unswitched: BTreeMap<ConnKey, UnswitchedPort>,
    index: Index,
    leases: Leases,
    /// The charges for trust groups.
    groups: BTreeMap<GroupKey, Charge>,
    /// Ports that went a short time ago.
    pub departures: Departures,
    quota: Quota,
    shares: Shares,
    next_key: u32,
    /// While clients listen to events.
    touched: Option<Touched>,
}

/// A request to attach.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// The port.
    pub port: &'a PortName,
    /// Bytes of shared memory that it costs, if it is in no region that is paid for as a whole.
    pub memory: u64,
    /// The trust group that it is to be in.
    pub group: Option<&'a GroupWish>,
    /// Whether the port must exist already.
    pub existing: bool,
    /// Whether no other process may have an instance of its service.
    pub alone: bool,
}

/// A port that was removed, for the workers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// The port's key, unless no worker knew the port (a free one, the end of a pipe).
    pub port: Option<PortKey>,
    /// The user of its clients or its VMM.
    pub user: Option<u32>,
    /// The pipe, if this was its last end.
    pub pipe: Option<PipeKey>,
    /// The switch that connected the ends of a bound pipe, likewise.
    pub patch: Option<SwitchKey>,
    /// The switch, if this was its last port.
    pub switch: Option<SwitchKey>,
    /// The region of an interface.
    pub region: Option<u16>,
    /// What is told of it for a while, if a worker knew it.
    pub left: Option<Left>,
}

/// The resources of a user.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    ports: u64,
    memory: u64,
}

impl State {
    /// Nothing yet.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self {
            switches: BTreeMap::new(),
            ports: BTreeMap::new(),
            held: BTreeMap::new(),
            unswitched: BTreeMap::new(),
            index: Index::default(),
            leases: Leases::default(),
            groups: BTreeMap::new(),
            departures: Departures::default(),
            quota,
            shares: Shares::UNLIMITED,
            next_key: 1,
            touched: None,
        }
    }

    /// A key that was never used.
    pub fn new_key(&mut self) -> u32 {
        let key = self.next_key;
        self.next_key = key.checked_add(1).expect("four thousand million ports in one life");
        key
    }

    /// Enters a switch that the workers have made.
    pub fn add_switch(&mut self, name: SwitchName, switch: Switch) {
        self.touch_switch(&name);
        let before = self.switches.insert(name, switch);
        assert!(before.is_none(), "a switch is entered once");
    }

    /// Enters a persistent port without a holder.
    pub fn add_port(&mut self, name: PortName, port: Port) {
        assert!(port.persistent && port.holder.is_none());
        self.touch_port(&name);
        self.index.enter(&name, &port);
        let before = self.ports.insert(name, port);
        assert!(before.is_none(), "a port is entered once");
    }

    /// Enters a port that the workers have reserved for netmap programs.
    pub fn add_bound(&mut self, name: &PortName, new: Port) {
        assert!(new.bound.is_some());
        self.touch_port(name);
        let port = match self.ports.remove(name) {
            Some(port) => {
                assert!(!port.is_live(), "a port is made once");
                self.index.leave(name, &port);
                Port { key: new.key, bound: new.bound, ..port }
            }
            None => new,
        };
        self.index.enter(name, &port);
        self.ports.insert(name.clone(), port);
    }

    /// Enters a connection that has bound a port.
    pub fn add_binder(&mut self, name: &PortName, binder: Binder) {
        self.touch_port(name);
        let port = self.ports.get_mut(name).expect("only a known port is bound");
        port.bound.as_mut().expect("it is bound").holders.push(binder);
        self.index.enter(name, port);
    }

    /// Takes a bound port back from a connection; returns its key.
    pub fn remove_binder(&mut self, name: &PortName, conn: ConnKey) -> PortKey {
        self.touch_port(name);
        let port = self.ports.get_mut(name).expect("it is bound");
        self.index.leave(name, port);
        let shared = port.bound.as_mut().expect("it is bound");
        shared.holders.retain(|holder| holder.conn != conn);
        self.index.enter(name, port);
        port.key
    }

    /// Enters the holder of a port that [`State::check`] found free, making the port if need be.
    pub fn hold(&mut self, name: &PortName, new: Port) {
        let conn = new.holder.as_ref().expect("a holder comes with the port").conn;
        self.touch_port(name);
        self.held.entry(conn).or_default().insert(name.clone());
        let port = match self.ports.remove(name) {
            Some(port) => {
                assert!(port.holder.is_none(), "a port has one holder");
                self.index.leave(name, &port);
                Port { key: new.key, holder: new.holder, ..port }
            }
            None => new,
        };
        self.index.enter(name, &port);
        self.ports.insert(name.clone(), port);
    }

    /// Takes a port back from its holder; an ephemeral one goes away.
    pub fn release(&mut self, name: &PortName) -> Gone {
        self.touch_port(name);
        let port = self.ports.get_mut(name).expect("only a known port is released");
        if !port.persistent {
            return self.remove_port(name);
        }
        self.index.leave(name, port);
        let user = port.peer_user();
        let (key, holder, bound) = (port.key, port.holder.take(), port.bound.take());
        let cable = port.cable.take();
        self.index.enter(name, port);
        self.note_left(name, holder.as_ref());
        self.note_regions_left(bound.iter().map(|shared| &shared.region));
        self.forget_held(name, holder.as_ref());
        let held = holder.is_some() || bound.is_some() || cable.is_some();
        Gone { port: held.then_some(key), user, ..Gone::default() }
    }

    /// Removes a port, held or not.
    pub fn remove_port(&mut self, name: &PortName) -> Gone {
        self.touch_port(name);
        let port = self.ports.remove(name).expect("only a known port is removed");
        self.index.leave(name, &port);
        self.note_left(name, port.holder.as_ref());
        self.note_regions_left(regions_of(&port));
        self.forget_held(name, port.holder.as_ref());
        self.transfer_cost(name, &port);
        let peer = name.peer().and_then(|peer| self.ports.get(&peer));
        let (last_end, last_bound) = (peer.is_none(), peer.is_none_or(|peer| peer.bound.is_none()));
        let switch = self.switches.get(name.switch()).filter(|_| port.is_live());
        let (owner, past) = (port.owner, port.past.clone());
        let left = switch.map(|switch| Left { owner, switch: switch.permissions, past });
        Gone {
            left,
            port: port.is_known().then_some(port.key),
            user: port.peer_user(),
            pipe: port.pipe.filter(|_| last_end),
            patch: port.bound.and_then(|shared| shared.patch).filter(|_| last_bound),
            switch: self.forget_switch(name.switch()),
            region: port.interface.map(|interface| interface.region.mem_id),
        }
    }

    /// Moves a port without pipes to another switch, which exists; netmap programs that hold the
    /// port go with it. Returns the switch that it left, if it was its last port.
    pub fn move_port(&mut self, from: &PortName, to: PortName) -> Option<SwitchKey> {
        [from, &to].into_iter().for_each(|name| self.touch_port(name));
        let mut port = self.ports.remove(from).expect("only a known port is moved");
        assert!(port.holder.is_none() && port.cable.is_none(), "clients know it by this name");
        port.past = None;
        self.index.leave(from, &port);
        self.index.enter(&to, &port);
        let before = self.ports.insert(to, port);
        assert!(before.is_none(), "a port is entered once");
        self.forget_switch(from.switch())
    }

    /// Joins a port to one of another switch: workers know it by this key now.
    pub fn join_port(&mut self, name: &PortName, key: PortKey, other: PortName) {
        self.touch_port(name);
        let port = self.ports.get_mut(name).expect("only a known port is joined");
        self.index.leave(name, port);
        (port.key, port.cable) = (key, Some(other));
        self.index.enter(name, port);
    }

    /// A port is not held any more.
    fn forget_held(&mut self, name: &PortName, holder: Option<&Holder>) {
        let Some(Holder { conn, .. }) = holder else { return };
        let names = self.held.get_mut(conn).expect("the holder of a port is listed");
        assert!(names.remove(name), "each held port is listed");
        if names.is_empty() {
            self.held.remove(conn);
        }
    }

    /// Charges the memory of a pipe to its other end when one end goes.
    fn transfer_cost(&mut self, name: &PortName, port: &Port) {
        let peer = name.peer().and_then(|peer| self.ports.get_mut(&peer));
        if let (Some(left), Some(heir)) = (&port.holder, peer.and_then(|p| p.holder.as_mut())) {
            heir.memory += left.memory;
        }
    }

    /// Removes a switch that came with its ports, once there are none; also after an attach that
    /// failed.
    pub fn forget_switch(&mut self, name: &SwitchName) -> Option<SwitchKey> {
        let switch = self.switches.get(name)?;
        if switch.persistent || self.ports_of(name).next().is_some() {
            return None;
        }
        self.remove_switch(name)
    }

    /// Removes a switch without ports.
    pub fn remove_switch(&mut self, name: &SwitchName) -> Option<SwitchKey> {
        assert!(self.ports_of(name).next().is_none(), "its ports go first");
        self.touch_switch(name);
        self.switches.remove(name).map(|switch| switch.key)
    }

    /// A switch, to change it.
    pub fn switch_mut(&mut self, name: &SwitchName) -> Option<&mut Switch> {
        self.touch_switch(name);
        self.switches.get_mut(name)
    }

    /// A port, to change it.
    pub fn port_mut(&mut self, name: &PortName) -> Option<&mut Port> {
        self.touch_port(name);
        self.ports.get_mut(name)
    }
}

impl State {
    /// The switch of this name, if the caller may do that with it.
    pub fn switch(
        &self,
        caller: &Caller,
        name: &SwitchName,
        access: Access,
    ) -> Result<&Switch, Refusal> {
        let switch = self.switches.get(name).ok_or_else(|| SwitchRefusal::Missing(name.clone()))?;
        if switch.permissions.allow(caller, access) {
            return Ok(switch);
        }
        let Permissions { owner, mode, .. } = switch.permissions;
        Err(AccessRefusal::Switch { switch: name.clone(), owner, mode, access }.into())
    }

    /// The port of this name, if the caller may do that with its switch.
    pub fn port(&self, caller: &Caller, name: &PortName, access: Access) -> Result<&Port, Refusal> {
        let port = self.ports.get(name).filter(|port| access != Access::Look || port.is_listed());
        let port = port.ok_or_else(|| PortRefusal::Missing(name.clone()))?;
        self.switch(caller, name.switch(), access)?;
        Ok(port)
    }

    /// The switch of this name, without a check of permissions.
    #[must_use]
    pub fn find_switch(&self, name: &SwitchName) -> Option<&Switch> {
        self.switches.get(name)
    }

    /// The port of this name, without a check of permissions.
    #[must_use]
    pub fn find_port(&self, name: &PortName) -> Option<&Port> {
        self.ports.get(name)
    }

    /// Whether there is a switch of this name.
    #[must_use]
    pub fn has_switch(&self, name: &SwitchName) -> bool {
        self.switches.contains_key(name)
    }

    /// All switches from a name on.
    pub fn switches_from(&self, from: &str) -> impl Iterator<Item = (&SwitchName, &Switch)> {
        self.switches.iter().filter(move |(name, _)| name.as_str() >= from)
    }

    /// The switches that a user owns.
    pub fn switches_of(&self, uid: u32) -> impl Iterator<Item = (&SwitchName, &Switch)> {
        self.switches.iter().filter(move |(_, switch)| switch.permissions.owner == uid)
    }

    /// All ports in the order of their names.
    pub fn ports(&self) -> impl Iterator<Item = (&PortName, &Port)> {
        self.ports.iter().inspect(|_| visited())
    }

    /// The ports from a name on, or all, in the order of their names.
    pub fn ports_from(&self, from: Option<PortName>) -> impl Iterator<Item = (&PortName, &Port)> {
        let first = from.map_or(Bound::Unbounded, Bound::Included);
        self.ports.range((first, Bound::Unbounded)).inspect(|_| visited())
    }

    /// The ports of a switch.
    pub fn ports_of<'a>(
        &'a self,
        name: &'a SwitchName,
    ) -> impl Iterator<Item = (&'a PortName, &'a Port)> {
        self.ports
            .range(PortName::first_of(name)..)
            .take_while(move |(port, _)| port.switch() == name)
    }

    /// The ports that a connection holds.
    #[must_use]
    pub fn held_by(&self, conn: ConnKey) -> Vec<PortName> {
        self.held.get(&conn).into_iter().flatten().cloned().collect()
    }

    /// How many switches and ports there are.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.switches.len(), self.ports.len())
    }

    /// Whether the caller may attach this now. Changes nothing.
    pub fn check(&self, caller: &Caller, wish: &Wish<'_>) -> Result<(), Refusal> {
        let new_port = self.check_port(caller, wish)?;
        self.check_company(caller, wish)?;
        self.check_service(wish.port, caller.process, wish.alone)?;
        if new_port {
            self.check_number(caller)?;
        }
        match wish.group {
            None => self.check_memory(caller.uid, wish.memory),
            Some(group) => self.check_group(caller.uid, group),
        }
    }

    /// Whether the caller may have one more port.
    pub fn check_number(&self, caller: &Caller) -> Result<(), Refusal> {
        let have = self.usage(caller.uid).ports;
        Ok(self.shares.admit(caller, PORT, have, self.quota.ports)?)
    }

    /// From now on users have shares of the descriptors.
    pub fn share(&mut self, shares: Shares) {
        self.shares = shares;
    }

    /// Whether the caller may create one more switch, for this many addresses.
    pub fn check_switch(&self, caller: &Caller, fdb_capacity: usize) -> Result<(), Refusal> {
        let have = self.switches_of(caller.uid).count();
        let (limit, have) = (self.quota.switches.into(), have as u64);
        QuotaRefusal::count(caller.uid, "switches", have, limit)?;
        self.check_addresses(caller.uid, fdb_capacity)
    }

    /// Whether the switches of a user may hold this many addresses more.
    pub fn check_addresses(&self, uid: u32, more: usize) -> Result<(), Refusal> {
        let have: usize = self.switches_of(uid).map(|(_, it)| it.config.fdb_capacity).sum();
        let limit = self.quota.addresses;
        if more == 0 || have + more <= limit as usize {
            return Ok(());
        }
        let (asked, have, limit) = (more as u64, have as u64, u64::from(limit));
        Err(QuotaRefusal::Addresses { uid, asked, have, limit }.into())
    }

    /// Whether the switches of a user may have this many rules and chains more.
    pub fn check_rules(&self, uid: u32, more: usize) -> Result<(), Refusal> {
        let (asked, have, limit) = (more as u64, self.rules_of(uid), u64::from(self.quota.rules));
        if more == 0 || have + asked <= limit {
            return Ok(());
        }
        Err(QuotaRefusal::Rules { uid, asked, have, limit }.into())
    }

    /// Whether a user that has this many static addresses may have one more.
    pub fn check_static_address(&self, uid: u32, have: u64) -> Result<(), Refusal> {
        let limit = self.quota.static_addresses.into();
        Ok(QuotaRefusal::count(uid, "static_addresses", have, limit)?)
    }

    /// The rules and chains of all switches of a user.
    fn rules_of(&self, uid: u32) -> u64 {
        self.switches_of(uid).map(|(_, switch)| switch.steering.size() as u64).sum()
    }

    /// Whether the caller may add one more persistent port.
    pub fn check_persistent(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        self.check_place(caller, name)?;
        self.check_number(caller)
    }

    /// Whether the caller may put a persistent port there.
    pub fn check_place(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        if name.pipe().is_some() {
            return Err(PortRefusal::PipePersistent(name.clone()).into());
        }
        if self.has_switch(name.switch()) {
            self.switch(caller, name.switch(), Access::Manage)?;
        } else {
            self.check_switch(caller, new_switch(name.switch()).fdb_capacity)?;
        }
        if self.ports.contains_key(name) {
            return Err(PortRefusal::Exists(name.clone()).into());
        }
        Ok(())
    }

    /// Checks that the name is free for the caller; true if the port does not exist yet.
    fn check_port(&self, caller: &Caller, wish: &Wish<'_>) -> Result<bool, Refusal> {
        if self.has_switch(wish.port.switch()) {
            self.may_attach(caller, wish.port)?;
        } else if wish.existing {
            return Err(PortRefusal::Missing(wish.port.clone()).into());
        } else {
            self.check_switch(caller, new_switch(wish.port.switch()).fdb_capacity)?;
        }
        match self.ports.get(wish.port) {
            None if wish.existing => Err(PortRefusal::Missing(wish.port.clone()).into()),
            None if wish.port.is_host_side() && !wish.port.is_interface() => {
                Err(PortRefusal::Missing(wish.port.clone()).into())
            }
            None => Ok(true),
            Some(port) if !matches!(port.kind.peer(), Peer::Client | Peer::Pipe) => {
                Err(PortRefusal::NotAttachable(wish.port.clone()).into())
            }
            Some(Port { holder: Some(holder), .. }) => Err(PortRefusal::InUse {
                port: wish.port.clone(),
                pid: holder.pid,
                uid: holder.uid,
            }
            .into()),
            Some(Port { cable: Some(_), .. }) => self.check_alone(wish.port).map(|()| false),
            Some(Port { bound: Some(shared), .. }) => {
                let pid = shared.holders.first().map_or(0, |holder| holder.pid);
                Err(PortRefusal::InUse { port: wish.port.clone(), pid, uid: shared.uid }.into())
            }
            Some(_) => Ok(false),
        }
    }

    /// Checks that an interface is in one switch at most.
    pub fn check_alone(&self, name: &PortName) -> Result<(), Refusal> {
        match self.ports.get(name) {
            Some(Port { cable: Some(second), interface: Some(_), .. }) => {
                Err(InterfaceRefusal::InTwoSwitches(second.clone()).into())
            }
            Some(Port { cable: Some(_), .. }) => {
                Err(InterfaceRefusal::InTwoSwitches(name.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the caller may attach to a port of an existing switch. Switch and port must both
    /// admit the caller; if the port does not exist, the caller must be allowed to create ports. A
    /// pipe counts as its parent.
    pub fn may_attach(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        let switch = self.switch(caller, name.switch(), Access::Attach)?;
        if switch.permissions.allow(caller, Access::Manage) {
            return Ok(());
        }
        match self.ports.get(&name.parent()) {
            Some(port) if port.persistent => {
                let permissions = port.permissions(switch);
                let Permissions { owner, mode, .. } = permissions;
                let denied =
                    || Refusal::from(AccessRefusal::Port { port: name.parent(), owner, mode });
                permissions.allow(caller, Access::Attach).then_some(()).ok_or_else(denied)
            }
            Some(port) if port.owner == caller.uid => Ok(()),
            _ if switch.new_ports == NewPorts::Any => Ok(()),
            _ => {
                let owner = switch.permissions.owner;
                Err(AccessRefusal::NewPort { port: name.clone(), owner }.into())
            }
        }
    }

    /// Checks that the other end of the pipe is a process of the same user. Trust groups need no
    /// check, because each user has names of their own for them.
    fn check_company(&self, caller: &Caller, wish: &Wish<'_>) -> Result<(), Refusal> {
        let peer = wish.port.peer().and_then(|peer| self.ports.get(&peer));
        match peer.and_then(|port| port.holder.as_ref()) {
            Some(holder) if holder.uid != caller.uid => {
                Err(AccessRefusal::SharedMemory { what: "this pipe".to_owned(), owner: holder.uid }
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// The memory that a user is charged for.
    #[cfg(test)]
    pub fn memory_of(&self, uid: u32) -> u64 {
        self.usage(uid).memory
    }

    /// From now on each user may have so much.
    #[cfg(test)]
    pub fn set_memory_quota(&mut self, memory: u64) {
        self.quota.memory = memory;
    }

    /// The users that have switches, ports or memory; some of them more than once.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        let switches = self.switches.values().map(|switch| switch.permissions.owner);
        let groups = self.groups.values().map(|charge| charge.uid);
        switches.chain(groups).chain(self.index.users())
    }

    /// What a user has here.
    #[must_use]
    pub fn user_usage(&self, uid: u32) -> UserUsage {
        let Usage { ports, memory } = self.usage(uid);
        let (switches, rules) = (self.switches_of(uid).count() as u64, self.rules_of(uid));
        UserUsage { uid, switches, ports, memory, connections: 0, rules, static_addresses: 0 }
    }

    fn usage(&self, uid: u32) -> Usage {
        let (mut usage, mut regions) = (Usage::default(), Vec::new());
        for port in self.ports_of_user(uid) {
            regions.extend(regions_of(port));
            usage.ports += u64::from(port.owner == uid);
            let held = port.holder.as_ref().filter(|holder| holder.uid == uid);
            let alone = held.filter(|holder| holder.group.is_none());
            usage.memory += alone.map_or(0, |holder| holder.memory);
            let queue = (port.owner == uid).then_some(port.config.queue_frames);
            usage.memory += queue.map_or(0, QueueMemory::bytes);
        }
        let groups = self.groups.values().filter(|charge| charge.uid == uid);
        usage.memory += groups.map(|charge| charge.memory).sum::<u64>();
        let programs = self.switches_of(uid).filter_map(|(_, switch)| switch.program.as_ref());
        usage.memory += programs.map(LoadedProgram::memory).sum::<u64>();
        for conn in self.unswitched_of_user(uid) {
            let shared = &self.unswitched[&conn].shared;
            usage.ports += u64::from(shared.uid == uid);
            regions.push(&shared.region);
        }
        usage.memory += charges(uid, regions);
        usage
    }
}

/// Permissions changed as asked, by a caller that may manage the switch.
pub fn change_permissions(
    mut permissions: Permissions,
    caller: &Caller,
    settings: &SwitchSettings,
) -> Result<Permissions, Refusal> {
    check::owners(settings.owner, settings.group, settings.mode).map_err(Refusal::bad_value)?;
    let gives_owner = settings.owner.is_some_and(|owner| owner != permissions.owner);
    let foreign = |group: u32| group != permissions.group && !caller.in_group(group);
    if !caller.privileged && (gives_owner || settings.group.is_some_and(foreign)) {
        return Err(AccessRefusal::GiveAway.into());
    }
    permissions.owner = settings.owner.unwrap_or(permissions.owner);
    permissions.group = settings.group.unwrap_or(permissions.group);
    permissions.mode = settings.mode.unwrap_or(permissions.mode);
    Ok(permissions)
}

#[cfg(test)]
mod tests;
