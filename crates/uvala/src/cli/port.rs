//! `uvala port`

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use client::control::Connection;
use packet::shown::shown;
use packet::{MacAddr, VlanMode};
use protocol::name::{NameError, PortName, SwitchName};
use protocol::parse;
use protocol::{
    Address, Filter, HostIf, HostIfInfo, LinkState, MAX_GIVEN, MCAST_GROUPS_MAX, Machine,
    MachineInfo, McastRouter, Mirror, Mode, OnFull, PortAdd, PortInfo, PortKind, PortList, PortRef,
    PortRequest, PortSet, PortSettings, PortWorker, Queues, Request, SocketPlace, StaticGroup,
    users,
};

use crate::doctor::gather::see_mtu;

use super::inherited::inherited;
use super::output::{Output, Watch};
use super::security::{self, Security};
use super::switch::{group, user};
use super::target::{self, add, change, refuse_empty};
use super::vxlan_args::{self, VxlanArgs, VxlanChangeArgs};
use super::{Global, listing};
use terminal::Usage;
use terminal::table::{Table, cut, left, or_dash, right, short, yes};

/// List, add, change and delete ports
///
/// The switch also creates a port when a client attaches to a new name, and deletes it when the
/// client detaches. A port that `uvala port add` creates is permanent and keeps its settings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the ports that you may see
    ///
    /// PID, USER and CLIENT are of the process that holds the port; PID and CLIENT also of a VMM.
    /// OWNER and MODE say which users may attach. LINK is the state of a network interface (up,
    /// down, gone) or of a virtual machine: waiting (no VMM is connected), connected (the guest has
    /// no driver for the device), up, or closed (no socket). LABEL is there if a port has one.
    List {
        /// Show ports of this switch only
        switch: Option<String>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one port
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Add a permanent port
    Add {
        #[command(flatten)]
        name: Name,
        #[arg(
            long,
            default_value = "shm",
            value_parser = parse_kind,
            help = format!("Kind of port: {}", PortKind::descriptions())
        )]
        kind: PortKind,
        #[command(flatten)]
        host: Box<Host>,
        #[command(flatten)]
        machine: Box<MachineArgs>,
        #[command(flatten)]
        vxlan: Box<VxlanArgs>,
        #[command(flatten)]
        settings: Settings,
        /// Succeed if there is such a port: permanent, of this kind, with this interface or socket,
        /// and with the settings that are given
        #[arg(long)]
        if_absent: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Change the settings that are given
    ///
    /// Settings that are left out keep their values. The defaults below are those of a new port.
    Set {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        vxlan: Box<VxlanChangeArgs>,
        #[command(flatten)]
        output: Output,
    },
    /// Enable a port that the switch has disabled (bpdu-guard, loop-protect)
    Enable {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Delete a port and disconnect its client
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
            /// [default: transparent:1]
            #[arg(long, value_name = "VLAN")]
            vlan: Option<VlanMode>,
            /// When the port's ring is full: drop the frame (after a moment, while the receiver
            /// reads), or apply backpressure to all senders [default: drop]
            #[arg(long, value_name = "drop|wait")]
            on_full: Option<OnFull>,
            /// The worker that takes the port's frames, where all workers run the switch: its
            /// number, or auto for the one with the fewest ports [default: auto]
            #[arg(long, value_name = "WORKER")]
            worker: Option<PortWorker>,
            /// User (name or UID) that may attach, if the switch lets that user in [default: you]
            #[arg(long, value_name = "USER")]
            owner: Option<String>,
            /// Group (name or GID) whose members may attach, too [default: the switch's]
            #[arg(long, value_name = "GROUP")]
            group: Option<String>,
            /// Permission to attach (w), in octal, as for a file: without this option, 600 with
            /// --owner, with --service and on a switch with --new-ports owner, 660 with --group and
            /// for sockets of machines, else [default: 666]
            #[arg(long)]
            mode: Option<Mode>,
            /// Bytes of virtio-net header before each frame in the port's rings [default: 0]
            #[arg(long, value_name = "0|10|12")]
            vnet_header: Option<u8>,
            /// Frames that may wait in front of the guest's ring, for guests with short rings
            /// (vhost-user) [default: 0]
            #[arg(long, value_name = "N", value_parser = parse::number32)]
            queue_frames: Option<u32>,
            /// What listings call what is behind the port: at most 64 printable characters; '' for
            /// none
            #[arg(long, value_name = "TEXT")]
            label: Option<String>,
            /// Service that this port is an instance of, for service chains; '' for none
            #[arg(long, value_name = "NAME")]
            service: Option<String>,
            /// Instance number within the service [default: the lowest free number]
            #[arg(long, value_name = "N", value_parser = parse::number16)]
            instance: Option<u16>,
            /// Chain that frames from this port enter; '' for none
            #[arg(long, value_name = "NAME")]
            chain: Option<String>,
            /// The port leads to a multicast router: off, on, or auto, as long as one is heard
            /// there (vxlan: on) [default: auto]
            #[arg(long, value_name = "off|auto|on")]
            mcast_router: Option<McastRouter>,
            /// Maximum number of multicast groups learned on the port, up to 4096; 0 is no limit
            /// [default: 512]
            #[arg(long, value_name = "N", value_parser = parse::within(0..=MCAST_GROUPS_MAX))]
            mcast_max_groups: Option<u32>,
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
            #[command(flatten)]
            security: Security,
        }
    };
}

