//! Monitors that come while another has the port: each is turned away, and is told of. Most try
//! again without a pause, so they are let in seldom; between that they wait where the kernel keeps
//! them, and have the port as soon as the other goes.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::log::RateLimitedLog;
use super::{RETRY_MS, Status, process_of};

/// Between two that are turned away.
const PAUSE: Duration = Duration::from_secs(1);

/// Those who come while one monitor has the port.
#[derive(Debug)]
pub(crate) struct RejectedPeers<'a> {
    log: &'a RateLimitedLog,
    status: &'a Status,
    /// Nobody is let in before.
    paused_until: Cell<Option<Instant>>,
    count: Cell<u32>,
}

impl<'a> RejectedPeers<'a> {
    /// There was none yet.
    pub(crate) fn new(log: &'a RateLimitedLog, status: &'a Status) -> Self {
        Self { log, status, paused_until: Cell::new(None), count: Cell::new(0) }
    }

    /// For how many milliseconds nobody is to be let in, unless somebody may be.
    pub(crate) fn pause_ms(&self, now: Instant) -> Option<u32> {
        let left = self.paused_until.get()?.saturating_duration_since(now);
        if left.is_zero() {
            self.paused_until.set(None);
            return None;
        }
        // Not less than is left: who waits is not to wake up too early.
        Some(u32::try_from(left.as_millis()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Turns one away.
    pub(crate) fn reject(&self, rejected: &OwnedFd) {
        let process = process_of(rejected);
        self.status.note_rejected(process);
        if self.count.replace(self.count.get().saturating_add(1)) == 0 {
            let owner = self.status.process().unwrap_or(0);
            self.log.warn(format_args!(
                "process {process} is turned away: process {owner} has the port"
            ));
        }
        self.paused_until.set(Instant::now().checked_add(PAUSE));
    }

    /// One could not be let in, and stays where it is.
    pub(crate) fn defer(&self) {
        let pause = Duration::from_millis(RETRY_MS.into());
        self.paused_until.set(Instant::now().checked_add(pause));
    }
}

impl Drop for RejectedPeers<'_> {
    /// The first was told of when it came.
    fn drop(&mut self) {
        let more = self.count.get().saturating_sub(1);
        if more > 0 {
            self.log.warn(format_args!("{more} more were turned away meanwhile"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Waker;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn nobody_is_let_in_for_a_while_after_one_that_was_turned_away() {
        let (_, bell) = Waker::new().expect("descriptors");
        let (log, status) =
            (RateLimitedLog::new("vale0:vm".to_owned()), Status::new(&Arc::new(bell)));
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
