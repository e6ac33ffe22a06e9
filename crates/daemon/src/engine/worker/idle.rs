//! What a worker without work does: the idle strategy, a pure function of its turns.
//!
//! # Theory of operation
//!
//! ```text
//!          work                 `SPINS` turns           `yields` turns without work
//!   Busy ◄────── Spin, if it pays ──────────► Yield ─────────────────────────────────► Park
//!     └──────────────►  (a turn without work)                                            │
//!     ◄──────────────────────────────────────────────────── a doorbell rings ────────────┘
//! ```
//!
//! Each worker owns one [`Idle`]: a count of its turns without work, and two averages. It makes no
//! system call; the worker passes the number of its context switches in.
//!
//! Spinning pays only on a core that the worker has to itself. On a shared core it keeps the
//! clients from running for which it waits; there, a few yields and then sleep are fastest at every
//! load, and cost nothing without traffic.
//!
//! The worker observes whether the core is its own ([`Spin::WhereItPays`]):
//!
//! - *No contention.* A yield that lets another thread run, and the end of a time slice, are
//!   involuntary context switches of this thread. [`Idle::tick`] looks at their number once a
//!   millisecond. A few in a second are the system's housekeeping; more mean contention.
//! - *Spinning is rewarded.* Work has come soon in nearly all of the last idle times. A worker with
//!   sparse traffic does not spin.
//!
//! A spin is shorter than a sleep and a wake-up. After it the worker yields and sleeps as ever, so
//! a worker without work takes no time of its core, shared or not.
//!
//! A busy worker also yields while frames wait for a client that reads frames, or were dropped: if
//! that client shares the core, more frames are of no use before it has run. A client that reads
//! nothing cannot cause this, so it costs the others nothing.

/// Turns of a spin: about 10 µs, where waking up from sleep takes 5 to 40 µs.
const SPINS: u32 = 256;

/// Whether a worker may poll without yielding its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Never.
    Never,
    /// For a short time, while that is rewarded and no other thread wants the core.
    WhereItPays,
    /// Without end: the worker never sleeps either.
    Always,
}

/// How long a worker keeps looking before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleStrategy {
    /// Turns without work in which it gives its core away.
    pub yields: u32,
    /// Polling before that.
    pub spin: Spin,
}

impl IdleStrategy {
    /// Yields on shared cores; spins where it pays if `cpus` are enough for `workers`, and for a
    /// sender and a receiver that have cores of their own too.
    #[must_use]
    pub fn auto(yields: u32, workers: u32, cpus: u32) -> Self {
        let room = cpus >= workers.saturating_add(2);
        Self { yields, spin: if room { Spin::WhereItPays } else { Spin::Never } }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Another turn at once.
    Turn,
    /// Another turn after a pause of the processor.
    Pause,
    /// Give the core away, then another turn.
    Yield,
    /// Sleep until a doorbell rings.
    Park,
}

/// A worker's idle turns so far.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    strategy: IdleStrategy,
    /// Turns without work.
    turns: u32,
    /// How many of them are, or would be, those of a spin.
    spins: u32,
    luck: Luck,
    contention: Contention,
}

impl Idle {
    /// Starts busy.
    #[must_use]
    pub fn new(strategy: IdleStrategy) -> Self {
        Self { strategy, turns: 0, spins: 0, luck: Luck::NONE, contention: Contention::UNKNOWN }
    }

    /// After a turn that took `work` slots; `crowded`: some client has not kept up.
    #[inline]
    pub fn step(&mut self, work: u32, crowded: bool) -> Next {
        if work > 0 {
            if self.turns > 0 {
                self.end();
            }
            let gives_way = crowded && self.strategy.spin != Spin::Always;
            return if gives_way { Next::Yield } else { Next::Turn };
        }
        if self.strategy.spin == Spin::Always {
            return Next::Turn;
        }
        if self.turns == 0 {
            self.spins = if self.pays() { SPINS } else { 0 };
        }
        self.turns += 1;
        if self.turns <= self.spins {
            return Next::Pause;
        }
        if self.turns <= self.spins + self.strategy.yields {
            return Next::Yield;
        }
        self.luck.lose();
        self.turns = 0;
        Next::Park
    }