on_off! {
    /// Exchange frames only with ports that are not isolated [default: false]
    isolated,
    /// Learn source addresses of frames from this port [default: true]
    learning,
    /// Flood unknown unicast to this port [default: true]
    unicast_flood,
    /// Flood multicast to this port [default: true]
    multicast_flood,
    /// Flood broadcast to this port [default: true]
    broadcast_flood,
    /// End a membership of a multicast group with the first leave: there is one host behind the
    /// port [default: false]
    mcast_fast_leave
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { switch, output, watch } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            watch.repeat(global, |connection, _| {
                let mut ports = list(connection, switch.as_ref())?;
                // The table shows no MTU.
                if output.json {
                    for host in ports.iter_mut().filter_map(|info| info.host.as_deref_mut()) {
                        see_mtu(host);
                    }
                }
                output.print(&ports, |ports| table(ports) + &troubles(ports))
            })
        }
        Action::Show { name, output } => {
            let mut info = target::show(&global.connect()?, &name.parse()?)?;
            let is_now = info.host.as_deref_mut().is_none_or(see_mtu);
            output.print(&info, |info| show(info, is_now))
        }
        Action::Add { name, kind, host, machine, vxlan, settings, if_absent, output } => {
            let (port, settings) = (name.parse()?, settings.to_api()?);
            // Both know of queues; the kind says whose they are.
            let (own, guests) = match (*kind, &machine.queues) {
                (kind, own) if kind.is_host() => (own.clone(), None),
                (_, Some(Queues::First(pairs))) => (None, Some(*pairs)),
                (_, own) => (own.clone(), None),
            };
            let given = host.given()?;
            // An MTU is of an interface, or of frames in a tunnel.
            let inside = host.mtu.filter(|_| *kind == PortKind::Vxlan);
            let (host, machine) = (host.to_api(own, *kind), machine.to_api(guests)?);
            let vxlan = vxlan.to_api(*kind, inside)?;
            let port = Box::new(PortAdd { port, kind: *kind, settings, host, machine, vxlan });
            let compare = PortRequest::Compare(port.clone());
            let compare = if_absent.then_some(Request::Port(compare));
            let request = Request::Port(PortRequest::Add(port));
            add(&global.connect()?, (request, &given), compare, *output)
        }
        Action::Set { name, settings, vxlan, output } => {
            let (settings, vxlan) = (settings.to_api()?, vxlan.to_api());
            if vxlan.is_none() {
                refuse_empty(&settings, "port set")?;
            }
            let set = PortSet { port: name.parse()?, settings, vxlan };
            change(global, Request::Port(PortRequest::Set(Box::new(set))), *output)
        }
        Action::Enable { name, output } => {
            let port = PortRef { port: name.parse()? };
            change(global, Request::Port(PortRequest::Enable(port)), *output)
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
    /// Name of the network interface (tap, packet, xdp, stack) [default: the port's name]
    #[arg(long, value_name = "NAME")]
    ifname: Option<String>,
    /// MTU of the interface (tap), or of frames in the tunnel (vxlan) [default for vxlan: what the
    /// routes to the remotes leave]
    #[arg(long, value_name = "BYTES", value_parser = parse::number32)]
    mtu: Option<u32>,
    /// MAC address of the interface (tap) [default: derived from host and name]
    #[arg(long, value_name = "MAC")]
    mac: Option<MacAddr>,
    /// Network namespace of the interface: a name of `ip netns`, a PID, or a path
    #[arg(long, value_name = "NAME|PID|PATH")]
    netns: Option<String>,
    /// IP address of the interface, such as 10.0.0.1/24 (tap)
    #[arg(long, value_name = "IP/PREFIX")]
    address: Option<Address>,
    /// Keep the host's network stack off the interface while it is a port (packet)
    #[arg(long)]
    alone: bool,
    /// Frames to take, such as mac=02:00:00:00:00:01,vlan=10,type=0x0806: a frame must match one
    /// value of each kind given; all other frames go on to the host (xdp) [default: all]
    #[arg(long, value_name = "TERMS")]
    filter: Option<Filter>,
    /// Trust group (one of yours, or UID/NAME) whose memory receives the frames: no copy between
    /// the interface and the group's functions (xdp) [default: none]
    #[arg(long, value_name = "NAME")]
    trust_group: Option<String>,
    /// Use io_uring, which reads and writes several frames in one system call, if the kernel
    /// allows it (tap) [default: true]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    uring: Option<bool>,
    /// File descriptor of an open TAP to pass to the daemon, which then needs no privilege to open
    /// it; repeat for each queue (tap)
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

    fn to_api(&self, queues: Option<Queues>, kind: PortKind) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: self.mtu.filter(|_| kind != PortKind::Vxlan),
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
    /// Path of the socket (vhost-user, stream, dgram) [default: PORT.sock in the daemon's
    /// directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Connect to the socket, on which the VMM listens (vhost-user, stream)
    #[arg(long)]
    connect: bool,
    /// Maximum number of queue pairs of the guest (vhost-user) [default: 1]; queues of the
    /// interface (tap) [default: 1]; number or set of queues to use, such as 0-3,6 (xdp)
    /// [default: all]
    #[arg(long, value_name = "N|SET")]
    queues: Option<Queues>,
    /// Minimum time between two interrupts of a queue in microseconds, 0 to 1000 (vhost-user)
    /// [default: adaptive]
    #[arg(long, value_name = "N", value_parser = parse::within(0..=1000_u16))]
    coalesce_usecs: Option<u16>,
    /// Interrupt after N frames, regardless of the timer (vhost-user) [default: no limit]
    #[arg(long, value_name = "N", requires = "coalesce_usecs", value_parser = parse::number16)]
    coalesce_frames: Option<u16>,
    /// Path of the VMM's own socket (dgram) [default: the socket's path, ending in .peer]
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
    path.map(Some).map_err(|path| Usage(format!("{option} {path:?}: not UTF-8")))
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
            mcast_router: self.mcast_router,
            mcast_fast_leave: self.mcast_fast_leave,
            mcast_max_groups: self.mcast_max_groups,
            on_full: self.on_full,
            worker: self.worker,
            vnet_header: self.vnet_header,
            queue_frames: self.queue_frames,
            service: self.service.clone(),
            instance: self.instance,
            chain: self.chain.clone(),
            label: self.label.clone(),
            ..self.security.to_api()
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
    let mut columns = vec![
        left("PORT", |info: &PortInfo| info.port.to_string()),
        left("KIND", |info| info.kind.name().to_owned()),
        left("VLAN", |info| {
            cut(&info.settings.vlan.as_ref().map(VlanMode::to_string).unwrap_or_default(), 20)
        }),
        right("PID", |info| or_dash(vmm(info).or(info.client.as_ref().map(|client| client.pid)))),
        left("USER", |info| or_dash(info.client.as_ref().map(|it| users::user_name(it.uid)))),
        left("CLIENT", |info| or_dash(client_name(info).map(|name| cut(&name, 24)))),
        left("OWNER", |info| {
            let socket = socket_rights(info).map(|(owner, ..)| owner);
            users::user_name(info.settings.owner.or(socket).unwrap_or(info.creator))
        }),
        left("MODE", |info| or_dash(info.settings.mode.or(socket_rights(info).map(|it| it.2)))),
        right("MEMORY", |info| memory(info.memory)),
        left("TRUST GROUP", |info| or_dash(info.trust_group.as_ref())),
        left("LINK", |info| {
            let machine = || info.machine.as_ref().map(|machine| machine.state.to_string());
            or_dash(info.host.as_ref().map(|host| host.state.to_string()).or_else(machine))
        }),
        left("PERM", |info| yes(info.persistent)),
    ];
    if ports.iter().any(|info| info.settings.label.is_some()) {
        columns.push(left("LABEL", |info| {
            or_dash(info.settings.label.as_ref().map(|label| cut(label, 24)))
        }));
    }
    Table::of(ports, &columns).fitted()
}

