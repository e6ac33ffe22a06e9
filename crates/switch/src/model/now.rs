//! Moments in time, which the caller of the switch passes to it.

/// A moment: milliseconds since the daemon started.
///
/// The switch never reads a clock; its caller says what time it is. 51 bits are kept where
/// moments are stored (71 000 years), so they do not wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now(u64);

impl Now {
    /// The start of the daemon.
    pub const START: Self = Self(0);

    /// The moment `ms` milliseconds after the start.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the start.
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to this moment; 0 when `earlier` is in fact later.
    #[inline]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
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
}
