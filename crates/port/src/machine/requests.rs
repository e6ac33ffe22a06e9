//! What the control thread asks of a port's thread: to end, or to evict its VMM.
//!
//! A port that was evicted admits no VMM for a while. It accepts connections meanwhile, one a
//! second, and closes them, so that a VMM sees at once that it is not served.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::rejected::PAUSE;
use super::socket::Listener;
use crate::sys::vhost::{Event, wait};

/// A request to a port's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The port is being closed.
    End,
    /// The port disconnects its VMM; why.
    Evict(String),
}

/// An eviction that is not over.
#[derive(Debug)]
struct Eviction {
    until: Instant,
    why: String,
    /// The port's thread knows of it.
    is_taken: bool,
}

/// The requests to a port's thread.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Readable while there is a request. Set after the request is written.
    event: Event,
    /// Whether the event may be set, for a thread that is too busy to wait. Both threads write it.
    /// Relaxed: a hint; `ends` and the lock order the requests themselves.
    is_set: AtomicBool,
    /// The port is being closed. Written by the control thread, once.
    ends: AtomicBool,
    eviction: Mutex<Option<Eviction>>,
}

impl Requests {
    /// No request yet.
    pub(crate) fn new() -> io::Result<Self> {
        let (is_set, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { event: Event::new()?, is_set, ends, eviction: Mutex::default() })
    }

    /// Tells the thread to end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    /// Tells the thread to disconnect its VMM, and to admit none for so long.
    pub(crate) fn evict(&self, period: Duration, why: String) {
        let until = Instant::now() + period;
        *self.eviction.lock().expect("no code panics while it holds the lock") =
            Some(Eviction { until, why, is_taken: false });
        self.ring();
    }

    /// Sets the event first: a thread that takes the request in between leaves `is_set` behind,
    /// which costs one look, but never an event that no thread clears.
    fn ring(&self) {
        self.event.set();
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether there may be a request; it costs next to nothing to ask.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The next request. A request to end stays.
    pub(crate) fn take(&self) -> Option<Request> {
        // Cleared first, so that a request that comes later is not missed.
        self.is_set.store(false, Ordering::Relaxed);
        self.event.clear();
        if self.ends.load(Ordering::Acquire) {
            self.ring();
            return Some(Request::End);
        }
        let mut eviction = self.eviction.lock().expect("no code panics while it holds the lock");
        let eviction = eviction.as_mut().filter(|eviction| !eviction.is_taken)?;
        eviction.is_taken = true;
        Some(Request::Evict(eviction.why.clone()))
    }

    /// How many milliseconds the port admits no VMM, and why, if that is so.
    fn eviction(&self, now: Instant) -> Option<(u32, String)> {
        let mut eviction = self.eviction.lock().expect("no code panics while it holds the lock");
        let left = eviction.as_ref()?.until.saturating_duration_since(now);
        if left.is_zero() {
            *eviction = None;
            return None;
        }
        // Rounded up, so that the caller does not wake up too early.
        let ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).saturating_add(1);
        eviction.as_ref().map(|eviction| (ms, eviction.why.clone()))
    }

    /// Waits so long; returns whether the port is being closed.
    pub(crate) fn sleeps_until_end(&self, ms: u32) -> bool {
        if wait([Some(self.as_fd())], Some(ms)).is_err() {
            std::thread::sleep(Duration::from_millis(ms.into()));
        }
        self.ends.load(Ordering::Acquire)
    }

    /// Waits until the port admits VMMs again, and closes the connections of those that try
    /// meanwhile; returns whether the port is being closed. `begin` is called with the reason if
    /// there is anything to wait for.
    pub(crate) fn waits_out_eviction(
        &self,
        listener: Option<&Listener>,
        begin: impl Fn(String),
    ) -> bool {
        let (mut paused_until, mut is_known) = (Instant::now(), false);
        loop {
            if self.take() == Some(Request::End) {
                return true;
            }
            let now = Instant::now();
            let Some((left, why)) = self.eviction(now) else { return false };
            if !std::mem::replace(&mut is_known, true) {
                begin(why);
            }
            let open = listener.filter(|_| now >= paused_until);
            let left = if open.is_some() { left } else { left.min(millis(PAUSE)) };
            match wait([Some(self.as_fd()), open.and_then(Listener::fd)], Some(left)) {
                Ok([false, true]) => {
                    // One that cannot be accepted is tried again later, too.
                    drop(open.map(Listener::next));
                    paused_until = Instant::now() + PAUSE;
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_end_stays_and_comes_before_all_others() {
        let requests = Requests::new().expect("descriptors");
        assert_eq!((requests.is_set(), requests.take()), (false, None));
        requests.evict(Duration::from_secs(60), "of noise".to_owned());
        assert!(requests.is_set());
        assert_eq!(requests.take(), Some(Request::Evict("of noise".to_owned())));
        assert_eq!((requests.is_set(), requests.take()), (false, None));
        requests.evict(Duration::from_secs(60), "of noise".to_owned());
        requests.end();
        for _ in 0..2 {
            assert_eq!((requests.is_set(), requests.take()), (true, Some(Request::End)));
        }
        assert!(requests.sleeps_until_end(u32::MAX) && requests.waits_out_eviction(None, drop));
    }

    #[test]
    fn an_eviction_has_an_end() {
        let requests = Requests::new().expect("descriptors");
        let period = Duration::from_millis(5);
        requests.evict(period, "of noise".to_owned());
        let begin = Instant::now();
        assert!(!requests.waits_out_eviction(None, |why| assert_eq!(why, "of noise")));
        assert!(begin.elapsed() >= period);
        assert!(!requests.waits_out_eviction(None, |_| panic!("it is over")));
    }
}