    /// Work has come after some turns without.
    fn end(&mut self) {
        // Where there was no spin: would it have come within one? A yield takes half a
        // microsecond or more.
        let soon = if self.spins > 0 { self.spins } else { self.strategy.yields / 4 };
        if self.turns <= soon {
            self.luck.win();
        } else {
            self.luck.lose();
        }
        self.turns = 0;
    }

    fn pays(&self) -> bool {
        self.strategy.spin == Spin::WhereItPays && self.luck.is_good() && !self.contention.is_high()
    }

    /// Whether [`Idle::tick`] makes a difference.
    #[must_use]
    pub fn wants_ticks(&self) -> bool {
        self.strategy.spin == Spin::WhereItPays
    }

    /// About once a millisecond while awake: how often the thread has lost its core so far.
    pub fn tick(&mut self, preemptions: u64) {
        self.contention.tick(preemptions);
    }
}

/// How often waiting was rewarded lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Luck(u32);

impl Luck {
    const NONE: Self = Self(0);
    const MOST: u32 = 64;

    fn win(&mut self) {
        self.0 = (self.0 + 1).min(Self::MOST);
    }

    /// One loss weighs as much as eight wins.
    fn lose(&mut self) {
        self.0 = self.0.saturating_sub(8);
    }

    fn is_good(self) -> bool {
        self.0 >= Self::MOST / 2
    }
}

/// How much other threads want this core: rises fast, falls slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contention {
    level: u32,
    preemptions: u64,
}

impl Contention {
    /// High until the first ticks show otherwise.
    const UNKNOWN: Self = Self { level: Self::MOST, preemptions: 0 };
    const MOST: u32 = 200;

    fn tick(&mut self, preemptions: u64) {
        let quiet = preemptions == std::mem::replace(&mut self.preemptions, preemptions);
        self.level =
            if quiet { self.level.saturating_sub(1) } else { (self.level + 20).min(Self::MOST) };
    }

