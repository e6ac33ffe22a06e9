//! How many frames are due.

use std::time::{Duration, Instant};

const NS: u128 = 1_000_000_000;

/// A rate, held on the average: what a pause left undone follows at once.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: Option<u64>,
    start: Option<Instant>,
    done: u64,
}

impl Pace {
    /// A pace of `rate` frames per second, or as many as possible. The clock starts with the first
    /// question.
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate, start: None, done: 0 }
    }

    /// How many frames are due, one at the very start.
    #[inline]
    pub fn due(&mut self, now: Instant) -> u64 {
        let Some(rate) = self.rate else { return u64::MAX };
        let time = now.saturating_duration_since(*self.start.get_or_insert(now));
        let all = time.as_nanos() * u128::from(rate) / NS + 1;
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(self.done)
    }

    /// Counts frames that are done.
    #[inline]
    pub fn add(&mut self, frames: u64) {
        self.done += frames;
    }

    /// When the next frame is due.
    pub fn next(&self) -> Option<Instant> {
        let ns = u128::from(self.done) * NS / u128::from(self.rate?);
        self.start?.checked_add(Duration::from_nanos(u64::try_from(ns).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_due_follows_the_clock() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(1000));
        assert_eq!(pace.due(start), 1);
        pace.add(1);
        assert_eq!(pace.due(start), 0);
        assert_eq!(pace.next(), Some(start + Duration::from_millis(1)));
        assert_eq!(pace.due(start + Duration::from_millis(1)), 1);
        assert_eq!(pace.due(start + Duration::from_secs(2)), 2000);
        pace.add(2000);
        assert_eq!(pace.due(start + Duration::from_secs(2)), 0);
    }

    #[test]
    fn test_no_rate_is_no_limit() {
        let mut pace = Pace::new(None);
        assert_eq!(pace.due(Instant::now()), u64::MAX);
        assert_eq!(pace.next(), None);
    }
}
