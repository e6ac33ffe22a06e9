//! What a thread costs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time that this thread has taken.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_takes_none() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(200));
        let slept = thread_time();
        assert!(slept >= before && slept - before < Duration::from_millis(100));
        while thread_time() == slept {}
    }
}
