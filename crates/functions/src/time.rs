//! Time in whole milliseconds, as functions need it for each packet: how long something has been
//! silent is one subtraction.

use std::ops::Sub;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A moment, counted from the first that this process asked for; or how long something takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ms(u64);

impl Ms {
    /// A number of seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// This moment.
    pub fn now() -> Self {
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        FIRST.elapsed().into()
    }
}

impl From<Duration> for Ms {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Sub for Ms {
    type Output = Self;

    /// How long it is from the other moment to this one; nothing, if that is still to come.
    #[inline]
    fn sub(self, since: Self) -> Self {
        Self(self.0.saturating_sub(since.0))
    }
}

#[cfg(test)]
impl std::ops::AddAssign for Ms {
    fn add_assign(&mut self, time: Self) {
        self.0 += time.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_moments_follow_each_other_and_what_is_to_come_is_not_past() {
        let (before, mut after) = (Ms::now(), Ms::now());
        assert!(before <= after);
        after += Ms::from_secs(9);
        assert!(after - before >= Ms::from_secs(9) && after - before < Ms::from_secs(1000));
        assert_eq!(before - after, Ms::from_secs(0));
        assert_eq!(Ms::from(Duration::MAX), Ms(u64::MAX));
    }
}
