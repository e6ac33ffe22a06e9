//! What exists and who holds it: switches, ports, quotas. Pure: no descriptor, no thread, no clock.
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
//! Everything that needs memory or descriptors happens between a question ([`State::claim`]), which
//! changes nothing, and an entry ([`State::hold`]), which cannot fail. So whatever the workers
//! refuse leaves nothing half-made here.
//!
//! What a user has is counted from the entries whenever it is asked for; there is no second book
//! that could disagree with them. One list is kept beside them, of what each connection holds:
//! every connection that closes asks for it.

pub mod bound;
pub mod lone;

use std::collections::{BTreeMap, BTreeSet};

use client::api::{HostIf, NewPorts, PortKind, PortStats, SwitchSettings};
use client::name::{PortName, SwitchName};
use switch::{PortConfig, SwitchConfig};

use super::datapath::{PipeKey, PortKey, SwitchKey};
use super::policy::{Access, Caller, Grant, Permissions};
use super::refusal::Refusal;
use super::settings::{check_owners, new_switch};
use crate::config::Quota;
use bound::{Interface, Shared};
use lone::Lone;

/// A connection, for the life of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnKey(pub u64);

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Its key at the workers.
    pub key: SwitchKey,
    /// Stays without ports.
    pub persistent: bool,
    /// Who may.
    pub permissions: Permissions,
    /// Who may make ports of it by opening them.
    pub new_ports: NewPorts,
    /// How it forwards.
    pub config: SwitchConfig,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its key at the workers.
    pub key: PortKey,
    /// What is behind it.
    pub kind: PortKind,
    /// For the end of a pipe: the pipe.
    pub pipe: Option<PipeKey>,
    /// Stays without a client.
    pub persistent: bool,
    /// The user who made it, and whose quota it counts against.
    pub owner: u32,
    /// To whom it was given, if it stays.
    pub grant: Grant,
    /// How the switch treats it.
    pub config: PortConfig,
    /// Who holds it.
    pub holder: Option<Holder>,
    /// For a port that netmap programs have bound.
    pub bound: Option<Shared>,
    /// For a port that has a name of its own.
    pub interface: Option<Interface>,
    /// For a port with a network interface of the host: which.
    pub host: Option<Box<HostIf>>,
    /// What was counted for clients that have left; kept by ports that stay.
    pub past: Option<Box<PortStats>>,
}

/// The client that holds a port, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its connection.
    pub conn: ConnKey,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
    /// Bytes of shared memory.
    pub memory: u64,
    /// It has its port; before, the port is reserved for it and being built.
    pub ready: bool,
    /// The trust group.
    pub group: Option<String>,
}

/// All of it.
#[derive(Debug)]
pub struct State {
    switches: BTreeMap<SwitchName, Switch>,
    ports: BTreeMap<PortName, Port>,
    /// The names of held ports by their holders' connections.
    held: BTreeMap<ConnKey, BTreeSet<PortName>>,
    /// What connections have for themselves.
    lones: BTreeMap<ConnKey, Lone>,
    quota: Quota,
    next_key: u32,
}

/// What somebody wants to attach.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// The port.
    pub port: &'a PortName,
    /// Bytes of shared memory that it costs.
    pub memory: u64,
    /// Only if it exists already.
    pub existing: bool,
}

/// A port that went away, for the workers to hear of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// The port's key, unless no worker knew the port (a free one, the end of a pipe).
    pub port: Option<PortKey>,
    /// The pipe, if this was its last end.
    pub pipe: Option<PipeKey>,
    /// The switch that connected the ends of a bound pipe, likewise.
    pub patch: Option<SwitchKey>,
    /// The switch, if this was its last port.
    pub switch: Option<SwitchKey>,
    /// The region of an interface.
    pub region: Option<u16>,
}

/// What a user has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    ports: u64,
    memory: u64,
}

impl Port {
    /// One that stays, and that nobody holds.
    #[must_use]
    pub fn persistent(key: PortKey, kind: PortKind, owner: u32, config: PortConfig) -> Self {
        Self {
            key,
            kind,
            pipe: None,
            persistent: true,
            owner,
            grant: Grant::default(),
            config,
            holder: None,
            bound: None,
            interface: None,
            host: None,
            past: None,
        }
    }

