//! Judges whether a worker stands still, and what holds it up.
//!
//! The watchdog looks every 20 ms. A worker whose [`Beat`] has not changed for [`STALL`], and that
//! is not asleep, stands still. The kernel's account of its thread tells why:
//!
//! ```text
//!   it ran for most of the time ─► Cause::Busy       work for a port, or in the kernel
//!   else, and it can run now    ─► Cause::NoCpu      other programs hold the CPU
//!   else                        ─► Cause::Blocked    it waits inside a system call
//! ```

use std::time::{Duration, Instant};

use switch::{Beat, Stage};

/// How long a worker may stand in one step.
pub const STALL: Duration = Duration::from_millis(50);

/// Looks in a row at which a worker cannot run, that show that it waits.
const WAITED: u32 = 3;

/// What holds a worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The thread had no CPU to run on.
    NoCpu,
    /// The thread ran all the time.
    Busy,
    /// The thread waited inside a system call or for a page of memory.
    Blocked,
}

/// What the kernel knows of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Time on a CPU since the thread started.
    pub ran: Duration,
    /// Whether the thread runs or waits for a CPU.
    pub runnable: bool,
}

/// A worker that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The step that it stands in.
    pub beat: Beat,
    /// How long it has stood there so far.
    pub lasted: Duration,
    /// What holds it up.
    pub cause: Cause,
    /// The stall was reported before, and is over: it lasted at least until the last look.
    pub is_over: bool,
}

/// What is known of one worker.
#[derive(Debug)]
pub struct Judge {
    beat: Beat,
    since: Instant,
    /// The last look at it in that step.
    seen: Instant,
    /// Time on a CPU until `since`.
    ran: Duration,
    /// What it was reported for.
    reported: Option<Cause>,
    /// Looks after that at which it could not run.
    waited: u32,
}

impl Judge {
    /// A worker in this step now.
    pub fn new(beat: Beat, now: Instant, account: Account) -> Self {
        Self { beat, since: now, seen: now, ran: account.ran, reported: None, waited: 0 }
    }

    /// Takes the worker's current step. Returns each stall as soon as it lasts [`STALL`], and once
    /// more when it is over. One without a CPU it also returns with another cause, if the worker
    /// then runs for as long in the same step, or waits there: other programs do not hide what
    /// holds it up.
    pub fn look(
        &mut self,
        beat: Beat,
        now: Instant,
        account: impl FnOnce() -> Account,
    ) -> Option<Stall> {
        if beat != self.beat || beat.stage == Stage::Asleep {
            let over = self.over();
            *self = Self::new(beat, now, account());
            return over;
        }
        self.seen = now;
        let lasted = now.duration_since(self.since);
        if lasted < STALL || self.reported.is_some_and(|cause| cause != Cause::NoCpu) {
            return None;
        }
        let account = account();
        self.waited = if account.runnable { 0 } else { self.waited + 1 };
        let cause = match self.reported {
            None => self.cause(account, lasted),
            Some(_) if account.ran.saturating_sub(self.ran) >= STALL => Cause::Busy,
            Some(_) if self.waited >= WAITED => Cause::Blocked,
            Some(_) => return None,
        };
        self.reported = Some(cause);
        Some(Stall { beat, lasted, cause, is_over: false })
    }

    /// The stall that was reported, which is over.
    fn over(&self) -> Option<Stall> {
        let (beat, lasted) = (self.beat, self.seen.duration_since(self.since));
        self.reported.map(|cause| Stall { beat, lasted, cause, is_over: true })
    }

    /// Whether the worker stands in one step for longer than `most`.
    pub fn stands(&self, now: Instant, most: Duration) -> bool {
        self.beat.stage != Stage::Asleep && now.duration_since(self.since) > most
    }

