//! `uvala-device`: a network card for a virtual machine, which is a client of a switch.
//!
//! # Theory of operation
//!
//! The process holds what a guest's driver sees, registers and configuration space, and the socket
//! by which a VMM reaches it (vfio-user). It maps the guest's memory and moves frames between
//! there and a port, which it has opened as any program does:
//!
//! ```text
//!   guest ── VMM ◄─ vfio-user ─► uvala-device ◄─ port: region, doorbells ─► switch
//!              └───── memory ─────────┘
//! ```
//!
//! So the switch has nothing of the device and nothing of the guest's memory, and a switch that
//! ends takes no card away from a guest: the process opens its port again. After its start it is
//! confined to the calls and files that it needs.

#![deny(clippy::print_stdout, clippy::print_stderr)] // `terminal::say` does not panic

mod frames;
mod log;
mod machine;
mod nic;
mod pci;
mod ptnet;
mod serve;
mod shown;
mod socket;
mod uplink;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};
use client::{Options, Stop};
use confine::{Files, Mode, Thread};
use packet::MacAddr;
use protocol::name::PortName;
use protocol::parse;
use protocol::{COALESCE_USECS_MAX, exit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use terminal::{remover, say};

use nic::Nic;
use serve::Server;
use socket::Listener;
use uplink::Uplink;

/// A network card for a virtual machine, on a port of a switch
///
/// A VMM (QEMU 10.1 or newer) connects to the socket and has a network card that its guest drives
/// without virtio. The process listens again when the VMM has gone, and opens its port again when
/// the daemon is back. SIGTERM ends it.
#[derive(Debug, Parser)]
#[command(name = "uvala-device", version, after_help = EXAMPLES)]
struct Args {
    /// What the guest sees: e1000, an Intel 82540EM; or ptnet, the port itself (guest/linux)
    #[arg(long, value_name = "MODEL")]
    nic: Model,
    /// Port of the device; it is made, and goes with the process
    #[arg(long, value_name = "PORT")]
    port: PortName,
    /// Socket for the VMM [default: PORT.vfio in the daemon's directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Address of the device [default: one in QEMU's range, made of the port's name]
    #[arg(long, value_name = "MAC", value_parser = one_card)]
    mac: Option<MacAddr>,
    /// Pairs of rings of a ptnet, for guests with several processors
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = parse::within(1..=QUEUES_MAX)
    )]
    queues: u16,
    /// Trust group of a ptnet: the guest has the memory of all its members
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Least time between two interrupts in µs, 0 to 1000, where the guest's driver asks for less
    #[arg(
        long, value_name = "N", default_value_t = 0,
        value_parser = parse::within(0..=COALESCE_USECS_MAX)
    )]
    coalesce_usecs: u16,
    /// How long the device looks for frames by itself before it asks for kicks, in µs, 0 to 1000,
    /// if it shares a page with the guest's driver
    #[arg(
        long, value_name = "N", default_value_t = POLL_USECS,
        value_parser = parse::within(0..=1000_u16)
    )]
    poll_usecs: u16,
    /// Directory of the daemon's socket
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Sandbox after the start: on, log (the kernel only logs) or off
    #[arg(
        long, value_name = "MODE", default_value = "on", default_missing_value = "on",
        num_args = 0..=1, require_equals = true
    )]
    sandbox: Mode,
}

/// As many as there are doorbells for.
const QUEUES_MAX: u16 = device::ptnet::RINGS_MAX / 2;
/// As long as measured best: docs/vm.md.
const POLL_USECS: u16 = 500;

/// An address that one card can have.
fn one_card(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|error: packet::ParseError| error.to_string())?;
    match mac == MacAddr::ZERO || mac.is_multicast() {
        true => Err("a card's address has an even first byte and is not zero: 52:54:…".to_owned()),
        false => Ok(mac),
    }
}

/// A network card.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Model {
    E1000,
    Ptnet,
}

impl Model {
    /// What listings of ports call the process.
    fn client(self) -> &'static str {
        match self {
            Self::E1000 => "uvala-device",
            Self::Ptnet => "uvala-device-ptnet",
        }
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::E1000 => "an e1000",
            Self::Ptnet => "a ptnet",
        })
    }
}

const EXAMPLES: &str = "\
Example:
  uvala-device --nic e1000 --port vale0:vm1         it says when it listens; then:
  qemu-system-x86_64 $(uvala vm-args vale0:vm1 --nic e1000) -drive file=disk.qcow2";

fn main() -> ExitCode {
    if remover::is_done() {
        return ExitCode::SUCCESS;
    }
    // For `uvala assets`, and without the port and the model that everything else needs.
    if std::env::args_os().skip(1).eq(["--man"]) {
        return match print_man_page() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::remark(format_args!("uvala-device: {error:#}"));
            let code = error.downcast_ref::<client::Error>().map(client::Error::exit_code);
            ExitCode::from(code.unwrap_or(exit::FAILURE))
        }
    }
}

fn print_man_page() -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command()).render(&mut page)?;
    say::out(String::from_utf8(page)?)
}

fn run(args: &Args) -> Result<()> {
    let stop = Stop::new().context("cannot make an eventfd")?;
    let mut options = Options::new().client(args.nic.client()).stop(&stop);
    if let Some(dir) = &args.dir {
        options = options.dir(dir);
    }
    let signals = signals().context("cannot catch signals")?;
    let default =
        || protocol::paths::daemon_dir(args.dir.as_deref()).join(format!("{}.vfio", args.port));
    let listener = Listener::bind(&args.socket.clone().unwrap_or_else(default))?;
    let options = match args.nic {
        Model::E1000 if args.queues > 1 => bail!("an e1000 has one queue: leave --queues out"),
        Model::E1000 if args.group.is_some() => {
            bail!("an e1000 shares no memory with ports: leave --group out")
        }
        Model::E1000 => options,
        Model::Ptnet if args.port.pipe().is_some() => {
            bail!("the ends of a pipe share their memory: choose a port of a switch")
        }
        Model::Ptnet => {
            let options = options.lends(true).rings(args.queues);
            args.group.iter().fold(options, Options::group)
        }
    };
    let uplink = Uplink::open(options, &args.port.to_string())?;
    enter_sandbox(args.sandbox)?;
    let mac = args.mac.unwrap_or_else(|| args.port.guest_mac());
    say::out(format_args!(
        "{}: {} with address {mac} listens on {}\n",
        args.port,
        args.nic,
        listener.path().display()
    ))?;
    if let Model::Ptnet = args.nic {
        let is_shared = args.group.is_some();
        return ptnet::Server::new(mac, is_shared, listener, uplink, signals, stop).run();
    }
    let description = nic::description();
    let nic = Nic::new(mac, args.coalesce_usecs);
    let polls = Duration::from_micros(args.poll_usecs.into());
    Server::new(nic, polls, listener, uplink, &description, signals, stop).run()
}

/// A socket that is readable once the process is to end.
fn signals() -> Result<OwnedFd> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read.into())
}

/// Confines the process while it has one thread.
fn enter_sandbox(mode: Mode) -> Result<()> {
    if mode == Mode::Off {
        return Ok(());
    }
    let report = confine::enter(mode, Thread::Function, &Files::of_a_client())
        .context("cannot enter the sandbox; run without it: --sandbox=off")?;
    if mode == Mode::On && !report.is_whole() {
        say::remark(format_args!("uvala-device: the sandbox is not complete: {report}"));
    }
    Ok(())
}
