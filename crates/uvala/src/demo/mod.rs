//! `uvala demo`: the main job, seen to work.
//!
//! ```text
//!  this process                    child processes: `uvala gen`, as users run it
//!  ┌───────────────────────┐
//!  │ daemon: vale0         │◄────► tx, 60 B then 1514 B ──► rx checks every byte
//!  │ (threads of its own)  │◄────► ping, both asleep    ◄─► pong
//!  └───────────────────────┘
//! ```
//!
//! The switch has a directory of its own that goes with the demo. The children get what they need
//! to find it, and SIGKILL from the kernel when this process ends, however it ends.

mod child;
pub mod place;
mod report;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::control::Connection;
use protocol::{FdbList, FdbRequest, Page, PortList, PortRequest, Reply, Request, parse};

use bench::traffic::session::{Stats, Stop};
use child::Child;
use place::Switch;
use report::{Report, Transfer};
use terminal::say;
use terminal::units;

const SENDER: (&str, &str) = ("vale0:sender", "02:00:00:00:00:01");
const RECEIVER: (&str, &str) = ("vale0:receiver", "02:00:00:00:00:02");
const PING: (&str, &str) = ("vale0:ping", "02:00:00:00:00:03");
const PONG: (&str, &str) = ("vale0:pong", "02:00:00:00:00:04");

/// Ports for which the switch waits: nothing is lost.
const CONFIG: &str = "\
[workers]
count = 1

[switch.vale0.port.receiver]
on_full = \"wait\"
";

/// How long a child may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// See it work: a switch, a sender and a receiver, six seconds
///
/// Runs a private switch in this process, and a sender and a receiver as separate processes that
/// share no memory. The sender writes every byte of every frame, and the receiver checks it; its
/// port applies backpressure, so no frame is dropped. The demo needs neither root nor a running
/// daemon, and leaves nothing behind. The exit status is 0 only if every frame arrived.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Duration of the transfer
    #[arg(long, value_name = "S", default_value = "3", value_parser = parse::positive_seconds)]
    seconds: Duration,

    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<()> {
    let stop = Stop::on_signals()?;
    let switch = Switch::start(CONFIG)?;
    let demo = Demo { switch, stop, live: !args.json && std::io::stdout().is_terminal() };
    if !args.json {
        say::out(HEAD)?;
    }
    let half = args.seconds / 2;
    let transfers = vec![demo.transfer(60, half)?, demo.transfer(1514, half)?];
    let (latency, pong) = demo.round_trips()?;
    let idle_cpu_percent = demo.idle_cpu()?;
    let report = Report {
        transfers,
        round_trip: latency,
        idle_cpu_percent,
        daemon_bytes: place::own_memory()?,
        port_bytes: demo.port_memory()?,
    };
    drop(pong);
    let said = if args.json { say::json(&report) } else { say::out(report.table()) };
    report.verdict().and(said)
}

/// The switch, and the processes that use it.
struct Demo {
    switch: Switch,
    stop: Stop,
    live: bool,
}

impl Demo {
    /// Sends frames of one length for a time; waits until all have arrived.
    fn transfer(&self, length: usize, time: Duration) -> Result<Transfer> {
        let (port, mac) = RECEIVER;
        let mut receiver = self.start("rx", port, mac, &["--check"])?;
        self.await_address(&mut receiver, mac)?;
        let (length_text, time) = (length.to_string(), time.as_secs_f64().to_string());
        let options = ["-l", &length_text, "-T", &time, "-D", mac];
        let mut sender = self.start("tx", SENDER.0, SENDER.1, &options)?;
        self.watch(length, &mut sender)?;
        let (sent, status) = sender.summary(PATIENCE)?;
        ensure!(status.success(), "the sender failed: {}", sender.complaint());
        receiver.interrupt()?;
        let (received, _) = receiver.summary(PATIENCE)?;
        Ok(Transfer { length, sent: sent.frames, received })
    }