/// PID of the VMM that is connected.
pub fn vmm(info: &PortInfo) -> Option<u32> {
    info.machine.as_ref()?.pid
}

/// Name of the VMM, or of the client as it calls itself.
pub fn client_name(info: &PortInfo) -> Option<String> {
    let vmm = vmm(info).and_then(|pid| std::fs::read(format!("/proc/{pid}/comm")).ok());
    let vmm = vmm.map(|comm| process_name(&comm));
    vmm.or_else(|| info.client.as_ref().map(|client| client.name.clone()))
}

/// The name of a process, which it can set to anything.
fn process_name(comm: &[u8]) -> String {
    let name = String::from_utf8_lossy(comm);
    shown(name.strip_suffix('\n').unwrap_or(&name), 64)
}

/// Why some carry nothing, and what helps.
fn troubles(ports: &[PortInfo]) -> String {
    let said = |info: &PortInfo| {
        let tunnel = || info.vxlan.as_ref()?.trouble.as_ref();
        let trouble = info.host.as_ref().and_then(|host| host.trouble.as_ref()).or_else(tunnel)?;
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
        Some(SocketPlace::Replaced) => {
            " (replaced by another program: delete the port and add it again)"
        }
        Some(SocketPlace::Gone) => " (missing: delete the port and add it again)",
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
        text += &format!("last error       {complaint}\n");
    }
    if let Some(peer) = machine.rejected_peer {
        text += &format!("rejected peer    process {peer}; give it a port of its own\n");
    }
    text
}

