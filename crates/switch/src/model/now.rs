//! Moments in time, which the caller of the switch passes to it.

/// A moment: microseconds since the daemon started.
///
/// The switch never reads a clock; its caller says what time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now(u64);

impl Now {
    /// The start of the daemon.
    pub const START: Self = Self(0);

    /// The moment `ms` milliseconds after the start.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1000))
    }

    /// The moment `us` microseconds after the start.
    #[inline]
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// The moment `us` microseconds after this one.
    #[inline]
    pub const fn after_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this moment; 0 when `earlier` is in fact later.
    #[inline]
    pub const fn us_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Microseconds since the start.
    #[inline]
    pub const fn as_us(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the start.
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds from `earlier` to this moment; 0 when `earlier` is in fact later.
    #[inline]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.as_ms().saturating_sub(earlier.as_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_time_that_steps_back_is_no_time() {
        assert_eq!(Now::from_ms(5).ms_since(Now::from_ms(7)), 0);
        assert_eq!(Now::from_ms(7).ms_since(Now::from_ms(5)), 2);
    }

    #[test]
    fn test_milliseconds_are_whole() {
        assert_eq!((Now::from_us(5999).as_ms(), Now::from_ms(5).after_us(999).as_ms()), (5, 5));
        assert_eq!(Now::from_us(6000).ms_since(Now::from_us(5999)), 1);
    }
}
