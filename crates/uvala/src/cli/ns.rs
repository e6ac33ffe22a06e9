//! `uvala ns`

use std::io;
use std::net::IpAddr;

use hostif::{HostError, namespace};
use packet::{MacAddr, VlanMode};
use protocol::name::PortName;
use protocol::{
    Address, ErrorCode, Failure, HostIf, PortAdd, PortKind, PortRef, PortRequest, PortSettings,
    Request,
};

use super::Global;
use super::output::Output;
use super::target::{self, change, show};
use crate::cni::inside::{self, Route, everywhere};
use terminal::Usage;

/// Attach network namespaces and containers to a switch
///
/// A namespace is a name of `ip netns`, the PID of a process inside (such as a container's), or a
/// path.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add an interface to a namespace and attach it to a switch
    Attach {
        /// Network namespace
        #[arg(value_name = "NAME|PID|PATH")]
        namespace: String,
        /// Name of the port, such as vale0:web
        port: String,
        /// Name of the interface in the namespace
        #[arg(long, value_name = "NAME", default_value = "eth0")]
        ifname: String,
        /// IP address of the interface, such as 10.0.0.2/24; may be repeated
        #[arg(long, value_name = "IP/PREFIX")]
        address: Vec<Address>,
        /// Default gateway of the namespace; once for each address family
        #[arg(long, value_name = "IP", value_parser = target::ip)]
        gateway: Vec<IpAddr>,
        /// MTU of the interface
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u32>,
        /// MAC address of the interface [default: derived from host, namespace and name]
        #[arg(long, value_name = "MAC")]
        mac: Option<MacAddr>,
        /// VLANs of the port, as for `uvala port add`
        #[arg(long, value_name = "VLAN")]
        vlan: Option<VlanMode>,
        #[command(flatten)]
        output: Output,
    },
    /// Delete an interface that attach made, and its port
    Detach {
        /// Name of the port
        port: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Action::Attach { namespace, port, ifname, address, gateway, mtu, mac, vlan, output } =
        &args.action
    else {
        let Action::Detach { port, output } = &args.action else { unreachable!("two of them") };
        return detach(global, port.parse()?, *output);
    };
    check(address, gateway, *mtu)?;
    let port: PortName = port.parse()?;
    let host = HostIf {
        ifname: Some(ifname.clone()),
        netns: Some(namespace.clone()),
        mtu: *mtu,
        mac: *mac,
        // The daemon adds one; so the usual case needs no right to enter.
        address: address.first().copied(),
        ..HostIf::default()
    };
    let settings = PortSettings { vlan: vlan.clone(), ..PortSettings::default() };
    let (kind, host) = (PortKind::Tap, Some(host));
    let add = PortAdd { port: port.clone(), kind, settings, host, machine: None, vxlan: None };
    let connection = global.connect()?;
    connection.call(Request::Port(PortRequest::Add(Box::new(add))))?;
    let more = address.get(1..).unwrap_or_default();
    if more.is_empty() && gateway.is_empty() {
        return output.done();
    }
    let routes: Vec<_> = gateway.iter().copied().map(everywhere).collect();
    finish(namespace, ifname, more, &routes).map_err(|error| {
        // What is there is half of what was asked for.
        let left = connection.call(Request::Port(PortRequest::Del(PortRef { port })));
        let left = if left.is_ok() { "nothing is left" } else { "the port is left" };
        error.context(format!("{ifname} in {namespace} ({left})"))
    })?;
    output.done()
}

/// What the daemon does not do: this takes the right to enter.
fn finish(
    namespace: &str,
    ifname: &str,
    addresses: &[Address],
    routes: &[Route],
) -> anyhow::Result<()> {
    let may_not = || {
        let cure = "a gateway, or more than one address, needs permission to enter the namespace: \
                    run this as root, or leave them out";
        Failure::new(ErrorCode::Permission, cure)
    };
    let entered = namespace::open(namespace).map_err(|error| match error {
        HostError::MayNotEnter(_) => may_not(),
        error => Failure::new(ErrorCode::NotFound, error.to_string()),
    })?;
    let done = inside::within(&entered, || inside::set_up(ifname, addresses, routes));
    done.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => may_not().into(),
        _ => error.into(),
    })
}

