//! Slow work that another thread does while the control thread serves other clients.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hostif::HostError;
use port::host::Opened;

/// Slow work: commits memory, or opens or closes network interfaces. A thread of its own runs it;
/// the call that waits for it goes on when it is done.
pub type Build = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// How long a builder waits for what programs of its caller's own user keep.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5000 });

/// Waits in a builder until programs of its caller's own user let something go.
///
/// # Errors
/// What `late` says, if that takes too long.
pub fn await_own(is_let_go: impl Fn() -> bool, late: impl FnOnce() -> io::Error) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_let_go() {
        if Instant::now() > end {
            return Err(late());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A network interface that another thread opens.
#[derive(Clone, Default)]
pub struct Opening(Arc<OpeningSlot>);

/// Where that thread leaves the interface, or the reason why it has none.
pub type OpeningSlot = Mutex<Option<Result<Opened, HostError>>>;

impl Opening {
    /// Leaves the result for the control thread.
    pub fn put(&self, opened: Result<Opened, HostError>) {
        *self.0.lock().expect("no thread panics while it holds this lock") = Some(opened);
    }

    /// Takes the result; `None` while the interface is being opened, and after the first take.
    #[must_use]
    pub fn take(&self) -> Option<Result<Opened, HostError>> {
        self.0.lock().expect("no thread panics while it holds this lock").take()
    }

    /// A reference that tells whether a call still waits for the interface.
    #[must_use]
    pub fn watch(&self) -> Weak<OpeningSlot> {
        Arc::downgrade(&self.0)
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}
