//! What a function counts itself, for listings and metrics.
//!
//! A thread of its own tells the daemon once a second, by a connection of its own: a daemon that is
//! busy holds no frame up. It takes no signal, reads no environment (which C programs may change),
//! and ends when its function does. No caller waits for that: the thread may be in a call that
//! takes a while.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use protocol::name::PortName;
use protocol::{COUNT_NAME_MAX, COUNTS_MAX, FunctionNote, FunctionRequest, Request};

use crate::control::Connection;
use crate::{Port, sys};

/// From one time to the next.
const EVERY: Duration = Duration::from_secs(1);

/// What a function shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// What it has counted since it began: it only grows.
    Count(u64),
    /// What there is now: it grows and shrinks.
    Gauge(u64),
}

/// Numbers by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics(BTreeMap<String, Metric>);

impl Metrics {
    /// Puts one in the place of that of its name, or beside the others. `false`: a name has 1 to
    /// [`COUNT_NAME_MAX`] letters, digits and `_`, and there are [`COUNTS_MAX`] numbers at most.
    pub fn put(&mut self, name: &str, number: Metric) -> bool {
        if let Some(known) = self.0.get_mut(name) {
            *known = number;
            return true;
        }
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name = (1..=COUNT_NAME_MAX).contains(&name.len()) && name.bytes().all(is_letter);
        let fits = is_name && self.0.len() < COUNTS_MAX;
        if fits {
            self.0.insert(name.to_owned(), number);
        }
        fits
    }

    fn note(&self, port: PortName) -> FunctionNote {
        let (mut counts, mut gauges) = (BTreeMap::new(), BTreeMap::new());
        for (name, number) in &self.0 {
            match *number {
                Metric::Count(count) => counts.insert(name.clone(), count),
                Metric::Gauge(gauge) => gauges.insert(name.clone(), gauge),
            };
        }
        FunctionNote { port, counts, gauges }
    }
}

/// Shows the numbers of a function, as long as it lives.
#[derive(Debug)]
pub struct MetricsReport {
    port: PortName,
    socket: PathBuf,
    shared: Arc<Shared>,
    /// Dropped, it ends the thread; `None`: there is none yet.
    thread: Option<Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    numbers: Mutex<Metrics>,
    /// Set when the counters were reported: the function that adds them up may do so again.
    /// Relaxed: no other data depends on it.
    is_due: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Metrics> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricsReport {
    /// The counters of the function at this port; there are none yet.
    #[must_use]
    pub fn of(port: &Port) -> Self {
        let shared = Shared { numbers: Mutex::default(), is_due: AtomicBool::new(true) };
        let (port, socket) = (port.name().clone(), port.socket());
        Self { port, socket, shared: Arc::new(shared), thread: None }
    }

    /// Whether a reader waits for newer values: true once for each request, the first time before
    /// any are there.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.shared.is_due.load(Ordering::Relaxed)
            && self.shared.is_due.swap(false, Ordering::Relaxed)
    }

    /// Changes them; what they are then is told within a second or two.
    ///
    /// # Errors
    /// There is no thread to be had, which the first of these calls starts; nothing is changed.
    pub fn update<R>(&mut self, change: impl FnOnce(&mut Metrics) -> R) -> io::Result<R> {
        if self.thread.is_none() {
            self.thread = Some(self.start()?);
        }
        Ok(change(&mut self.shared.lock()))
    }

    fn start(&self) -> io::Result<Sender<()>> {
        let (ends, ended) = channel();
        let (port, socket, shared) = (self.port.clone(), self.socket.clone(), self.shared.clone());
        let tell = move || tell(&shared, &ended, &socket, &port);
        let thread = thread::Builder::new().name("uvala-numbers".to_owned());
        sys::without_signals(|| thread.spawn(tell))?;
        Ok(ends)
    }
}

/// Tells the daemon what has changed; one that is not there is asked again the next time.
fn tell(shared: &Shared, ended: &Receiver<()>, socket: &Path, port: &PortName) {
    let mut told: Option<(Connection, Metrics)> = None;
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        shared.is_due.store(true, Ordering::Relaxed);
        let numbers = shared.lock().clone();
        let before = told.take().filter(|(connection, _)| !connection.is_over());
        if before.as_ref().is_some_and(|(_, last)| *last == numbers) {
            told = before;
            continue;
        }
        let connection = before.map(|(connection, _)| connection);
        let Some(connection) = connection.or_else(|| Connection::connect(socket).ok()) else {
            continue;
        };
        if connection
            .call(Request::Function(FunctionRequest::Note(numbers.note(port.clone()))))
            .is_ok()
        {
            told = Some((connection, numbers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_numbers_have_names_and_are_not_too_many() {
        let mut numbers = Metrics::default();
        let long = "n".repeat(COUNT_NAME_MAX);
        assert!(numbers.put(&long, Metric::Count(1)) && numbers.put("a_1", Metric::Gauge(2)));
        for bad in ["", "a b", "a-b", "\n", "ä", &format!("{long}n")] {
            assert!(!numbers.put(bad, Metric::Count(1)), "{bad:?}");
        }
        let more = (0..COUNTS_MAX).filter(|n| numbers.put(&format!("c{n}"), Metric::Count(1)));
        assert_eq!(more.count(), COUNTS_MAX - 2);
        assert!(numbers.put("a_1", Metric::Gauge(3)), "one that is there");
        let note = numbers.note("vale0:f".parse().unwrap());
        assert_eq!((note.counts.len(), note.gauges["a_1"]), (COUNTS_MAX - 1, 3));
    }
}
