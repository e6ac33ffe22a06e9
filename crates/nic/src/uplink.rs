//! The port, also while there is none.
//!
//! ```text
//!             the switch is gone                     a thread of its own opens the port again
//!   Attached ───────────────────► Away ────────────────────────────────────────► Attached
//!                                  │ deleted: the cable is out until the port is there again
//! ```
//!
//! A VMM's processor stands still while it waits for a reply, so nothing here may take long:
//! attaching, which does, happens in a thread. Meanwhile frames of the guest are dropped.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use client::{Error, Options, Port, Stop};
use terminal::say;

/// How long the thread waits after an answer that means no.
const PAUSE: Duration = Duration::from_millis(500);

/// The device's port.
#[derive(Debug)]
pub enum Uplink {
    /// The port is open.
    Attached(Box<Port>),
    /// A thread opens it again.
    Away(Away),
}

/// A thread that opens a port.
#[derive(Debug)]
pub struct Away {
    thread: JoinHandle<Option<Port>>,
    /// Said when the thread ends.
    done: Stop,
    /// The port was deleted.
    pub is_deleted: bool,
}

impl Uplink {
    /// Opens the port for the first time.
    ///
    /// # Errors
    /// There is no daemon, or it refuses.
    pub fn open(options: &Options, name: &str) -> Result<Self, Error> {
        options.clone().open(name).map(|port| Self::Attached(Box::new(port)))
    }

    /// The port, if it is open.
    pub fn port(&mut self) -> Option<&mut Port> {
        match self {
            Self::Attached(port) => Some(port),
            Self::Away(_) => None,
        }
    }

    /// The descriptor to watch.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Attached(port) => port.as_ref().as_fd(),
            Self::Away(away) => away.done.as_fd(),
        }
    }

    /// Whether an operator took the port away.
    pub fn is_deleted(&self) -> bool {
        matches!(self, Self::Away(Away { is_deleted: true, .. }))
    }

    /// The other side of the port is gone: a thread opens it again until it succeeds or `stop` is
    /// said.
    ///
    /// # Errors
    /// No thread, or no descriptors left.
    pub fn lose(self, stop: &Stop) -> std::io::Result<Self> {
        let Self::Attached(port) = self else { return Ok(self) };
        let why = port.why_lost();
        say::remark(format_args!("uvala-device: {}: {why}", port.name()));
        let (done, stop) = (Stop::new()?, stop.clone());
        let is_deleted = matches!(why, Error::Deleted(_));
        let bell = done.clone();
        let thread = std::thread::Builder::new().name("attach".to_owned()).spawn(move || {
            let port = open_again(*port, &stop);
            bell.stop();
            port
        })?;
        Ok(Self::Away(Away { thread, done, is_deleted }))
    }

    /// The port, if the thread has opened it by now.
    pub fn resume(self) -> Self {
        match self {
            Self::Away(away) if away.done.is_said() => match away.thread.join() {
                Ok(Some(port)) => {
                    say::remark(format_args!("uvala-device: {} is attached again", port.name()));
                    Self::Attached(Box::new(port))
                }
                // It was told to stop, as the event loop will find.
                Ok(None) => panic!("the thread ends without a port when the process does"),
                Err(panic) => std::panic::resume_unwind(panic),
            },
            other => other,
        }
    }
}

/// Opens a port again; `None`: the process ends.
fn open_again(mut port: Port, stop: &Stop) -> Option<Port> {
    let mut said = String::new();
    loop {
        match port.reconnect(None) {
            Ok(()) => return Some(port),
            Err(Error::Stopped) => return None,
            Err(error) => {
                let why = error.to_string();
                if why != said {
                    say::remark(format_args!("uvala-device: {}: {why}", port.name()));
                    said = why;
                }
            }
        }
        if stop.wait(PAUSE) {
            return None;
        }
    }
}