    fn is_high(self) -> bool {
        self.level >= 40
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YIELDING: IdleStrategy = IdleStrategy { yields: 2, spin: Spin::Never };
    const TRYING: IdleStrategy = IdleStrategy { yields: 100, spin: Spin::WhereItPays };

    /// Turns without work until it sleeps: how many are spent in pauses, and how many in yields.
    fn fall_asleep(idle: &mut Idle) -> (u32, u32) {
        let (mut pauses, mut yields) = (0, 0);
        loop {
            match idle.step(0, false) {
                Next::Pause => pauses += 1,
                Next::Yield => yields += 1,
                Next::Park => return (pauses, yields),
                Next::Turn => panic!("there is no work"),
            }
        }
    }

    /// Work comes after `turns` without, `times` times.
    fn work_after(idle: &mut Idle, turns: u32, times: u32) {
        for _ in 0..times {
            (0..turns).for_each(|_| assert_ne!(idle.step(0, false), Next::Park));
            assert_eq!(idle.step(1, false), Next::Turn);
        }
    }

    fn quiet_ms(idle: &mut Idle, ticks: u32) {
        let before = idle.contention.preemptions;
        (0..ticks).for_each(|_| idle.tick(before));
    }

    /// One that has its core, and work that comes quickly.
    fn lucky() -> Idle {
        let mut idle = Idle::new(TRYING);
        work_after(&mut idle, 3, 100);
        quiet_ms(&mut idle, 200);
        idle
    }

    #[test]
    fn yields_then_parks_and_work_starts_over() {
        let mut idle = Idle::new(YIELDING);
        assert_eq!(idle.step(5, false), Next::Turn);
        assert_eq!([idle.step(0, false), idle.step(0, false)], [Next::Yield, Next::Yield]);
        assert_eq!(idle.step(1, false), Next::Turn);
        let steps =
            [idle.step(0, false), idle.step(0, false), idle.step(0, false), idle.step(0, false)];
        assert_eq!(steps, [Next::Yield, Next::Yield, Next::Park, Next::Yield]);
    }

    #[test]
    fn spinning_for_ever_never_gives_the_core_away() {
        let mut idle = Idle::new(IdleStrategy { yields: 2, spin: Spin::Always });
        assert!((0..10).all(|_| idle.step(0, false) == Next::Turn));
    }

    #[test]
    fn a_client_that_has_not_kept_up_gets_the_core() {
        let mut idle = Idle::new(IdleStrategy { yields: 1, spin: Spin::Never });
        assert_eq!([idle.step(5, true), idle.step(5, true)], [Next::Yield; 2]);
        assert_eq!([idle.step(0, false), idle.step(0, false)], [Next::Yield, Next::Park]);
        let mut idle = Idle::new(IdleStrategy { yields: 1, spin: Spin::Always });
        assert_eq!(idle.step(5, true), Next::Turn);
    }

    #[test]
    fn auto_spins_only_where_there_are_cores_for_all() {
        let spin = |workers, cpus| IdleStrategy::auto(100, workers, cpus).spin;
        assert_eq!([spin(1, 1), spin(1, 2), spin(2, 3)], [Spin::Never; 3]);
        assert_eq!([spin(1, 3), spin(2, 4), spin(1, 64)], [Spin::WhereItPays; 3]);
    }

    #[test]
    fn a_worker_that_knows_nothing_yields() {
        assert_eq!(fall_asleep(&mut Idle::new(TRYING)), (0, 100));
    }

    #[test]
    fn a_lucky_worker_on_its_own_core_spins_then_yields_and_sleeps() {
        let mut idle = lucky();
        assert_eq!(fall_asleep(&mut idle), (SPINS, 100));
        work_after(&mut idle, 200, 100);
        assert_eq!(fall_asleep(&mut idle), (SPINS, 100), "work within the spin is a reward");
    }

    #[test]
    fn a_few_sleeps_in_a_row_end_the_spinning() {
        let mut idle = lucky();
        let pauses: Vec<u32> = (0..6).map(|_| fall_asleep(&mut idle).0).collect();
        assert_eq!(pauses, [SPINS, SPINS, SPINS, SPINS, SPINS, 0]);
    }

    #[test]
    fn work_that_comes_after_the_spin_is_no_reward() {
        let mut idle = lucky();
        work_after(&mut idle, SPINS + 50, 5);
        assert_eq!(fall_asleep(&mut idle).0, 0);
        work_after(&mut idle, 50, 100);
        assert_eq!(fall_asleep(&mut idle).0, 0, "nor would it be within one");
    }

    #[test]
    fn one_that_sends_now_and_then_gets_no_spinning() {
        let mut idle = lucky();
        for _ in 0..50 {
            work_after(&mut idle, 2, 7);
            fall_asleep(&mut idle);
        }
        assert_eq!(fall_asleep(&mut idle).0, 0);
    }

    #[test]
    fn contention_ends_the_spinning_and_is_forgotten_slowly() {
        let mut idle = lucky();
        (1..=3).for_each(|n| idle.tick(n * 1000));
        assert_eq!(fall_asleep(&mut idle).0, 0);
        let mut idle = lucky();
        (1..=50).for_each(|n| idle.tick(n * 1000));
        quiet_ms(&mut idle, 150);
        assert_eq!(fall_asleep(&mut idle).0, 0);
        quiet_ms(&mut idle, 20);
        assert_eq!(fall_asleep(&mut idle).0, SPINS);
    }

    #[test]
    fn the_system_may_take_the_core_now_and_then() {
        let mut idle = lucky();
        for n in 1..100 {
            idle.tick(n);
            quiet_ms(&mut idle, 30);
        }
        assert_eq!(fall_asleep(&mut idle).0, SPINS);
    }
}
