//! Limits for the number of log lines: of one user, and of one port of a virtual machine.
//!
//! Clients that may connect can make the daemon log lines, so the number of lines is limited; lines
//! over the limit are counted, and the count is logged later. A port has a log of its own.
//! Connects and disconnects have a limit of their own, so that they do not displace the causes of
//! errors.

use std::cell::Cell;
use std::fmt::Arguments;
use std::time::{Duration, Instant};

/// Lines of each class in each [`PAUSE`]. A VM that connects and disconnects logs three.
const LINES: u32 = 40;
/// The interval after which the limits start again.
const PAUSE: Duration = Duration::from_secs(60);

/// The log of one port.
#[derive(Debug)]
pub(crate) struct RateLimitedLog {
    name: String,
    /// Connects and disconnects.
    events: Budget,
    /// Causes of errors.
    causes: Budget,
}

/// The number of lines of a class in the current interval.
#[derive(Debug)]
pub struct Budget {
    since: Cell<Instant>,
    wanted: Cell<u32>,
}

/// The decision about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Log the line, and before it how many were suppressed.
    Say(u32),
    /// Log that this line and further ones are suppressed.
    SayNoMore,
    /// Suppress the line.
    LeaveOut,
}

impl Turn {
    /// Whether the line is to be logged. First, `say` logs that lines of a kind are suppressed, or
    /// how many were.
    pub fn allows(self, kind: &str, say: impl FnOnce(Arguments<'_>)) -> bool {
        match self {
            Self::Say(0) => {}
            Self::Say(unsaid) => say(format_args!("{unsaid} lines {kind} were suppressed")),
            Self::SayNoMore => {
                say(format_args!("more lines {kind} are suppressed, and counted"));
            }
            Self::LeaveOut => {}
        }
        matches!(self, Self::Say(_))
    }
}

impl Budget {
    /// A budget of which nothing is spent.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { since: Cell::new(now), wanted: Cell::new(0) }
    }

    /// The number of lines over the limit in the current interval.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.wanted.get().saturating_sub(LINES)
    }

    /// Decides about the next line.
    #[must_use]
    pub fn turn(&self, now: Instant) -> Turn {
        let mut unsaid = 0;
        if now.duration_since(self.since.get()) >= PAUSE {
            unsaid = self.left_out();
            self.wanted.set(0);
            self.since.set(now);
        }
        self.wanted.set(self.wanted.get().saturating_add(1));
        match self.left_out() {
            0 => Turn::Say(unsaid),
            1 => Turn::SayNoMore,
            _ => Turn::LeaveOut,
        }
    }
}

impl RateLimitedLog {
    pub(crate) fn new(name: String) -> Self {
        let now = Instant::now();
        Self { name, events: Budget::new(now), causes: Budget::new(now) }
    }

    pub(crate) fn info(&self, what: Arguments<'_>) {
        if self.may_speak(&self.events, "of connects and disconnects") {
            tracing::info!("{}: {what}", self.name);
        }
    }

    pub(crate) fn warn(&self, what: Arguments<'_>) {
        if self.may_speak(&self.causes, "of causes") {
            tracing::warn!("{}: {what}", self.name);
        }
    }

    fn may_speak(&self, budget: &Budget, kind: &str) -> bool {
        let turn = budget.turn(Instant::now());
        turn.allows(kind, |text| tracing::warn!("{}: {text}", self.name))
    }
}

impl Drop for RateLimitedLog {
    fn drop(&mut self) {
        let unsaid = self.events.left_out().saturating_add(self.causes.left_out());
        if unsaid > 0 {
            tracing::warn!("{}: {unsaid} lines were suppressed", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_what_is_said_and_that_is_said() {
        let budget = Budget::new(Instant::now());
        let start = budget.since.get();
        let turns = |now| (0..1000).map(|_| budget.turn(now)).collect::<Vec<_>>();
        let first = turns(start);
        assert!(first[..40].iter().all(|turn| *turn == Turn::Say(0)));
        assert_eq!(first[40], Turn::SayNoMore);
        assert!(first[41..].iter().all(|turn| *turn == Turn::LeaveOut));
        assert!(turns(start + PAUSE / 2).iter().all(|turn| *turn == Turn::LeaveOut));
        let later = turns(start + PAUSE);
        assert_eq!(later[..2], [Turn::Say(1960), Turn::Say(0)]);
    }

    #[test]
    fn who_comes_and_goes_uses_up_no_room_for_causes() {
        let log = RateLimitedLog::new("vale0:vm".to_owned());
        (0..1000).for_each(|_| log.info(format_args!("process 1 has connected")));
        assert_eq!(log.causes.turn(Instant::now()), Turn::Say(0));
    }
}
