//! The log of ports of virtual machines, by the lines of their user.
//!
//! VMMs that may connect can make the daemon log lines, so the number of lines is limited; the log
//! says how many were suppressed. The ports of a user share one limit: a user may have many ports,
//! and may delete them and add them again. Connects and disconnects have a limit of their own, so
//! that they do not displace the causes of errors.

use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use protocol::users::user_name;

use crate::log_budget::{Budget, Decision};

/// The names of the classes of lines.
const EVENTS: &str = "of connects and disconnects of machines";
const CAUSES: &str = "of errors of machines";

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

impl UserLines {
    /// The lines of a user of which none was logged.
    pub(crate) fn new(user: u32) -> Arc<Self> {
        let budget = Mutex::<Budget>::default;
        // The name is looked up now: the threads of ports may open no file.
        Arc::new(Self { user: user_name(user), events: budget(), causes: budget() })
    }

    /// Whether a line about a connect or a disconnect is to be logged. Logs how many were not.
    #[must_use]
    pub fn allows_event(&self) -> bool {
        self.allows(&self.events, EVENTS)
    }

    /// Whether a line about the cause of an error is to be logged, likewise.
    fn allows_cause(&self) -> bool {
        self.allows(&self.causes, CAUSES)
    }

    /// Whether these allow as many lines as new ones: their owner need not keep them.
    #[must_use]
    pub fn are_whole(&self, now: Instant) -> bool {
        self.classes().iter().all(|(budget, _)| with(budget, |it| it.is_whole(now)))
    }

    /// Logs how many lines were suppressed in intervals that are over. Returns when the next such
    /// interval is over.
    pub fn log_suppressed(&self, now: Instant) -> Option<Instant> {
        let ends = self.classes().map(|(budget, kind)| {
            let (suppressed, end) = with(budget, |it| (it.take_suppressed(now), it.ends_at()));
            self.log(Decision::Log(suppressed), kind);
            end
        });
        ends.into_iter().flatten().min()
    }

    fn classes(&self) -> [(&Mutex<Budget>, &str); 2] {
        [(&self.events, EVENTS), (&self.causes, CAUSES)]
    }

    fn allows(&self, budget: &Mutex<Budget>, kind: &str) -> bool {
        self.log(with(budget, |budget| budget.decide(Instant::now())), kind)
    }

    fn log(&self, decision: Decision, kind: &str) -> bool {
        decision.allows(kind, |text| tracing::warn!("{}: {text}", self.user))
    }
}

fn with<T>(budget: &Mutex<Budget>, act: impl FnOnce(&Budget) -> T) -> T {
    act(&budget.lock().expect("no code panics while it holds the lock"))
}

impl Drop for UserLines {
    fn drop(&mut self) {
        for (budget, kind) in self.classes() {
            self.log(Decision::Log(with(budget, Budget::suppressed)), kind);
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
    use crate::log_budget::INTERVAL;

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
        let suppressed = |budget| with(budget, Budget::suppressed);
        assert_eq!([&lines.events, &lines.causes].map(suppressed), [273, 272]);
        assert!(other.allows_event() && other.allows_cause());
    }

    #[test]
    fn suppressed_lines_are_told_of_when_their_interval_is_over() {
        let (lines, start) = (UserLines::new(7), Instant::now());
        assert_eq!(lines.log_suppressed(start), None);
        assert_eq!((0..100).filter(|_| lines.allows_event()).count(), 40);
        let end = lines.log_suppressed(start).expect("some were suppressed");
        assert_eq!(with(&lines.events, Budget::suppressed), 60, "not yet");
        assert_eq!(lines.log_suppressed(end), None);
        assert_eq!(with(&lines.events, Budget::suppressed), 0, "logged");
    }

    #[test]
    fn lines_are_whole_when_their_interval_is_over() {
        let (lines, now) = (UserLines::new(7), Instant::now());
        assert!(lines.are_whole(now));
        assert!(lines.allows_cause());
        assert!(!lines.are_whole(now) && lines.are_whole(now + 2 * INTERVAL));
    }
}
