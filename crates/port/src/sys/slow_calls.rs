//! The time of system calls that a peer can make slow: in a call that wakes the peer, sends to it
//! or receives from it, the kernel calls all that watch the peer's socket or eventfd, and in one
//! that wakes it by futex it passes by all that wait for other futexes in the same place.
//!
//! A thread that loses its core in a call is no fault of the peer. So the first slow call for a
//! user's peers is not reported. It puts the user on [`Probation`]: for ten seconds after each slow
//! one, all calls for its peers are timed by the thread's own clock. Time is the measure, not the
//! number of calls, and all peers of a user share it: quick calls, and peers that come and go, are
//! cheap to have. So a user gets one slow call in ten seconds that is not reported.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The time in which calls for the peers of one user are looked at closely.
///
/// Writers and readers: all workers. Relaxed: hints.
#[derive(Debug)]
pub struct Probation {
    /// How long it lasts after a slow call.
    length: Duration,
    /// Calls are timed by the thread's own clock until then, in nanoseconds of the monotonic clock.
    ends: AtomicU64,
    /// No client is woken by futex until then, likewise.
    futexes_rest: AtomicU64,
}

impl Probation {
    const LENGTH: Duration = Duration::from_secs(10);
    /// How long futexes are left alone when waking by one was slow.
    const REST: Duration = Duration::from_secs(60);

    const fn of(length: Duration) -> Self {
        Self { length, ends: AtomicU64::new(0), futexes_rest: AtomicU64::new(0) }
    }

    fn begin(&self) {
        self.ends.store(nanos(now()).saturating_add(u64_nanos(self.length)), Ordering::Relaxed);
    }

    /// Whether a slow call now would be reported, or futexes are left alone.
    #[must_use]
    pub fn is_on(&self) -> bool {
        let now = nanos(now());
        self.holds_at(now) || !self.allows_futex_at(now)
    }

    fn holds_at(&self, now: u64) -> bool {
        now < self.ends.load(Ordering::Relaxed)
    }

    fn allows_futex_at(&self, now: u64) -> bool {
        now >= self.futexes_rest.load(Ordering::Relaxed)
    }

    pub(super) fn rest_futexes(&self) {
        let until = nanos(now()).saturating_add(u64_nanos(Self::REST));
        self.futexes_rest.store(until, Ordering::Relaxed);
    }
}

impl Default for Probation {
    fn default() -> Self {
        Self::of(Self::LENGTH)
    }
}

/// After one wake-up by futex that takes so long, futexes are left alone.
const VERY_SLOW: Duration = Duration::from_millis(20);

/// Takes the time of calls for a peer, and reports those that are slow again and again.
pub struct SlowCalls {
    report: Box<dyn Fn(Duration) + Send + Sync>,
    /// What a slow one takes at least.
    limit: Duration,
    probation: Arc<Probation>,
}

impl SlowCalls {
    /// A call takes a microsecond or two.
    const SLOW: Duration = Duration::from_millis(2);

    /// Calls `report` with the time of each slow call in the probation of the peer's user.
    pub fn new(
        probation: Arc<Probation>,
        report: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { report: Box::new(report), limit: Self::SLOW, probation }
    }

    /// Reports no call.
    #[must_use]
    pub fn unreported() -> Self {
        Self::new(Arc::default(), drop)
    }

    /// Finds no call slow.
    pub(crate) fn unlimited() -> Self {
        Self { limit: Duration::MAX, ..Self::unreported() }
    }

    /// Does a call and takes its time.
    pub(super) fn time(&self, call: impl FnOnce()) {
        let timing = self.begin();
        call();
        self.end(&timing);
    }

    /// Does a call that wakes by futex and takes its time. A slow one is not reported, for any user
    /// may have made it slow: the user's futexes are left alone after it. To leave them alone costs
    /// little, so one that takes very long is enough, though the thread may have lost its core.
    pub(super) fn time_futex(&self, call: impl FnOnce()) {
        let timing = self.begin();
        call();
        if self.note(&timing).is_some() || timing.took() >= VERY_SLOW {
            self.probation.rest_futexes();
        }
    }

