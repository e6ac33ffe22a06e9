//! Ports of the host's network interfaces: permission, creation and removal.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use hostif::HostError;
use protocol::name::PortName;
use protocol::{
    Bind, BindKind, HostIf, HostIfInfo, InterfaceAttach, PortAdd, PortKind, Reply, check,
};
use switch::PortConfig;

use crate::control::Control;
use crate::control::datapath::Datapath;
use crate::control::groups::declared::Declared;
use crate::control::interfaces::refusal::InterfaceRefusal;
use crate::control::refusal::{AccessRefusal, Refusal};
use crate::control::state::Port;
use crate::model::error::MakeHostError;
use crate::model::groups::{shown_group, trust_group};
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::plan::Origin;
use crate::model::policy::{Access, Caller};
use crate::model::specs::HostSpec;
use crate::store::record::Checked;

impl<D: Datapath> Control<D> {
    /// One is readable when something has happened to an interface of the host, or a worker has a
    /// notice.
    pub fn host_bells(&self) -> Vec<BorrowedFd<'_>> {
        self.datapath.host_bells()
    }

    /// Handles what has happened to interfaces and machines, and the notices of workers.
    pub fn poll_host(&mut self) {
        self.datapath.take_host_events();
        self.log_notices();
        self.refresh_groups();
    }

    pub(in crate::control) fn host_info(&self, port: &Port) -> Option<HostIfInfo> {
        port.host.as_ref().and_then(|_| self.datapath.host_info(port.key))
    }

    /// Whether a netmap program may have an interface of the system, or the host's side of it.
    pub(in crate::control) fn check_host(
        &self,
        caller: &Caller,
        port: &PortName,
    ) -> Result<(), Refusal> {
        let ifname = port.interface_name();
        let nic = PortName::interface(ifname)?;
        if port.is_host_side()
            && self.state.home(&nic).is_some_and(|it| self.state.interface(&it).is_some())
        {
            return Err(InterfaceRefusal::NoHostSide(nic).into());
        }
        if !hostif::exists(ifname) {
            return Err(InterfaceRefusal::Missing(port.clone()).into());
        }
        if !caller.privileged {
            return Err(AccessRefusal::Host.into());
        }
        let kind = kind_of(port);
        let is_it = |other: &Port| {
            let host = other.host.as_ref().filter(|host| host.netns.is_none());
            other.kind == kind && host.is_some_and(|host| host.ifname.as_deref() == Some(ifname))
        };
        match self.state.ports().find(|(_, other)| is_it(other)) {
            Some((name, _)) => Err(InterfaceRefusal::HostTaken(name.clone()).into()),
            None => Ok(()),
        }
    }

    /// Puts the interface of the system into the switch of a port that programs have bound.
    pub(in crate::control) fn connect_host(
        &mut self,
        name: &PortName,
        switch: SwitchKey,
        bound: PortKey,
    ) -> Result<(), Refusal> {
        let key = PortKey(self.state.new_key());
        let (kind, host) = (kind_of(name), host_of(name));
        let (name, config) = (name.clone(), PortConfig::default());
        let opening = self.opened(kind, &host);
        self.add_alone(HostSpec { key, name, switch, kind, host, config, opening })?;
        self.notes.uplinks.insert(bound, key);
        Ok(())
    }

    /// Makes the port's interface, with the host cut off from it where that can be.
    fn add_alone(&mut self, mut spec: HostSpec) -> Result<(), Refusal> {
        match self.datapath.add_host(&spec) {
            Err(MakeHostError::Host(
                error @ (HostError::MayNotCut(_) | HostError::CannotCut(_)),
            )) if spec.host.alone => {
                tracing::warn!("{}: the host goes on to use it: {error}", spec.name);
                (spec.host.alone, spec.opening) = (false, None);
                Ok(self.datapath.add_host(&spec)?)
            }
            made => Ok(made?),
        }
    }

    /// The interfaces of the system that a call will put into a switch; `None`: it will not.
    pub(in crate::control) fn attached_host(
        &self,
        caller: &Caller,
        attach: &InterfaceAttach,
    ) -> Option<Vec<(PortKind, HostIf)>> {
        let to = &attach.port;
        let interface = PortName::interface(to.port()).ok()?;
        let is_ours = self.state.home(&interface).is_some() || self.state.find_port(to).is_some();
        if is_ours || to.is_interface() || to.pipe().is_some() {
            return None;
        }
        let mut sides = vec![to.clone()];
        if attach.host {
            sides.push(to.host_side().ok()?);
        }
        for port in &sides {
            self.check_host(caller, &PortName::interface(port.port()).ok()?).ok()?;
            self.state.check_persistent(caller, port).ok()?;
        }
        Some(sides.iter().map(|port| (kind_of(port), host_of(port))).collect())
    }

    /// Whether the caller may bind an interface of the host by its own name.
    pub(in crate::control) fn bound_host(
        &self,
        caller: &Caller,
        bind: &Bind,
    ) -> Option<Vec<(PortKind, HostIf)>> {
        let is_first = |port: &PortName| {
            let none = self.state.home(port).is_none() && self.state.shared(port).is_none();
            port.is_interface() && port.pipe().is_none() && none
        };
        let mut sides = vec![bind.port.clone()];
        if bind.host.is_some() {
            sides.push(bind.port.host_side().ok()?);
        }
        sides.retain(is_first);
        if bind.kind != BindKind::Port || sides.is_empty() {
            return None;
        }
        for port in &sides {
            self.check_host(caller, port).ok()?;
        }
        Some(sides.iter().map(|port| (kind_of(port), host_of(port))).collect())
    }

    /// Puts an interface of the system into a switch, with the host's side or without.
    pub(in crate::control) fn attach_host(
        &mut self,
        caller: &Caller,
        to: &PortName,
        host_side: bool,
    ) -> Result<Reply, Refusal> {
        let sides = match host_side {
            false => vec![to.clone()],
            true => vec![to.clone(), to.host_side()?],
        };
        let interface = PortName::interface(to.port())?;
        if self.state.shared(&interface).is_some() {
            return Err(InterfaceRefusal::HostTaken(interface).into());
        }
        for port in &sides {
            let interface = PortName::interface(port.port())?;
            self.check_host(caller, &interface)?;
            self.state.check_persistent(caller, port)?;
        }
        let switch = self.find_or_make(caller, to.switch())?;
        for (made, port) in sides.iter().enumerate() {
            let (kind, host) = (kind_of(port), host_of(port));
            let key = PortKey(self.state.new_key());
            let (name, config) = (port.clone(), PortConfig::of_user(caller.uid));
            let opening = self.opened(kind, &host);
            let entry = Port::persistent(key, kind, caller.uid, config.clone());
            let entry = Port { host: Some(Box::new(host.clone())), ..entry };
            let spec = HostSpec { key, name, switch, kind, host, config, opening };
            if let Err(refusal) = self.add_alone(spec) {
                sides[..made].iter().for_each(|port| self.drop_port(port));
                if let Some(switch) = self.state.forget_switch(to.switch()) {
                    self.datapath.del_switch(switch);
                }
                return Err(refusal);
            }
            self.state.add_port(port.clone(), entry);
        }
        self.refresh_steering(to.switch());
        self.refresh_programs(to);
        Ok(Reply::Done)
    }

    /// Takes an interface of the system, with both its sides, out of a switch.
    pub(in crate::control) fn detach_host(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        self.state.port(caller, name, Access::Manage)?;
        self.drop_port(name);
        if let Ok(side) = name.host_side()
            && self.state.find_port(&side).is_some_and(|port| port.host.is_some())
        {
            self.drop_port(&side);
        }
        Ok(Reply::Done)
    }

    /// Makes the port's interface. That of a plan is opened by another thread, and waited for if it
    /// cannot be had now.
    pub(in crate::control) fn add_host(
        &mut self,
        spec: &HostSpec,
        owner: u32,
        origin: Origin,
    ) -> Result<(), Refusal> {
        let added = match origin {
            Origin::Plan => self.datapath.add_host_later(spec),
            Origin::Call => {
                self.check_group_of(owner, &spec.host)?;
                self.datapath.add_host(spec)
            }
        };
        self.charge_group_of(owner, &spec.host);
        Ok(added?)
    }

    /// Forgets saved ports whose interfaces ended with the daemon before this one.
    pub fn forget_lost(&mut self, record: &mut Checked) {
        let is_left = |port: &_, kind, host: &_| self.datapath.inherits(port, kind, host);
        let lost = record.forget_lost(is_left);
        self.notes.forgotten.extend(lost);
    }

    /// Gives the interfaces that are being opened some time for it.
    pub fn await_interfaces(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        self.datapath.discard_inherited();
        self.datapath.await_interfaces(PATIENCE);
    }
}

