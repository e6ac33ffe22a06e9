//! The time of system calls that a peer can make slow: in a call that wakes the peer, sends to it
//! or receives from it, the kernel calls all that watch the peer's socket or eventfd, and in one
//! that wakes it by futex it passes by all that wait for other futexes in the same place.
//!
//! A thread that loses its core in a call is no fault of the peer. So the first slow call for a
//! user's peers is not reported. It puts the user on [`Probation`]: for ten seconds after each slow
//! one, only what a call took of the thread's own clock makes it slow. Time is the measure, not the
//! number of calls, and all peers of a user share it: quick calls, and peers that come and go, are
//! cheap to have. So a user gets one slow call in ten seconds that is not reported.
//!
//! To read the thread's own clock is a system call. So for calls of a user on probation the thread
//! reads it four times a millisecond at most ([`Mark`]), and after a call that took long by the
//! clock on the wall.
//!
//! Wake-ups that are not slow add up, too. Where several users have peers, those of one user's
//! clients may take half of the time ([`Bucket`]), and further ones wait: no port is to blame
//! for them. A thread may lose its core in a wake-up, for one to the very client that it wakes. So
//! a bucket that is filled by the clock on the wall delays nothing. It is emptied, and for ten
//! seconds the thread's own clock fills it.
//!
//! ```text
//!   wake-up ── time, by either clock ──► bucket ── full ──► the next one waits (thread's clock),
//!                                          │               or the thread's clock is used from now
//!                                          ▼                on (clock on the wall)
//!                                 half of the time drains
//! ```

mod share;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use share::Bucket;

/// How many users have peers whose calls are timed. The wake-ups of one that is alone wait for
/// nothing.
///
/// Writers: the control thread, which makes [`SlowCalls`], and any that drops them. Readers: all
/// workers. Relaxed: a hint.
#[derive(Clone, Debug, Default)]
pub struct UserCount(Arc<AtomicU32>);

impl UserCount {
    fn is_several(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}

/// The time in which calls for the peers of one user are looked at closely.
///
/// Writers and readers: all workers, but for the number of peers, as of [`UserCount`]. Relaxed:
/// hints.
#[derive(Debug)]
pub struct Probation {
    /// How long it lasts after a slow call.
    length: Duration,
    /// Only the thread's own time makes a call slow until then, in nanoseconds of the monotonic
    /// clock.
    ends: AtomicU64,
    /// No client is woken by futex until then, likewise.
    futexes_rest: AtomicU64,
    /// The time that wake-ups took: a [`Bucket`].
    wakes: AtomicU64,
    /// Wake-ups are timed by the thread's own clock until then, likewise.
    meters: AtomicU64,
    /// Peers whose calls are timed.
    peers: AtomicU32,
    users: UserCount,
}

impl Probation {
    const LENGTH: Duration = Duration::from_secs(10);
    /// How long futexes are left alone when waking by one was slow.
    const REST: Duration = Duration::from_secs(60);

    fn of(length: Duration) -> Self {
        Self {
            length,
            ends: AtomicU64::new(0),
            futexes_rest: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            meters: AtomicU64::new(0),
            peers: AtomicU32::new(0),
            users: UserCount::default(),
        }
    }

    /// The probation of one of several users.
    #[must_use]
    pub fn among(users: &UserCount) -> Self {
        Self { users: users.clone(), ..Self::default() }
    }

    fn begin(&self) {
        self.ends.store(self.after(now()), Ordering::Relaxed);
    }

    fn after(&self, now: u64) -> u64 {
        now.saturating_add(u64_nanos(self.length))
    }

    /// Whether a slow call now would be reported, or futexes are left alone.
    #[must_use]
    pub fn is_on(&self) -> bool {
        let now = now();
        self.holds_at(now) || !self.allows_futex_at(now)
    }

    fn holds_at(&self, now: u64) -> bool {
        now < self.ends.load(Ordering::Relaxed)
    }

    fn allows_futex_at(&self, now: u64) -> bool {
        now >= self.futexes_rest.load(Ordering::Relaxed)
    }

