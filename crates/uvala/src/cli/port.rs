//! `uvala port`

use std::path::PathBuf;

use client::api::{
    Address, HostIf, Mac, Mode, PortAdd, PortInfo, PortKind, PortList, PortRef, PortSet,
    PortSettings, Reply, Request, Vhost,
};
use client::control::{Connection, unexpected};
use client::name::{NameError, PortName, SwitchName};
use daemon::users;

use super::output::{Output, Watch};
use super::switch::{change, group, user};
use super::{Global, Usage, all_pages};
use crate::table::{Align, Table, cut, short};

/// List, add, change and delete ports
///
/// A port also comes by itself when a client attaches to its name, and goes with the client; one
/// that was added stays and keeps its settings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// All ports you may see
    List {
        /// Only those of this switch
        switch: Option<String>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// One port
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Make a port that stays
    Add {
        #[command(flatten)]
        name: Name,
        /// What is behind it: shm for a client to attach, null to drop every frame, tap for the
        /// host's own stack or a namespace's, packet for an Ethernet
        /// interface of the host, stack for the host's stack behind one, vhost-user for a virtual
        /// machine
        #[arg(long, default_value = "shm", value_parser = parse_kind)]
        kind: PortKind,
        #[command(flatten)]
        host: Host,
        #[command(flatten)]
        machine: Machine,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        output: Output,
    },
    /// Change what is given, keep the rest
    Set {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        output: Output,
    },
    /// Delete a port; its client loses it
    Del {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Name of the port, such as vale0:vm1
    #[arg(value_name = "PORT")]
    port: String,
}

/// A switch that is on when its option has no value.
macro_rules! on_off {
    ($($(#[$doc:meta])* $name:ident),*) => {
        #[derive(Debug, clap::Args)]
        struct Settings {
            /// VLANs: transparent[:VLAN], access:VLAN or trunk:VLANS[,native=VLAN]
            /// [new: transparent:1]
            #[arg(long, value_name = "VLAN")]
            vlan: Option<String>,
            /// Most addresses learnt on the port; 0 for no limit [new: 0]
            #[arg(long, value_name = "N")]
            max_macs: Option<u32>,
            /// A frame that finds no room: drop it, or let its sender wait [new: drop]
            #[arg(long, value_name = "drop|wait")]
            on_full: Option<String>,
            /// User who may attach, by name or number, of those whom the switch lets in [new: you]
            #[arg(long, value_name = "USER")]
            owner: Option<String>,
            /// Group whose members may, too [new: the switch's]
            #[arg(long, value_name = "GROUP")]
            group: Option<String>,
            /// Who may attach (w), in octal as for a file; where it is not said: 600 with --owner,
            /// 660 with --group, 600 on a switch with --new-ports owner, otherwise [new: 666]
            #[arg(long)]
            mode: Option<Mode>,
            /// Bytes of the virtio-net header in front of each frame in its rings [new: 0]
            #[arg(long, value_name = "0|10|12")]
            vnet_header: Option<u8>,
            $(
                $(#[$doc])*
                #[arg(
                    long,
                    value_name = "true|false",
                    num_args = 0..=1,
                    require_equals = true,
                    default_missing_value = "true"
                )]
                $name: Option<bool>,
            )*
        }
    };
}

on_off! {
    /// Exchange frames only with ports that are not isolated [new: false]
    isolated,
    /// Learn the source addresses that arrive here [new: true]
    learning,
    /// Get unicast frames to unknown addresses [new: true]
    unicast_flood,
    /// Get multicast frames [new: true]
    multicast_flood,
    /// Get broadcast frames [new: true]
    broadcast_flood
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { switch, output, watch } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            watch.repeat(global, |connection, _| {
                output.print(&list(connection, switch.as_ref())?, |ports| table(ports))
            })
        }
        Action::Show { name, output } => {
            let port = name.parse()?;
            match global.connect()?.call(Request::PortShow(PortRef { port }))? {
                Reply::Port(info) => output.print(&info, show),
                other => Err(unexpected(&other).into()),
            }
        }
        Action::Add { name, kind, host, machine, settings, output } => {
            let (port, settings) = (name.parse()?, settings.to_api()?);
            let (host, vhost) = (host.to_api(), machine.to_api()?);
            let add = PortAdd { port, kind: *kind, settings, host, vhost };
            change(global, Request::PortAdd(add), *output)
        }
        Action::Set { name, settings, output } => {
            let set = PortSet { port: name.parse()?, settings: settings.to_api()? };
            change(global, Request::PortSet(set), *output)
        }
        Action::Del { name, output } => {
            change(global, Request::PortDel(PortRef { port: name.parse()? }), *output)
        }
    }
}

