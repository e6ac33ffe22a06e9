//! The share of the workers' time that the wake-ups of one user may take: a leaky bucket, a pure
//! function of times.

use std::time::Duration;

use super::u64_nanos;

/// A bucket, as the time at which it will be empty: nanoseconds of the clock of all times here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket(pub u64);

impl Bucket {
    /// The bucket drains what one wake-up takes in so many times that.
    pub const SHARE: u64 = 2;
    /// Wake-ups take so much time before the first has to wait.
    pub const BURST: Duration = Duration::from_millis(1);
    /// The most that one wake-up counts for. Those that take longer are reported, and a longer wait
    /// would be no fault of the user whose worker lost its core.
    pub const MOST: Duration = Duration::from_millis(2);

    /// After a wake-up that took so long.
    #[must_use]
    pub fn after(self, now: u64, took: Duration) -> Self {
        let drains = u64_nanos(took.min(Self::MOST)) * Self::SHARE;
        Self(self.0.max(now).saturating_add(drains))
    }

    /// Whether the next wake-up may take place.
    #[must_use]
    pub fn has_room(self, now: u64) -> bool {
        self.0.saturating_sub(now) < u64_nanos(Self::BURST) * Self::SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u64 = 1_000_000;
    const WAKE: Duration = Duration::from_micros(100);

    #[test]
    fn a_burst_is_free_and_then_half_of_the_time() {
        let (mut bucket, mut now, mut wakes) = (Bucket::default(), 7 * BURST, 0);
        while bucket.has_room(now) {
            bucket = bucket.after(now, WAKE);
            wakes += 1;
        }
        assert_eq!(wakes, 10);
        for _ in 0..100 {
            assert!(!bucket.has_room(now) && bucket.has_room(now + 1));
            now += Bucket::SHARE * u64_nanos(WAKE);
            assert!(bucket.has_room(now));
            bucket = bucket.after(now, WAKE);
        }
    }

    #[test]
    fn a_bucket_is_empty_after_a_while_and_holds_no_more_than_a_burst() {
        let full = (0..10).fold(Bucket::default(), |bucket, _| bucket.after(0, WAKE));
        assert_eq!(full, Bucket(Bucket::SHARE * BURST));
        let later = full.after(1000 * BURST, WAKE);
        assert_eq!(later, Bucket(1000 * BURST + Bucket::SHARE * u64_nanos(WAKE)));
    }

    #[test]
    fn one_wake_up_counts_for_two_milliseconds_at_most() {
        let long = Bucket::default().after(0, Duration::MAX);
        assert_eq!(long, Bucket::default().after(0, Bucket::MOST));
        let waits = Bucket::SHARE * (u64_nanos(Bucket::MOST) - BURST);
        assert!(!long.has_room(waits) && long.has_room(waits + 1));
    }

    #[test]
    fn times_at_the_end_of_the_clock_saturate() {
        let end = Bucket(u64::MAX - 1).after(0, Duration::MAX);
        assert_eq!(end, Bucket(u64::MAX));
        assert!(!end.has_room(0) && end.has_room(u64::MAX));
        assert!(Bucket::default().has_room(u64::MAX));
    }
}
