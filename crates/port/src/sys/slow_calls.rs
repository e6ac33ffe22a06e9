//! The time of system calls that a peer can make slow: in a call that wakes the peer, sends to it
//! or receives from it, the kernel calls all that watch the peer's socket or eventfd.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Takes the time of calls for a peer, and reports those that are slow again and again.
///
/// A thread that loses its core in a call is no fault of the peer. So the first slow one is not
/// reported, and the next 64 are timed by the thread's own clock.
pub struct SlowCalls {
    report: Box<dyn Fn(Duration) + Send + Sync>,
    /// What a slow one takes at least.
    limit: Duration,
    /// Calls that are still to be timed by the thread's own clock. Relaxed: a hint.
    probation: AtomicU32,
}

impl SlowCalls {
    /// A call takes a microsecond or two.
    const SLOW: Duration = Duration::from_millis(2);
    /// Calls after a slow one that are timed by the thread's own clock.
    const PROBATION: u32 = 64;

    /// Calls `report` with the time of each slow call that follows another one closely.
    pub fn new(report: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self { report: Box::new(report), limit: Self::SLOW, probation: AtomicU32::new(0) }
    }

    /// Finds no call slow.
    pub(crate) fn unlimited() -> Self {
        Self { limit: Duration::MAX, ..Self::new(drop) }
    }

    /// Does a call and takes its time.
    pub(super) fn time(&self, call: impl FnOnce()) {
        let timing = self.begin();
        call();
        self.end(&timing);
    }

    /// Begins one call, or several that count as one.
    pub(crate) fn begin(&self) -> Timing {
        let left = self.probation.load(Ordering::Relaxed);
        let clock = if left == 0 { ClockId::Monotonic } else { ClockId::ThreadCPUTime };
        Timing { left, limit: self.limit, clock, at: clock_gettime(clock) }
    }

    /// Ends it. Returns whether it was slow.
    pub(crate) fn end(&self, timing: &Timing) -> bool {
        let (left, took) = (timing.left, timing.took());
        let is_slow = took >= self.limit;
        match (left, is_slow) {
            (0, false) => {}
            (0, true) => self.probation.store(Self::PROBATION, Ordering::Relaxed),
            (_, false) => self.probation.store(left - 1, Ordering::Relaxed),
            (_, true) => {
                self.probation.store(Self::PROBATION, Ordering::Relaxed);
                (self.report)(took);
            }
        }
        is_slow
    }
}

impl fmt::Debug for SlowCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowCalls").field("probation", &self.probation).finish_non_exhaustive()
    }
}

/// Calls whose time is being taken.
#[derive(Debug)]
pub(crate) struct Timing {
    /// `SlowCalls::probation` when they began.
    left: u32,
    limit: Duration,
    clock: ClockId,
    at: Timespec,
}

impl Timing {
    fn took(&self) -> Duration {
        since(self.at, clock_gettime(self.clock))
    }

    /// Whether they are slow already.
    pub(crate) fn is_slow(&self) -> bool {
        self.took() >= self.limit
    }
}

fn since(begin: Timespec, end: Timespec) -> Duration {
    end.checked_sub(begin).and_then(|took| took.try_into().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Keeps the thread on a core for longer than a call may take.
    fn slow() {
        let begin = clock_gettime(ClockId::ThreadCPUTime);
        while since(begin, clock_gettime(ClockId::ThreadCPUTime)) <= SlowCalls::SLOW {}
    }

    /// The slow calls of a list that are reported; `true`: one is slow.
    fn reported(calls: impl IntoIterator<Item = bool>) -> usize {
        let (report, reports) = channel();
        let watch = SlowCalls::new(move |took| report.send(took).expect("listening"));
        for is_slow in calls {
            watch.time(|| (0..u32::from(is_slow)).for_each(|_| slow()));
        }
        reports.try_iter().count()
    }

    #[test]
    fn slow_calls_after_the_first_are_reported() {
        assert_eq!(reported([true, true, false, true]), 2);
    }

    #[test]
    fn a_slow_call_long_after_another_is_not_reported() {
        let quick = || std::iter::repeat_n(false, 1000);
        // A thread that loses its core meanwhile is looked at, and not reported.
        assert_eq!(reported(quick().chain([true]).chain(quick()).chain([true])), 0);
    }

    #[test]
    fn a_call_that_waits_for_a_core_is_not_reported() {
        let (report, reports) = channel();
        let watch = SlowCalls::new(move |took| report.send(took).expect("listening"));
        for _ in 0..4 {
            watch.time(|| std::thread::sleep(2 * SlowCalls::SLOW));
        }
        assert_eq!(reports.try_iter().count(), 0);
    }
}
