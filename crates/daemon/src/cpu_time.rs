//! What a thread costs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

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
