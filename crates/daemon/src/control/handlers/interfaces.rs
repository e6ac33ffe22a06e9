//! Virtual interfaces: ports that have a name of their own.
//!
//! ```text
//!            add                    attach
//!  (none) ───────► netmap:v0 ◄──────────────────► vale0:v0
//!            ◄───────           detach
//!             delete
//! ```
//!
//! An interface is one port with one entry, under the name of where it is: alone in a switch of its
//! own, or in the one that it was put into; by `netmap:v0` it is found in both. It has its rings
//! and its memory region from the beginning, and moves while nobody holds it.

use client::api::{InterfaceAdd, InterfaceAttach, InterfacePoll, PollThreads, PortKind, Reply};
use client::name::PortName;
use switch::PortConfig;

use super::{Control, SwitchKey};
use crate::config::PortPlan;
use crate::control::datapath::{Datapath, PortKey};
use crate::control::policy::{Access, Caller, Grant, Permissions};
use crate::control::refusal::Refusal;
use crate::control::settings::{self, WantedRings};
use crate::control::state::Port;
use crate::control::state::bound::{COMMON, Interface};
use crate::records::InterfaceText;

impl<D: Datapath> Control<D> {
    pub(super) fn interface_add(
        &mut self,
        caller: &Caller,
        add: &InterfaceAdd,
    ) -> Result<Reply, Refusal> {
        let name = &add.port;
        if !name.is_interface() || name.pipe().is_some() {
            return Err(Refusal::NoInterfaceName(name.clone()));
        }
        if self.state.home(name).is_some() || port::host::exists(name.interface_name()) {
            return Err(Refusal::InterfaceExists(name.clone()));
        }
        self.state.claim_persistent(caller, name)?;
        let region = self.state.region(caller, add.mem_id)?;
        let rings = settings::bound_rings(&WantedRings::from(add), &self.rings);
        if self.datapath.memory_of(&rings).is_none() {
            return Err(Refusal::TooLarge(name.clone()));
        }
        let mem_id = self.datapath.keep_region(region, name, &rings)?;
        if let Err(refusal) = self.find_or_make(caller, name.switch()) {
            self.datapath.drop_region(mem_id);
            return Err(refusal);
        }
        let interface =
            Interface { rings, mem_id, common: add.mem_id == COMMON, group: caller.gid };
        self.enter_interface(caller.uid, name, Default::default(), interface);
        Ok(Reply::PortGeometry(self.sizes(Some(mem_id), &rings)))
    }

    /// Makes one again that was made by command, in a switch that is there.
    pub(super) fn make_planned_interface(
        &mut self,
        owner: u32,
        plan: &PortPlan,
        text: &InterfaceText,
    ) -> Result<(), Refusal> {
        let name = &plan.name;
        if PortName::interface(name.port()).is_ok_and(|own| self.state.home(&own).is_some()) {
            tracing::warn!("{name}: the interface is in another switch; not made twice");
            return Ok(());
        }
        let rings = settings::bound_rings(&WantedRings::from(text), &self.rings);
        let mem_id = self.datapath.keep_region(None, name, &rings)?;
        let interface = Interface { rings, mem_id, common: false, group: text.group };
        self.enter_interface(owner, name, (plan.config.clone(), plan.grant), interface);
        Ok(())
    }

    fn enter_interface(
        &mut self,
        owner: u32,
        name: &PortName,
        (config, grant): (PortConfig, Grant),
        interface: Interface,
    ) {
        let key = PortKey(self.state.new_key());
        let interface = Some(interface);
        let port = Port { grant, interface, ..Port::persistent(key, PortKind::Shm, owner, config) };
        self.state.add_port(name.clone(), port);
    }

    pub(super) fn interface_del(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let home = self.state.home(name).ok_or_else(|| Refusal::NoPort(name.clone()))?;
        let port = self.state.port(caller, &home, Access::Manage)?;
        if port.interface.is_none() {
            return Err(Refusal::NotAdded(home));
        }
        if !home.is_interface() {
            return Err(Refusal::AttachedTo(home));
        }
        self.check_idle(&home)?;
        self.drop_port(&home);
        Ok(Reply::Done)
    }

