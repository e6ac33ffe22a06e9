//! Budgets of log lines.
//!
//! What clients, machines and interfaces do makes the daemon log lines, so their number is limited.
//! Lines over the limit are suppressed and counted. The count is logged with the first line of the
//! next interval. A user may cause no other line, so the count of its lines is logged without one
//! when a minute is over: each of its budgets says in [`NextReport`] when that is.
//!
//! ```text
//!   cause of a line       control: asks NextReport before it sleeps
//!        │                     ▲
//!        ▼                     │ first line that is suppressed
//!   UserBudgets::decide ───────┘
//! ```

use std::cell::Cell;
use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::Level;

/// Lines of a budget by default. A VM that connects and disconnects logs three.
const LINES: u32 = 40;
/// The interval of such a budget.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// The lines of a kind that the log may have in each interval. An interval begins with a line.
#[derive(Debug)]
pub struct Budget {
    lines: u32,
    interval: Duration,
    /// When the interval began, unless it was found to be over.
    since: Cell<Option<Instant>>,
    /// Lines in the interval, with those that were suppressed.
    wanted: Cell<u32>,
}

/// The decision about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Log the line, and before it how many were suppressed.
    Log(u32),
    /// Log that this line and further ones are suppressed.
    LogNoMore,
    /// Suppress the line.
    Suppress,
}

impl Decision {
    /// Whether the line is to be logged.
    #[must_use]
    pub fn is_to_log(self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Whether the line is to be logged. First, `log` logs that lines of a kind are suppressed, or
    /// how many were.
    pub fn allows(self, kind: &str, log: impl FnOnce(Arguments<'_>)) -> bool {
        match self {
            Self::Log(0) | Self::Suppress => {}
            Self::Log(suppressed) => log(format_args!("{suppressed} lines {kind} were suppressed")),
            Self::LogNoMore => log(format_args!("more lines {kind} are suppressed, and counted")),
        }
        self.is_to_log()
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(LINES, INTERVAL)
    }
}

impl Budget {
    fn new(lines: u32, interval: Duration) -> Self {
        Self { lines, interval, since: Cell::default(), wanted: Cell::default() }
    }

    /// A budget of one line in each interval.
    #[must_use]
    pub fn of_one(interval: Duration) -> Self {
        Self::new(1, interval)
    }

    /// How many lines were suppressed in the current interval.
    #[must_use]
    pub fn suppressed(&self) -> u32 {
        self.wanted.get().saturating_sub(self.lines)
    }

    /// Whether it allows as many lines as a new budget.
    fn is_whole(&self, now: Instant) -> bool {
        self.since.get().is_none_or(|since| now.duration_since(since) >= self.interval)
    }

    /// When the log is to have the number of lines that were suppressed, if some were and no line
    /// has it before. After a short interval the next line usually has.
    fn report_at(&self) -> Option<Instant> {
        let since = self.since.get().filter(|_| self.suppressed() > 0)?;
        since.checked_add(self.interval.max(INTERVAL))
    }

    /// Takes the number of lines that were suppressed, if it is time: the caller logs it.
    fn take_report(&self, now: Instant) -> u32 {
        match self.report_at() {
            Some(at) if at <= now => self.take_suppressed(now),
            _ => 0,
        }
    }

    /// Takes the number of lines that were suppressed in an interval that is over: the caller logs
    /// it.
    fn take_suppressed(&self, now: Instant) -> u32 {
        if !self.is_whole(now) {
            return 0;
        }
        let suppressed = self.suppressed();
        self.since.set(None);
        self.wanted.set(0);
        suppressed
    }

    /// Decides about the next line.
    #[must_use]
    pub fn decide(&self, now: Instant) -> Decision {
        let suppressed = self.take_suppressed(now);
        self.since.set(self.since.get().or(Some(now)));
        self.wanted.set(self.wanted.get().saturating_add(1));
        match self.suppressed() {
            0 => Decision::Log(suppressed),
            1 => Decision::LogNoMore,
            _ => Decision::Suppress,
        }
    }
}

/// A time that several budgets share: the earliest at which one of them has a number of suppressed
/// lines for the log. There is no need to look at them before.
#[derive(Clone, Debug, Default)]
pub struct NextReport(Arc<Mutex<Option<Instant>>>);

impl NextReport {
    /// The time, if lines were suppressed.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        self.with(|next| *next)
    }

    /// Whether it is time. If so, the caller has all budgets log their numbers, and those whose
    /// time has not come say so again.
    #[must_use]
    pub fn take_due(&self, now: Instant) -> bool {
        self.with(|next| next.take_if(|at| *at <= now).is_some())
    }

    fn note(&self, at: Option<Instant>) {
        self.with(|next| *next = [*next, at].into_iter().flatten().min());
    }

    fn with<T>(&self, act: impl FnOnce(&mut Option<Instant>) -> T) -> T {
        act(&mut self.0.lock().expect(LOCKED))
    }
}

/// A kind of lines.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// As in "lines of calls".
    pub name: &'static str,
    /// The level of what is logged about suppressed ones.
    pub level: Level,
}

