//! What the operator wants of a function that runs, said by signals.
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

/// What was wanted of an instance and not yet done. Relaxed: nothing else goes from thread to
/// thread by it.
#[derive(Clone, Debug, Default)]
pub struct Wishes(Arc<AtomicU8>);

const RELOAD: u8 = 1;
const SHOW: u8 = 2;

/// How long a function has to end in good order; it may be waiting for a daemon that is gone.
const PATIENCE: Duration = Duration::from_secs(3);

impl Wishes {
    /// From now on these signals are wishes of so many instances, SIGHUP only where there is a
    /// file; or say that they are to stop.
    pub fn by_signals(has_file: bool, instances: usize, stop: &Stop) -> io::Result<Vec<Self>> {
        let always = [SIGUSR1, SIGINT, SIGTERM];
        let mut signals = Signals::new(always.iter().chain(has_file.then_some(&SIGHUP)))?;
        let wishes: Vec<_> = (0..instances).map(|_| Self::default()).collect();
        let (theirs, stop) = (wishes.clone(), stop.clone());
        std::thread::spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGHUP => theirs.iter().for_each(|wishes| wishes.want(RELOAD)),
                    SIGUSR1 => theirs.iter().for_each(|wishes| wishes.want(SHOW)),
                    _ => end(&stop, signal),
                }
            }
        });
        Ok(wishes)
    }

    fn want(&self, wish: u8) {
        self.0.fetch_or(wish, Ordering::Relaxed);
    }

    /// Is the file to be read? Once for each time.
    pub fn reload(&self) -> bool {
        self.done(RELOAD)
    }

    /// Is anybody to be told what was counted? Likewise.
    pub fn show(&self) -> bool {
        self.done(SHOW)
    }

    fn done(&self, wish: u8) -> bool {
        let is_wanted = self.0.load(Ordering::Relaxed) & wish != 0;
        is_wanted && self.0.fetch_and(!wish, Ordering::Relaxed) & wish != 0
    }
}

/// In good order, if that does not take too long.
fn end(stop: &Stop, signal: i32) {
    stop.stop();
    std::thread::sleep(PATIENCE);
    std::process::exit(128 + signal);
}