/// What is behind a port with the name of an interface, or of the host's side of one.
fn kind_of(name: &PortName) -> PortKind {
    if name.is_host_side() { PortKind::Stack } else { PortKind::Packet }
}

/// The interface of a port with its name.
fn host_of(name: &PortName) -> HostIf {
    let ifname = Some(name.interface_name().to_owned());
    HostIf { ifname, alone: !name.is_host_side(), ..HostIf::default() }
}

/// The interface that a new port is to have. It is opened with the daemon's rights, so it is for
/// users that have these anyway.
pub(in crate::control) fn request_of(
    caller: &Caller,
    add: &PortAdd,
    declared: &Declared,
) -> Result<Option<HostIf>, Refusal> {
    if add.kind.is_host() && !caller.privileged {
        return Err(AccessRefusal::Host.into());
    }
    let host = check::host(&add.port, add.kind, add.host.as_ref());
    let mut host = host.map_err(Refusal::bad_value)?;
    if let Some(group) = host.as_mut().and_then(|host| host.trust_group.as_mut())
        && !group.contains('/')
    {
        *group = format!("{}/{group}", declared.owner(group, caller.uid));
    }
    Ok(host)
}

/// The trust group of a port's interface; whose it is, if not the port's owner's.
pub(in crate::control) fn trust_group_of(port: &Port) -> Option<String> {
    let group = trust_group(port.host.as_ref()?.trust_group.as_ref()?)?;
    Some(shown_group(&group, port.owner))
}
