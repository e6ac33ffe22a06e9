//! The port, also while there is none.
//!
//! ```text
//!             the switch is gone                     a thread of its own opens the port again
//!   Attached ───────────────────► Away ────────────────────────────────────────► Attached
//!                                  │ deleted: the cable is out until the port is there again
//! ```
//!
//! A VMM's processor stands still while it waits for a reply, so nothing here may take long: calls
//! to the daemon, which may, are made in a thread. Meanwhile frames of the guest are dropped. (One
//! call is not: a ptnet whose rings another program takes over waits for [`PortMemory::recover`].)
//!
//! [`PortMemory::recover`]: client::PortMemory::recover

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use client::{Error, Options, Port, Stop};
use rustix::event::{EventfdFlags, eventfd};
use terminal::say;

/// How long an attempt of the thread takes at most before it says why it fails, and at least.
const PAUSE: Duration = Duration::from_millis(500);

/// The device's port.
#[derive(Debug)]
pub struct Uplink {
    state: State,
    options: Options,
}

#[derive(Debug)]
enum State {
    /// The port is open.
    Attached(Box<Port>),
    /// A thread opens it again.
    Away(Away),
}

/// What a thread tells that opens a port.
#[derive(Debug)]
struct Away {
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
        let port = options.clone().open(name)?;
        Ok(Self { state: State::Attached(Box::new(port)), options })
    }

    /// The port, if it is open.
    pub fn port(&mut self) -> Option<&mut Port> {
        match &mut self.state {
            State::Attached(port) => Some(port),
            State::Away(_) => None,
        }
    }

    /// The descriptor to watch.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Attached(port) => port.as_ref().as_fd(),
            State::Away(away) => away.bell.as_fd(),
        }
    }

    /// Whether the cable is plugged in: an operator who deletes the port pulls it out.
    pub fn has_cable(&self) -> bool {
        !matches!(self.state, State::Away(Away { is_deleted: true, .. }))
    }

    /// The other side of the port is gone: a thread opens it again until it succeeds or `stop` is
    /// said.
    ///
    /// # Errors
    /// No thread, or no descriptors left.
    pub fn lose(&mut self, stop: &Stop) -> io::Result<()> {
        self.open_again(stop)
    }

    /// The port gets other memory, which no VMM has seen.
    ///
    /// # Errors
    /// As [`Self::lose`].
    pub fn renew(&mut self, stop: &Stop) -> io::Result<()> {
        if let State::Attached(port) = &self.state {
            let name = port.name();
            say::remark(format_args!("uvala-device: {name} gets new memory for the next VMM"));
        }
        self.open_again(stop)
    }

    fn open_again(&mut self, stop: &Stop) -> io::Result<()> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (rings, stop) = (bell.try_clone()?, stop.clone());
        let (teller, news) = channel();
        let away = State::Away(Away { news, bell, is_deleted: false });
        if let State::Attached(port) = std::mem::replace(&mut self.state, away) {
            let thread = std::thread::Builder::new().name("attach".to_owned());
            let options = self.options.clone();
            thread.spawn(move || open_again(*port, &options, &stop, &teller, &rings))?;
        }
        Ok(())
    }

    /// Takes what the thread has told.
    pub fn hear(&mut self) {
        let State::Away(away) = &mut self.state else { return };
        // What the counter says does not matter.
        let _ = rustix::io::read(&away.bell, &mut [0; 8]);
        while let Ok(news) = away.news.try_recv() {
            match news {
                News::Deleted => away.is_deleted = true,
                News::Attached(port) => {
                    self.state = State::Attached(port);
                    return;
                }
            }
        }
    }
}

/// Opens a port again, and tells what becomes of that.
fn open_again(
    mut port: Port,
    options: &Options,
    stop: &Stop,
    teller: &Sender<News>,
    bell: &OwnedFd,
) {
    let tell = |news| {
        // Without a listener the process is at its end.
        let _ = teller.send(news);
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    };
    let (mut is_deleted, mut said) = (false, String::new());
    while !stop.is_said() {
        let begin = Instant::now();
        let why = match attach(&mut port, options, is_deleted) {
            Ok(()) => {
                say::remark(format_args!("uvala-device: {} is attached again", port.name()));
                return tell(News::Attached(Box::new(port)));
            }
            Err(error @ Error::Deleted(_)) => {
                is_deleted = true;
                tell(News::Deleted);
                error.to_string()
            }
            Err(_) if is_deleted => said.clone(),
            Err(error) => format!("{} is not attached: {error}", port.name()),
        };
        if why != said {
            say::remark(format_args!("uvala-device: {why}"));
            said = why;
        }
        let _said = stop.wait(PAUSE.saturating_sub(begin.elapsed()));
    }
}

/// Opens a port again: one that was deleted, once an operator has added another of its name.
fn attach(port: &mut Port, options: &Options, is_deleted: bool) -> Result<(), Error> {
    if !is_deleted {
        // Also what may pass, such as another client at the port, is to be said.
        return port.reconnect(Some(PAUSE));
    }
    *port = options.clone().existing(true).open(&port.name().to_string())?;
    Ok(())
}