    pub(super) fn interface_attach(
        &mut self,
        caller: &Caller,
        attach: &InterfaceAttach,
    ) -> Result<Reply, Refusal> {
        let to = &attach.port;
        if to.is_interface() || to.pipe().is_some() {
            return Err(Refusal::NoInterfaceName(to.clone()));
        }
        self.state.region(caller, attach.mem_id)?;
        let interface = PortName::interface(to.port())?;
        let known = self.state.home(&interface);
        // This is not lost to anybody who looks for it: a port of that name is no interface.
        if self.state.port_mut(to).is_some() {
            return Err(Refusal::PortTaken(to.clone()));
        }
        match known.filter(|home| self.state.interface(home).is_some()) {
            Some(home) => self.attach_virtual(caller, &home, to),
            None => self.attach_host(caller, to, attach.host),
        }
    }

    fn attach_virtual(
        &mut self,
        caller: &Caller,
        home: &PortName,
        to: &PortName,
    ) -> Result<Reply, Refusal> {
        self.state.port(caller, home, Access::Manage)?;
        if !home.is_interface() {
            return Err(Refusal::SecondSwitch(home.clone()));
        }
        self.check_idle(home)?;
        self.state.claim_place(caller, to)?;
        self.find_or_make(caller, to.switch())?;
        self.move_port(home, to);
        Ok(Reply::Done)
    }

    pub(super) fn interface_detach(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, name, Access::Look)?;
        if port.host.is_some() {
            if self.polled.contains(&port.key) {
                return Err(Refusal::PollState(name.clone()));
            }
            return self.detach_host(caller, name);
        }
        // As in netmap, ports that came with a program stay where they are, and nobody minds.
        let (owner, mode) = (port.owner, self.switch_mode);
        let Some(Interface { group, .. }) = port.interface else { return Ok(Reply::Done) };
        self.state.port(caller, name, Access::Manage)?;
        self.check_idle(name)?;
        let to = PortName::interface(name.port())?;
        if to != *name {
            let config = settings::new_switch(to.switch());
            let permissions = Permissions { owner, group, mode };
            self.make_switch(to.switch(), false, permissions, config)?;
            self.move_port(name, &to);
        }
        Ok(Reply::Done)
    }

    pub(super) fn interface_poll(
        &mut self,
        caller: &Caller,
        poll: &InterfacePoll,
    ) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &poll.port, Access::Manage)?;
        if port.host.is_none() {
            return Err(Refusal::NotPolled(poll.port.clone()));
        }
        let key = port.key;
        let changed = match &poll.threads {
            Some(threads) => {
                check_threads(threads)?;
                self.polled.insert(key)
            }
            None => self.polled.remove(&key),
        };
        match changed {
            true => Ok(Reply::Done),
            false => Err(Refusal::PollState(poll.port.clone())),
        }
    }

    /// Moves a port that nobody holds to another switch, which is there.
    fn move_port(&mut self, from: &PortName, to: &PortName) {
        let left: Option<SwitchKey> = self.state.move_port(from, to.clone());
        self.tend_statics(from);
        if let Some(switch) = left {
            self.datapath.del_switch(switch);
        }
    }

    fn check_idle(&self, name: &PortName) -> Result<(), Refusal> {
        match self.state.user_of(name) {
            None => Ok(()),
            Some((pid, uid)) => Err(Refusal::InUse { port: name.clone(), pid, uid }),
        }
    }
}

/// netmap's rules; a port of the system has one ring.
fn check_threads(threads: &PollThreads) -> Result<(), Refusal> {
    let PollThreads { per_ring, first, count } = *threads;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fits = match per_ring {
        true => first == 0 && count == 1,
        false => count == 1,
    };
    if fits && (count as usize) < cores {
        return Ok(());
    }
    let text = format!("{count} cores from {first}: one, of more than one that there are");
    Err(Refusal::BadValue(text))
}