/// The network interface of a port of kind tap or packet.
#[derive(Debug, clap::Args)]
struct Host {
    /// Name of the network interface (tap, packet, stack) [new: as the port]
    #[arg(long, value_name = "NAME")]
    ifname: Option<String>,
    /// Its MTU (tap)
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Its Ethernet address (tap)
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Its network namespace: one of `ip netns`, the number of a process, or a path
    #[arg(long, value_name = "NAME|PID|PATH")]
    netns: Option<String>,
    /// An IP address for the host on it, such as 10.0.0.1/24 (tap)
    #[arg(long, value_name = "IP/PREFIX")]
    address: Option<Address>,
    /// Cut the host's stack off from the interface while it is a port (packet)
    #[arg(long)]
    alone: bool,
}

impl Host {
    fn to_api(&self) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: self.mtu,
            mac: self.mac,
            netns: self.netns.clone(),
            address: self.address,
            alone: self.alone,
        };
        (host != HostIf::default()).then_some(host)
    }
}

/// The socket of a port of kind vhost-user.
#[derive(Debug, clap::Args)]
struct Machine {
    /// Path of the machine's socket (vhost-user) [new: PORT.sock in the daemon's directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Connect to the socket, on which the machine's monitor listens (vhost-user)
    #[arg(long)]
    connect: bool,
    /// Most pairs of queues that the guest may use (vhost-user) [new: 1]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
}

impl Machine {
    fn to_api(&self) -> Result<Option<Vhost>, Usage> {
        // The daemon may have been started elsewhere.
        let socket = self.socket.as_deref().map(std::path::absolute).transpose();
        let socket = socket.map_err(|error| Usage(format!("--socket: {error}")))?;
        let socket = socket.map(|path| path.into_os_string().into_string()).transpose();
        let socket = socket.map_err(|path| Usage(format!("--socket {path:?}: no UTF-8")))?;
        let vhost = Vhost { socket, connect: self.connect, queues: self.queues };
        Ok((vhost != Vhost::default()).then_some(vhost))
    }
}

impl Name {
    fn parse(&self) -> Result<PortName, NameError> {
        self.port.parse()
    }
}

impl Settings {
    fn to_api(&self) -> Result<PortSettings, Usage> {
        Ok(PortSettings {
            owner: user(self.owner.as_deref())?,
            group: group(self.group.as_deref())?,
            mode: self.mode,
            vlan: self.vlan.clone(),
            isolated: self.isolated,
            learning: self.learning,
            unicast_flood: self.unicast_flood,
            multicast_flood: self.multicast_flood,
            broadcast_flood: self.broadcast_flood,
            max_macs: self.max_macs,
            on_full: self.on_full.clone(),
            vnet_header: self.vnet_header,
        })
    }
}

fn parse_kind(text: &str) -> Result<PortKind, String> {
    let kind = PortKind::persistent(text);
    kind.ok_or_else(|| "expected shm, null, tap, packet, stack or vhost-user".to_owned())
}

