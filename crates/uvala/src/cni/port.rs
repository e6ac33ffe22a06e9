//! The port of a container's interface: its name, its label, and the calls about it.

use client::control::{Connection, ControlError, unexpected};
use packet::hash::fnv1a;
use protocol::name::PortName;
use protocol::{
    ErrorCode, HostIf, LABEL_MAX, PortAdd, PortInfo, PortKind, PortRef, PortRequest, PortSettings,
    Reply, Request, check,
};

/// The port of an interface of a container in a network of a plugin: names of containers are longer
/// than those of ports.
pub fn name(plugin: char, network: &str, container: &str, ifname: &str) -> String {
    let bytes = container.bytes().chain([0]).chain(ifname.bytes());
    format!("{}{:016x}", network_name(plugin, network), fnv1a(bytes))
}

/// How the names of a network's ports begin.
pub fn network_name(plugin: char, network: &str) -> String {
    format!("{plugin}{:08x}_", fnv1a(network.bytes()) & 0xffff_ffff)
}

/// A container's name as a label. It decorates a listing, so a name that is too long is cut, and
/// one that cannot be shown is left out.
pub fn label(container: &str) -> Option<String> {
    let label: String = container.chars().take(LABEL_MAX).collect();
    check::label(Some(&label)).ok().flatten().map(str::to_owned)
}

/// Makes a port with an interface in a namespace.
pub fn add(
    connection: &Connection,
    port: &PortName,
    host: HostIf,
    settings: PortSettings,
) -> Result<(), ControlError> {
    let (port, kind, host) = (port.clone(), PortKind::Tap, Some(host));
    let add = PortAdd { port, kind, settings, host, machine: None, vxlan: None };
    connection.call(Request::Port(PortRequest::Add(Box::new(add)))).map(drop)
}

pub fn show(connection: &Connection, port: &PortName) -> Result<PortInfo, ControlError> {
    let port = PortRef { port: port.clone() };
    match connection.call(Request::Port(PortRequest::Show(port)))? {
        Reply::Port(info) => Ok(info),
        other => Err(unexpected(&other)),
    }
}

/// Deletes a port, if it is there.
pub fn remove(connection: &Connection, port: &PortName) -> Result<(), ControlError> {
    let port = PortRef { port: port.clone() };
    match connection.call(Request::Port(PortRequest::Del(port))) {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn test_each_interface_of_each_container_has_a_port() {
        let names = [("a", "eth0"), ("a", "eth1"), ("b", "eth0"), ("ae", "th0")];
        let names = names.iter().flat_map(|(container, ifname)| {
            [('c', "lab"), ('c', "home"), ('n', "lab")]
                .map(|(plugin, network)| name(plugin, network, container, ifname))
        });
        let names: BTreeSet<_> = names.collect();
        assert_eq!(names.len(), 12);
        let of_lab = names.iter().filter(|name| name.starts_with(&network_name('c', "lab")));
        assert_eq!(of_lab.count(), 4);
        assert!(names.iter().all(|name| format!("vale0:{name}").parse::<PortName>().is_ok()));
    }
}
