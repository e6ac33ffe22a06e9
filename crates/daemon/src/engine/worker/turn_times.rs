//! How long the turns of a worker's ports take, and how many frames come in one.
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
/// Buckets of batches, likewise: the longest batch is one of 2¹⁶ slots.
pub const BATCH_BUCKETS: usize = 17;

/// The times of a worker's turns.
#[derive(Clone, Debug, Default)]
pub struct TurnTimes {
    rounds: u32,
    buckets: [u64; BUCKETS],
    longest: Duration,
    total: Duration,
    batches: [u64; BATCH_BUCKETS],
    slots: u64,
}

impl TurnTimes {
    /// Begins a round; reports whether its turns are to be timed.
    #[inline]
    pub fn begin_round(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds.is_multiple_of(ROUNDS)
    }

    /// Counts a turn that began then and took so many slots, and returns how long it took.
    pub fn count(&mut self, begin: Instant, slots: u32) -> Duration {
        let took = begin.elapsed();
        self.add(took);
        if let Some(bucket) = slots.checked_ilog2() {
            self.batches[(bucket as usize).min(BATCH_BUCKETS - 1)] += 1;
            self.slots += u64::from(slots);
        }
        took
    }

    fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        let bucket = usize::try_from(nanos.ilog2()).unwrap_or(BUCKETS).min(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.longest = self.longest.max(took);
        self.total = self.total.saturating_add(took);
    }

    /// Timed turns by bucket.
    #[must_use]
    pub fn buckets(&self) -> [u64; BUCKETS] {
        self.buckets
    }

    /// All timed turns together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Timed turns that took frames, by bucket.
    #[must_use]
    pub fn batches(&self) -> [u64; BATCH_BUCKETS] {
        self.batches
    }

    /// Slots of all timed turns.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.slots
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
    fn a_batch_counts_in_the_bucket_of_its_logarithm_unless_it_is_empty() {
        let mut times = TurnTimes::default();
        for slots in [0, 1, 2, 3, 256, u32::MAX] {
            times.count(Instant::now(), slots);
        }
        let mut expected = [0; BATCH_BUCKETS];
        (expected[0], expected[1], expected[8], expected[BATCH_BUCKETS - 1]) = (1, 2, 1, 1);
        assert_eq!(times.batches(), expected);
        assert_eq!(times.slots(), 262 + u64::from(u32::MAX));
    }

    #[test]
    fn one_round_in_128_is_timed() {
        let mut times = TurnTimes::default();
        let timed = (0..1280).filter(|_| times.begin_round()).count();
        assert_eq!(timed, 10);
    }
}