/// `is_now`: the MTU is the present one.
fn show_host(host: &HostIfInfo, is_now: bool) -> String {
    let place = host.netns.as_ref().map(|name| format!(" in namespace {name}"));
    let is_known = host.state != LinkState::Gone || host.mtu > 0;
    let when = if is_now { "" } else { " when it was added" };
    let about = is_known.then(|| format!(", mtu {}{when}, {}", host.mtu, host.mac));
    let (place, about) = (place.unwrap_or_default(), about.unwrap_or_default());
    let mut text = format!("interface        {}{place} ({}){about}\n", host.ifname, host.state);
    for (name, value) in [("frames", &host.how), ("trouble", &host.trouble)] {
        if let Some(value) = value {
            text += &format!("{name:<15}  {value}\n");
        }
    }
    text
}

fn show(info: &PortInfo, is_now: bool) -> String {
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
        "port             {} ({})\nkind             {}\ncreated by       {}\n\
         number           {number}\n\
         client           {client}\nmemory           {}\ntrust group      {}\n",
        info.port,
        if info.persistent { "permanent" } else { "deleted with its client" },
        info.kind.name(),
        users::user_name(info.creator),
        memory(info.memory),
        info.trust_group.as_deref().unwrap_or("-"),
    );
    if let Some(host) = &info.host {
        text += &show_host(host, is_now);
    }
    if let Some(machine) = &info.machine {
        text += &show_machine(info.kind, machine);
    }
    if let Some(vxlan) = &info.vxlan {
        text += &vxlan_args::show(vxlan);
    }
    let settings = &info.settings;
    let (owner, group, mode) = match socket_rights(info) {
        Some((owner, group, mode)) => (Some(owner), Some(group), Some(mode)),
        None => (settings.owner, settings.group, settings.mode),
    };
    let flag = |value: Option<bool>| value.map(|value| value.to_string());
    for (name, value) in [
        ("label", settings.label.clone()),
        ("owner", Some(users::user_name(owner.unwrap_or(info.creator)))),
        ("unix group", group.map(users::group_name)),
        ("mode", mode.map(|mode| mode.to_string())),
        ("vlan", settings.vlan.as_ref().map(VlanMode::to_string)),
        ("isolated", flag(settings.isolated)),
        ("learning", flag(settings.learning)),
        ("unicast-flood", flag(settings.unicast_flood)),
        ("multicast-flood", flag(settings.multicast_flood)),
        ("broadcast-flood", flag(settings.broadcast_flood)),
        ("mcast-router", settings.mcast_router.map(|it| it.to_string())),
        ("fast-leave", flag(settings.mcast_fast_leave)),
        ("max-groups", settings.mcast_max_groups.map(|most| most.to_string())),
        ("mcast-groups", settings.mcast_groups.as_deref().map(show_groups)),
        ("on-full", settings.on_full.map(|it| it.to_string())),
        ("worker", show_worker(info)),
        ("vnet-header", settings.vnet_header.map(|bytes| bytes.to_string())),
        ("queue-frames", settings.queue_frames.map(|frames| frames.to_string())),
        ("service", settings.service.clone()),
        ("instance", settings.instance.map(|number| number.to_string())),
        ("chain", settings.chain.clone()),
        ("mirror of", settings.mirror.as_ref().map(show_mirror)),
    ] {
        text += &format!("{name:<15}  {}\n", value.as_deref().unwrap_or("-"));
    }
    text += &show_security(info);
    for (name, count) in &info.counts {
        text += &format!("{name:<21}  {count}\n");
    }
    text
}

