//! A port in use until something ends it: a time, a count, a signal, an error.
//!
//! All functions of `gen` run turns on a [`Session`]. A turn waits at most [`TICK`], so that a
//! signal is seen soon; what goes wrong in a turn comes here, and the session goes on where it may.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::control::{Connection, ControlError};
use client::{Error, Options, Port, WaitPolicy};
use protocol::name::PortName;
use protocol::{PortRequest, Reply, Request, StatsQuery, exit, parse};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::report::{Meter, Volume};
use terminal::say;

/// Longest time without a look at the clock and the signals.
pub const TICK: Duration = Duration::from_millis(100);

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Waiting {
    /// Yield a few times, then sleep; for shared cores
    #[default]
    Auto,
    /// Sleep at once
    Sleep,
    /// Yield for a long time before sleeping
    Yield,
    /// Never sleep; for a dedicated core
    Spin,
}

impl Waiting {
    fn policy(self) -> WaitPolicy {
        match self {
            Self::Auto => WaitPolicy::default(),
            Self::Sleep => WaitPolicy { yields: 0, spin: false },
            Self::Yield => WaitPolicy { yields: 10_000, spin: false },
            Self::Spin => WaitPolicy { yields: 0, spin: true },
        }
    }
}

/// How a port is opened and used.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PortArgs {
    /// Trust group: its ports share memory, and frames move between them without a copy
    #[arg(long, value_name = "NAME", help_heading = "Port")]
    pub group: Option<String>,

    /// Memory of the trust group if this port creates it, such as 64MiB: all of it counts against
    /// the user's quota, and further ports of the group are not charged [default: the daemon's]
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes, requires = "group",
          help_heading = "Port")]
    group_memory: Option<u64>,

    /// Transmit rings [default: the daemon's]
    #[arg(long, value_name = "N", value_parser = parse::number16, help_heading = "Port")]
    tx_rings: Option<u16>,

    /// Receive rings [default: the daemon's]
    #[arg(long, value_name = "N", value_parser = parse::number16, help_heading = "Port")]
    rx_rings: Option<u16>,

    /// Slots of each ring [default: the daemon's]
    #[arg(long, value_name = "N", value_parser = parse::number32, help_heading = "Port")]
    slots: Option<u32>,

    /// Number of extra buffers
    #[arg(long, value_name = "N", value_parser = parse::number32, help_heading = "Port")]
    extra_bufs: Option<u32>,

    /// Wait policy
    #[arg(long, value_name = "HOW", value_enum, default_value_t, help_heading = "Port")]
    wait: Waiting,

    /// Bind to this CPU
    #[arg(short, long, value_name = "CPU", help_heading = "Port")]
    cpu: Option<usize>,

    /// End when the daemon ends, instead of waiting for it to come back
    #[arg(long, help_heading = "Port")]
    pub no_reconnect: bool,
}

impl PortArgs {
    /// Opens a port.
    pub fn open(&self, name: &PortName, dir: Option<&Path>) -> Result<Port, Error> {
        let mut options = Options::new().wait(self.wait.policy());
        if let Some(dir) = dir {
            options = options.dir(dir);
        }
        if let Some(group) = &self.group {
            options = options.group(group);
        }
        if let Some(bytes) = self.group_memory {
            options = options.group_memory(bytes);
        }
        if let Some(count) = self.tx_rings {
            options = options.tx_rings(count);
        }
        if let Some(count) = self.rx_rings {
            options = options.rx_rings(count);
        }
        if let Some(count) = self.slots {
            options = options.slots(count);
        }
        if let Some(count) = self.extra_bufs {
            options = options.extra_bufs(count);
        }
        options.open(&name.to_string())
    }

    /// Binds this thread, and those it starts, to the CPU that was asked for.
    pub fn pin(&self) -> Result<()> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        let mut set = CpuSet::new();
        anyhow::ensure!(cpu < CpuSet::MAX_CPU, "--cpu {cpu}: there are no such CPUs");
        set.set(cpu);
        sched_setaffinity(None, &set).with_context(|| format!("--cpu {cpu}: cannot run there"))
    }
}

