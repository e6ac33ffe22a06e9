//! `uvala port`

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use client::control::{Connection, unexpected};
use protocol::name::{NameError, PortName, SwitchName};
use protocol::{
    Address, Filter, HostIf, HostIfInfo, LinkState, MAX_GIVEN, Mac, Machine, MachineInfo, Mode,
    PortAdd, PortInfo, PortKind, PortList, PortRef, PortRequest, PortSet, PortSettings, Queues,
    Reply, Request, SocketPlace, users,
};

use super::inherited::inherited;
use super::output::{Output, Watch};
use super::switch::{group, user};
use super::target::change;
use super::{Global, listing};
use terminal::Usage;
use terminal::table::{Table, cut, left, or_dash, right, short, yes};

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
        /// host's own stack or a namespace's, packet or xdp (AF_XDP, faster) for an Ethernet
        /// interface of the host, stack for the host's stack behind one, vhost-user for a virtual
        /// machine with virtio-net, stream or dgram for one with any card
        #[arg(long, default_value = "shm", value_parser = parse_kind)]
        kind: PortKind,
        #[command(flatten)]
        host: Box<Host>,
        #[command(flatten)]
        machine: Box<MachineArgs>,
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
            /// 660 with --group and for sockets of machines, 600 with --service and on a switch
            /// with --new-ports owner, otherwise [new: 666]
            #[arg(long)]
            mode: Option<Mode>,
            /// Bytes of the virtio-net header in front of each frame in its rings [new: 0]
            #[arg(long, value_name = "0|10|12")]
            vnet_header: Option<u8>,
            /// The service that it is an instance of, in chains of functions; '' for none
            #[arg(long, value_name = "NAME")]
            service: Option<String>,
            /// Which instance of it [new: the lowest that is free]
            #[arg(long, value_name = "N")]
            instance: Option<u16>,
            /// The chain of functions that frames enter which come in here; '' for none
            #[arg(long, value_name = "NAME")]
            chain: Option<String>,
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
                output.print(&list(connection, switch.as_ref())?, |ports| {
                    table(ports) + &troubles(ports)
                })
            })
        }
        Action::Show { name, output } => {
            let port = name.parse()?;
            match global.connect()?.call(Request::Port(PortRequest::Show(PortRef { port })))? {
                Reply::Port(info) => output.print(&info, show),
                other => Err(unexpected(&other).into()),
            }
        }
        Action::Add { name, kind, host, machine, settings, output } => {
            let (port, settings) = (name.parse()?, settings.to_api()?);
            // Both know of queues; the kind says whose they are.
            let (own, guests) = match (*kind, &machine.queues) {
                (kind, own) if kind.is_host() => (own.clone(), None),
                (_, Some(Queues::First(pairs))) => (None, Some(*pairs)),
                (_, own) => (own.clone(), None),
            };
            let given = host.given()?;
            let (host, machine) = (host.to_api(own), machine.to_api(guests)?);
            let add = PortAdd { port, kind: *kind, settings, host, machine };
            match global
                .connect()?
                .call_giving(Request::Port(PortRequest::Add(Box::new(add))), &given)?
            {
                Reply::Done => output.done(),
                other => Err(unexpected(&other).into()),
            }
        }
        Action::Set { name, settings, output } => {
            let set = PortSet { port: name.parse()?, settings: settings.to_api()? };
            change(global, Request::Port(PortRequest::Set(set)), *output)
        }
        Action::Del { name, output } => change(
            global,
            Request::Port(PortRequest::Del(PortRef { port: name.parse()? })),
            *output,
        ),
    }
}

/// The network interface of a port of kind tap, packet, xdp or stack.
#[derive(Debug, clap::Args)]
struct Host {
    /// Name of the network interface (tap, packet, xdp, stack) [new: as the port]
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
    /// Which frames to take, such as mac=02:00:00:00:00:01,vlan=10,type=0x0806: those that match
    /// one value of each kind that is named; the others go on to the host (xdp) [new: all]
    #[arg(long, value_name = "TERMS")]
    filter: Option<Filter>,
    /// Trust group, one of yours or UID/NAME, in whose memory to receive: frames between the
    /// interface and the group's functions are not copied (xdp) [new: none]
    #[arg(long, value_name = "NAME")]
    trust_group: Option<String>,
    /// Read and write several frames in one system call, by io_uring, where the kernel lets us
    /// (tap) [new: true]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    uring: Option<bool>,
    /// Hand over an open TAP, which this process has under that number, so that the daemon needs no
    /// right to it; once for each of its queues (tap)
    #[arg(long, value_name = "N")]
    fd: Vec<u32>,
}

