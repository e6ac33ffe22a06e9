//! The subject: uvala itself, as its users run it.
//!
//! A private daemon in a directory of its own, a receiver process, and a sender process, each a
//! part of this same binary and pinned where the scenario says. The receiver opens its ports, shows
//! itself to the switch, and says that it is ready; then the sender starts. The receiver counts and
//! checks every byte where payload is touched; one wrong byte or one frame out of order ends the
//! measurement with an error instead of a number. Receivers' ports ask the switch to wait when they
//! are full, so that no work is spent on frames that are dropped.

mod chain;
mod commands;
mod configuration;
mod driver;
mod ends;
mod forwarding;
mod guests;
mod netmap;
mod page;
mod replace;
mod scrape;
mod slow;
mod stations;
mod trips;

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::host;
use crate::programs::{Killed, await_output};
use crate::role::{self, Role};
use crate::sample::Reading;
use crate::work::{Api, Path, Traffic, Wait, Work};
use terminal::{process, say};

/// One process of the subject beside the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    kind: Kind,
    dir: std::path::PathBuf,
    work: Work,
    millis: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// Sends until it is ended.
    Sender,
    /// Counts what arrives.
    Receiver,
    /// Sends and counts on one port; its port is the sender's or the receiver's.
    BothLeft,
    /// The other end of that.
    BothRight,
    /// Measures round trips.
    Ping,
    /// Answers.
    Pong,
    /// Measures round trips with both ends in one process.
    PingPong,
    /// Measures what a poll costs.
    Poller,
    /// Holds ports and does nothing.
    Idle,
    /// Passes frames on, as this one of a chain.
    Function(u8),
    /// Sends into a chain: at the given rate, or as fast as it can.
    Paced(Option<u64>),
}

/// Runs one piece of work and returns its value, in the unit of its traffic.
pub fn run(work: &Work, time: Duration) -> Result<Reading> {
    if work.path.needs_laboratory() {
        return host::measure(host::Contender::Uvala, work, time);
    }
    if let Path::Chain(_) = work.path {
        return chain::run(work, time);
    }
    match work.traffic {
        _ if work.api == Api::Dpdk => guests::run_pollers(work, time),
        Traffic::Resume => Ok(guests::resume(work)?.into()),
        Traffic::Decision => on_own_thread(|| forwarding::decision(work.placement.switch, time)),
        Traffic::Overrun => on_own_thread(|| guests::overrun(work, time)),
        Traffic::Slow(offer) => on_own_thread(|| slow::run(work, offer, time)),
        Traffic::Learn => Ok(stations::learn(work.placement.switch)?.nanoseconds.into()),
        Traffic::StationsMemory => Ok(stations::learn(work.placement.switch)?.megabytes.into()),
        Traffic::Scrape => Ok(scrape::run(work.idle_ports, time)?.into()),
        Traffic::Page => Ok(page::run(work.idle_ports, time)?.into()),
        Traffic::Offered(kpps) => Ok(commands::rate_at_receiver(kpps, work.captured)?.into()),
        Traffic::Burst(kpps) if work.captured => Ok(commands::lost_by_capture(kpps)?.into()),
        Traffic::Burst(kpps) => Ok(commands::lost_by_receiver(kpps)?.into()),
        _ => run_parts(work, time),
    }
}

/// Measures on a thread that binds itself to a core: this one stays free.
fn on_own_thread(measure: impl FnOnce() -> Result<f64> + Send) -> Result<Reading> {
    let value = std::thread::scope(|scope| scope.spawn(measure).join().expect("no panic"));
    Ok(value?.into())
}

fn run_parts(work: &Work, time: Duration) -> Result<Reading> {
    let mut daemon = configuration::start(work)?;
    let capture = || commands::Capture::start(daemon.dir());
    let _capture = work.captured.then(capture).transpose()?;
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let part = |kind| Part { kind, dir: daemon.dir().to_owned(), work: *work, millis };
    let quiet_machine = work.traffic == Traffic::Quiet && work.api == Api::Driver;
    let _idle = match work.idle_ports {
        0 if !quiet_machine => None,
        _ => Some(Process::start(part(Kind::Idle))?),
    };
    let (first, second) = match work.traffic {
        Traffic::Quiet => {
            return Ok(daemon.cpu_percent(time.max(Duration::from_secs(1)))?.into());
        }
        Traffic::DaemonMemory => return Ok(daemon.own_megabytes()?.into()),
        Traffic::PortMemory => {
            return Ok((daemon.port_megabytes()? / f64::from(work.idle_ports)).into());
        }
        Traffic::Poll => return Process::start(part(Kind::Poller))?.value(time),
        Traffic::RoundTrip(Wait::Spin) => {
            return Process::start(part(Kind::PingPong))?.value(time);
        }
        Traffic::RoundTrip(_) => (Kind::Pong, Kind::Ping),
        Traffic::Both => (Kind::BothRight, Kind::BothLeft),
        Traffic::OneWay | Traffic::Broadcast(_) | Traffic::Unicast(_) | Traffic::Replace => {
            (Kind::Receiver, Kind::Sender)
        }
        Traffic::Overrun
        | Traffic::Resume
        | Traffic::Slow(_)
        | Traffic::Latency
        | Traffic::Decision
        | Traffic::Learn
        | Traffic::StationsMemory
        | Traffic::Flooded
        | Traffic::Answered
        | Traffic::Scrape
        | Traffic::Page
        | Traffic::Offered(_)
        | Traffic::Burst(_) => {
            unreachable!("without other processes")
        }
    };
    let mut first = Process::start(part(first))?;
    let mut second = Process::start(part(second))?;
    match work.traffic {
        Traffic::RoundTrip(_) => second.value(time),
        Traffic::Both => {
            let (one, other) = (first.value(time)?, second.value(time)?);
            let lost = one.lost_percent.zip(other.lost_percent);
            let lost_percent = lost.map(|(one, other)| f64::midpoint(one, other));
            Ok(Reading { lost_percent, ..(one.value + other.value).into() })
        }
        Traffic::Replace => {
            std::thread::sleep(first.warm_up);
            daemon.replace()?;
            first.value(time)
        }
        _ => first.value(time),
    }
}