/// The lines that the log may have of one user, or of several together: a budget for each kind.
/// Any thread may ask.
#[derive(Debug)]
pub struct UserBudgets<const KINDS: usize> {
    user: String,
    kinds: [(Kind, Mutex<Budget>); KINDS],
    next: NextReport,
}

const LOCKED: &str = "no code panics while it holds the lock";

impl<const KINDS: usize> UserBudgets<KINDS> {
    /// Budgets of which no line was logged. They say in `next` when they have something to tell.
    #[must_use]
    pub fn new(user: String, kinds: [(Kind, Budget); KINDS], next: &NextReport) -> Self {
        let kinds = kinds.map(|(kind, budget)| (kind, Mutex::new(budget)));
        Self { user, kinds, next: next.clone() }
    }

    /// Whose lines these are.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Decides about the next line of a kind, which is given by its place.
    #[must_use]
    pub fn decide(&self, kind: usize, now: Instant) -> Decision {
        let (decision, report_at) =
            self.with(kind, |budget| (budget.decide(now), budget.report_at()));
        if decision == Decision::LogNoMore {
            self.next.note(report_at);
        }
        decision
    }

    /// Whether the next line of a kind is to be logged. Logs how many were not.
    #[must_use]
    pub fn allows(&self, kind: usize, now: Instant) -> bool {
        self.log(kind, self.decide(kind, now))
    }

    /// Whether these allow as many lines as new ones: their owner need not keep them.
    #[must_use]
    pub fn are_whole(&self, now: Instant) -> bool {
        (0..KINDS).all(|kind| self.with(kind, |budget| budget.is_whole(now)))
    }

    /// Logs how many lines were suppressed, of the kinds whose time has come.
    pub fn log_suppressed(&self, now: Instant) {
        for kind in 0..KINDS {
            let (suppressed, next) =
                self.with(kind, |budget| (budget.take_report(now), budget.report_at()));
            self.log(kind, Decision::Log(suppressed));
            self.next.note(next);
        }
    }

    /// How many lines of a kind were suppressed and not told of.
    pub(crate) fn suppressed(&self, kind: usize) -> u32 {
        self.with(kind, Budget::suppressed)
    }

    fn log(&self, kind: usize, decision: Decision) -> bool {
        let (Kind { name, level }, _) = self.kinds[kind];
        decision.allows(name, |text| match level {
            Level::WARN => tracing::warn!("{}: {text}", self.user),
            _ => tracing::info!("{}: {text}", self.user),
        })
    }

    fn with<T>(&self, kind: usize, act: impl FnOnce(&Budget) -> T) -> T {
        act(&self.kinds[kind].1.lock().expect(LOCKED))
    }
}