    pub(super) fn rest_futexes(&self) {
        let until = now().saturating_add(u64_nanos(Self::REST));
        self.futexes_rest.store(until, Ordering::Relaxed);
    }

    /// Whether wake-ups are counted by the thread's own clock.
    fn meters_at(&self, now: u64) -> bool {
        now < self.meters.load(Ordering::Relaxed)
    }

    fn may_wake_at(&self, now: u64) -> bool {
        !self.users.is_several() || Bucket(self.wakes.load(Ordering::Relaxed)).has_room(now)
    }

    /// Counts a wake-up that took so long, by the thread's own clock or by the one on the wall.
    fn count_wake(&self, now: u64, took: Duration, by_own: bool) {
        if !self.users.is_several() {
            return;
        }
        let add = |empty_at| Some(Bucket(empty_at).after(now, took).0);
        let before = self.wakes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let (Ok(before) | Err(before)) = before;
        if Bucket(before).after(now, took).has_room(now) {
            return;
        }
        if !by_own {
            self.wakes.store(now, Ordering::Relaxed);
        }
        self.meters.store(self.after(now), Ordering::Relaxed);
    }
}

impl Default for Probation {
    fn default() -> Self {
        Self::of(Self::LENGTH)
    }
}

/// After one wake-up by futex that takes so long, futexes are left alone.
const VERY_SLOW: Duration = Duration::from_millis(20);

/// A peer of a user: counts it while it is there.
struct Peer(Arc<Probation>);

impl Peer {
    fn of(probation: Arc<Probation>) -> Self {
        if probation.peers.fetch_add(1, Ordering::Relaxed) == 0 {
            probation.users.0.fetch_add(1, Ordering::Relaxed);
        }
        Self(probation)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.0.peers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.users.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Takes the time of calls for a peer, and reports those that are slow again and again.
pub struct SlowCalls {
    report: Box<dyn Fn(Duration) + Send + Sync>,
    /// What a slow one takes at least.
    limit: Duration,
    peer: Peer,
}

impl SlowCalls {
    /// A call takes a microsecond or two.
    const SLOW: Duration = Duration::from_millis(2);

    /// Calls `report` with the time of each slow call in the probation of the peer's user.
    pub fn new(
        probation: Arc<Probation>,
        report: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { report: Box::new(report), limit: Self::SLOW, peer: Peer::of(probation) }
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

    /// Finds each call slow.
    #[cfg(test)]
    pub(super) fn all_slow() -> Self {
        Self { limit: Duration::ZERO, ..Self::unreported() }
    }

    /// Does a call and takes its time.
    pub(super) fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        let timing = self.begin();
        let outcome = call();
        self.end(&timing);
        outcome
    }

    /// Does a call that wakes a client and takes its time from `now` on, also of the user's share.
    pub(super) fn time_wake(&self, now: u64, call: impl FnOnce()) {
        if let (_, Some(took)) = self.meter(now, call) {
            (self.report)(took);
        }
    }

    /// Does a call that wakes by futex and takes its time, likewise. A slow one is not reported,
    /// for any user may have made it slow: the user's futexes are left alone after it. To leave
    /// them alone costs little, so one that takes very long is enough, though the thread may have
    /// lost its core.
    pub(super) fn time_futex(&self, now: u64, call: impl FnOnce()) {
        let (took, slow) = self.meter(now, call);
        if slow.is_some() || took >= VERY_SLOW {
            self.probation().rest_futexes();
        }
    }

    /// Does a wake-up and counts its time for the user's share. Returns that, and what
    /// [`note`](Self::note) says.
    fn meter(&self, now: u64, call: impl FnOnce()) -> (Duration, Option<Duration>) {
        let own = self.probation().meters_at(now).then(own_time);
        let timing = Timing { own, ..self.begin_at(now) };
        call();
        let end = self::now();
        let took = timing.took_until(end);
        self.probation().count_wake(end, took, own.is_some());
        (took, self.note(&timing, took))
    }

    /// Whether clients are to be woken by futex, if they ask for it.
    pub(super) fn allows_futex(&self, now: u64) -> bool {
        self.probation().allows_futex_at(now)
    }

    /// Whether wake-ups of the user's clients have not had their share of the time.
    pub(super) fn may_wake(&self, now: u64) -> bool {
        self.probation().may_wake_at(now)
    }

    fn probation(&self) -> &Probation {
        &self.peer.0
    }

    /// Begins one call, or several that count as one.
    pub(crate) fn begin(&self) -> Timing {
        self.begin_at(now())
    }

    /// Begins a call that is timed by the thread's own clock: the first slow one counts, too.
    pub(super) fn begin_closely(&self) -> Timing {
        Timing { own: Some(own_time()), ..self.begin() }
    }

    fn begin_at(&self, now: u64) -> Timing {
        let in_probation = self.probation().holds_at(now);
        let mark = in_probation.then(|| Mark::recent(now));
        Timing { limit: self.limit, began: now, mark, own: None }
    }

    /// Ends it. Returns whether it was slow.
    pub(crate) fn end(&self, timing: &Timing) -> bool {
        let took = timing.took();
        if let Some(took) = self.note(timing, took) {
            (self.report)(took);
        }
        took >= self.limit
    }

    /// Begins a probation, or prolongs it, if a call took so long that it was slow. Returns how
    /// long, if the probation had begun before, and with it the thread's own clock.
    fn note(&self, timing: &Timing, took: Duration) -> Option<Duration> {
        if took < self.limit {
            return None;
        }
        self.probation().begin();
        timing.mark.map(|_| took)
    }
}

impl fmt::Debug for SlowCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowCalls").field("probation", self.probation()).finish_non_exhaustive()
    }
}

/// Calls whose time is being taken. All times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct Timing {
    limit: Duration,
    /// When they began, by the monotonic clock.
    began: u64,
    /// The user was on probation then: a moment before that.
    mark: Option<Mark>,
    /// The thread's own clock then, if they are timed by it.
    own: Option<u64>,
}

