//! Virtual interfaces: ports that have a name of their own.
//!
//! ```text
//!            add                    attach
//!  (none) ───────► netmap:v0 ◄──────────────────► vale0:v0
//!            ◄───────           detach
//!             delete
//! ```
//!
//! An interface is one port with one entry, under the name of its place: in a switch of its own, or
//! in the switch that it is attached to; `netmap:v0` finds it in both. It has its rings and its
//! memory region from the beginning. No client may hold it when it is attached; programs that hold
//! it when it is detached go with it.
//!
//! Attached to a second switch, it loses its rings and becomes a cable between both, and is
//! detached from the second switch before the first. The next daemon restores it in the first only.

pub mod host;
pub mod refusal;

use protocol::name::PortName;
use protocol::{InterfaceAdd, InterfaceAttach, InterfacePoll, PollThreads, PortKind, Reply};
use switch::PortConfig;

use super::Control;
use crate::control::datapath::Datapath;
use crate::control::interfaces::refusal::InterfaceRefusal;
use crate::control::netmap::regions::needs_of;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::control::state::shared::{COMMON, Interface};
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::plan::{InterfaceText, PortPlan};
use crate::model::policy::{Access, Caller, Grant, Permissions};
use crate::model::settings;
use crate::model::settings::RequestedRings;
use crate::model::specs::RegionSpec;