    /// Whether clients are to be woken by futex, if they ask for it.
    pub(super) fn allows_futex(&self) -> bool {
        self.probation.allows_futex_at(nanos(now()))
    }

    /// Begins one call, or several that count as one.
    pub(crate) fn begin(&self) -> Timing {
        let (limit, at) = (self.limit, now());
        match self.probation.holds_at(nanos(at)) {
            false => Timing { limit, clock: ClockId::Monotonic, at },
            true => {
                let clock = ClockId::ThreadCPUTime;
                Timing { limit, clock, at: clock_gettime(clock) }
            }
        }
    }

    /// Ends it. Returns whether it was slow.
    pub(crate) fn end(&self, timing: &Timing) -> bool {
        let is_slow = timing.is_slow();
        if let Some(took) = self.note(timing) {
            (self.report)(took);
        }
        is_slow
    }

    /// Begins a probation, or prolongs it, if a call was slow. Returns how long it took, if it was
    /// slow by the thread's own clock.
    fn note(&self, timing: &Timing) -> Option<Duration> {
        let took = timing.took();
        if took < self.limit {
            return None;
        }
        self.probation.begin();
        (timing.clock == ClockId::ThreadCPUTime).then_some(took)
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

fn now() -> Timespec {
    clock_gettime(ClockId::Monotonic)
}

fn since(begin: Timespec, end: Timespec) -> Duration {
    end.checked_sub(begin).and_then(|took| took.try_into().ok()).unwrap_or_default()
}

fn nanos(at: Timespec) -> u64 {
    u64_nanos(at.try_into().unwrap_or_default())
}

fn u64_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A time after which a probation of the tests is over.
    const LENGTH: Duration = Duration::from_millis(50);

    /// Keeps the thread on a core for longer than a call may take.
    fn slow() {
        let begin = clock_gettime(ClockId::ThreadCPUTime);
        while since(begin, clock_gettime(ClockId::ThreadCPUTime)) <= SlowCalls::SLOW {}
    }

    fn watch(probation: &Arc<Probation>) -> (SlowCalls, std::sync::mpsc::Receiver<Duration>) {
        let (report, reports) = channel();
        let report = move |took| report.send(took).expect("listening");
        (SlowCalls::new(probation.clone(), report), reports)
    }

    #[test]
    fn slow_calls_after_the_first_are_reported_whatever_lies_between() {
        let (watch, reports) = watch(&Arc::default());
        for quick in [0, 0, 1, 1000] {
            (0..quick).for_each(|_| watch.time(|| {}));
            watch.time(slow);
        }
        assert_eq!(reports.try_iter().count(), 3);
    }

    #[test]
    fn a_slow_call_long_after_another_is_not_reported() {
        let (watch, reports) = watch(&Arc::new(Probation::of(LENGTH)));
        watch.time(slow);
        std::thread::sleep(2 * LENGTH);
        watch.time(slow);
        assert_eq!(reports.try_iter().count(), 0);
    }

    #[test]
    fn the_peers_of_a_user_share_its_probation() {
        let probation = Arc::default();
        let (first, _) = watch(&probation);
        first.time(slow);
        drop(first);
        let (second, reports) = watch(&probation);
        second.time(slow);
        assert_eq!(reports.try_iter().count(), 1);
    }

    #[test]
    fn a_call_that_waits_for_a_core_is_not_reported() {
        let (watch, reports) = watch(&Arc::default());
        for _ in 0..4 {
            watch.time(|| std::thread::sleep(2 * SlowCalls::SLOW));
        }
        assert_eq!(reports.try_iter().count(), 0);
    }

    #[test]
    fn futexes_are_left_alone_after_slow_wake_ups_which_are_not_reported() {
        let (watch, reports) = watch(&Arc::default());
        watch.time_futex(|| {});
        watch.time_futex(slow);
        assert!(watch.allows_futex(), "the thread may have lost its core");
        watch.time_futex(slow);
        assert!(!watch.allows_futex() && watch.probation.is_on());
        assert_eq!(reports.try_iter().count(), 0);
    }
}
