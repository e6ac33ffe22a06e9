//! VMMs that connect while another one has the port.
//!
//! The port rejects each of them and logs it. Many VMMs reconnect in a loop, so the port accepts
//! one a second at most; the others wait in the listener's backlog, and the first of them gets the
//! port when the current VMM disconnects.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::log::RateLimitedLog;
use super::{RETRY_MS, Status, process_of};

/// The pause after a rejection.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The VMMs that connected while another one had the port.
#[derive(Debug)]
pub(crate) struct RejectedPeers<'a> {
    log: &'a RateLimitedLog,
    status: &'a Status,
    /// The port accepts no connection before this time.
    paused_until: Cell<Option<Instant>>,
    count: Cell<u32>,
}

impl<'a> RejectedPeers<'a> {
    /// No VMM was rejected yet.
    pub(crate) fn new(log: &'a RateLimitedLog, status: &'a Status) -> Self {
        Self { log, status, paused_until: Cell::new(None), count: Cell::new(0) }
    }

    /// How many milliseconds the port must not accept connections, if that is so.
    pub(crate) fn pause_ms(&self, now: Instant) -> Option<u32> {
        let left = self.paused_until.get()?.saturating_duration_since(now);
        if left.is_zero() {
            self.paused_until.set(None);
            return None;
        }
        // Rounded up, so that the caller does not wake up too early.
        Some(u32::try_from(left.as_millis()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Rejects one connection.
    pub(crate) fn reject(&self, rejected: &OwnedFd) {
        let process = process_of(rejected);
        self.status.note_rejected(process);
        if self.count.replace(self.count.get().saturating_add(1)) == 0 {
            let owner = self.status.process().unwrap_or(0);
            self.log.warn(format_args!("rejected process {process}: process {owner} has the port"));
        }
        self.paused_until.set(Instant::now().checked_add(PAUSE));
    }

    /// Pauses after a connection could not be accepted.
    pub(crate) fn defer(&self) {
        let pause = Duration::from_millis(RETRY_MS.into());
        self.paused_until.set(Instant::now().checked_add(pause));
    }
}

impl Drop for RejectedPeers<'_> {
    /// The first rejection was logged when it happened.
    fn drop(&mut self) {
        let more = self.count.get().saturating_sub(1);
        if more > 0 {
            self.log.warn(format_args!("rejected {more} more processes meanwhile"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_budget::NextReport;
    use crate::machine::log::UserLines;
    use crate::sys::Waker;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn nobody_is_let_in_for_a_while_after_one_that_was_turned_away() {
        let (_, bell) = Waker::of_daemon().expect("descriptors");
        let lines = UserLines::new(7, &NextReport::default());
        let log = RateLimitedLog::new("vale0:vm".to_owned(), &lines);
        let status = Status::new(&Arc::new(bell));
        let rejected = RejectedPeers::new(&log, &status);
        let now = Instant::now();
        assert_eq!((rejected.pause_ms(now), status.rejected()), (None, None));
        let (peer, _other) = UnixStream::pair().expect("descriptors");
        rejected.reject(&peer.into());
        assert_eq!(status.rejected(), Some(std::process::id()));
        assert!(rejected.pause_ms(now).is_some_and(|ms| ms > RETRY_MS));
        let later = Instant::now() + PAUSE;
        assert_eq!(rejected.pause_ms(later), None);
        rejected.defer();
        assert!(rejected.pause_ms(Instant::now()).is_none_or(|ms| ms <= RETRY_MS + 1));
    }
}
