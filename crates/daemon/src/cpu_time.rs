//! What a thread costs, and what others cost that work for it.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// What other threads have taken for this one.
    static BY_OTHERS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time that this thread has taken, and what others have taken for it while it
/// waited.
#[must_use]
pub fn caused_time() -> Duration {
    thread_time() + BY_OTHERS.get()
}

/// Notes what another thread has taken for this one.
pub fn add_caused(took: Duration) {
    BY_OTHERS.set(BY_OTHERS.get() + took);
}

/// The processor time that this thread has taken.
#[must_use]
pub fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_takes_none() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(200));
        let slept = thread_time();
        assert!(slept >= before && slept - before < Duration::from_millis(100));
        while thread_time() == slept {}
    }
}
