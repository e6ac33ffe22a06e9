//! The log of ports of virtual machines, by the lines of their user.
//!
//! VMMs that may connect can make the daemon log lines, so the number of lines is limited; the log
//! says how many were suppressed. The ports of a user share one limit: a user may have many ports,
//! and may delete them and add them again. Connects and disconnects have a limit of their own, so
//! that they do not displace the causes of errors.

use std::fmt::Arguments;
use std::sync::Arc;
use std::time::Instant;

use protocol::users::user_name;
use tracing::Level;

use crate::log_budget::{Budget, Kind, NextReport, UserBudgets};

/// The kinds of lines, by their places.
const KINDS: [Kind; 2] = [
    Kind { name: "of connects and disconnects of machines", level: Level::WARN },
    Kind { name: "of errors of machines", level: Level::WARN },
];
const EVENTS: usize = 0;
const CAUSES: usize = 1;

/// The lines that all machine ports of a user may log.
#[derive(Debug)]
pub struct UserLines(UserBudgets<2>);

/// The log of one port.
#[derive(Debug)]
pub(crate) struct RateLimitedLog {
    name: String,
    lines: Arc<UserLines>,
}

impl UserLines {
    /// The lines of a user of which none was logged.
    pub(crate) fn new(user: u32, next: &NextReport) -> Arc<Self> {
        let kinds = KINDS.map(|kind| (kind, Budget::default()));
        // The name is looked up now: the threads of ports may open no file.
        Arc::new(Self(UserBudgets::new(user_name(user), kinds, next)))
    }

    /// Whether a line about a connect or a disconnect is to be logged. Logs how many were not.
    #[must_use]
    pub fn allows_event(&self) -> bool {
        self.0.allows(EVENTS, Instant::now())
    }

    /// Whether a line about the cause of an error is to be logged, likewise.
    fn allows_cause(&self) -> bool {
        self.0.allows(CAUSES, Instant::now())
    }

    /// Whether these allow as many lines as new ones: their owner need not keep them.
    #[must_use]
    pub fn are_whole(&self, now: Instant) -> bool {
        self.0.are_whole(now)
    }

    /// Logs how many lines were suppressed, of the kinds whose time has come.
    pub fn log_suppressed(&self, now: Instant) {
        self.0.log_suppressed(now);
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

    fn lines_of(user: u32) -> Arc<UserLines> {
        UserLines::new(user, &NextReport::default())
    }

    #[test]
    fn who_comes_and_goes_uses_up_no_room_for_causes() {
        let lines = lines_of(7);
        let log = RateLimitedLog::new("vale0:vm".to_owned(), &lines);
        (0..1000).for_each(|_| log.info(format_args!("process 1 has connected")));
        assert!(lines.allows_cause());
    }

    #[test]
    fn all_ports_of_a_user_share_its_lines_and_leave_others_theirs() {
        let (lines, other) = (lines_of(7), lines_of(8));
        let ports = (0..312).map(|port| RateLimitedLog::new(format!("vale0:p{port}"), &lines));
        let ports: Vec<_> = ports.collect();
        assert_eq!(ports.iter().filter(|port| port.lines.allows_event()).count(), 40);
        assert_eq!(ports.iter().filter(|port| port.lines.allows_cause()).count(), 40);
        let again = RateLimitedLog::new("vale0:p0".to_owned(), &lines);
        drop(ports);
        assert!(!again.lines.allows_event(), "a port that is deleted and added again");
        assert_eq!([EVENTS, CAUSES].map(|kind| lines.0.suppressed(kind)), [273, 272]);
        assert!(other.allows_event() && other.allows_cause());
    }

    #[test]
    fn suppressed_lines_are_told_of_when_their_interval_is_over() {
        let (next, start) = (NextReport::default(), Instant::now());
        let lines = UserLines::new(7, &next);
        lines.log_suppressed(start);
        assert_eq!(next.at(), None);
        assert_eq!((0..100).filter(|_| lines.allows_event()).count(), 40);
        let end = next.at().expect("some were suppressed");
        lines.log_suppressed(start);
        assert_eq!(lines.0.suppressed(EVENTS), 60, "not yet");
        assert!(next.take_due(end));
        lines.log_suppressed(end);
        assert_eq!((lines.0.suppressed(EVENTS), next.at()), (0, None), "logged");
    }

    #[test]
    fn lines_are_whole_when_their_interval_is_over() {
        let (lines, now) = (lines_of(7), Instant::now());
        assert!(lines.are_whole(now));
        assert!(lines.allows_cause());
        assert!(!lines.are_whole(now) && lines.are_whole(now + 2 * INTERVAL));
    }
}
