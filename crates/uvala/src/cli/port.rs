//! `uvala port`

mod show;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use client::control::Connection;
use packet::{MacAddr, VlanMode};
use protocol::name::{NameError, PortName, SwitchName};
use protocol::parse;
use protocol::{
    Address, Filter, HostIf, MAX_GIVEN, MCAST_GROUPS_MAX, Machine, McastRouter, Mode, OnFull,
    PortAdd, PortInfo, PortKind, PortList, PortRef, PortRequest, PortSet, PortSettings, PortWorker,
    Queues, Request,
};

use crate::doctor::gather::see_mtu;

use super::inherited::inherited;
use super::output::{Output, Watch};
use super::security::Security;
use super::switch::{group, user};
use super::target::{self, add, change, refuse_empty};
use super::vxlan_args::{VxlanArgs, VxlanChangeArgs};
use super::{Global, listing};
pub use show::{client_name, vmm};
use terminal::Usage;

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
                output.print(&ports, |ports| show::table(ports) + &show::troubles(ports))
            })
        }
        Action::Show { name, output } => {
            let mut info = target::show(&global.connect()?, &name.parse()?)?;
            let is_now = info.host.as_deref_mut().is_none_or(see_mtu);
            output.print(&info, |info| show::details(info, is_now))
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
    let ask = |from| {
        Request::Port(PortRequest::List(PortList {
            switch: switch.cloned(),
            from,
            ..PortList::default()
        }))
    };
    Ok(listing::all(connection, ask)?)
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
