//! A word that ends waits: one thread says it, any number of others that sleep hear it.
//!
//! A stop is a flag for threads that are busy, and an eventfd for threads that sleep: no thread
//! reads it, so that it stays ready for all of them. It never leaves the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Ends the waits of the ports that were opened with it ([`Options::stop`](crate::Options::stop)),
/// and [threads of a function](crate::nf::Threads). Copies are one and the same.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Written by the thread that says stop (Release), read by threads that wait (Acquire).
    is_said: AtomicBool,
    /// Ready from then on; written after `is_said`, never read.
    bell: OwnedFd,
}

impl Stop {
    /// One that has not been said.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner { is_said: AtomicBool::new(false), bell })))
    }

    /// Sets the flag, which stays set. A store and a write: it may be called in a signal handler.
    pub fn stop(&self) {
        // A thread that the write wakes sees this store.
        self.0.is_said.store(true, Ordering::Release);
        // It fails when it has been said 2^64 times.
        let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_said(&self) -> bool {
        self.0.is_said.load(Ordering::Acquire)
    }

    /// Sleeps until it is said. `false`: the time is over.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        // A signal may end it early: the caller takes that for the end of the time.
        let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
        self.is_said()
    }
}

impl AsFd for Stop {
    /// Ready to be read, and never to be: from the moment that it is said.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_all_who_sleep_hear_it_and_those_who_come_later() {
        let stop = Stop::new().unwrap();
        assert!(!stop.is_said() && !stop.wait(Duration::from_millis(1)));
        let hears = || {
            let mut fds = [PollFd::new(&stop, PollFlags::IN)];
            let time = Timespec::try_from(Duration::from_secs(20)).unwrap();
            poll(&mut fds, Some(&time)) == Ok(1)
        };
        let heard = std::thread::scope(|scope| {
            let sleepers = [scope.spawn(hears), scope.spawn(hears)];
            stop.clone().stop();
            sleepers.map(|sleeper| sleeper.join().unwrap())
        });
        assert_eq!(heard, [true; 2]);
        stop.stop();
        assert!(stop.is_said() && hears());
    }
}