/// Set by SIGINT and SIGTERM.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on these signals are noticed, and nothing else.
    pub fn on_signals() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone()).context("cannot catch signals")?;
        }
        Ok(Self(stop))
    }

    /// Whether the user asked to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps; a signal ends it. `false`: there was one.
    pub fn sleep(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_set() {
                return !self.is_set();
            }
            std::thread::sleep(left.min(TICK));
        }
    }
}

/// A port in use.
#[derive(Debug)]
pub struct Session {
    /// The port.
    pub port: Port,
    /// What was sent or received.
    pub volume: Volume,
    /// How often the daemon came back.
    pub reconnects: u32,
    stop: Stop,
    end: Option<Instant>,
    args: PortArgs,
    meter: Meter,
    stats: Stats,
    /// What the port's earlier clients had lost, where it is a persistent one.
    before: BTreeMap<String, u64>,
    /// What daemons that are gone had dropped, when they were last asked.
    earlier: BTreeMap<String, u64>,
    /// What this one has, likewise.
    latest: Option<BTreeMap<String, u64>>,
    /// Frames to our own address, which the switch drops as it should.
    announced: u64,
    /// When the daemon was last seen.
    seen: Instant,
}

impl Session {
    /// Opens a port.
    pub fn open(
        name: &PortName,
        dir: Option<&Path>,
        args: &PortArgs,
        report: bool,
    ) -> Result<Self> {
        let stop = Stop::on_signals()?;
        args.pin()?;
        let port = args.open(name, dir)?;
        let mut stats = Stats::new(name.clone(), dir.map(Path::to_path_buf));
        let before = stats.get().map(|stats| stats.drops).unwrap_or_default();
        let quiet = !report && !std::io::stderr().is_terminal();
        Ok(Self {
            port,
            volume: Volume::default(),
            reconnects: 0,
            stop,
            end: None,
            args: args.clone(),
            meter: Meter::new(quiet),
            stats,
            before,
            earlier: BTreeMap::new(),
            latest: None,
            announced: 0,
            seen: Instant::now(),
        })
    }

    /// The clock starts; `delay` comes before it. Without a time there is no end.
    pub fn begin(&mut self, delay: Option<Duration>, time: Option<Duration>) {
        if let Some(delay) = delay {
            self.stop.sleep(delay);
        }
        let now = Instant::now();
        self.end = time.and_then(|time| now.checked_add(time));
        self.meter.restart(now);
    }

    /// Whether the time is over or a signal came. Prints the line of each second on the way.
    #[inline]
    pub fn is_over(&mut self, now: Instant) -> bool {
        if self.meter.is_due(now) {
            let dropped = self.drops().map(|drops| drops.values().sum());
            self.meter.line(now, &self.volume, dropped);
        }
        self.stop.is_set() || self.end.is_some_and(|end| now >= end)
    }

