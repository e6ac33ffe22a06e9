//! Limits for the number of log lines: of one user, and of all its ports of virtual machines.
//!
//! Clients that may connect can make the daemon log lines, so the number of lines is limited; lines
//! over the limit are counted, and the count is logged later. The ports of a user share one limit:
//! a user may have many ports, and may delete them and add them again. Connects and disconnects
//! have a limit of their own, so that they do not displace the causes of errors.

use std::cell::Cell;
use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::users::user_name;

/// Lines of each class in each [`PAUSE`]. A VM that connects and disconnects logs three.
const LINES: u32 = 40;
/// The interval after which the limits start again.
const PAUSE: Duration = Duration::from_secs(60);

/// The lines that all machine ports of a user may log.
#[derive(Debug)]
pub struct UserLines {
    user: String,
    /// Connects and disconnects.
    events: Mutex<Budget>,
    /// Causes of errors.
    causes: Mutex<Budget>,
}

/// The log of one port.
#[derive(Debug)]
pub(crate) struct RateLimitedLog {
    name: String,
    lines: Arc<UserLines>,
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

    /// Whether a new budget would allow no more lines than this one.
    fn is_whole(&self, now: Instant) -> bool {
        self.wanted.get() == 0 || now.duration_since(self.since.get()) >= PAUSE
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

impl UserLines {
    /// The lines of a user of which none was logged.
    pub(crate) fn new(user: u32) -> Arc<Self> {
        let budget = || Mutex::new(Budget::new(Instant::now()));
        // The name is looked up now: the threads of ports may open no file.
        Arc::new(Self { user: user_name(user), events: budget(), causes: budget() })
    }

    /// Whether a line about a connect or a disconnect is to be logged. Logs how many were not.
    #[must_use]
    pub fn allows_event(&self) -> bool {
        self.allows(&self.events, "of connects and disconnects of machines")
    }

    /// Whether a line about the cause of an error is to be logged, likewise.
    fn allows_cause(&self) -> bool {
        self.allows(&self.causes, "of errors of machines")
    }

    /// Whether new lines would be no more than these: their owner need not keep them.
    #[must_use]
    pub fn are_whole(&self, now: Instant) -> bool {
        [&self.events, &self.causes].iter().all(|budget| with(budget, |it| it.is_whole(now)))
    }

    fn allows(&self, budget: &Mutex<Budget>, kind: &str) -> bool {
        let turn = with(budget, |budget| budget.turn(Instant::now()));
        turn.allows(kind, |text| tracing::warn!("{}: {text}", self.user))
    }
}

fn with<T>(budget: &Mutex<Budget>, act: impl FnOnce(&Budget) -> T) -> T {
    act(&budget.lock().expect("no code panics while it holds the lock"))
}

impl Drop for UserLines {
    fn drop(&mut self) {
        let left_out = [&self.events, &self.causes].map(|budget| with(budget, Budget::left_out));
        let unsaid = left_out[0].saturating_add(left_out[1]);
        if unsaid > 0 {
            tracing::warn!("{}: {unsaid} lines of machines were suppressed", self.user);
        }
    }
}

impl RateLimitedLog {
    /// The log of a port of this name, by the lines of its user.
    pub(crate) fn new(name: String, lines: &Arc<UserLines>) -> Self {
        Self { name, lines: lines.clone() }
    }

    pub(crate) fn info(&self, what: Arguments<'_>) {
        if self.lines.allows_event() {
            tracing::info!("{}: {what}", self.name);
        }
    }

    pub(crate) fn warn(&self, what: Arguments<'_>) {
        if self.lines.allows_cause() {
            tracing::warn!("{}: {what}", self.name);
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
        let lines = UserLines::new(7);
        let log = RateLimitedLog::new("vale0:vm".to_owned(), &lines);
        (0..1000).for_each(|_| log.info(format_args!("process 1 has connected")));
        assert!(lines.allows_cause());
    }

    #[test]
    fn all_ports_of_a_user_share_its_lines_and_leave_others_theirs() {
        let (lines, other) = (UserLines::new(7), UserLines::new(8));
        let ports = (0..312).map(|port| RateLimitedLog::new(format!("vale0:p{port}"), &lines));
        let ports: Vec<_> = ports.collect();
        assert_eq!(ports.iter().filter(|port| port.lines.allows_event()).count(), 40);
        assert_eq!(ports.iter().filter(|port| port.lines.allows_cause()).count(), 40);
        let again = RateLimitedLog::new("vale0:p0".to_owned(), &lines);
        drop(ports);
        assert!(!again.lines.allows_event(), "a port that is deleted and added again");
        let left_out = |budget| with(budget, Budget::left_out);
        assert_eq!([&lines.events, &lines.causes].map(left_out), [273, 272]);
        assert!(other.allows_event() && other.allows_cause());
    }

    #[test]
    fn lines_are_whole_when_their_interval_is_over() {
        let (lines, now) = (UserLines::new(7), Instant::now());
        assert!(lines.are_whole(now));
        assert!(lines.allows_cause());
        assert!(!lines.are_whole(now) && lines.are_whole(now + 2 * PAUSE));
    }
}