    fn cause(&self, account: Account, lasted: Duration) -> Cause {
        let most = lasted / 2;
        if account.ran.saturating_sub(self.ran) > most {
            Cause::Busy
        } else if account.runnable {
            Cause::NoCpu
        } else {
            Cause::Blocked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn step(stage: Stage, steps: u32) -> Beat {
        Beat { steps, stage, switch: 0, port: None, other: None }
    }

    /// Looks every 10 ms at a worker that stands in a step; `per_look` is its account of 10 ms.
    fn stalls(stage: Stage, looks: u32, per_look: Account) -> Vec<Stall> {
        let (begin, beat) = (Instant::now(), step(stage, 1));
        let mut judge = Judge::new(beat, begin, Account::default());
        let total = |n: u32| Account { ran: per_look.ran * n, ..per_look };
        (1..=looks).filter_map(|n| judge.look(beat, begin + 10 * n * MS, || total(n))).collect()
    }

    #[test]
    fn a_stall_is_reported_once_when_it_lasts_long_enough() {
        assert_eq!(stalls(Stage::Wake, 4, Account::default()), []);
        let found = stalls(Stage::Wake, 100, Account::default());
        let [Stall { beat, lasted, cause, .. }] = found[..] else { panic!("{found:?}") };
        assert_eq!((beat.stage, lasted, cause), (Stage::Wake, STALL, Cause::Blocked));
    }

    #[test]
    fn a_sleeping_worker_does_not_stand_still() {
        assert_eq!(stalls(Stage::Asleep, 1000, Account::default()), []);
    }

    #[test]
    fn a_worker_that_goes_on_does_not_stand_still() {
        let begin = Instant::now();
        let mut judge = Judge::new(step(Stage::Send, 0), begin, Account::default());
        for n in 1..1000 {
            let beat = step(Stage::Send, n);
            assert_eq!(judge.look(beat, begin + 49 * n * MS, Account::default), None);
        }
    }

    #[test]
    fn the_account_tells_what_holds_a_worker_up() {
        let cause = |ran, runnable| {
            let account = Account { ran: ran * MS, runnable };
            stalls(Stage::Send, 10, account)[0].cause
        };
        assert_eq!([cause(10, true), cause(6, true), cause(6, false)], [Cause::Busy; 3]);
        assert_eq!([cause(0, true), cause(4, true)], [Cause::NoCpu; 2]);
        assert_eq!([cause(0, false), cause(4, false)], [Cause::Blocked; 2]);
    }

    #[test]
    fn a_worker_that_runs_in_the_end_is_not_hidden_by_a_busy_host() {
        // A third of the time on a CPU, as beside two other programs.
        let found = stalls(Stage::Send, 100, Account { ran: 3 * MS, runnable: true });
        let [first, second] = found[..] else { panic!("{found:?}") };
        assert_eq!((first.cause, first.lasted), (Cause::NoCpu, STALL));
        assert_eq!((second.cause, second.lasted), (Cause::Busy, 170 * MS));
        let found = stalls(Stage::Send, 100, Account { ran: Duration::ZERO, runnable: true });
        assert_eq!(found.len(), 1, "it never ran");
    }

    #[test]
    fn a_worker_that_waits_in_the_end_is_not_hidden_by_a_busy_host() {
        let (begin, beat) = (Instant::now(), step(Stage::Receive, 1));
        let mut judge = Judge::new(beat, begin, Account::default());
        let found = (1..=20).filter_map(|n| {
            let account = Account { ran: Duration::ZERO, runnable: n < 10 };
            judge.look(beat, begin + 10 * n * MS, || account)
        });
        let causes: Vec<_> = found.map(|stall| (stall.cause, stall.lasted)).collect();
        assert_eq!(causes, [(Cause::NoCpu, STALL), (Cause::Blocked, 120 * MS)]);
    }

    #[test]
    fn a_worker_that_stands_again_is_reported_again() {
        let begin = Instant::now();
        let mut judge = Judge::new(step(Stage::Send, 0), begin, Account::default());
        let mut found = 0;
        for n in 1..=30 {
            let beat = step(Stage::Send, n / 10);
            let stall = judge.look(beat, begin + 10 * n * MS, Account::default);
            found += u32::from(stall.is_some_and(|stall| !stall.is_over));
        }
        assert_eq!(found, 3);
    }

    #[test]
    fn the_end_of_a_stall_tells_how_long_it_lasted() {
        let (begin, beat) = (Instant::now(), step(Stage::Send, 1));
        let mut judge = Judge::new(beat, begin, Account::default());
        let mut look = |beat, ms: u32| judge.look(beat, begin + ms * MS, Account::default);
        assert_eq!((1..=30).filter_map(|n| look(beat, 20 * n)).count(), 1);
        let over = look(step(Stage::Send, 2), 620);
        let (lasted, cause) = (600 * MS, Cause::Blocked);
        assert_eq!(over, Some(Stall { beat, lasted, cause, is_over: true }));
        assert_eq!(look(step(Stage::Send, 3), 640), None, "once");
    }
}