    /// Whether its key means something to the workers: it is live, or reserved.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let reserved = self.kind == PortKind::Shm && self.holder.is_some();
        self.is_live() || reserved || self.bound.is_some()
    }

    /// Whether others may see it: not while it is made for a client who waits for it, for they
    /// would take it to be there.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.persistent || self.is_bound() || self.holder.as_ref().is_some_and(|h| h.ready)
    }

    /// Who may attach to it, if it stays.
    #[must_use]
    pub fn permissions(&self, switch: &Switch) -> Permissions {
        self.grant.permissions(self.owner, &switch.permissions, switch.new_ports)
    }

    /// Whether a worker knows the port: it has counters and addresses.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.kind {
            PortKind::Shm => self.holder.as_ref().is_some_and(|h| h.ready) || self.is_bound(),
            PortKind::Null | PortKind::Tap | PortKind::Packet | PortKind::Stack => true,
            PortKind::Pipe => self.is_bound(),
        }
    }

    fn is_bound(&self) -> bool {
        self.bound.as_ref().is_some_and(|shared| shared.ready)
    }
}

impl State {
    /// Nothing yet.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self {
            switches: BTreeMap::new(),
            ports: BTreeMap::new(),
            held: BTreeMap::new(),
            lones: BTreeMap::new(),
            quota,
            next_key: 1,
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
        let before = self.switches.insert(name, switch);
        assert!(before.is_none(), "a switch is entered once");
    }

    /// Enters a persistent port that nobody holds.
    pub fn add_port(&mut self, name: PortName, port: Port) {
        assert!(port.persistent && port.holder.is_none());
        let before = self.ports.insert(name, port);
        assert!(before.is_none(), "a port is entered once");
    }

    /// Enters a port that the workers have reserved for netmap programs.
    pub fn add_bound(&mut self, name: &PortName, new: Port) {
        assert!(new.bound.is_some());
        match self.ports.get_mut(name) {
            Some(port) => {
                assert!(!port.is_live(), "a port is made once");
                (port.key, port.bound) = (new.key, new.bound);
            }
            None => drop(self.ports.insert(name.clone(), new)),
        }
    }

    /// Enters the holder of a port that [`State::claim`] found free, making the port if need be.
    pub fn hold(&mut self, name: &PortName, new: Port) {
        let conn = new.holder.as_ref().expect("somebody holds it").conn;
        self.held.entry(conn).or_default().insert(name.clone());
        match self.ports.get_mut(name) {
            Some(port) => {
                assert!(port.holder.is_none(), "a port has one holder");
                port.key = new.key;
                port.holder = new.holder;
            }
            None => drop(self.ports.insert(name.clone(), new)),
        }
    }

    /// Takes a port back from its holder; an ephemeral one goes away.
    pub fn release(&mut self, name: &PortName) -> Gone {
        let port = self.ports.get_mut(name).expect("only a known port is released");
        if !port.persistent {
            return self.remove_port(name);
        }
        let (key, holder, bound) = (port.key, port.holder.take(), port.bound.take());
        self.forget_held(name, holder.as_ref());
        let held = holder.is_some() || bound.is_some();
        Gone { port: held.then_some(key), ..Gone::default() }
    }

    /// Removes a port, whoever holds it.
    pub fn remove_port(&mut self, name: &PortName) -> Gone {
        let port = self.ports.remove(name).expect("only a known port is removed");
        self.forget_held(name, port.holder.as_ref());
        self.bequeath(name, &port);
        let peer = name.peer().and_then(|peer| self.ports.get(&peer));
        let (last_end, last_bound) = (peer.is_none(), peer.is_none_or(|peer| peer.bound.is_none()));
        Gone {
            port: port.is_known().then_some(port.key),
            pipe: port.pipe.filter(|_| last_end),
            patch: port.bound.and_then(|shared| shared.patch).filter(|_| last_bound),
            switch: self.forget_switch(name.switch()),
            region: port.interface.map(|interface| interface.mem_id),
        }
    }

    /// Moves a port that nobody holds to another switch, which is there. Returns the one that it
    /// left, if it was its last port.
    pub fn move_port(&mut self, from: &PortName, to: PortName) -> Option<SwitchKey> {
        let mut port = self.ports.remove(from).expect("only a known port is moved");
        assert!(!port.is_known(), "a port that is held stays where it is");
        port.past = None;
        let before = self.ports.insert(to, port);
        assert!(before.is_none(), "a port is entered once");
        self.forget_switch(from.switch())
    }

    /// A port is not held any more.
    fn forget_held(&mut self, name: &PortName, holder: Option<&Holder>) {
        let Some(Holder { conn, .. }) = holder else { return };
        let names = self.held.get_mut(conn).expect("who holds a port is listed");
        assert!(names.remove(name), "what somebody holds is listed");
        if names.is_empty() {
            self.held.remove(conn);
        }
    }

    /// What an end of a pipe has to pay for, the other end pays for when it is alone.
    fn bequeath(&mut self, name: &PortName, port: &Port) {
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
        self.switches.remove(name).map(|switch| switch.key)
    }

    /// Removes a switch without ports.
    pub fn remove_switch(&mut self, name: &SwitchName) -> Option<SwitchKey> {
        assert!(self.ports_of(name).next().is_none(), "its ports go first");
        self.switches.remove(name).map(|switch| switch.key)
    }

    /// A switch, to change it.
    pub fn switch_mut(&mut self, name: &SwitchName) -> Option<&mut Switch> {
        self.switches.get_mut(name)
    }

    /// A port, to change it.
    pub fn port_mut(&mut self, name: &PortName) -> Option<&mut Port> {
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
        let switch = self.switches.get(name).ok_or_else(|| Refusal::NoSwitch(name.clone()))?;
        if switch.permissions.allow(caller, access) {
            return Ok(switch);
        }
        let Permissions { owner, mode, .. } = switch.permissions;
        Err(Refusal::Denied { switch: name.clone(), owner, mode, access })
    }

    /// The port of this name, if the caller may do that with its switch.
    pub fn port(&self, caller: &Caller, name: &PortName, access: Access) -> Result<&Port, Refusal> {
        let port = self.ports.get(name).filter(|port| access != Access::Look || port.is_listed());
        let port = port.ok_or_else(|| Refusal::NoPort(name.clone()))?;
        self.switch(caller, name.switch(), access)?;
        Ok(port)
    }

    /// The switch of this name, whoever asks.
    #[must_use]
    pub fn find_switch(&self, name: &SwitchName) -> Option<&Switch> {
        self.switches.get(name)
    }

    /// The port of this name, whoever asks.
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

    /// All ports in the order of their names.
    pub fn ports(&self) -> impl Iterator<Item = (&PortName, &Port)> {
        self.ports.iter()
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
    pub fn claim(&self, caller: &Caller, wish: &Wish<'_>) -> Result<(), Refusal> {
        let new_port = self.claim_port(caller, wish)?;
        self.claim_company(caller, wish)?;
        if new_port {
            self.claim_number(caller)?;
        }
        self.claim_memory(caller, wish.memory)
    }

    /// Whether the caller may have one more port.
    fn claim_number(&self, caller: &Caller) -> Result<(), Refusal> {
        let have = self.usage(caller.uid).ports;
        if have < u64::from(self.quota.ports) {
            return Ok(());
        }
        Err(Refusal::Quota { uid: caller.uid, what: "ports", have })
    }

    /// Whether the caller may create one more switch, for so many addresses.
    pub fn claim_switch(&self, caller: &Caller, fdb_capacity: usize) -> Result<(), Refusal> {
        let own = |switch: &&Switch| switch.permissions.owner == caller.uid;
        let have = self.switches.values().filter(own).count();
        if have >= self.quota.switches as usize {
            return Err(Refusal::Quota { uid: caller.uid, what: "switches", have: have as u64 });
        }
        self.claim_addresses(caller.uid, fdb_capacity)
    }

    /// Whether the switches of a user may hold so many addresses more.
    pub fn claim_addresses(&self, uid: u32, more: usize) -> Result<(), Refusal> {
        let own = self.switches.values().filter(|switch| switch.permissions.owner == uid);
        let have: usize = own.map(|switch| switch.config.fdb_capacity).sum();
        let limit = self.quota.addresses;
        if more == 0 || have + more <= limit as usize {
            return Ok(());
        }
        let (asked, have, limit) = (more as u64, have as u64, u64::from(limit));
        Err(Refusal::Addresses { uid, asked, have, limit })
    }

    /// Whether the caller may add one more persistent port.
    pub fn claim_persistent(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        self.claim_place(caller, name)?;
        let have = self.usage(caller.uid).ports;
        if have < u64::from(self.quota.ports) {
            return Ok(());
        }
        Err(Refusal::Quota { uid: caller.uid, what: "ports", have })
    }

    /// Whether the caller may put a persistent port there.
    pub fn claim_place(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        if name.pipe().is_some() {
            return Err(Refusal::PipePersistent(name.clone()));
        }
        if self.has_switch(name.switch()) {
            self.switch(caller, name.switch(), Access::Manage)?;
        } else {
            self.claim_switch(caller, new_switch(name.switch()).fdb_capacity)?;
        }
        if self.ports.contains_key(name) {
            return Err(Refusal::PortExists(name.clone()));
        }
        Ok(())
    }

    /// Whether the name is free for the caller; true if the port is still to be made.
    fn claim_port(&self, caller: &Caller, wish: &Wish<'_>) -> Result<bool, Refusal> {
        if self.has_switch(wish.port.switch()) {
            self.may_attach(caller, wish.port)?;
        } else if wish.existing {
            return Err(Refusal::NoPort(wish.port.clone()));
        } else {
            self.claim_switch(caller, new_switch(wish.port.switch()).fdb_capacity)?;
        }
        match self.ports.get(wish.port) {
            None if wish.existing => Err(Refusal::NoPort(wish.port.clone())),
            None if wish.port.is_host_side() && !wish.port.is_interface() => {
                Err(Refusal::NoPort(wish.port.clone()))
            }
            None => Ok(true),
            Some(port) if port.kind == PortKind::Null || port.kind.is_host() => {
                Err(Refusal::NotAttachable(wish.port.clone()))
            }
            Some(Port { holder: Some(holder), .. }) => {
                Err(Refusal::InUse { port: wish.port.clone(), pid: holder.pid, uid: holder.uid })
            }
            Some(Port { bound: Some(shared), .. }) => {
                let pid = shared.holders.first().map_or(0, |holder| holder.pid);
                Err(Refusal::InUse { port: wish.port.clone(), pid, uid: shared.uid })
            }
            Some(_) => Ok(false),
        }
    }

    /// Whether the caller may attach to a port of a switch that there is: what the switch lets in,
    /// the port must, and where there is no such port, one may be made. A pipe is as its parent.
    pub fn may_attach(&self, caller: &Caller, name: &PortName) -> Result<(), Refusal> {
        let switch = self.switch(caller, name.switch(), Access::Attach)?;
        if switch.permissions.allow(caller, Access::Manage) {
            return Ok(());
        }
        match self.ports.get(&name.parent()) {
            Some(port) if port.persistent => {
                let permissions = port.permissions(switch);
                let Permissions { owner, mode, .. } = permissions;
                let denied = || Refusal::NotGranted { port: name.parent(), owner, mode };
                permissions.allow(caller, Access::Attach).then_some(()).ok_or_else(denied)
            }
            Some(port) if port.owner == caller.uid => Ok(()),
            _ if switch.new_ports == NewPorts::Any => Ok(()),
            _ => {
                let owner = switch.permissions.owner;
                Err(Refusal::NoNewPorts { port: name.clone(), owner })
            }
        }
    }

    /// Whether the other end of the pipe is a process of the same user. Trust groups need not be
    /// looked at: each user has names of their own for them.
    fn claim_company(&self, caller: &Caller, wish: &Wish<'_>) -> Result<(), Refusal> {
        let peer = wish.port.peer().and_then(|peer| self.ports.get(&peer));
        match peer.and_then(|port| port.holder.as_ref()) {
            Some(holder) if holder.uid != caller.uid => {
                Err(Refusal::NotYours { what: "this pipe".to_owned(), owner: holder.uid })
            }
            _ => Ok(()),
        }
    }

    fn usage(&self, uid: u32) -> Usage {
        let mut usage = Usage::default();
        for port in self.ports.values() {
            usage.ports += u64::from(port.owner == uid);
            let held = port.holder.as_ref().filter(|holder| holder.uid == uid);
            usage.memory += held.map_or(0, |holder| holder.memory);
            let shared = port.bound.as_ref().filter(|shared| shared.uid == uid);
            usage.memory += shared.map_or(0, Shared::all_memory);
        }
        for lone in self.lones.values().filter(|lone| lone.shared.uid == uid) {
            usage.ports += 1;
            usage.memory += lone.shared.all_memory();
        }
        usage
    }
}

