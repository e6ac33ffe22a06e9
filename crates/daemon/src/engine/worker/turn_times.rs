//! How long the turns of a worker's ports take.
//!
//! Reading the clock costs a tenth of the shortest turn, so one round of turns in 128 is timed. A
//! turn that lasts for [`STALL`](crate::engine::watchdog::judge::STALL) does not escape the
//! watchdog.

use std::time::{Duration, Instant};

/// Rounds of turns for each one that is timed.
const ROUNDS: u32 = 128;
/// Buckets of the histogram: bucket `n` has the turns of `2ⁿ` ns up to twice that; the last also
/// has the longer ones.
pub const BUCKETS: usize = 32;

/// The times of a worker's turns.
#[derive(Clone, Debug, Default)]
pub struct TurnTimes {
    rounds: u32,
    buckets: [u64; BUCKETS],
    longest: Duration,
}

impl TurnTimes {
    /// Begins a round; reports whether its turns are to be timed.
    #[inline]
    pub fn begin_round(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds.is_multiple_of(ROUNDS)
    }

    /// Counts a turn that began then, and returns how long it took.
    pub fn count(&mut self, begin: Instant) -> Duration {
        let took = begin.elapsed();
        self.add(took);
        took
    }

    fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        let bucket = usize::try_from(nanos.ilog2()).unwrap_or(BUCKETS).min(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.longest = self.longest.max(took);
    }

    /// Timed turns by bucket.
    #[must_use]
    pub fn buckets(&self) -> [u64; BUCKETS] {
        self.buckets
    }

    /// The longest timed turn.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_counts_in_the_bucket_of_its_logarithm() {
        let mut times = TurnTimes::default();
        for (nanos, bucket) in
            [(0, 0), (1, 0), (2, 1), (1023, 9), (1024, 10), (u64::MAX, BUCKETS - 1)]
        {
            let before = times.buckets()[bucket];
            times.add(Duration::from_nanos(nanos));
            assert_eq!(times.buckets()[bucket], before + 1, "{nanos} ns");
        }
        assert_eq!(times.longest(), Duration::from_nanos(u64::MAX));
        assert_eq!(times.buckets().iter().sum::<u64>(), 6);
    }

    #[test]
    fn one_round_in_128_is_timed() {
        let mut times = TurnTimes::default();
        let timed = (0..1280).filter(|_| times.begin_round()).count();
        assert_eq!(timed, 10);
    }
}
