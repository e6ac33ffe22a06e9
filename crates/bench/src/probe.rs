//! The core-distance probe: how long one cache line takes from core to core and back.
//!
//! On a virtual machine this decides every result in which payload crosses cores, and the host
//! changes it at will when it moves the virtual CPUs. So it is measured before and after every
//! sample, and only samples of one regime are compared.
//!
//! Two pinned threads share two cache lines, 256 bytes apart so that no prefetcher joins them, one
//! for each direction. The first writes a sequence number into its line, the second spins on it and
//! writes the same number into the other line. The result is the mean of the fastest of five rounds
//! of 20 000 trips; it takes 12 ms near and 55 ms far. When something else occupies one of the CPUs
//! the probe gives up after [`PATIENCE`], and the regime is unknown.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::machine;

const ROUNDS: u32 = 5;
const TRIPS: u32 = 20_000;

/// The longest a probe may take, all rounds together.
const PATIENCE: Duration = Duration::from_millis(300);

/// How far apart the two CPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// Two threads of one physical core.
    Smt,
    /// Two cores with a common last-level cache.
    Near,
    /// Two cores of different core complexes or sockets.
    Far,
    /// The probe was disturbed, or lies between the known values.
    Unknown,
    /// The regime changed while the sample was taken.
    Straddled,
    /// Everything ran on one core: the distance does not matter.
    #[serde(rename = "one-core")]
    OneCore,
}

impl Regime {
    /// The name used in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Regime::Smt => "smt",
            Regime::Near => "near",
            Regime::Far => "far",
            Regime::Unknown => "unknown",
            Regime::Straddled => "straddled",
            Regime::OneCore => "one-core",
        }
    }
}

/// Names the regime of a round trip in nanoseconds; `None` is a probe that did not end.
pub fn classify(round_trip_ns: Option<f64>) -> Regime {
    match round_trip_ns {
        Some(ns) if (20.0..80.0).contains(&ns) => Regime::Smt,
        Some(ns) if (80.0..200.0).contains(&ns) => Regime::Near,
        Some(ns) if (400.0..800.0).contains(&ns) => Regime::Far,
        _ => Regime::Unknown,
    }
}

/// The regime of a sample taken between two probes.
pub fn between(before: Option<f64>, after: Option<f64>) -> Regime {
    match (classify(before), classify(after)) {
        (a, b) if a == b => a,
        (Regime::Unknown, _) | (_, Regime::Unknown) => Regime::Unknown,
        _ => Regime::Straddled,
    }
}

/// One of the two lines, alone in 256 bytes.
#[repr(align(256))]
#[derive(Default)]
struct Line(AtomicU32);

#[derive(Default)]
struct Court {
    ping: Line,
    pong: Line,
    over: AtomicBool,
}

/// The round trip of a cache line between two CPUs in nanoseconds; `None` where there is no second
/// CPU, the CPUs may not be used, or something else keeps one of them busy.
pub fn round_trip_ns(cpu0: usize, cpu1: usize) -> Option<f64> {
    if cpu0 == cpu1 || !machine::may_run_on(cpu0) || !machine::may_run_on(cpu1) {
        return None;
    }
    let court = Court::default();
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&court, cpu1));
        // A thread of its own, so that the caller's affinity stays as it is.
        let best = scope.spawn(|| {
            let best = serve(&court, cpu0);
            court.over.store(true, Ordering::Relaxed);
            best
        });
        best.join().expect("the probe does not panic")
    })
}

/// Returns every sequence number it sees, until the game is over.
fn echo(court: &Court, cpu: usize) {
    machine::pin(cpu);
    let mut last = 0;
    while !court.over.load(Ordering::Relaxed) {
        // Pairs with the Release store in `trip`.
        let ping = court.ping.0.load(Ordering::Acquire);
        if ping != last {
            last = ping;
            // Pairs with the Acquire load in `trip`.
            court.pong.0.store(ping, Ordering::Release);
        }
    }
}

fn serve(court: &Court, cpu: usize) -> Option<f64> {
    machine::pin(cpu);
    let end = Instant::now() + PATIENCE;
    let mut sequence = 0;
    let mut best = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..TRIPS {
            sequence += 1;
            if !trip(court, sequence, end) {
                return None;
            }
        }
        let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS);
        best = Some(best.map_or(ns, |b: f64| b.min(ns)));
    }
    best
}

/// One trip; false when the other side did not answer in time.
fn trip(court: &Court, sequence: u32, end: Instant) -> bool {
    court.ping.0.store(sequence, Ordering::Release);
    let mut spins = 0_u32;
    while court.pong.0.load(Ordering::Acquire) != sequence {
        spins += 1;
        // The clock is asked rarely: no trip of a working probe spins this long.
        if spins.is_multiple_of(16_384) && Instant::now() > end {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_classify_knows_the_three_regimes_and_refuses_the_rest() {
        assert_eq!(classify(Some(55.0)), Regime::Smt);
        assert_eq!(classify(Some(115.0)), Regime::Near);
        assert_eq!(classify(Some(545.0)), Regime::Far);
        for odd in [Some(5.0), Some(300.0), Some(1200.0), None] {
            assert_eq!(classify(odd), Regime::Unknown);
        }
    }

    #[test]
    fn test_between_marks_a_flip() {
        assert_eq!(between(Some(115.0), Some(119.0)), Regime::Near);
        assert_eq!(between(Some(115.0), Some(545.0)), Regime::Straddled);
        assert_eq!(between(Some(115.0), None), Regime::Unknown);
    }

    #[test]
    fn test_round_trip_one_cpu_is_no_distance() {
        assert_eq!(round_trip_ns(0, 0), None);
        assert_eq!(round_trip_ns(0, 1 << 20), None);
    }

    #[test]
    fn test_round_trip_ends_and_is_plausible() {
        if let Some(ns) = round_trip_ns(0, 1) {
            assert!(ns > 5.0 && ns < 1e6, "{ns} ns");
        }
    }
}