/// The static multicast groups of a port.
fn show_groups(groups: &[StaticGroup]) -> String {
    groups.iter().map(StaticGroup::to_string).collect::<Vec<_>>().join(",")
}

/// The ports that a mirror port mirrors.
fn show_mirror(mirror: &Mirror) -> String {
    let rate = Some(mirror.rate).filter(|&rate| rate > 0);
    let rate = rate.map(|rate| format!(", at most {rate} frames/s")).unwrap_or_default();
    format!("{} ({}{rate})", mirror.from.join(","), mirror.direction)
}

/// The worker that the port asks for, and the one that it has.
fn show_worker(info: &PortInfo) -> Option<String> {
    let wanted = info.settings.worker?.to_string();
    Some(match info.worker {
        Some(now) if now.to_string() != wanted => format!("{wanted}, now {now}"),
        _ => wanted,
    })
}

fn show_security(info: &PortInfo) -> String {
    let rows = security::rows(&info.settings)
        .map(|(name, value)| format!("{name:<21}  {}\n", value.as_deref().unwrap_or("-")));
    let mut text = rows.concat();
    if !info.first_macs.is_empty() {
        let macs: Vec<_> = info.first_macs.iter().map(MacAddr::to_string).collect();
        text += &format!("locked to              {}\n", macs.join(","));
    }
    if let Some(cause) = &info.disabled {
        let cure = format!("uvala port enable {}", info.port);
        text += &format!("disabled by            {cause}; after removing the cause, run: {cure}\n");
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
  uvala port add vale0:lan --kind tap --fd 5              a TAP that this shell has open
  uvala port add vale0:eth0 --kind packet
  uvala port add vale0:eth1 --kind xdp --filter vlan=10   other frames go to the host
  uvala port add vale0:vm3 --kind vhost-user              uvala vm-args prints QEMU's options
  uvala port add vale0:old --kind stream                  for an e1000 or another card
  uvala port add vale0:vm2 --owner alice                  only alice may attach
  uvala port add vale0:fabric --kind vxlan --vni 100 --local 10.0.0.1 --remote 10.0.0.2
  uvala port set vale0:vm1 --label 'web server'           shown in lists and metrics
  uvala port set vale0:fabric --add-remote 10.0.0.3       one more host
  uvala port set vale0:vm1 --isolated --unicast-flood=false
  uvala port set vale0:vm1 --mac-lock 02:00:00:00:00:01,02:00:00:00:00:02
  uvala port del vale0:vm1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_name_of_a_process_controls_no_terminal() {
        assert_eq!(process_name(b"qemu-system-x86\n"), "qemu-system-x86");
        assert_eq!(process_name(b"\x1b[2Ja\rb\n\n"), r"\u{1b}[2Ja\rb\n");
        assert_eq!(process_name(b"\xff\n"), "\u{fffd}");
    }
}