    /// Shows the rate until the sender has ended.
    fn watch(&self, length: usize, sender: &mut Child) -> Result<()> {
        let dir = self.switch.dir().to_path_buf();
        let mut stats = Stats::new(RECEIVER.0.parse()?, Some(dir));
        let mut before = (Instant::now(), None);
        while sender.is_running()? {
            self.sleep(Duration::from_millis(100))?;
            if !self.live || before.0.elapsed() < Duration::from_millis(250) {
                continue;
            }
            let Some(now) = stats.get().map(|stats| stats.rx.frames) else { continue };
            if let Some(old) = before.1 {
                let rate = units::per_second(now.saturating_sub(old), before.0.elapsed());
                let bits = rate * 8.0 * length as f64;
                let (rate, bits) = (units::packet_rate(rate), units::bit_rate(bits));
                say::out(format_args!("\r{length:>6} B  {rate:>11}  {bits:>11}\x1b[K"))?;
            }
            before = (Instant::now(), Some(now));
        }
        if self.live {
            say::out("\r\x1b[K")?;
        }
        Ok(())
    }

    /// Round trips between two processes that sleep in between. The one that answers goes on.
    fn round_trips(&self) -> Result<(bench::traffic::latency::Latency, Child)> {
        let mut pong = self.start("pong", PONG.0, PONG.1, &["--wait", "sleep"])?;
        self.await_address(&mut pong, PONG.1)?;
        let options = ["-n", "500", "-R", "1k", "-D", PONG.1, "--wait", "sleep"];
        let mut ping = self.start("ping", PING.0, PING.1, &options)?;
        while ping.is_running()? {
            self.sleep(Duration::from_millis(50))?;
        }
        let (trips, status) = ping.summary(PATIENCE)?;
        ensure!(status.success(), "the pinger failed: {}", ping.complaint());
        Ok((trips.latency_us.context("no ping was answered")?, pong))
    }

    /// Percent of a core that the switch uses while a port is open and nothing happens.
    fn idle_cpu(&self) -> Result<f64> {
        self.sleep(Duration::from_millis(200))?;
        let (before, start) = (place::cpu_time(), Instant::now());
        self.sleep(Duration::from_secs(1))?;
        let used = place::cpu_time().saturating_sub(before);
        Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
    }

    fn start(&self, function: &str, port: &str, mac: &str, more: &[&str]) -> Result<Child> {
        Child::start(self.switch.dir(), function, port, mac, more)
    }

    /// Waits until the switch knows where an address is: the child behind it is ready.
    fn await_address(&self, child: &mut Child, mac: &str) -> Result<()> {
        let (connection, begin) = (self.connect()?, Instant::now());
        let query = FdbList { switch: "vale0".parse()?, from: None };
        while begin.elapsed() < PATIENCE {
            let reply = connection.call(Request::Fdb(FdbRequest::List(query.clone())))?;
            if let Reply::Fdb(Page { items, .. }) = reply
                && items.iter().any(|entry| entry.mac.to_string() == mac)
            {
                return Ok(());
            }
            ensure!(child.is_running()?, "a process of the demo failed: {}", child.complaint());
            self.sleep(Duration::from_millis(2))?;
        }
        bail!("a process of the demo did not come up")
    }

    /// Memory of a port, of whichever is open.
    fn port_memory(&self) -> Result<u64> {
        match self.connect()?.call(Request::Port(PortRequest::List(PortList::default())))? {
            Reply::Ports(page) => Ok(page.items.iter().map(|port| port.memory).max().unwrap_or(0)),
            _ => bail!("the switch did not list its ports"),
        }
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::open(Some(self.switch.dir()))?)
    }

    /// Sleeps; a signal ends the demo.
    fn sleep(&self, time: Duration) -> Result<()> {
        ensure!(self.stop.sleep(time), "interrupted");
        Ok(())
    }
}

const HEAD: &str = "\
a switch in this process; sender and receiver are processes of their own
every byte of every frame is written by the sender, verified by the receiver

";

const EXAMPLES: &str = "\
Examples:
  uvala demo                    as it is
  uvala demo --seconds 20       for longer
  uvala demo --json             for a script";
