//! `uvala ns`

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use client::api::{
    Address, ErrorCode, Failure, HostIf, Mac, PortAdd, PortKind, PortRef, PortSettings, Request,
};
use client::name::PortName;

use super::output::Output;
use super::switch::change;
use super::vm_args::show;
use super::{Global, Usage};
use crate::cni::inside::{self, everywhere};

/// Put network namespaces and containers on a switch
///
/// A namespace is one of `ip netns`, the number of a process that is in it (such as a container's),
/// or a path.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make an interface in a namespace, as a port of a switch
    Attach {
        /// The namespace
        #[arg(value_name = "NAME|PID|PATH")]
        namespace: String,
        /// Name of the port, such as vale0:web
        port: String,
        /// Name of the interface in the namespace
        #[arg(long, value_name = "NAME", default_value = "eth0")]
        ifname: String,
        /// Its IP addresses, such as 10.0.0.2/24; may be given several times
        #[arg(long, value_name = "IP/PREFIX")]
        address: Vec<Address>,
        /// Who leads out of that network: its default route; may be given once for each family
        #[arg(long, value_name = "IP")]
        gateway: Vec<IpAddr>,
        /// Its MTU
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u32>,
        /// Its Ethernet address
        #[arg(long, value_name = "MAC")]
        mac: Option<Mac>,
        /// VLANs of the port, as for `uvala port add`
        #[arg(long, value_name = "VLAN")]
        vlan: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Take it away again
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
    let path = path_of(namespace)?;
    let port: PortName = port.parse()?;
    let host = HostIf {
        ifname: Some(ifname.clone()),
        netns: Some(namespace.clone()),
        mtu: *mtu,
        mac: *mac,
        // The daemon adds one; so nobody needs the right to enter for the usual case.
        address: address.first().copied(),
        ..HostIf::default()
    };
    let settings = PortSettings { vlan: vlan.clone(), ..PortSettings::default() };
    let (kind, host) = (PortKind::Tap, Some(host));
    let add = PortAdd { port: port.clone(), kind, settings, host, machine: None };
    let connection = global.connect()?;
    connection.call(Request::PortAdd(Box::new(add)))?;
    let more = address.get(1..).unwrap_or_default();
    if more.is_empty() && gateway.is_empty() {
        return output.done();
    }
    let routes: Vec<_> = gateway.iter().copied().map(everywhere).collect();
    let done = inside::within(&path, || inside::set_up(ifname, more, &routes));
    done.with_context(|| {
        // What is there is half of what was asked for.
        let left = connection.call(Request::PortDel(PortRef { port }));
        let left = if left.is_ok() { "nothing is left" } else { "the port is left" };
        format!("addresses and routes of {ifname} in {namespace} ({left})")
    })?;
    output.done()
}

/// What nobody attached is somebody's all the same: a machine's, or the host's way to the switch.
fn detach(global: &Global, port: PortName, output: Output) -> anyhow::Result<()> {
    let info = show(global, &port)?;
    let is_attached =
        info.kind == PortKind::Tap && info.host.is_some_and(|host| host.netns.is_some());
    if !is_attached {
        let why = format!(
            "{port} is no interface in a namespace; to delete it all the same: uvala port del \
             {port}"
        );
        return Err(Failure::new(ErrorCode::Unsupported, why).into());
    }
    change(global, Request::PortDel(PortRef { port }), output)
}

/// Where a namespace is.
fn path_of(name: &str) -> Result<PathBuf, Usage> {
    let bad = name.is_empty() || name.starts_with('.');
    match name {
        _ if bad => Err(Usage(format!("{name:?} is no namespace"))),
        _ if name.starts_with('/') => Ok(PathBuf::from(name)),
        _ if name.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(PathBuf::from(format!("/proc/{name}/ns/net")))
        }
        _ if name.contains('/') => Err(Usage(format!("{name:?} is no namespace"))),
        _ => Ok(PathBuf::from(format!("/run/netns/{name}"))),
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala ns attach red vale0:red --address 10.0.0.2/24
  uvala ns attach $(podman inspect -f '{{.State.Pid}}' web) vale0:web --address 10.0.0.3/24 \\
      --gateway 10.0.0.1
  uvala ns detach vale0:red";
