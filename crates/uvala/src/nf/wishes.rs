//! What the operator wants of a function that runs, said by signals.
//!
//! | signal | |
//! |---|---|
//! | SIGHUP | read the file again |
//! | SIGUSR1 | say what was counted |
//! | SIGINT, SIGTERM | end |
//!
//! A thread waits for them; the function looks between two batches.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// What was wanted and not yet done. Relaxed: nothing else goes from thread to thread by it.
#[derive(Clone, Debug, Default)]
pub struct Wishes(Arc<AtomicU8>);

const RELOAD: u8 = 1;
const SHOW: u8 = 2;
const END: u8 = 4;

/// How long a function has to end in good order; it may be waiting for a daemon that is gone.
const PATIENCE: Duration = Duration::from_secs(3);

impl Wishes {
    /// From now on these signals are wishes; SIGHUP only where there is a file.
    pub fn by_signals(has_file: bool) -> io::Result<Self> {
        let always = [SIGUSR1, SIGINT, SIGTERM];
        let mut signals = Signals::new(always.iter().chain(has_file.then_some(&SIGHUP)))?;
        let wishes = Self::default();
        let theirs = wishes.clone();
        std::thread::spawn(move || signals.forever().for_each(|signal| theirs.take(signal)));
        Ok(wishes)
    }

    fn take(&self, signal: i32) {
        let wish = match signal {
            SIGHUP => RELOAD,
            SIGUSR1 => SHOW,
            _ => END,
        };
        self.0.fetch_or(wish, Ordering::Relaxed);
        if wish == END {
            std::thread::sleep(PATIENCE);
            std::process::exit(128 + signal);
        }
    }

    /// Is the file to be read? Once for each time.
    pub fn reload(&self) -> bool {
        self.done(RELOAD)
    }

    /// Is anybody to be told what was counted? Likewise.
    pub fn show(&self) -> bool {
        self.done(SHOW)
    }

    /// Is it to end?
    pub fn end(&self) -> bool {
        self.0.load(Ordering::Relaxed) & END != 0
    }

    fn done(&self, wish: u8) -> bool {
        let is_wanted = self.0.load(Ordering::Relaxed) & wish != 0;
        is_wanted && self.0.fetch_and(!wish, Ordering::Relaxed) & wish != 0
    }
}