impl Host {
    /// What is handed over.
    fn given(&self) -> Result<Vec<BorrowedFd<'static>>, Usage> {
        if self.fd.len() > MAX_GIVEN {
            return Err(Usage(format!("--fd: a TAP has {MAX_GIVEN} queues at most")));
        }
        let closed = |fd: u32| Usage(format!("--fd {fd}: no such descriptor is open here"));
        self.fd.iter().map(|&fd| inherited(fd).ok_or_else(|| closed(fd))).collect()
    }

    fn to_api(&self, queues: Option<Queues>) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: self.mtu,
            mac: self.mac,
            netns: self.netns.clone(),
            address: self.address,
            alone: self.alone,
            queues,
            filter: self.filter.clone(),
            trust_group: self.trust_group.clone(),
            uring: self.uring,
            fds: u8::try_from(self.fd.len()).unwrap_or(u8::MAX),
        };
        (host != HostIf::default()).then_some(host)
    }
}

/// The socket of a virtual machine's port.
#[derive(Debug, clap::Args)]
struct MachineArgs {
    /// Path of the socket (vhost-user, stream, dgram) [new: PORT.sock in the daemon's directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Connect to the socket, on which the machine's monitor listens (vhost-user, stream)
    #[arg(long)]
    connect: bool,
    /// Most pairs of queues that the guest may use (vhost-user) [new: 1]; how many queues the
    /// interface is to have (tap) [new: 1]; how many of its queues to take, or which, such as
    /// 0-3,6 (xdp) [new: all]
    #[arg(long, value_name = "N|SET")]
    queues: Option<Queues>,
    /// Least time between two interrupts of a queue (vhost-user), 0 to 1000 [new: it adapts]
    #[arg(long, value_name = "N")]
    coalesce_usecs: Option<u16>,
    /// So many frames do not wait for that time to pass (vhost-user) [new: any number does]
    #[arg(long, value_name = "N", requires = "coalesce_usecs")]
    coalesce_frames: Option<u16>,
    /// Path of the monitor's own socket (dgram) [new: as the socket's, ending in .peer]
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
}

impl MachineArgs {
    fn to_api(&self, queues: Option<u16>) -> Result<Option<Machine>, Usage> {
        let (socket, peer) = (absolute("--socket", &self.socket)?, absolute("--peer", &self.peer)?);
        let machine = Machine {
            held: false,
            socket,
            connect: self.connect,
            queues,
            coalesce_usecs: self.coalesce_usecs,
            coalesce_frames: self.coalesce_frames,
            peer,
        };
        Ok((machine != Machine::default()).then_some(machine))
    }
}

/// A path as the daemon knows it, which may have been started elsewhere.
fn absolute(option: &str, path: &Option<PathBuf>) -> Result<Option<String>, Usage> {
    let Some(path) = path else { return Ok(None) };
    let path = std::path::absolute(path).map_err(|error| Usage(format!("{option}: {error}")))?;
    let path = path.into_os_string().into_string();
    path.map(Some).map_err(|path| Usage(format!("{option} {path:?}: no UTF-8")))
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
            service: self.service.clone(),
            instance: self.instance,
            chain: self.chain.clone(),
        })
    }
}

fn parse_kind(text: &str) -> Result<PortKind, String> {
    let kind = PortKind::persistent(text);
    kind.ok_or_else(|| format!("expected {}", PortKind::names()))
}

/// All ports that we may see.
pub fn list(connection: &Connection, switch: Option<&SwitchName>) -> anyhow::Result<Vec<PortInfo>> {
    let ask = |from| Request::Port(PortRequest::List(PortList { switch: switch.cloned(), from }));
    Ok(listing::all(connection, ask)?)
}

fn table(ports: &[PortInfo]) -> String {
    let columns = [
        left("PORT", |info: &PortInfo| info.port.to_string()),
        left("KIND", |info| info.kind.name().to_owned()),
        left("VLAN", |info| cut(info.settings.vlan.as_deref().unwrap_or_default(), 24)),
        right("PID", |info| or_dash(info.client.as_ref().map(|client| client.pid))),
        left("USER", |info| or_dash(info.client.as_ref().map(|it| users::user_name(it.uid)))),
        left("CLIENT", |info| or_dash(info.client.as_ref().map(|client| cut(&client.name, 24)))),
        left("OWNER", |info| {
            let socket = socket_rights(info).map(|(owner, ..)| owner);
            users::user_name(info.settings.owner.or(socket).unwrap_or(info.owner))
        }),
        left("MODE", |info| or_dash(info.settings.mode.or(socket_rights(info).map(|it| it.2)))),
        right("MEMORY", |info| memory(info.memory)),
        left("GROUP", |info| or_dash(info.group.as_ref())),
        left("LINK", |info| or_dash(info.host.as_ref().map(|host| host.state))),
        left("STAYS", |info| yes(info.persistent)),
    ];
    Table::of(ports, &columns).to_string()
}

