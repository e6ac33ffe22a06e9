//! Ports of the host's network interfaces: who may have them, and what becomes of them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use packet::MacAddr;
use port::host::HostError;
use protocol::name::PortName;
use protocol::{
    Address, Bind, BindKind, HostIf, HostIfInfo, InterfaceAttach, PortAdd, PortKind, Queues, Reply,
};
use switch::PortConfig;

use super::Control;
use crate::control::datapath::Datapath;
use crate::control::declared::{Declared, is_group_name};
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::control::statics::check_station;
use crate::model::error::MakeHostError;
use crate::model::keys::{GroupKey, PortKey, SwitchKey};
use crate::model::policy::{Access, Caller};
use crate::model::specs::HostSpec;

impl<D: Datapath> Control<D> {
    /// Readable when something has happened to an interface of the host.
    pub fn host_bell(&self) -> Option<BorrowedFd<'_>> {
        self.datapath.host_bell()
    }

    /// Takes note of it.
    pub fn hear_host(&mut self) {
        self.datapath.hear_host();
        self.tend_groups();
    }

    pub(super) fn host_info(&self, port: &Port) -> Option<HostIfInfo> {
        port.host.as_ref().and_then(|_| self.datapath.host_info(port.key))
    }

    /// Whether a netmap program may have an interface of the system, or the host's side of it.
    pub(super) fn check_host(&self, caller: &Caller, port: &PortName) -> Result<(), Refusal> {
        let ifname = port.interface_name();
        let nic = PortName::interface(ifname)?;
        if port.is_host_side()
            && self.state.home(&nic).is_some_and(|it| self.state.interface(&it).is_some())
        {
            return Err(Refusal::NoHostSide(nic));
        }
        if !port::host::exists(ifname) {
            return Err(Refusal::NoInterface(port.clone()));
        }
        if !caller.privileged {
            return Err(Refusal::HostPrivilege);
        }
        let kind = kind_of(port);
        let is_it = |other: &Port| {
            let host = other.host.as_ref().filter(|host| host.netns.is_none());
            other.kind == kind && host.is_some_and(|host| host.ifname.as_deref() == Some(ifname))
        };
        match self.state.ports().find(|(_, other)| is_it(other)) {
            Some((name, _)) => Err(Refusal::HostTaken(name.clone())),
            None => Ok(()),
        }
    }

    /// Puts the interface of the system into the switch of a port that programs have bound.
    pub(super) fn connect_host(
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
        self.uplinks.insert(bound, key);
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
    pub(super) fn attached_host(
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
            self.state.claim_persistent(caller, port).ok()?;
        }
        Some(sides.iter().map(|port| (kind_of(port), host_of(port))).collect())
    }

    /// The same for one that a program binds by its own name.
    pub(super) fn bound_host(
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
    pub(super) fn attach_host(
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
            return Err(Refusal::HostTaken(interface));
        }
        for port in &sides {
            let interface = PortName::interface(port.port())?;
            self.check_host(caller, &interface)?;
            self.state.claim_persistent(caller, port)?;
        }
        let switch = self.find_or_make(caller, to.switch())?;
        for (made, port) in sides.iter().enumerate() {
            let (kind, host) = (kind_of(port), host_of(port));
            let key = PortKey(self.state.new_key());
            let (name, config) = (port.clone(), PortConfig::default());
            let opening = self.opened(kind, &host);
            let spec = HostSpec { key, name, switch, kind, host: host.clone(), config, opening };
            if let Err(refusal) = self.add_alone(spec) {
                sides[..made].iter().for_each(|port| self.drop_port(port));
                if let Some(switch) = self.state.forget_switch(to.switch()) {
                    self.datapath.del_switch(switch);
                }
                return Err(refusal);
            }
            let port_of = Port::persistent(key, kind, caller.uid, PortConfig::default());
            let entry = Port { host: Some(Box::new(host)), ..port_of };
            self.state.add_port(port.clone(), entry);
        }
        self.tend_steering(to.switch());
        Ok(Reply::Done)
    }

    /// Takes an interface of the system, with both its sides, out of a switch.
    pub(super) fn detach_host(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        self.state.port(caller, name, Access::Manage)?;
        self.drop_port(name);
        if let Ok(side) = name.host_side()
            && self.state.port_mut(&side).is_some_and(|port| port.host.is_some())
        {
            self.drop_port(&side);
        }
        Ok(Reply::Done)
    }

    /// Makes the port's interface. Where `may_wait`, it is opened by another thread, and waited for
    /// if it cannot be had now.
    pub(super) fn add_host(
        &mut self,
        spec: &HostSpec,
        owner: u32,
        may_wait: bool,
    ) -> Result<(), Refusal> {
        if !may_wait {
            self.claim_group_of(owner, &spec.host)?;
        }
        let added = match may_wait {
            true => self.datapath.add_soon(spec),
            false => self.datapath.add_host(spec),
        };
        self.charge_group_of(owner, &spec.host);
        Ok(added?)
    }

    /// Gives the interfaces that are being opened some time for it.
    pub fn await_interfaces(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
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
/// those who have these anyway.
pub(super) fn wanted(
    caller: &Caller,
    add: &PortAdd,
    declared: &Declared,
) -> Result<Option<HostIf>, Refusal> {
    if add.kind.is_host() && !caller.privileged {
        return Err(Refusal::HostPrivilege);
    }
    let mut host = complete(&add.port, add.kind, add.host.as_ref()).map_err(Refusal::BadValue)?;
    if let Some(group) = host.as_mut().and_then(|host| host.trust_group.as_mut())
        && !group.contains('/')
    {
        *group = format!("{}/{group}", declared.owner(group, caller.uid));
    }
    Ok(host)
}

/// The options that say it.
fn said(host: &HostIf) -> String {
    let each = [
        ("ifname", host.ifname.is_some()),
        ("mtu", host.mtu.is_some()),
        ("mac", host.mac.is_some()),
        ("netns", host.netns.is_some()),
        ("address", host.address.is_some()),
        ("alone", host.alone),
        ("queues", host.queues.is_some()),
        ("filter", host.filter.is_some()),
        ("trust_group", host.trust_group.is_some()),
        ("uring", host.uring.is_some()),
        ("fd", host.fds > 0),
    ];
    named(&each)
}

/// Those of the options that are said.
pub(super) fn named(each: &[(&str, bool)]) -> String {
    let said = each.iter().filter(|(_, is_said)| *is_said).map(|(name, _)| *name);
    said.collect::<Vec<_>>().join(", ")
}

/// User and name of a trust group; of the daemon's, if no user is named.
pub fn trust_group(text: &str) -> Option<GroupKey> {
    let (uid, name) = match text.split_once('/') {
        Some((uid, name)) => (uid.parse().ok()?, name),
        None => (rustix::process::geteuid().as_raw(), text),
    };
    is_group_name(name).then(|| (uid, name.to_owned()))
}

/// The trust group of a port's interface; whose it is, if not the port's owner's.
pub(super) fn trust_group_of(port: &Port) -> Option<String> {
    let group = trust_group(port.host.as_ref()?.trust_group.as_ref()?)?;
    Some(shown_group(&group, port.owner))
}

/// The name of a group; whose it is, if not `owner`'s.
#[must_use]
pub fn shown_group((uid, name): &GroupKey, owner: u32) -> String {
    if *uid == owner { name.clone() } else { format!("{uid}/{name}") }
}

const TRUST_GROUP: &str = "trust_group: only letters, digits and '_', as in nf, or with the number \
                           of the user whose group it is, as in 1000/nf";

/// The interface of a port, with its name in any case.
pub fn complete(
    port: &PortName,
    kind: PortKind,
    host: Option<&HostIf>,
) -> Result<Option<HostIf>, String> {
    let host = host.cloned();
    if !kind.is_host() {
        return match host {
            None if port.is_host_side() => {
                Err(format!("{port}: '^' is the host's side of an interface: use kind stack"))
            }
            None => Ok(None),
            Some(host) => Err(format!(
                "{}: not for kind {}, only for tap, packet, xdp and stack",
                said(&host),
                kind.name()
            )),
        };
    }
    let mut host = host.unwrap_or_default();
    let sets = host.mtu.is_some() || host.mac.is_some() || host.address.is_some();
    if kind != PortKind::Tap && sets {
        let what = "mtu, mac, address: only a tap is changed; use ip link for other interfaces";
        return Err(what.to_owned());
    }
    if let Some(mac) = host.mac {
        check_station(MacAddr::new(mac.0)).map_err(|error| format!("mac: {error}"))?;
    }
    host.address.map_or(Ok(()), Address::check_host).map_err(|error| error.to_string())?;
    if host.address.is_some_and(|it| it.ip.is_ipv6()) && host.mtu.is_some_and(|mtu| mtu < 1280) {
        return Err("mtu: IPv6, which the address is of, takes 1280 bytes at least".to_owned());
    }
    if kind != PortKind::Packet && host.alone {
        return Err("alone: only for kind packet".to_owned());
    }
    if kind != PortKind::Tap && host.uring.is_some() {
        return Err("uring: only for kind tap".to_owned());
    }
    if kind != PortKind::Xdp && host.filter.is_some() {
        return Err("filter: only for kind xdp".to_owned());
    }
    match &host.trust_group {
        Some(_) if kind != PortKind::Xdp => return Err("trust_group: only for kind xdp".to_owned()),
        Some(group) if trust_group(group).is_none() => return Err(TRUST_GROUP.to_owned()),
        _ => {}
    }
    match (&host.queues, kind) {
        (None, _) | (_, PortKind::Xdp) | (Some(Queues::First(_)), PortKind::Tap) => {}
        (Some(_), PortKind::Tap) => return Err("queues: a tap has so many: a number".to_owned()),
        (Some(_), _) => return Err("queues: only for kinds tap, xdp and vhost-user".to_owned()),
    }
    let named = host.ifname.is_some() || host.netns.is_some() || host.queues.is_some();
    if host.fds > 0 && (kind != PortKind::Tap || sets || named) {
        let what = "fd: only for kind tap, and what is open has its ifname, mtu, mac, address, \
                    netns and queues: leave them out";
        return Err(what.to_owned());
    }
    let name = host.ifname.get_or_insert_with(|| port.interface_name().to_owned());
    port::host::check_name(name).map_err(|error| error.to_string())?;
    Ok(Some(host))
}