/// Permissions changed as asked, by a caller who may manage the switch.
pub fn change_permissions(
    mut permissions: Permissions,
    caller: &Caller,
    settings: &SwitchSettings,
) -> Result<Permissions, Refusal> {
    check_owners(settings.owner, settings.group, settings.mode)?;
    let gives_owner = settings.owner.is_some_and(|owner| owner != permissions.owner);
    let foreign = |group: u32| group != permissions.group && !caller.in_group(group);
    if !caller.privileged && (gives_owner || settings.group.is_some_and(foreign)) {
        return Err(Refusal::GiveAway);
    }
    permissions.owner = settings.owner.unwrap_or(permissions.owner);
    permissions.group = settings.group.unwrap_or(permissions.group);
    permissions.mode = settings.mode.unwrap_or(permissions.mode);
    Ok(permissions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::api::{ErrorCode, Mode};
    use proptest::prelude::*;

    fn caller(uid: u32) -> Caller {
        Caller { pid: uid, uid, gid: uid, groups: Vec::new(), privileged: uid == 0 }
    }

    fn name(text: &str) -> PortName {
        text.parse().unwrap()
    }

    fn quota() -> Quota {
        Quota { ports: 3, memory: 100, switches: 2, addresses: 1 << 20, connections: 8 }
    }

    fn switch(key: u32, owner: u32, mode: u16, persistent: bool) -> Switch {
        let permissions = Permissions { owner, group: owner, mode: Mode::new(mode).unwrap() };
        let config = SwitchConfig::default();
        let new_ports = NewPorts::Any;
        Switch { key: SwitchKey(key), persistent, permissions, new_ports, config }
    }

    /// Attaches as the handlers do, with workers that never refuse.
    fn attach(state: &mut State, uid: u32, conn: u64, wish: &Wish<'_>) -> Result<PortKey, Refusal> {
        state.claim(&caller(uid), wish)?;
        if !state.has_switch(wish.port.switch()) {
            let key = state.new_key();
            state.add_switch(wish.port.switch().clone(), switch(key, uid, 0o600, false));
        }
        let peer = wish.port.peer().and_then(|peer| state.ports.get(&peer)?.pipe);
        let key = PortKey(state.new_key());
        let holder = Holder {
            conn: ConnKey(conn),
            pid: uid,
            uid,
            name: String::new(),
            memory: wish.memory,
            ready: true,
            group: None,
        };
        let port = Port {
            key,
            kind: if wish.port.pipe().is_some() { PortKind::Pipe } else { PortKind::Shm },
            pipe: wish.port.pipe().map(|_| peer.unwrap_or(PipeKey(key.0))),
            persistent: false,
            owner: uid,
            grant: Grant::default(),
            config: PortConfig::default(),
            holder: Some(holder),
            bound: None,
            interface: None,
            host: None,
            past: None,
        };
        state.hold(wish.port, port);
        Ok(key)
    }

    fn wish(port: &PortName) -> Wish<'_> {
        Wish { port, memory: 10, existing: false }
    }

    fn code(result: Result<PortKey, Refusal>) -> ErrorCode {
        result.unwrap_err().code()
    }

    #[test]
    fn test_first_attach_makes_switch_and_last_detach_removes_it() {
        let mut state = State::new(quota());
        let (a, b) = (name("vale0:a"), name("vale0:b"));
        let key_a = attach(&mut state, 1000, 1, &wish(&a)).unwrap();
        attach(&mut state, 1000, 2, &wish(&b)).unwrap();
        assert_eq!(state.counts(), (1, 2));
        assert_eq!(state.held_by(ConnKey(1)), std::slice::from_ref(&a));
        let gone = state.release(&a);
        assert_eq!(gone, Gone { port: Some(key_a), ..Gone::default() });
        assert_eq!(state.release(&b).switch, Some(SwitchKey(1)));
        assert_eq!(state.counts(), (0, 0));
    }

    #[test]
    fn test_held_port_is_taken_until_released() {
        let mut state = State::new(quota());
        let a = name("vale0:a");
        attach(&mut state, 1000, 1, &wish(&a)).unwrap();
        assert_eq!(code(attach(&mut state, 1000, 2, &wish(&a))), ErrorCode::InUse);
        assert_eq!(code(attach(&mut state, 1000, 1, &wish(&a))), ErrorCode::InUse);
        state.release(&a);
        attach(&mut state, 1000, 2, &wish(&a)).unwrap();
    }

    #[test]
    fn test_persistent_port_outlives_its_holder() {
        let mut state = State::new(quota());
        let a = name("vale0:a");
        state.add_switch(a.switch().clone(), switch(9, 1000, 0o600, false));
        let port = Port {
            key: PortKey(7),
            kind: PortKind::Shm,
            pipe: None,
            persistent: true,
            owner: 1000,
            grant: Grant::default(),
            config: PortConfig { isolated: true, ..PortConfig::default() },
            holder: None,
            bound: None,
            interface: None,
            host: None,
            past: None,
        };
        state.add_port(a.clone(), port);
        let key = attach(&mut state, 1000, 1, &wish(&a)).unwrap();
        assert_eq!(state.release(&a), Gone { port: Some(key), ..Gone::default() });
        let port = state.port(&caller(1000), &a, Access::Look).unwrap();
        assert!(port.holder.is_none() && port.config.isolated);
        assert_eq!(state.remove_port(&a).switch, Some(SwitchKey(9)));
    }

    #[test]
    fn test_only_existing_ports_where_asked() {
        let mut state = State::new(quota());
        let a = name("vale0:a");
        let wish = Wish { existing: true, ..wish(&a) };
        assert_eq!(code(attach(&mut state, 1000, 1, &wish)), ErrorCode::NotFound);
        assert_eq!(state.counts(), (0, 0));
    }

    #[test]
    fn test_strangers_are_kept_out() {
        let mut state = State::new(quota());
        let (a, b) = (name("vale0:a"), name("vale0:b"));
        attach(&mut state, 1000, 1, &wish(&a)).unwrap();
        assert_eq!(code(attach(&mut state, 1001, 2, &wish(&b))), ErrorCode::Permission);
        attach(&mut state, 0, 3, &wish(&b)).unwrap();
    }

    #[test]
    fn test_quotas_count_ports_memory_and_switches() {
        let mut state = State::new(quota());
        let names: Vec<PortName> = (0..4).map(|i| name(&format!("vale0:p{i}"))).collect();
        let greedy = Wish { memory: 101, ..wish(&names[0]) };
        assert_eq!(code(attach(&mut state, 1000, 1, &greedy)), ErrorCode::Quota);
        for port in &names[..3] {
            attach(&mut state, 1000, 1, &wish(port)).unwrap();
        }
        let refusal = attach(&mut state, 1000, 1, &wish(&names[3])).unwrap_err();
        assert!(refusal.to_string().contains("has 3 ports, the limit for one user"), "{refusal}");
        attach(&mut state, 1001, 2, &wish(&name("vale1:a"))).unwrap();
        attach(&mut state, 1001, 2, &wish(&name("vale2:a"))).unwrap();
        assert_eq!(code(attach(&mut state, 1001, 2, &wish(&name("vale3:a")))), ErrorCode::Quota);
    }

    #[test]
    fn test_pipe_lives_as_long_as_one_end() {
        let mut state = State::new(quota());
        let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
        attach(&mut state, 1000, 1, &wish(&master)).unwrap();
        attach(&mut state, 1000, 2, &wish(&slave)).unwrap();
        assert_eq!(state.release(&master), Gone::default());
        let gone = state.release(&slave);
        assert!(gone.pipe.is_some() && gone.switch.is_some() && gone.port.is_none());
    }

    #[test]
    fn test_memory_is_shared_by_one_user_only() {
        let mut state = State::new(quota());
        let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
        state.add_switch(master.switch().clone(), switch(9, 1000, 0o666, true));
        attach(&mut state, 1000, 1, &wish(&master)).unwrap();
        assert_eq!(code(attach(&mut state, 1001, 2, &wish(&slave))), ErrorCode::Permission);
        attach(&mut state, 1000, 2, &wish(&slave)).unwrap();
    }

    #[test]
    fn test_memory_of_a_pipe_is_paid_for_until_its_last_end_goes() {
        let mut state = State::new(quota());
        let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
        attach(&mut state, 1000, 1, &Wish { memory: 60, ..wish(&master) }).unwrap();
        attach(&mut state, 1000, 2, &Wish { memory: 0, ..wish(&slave) }).unwrap();
        state.release(&master);
        assert_eq!(state.usage(1000).memory, 60);
        let another = name("vale0:b{1");
        let refusal = attach(&mut state, 1000, 1, &Wish { memory: 60, ..wish(&another) });
        assert_eq!(code(refusal), ErrorCode::Quota);
        attach(&mut state, 1000, 1, &Wish { memory: 0, ..wish(&master) }).unwrap();
        state.release(&slave);
        assert_eq!(state.usage(1000).memory, 60);
        state.release(&master);
        assert_eq!(state.usage(1000).memory, 0);
    }

    #[test]
    fn test_quota_says_what_was_asked_what_is_held_and_what_may_be() {
        const MIB: u64 = 1 << 20;
        let mut state = State::new(Quota { memory: 40 * MIB, ..quota() });
        let (a, b) = (name("vale0:a"), name("vale0:b"));
        attach(&mut state, 1000, 1, &Wish { memory: 30 * MIB, ..wish(&a) }).unwrap();
        let refused = |wish| attach(&mut state, 1000, 1, &wish).unwrap_err().to_string();
        let [more, most] = [11 * MIB, 41 * MIB].map(|memory| Wish { memory, ..wish(&b) });
        let texts = [more, most].map(refused);
        let user = crate::users::user_name(1000);
        let over = format!("it takes 11.0 MiB, and {user} has 30.0 of 40.0 MiB");
        assert!(texts[0].starts_with(&over), "{texts:?}");
        assert!(texts[1].starts_with("it takes 41.0 MiB, more than one user"), "{texts:?}");
    }

    #[test]
    fn test_switches_are_not_given_away() {
        let permissions = switch(1, 1000, 0o600, true).permissions;
        let ask = |owner, group| SwitchSettings { owner, group, ..Default::default() };
        let change = |uid, settings| change_permissions(permissions, &caller(uid), &settings);
        assert!(change(1000, ask(Some(1001), None)).is_err());
        assert!(change(1000, ask(None, Some(7))).is_err());
        assert!(change(1000, ask(Some(1000), Some(1000))).is_ok());
        assert_eq!(change(0, ask(Some(1001), Some(7))).unwrap().owner, 1001);
    }

    proptest! {
        /// Whatever happens in whatever order, nothing is left when all connections have closed.
        #[test]
        fn test_nothing_is_left_when_everybody_left(
            steps in proptest::collection::vec((0u64..3, 0usize..6, proptest::bool::ANY), 0..60),
        ) {
            let texts = ["vale0:a", "vale0:b", "vale1:a", "vale0:a{1", "vale0:a}1", "vale:p"];
            let mut state = State::new(quota());
            for (conn, port, leave) in steps {
                let port = name(texts[port]);
                if leave {
                    for port in state.held_by(ConnKey(conn)) {
                        state.release(&port);
                    }
                } else {
                    let _ = attach(&mut state, 1000, conn, &wish(&port));
                }
                let usage = state.usage(1000);
                prop_assert!(usage.ports <= 3 && usage.memory <= 100);
                let holders = state.ports.values().filter(|port| port.holder.is_some());
                let listed: usize = state.held.values().map(BTreeSet::len).sum();
                prop_assert_eq!(holders.count(), listed);
            }
            for conn in 0..3 {
                for port in state.held_by(ConnKey(conn)) {
                    state.release(&port);
                }
            }
            prop_assert_eq!(state.counts(), (0, 0));
        }
    }
}
