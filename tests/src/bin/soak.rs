//! `uvala-soak [MINUTES]`: hostile programs, mixed load, churn and `kill -9` against one daemon,
//! beside a pair that may lose nothing. `make soak` runs it.
//!
//! ```text
//!   a minute:  pair alone ─► and busy loops ─► and hostile programs ─► and load, churn, kill -9
//!                            (both run only where nothing else would)        ─► all gone: measure
//! ```
//!
//! The busy loops have nothing to do with the daemon: what they cost the pair, any program would.
//!
//! It prints a line for each minute, and exits with status 1 if frames were lost, if the daemon has
//! more of what must stay flat than after the first minute, or if hostile programs cost the pair
//! more than a fifth of the rate that it has beside busy loops.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use harness::daemon::Daemon;
use harness::measure::{median, own_memory, threads};
use harness::process::Peer;
use harness::role::{Become, Role};
use harness::siege::{self, Attacker, Lives, Pair, Siege, rate};
use harness::{Random, wait};
use protocol::{PortAdd, PortKind, PortRef, PortRequest, PortSettings, Request};

/// How long the parts of a minute take. The rest of it is for what ends.
const ALONE: Duration = Duration::from_secs(7);
const BUSY: Duration = Duration::from_secs(7);
const HOSTILE: Duration = Duration::from_secs(16);
const MIXED: Duration = Duration::from_secs(24);
/// Bytes by which the daemon's own memory may differ from that of the first minutes: tables, and
/// what the C library keeps.
const MEMORY_SLACK: u64 = 4 << 20;
/// The share of its rate beside busy loops that the pair must have beside hostile programs: the
/// median of all minutes, because the host has other work in some of them.
const LEAST_SHARE: f64 = 0.8;
/// Minutes after which the daemon has its tables.
const WARM: usize = 2;

/// What a daemon has when no client is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    regions: usize,
    threads: usize,
    ports: usize,
}

/// A minute.
#[derive(Clone, Copy, Debug)]
struct Minute {
    held: Held,
    memory: u64,
    frames: u64,
    lost: u64,
    /// Frames per second: of the pair alone, beside busy loops, beside hostile programs, beside
    /// everything.
    rates: [f64; 4],
    lives: u64,
    attacks: u64,
}

fn main() -> ExitCode {
    let minutes = std::env::args().nth(1).map_or(3, |text| text.parse().expect("minutes"));
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let mut random = Random::seeded(u64::from(clock.subsec_nanos()));
    let daemon = siege::daemon();
    println!(
        "minute  memory KiB  descriptors  regions  threads  ports     frames  lost  alone/s  \
         busy  hostile  mixed  lives  attacks"
    );
    let mut all = Vec::new();
    for number in 1..=minutes {
        let first = all.first().map(|minute: &Minute| minute.held);
        let minute = run(&daemon, &mut random, first);
        println!("{number:>6}  {}", line(&minute));
        all.push(minute);
    }
    let faults = faults(&all, &daemon);
    faults.iter().for_each(|fault| println!("FAULT: {fault}"));
    let frames: u64 = all.iter().map(|minute| minute.frames).sum();
    let attacks: u64 = all.iter().map(|minute| minute.attacks).sum();
    println!("{} minutes, {frames} frames, {attacks} counted attacks", all.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(minute: &Minute) -> String {
    let Minute { held, memory, frames, lost, rates, lives, attacks } = minute;
    let [alone, busy, hostile, mixed] = rates;
    let Held { descriptors, regions, threads, ports } = held;
    let [busy, hostile, mixed] = [busy, hostile, mixed].map(|rate| rate / alone);
    format!(
        "{:>10}  {descriptors:>11}  {regions:>7}  {threads:>7}  {ports:>5}  {frames:>9}  \
         {lost:>4}  {alone:>7.0}  {busy:>4.2}  {hostile:>7.2}  {mixed:>5.2}  {lives:>5}  \
         {attacks:>7}",
        memory / 1024
    )
}

/// Runs one minute; `first` is what the daemon held after the first.
fn run(daemon: &Daemon, random: &mut Random, first: Option<Held>) -> Minute {
    let pair = Pair::start(daemon);
    let alone = rate(daemon, ALONE);
    let beside_busy = {
        let _loops = [busy_loop(), busy_loop()];
        rate(daemon, BUSY)
    };
    let hostile = || {
        let peers = [Attacker::stream_peer(daemon), Attacker::dgram_peer(daemon)];
        [Attacker::client(daemon), Attacker::guest(daemon)].into_iter().chain(peers)
    };
    let idle = hostile().map(Attacker::idly).collect();
    let siege = Siege::start(idle, random);
    let beside_hostile = rate(daemon, HOSTILE);
    let mut lives = siege.end();
    let others = (0..3).map(|_| Attacker::passer_by(daemon)).chain([Attacker::crowd(daemon)]);
    let siege = Siege::start(hostile().chain(others).collect(), random);
    let beside_all = churning(daemon, random.any(), || rate(daemon, MIXED));
    lives.extend(siege.end());
    let outcome = pair.finish();
    siege::clear(daemon);
    let sum = |of: fn(&Lives) -> u64| lives.iter().map(of).sum();
    Minute {
        held: at_rest(daemon, first),
        memory: own_memory(daemon.pid()),
        frames: outcome.sent,
        lost: outcome.lost(),
        rates: [alone, beside_busy, beside_hostile, beside_all],
        lives: sum(|lives| lives.lives),
        attacks: sum(|lives| lives.attacks),
    }
}

/// A program that ends with this one, however that ends.
fn busy_loop() -> Peer {
    let command = ["sh", "-c", "while :; do :; done"].map(str::to_owned).into();
    let mut peer = Peer::launch(&Role::Become(Become { command, ..Become::default() }), None);
    peer.process().run_idly();
    peer
}

/// Works while ports come and go by calls.
fn churning<T>(daemon: &Daemon, seed: u64, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(seed);
            while !ended.load(Ordering::Relaxed) {
                churn(daemon, &mut random);
                std::thread::sleep(Duration::from_millis(random.below(20)));
            }
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        result
    })
}

