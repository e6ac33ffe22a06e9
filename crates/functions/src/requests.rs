//! Requests of an operator to a running function, made by signals.
//!
//! | signal | |
//! |---|---|
//! | SIGHUP | read the file again |
//! | SIGUSR1 | say what was counted |
//! | SIGINT, SIGTERM | end |
//!
//! A thread waits for them; each instance of the function looks between two batches, and an end
//! wakes those that sleep.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use client::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// The requests that an instance has not served yet. Relaxed: nothing else goes from thread to
/// thread by it.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<AtomicU8>);

const RELOAD: u8 = 1;
const SHOW: u8 = 2;

/// How long a function has to end in good order; it may be waiting for a daemon that is gone.
const PATIENCE: Duration = Duration::from_secs(3);

impl Requests {
    /// From now on these signals are requests of this many instances, SIGHUP only where there is a
    /// file; or say that they are to stop.
    pub fn by_signals(has_file: bool, instances: usize, stop: &Stop) -> io::Result<Vec<Self>> {
        let always = [SIGUSR1, SIGINT, SIGTERM];
        let mut signals = Signals::new(always.iter().chain(has_file.then_some(&SIGHUP)))?;
        let requests: Vec<_> = (0..instances).map(|_| Self::default()).collect();
        let (theirs, stop) = (requests.clone(), stop.clone());
        std::thread::spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGHUP => theirs.iter().for_each(|requests| requests.want(RELOAD)),
                    SIGUSR1 => theirs.iter().for_each(|requests| requests.want(SHOW)),
                    _ => end(&stop, signal),
                }
            }
        });
        Ok(requests)
    }

    fn want(&self, request: u8) {
        self.0.fetch_or(request, Ordering::Relaxed);
    }

    /// Whether the file is to be read: true once for each request.
    pub fn reload(&self) -> bool {
        self.done(RELOAD)
    }

    /// Whether the counters are to be printed: true once for each request.
    pub fn show(&self) -> bool {
        self.done(SHOW)
    }

    fn done(&self, request: u8) -> bool {
        let is_wanted = self.0.load(Ordering::Relaxed) & request != 0;
        is_wanted && self.0.fetch_and(!request, Ordering::Relaxed) & request != 0
    }
}

/// In good order, if that does not take too long.
fn end(stop: &Stop, signal: i32) {
    stop.stop();
    std::thread::sleep(PATIENCE);
    std::process::exit(128 + signal);
}
