//! The port, also while there is none.
//!
//! ```text
//!             the switch is gone                     a thread of its own opens the port again
//!   Attached ───────────────────► Away ────────────────────────────────────────► Attached
//!                                  │ deleted: the cable is out until the port is there again
//! ```
//!
//! A VMM's processor stands still while it waits for a reply, so nothing here may take long: calls
//! to the daemon, which may, are made in a thread. Meanwhile frames of the guest are dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use client::{Error, Options, Port, Stop};
use rustix::event::{EventfdFlags, eventfd};
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

/// What a thread tells that opens a port.
#[derive(Debug)]
pub struct Away {
    news: Receiver<News>,
    /// Readable when there are some.
    bell: OwnedFd,
    /// An operator deleted the port.
    is_deleted: bool,
}

#[derive(Debug)]
enum News {
    Deleted,
    Attached(Box<Port>),
}

impl Uplink {
    /// Opens the port for the first time.
    ///
    /// # Errors
    /// There is no daemon, or it refuses.
    pub fn open(options: Options, name: &str) -> Result<Self, Error> {
        options.open(name).map(|port| Self::Attached(Box::new(port)))
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
            Self::Away(away) => away.bell.as_fd(),
        }
    }

    /// Whether the cable is plugged in: an operator who deletes the port pulls it out.
    pub fn has_cable(&self) -> bool {
        !matches!(self, Self::Away(Away { is_deleted: true, .. }))
    }

    /// The other side of the port is gone: a thread opens it again until it succeeds or `stop` is
    /// said.
    ///
    /// # Errors
    /// No thread, or no descriptors left.
    pub fn lose(&mut self, stop: &Stop) -> io::Result<()> {
        self.open_again(stop, "the switch is gone")
    }

    /// The port gets other memory, which no VMM has seen.
    ///
    /// # Errors
    /// As [`Self::lose`].
    pub fn renew(&mut self, stop: &Stop) -> io::Result<()> {
        self.open_again(stop, "it gets new memory for the next VMM")
    }

    fn open_again(&mut self, stop: &Stop, why: &'static str) -> io::Result<()> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (rings, stop) = (bell.try_clone()?, stop.clone());
        let (teller, news) = channel();
        let away = Self::Away(Away { news, bell, is_deleted: false });
        if let Self::Attached(port) = std::mem::replace(self, away) {
            let thread = std::thread::Builder::new().name("attach".to_owned());
            thread.spawn(move || open_again(*port, why, &stop, &teller, &rings))?;
        }
        Ok(())
    }

    /// Takes what the thread has told.
    pub fn hear(&mut self) {
        let Self::Away(away) = self else { return };
        // What the counter says does not matter.
        let _ = rustix::io::read(&away.bell, &mut [0; 8]);
        while let Ok(news) = away.news.try_recv() {
            match news {
                News::Deleted => away.is_deleted = true,
                News::Attached(port) => {
                    *self = Self::Attached(port);
                    return;
                }
            }
        }
    }
}

/// Opens a port again, and tells what becomes of that.
fn open_again(mut port: Port, why: &str, stop: &Stop, teller: &Sender<News>, bell: &OwnedFd) {
    let tell = |news| {
        // Without a listener the process is at its end.
        let _ = teller.send(news);
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    };
    say::remark(format_args!("uvala-device: {}: {why}", port.name()));
    let mut said = String::new();
    while !stop.is_said() {
        let error = match port.reconnect(None) {
            Ok(()) => {
                say::remark(format_args!("uvala-device: {} is attached again", port.name()));
                return tell(News::Attached(Box::new(port)));
            }
            Err(error) => error,
        };
        if matches!(error, Error::Deleted(_)) {
            tell(News::Deleted);
        }
        let why = error.to_string();
        if why != said {
            say::remark(format_args!("uvala-device: {}: {why}", port.name()));
            said = why;
        }
        let _said = stop.wait(PAUSE);
    }
}
