//! Rates: by how much counters have grown between two looks at them.

use std::time::Duration;

use protocol::Counter;
use terminal::units::per_second;

/// The time between two looks.
#[derive(Clone, Copy, Debug)]
pub struct Interval(pub Duration);

/// What has passed in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub frames: f64,
    pub bits: f64,
}

impl Interval {
    /// The time between two readings of one clock, in nanoseconds.
    pub fn between(before_ns: u64, now_ns: u64) -> Self {
        Self(Duration::from_nanos(now_ns.saturating_sub(before_ns)))
    }

    /// By how much a counter has grown in a second. Counters start again when a port does.
    pub fn growth(self, before: u64, now: u64) -> f64 {
        per_second(if now < before { now } else { now - before }, self.0)
    }

    /// How many frames and bits have passed in a second.
    pub fn rate(self, before: Counter, now: Counter) -> Rate {
        let frames = self.growth(before.frames, now.frames);
        Rate { frames, bits: self.growth(before.bytes, now.bytes) * 8.0 }
    }
}

impl std::ops::Add for Rate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { frames: self.frames + other.frames, bits: self.bits + other.bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_growth_is_by_time_and_begins_anew_with_the_counter() {
        let interval = Interval::between(1_000_000_000, 3_000_000_000);
        let rate = interval.rate(Counter::default(), Counter { frames: 10, bytes: 600 });
        assert_eq!(rate, Rate { frames: 5.0, bits: 2400.0 });
        assert_eq!(interval.growth(100, 10), 5.0);
        assert_eq!(Interval::between(3, 3).growth(0, 10), 0.0, "no time has passed");
    }
}
