//! The watchdog: a thread that notices workers that stand still.
//!
//! # Theory of operation
//!
//! ```text
//!   workers ── heartbeat ──► watchdog ── stall, bell ──► control thread: log, counters, detach
//!   control ── heartbeat ──►    │ └── suspicion ──► memory-reader: whose memory is slow?
//!                               └── WATCHDOG=1 ──► systemd, while all of them go on
//! ```
//!
//! Each worker writes one word before each step that may take long ([`switch::Heartbeat`]). The
//! watchdog reads the words every 20 ms, and [`judge`] decides when a worker stands still, what
//! holds it up, and how long it stood when that is over. When all workers have slept for a second,
//! the watchdog sleeps, too, until a worker that wakes up raises the [`Alarm`]. So an idle daemon
//! stays asleep, unless systemd wants reports.
//!
//! A worker that waits while it accesses the memory of ports may wait for any of them. This is a
//! [`Suspicion`], unless the daemon has read from a disk meanwhile, as on a machine that swaps. It
//! goes to another thread directly, because the control thread may wait for that worker.
//!
//! The thread itself waits for nothing but its own clock. It logs a stall of a second by itself,
//! because the control thread may wait for that very worker. Such lines have a budget.

pub mod judge;
mod thread_account;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use port::log_budget::Budget;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;
use switch::{Beat, HeartbeatReader, Stage};

use super::usage::Usage;
use judge::{Cause, Judge, Stall};
pub use thread_account::ThreadAccount;

/// Time between two looks.
const TICK: Duration = Duration::from_millis(20);
/// Looks at sleeping workers after which the watchdog sleeps.
const QUIET_TICKS: u32 = 50;
/// A stall that lasts so long is logged by the watchdog itself.
const LONG: Duration = Duration::from_secs(1);

/// A thread that the watchdog watches.
#[derive(Debug)]
pub struct Watched {
    /// Heartbeat of the thread.
    pub heartbeat: HeartbeatReader,
    /// Number of the thread in the system.
    pub thread: Pid,
    /// What the log calls the thread.
    pub name: String,
}

/// A worker that waits in a step in which it accesses the memory of one port or two.
#[derive(Debug)]
pub struct Suspicion {
    /// Number of the worker.
    pub worker: usize,
    /// The step.
    pub beat: Beat,
    /// Where the worker is by now.
    pub heartbeat: HeartbeatReader,
    /// What the kernel knows of its thread.
    pub account: Arc<ThreadAccount>,
    /// What the daemon had read from disks before the step, and has up to now.
    pub disk_reads: u64,
    /// Tells control of what is found.
    pub bell: StallBell,
}

impl Suspicion {
    /// Whether the worker still waits in that step.
    pub fn waits(&self) -> bool {
        self.heartbeat.read() == self.beat && !self.account.is_runnable()
    }
}

/// A running watchdog. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watchdog {
    stalls: Receiver<(usize, Stall)>,
    bell: StallBell,
    alarm: Alarm,
}

/// Tells the control thread of stalls.
#[derive(Clone, Debug)]
pub struct StallBell(Arc<OwnedFd>);

