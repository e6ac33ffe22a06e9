//! What a function has counted itself, told to the daemon once a second, for its listings.
//!
//! By a thread with a connection of its own: a daemon that is busy holds no frame up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use client::api::{COUNT_NAME_MAX, COUNTS_MAX, FunctionNote, Request};
use client::control::Connection;
use client::name::PortName;

use crate::cli::Global;
use crate::nf::{Counts, Function};

/// From one time to the next.
const EVERY: Duration = Duration::from_secs(1);

/// The function's side.
pub struct Reporter {
    /// The thread wants to know. Relaxed: nothing else goes by it.
    due: Arc<AtomicBool>,
    counts: SyncSender<Counts>,
}

impl Reporter {
    /// For the function at this port. One that counts nothing has no thread.
    pub fn start(global: &Global, port: &PortName, function: &Function) -> Self {
        let (counts, told) = sync_channel(1);
        let this = Self { due: Arc::default(), counts };
        if !function.counts().is_empty() {
            let (due, dir, port) = (this.due.clone(), global.dir.clone(), port.clone());
            thread::spawn(move || report(&due, &told, dir.as_deref(), &port));
        }
        this
    }

    /// Is somebody to be told? Once for each time.
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Relaxed)
    }

    /// What was counted. Where the thread still tells the last ones, these are skipped.
    pub fn tell(&self, counts: Counts) {
        let _ = self.counts.try_send(counts);
    }
}

/// Tells the daemon what has changed; one that is not there is asked again the next time.
fn report(due: &AtomicBool, told: &Receiver<Counts>, dir: Option<&Path>, port: &PortName) {
    let (mut connection, mut last) = (None, Counts::new());
    loop {
        thread::sleep(EVERY);
        due.store(true, Ordering::Relaxed);
        let Ok(counts) = told.recv() else { return };
        if counts == last {
            continue;
        }
        let short = counts.iter().filter(|(name, _)| name.len() <= COUNT_NAME_MAX);
        let named = short.take(COUNTS_MAX).map(|(name, count)| (name.to_string(), *count));
        let note = FunctionNote { port: port.clone(), counts: named.collect() };
        connection = connection.or_else(|| Connection::open(dir).ok());
        let done = connection.as_ref().map(|open| open.call(Request::FunctionNote(note)));
        match done {
            Some(Ok(_)) => last = counts,
            _ => connection = None,
        }
    }
}