impl<const KINDS: usize> Drop for UserBudgets<KINDS> {
    fn drop(&mut self) {
        for kind in 0..KINDS {
            self.log(kind, Decision::Log(self.suppressed(kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets<const KINDS: usize>(of: [Budget; KINDS]) -> UserBudgets<KINDS> {
        let kind = Kind { name: "of tests", level: Level::INFO };
        let kinds = of.map(|budget| (kind, budget));
        UserBudgets::new("other users".to_owned(), kinds, &NextReport::default())
    }

    #[test]
    fn lines_over_the_limit_are_suppressed_and_counted() {
        let (budget, start) = (Budget::default(), Instant::now());
        let decisions = |now| (0..1000).map(|_| budget.decide(now)).collect::<Vec<_>>();
        let first = decisions(start);
        assert!(first[..40].iter().all(|it| *it == Decision::Log(0)));
        assert_eq!(first[40], Decision::LogNoMore);
        assert!(first[41..].iter().all(|it| *it == Decision::Suppress));
        assert!(decisions(start + INTERVAL / 2).iter().all(|it| *it == Decision::Suppress));
        let later = decisions(start + INTERVAL);
        assert_eq!(later[..2], [Decision::Log(1960), Decision::Log(0)]);
    }

    #[test]
    fn a_budget_of_one_line_has_a_pause_after_each() {
        let (budget, start) = (Budget::of_one(INTERVAL), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let said = [0, 1, 59, 60, 61, 200].map(|seconds| budget.decide(after(seconds)).is_to_log());
        assert_eq!(said, [true, false, false, true, false, true]);
    }

    #[test]
    fn what_was_suppressed_is_counted_once_when_the_interval_is_over() {
        let (budget, start) = (Budget::of_one(INTERVAL), Instant::now());
        assert_eq!((budget.report_at(), budget.take_report(start)), (None, 0));
        let _ = [0; 3].map(|_| budget.decide(start));
        assert_eq!((budget.report_at(), budget.take_report(start)), (Some(start + INTERVAL), 0));
        let taken = [0; 2].map(|_| budget.take_report(start + INTERVAL));
        assert_eq!((taken, budget.report_at()), ([2, 0], None));
        assert_eq!(budget.decide(start + INTERVAL), Decision::Log(0));
    }

    #[test]
    fn after_a_short_interval_a_line_may_have_the_number_for_a_minute() {
        let (budget, start) = (Budget::of_one(INTERVAL / 6), Instant::now());
        let suppress = |now| [0; 3].map(|_| budget.decide(now))[0];
        assert_eq!(suppress(start), Decision::Log(0));
        assert_eq!(budget.take_report(start + INTERVAL / 2), 0);
        assert_eq!(suppress(start + INTERVAL / 2), Decision::Log(2));
        assert_eq!(budget.take_report(start + INTERVAL), 0, "of the second interval");
        assert_eq!(budget.take_report(start + 2 * INTERVAL), 2);
    }

    #[test]
    fn budgets_are_not_looked_at_until_one_has_something_to_tell() {
        let lines = budgets([1, 2].map(|lines| Budget::new(lines, INTERVAL)));
        let start = Instant::now();
        let (next, half) = (&lines.next, start + INTERVAL / 2);
        assert!(lines.allows(0, start) && lines.allows(1, start) && lines.allows(1, start));
        assert_eq!(next.at(), None);
        assert!(!lines.allows(1, half) && !lines.allows(0, half) && !lines.allows(0, half));
        assert_eq!(next.at(), Some(start + INTERVAL));
        assert!(!next.take_due(half));
        assert!(next.take_due(start + INTERVAL) && next.at().is_none());
        lines.log_suppressed(start + INTERVAL);
        assert_eq!(([0, 1].map(|kind| lines.suppressed(kind)), next.at()), ([0, 0], None));
    }

    #[test]
    fn what_is_not_to_be_told_yet_is_told_later() {
        let (lines, start) = (budgets([0; 2].map(|_| Budget::of_one(INTERVAL))), Instant::now());
        for (kind, now) in [(0, start), (1, start + INTERVAL / 2)] {
            let _ = [0; 3].map(|_| lines.allows(kind, now));
        }
        assert!(lines.next.take_due(start + INTERVAL));
        lines.log_suppressed(start + INTERVAL);
        assert_eq!([0, 1].map(|kind| lines.suppressed(kind)), [0, 2]);
        assert_eq!(lines.next.at(), Some(start + INTERVAL + INTERVAL / 2));
        assert!(!lines.are_whole(start + INTERVAL) && lines.are_whole(start + 2 * INTERVAL));
    }
}