impl StallBell {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into()))
    }

    /// Tells the control thread that a worker stands still.
    pub fn ring(&self) {
        // A full counter has told control already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Wakes the watchdog. Workers share it.
#[derive(Clone, Debug, Default)]
pub struct Alarm(Arc<AlarmState>);

#[derive(Debug, Default)]
struct AlarmState {
    /// The watchdog sleeps until it is woken. Writers: the watchdog sets it, a worker that raises
    /// the alarm and the watchdog's owner clear it. Relaxed: a worker that misses it looks again
    /// within a millisecond.
    sleeps: AtomicBool,
    /// The watchdog is to end. Writer: its owner.
    ends: AtomicBool,
    /// Microseconds in which systemd wants a report (`WatchdogSec=`); 0: it wants none. Writer: the
    /// watchdog's owner. Relaxed: at the next look is soon enough.
    limit_us: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Alarm {
    /// Wakes the watchdog if it sleeps: called by workers that are awake.
    #[inline]
    pub fn raise(&self) {
        if self.0.sleeps.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.0.sleeps.store(false, Ordering::Relaxed);
        if let Some(thread) = self.0.thread.get() {
            thread.unpark();
        }
    }
}

impl AlarmState {
    /// The time in which systemd wants a report.
    fn limit(&self) -> Option<Duration> {
        let us = self.limit_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.alarm.0.ends.store(true, Ordering::Relaxed);
        self.alarm.wake();
    }
}

impl Watchdog {
    /// Starts the thread, which puts what it suspects into a queue.
    ///
    /// # Errors
    /// No descriptors or threads left.
    pub fn start(
        workers: Vec<Watched>,
        alarm: &Alarm,
        suspicions: SyncSender<Suspicion>,
    ) -> io::Result<Self> {
        let bell = StallBell::new()?;
        let (found, stalls) = channel();
        let workers = workers.iter().map(Worker::new).collect();
        let (alarm, ours) = (alarm.clone(), bell.clone());
        let lines = Budget::default();
        let (state, reported) = (alarm.clone(), None);
        let patrol =
            Patrol { workers, found, suspicions, bell: ours, alarm: state, reported, lines };
        let body = move || {
            confine::narrow(confine::Thread::Watchdog);
            patrol.run();
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(body)?;
        // Nothing else sets it.
        let _ = alarm.0.thread.set(thread.thread().clone());
        let watchdog = Self { stalls, bell, alarm };
        watchdog.set_limit(sd_notify::watchdog_enabled().unwrap_or_default());
        Ok(watchdog)
    }

    /// The time in which systemd wants to hear that all threads go on (`WatchdogSec=`).
    pub fn limit(&self) -> Option<Duration> {
        self.alarm.0.limit()
    }

    /// Sets the time in which systemd wants to hear that all threads go on; zero: it does not.
    pub fn set_limit(&self, limit: Duration) {
        let us = limit.as_micros().try_into().unwrap_or(u64::MAX);
        self.alarm.0.limit_us.store(us, Ordering::Relaxed);
        self.alarm.wake();
    }

    /// Readable when a worker has stood still: then call [`Watchdog::take`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }

    /// The bell, for workers that see stalls themselves.
    #[must_use]
    pub fn ringer(&self) -> StallBell {
        self.bell.clone()
    }

    /// Stalls since the last call, with the numbers of the workers.
    pub fn take(&self) -> Vec<(usize, Stall)> {
        // Only the count is lost, which says nothing.
        let _ = rustix::io::read(&*self.bell.0, &mut [0; 8]);
        self.stalls.try_iter().collect()
    }
}

/// A worker, as the thread sees it.
#[derive(Debug)]
struct Worker {
    heartbeat: HeartbeatReader,
    name: String,
    account: Arc<ThreadAccount>,
    judge: Judge,
    reads: DiskReads,
    /// The current stall has been logged here.
    logged: bool,
}

impl Worker {
    fn new(watched: &Watched) -> Self {
        let Watched { heartbeat, thread, name } = watched;
        let (account, beat) = (Arc::new(ThreadAccount::of(*thread)), heartbeat.read());
        let judge = Judge::new(beat, Instant::now(), account.now());
        let reads = DiskReads::new(beat, Usage::of_process().disk_reads);
        let (heartbeat, name) = (heartbeat.clone(), name.clone());
        Self { heartbeat, name, account, judge, reads, logged: false }
    }

    /// A stall that is to be reported, and what the daemon had read from disks before that step.
    fn look(&mut self, now: Instant, reads_now: u64, lines: &Budget) -> Option<(Stall, u64)> {
        let Self { heartbeat, name, account, judge, reads, logged } = self;
        let beat = heartbeat.read();
        let stall = judge.look(beat, now, || account.now());
        let before = reads.before(beat, reads_now);
        let long = judge.stands(now, LONG);
        let is_new = !std::mem::replace(logged, long) && long;
        if is_new && lines.decide(now).allows("of long stalls", |text| tracing::warn!("{text}")) {
            let stage = heartbeat.read().stage;
            tracing::warn!("{name} has stood still for over a second ({stage:?})");
        }
        Some((stall?, before))
    }

    fn is_awake(&self) -> bool {
        self.heartbeat.read().stage != Stage::Asleep
    }
}

/// What the daemon had read from disks before a worker began the step that it is in.
#[derive(Debug)]
struct DiskReads {
    step: Beat,
    before: u64,
    /// At the last look.
    last: u64,
}

impl DiskReads {
    fn new(step: Beat, reads: u64) -> Self {
        Self { step, before: reads, last: reads }
    }

    /// Takes the current step, and the reads so far; returns those before the step.
    fn before(&mut self, step: Beat, now: u64) -> u64 {
        if step != self.step {
            (self.step, self.before) = (step, self.last);
        }
        self.last = now;
        self.before
    }
}

/// The thread's state.
struct Patrol {
    workers: Vec<Worker>,
    found: Sender<(usize, Stall)>,
    suspicions: SyncSender<Suspicion>,
    bell: StallBell,
    alarm: Alarm,
    /// When systemd was last told that all threads go on.
    reported: Option<Instant>,
    /// Log lines about stalls of a second.
    lines: Budget,
}

impl Patrol {
    fn run(mut self) {
        let mut quiet = 0;
        while !self.alarm.0.ends.load(Ordering::Relaxed) {
            let awake = self.workers.iter().any(Worker::is_awake);
            quiet = if awake { 0 } else { quiet + 1 };
            if quiet < QUIET_TICKS {
                std::thread::park_timeout(TICK);
            } else {
                self.sleep();
            }
            self.look(Instant::now());
        }
    }

    /// Sleeps until a worker wakes up, or systemd wants a report.
    fn sleep(&self) {
        self.alarm.0.sleeps.store(true, Ordering::Relaxed);
        match self.alarm.0.limit() {
            Some(limit) => std::thread::park_timeout(limit / 4),
            None => std::thread::park(),
        }
        self.alarm.0.sleeps.store(false, Ordering::Relaxed);
    }

    fn look(&mut self, now: Instant) {
        let reads = Usage::of_process().disk_reads;
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let Some((stall, before)) = worker.look(now, reads, &self.lines) else { continue };
            if self.found.send((number, stall)).is_ok() {
                self.bell.ring();
            }
            let waits = stall.beat.stage == Stage::Forward && stall.cause == Cause::Blocked;
            if waits && !stall.is_over && before == reads {
                let suspicion = Suspicion {
                    worker: number,
                    beat: stall.beat,
                    heartbeat: worker.heartbeat.clone(),
                    account: worker.account.clone(),
                    disk_reads: reads,
                    bell: self.bell.clone(),
                };
                // If too many wait, this one is left out.
                let _ = self.suspicions.try_send(suspicion);
            }
        }
        if let Some(limit) = self.alarm.0.limit() {
            self.report(now, limit);
        }
    }

    /// Tells systemd that all threads go on, unless one stands still. systemd ends a daemon that
    /// does not say so in time.
    fn report(&mut self, now: Instant, limit: Duration) {
        let is_due = self.reported.is_none_or(|last| now.duration_since(last) >= limit / 4);
        let stands = |worker: &Worker| worker.judge.stands(now, limit / 2);
        if is_due && !self.workers.iter().any(stands) {
            self.reported = Some(now);
            // Where systemd cannot be reached, it ends the daemon, which is the point of it.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        }
    }
}

#[cfg(test)]
mod tests;