/// Whether the stack could mean this: a gateway is another host on a network of the interface's.
fn check(addresses: &[Address], gateways: &[IpAddr], mtu: Option<u32>) -> Result<(), Usage> {
    if let Some(mtu @ 0..1280) = mtu
        && addresses.iter().any(|address| address.ip.is_ipv6())
    {
        return Err(Usage(format!("--mtu {mtu}: IPv6 takes 1280 bytes at least")));
    }
    for address in addresses {
        address.check_host().map_err(|error| Usage(format!("--address: {error}")))?;
    }
    for (at, &gateway) in gateways.iter().enumerate() {
        let is_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let alone = Address::alone(gateway);
        let why = if alone.check_host().is_err() {
            "is no address of a host"
        } else if addresses.iter().any(|address| address.ip == gateway) {
            "is the interface's own address; name a router in its network"
        } else if !is_local && !addresses.iter().any(|address| alone.is_within(*address)) {
            "is in no network of an --address; add one of its network, or name another gateway"
        } else if gateways[..at].iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
            "is the second of its family; name one"
        } else {
            continue;
        };
        return Err(Usage(format!("--gateway {gateway} {why}")));
    }
    Ok(())
}

/// Detaches what `attach` made; other ports belong to a machine, or connect the host.
fn detach(global: &Global, port: PortName, output: Output) -> anyhow::Result<()> {
    let info = show(&global.connect()?, &port)?;
    let is_attached =
        info.kind == PortKind::Tap && info.host.is_some_and(|host| host.netns.is_some());
    if !is_attached {
        let why = format!(
            "{port} is not an interface in a namespace; to delete the port: uvala port del {port}"
        );
        return Err(Failure::new(ErrorCode::Unsupported, why).into());
    }
    change(global, Request::Port(PortRequest::Del(PortRef { port })), output)
}

const EXAMPLES: &str = "\
Examples:
  uvala ns attach red vale0:red --address 10.0.0.2/24
  uvala ns attach $(podman inspect -f '{{.State.Pid}}' web) vale0:web --address 10.0.0.3/24 \\
      --gateway 10.0.0.1
  uvala ns detach vale0:red";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gateways_are_others_in_a_network_of_the_interface() {
        let check = |addresses: &str, gateways: &str| {
            let addresses: Vec<Address> =
                addresses.split(' ').map(|a| a.parse().unwrap()).collect();
            let gateways: Vec<IpAddr> = gateways.split(' ').map(|g| g.parse().unwrap()).collect();
            check(&addresses, &gateways, Some(1280)).map_err(|error| error.to_string())
        };
        let both = "10.0.0.2/24 fd00::2/64";
        for good in ["10.0.0.1", "fd00::1 10.0.0.254", "fe80::1"] {
            check(both, good).unwrap();
        }
        for (bad, why) in [
            ("10.9.9.9", "in no network of an --address"),
            ("fd01::1", "in no network of an --address"),
            ("10.0.0.2", "the interface's own address"),
            ("10.0.0.1 fd00::1 10.0.0.3", "10.0.0.3 is the second"),
            ("0.0.0.0", "no address of a host"),
            ("ff02::1", "no address of a host"),
        ] {
            assert!(check(both, bad).unwrap_err().contains(why), "{bad}");
        }
        assert!(check("224.0.0.1/24", "10.0.0.1").unwrap_err().contains("--address"));
        let small = super::check(&["fd00::1/64".parse().unwrap()], &[], Some(1279));
        assert!(small.unwrap_err().to_string().contains("1280"));
    }
}
