//! Ports that netmap programs have bound: any number of holders, and pipes in their region.
//!
//! ```text
//!              bind                        bind
//!   (none) ───────────► bound, 1 holder ◄───────► bound, n holders
//!      ▲                     │   ▲
//!      │      last hang-up   │   │ bind
//!      └─────────────────────┤   │
//!                            ▼   │
//!                    bound, no holder: the parent of pipes, or the other end of one
//! ```
//!
//! A pipe is two ports that come and go together, in the region of its parent, which they keep.
//! All holders of a region are processes of one user.

use protocol::name::PortName;

use super::shared::{Interface, Shared};
use super::{Port, State};
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::{AccessRefusal, QuotaRefusal, Refusal};
use crate::model::keys::ConnKey;
use crate::model::policy::Caller;
use crate::model::specs::Claim;

impl State {
    /// The port that a connection has bound.
    #[must_use]
    pub fn bound_by(&self, conn: ConnKey) -> Option<&PortName> {
        if let Some(unswitched) = self.unswitched_of(conn) {
            return Some(&unswitched.name);
        }
        self.ports_bound_by(conn).next()
    }

    /// The ports that a connection holds: one, or both sides of an interface, the cable's first.
    #[must_use]
    pub fn sides_bound_by(&self, conn: ConnKey) -> Vec<PortName> {
        let Some(first) = self.bound_by(conn).filter(|_| self.unswitched_of(conn).is_none()) else {
            return Vec::new();
        };
        let host = first.host_side().ok().filter(|host| self.binders(host).contains(&conn));
        [first.clone()].into_iter().chain(host).collect()
    }

    /// Connections that have bound a port.
    #[must_use]
    pub fn binders(&self, name: &PortName) -> Vec<ConnKey> {
        let holders = self.shared(name).map(|shared| &shared.holders);
        holders.into_iter().flatten().map(|holder| holder.conn).collect()
    }

    /// What a bound port has.
    #[must_use]
    pub fn shared(&self, name: &PortName) -> Option<&Shared> {
        self.ports.get(name)?.bound.as_ref()
    }

    /// Whether the caller may have these rings of a bound port. Changes nothing.
    pub fn check_rings(
        &self,
        caller: &Caller,
        name: &PortName,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        let shared = self.shared(name).ok_or_else(|| PortRefusal::Missing(name.clone()))?;
        if shared.uid != caller.uid {
            return Err(AccessRefusal::SharedMemory {
                what: format!("port {name}"),
                owner: shared.uid,
            }
            .into());
        }
        match shared.holders.iter().find(|holder| !holder.claim.goes_with(claim)) {
            None => Ok(()),
            Some(holder) => {
                Err(PortRefusal::InUse { port: name.clone(), pid: holder.pid, uid: shared.uid }
                    .into())
            }
        }
    }

    /// Whether the caller may have so much more memory.
    pub fn check_memory(&self, uid: u32, memory: u64) -> Result<(), Refusal> {
        if memory == 0 {
            return Ok(());
        }
        let (asked, held) = (memory, self.usage(uid).memory);
        let limit = self.quota.memory;
        if asked > limit {
            return Err(QuotaRefusal::MoreThanQuota { asked, limit }.into());
        }
        if held.saturating_add(asked) > limit {
            return Err(QuotaRefusal::Memory { uid, asked, held, limit }.into());
        }
        Ok(())
    }

    /// What has to be at the workers before a client uses a bound port: the port in whose region it
    /// is, itself, and the other end of a pipe.
    #[must_use]
    pub fn parts(&self, name: &PortName) -> Vec<PortName> {
        let parent = name.pipe().map(|_| name.parent());
        let parts = parent.into_iter().chain([name.clone()]).chain(name.peer());
        parts.filter(|name| self.shared(name).is_some()).collect()
    }

    /// A port and all that cannot be without it: the other end of a bound pipe, the pipes of a
    /// bound parent. Those that go first come first.
    #[must_use]
    pub fn port_and_pipes(&self, name: &PortName) -> Vec<PortName> {
        let mut ports: Vec<PortName> = match name.peer() {
            Some(peer) => vec![peer],
            None => self.pipes_of(name).cloned().collect(),
        };
        let own = self.shared(name).is_some();
        ports.retain(|name| own && self.shared(name).is_some());
        ports.push(name.clone());
        ports
    }

    /// The ends of the pipes in a port's region.
    pub fn pipes_of<'a>(&'a self, name: &'a PortName) -> impl Iterator<Item = &'a PortName> {
        let own = |port: &PortName| port.switch() == name.switch() && port.port() == name.port();
        let ports = self.ports.range(name.clone()..).take_while(move |(port, _)| own(port));
        let pipes = ports.filter(move |(port, _)| *port != name);
        pipes.filter(|(_, port)| port.bound.is_some()).map(|(name, _)| name)
    }

    /// The name under which a port is entered: its own, or for an interface that was put into a
    /// switch, and for the pipes of one, that of its port there.
    #[must_use]
    pub fn resolve(&self, name: &PortName) -> PortName {
        if !name.is_interface() || self.ports.contains_key(&name.parent()) {
            return name.clone();
        }
        let is_it =
            |(at, port): &(&PortName, &Port)| port.interface.is_some() && at.port() == name.port();
        let home = self.ports.iter().find(is_it).map(|(home, _)| home.switch());
        let text = name.to_string();
        let home = home.and_then(|switch| switch.join(text.split_once(':')?.1).ok());
        home.unwrap_or_else(|| name.clone())
    }

    /// What a port has that is an interface.
    #[must_use]
    pub fn interface(&self, name: &PortName) -> Option<&Interface> {
        self.ports.get(name)?.interface.as_ref()
    }

    /// The user that made a port.
    #[must_use]
    pub fn owner_of(&self, name: &PortName) -> Option<u32> {
        Some(self.ports.get(name)?.owner)
    }

    /// The name under which a port is entered, if the port exists.
    #[must_use]
    pub fn home(&self, name: &PortName) -> Option<PortName> {
        Some(self.resolve(name)).filter(|name| self.ports.contains_key(name))
    }

    /// Process and user that need a port at this moment.
    #[must_use]
    pub fn user_of(&self, name: &PortName) -> Option<(u32, u32)> {
        let of = |name: &PortName| {
            let port = self.ports.get(name)?;
            let holder = port.holder.as_ref().map(|holder| (holder.pid, holder.uid));
            let shared = port.bound.as_ref();
            holder.or_else(|| shared.map(|s| (s.holders.first().map_or(0, |h| h.pid), s.uid)))
        };
        of(name).or_else(|| self.pipes_of(name).find_map(of))
    }

    /// Whether no client holds a bound port, its other end or a pipe of it.
    #[must_use]
    pub fn is_idle(&self, name: &PortName) -> bool {
        let held = |name: &PortName| self.shared(name).is_some_and(|it| !it.holders.is_empty());
        let needed = match name.peer() {
            Some(peer) => held(&peer),
            None => self.pipes_of(name).next().is_some(),
        };
        !held(name) && !needed
    }
}