/// A process of the subject; ended when dropped.
struct Process {
    output: BufReader<ChildStdout>,
    kind: Kind,
    /// How long it runs before it measures.
    warm_up: Duration,
    _child: Killed,
}

impl Process {
    /// Starts it, and waits until it is ready.
    fn start(part: Part) -> Result<Process> {
        let (kind, warm_up) = (part.kind, part.warm_up());
        let is_preloaded = part.work.api == Api::Netmap;
        let dir = part.dir.clone();
        let line = role::command_line(&part)?;
        // `uvala run` becomes what it runs.
        let mut command = Command::new(process::exe()?);
        if is_preloaded {
            command.arg("--dir").arg(dir).args(["run", "--"]).args(line);
        } else {
            command.args(&line[1..]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().context("the process has no output")?);
        let mut process = Process { output, kind, warm_up, _child: Killed(child) };
        match process.line(Duration::from_secs(5))?.as_str() {
            "ready" => Ok(process),
            other => bail!("the {kind:?} process said {other} instead of ready"),
        }
    }

    fn line(&mut self, time: Duration) -> Result<String> {
        let mut line = String::new();
        let ready = !self.output.buffer().is_empty() || await_output(self.output.get_ref(), time)?;
        if !ready {
            bail!("the {:?} process said nothing for {:.1} s", self.kind, time.as_secs_f64());
        }
        if self.output.read_line(&mut line)? == 0 {
            bail!("the {:?} process ended early, see above", self.kind);
        }
        Ok(line.trim_end().to_owned())
    }

    /// What it measured.
    fn value(&mut self, time: Duration) -> Result<Reading> {
        let line = self.line(self.warm_up + time * 4 + Duration::from_secs(3))?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Role for Part {
    const NAME: &'static str = "subject";

    fn run(self) -> Result<()> {
        run_part(&self)
    }
}

fn run_part(part: &Part) -> Result<()> {
    match part.kind {
        Kind::Sender if part.work.api == Api::Netmap => netmap::send(part),
        Kind::Receiver if part.work.api == Api::Netmap => netmap::receive(part),
        Kind::Sender if part.work.api == Api::Driver => guests::send(part),
        Kind::Receiver if part.work.api == Api::Driver => guests::receive(part),
        Kind::Idle if part.work.api == Api::Driver => guests::idle(part),
        Kind::Sender if part.work.traffic == Traffic::Replace => replace::send(part),
        Kind::Receiver if part.work.traffic == Traffic::Replace => replace::receive(part),
        Kind::Idle if part.work.traffic == Traffic::Replace => replace::idle(part),
        Kind::Receiver if matches!(part.work.path, Path::Chain(_)) => chain::receive(part),
        Kind::Function(number) => chain::function(part, number),
        Kind::Paced(rate) => chain::send(part, rate),
        Kind::Poller => netmap::poll_nothing(part),
        Kind::Sender => ends::send(part),
        Kind::Receiver => ends::receive(part),
        Kind::BothLeft | Kind::BothRight => ends::both(part),
        Kind::Ping => trips::ping(part),
        Kind::Pong => trips::pong(part),
        Kind::PingPong => trips::ping_pong(part),
        Kind::Idle => ends::idle(part),
    }
}

impl Part {
    fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// How long everything runs before it is measured: until all have started up, and the daemon
    /// has moved the memory of new ports to huge pages.
    fn warm_up(&self) -> Duration {
        let idle = Duration::from_millis(12) * u32::from(self.work.idle_ports);
        (self.time() / 3).max(Duration::from_millis(500) + idle)
    }

    /// The sender's port.
    fn sender_port(&self) -> String {
        match self.work.path {
            Path::Pipe => "vale0:p}1".into(),
            _ => "vale0:s".into(),
        }
    }

    /// A receiver's port.
    fn receiver_port(&self, number: u8) -> String {
        match self.work.path {
            Path::Pipe => "vale0:p{1".into(),
            _ => format!("vale0:r{number}"),
        }
    }

    /// How its ports are opened.
    fn options(&self) -> client::Options {
        let options = client::Options::new().dir(&self.dir).wait(self.wait_policy());
        match self.work.path {
            Path::Group => options.group("bench"),
            Path::Chain(_) => options.group("bench").slots(self.work.slots.into()),
            _ => options,
        }
    }

    fn wait_policy(&self) -> client::WaitPolicy {
        match self.work.traffic {
            Traffic::RoundTrip(Wait::Asleep) => client::WaitPolicy { yields: 0, spin: false },
            Traffic::RoundTrip(Wait::Yield) => client::WaitPolicy { yields: 10_000, spin: false },
            Traffic::RoundTrip(Wait::Spin) => client::WaitPolicy { yields: 0, spin: true },
            _ => client::WaitPolicy::default(),
        }
    }

    /// Tells the parent that it may go on.
    fn ready(&self) -> Result<()> {
        say::out("ready\n")
    }

    fn report(&self, value: f64) -> Result<()> {
        self.report_reading(&value.into())
    }

    fn report_reading(&self, reading: &Reading) -> Result<()> {
        say::json(reading)
    }
}
