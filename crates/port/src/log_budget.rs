//! Budgets of log lines.
//!
//! What clients, machines and interfaces do makes the daemon log lines, so their number is limited.
//! Lines over the limit are suppressed and counted. The count is logged with the first line of the
//! next interval, or taken from the budget when its interval is over.

use std::cell::Cell;
use std::fmt::Arguments;
use std::time::{Duration, Instant};

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
    pub(crate) fn is_whole(&self, now: Instant) -> bool {
        self.since.get().is_none_or(|since| now.duration_since(since) >= self.interval)
    }

    /// When the current interval is over, if lines were suppressed in it.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        self.since.get().filter(|_| self.suppressed() > 0)?.checked_add(self.interval)
    }

    /// Takes the number of lines that were suppressed in an interval that is over: the caller logs
    /// it.
    pub(crate) fn take_suppressed(&self, now: Instant) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((budget.ends_at(), budget.take_suppressed(start)), (None, 0));
        let _ = [0; 3].map(|_| budget.decide(start));
        assert_eq!((budget.ends_at(), budget.take_suppressed(start)), (Some(start + INTERVAL), 0));
        let taken = [0; 2].map(|_| budget.take_suppressed(start + INTERVAL));
        assert_eq!((taken, budget.ends_at()), ([2, 0], None));
        assert_eq!(budget.decide(start + INTERVAL), Decision::Log(0));
    }
}
