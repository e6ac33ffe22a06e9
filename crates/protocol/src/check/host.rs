//! Ports with a network interface of the host: which options fit which kind.

use packet::shown::is_shown;

use super::{named, unicast};
use crate::name::{PortName, SwitchName};
use crate::{Address, HostIf, PortKind, PortOption, Queues};

/// The options that the request sets, for a message.
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
        ("fd", host.fds > 0),
    ];
    named(&each)
}

/// Parses a trust group, `UID/NAME` or `NAME`: its owner, if the text says so, and its name.
#[must_use]
pub fn trust_group(text: &str) -> Option<(Option<u32>, &str)> {
    let (uid, name) = match text.split_once('/') {
        Some((uid, name)) => (Some(uid.parse().ok()?), name),
        None => (None, text),
    };
    is_group_name(name).then_some((uid, name))
}

/// Whether the request sets properties of the interface itself.
fn sets_link(host: &HostIf) -> bool {
    host.mtu.is_some() || host.mac.is_some() || host.address.is_some()
}

/// Checks a port of a kind that has no interface.
fn no_interface(port: &PortName, kind: PortKind, host: Option<&HostIf>) -> Result<(), String> {
    let Some(host) = host else {
        let is_side = port.is_host_side();
        let why = || format!("{port}: '^' is the host's side of an interface: use kind stack");
        return if is_side { Err(why()) } else { Ok(()) };
    };
    let kinds = match sets_link(host) {
        true => PortKind::names_with(PortOption::LinkSettings),
        false => PortKind::interface_names(),
    };
    Err(format!("{}: not for kind {}, only for {kinds}", said(host), kind.name()))
}

const TRUST_GROUP: &str = "trust_group: only letters, digits and '_', as in nf, or with the number \
                           of the user whose group it is, as in 1000/nf";

/// Checks the interface of a port of this kind, and fills in the interface's name; `None` for kinds
/// that have none.
///
/// # Errors
/// What does not go together, and what does.
pub fn host(
    port: &PortName,
    kind: PortKind,
    host: Option<&HostIf>,
) -> Result<Option<HostIf>, String> {
    if !kind.is_host() {
        return no_interface(port, kind, host).map(|()| None);
    }
    let mut host = host.cloned().unwrap_or_default();
    let sets = sets_link(&host);
    if sets && !kind.takes(PortOption::LinkSettings) {
        let what = "mtu, mac and address: only for kind tap; use ip link and ip address for other \
                    interfaces";
        return Err(what.to_owned());
    }
    if let Some(mac) = host.mac {
        unicast(mac).map_err(|error| format!("mac: {error}"))?;
    }
    host.address.map_or(Ok(()), Address::check_host).map_err(|error| error.to_string())?;
    if host.address.is_some_and(|it| it.ip.is_ipv6()) && host.mtu.is_some_and(|mtu| mtu < 1280) {
        return Err("mtu: an IPv6 address needs at least 1280".to_owned());
    }
    let given = [
        ("alone", host.alone, PortOption::Alone),
        ("filter", host.filter.is_some(), PortOption::Filter),
        ("trust_group", host.trust_group.is_some(), PortOption::TrustGroup),
    ];
    for (name, is_set, option) in given {
        if is_set && !kind.takes(option) {
            return Err(format!("{name}: only for kind {}", PortKind::names_with(option)));
        }
    }
    if host.trust_group.as_deref().is_some_and(|group| trust_group(group).is_none()) {
        return Err(TRUST_GROUP.to_owned());
    }
    match &host.queues {
        Some(_) if !kind.takes(PortOption::QueueCount) => {
            return Err("queues: only for kinds tap, xdp and vhost-user".to_owned());
        }
        Some(Queues::Set(_)) if !kind.takes(PortOption::QueueNumbers) => {
            return Err(format!("queues: a {} takes a number of queues", kind.name()));
        }
        _ => {}
    }
    let named = host.ifname.is_some() || host.netns.is_some() || host.queues.is_some();
    if host.fds > 0 && (!kind.takes(PortOption::Descriptors) || sets || named) {
        let what = "fd: only for kind tap; an open TAP has its ifname, mtu, mac, address, netns \
                    and queues: leave them out";
        return Err(what.to_owned());
    }
    let name = host.ifname.get_or_insert_with(|| port.interface_name().to_owned());
    if !is_interface_name(name) {
        return Err(format!("{name:?} {INTERFACE_NAME}"));
    }
    Ok(Some(host))
}

/// Whether a trust group may have this name: the rules are those of port names.
#[must_use]
pub fn is_group_name(group: &str) -> bool {
    let name = format!("{}:{group}", SwitchName::PREFIX).parse::<PortName>();
    name.is_ok_and(|name| name.pipe().is_none())
}

/// Whether an interface of the host may have this name.
#[must_use]
pub fn is_interface_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || !is_shown(c);
    (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.contains(bad)
}

const INTERFACE_NAME: &str = "is not a name of an interface: 1 to 15 letters, without '/', ':', \
                              '%' and spaces; choose such an ifname";
