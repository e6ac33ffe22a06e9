//! `uvala-evpn`: tells BGP speakers which stations a switch has, and the switch which stations are
//! behind which other host.
//!
//! # Theory of operation
//!
//! The process is a client of uvala, as any other, and of a GoBGP on the same host. It has no part
//! in the way of frames, and keeps nothing on disk: what it needs to know it reads from the two.
//! After its start the process is confined: it opens no file, and connects to these two alone.
//!
//! ```text
//!   uvala ◄── control socket ──► uvala-evpn ◄── gRPC ──► gobgpd ◄── BGP ──► other hosts
//!     └─────────── VXLAN ──────────────────────────────────────────────────► other hosts
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | decisions: what should be, and what is to be done |
//! | [`agent`] | the process, its waits and its timing |
//! | [`fabric`] | the port, by the control socket |
//! | [`session`] | what is said and heard by GoBGP, for each network of the port |
//! | [`gobgp`] | GoBGP's messages |
//! | [`bgp`] | routes as bytes |
//! | [`grpc`], [`http2`], [`hpack`], [`protobuf`] | what these messages travel in |

#![deny(clippy::print_stdout, clippy::print_stderr)] // `terminal::say` does not panic

mod agent;
mod bgp;
mod fabric;
mod gobgp;
mod grpc;
mod hpack;
mod http2;
mod plan;
mod protobuf;
mod session;
#[cfg(test)]
mod simulation;

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use confine::{Files, Mode, Thread};
use protocol::exit;
use protocol::name::PortName;
use protocol::parse;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use terminal::say;

use agent::{Agent, Settings};
use bgp::{Distinguisher, Target};
use session::BgpSettings;

/// Stations of other hosts by BGP EVPN, for a port of kind vxlan
///
/// Announces the stations of the port's switch by a GoBGP on this host, and gives the port the
/// remotes and stations that other hosts announce for its VNI, or for the VNI of each VLAN. What it
/// has set it takes back, and withdraws its routes, when SIGTERM or SIGINT ends it. SIGHUP ends it
/// and leaves all as it is, for a process that follows.
#[derive(Debug, Parser)]
#[command(
    name = "uvala-evpn",
    version,
    after_help = EXAMPLES,
    override_usage = "uvala-evpn [OPTIONS] <PORT>"
)]
struct Args {
    /// Port of kind vxlan
    #[arg(value_name = "PORT", required_unless_present = "man")]
    port: Option<PortName>,
    /// Address of GoBGP's gRPC interface; a name is resolved once, at the start
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50051", value_parser = place)]
    gobgp: String,
    /// Route distinguisher of a port with one VNI, such as 10.0.0.1:100 [default: GoBGP's
    /// router-id, and the VNI]
    #[arg(long, value_name = "IP:N")]
    rd: Option<Distinguisher>,
    /// Route target of a port with one VNI, such as 65001:100; repeat for others whose routes
    /// count, too [default: GoBGP's AS and the VNI, and of others, any AS and the VNI]
    #[arg(long, value_name = "AS:N")]
    rt: Vec<Target>,
    /// Most stations of other hosts, 1 to 65536
    #[arg(
        long, value_name = "N", default_value_t = 16_384,
        value_parser = parse::within(1..=65_536_u32)
    )]
    max_macs: u32,
    /// Seconds for which the switch or GoBGP may be gone before what came from it counts no more
    #[arg(
        long, value_name = "SECONDS", default_value_t = 90,
        value_parser = parse::within(1..=3600_u32)
    )]
    hold: u32,
    /// Directory of the daemon's socket
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Sandbox after the start: on, log (the kernel only logs) or off
    #[arg(
        long, value_name = "MODE", default_value = "on", default_missing_value = "on",
        num_args = 0..=1, require_equals = true
    )]
    sandbox: Mode,
    /// Print the manual page
    #[arg(long, hide = true)]
    man: bool,
}

const EXAMPLES: &str = "\
Example:
  uvala port add vale0:fabric --kind vxlan --vni 100 --local 10.0.0.1 --learning=false
  uvala-evpn vale0:fabric                           with a gobgpd that has l2vpn-evpn neighbours

See docs/multi-host.md for a gobgpd.conf.";

fn place(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let is_place = !text.starts_with(':') && port.is_some_and(|port| port > 0);
    is_place
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text} is no address with a port; write it as 127.0.0.1:50051"))
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::remark(format_args!("uvala-evpn: {error:#}"));
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let Some(port) = args.port.clone().filter(|_| !args.man) else { return print_page() };
    let (signals, stays) = signals().context("cannot catch signals")?;
    let gobgp = resolved(&args.gobgp)?;
    enter_sandbox(args.sandbox, gobgp)?;
    let settings = Settings {
        port,
        dir: args.dir.clone(),
        bgp: BgpSettings { gobgp, distinguisher: args.rd, targets: args.rt.clone() },
        stations: args.max_macs as usize,
        hold_ms: 1000 * u64::from(args.hold),
    };
    let mut agent = Agent::new(settings, signals);
    agent.run().context("cannot wait")?;
    if !stays.load(Ordering::Relaxed) {
        agent.leave();
    }
    Ok(())
}

/// A socket that is readable once the process is to end, and whether all is to stay as it is.
fn signals() -> std::io::Result<(OwnedFd, Arc<AtomicBool>)> {
    let (read, write) = UnixStream::pair()?;
    let stays = Arc::new(AtomicBool::new(false));
    // Set before the socket is readable: actions run in this order.
    signal_hook::flag::register(SIGHUP, stays.clone())?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok((read.into(), stays))
}

/// The address of a name, which cannot be asked for later: the first at which a server listens now,
/// or the first.
fn resolved(gobgp: &str) -> anyhow::Result<SocketAddr> {
    let addresses = gobgp.to_socket_addrs().with_context(|| {
        format!("--gobgp {}: the name cannot be resolved", gobgp.escape_debug())
    })?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let answers = |it: &&SocketAddr| TcpStream::connect_timeout(it, Duration::from_secs(1)).is_ok();
    let found = addresses.iter().find(answers).or(addresses.first());
    found.copied().context("--gobgp: the name has no address")
}

/// Confines the process, which has one thread.
fn enter_sandbox(mode: Mode, gobgp: SocketAddr) -> anyhow::Result<()> {
    if mode == Mode::Off {
        return Ok(());
    }
    let files = Files::none().and_tcp(gobgp.port());
    let report = confine::enter(mode, Thread::Speaker, &files)
        .context("cannot enter the sandbox; run without it: --sandbox=off")?;
    if mode == Mode::On && !report.is_whole() {
        say::remark(format_args!("uvala-evpn: the sandbox is not complete: {report}"));
    }
    Ok(())
}

fn print_page() -> anyhow::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command()).render(&mut page)?;
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA", ".SH EXAMPLES\n.nf");
    say::out(page.replace("\n.SH VERSION", "\n.fi\n.SH VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn test_an_address_without_a_port_is_a_wrong_command_line() {
        for right in ["127.0.0.1:50051", "[::1]:1", "bgp.example:50051"] {
            assert_eq!(place(right).as_deref(), Ok(right));
        }
        for wrong in ["foo", "foo:", ":50051", "foo:0", "foo:65536", "[::1]"] {
            assert!(place(wrong).unwrap_err().contains("write it as"), "{wrong}");
        }
    }
}