impl Timing {
    fn took(&self) -> Duration {
        self.took_until(now())
    }

    fn took_until(&self, end: u64) -> Duration {
        let by_wall = Duration::from_nanos(end.saturating_sub(self.began));
        match (self.own, self.mark) {
            (Some(own), _) => Duration::from_nanos(own_time().saturating_sub(own)),
            (None, Some(mark)) if by_wall >= self.limit => mark.own_since(self.began),
            (None, _) => by_wall,
        }
    }

    /// Whether they are slow already.
    pub(crate) fn is_slow(&self) -> bool {
        self.took() >= self.limit
    }
}

/// A moment of a thread's life, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Mark {
    wall: u64,
    own: u64,
}

impl Mark {
    /// How old the mark is at most that serves for a call.
    const AGE: u64 = 250_000;

    /// A moment of this thread shortly before `now`, or now.
    fn recent(now: u64) -> Self {
        thread_local!(static LAST: Cell<Mark> = const { Cell::new(Mark { wall: 0, own: 0 }) });
        let last = LAST.get();
        if now.saturating_sub(last.wall) <= Self::AGE {
            return last;
        }
        let mark = Self { wall: self::now(), own: own_time() };
        LAST.set(mark);
        mark
    }

    /// The time that the thread has had since `began`, by its own clock. If it lost its core
    /// between the mark and that moment, this is too short, by the mark's age at most.
    fn own_since(self, began: u64) -> Duration {
        let before = began.saturating_sub(self.wall);
        Duration::from_nanos(own_time().saturating_sub(self.own).saturating_sub(before))
    }
}

/// The monotonic clock, in nanoseconds.
pub(super) fn now() -> u64 {
    time(ClockId::Monotonic)
}

/// The thread's own clock: the time that it has had a core.
fn own_time() -> u64 {
    time(ClockId::ThreadCPUTime)
}