    /// Sleeps until `then`, or a tick.
    pub fn sleep_until(&self, then: Instant) {
        let left = then.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(TICK));
    }

    /// Runs turns until one says that it is over, or the session is.
    pub fn run(&mut self, mut turn: impl FnMut(&mut Self) -> Result<bool, Error>) -> Result<()> {
        loop {
            match turn(self) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    if !self.recover(error)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// As [`Session::run`], for a port whose address others have to know: announces it at the
    /// beginning and after every error.
    pub fn run_announced(
        &mut self,
        mut announcement: Vec<u8>,
        mut turn: impl FnMut(&mut Self) -> Result<bool, Error>,
    ) -> Result<()> {
        let mut is_known = false;
        self.run(|session| {
            let result = match is_known {
                true => turn(session),
                false => session.announce(&mut announcement).map(|()| true),
            };
            is_known = result.is_ok();
            result
        })
    }

    /// Goes on after an error where that is possible. `false`: the session is over.
    fn recover(&mut self, error: Error) -> Result<bool> {
        match error {
            // Some frames are lost; the receiver counts them.
            Error::Resynced { .. } => say::remark(error),
            Error::Lost(_) if !self.args.no_reconnect => match self.port.why_lost() {
                Error::Lost(_) => return self.reconnect(),
                deleted => return Err(deleted.into()),
            },
            error => return Err(error.into()),
        }
        Ok(true)
    }

    fn reconnect(&mut self) -> Result<bool> {
        self.remark("the daemon has stopped; waiting for it to start again");
        while !self.stop.is_set() && self.end.is_none_or(|end| Instant::now() < end) {
            match self.port.reconnect(Some(TICK)) {
                Ok(()) => {
                    self.reconnects += 1;
                    self.announced = 0;
                    self.before.clear();
                    add(&mut self.earlier, self.latest.take().unwrap_or_default());
                    self.remark("the daemon is back");
                    return Ok(true);
                }
                Err(error) if may_come_back(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    fn remark(&self, what: &str) {
        say::remark(format_args!("{}: {what}", self.port.name()));
    }

    /// Sends one frame to its own address: the switch learns where that is, and drops
    /// it (`same_port`). Pipes have no switch.
    fn announce(&mut self, frame: &mut [u8]) -> Result<(), Error> {
        if self.port.name().pipe().is_some() {
            return Ok(());
        }
        let (to, from) = frame.split_at_mut(6);
        to.copy_from_slice(&from[..6]);
        self.port.send(frame)?;
        self.announced += 1;
        self.port.drain(Some(TICK)).map(drop)
    }

    /// Whether the daemon is still there. Asked at most once a tick: a sender that never waits
    /// would only find out when its ring is full.
    #[inline]
    pub fn check(&mut self, now: Instant) -> Result<(), Error> {
        if now - self.seen >= TICK {
            self.seen = now;
            self.port.check()?;
        }
        Ok(())
    }

    /// What the switch dropped for this port in this run, without the announcements. Where the
    /// daemon went away, what it had dropped when it was last asked, up to a second before.
    pub fn drops(&mut self) -> Option<BTreeMap<String, u64>> {
        self.latest = self.drops_here().or(self.latest.take());
        let mut drops = self.latest.clone()?;
        add(&mut drops, self.earlier.clone());
        Some(drops)
    }

    /// Drops since this daemon started.
    fn drops_here(&mut self) -> Option<BTreeMap<String, u64>> {
        let mut drops = self.stats.get()?.drops;
        for (reason, count) in &mut drops {
            *count -= self.before.get(reason).copied().unwrap_or(0).min(*count);
        }
        if let Some(count) = drops.get_mut("same_port") {
            *count = count.saturating_sub(self.announced);
        }
        drops.retain(|_, count| *count > 0);
        Some(drops)
    }
}

fn add(sum: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (reason, count) in more {
        *sum.entry(reason).or_default() += count;
    }
}

/// Whether another attempt may find the daemon again.
pub fn may_come_back(error: &Error) -> bool {
    !matches!(error, Error::Deleted(_))
        && matches!(error.exit_code(), exit::NO_DAEMON | exit::IN_USE | exit::NOT_FOUND)
}

/// Asks the daemon for the counters of a port, once a second at most.
#[derive(Debug)]
pub struct Stats {
    port: PortName,
    dir: Option<PathBuf>,
    connection: Option<Connection>,
}

impl Stats {
    /// Statistics of a port; this does not ask the daemon yet.
    pub fn new(port: PortName, dir: Option<PathBuf>) -> Self {
        Self { port, dir, connection: None }
    }

    /// The counters; `None` where no daemon answers, as for a pipe.
    pub fn get(&mut self) -> Option<protocol::PortStats> {
        // A connection from before may lead to a daemon that is gone.
        let connected = self.connection.is_some();
        self.ask().or_else(|error| if connected { self.ask() } else { Err(error) }).ok()?
    }

    fn ask(&mut self) -> Result<Option<protocol::PortStats>, ControlError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.dir.as_deref())?,
        };
        let query = StatsQuery { port: Some(self.port.clone()), ..StatsQuery::default() };
        let reply = connection.call(Request::Port(PortRequest::Stats(query)))?;
        self.connection = Some(connection);
        let Reply::Stats(page) = reply else { return Ok(None) };
        Ok(page.items.into_iter().next())
    }
}

/// The monotonic clock, which all processes of a machine share.
#[inline]
pub fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