impl<D: Datapath> Control<D> {
    pub(super) fn interface_add(
        &mut self,
        caller: &Caller,
        add: &InterfaceAdd,
    ) -> Result<Reply, Refusal> {
        let name = &add.port;
        if !name.is_interface() || name.pipe().is_some() {
            return Err(InterfaceRefusal::BadName(name.clone()).into());
        }
        if self.state.home(name).is_some() || hostif::exists(name.interface_name()) {
            return Err(InterfaceRefusal::Exists(name.clone()).into());
        }
        self.state.check_persistent(caller, name)?;
        let region = self.state.region(caller, add.mem_id)?;
        let rings = settings::bound_rings(&RequestedRings::from(add), &self.defaults.rings);
        let needs = needs_of(&rings, 0);
        needs.least().ok_or_else(|| PortRefusal::TooLarge(name.clone()))?;
        let place = self.place(caller.uid, region, &needs, None)?;
        let spec = place.spec();
        let mem_id = self.datapath.keep_region(&spec, name)?;
        if let Err(refusal) = self.find_or_make(caller, name.switch()) {
            self.datapath.drop_region(mem_id);
            return Err(refusal);
        }
        let (region, common) = (place.region(mem_id), add.mem_id == COMMON);
        let interface = Interface { rings, region, common, group: caller.gid };
        let (config, grant) = (PortConfig::default(), Grant::default());
        self.enter_interface(caller.uid, name, config, grant, interface);
        Ok(Reply::PortGeometry(self.sizes(&RegionSpec::Known(mem_id), &rings)))
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
            tracing::warn!(
                "{name}: the interface is already in another switch; the daemon does not restore \
                 it here"
            );
            return Ok(());
        }
        let rings = settings::bound_rings(&RequestedRings::from(text), &self.defaults.rings);
        let place = self.restored_region(owner, &needs_of(&rings, 0))?;
        let mem_id = self.datapath.keep_region(&place.spec(), name)?;
        let region = place.region(mem_id);
        let interface = Interface { rings, region, common: false, group: text.group };
        self.enter_interface(owner, name, plan.config.clone(), plan.grant, interface);
        Ok(())
    }

    fn enter_interface(
        &mut self,
        owner: u32,
        name: &PortName,
        config: PortConfig,
        grant: Grant,
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
        let home = self.state.home(name).ok_or_else(|| PortRefusal::Missing(name.clone()))?;
        let port = self.state.port(caller, &home, Access::Manage)?;
        if port.interface.is_none() {
            return Err(InterfaceRefusal::CameWithPipes(home).into());
        }
        if !home.is_interface() {
            return Err(InterfaceRefusal::AttachedTo(home).into());
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
            return Err(InterfaceRefusal::BadName(to.clone()).into());
        }
        self.state.region(caller, attach.mem_id)?;
        let interface = PortName::interface(to.port())?;
        let known = self.state.home(&interface);
        // This is not lost to a client that looks for it: a port of that name is no interface.
        if self.state.find_port(to).is_some() {
            return Err(InterfaceRefusal::PortTaken(to.clone()).into());
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
        self.check_idle(home)?;
        if !home.is_interface() {
            return self.join_switches(caller, home, to);
        }
        self.state.check_place(caller, to)?;
        self.find_or_make(caller, to.switch())?;
        self.move_port(home, to);
        Ok(Reply::Done)
    }

    /// Puts an interface that is in a switch into a second one.
    fn join_switches(
        &mut self,
        caller: &Caller,
        first: &PortName,
        second: &PortName,
    ) -> Result<Reply, Refusal> {
        self.state.check_persistent(caller, second)?;
        let keys = [(); 2].map(|()| PortKey(self.state.new_key()));
        let there = self.state.find_switch(first.switch()).expect("a port has a switch").key;
        let config = self.state.find_port(first).expect("it is there").config.clone();
        let here = self.find_or_make(caller, second.switch())?;
        let other = PortConfig::of_user(caller.uid);
        let ends = [(keys[0], there, config), (keys[1], here, other.clone())];
        if let Err(error) = self.datapath.add_cable(ends) {
            if let Some(switch) = self.state.forget_switch(second.switch()) {
                self.datapath.del_switch(switch);
            }
            return Err(error.into());
        }
        self.state.join_port(first, keys[0], second.clone());
        let end = Port::persistent(keys[1], PortKind::Shm, caller.uid, other);
        self.state.add_port(second.clone(), Port { cable: Some(first.clone()), ..end });
        self.refresh_port(first);
        self.refresh_programs(second);
        Ok(Reply::Done)
    }

    /// Takes an interface that is in two switches out of the second, whichever port is meant.
    pub(super) fn part_switches(&mut self, name: &PortName) {
        let Some(port) = self.state.find_port(name) else { return };
        let Some(other) = port.cable.clone() else { return };
        let first_is_meant = port.interface.is_some();
        let [first, second] = if first_is_meant { [name, &other] } else { [&other, name] };
        let gone = self.state.remove_port(second);
        self.account_gone(second, &gone);
        let gone = self.state.release(first);
        self.account_gone(first, &gone);
    }

    pub(super) fn interface_detach(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, name, Access::Look)?;
        if port.host.is_some() {
            if self.notes.polled.contains(&port.key) {
                return Err(InterfaceRefusal::PollState(name.clone()).into());
            }
            return self.detach_host(caller, name);
        }
        if port.cable.is_some() {
            let is_first = port.interface.is_some();
            self.state.port(caller, name, Access::Manage)?;
            if is_first {
                self.check_idle(name)?;
            }
            self.part_switches(name);
            return Ok(Reply::Done);
        }
        // As in netmap, ports that came with a program stay where they are, which is no error.
        let (owner, mode) = (port.owner, self.defaults.switch_mode);
        let Some(Interface { group, .. }) = port.interface else { return Ok(Reply::Done) };
        let port = self.state.port(caller, name, Access::Manage)?;
        let (held, config) = (port.is_live().then_some(port.key), port.config.clone());
        self.check_movable(name)?;
        let to = PortName::interface(name.port())?;
        if to != *name {
            let beside = self.state.find_switch(name.switch()).map(|switch| switch.key);
            let alone = settings::new_switch(to.switch());
            let permissions = Permissions { owner, group, mode };
            let switch = self.make_switch(to.switch(), false, permissions, alone, beside)?;
            if let Some(key) = held {
                self.datapath.move_bound(key, &to, switch, config);
            }
            self.move_port(name, &to);
        }
        Ok(Reply::Done)
    }

    /// Checks that all programs that hold an interface can go with it. Native clients, holders of
    /// pipes, and programs that are just opening it know it by its switch.
    fn check_movable(&self, name: &PortName) -> Result<(), Refusal> {
        let port = self.state.find_port(name).expect("it is there");
        let opened = self.pending.building.values().any(|building| building.name == *name);
        let pipes = self.state.pipes_of(name).next().is_some();
        match port.bound.as_ref().is_some_and(|shared| shared.ready) && !opened && !pipes {
            true => Ok(()),
            false => self.check_idle(name),
        }
    }

    pub(super) fn interface_poll(
        &mut self,
        caller: &Caller,
        poll: &InterfacePoll,
    ) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &poll.port, Access::Manage)?;
        if port.host.is_none() {
            return Err(InterfaceRefusal::NotPolled(poll.port.clone()).into());
        }
        let key = port.key;
        let changed = match &poll.threads {
            Some(threads) => {
                check_threads(threads)?;
                self.notes.polled.insert(key)
            }
            None => self.notes.polled.remove(&key),
        };
        match changed {
            true => Ok(Reply::Done),
            false => Err(InterfaceRefusal::PollState(poll.port.clone()).into()),
        }
    }

    /// Moves a port to another switch, which is there.
    fn move_port(&mut self, from: &PortName, to: &PortName) {
        let left: Option<SwitchKey> = self.state.move_port(from, to.clone());
        self.refresh_port(from);
        self.refresh_steering(to.switch());
        self.refresh_programs(to);
        if let Some(switch) = left {
            self.datapath.del_switch(switch);
        }
    }

    fn check_idle(&self, name: &PortName) -> Result<(), Refusal> {
        self.state.check_alone(name)?;
        match self.state.user_of(name) {
            None => Ok(()),
            Some((pid, uid)) => Err(PortRefusal::InUse { port: name.clone(), pid, uid }.into()),
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
    let text =
        format!("cannot poll on {count} cores from core {first}: expected one core of several");
    Err(Refusal::bad_value(text))
}