/// Why some carry nothing, and what helps.
fn troubles(ports: &[PortInfo]) -> String {
    let said = |info: &PortInfo| {
        let trouble = info.host.as_ref()?.trouble.as_ref()?;
        Some(format!("{}: {trouble}\n", info.port))
    };
    ports.iter().filter_map(said).collect()
}

/// Owner, group and mode of the socket that a machine's port has.
fn socket_rights(info: &PortInfo) -> Option<(u32, u32, Mode)> {
    match info.machine.as_ref()?.place? {
        SocketPlace::Ours { owner, group, mode } => Some((owner, group, mode)),
        SocketPlace::Gone | SocketPlace::Replaced => None,
    }
}

fn show_machine(kind: PortKind, machine: &MachineInfo) -> String {
    let process = machine.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    let role = if machine.connect { ", which the daemon connects to" } else { "" };
    let spaced = match (machine.coalesce_usecs, machine.coalesce_frames) {
        (None, _) => "adaptive".to_owned(),
        (Some(usecs), None) => format!("{usecs} us apart"),
        (Some(usecs), Some(frames)) => format!("{usecs} us or {frames} frames apart"),
    };
    let lost = match machine.place {
        Some(SocketPlace::Replaced) => " (another program's now: delete the port and add it again)",
        Some(SocketPlace::Gone) => " (gone: delete the port and add it again)",
        Some(SocketPlace::Ours { .. }) | None => "",
    };
    let mut text = format!(
        "socket           {}{role}{lost}\nmachine          {}{process}\n",
        machine.socket, machine.state
    );
    if kind == PortKind::VhostUser {
        text += &format!("queue pairs      {}\ninterrupts       {spaced}\n", machine.queues);
    }
    if let Some(peer) = &machine.peer {
        text += &format!("frames go to     {peer}\n");
    }
    if let Some(complaint) = &machine.complaint {
        text += &format!("complaint        {complaint}\n");
    }
    if let Some(rival) = machine.rival {
        text += &format!("turned away      process {rival}; give it a port of its own\n");
    }
    text
}

fn show_host(host: &HostIfInfo) -> String {
    let place = host.netns.as_ref().map(|name| format!(" in namespace {name}"));
    let is_known = host.state != LinkState::Gone || host.mtu > 0;
    let about = is_known.then(|| format!(", mtu {}, {}", host.mtu, host.mac));
    let (place, about) = (place.unwrap_or_default(), about.unwrap_or_default());
    let mut text = format!("interface        {}{place} ({}){about}\n", host.ifname, host.state);
    for (name, value) in [("frames", &host.how), ("trouble", &host.trouble)] {
        if let Some(value) = value {
            text += &format!("{name:<15}  {value}\n");
        }
    }
    text
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
        text += &show_host(host);
    }
    if let Some(machine) = &info.machine {
        text += &show_machine(info.kind, machine);
    }
    let settings = &info.settings;
    let (owner, group, mode) = match socket_rights(info) {
        Some((owner, group, mode)) => (Some(owner), Some(group), Some(mode)),
        None => (settings.owner, settings.group, settings.mode),
    };
    let flag = |value: Option<bool>| value.map(|value| value.to_string());
    for (name, value) in [
        ("owner", owner.map(users::user_name)),
        ("group", group.map(users::group_name)),
        ("mode", mode.map(|mode| mode.to_string())),
        ("vlan", settings.vlan.clone()),
        ("isolated", flag(settings.isolated)),
        ("learning", flag(settings.learning)),
        ("max-macs", settings.max_macs.map(|max| max.to_string())),
        ("unicast-flood", flag(settings.unicast_flood)),
        ("multicast-flood", flag(settings.multicast_flood)),
        ("broadcast-flood", flag(settings.broadcast_flood)),
        ("on-full", settings.on_full.clone()),
        ("vnet-header", settings.vnet_header.map(|bytes| bytes.to_string())),
        ("service", settings.service.clone()),
        ("instance", settings.instance.map(|number| number.to_string())),
        ("chain", settings.chain.clone()),
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
  uvala port add vale0:lan --kind tap --fd 5              a TAP that is open here
  uvala port add vale0:eth0 --kind packet
  uvala port add vale0:eth1 --kind xdp --filter vlan=10   the host keeps the rest
  uvala port add vale0:vm3 --kind vhost-user              uvala vm-args says how to use it
  uvala port add vale0:old --kind stream                  the same for an e1000 and the like
  uvala port add vale0:vm2 --owner alice                 nobody else attaches to it
  uvala port set vale0:vm1 --isolated --unicast-flood=false
  uvala port del vale0:vm1";
