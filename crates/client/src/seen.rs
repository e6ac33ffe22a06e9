//! When the other side of a port was seen last.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// When the other side was seen last.
#[derive(Debug, Default)]
pub struct Seen(AtomicU64);

impl Seen {
    /// Whether it is time to look again: `true` once in a while.
    pub fn is_long_ago(&self) -> bool {
        const WHILE_MS: u64 = 20;
        let time = clock_gettime(ClockId::MonotonicCoarse);
        let ms = u64::try_from(time.tv_sec * 1000 + time.tv_nsec / 1_000_000).unwrap_or(0);
        // Relaxed: a look too many, or a little later, does no harm.
        let long_ago = ms.wrapping_sub(self.0.load(Ordering::Relaxed)) >= WHILE_MS;
        if long_ago {
            self.0.store(ms, Ordering::Relaxed);
        }
        long_ago
    }
}