fn list(connection: &Connection, switch: Option<&SwitchName>) -> anyhow::Result<Vec<PortInfo>> {
    Ok(all_pages(|from| {
        let list = PortList { switch: switch.cloned(), from };
        match connection.call(Request::PortList(list))? {
            Reply::Ports(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    })?)
}

fn table(ports: &[PortInfo]) -> String {
    let mut table = Table::new(&[
        ("PORT", Align::Left),
        ("KIND", Align::Left),
        ("VLAN", Align::Left),
        ("PID", Align::Right),
        ("USER", Align::Left),
        ("CLIENT", Align::Left),
        ("OWNER", Align::Left),
        ("MODE", Align::Left),
        ("MEMORY", Align::Right),
        ("GROUP", Align::Left),
        ("STAYS", Align::Left),
    ]);
    for info in ports {
        let client = info.client.as_ref();
        table.row([
            info.port.to_string(),
            info.kind.name().to_owned(),
            cut(info.settings.vlan.as_deref().unwrap_or_default(), 24),
            client.map_or("-".to_owned(), |client| client.pid.to_string()),
            client.map_or("-".to_owned(), |client| users::user_name(client.uid)),
            client.map_or("-".to_owned(), |client| cut(&client.name, 24)),
            users::user_name(info.settings.owner.unwrap_or(info.owner)),
            info.settings.mode.map_or("-".to_owned(), |mode| mode.to_string()),
            memory(info.memory),
            info.group.clone().unwrap_or_else(|| "-".to_owned()),
            if info.persistent { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.to_string()
}

fn show(info: &PortInfo) -> String {
    let client = match &info.client {
        Some(client) => format!(
            "process {} of {} ({})",
            client.pid,
            users::user_name(client.uid),
            if client.name.is_empty() { "unnamed" } else { &client.name }
        ),
        None => "none".to_owned(),
    };
    let number = info.number.map_or("-".to_owned(), |number| number.to_string());
    let mut text = format!(
        "port             {} ({})\nkind             {}\nmade by          {}\n\
         number           {number}\n\
         client           {client}\nmemory           {}\ntrust group      {}\n",
        info.port,
        if info.persistent { "stays without a client" } else { "goes with its client" },
        info.kind.name(),
        users::user_name(info.owner),
        memory(info.memory),
        info.group.as_deref().unwrap_or("-"),
    );
    if let Some(host) = &info.host {
        let place = host.netns.as_ref().map(|name| format!(" in namespace {name}"));
        text += &format!(
            "interface        {}{} ({}), mtu {}, {}\n",
            host.ifname,
            place.unwrap_or_default(),
            host.state,
            host.mtu,
            host.mac
        );
    }
    if let Some(vhost) = &info.vhost {
        let process = vhost.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        let role = if vhost.connect { ", which the daemon connects to" } else { "" };
        text += &format!(
            "socket           {}{role}\nmachine          {}{process}\nqueue pairs      {}\n",
            vhost.socket, vhost.state, vhost.queues
        );
    }
    let settings = &info.settings;
    let flag = |value: Option<bool>| value.map(|value| value.to_string());
    for (name, value) in [
        ("owner", settings.owner.map(users::user_name)),
        ("group", settings.group.map(users::group_name)),
        ("mode", settings.mode.map(|mode| mode.to_string())),
        ("vlan", settings.vlan.clone()),
        ("isolated", flag(settings.isolated)),
        ("learning", flag(settings.learning)),
        ("max-macs", settings.max_macs.map(|max| max.to_string())),
        ("unicast-flood", flag(settings.unicast_flood)),
        ("multicast-flood", flag(settings.multicast_flood)),
        ("broadcast-flood", flag(settings.broadcast_flood)),
        ("on-full", settings.on_full.clone()),
        ("vnet-header", settings.vnet_header.map(|bytes| bytes.to_string())),
    ] {
        text += &format!("{name:<15}  {}\n", value.as_deref().unwrap_or("-"));
    }
    text
}

/// Exact numbers of bytes are in the JSON.
fn memory(bytes: u64) -> String {
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
    if bytes == 0 { "-".to_owned() } else { short(f64::from(kib) * 1024.0) + "B" }
}

const EXAMPLES: &str = "\
Examples:
  uvala port list vale0
  uvala port add vale0:vm1 --vlan access:10
  uvala port add vale0:sink --kind null
  uvala port add vale0:host --kind tap --address 10.0.0.1/24
  uvala port add vale0:eth0 --kind packet
  uvala port add vale0:vm3 --kind vhost-user              uvala vm-args says how to use it
  uvala port add vale0:vm2 --owner alice                 nobody else attaches to it
  uvala port set vale0:vm1 --isolated --unicast-flood=false
  uvala port del vale0:vm1";
