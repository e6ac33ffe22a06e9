//! Work in the background, for which no other thread waits: the reclaimer unmaps large memory, and
//! closes what peers can make slow to close.

use std::sync::mpsc::{Sender, channel};
use std::{fmt, io};

use port::sys::Closer;

type Chore = Box<dyn FnOnce() + Send>;

/// A thread that does its chores in order, and ends with its last handle.
#[derive(Clone)]
pub struct Reclaimer(Sender<Chore>);

impl Reclaimer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No threads left.
    pub fn start() -> io::Result<Self> {
        let (sender, chores) = channel::<Chore>();
        let body = move || {
            confine::narrow(confine::Thread::Opener);
            chores.into_iter().for_each(|chore| chore());
        };
        std::thread::Builder::new().name("reclaimer".to_owned()).spawn(body)?;
        Ok(Self(sender))
    }

    /// Queues a chore for the thread.
    pub fn run(&self, chore: impl FnOnce() + Send + 'static) {
        // Only a bug ends the thread, and then the chore with what it holds is dropped here.
        let _ = self.0.send(Box::new(chore));
    }

    /// Closes descriptors in the thread.
    #[must_use]
    pub fn closer(&self) -> Closer {
        let reclaimer = self.clone();
        Closer::new(move |fd| reclaimer.run(move || drop(fd)))
    }

    /// Drops a value that holds `bytes` bytes: here if they are few, else in the thread.
    pub fn drop<T: Send + 'static>(&self, thing: T, bytes: usize) {
        if bytes >= LARGE {
            self.run(move || drop(thing));
        }
    }
}

/// Bytes from which on the thread drops them. Memory that is dropped here can be reserved again
/// at once.
const LARGE: usize = 32 << 20;

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").finish_non_exhaustive()
    }
}
