//! Commands that watch a daemon, and go on when another one takes over from it.

use std::time::{Duration, Instant};

use anyhow::Result;
use client::Error;
use client::control::ControlError;

/// How long the next daemon is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the daemon has ended, or has left its clients to the next one.
pub fn is_loss(error: &anyhow::Error) -> bool {
    let of_calls =
        |error: &ControlError| matches!(error, ControlError::Lost(_) | ControlError::NoDaemon(_));
    match error.downcast_ref::<Error>() {
        Some(Error::Lost(_)) => true,
        Some(Error::Control(error)) => of_calls(error),
        Some(_) => false,
        None => error.downcast_ref::<ControlError>().is_some_and(of_calls),
    }
}

/// Opens it at the next daemon. `why` is how the last one was lost, and the error if none comes.
pub fn again<T>(why: anyhow::Error, mut open: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if is_loss(&error) && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            Err(error) if is_loss(&error) => return Err(why),
            opened => return opened,
        }
    }
}
