//! What the control thread asks of a port's thread: to end, or to evict its VMM.
//!
//! A port that was evicted admits no VMM for a while. It accepts connections meanwhile, one a
//! second, and closes them, so that a VMM sees at once that it is not served.
//!
//! The port's thread ends the connection. But a VMM can block that thread, by a descriptor that
//! takes hours to close, so the worker does not wait for it. The control thread counts evictions,
//! and the worker serves a VMM only while the count is the one at which the VMM was
//! [admitted](Admission):
//!
//! ```text
//!   control thread         port's thread                           worker
//!   evictions += 1 ──────────────────────────────────────────────► stops: another count
//!   event ───────────────► ends the connection, waits;
//!                          the next VMM ─── channel: Admission ──► serves: the same count
//! ```
//!
//! | word | writer | readers | ordering |
//! |---|---|---|---|
//! | `evictions` | control | port's thread, worker | Relaxed |
//!
//! The word carries no data. The lock orders the eviction itself; the channel by which a worker
//! gets an admission orders that behind the count that it names.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// The number of evictions before a VMM was admitted. The next eviction ends the admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admission(u32);

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
    /// The number of evictions so far, modulo 2^32.
    evictions: AtomicU32,
}

impl Requests {
    /// No request yet.
    pub(crate) fn new() -> io::Result<Self> {
        let (is_set, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let (eviction, evictions) = (Mutex::default(), AtomicU32::new(0));
        Ok(Self { event: Event::new()?, is_set, ends, eviction, evictions })
    }

    /// Tells the thread to end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    /// Tells the thread to disconnect its VMM, and to admit none for so long. The worker serves
    /// that VMM no more.
    pub(crate) fn evict(&self, period: Duration, why: String) {
        let until = Instant::now() + period;
        let mut eviction = self.eviction.lock().expect("no code panics while it holds the lock");
        *eviction = Some(Eviction { until, why, is_taken: false });
        // With the lock held, as the port's thread reads the count: it finds both or neither.
        self.evictions.fetch_add(1, Ordering::Relaxed);
        drop(eviction);
        self.ring();
    }

    /// Whether an eviction has ended this admission. The worker asks in each turn.
    #[inline]
    pub(crate) fn is_evicted(&self, admission: Admission) -> bool {
        self.evictions.load(Ordering::Relaxed) != admission.0
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

    /// The admission of the next VMM; or how many milliseconds the port admits none, and why.
    fn admission(&self, now: Instant) -> Result<Admission, (u32, String)> {
        let mut eviction = self.eviction.lock().expect("no code panics while it holds the lock");
        if let Some(Eviction { until, why, .. }) = eviction.as_ref() {
            let left = until.saturating_duration_since(now);
            if !left.is_zero() {
                // Rounded up, so that the caller does not wake up too early.
                return Err((millis(left).saturating_add(1), why.clone()));
            }
        }
        *eviction = None;
        // An eviction that comes from here on ends this admission.
        Ok(Admission(self.evictions.load(Ordering::Relaxed)))
    }

    /// Waits so long; returns whether the port is being closed.
    pub(crate) fn sleeps_until_end(&self, ms: u32) -> bool {
        if wait([Some(self.as_fd())], Some(ms)).is_err() {
            std::thread::sleep(Duration::from_millis(ms.into()));
        }
        self.ends.load(Ordering::Acquire)
    }

    /// Waits until the port admits VMMs, and closes the connections of those that try meanwhile;
    /// returns the admission of the next one, or `None` when the port is being closed. `begin` is
    /// called with the reason if there is anything to wait for.
    pub(crate) fn wait_for_admission(
        &self,
        listener: Option<&Listener>,
        begin: impl Fn(String),
    ) -> Option<Admission> {
        let (mut paused_until, mut is_known) = (Instant::now(), false);
        loop {
            if self.take() == Some(Request::End) {
                return None;
            }
            let now = Instant::now();
            let (left, why) = match self.admission(now) {
                Ok(admission) => return Some(admission),
                Err(eviction) => eviction,
            };
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
        assert!(requests.sleeps_until_end(u32::MAX));
        assert_eq!(requests.wait_for_admission(None, drop), None);
    }

    #[test]
    fn an_eviction_has_an_end() {
        let requests = Requests::new().expect("descriptors");
        let open = || requests.wait_for_admission(None, |_| panic!("nothing to wait for"));
        let before = open().expect("the port stays");
        assert!(!requests.is_evicted(before));
        let period = Duration::from_millis(5);
        requests.evict(period, "of noise".to_owned());
        let begin = Instant::now();
        let next = requests.wait_for_admission(None, |why| assert_eq!(why, "of noise"));
        assert!(begin.elapsed() >= period);
        let next = next.expect("the port stays");
        assert!(requests.is_evicted(before) && !requests.is_evicted(next));
        assert_eq!(open(), Some(next), "it is over");
    }

    #[test]
    fn an_admission_ends_while_its_thread_does_something_else() {
        let requests = Requests::new().expect("descriptors");
        let admission = requests.wait_for_admission(None, drop).expect("the port stays");
        requests.evict(Duration::from_secs(60), "of noise".to_owned());
        assert!(requests.is_evicted(admission));
        // Another one, before the thread has taken the first.
        requests.evict(Duration::ZERO, "of noise".to_owned());
        assert!(requests.is_evicted(admission));
        let next = requests.wait_for_admission(None, drop).expect("the port stays");
        assert!(!requests.is_evicted(next));
    }
}