fn time(clock: ClockId) -> u64 {
    u64_nanos(clock_gettime(clock).try_into().unwrap_or_default())
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

    const MS: u64 = 1_000_000;
    /// How a wake-up is timed.
    const BY_OWN: bool = true;
    const BY_WALL: bool = false;

    /// Keeps the thread on a core for longer than a call may take, however old its mark is.
    fn slow() {
        let end = own_time() + u64_nanos(SlowCalls::SLOW) + Mark::AGE;
        while own_time() <= end {}
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
    fn the_own_time_of_a_call_is_what_has_passed_since_a_mark_but_for_the_time_before_it() {
        let mark = Mark { wall: now(), own: own_time() };
        std::thread::sleep(LENGTH);
        assert!(mark.own_since(mark.wall) < LENGTH, "it was asleep");
        assert_eq!(mark.own_since(now() + 60_000 * MS), Duration::ZERO, "never below nothing");
        let began = now();
        assert_eq!(Mark::recent(began).wall, Mark::recent(began + Mark::AGE).wall, "it serves");
        slow();
        let later = Mark::recent(now());
        assert!(later.wall > began + Mark::AGE, "it is too old by then");
    }

    #[test]
    fn futexes_are_left_alone_after_slow_wake_ups_which_are_not_reported() {
        let (watch, reports) = watch(&Arc::default());
        watch.time_futex(now(), || {});
        watch.time_futex(now(), slow);
        assert!(watch.allows_futex(now()), "the thread may have lost its core");
        watch.time_futex(now(), slow);
        assert!(!watch.allows_futex(now()) && watch.probation().is_on());
        assert_eq!(reports.try_iter().count(), 0);
    }

    /// Two users with a peer each.
    fn two_users() -> [(Arc<Probation>, SlowCalls); 2] {
        let users = UserCount::default();
        [(); 2].map(|()| {
            let probation = Arc::new(Probation::among(&users));
            (probation.clone(), watch(&probation).0)
        })
    }

    /// Three wake-ups of a millisecond.
    fn three_wakes(probation: &Probation, now: u64, by_own: bool) {
        (0..3).for_each(|_| probation.count_wake(now, Duration::from_millis(1), by_own));
    }

    #[test]
    fn wake_ups_of_a_user_wait_for_their_share_and_those_of_others_do_not() {
        let [(first, _held), (second, _also)] = two_users();
        three_wakes(&first, MS, BY_OWN);
        assert!(!first.may_wake_at(5 * MS) && second.may_wake_at(MS));
        assert!(first.may_wake_at(6 * MS), "two of them have drained");
    }

    #[test]
    fn a_user_that_is_alone_waits_for_nothing() {
        let [(first, held), (second, gone)] = two_users();
        drop(gone);
        three_wakes(&first, MS, BY_OWN);
        let (back, _) = watch(&second);
        assert!(first.may_wake_at(MS), "what it took while it was alone does not count");
        three_wakes(&first, MS, BY_OWN);
        assert!(!first.may_wake_at(MS));
        let (another, _) = watch(&second);
        drop(back);
        assert!(!first.may_wake_at(MS), "the other user has a peer still");
        drop(another);
        assert!(first.may_wake_at(MS) && held.may_wake(MS));
    }

    #[test]
    fn wake_ups_in_which_a_core_may_have_been_lost_delay_none() {
        let [(first, held), _other] = two_users();
        let now = now();
        assert!(!first.meters_at(now));
        three_wakes(&first, now, BY_WALL);
        assert!(held.may_wake(now));
        assert!(first.meters_at(now), "from now on they are looked at closely");
        three_wakes(&first, now, BY_OWN);
        assert!(!held.may_wake(now));
    }

    #[test]
    fn only_wake_ups_are_counted_and_none_is_blamed_for_its_share() {
        let users = UserCount::default();
        let [first, second] = [(); 2].map(|()| Arc::new(Probation::among(&users)));
        let ((calls, reports), _other) = (watch(&first), watch(&second));
        calls.time(slow);
        assert_eq!(first.wakes.load(Ordering::Relaxed), 0);
        three_wakes(&first, now(), BY_OWN);
        calls.time_wake(now(), || {});
        calls.time_futex(now(), || {});
        assert!(first.wakes.load(Ordering::Relaxed) > 0);
        assert_eq!(reports.try_iter().count(), 0);
    }
}