/// Adds or deletes a port of a switch that comes and goes.
fn churn(daemon: &Daemon, random: &mut Random) {
    const KINDS: [PortKind; 4] =
        [PortKind::Shm, PortKind::Null, PortKind::VhostUser, PortKind::Stream];
    let port = format!("vale{}:p{}", 1 + random.below(3), random.below(4));
    let port = port.parse().expect("a name");
    let request = match random.below(2) {
        0 => PortRequest::Del(PortRef { port }),
        _ => {
            let (kind, settings) = (*random.one_of(&KINDS), PortSettings::default());
            PortRequest::Add(Box::new(PortAdd {
                port,
                kind,
                settings,
                host: None,
                machine: None,
                vxlan: None,
            }))
        }
    };
    // It may be there already, or not.
    let _ = daemon.call(Request::Port(request));
}

/// What the daemon holds when it has taken note of all that ended: what it held before, unless that
/// does not come.
fn at_rest(daemon: &Daemon, before: Option<Held>) -> Held {
    let end = Instant::now() + wait::PATIENCE;
    let mut last = held(daemon);
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = held(daemon);
        let is_over = before.map_or(now == last, |before| now == before);
        if is_over || Instant::now() > end {
            return now;
        }
        last = now;
    }
}

fn held(daemon: &Daemon) -> Held {
    let holdings = daemon.holdings();
    Held {
        descriptors: holdings.descriptors,
        regions: holdings.regions,
        threads: threads(daemon.pid()),
        ports: daemon.ports().len(),
    }
}

/// What should not have been.
fn faults(all: &[Minute], daemon: &Daemon) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, minute) in all.iter().enumerate() {
        let number = index + 1;
        if minute.lost > 0 {
            faults.push(format!("minute {number}: {} frames lost", minute.lost));
        }
        if minute.held != all[0].held {
            faults.push(format!("minute {number}: {:?}, first {:?}", minute.held, all[0].held));
        }
        let warm = all.iter().take(WARM).map(|minute| minute.memory).max().unwrap_or(0);
        if minute.memory > warm + MEMORY_SLACK {
            faults.push(format!("minute {number}: memory grew from {warm} to {}", minute.memory));
        }
    }
    if !all.is_empty() {
        let share = median(all.iter().map(|minute| minute.rates[2] / minute.rates[1]));
        // Also if the rates were 0.
        if share.is_nan() || share < LEAST_SHARE {
            faults.push(format!("beside hostile programs {share:.2} of the rate beside loops"));
        }
    }
    if daemon.log().contains("panicked") {
        faults.push(format!("a thread of the daemon panicked:\n{}", daemon.log()));
    }
    faults
}
