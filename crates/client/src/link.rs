//! The doorbells of one attachment, and how threads sleep on them.
//!
//! # Theory of operation
//!
//! Both doorbells are pipes: to *kick* is to write a few bytes, to *sleep* is to block in `read`.
//! What the bytes say does not matter: a thread that wakes up looks at its rings again. End of file
//! means that the other side is gone.
//!
//! One pipe serves all rings of a port, and two threads may sleep at once, a sender and a
//! receiver. A kick that one of them reads may have been meant for the other. So:
//!
//! ```text
//!  sleeper                                  state (under a mutex)
//!  seen = kicks ─────────────────────────►  kicks   how many reads have found something
//!  arm; look at the ring once more          reading a thread is blocked in `read`
//!  sleep(seen):                             lost    end of file has been read
//!    kicks != seen      → awake
//!    no thread reads    → I block in `read`, then kicks += 1 and wake the others
//!    else               → wait until the reader says something
//! ```
//!
//! No wake-up is lost: a kick that answers my arming is written after I noted `seen`; it is either
//! still in the pipe when a thread reads, or its reader has counted it after `seen`. A reader
//! that leaves without a kick (its time is over) wakes the others, and one of them reads on.
//!
//! Only sleeping takes the mutex; a thread that finds its ring ready never comes here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::name::PortName;
use protocol::{Attached, ErrorCode, PortRef, Reply, Request, SessionRequest};
use ring::extra::ExtraBufs;
use ring::kick::{KICK, NUMBER_MAX, encode};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::control::{Connection, ControlError};
use crate::wait::{Sleeps, Woken};
use crate::{Error, Lost, Stop, sys};

/// Both doorbells and the control connection of one attachment.
#[derive(Debug)]
pub struct Link {
    kick: OwnedFd,
    wake: OwnedFd,
    name: PortName,
    /// What to write, the port's number.
    message: [u8; KICK],
    state: Mutex<State>,
    turn: Condvar,
    /// Closed before the connection: the list may have another owner then.
    extra: Arc<ExtraBufs>,
    /// The control connection: closing it detaches the port.
    connection: Mutex<Option<Connection>>,
    /// Ends every sleep.
    stop: Option<Stop>,
}

#[derive(Debug, Default)]
struct State {
    kicks: u64,
    reading: bool,
    /// Threads that wait for the one that reads.
    waiting: u32,
    lost: bool,
}

impl Link {
    /// Takes over the descriptors of an attach reply.
    pub fn new(
        kick: OwnedFd,
        wake: OwnedFd,
        attached: &Attached,
        extra: Arc<ExtraBufs>,
        connection: Option<Connection>,
        stop: Option<Stop>,
    ) -> Result<Self, Error> {
        let bell = attached.bell;
        if bell > NUMBER_MAX {
            return Err(Error::Geometry("number of the doorbell"));
        }
        let mut link = Self::with(kick, wake, attached.port.clone(), encode(bell), extra)?;
        (link.connection, link.stop) = (Mutex::new(connection), stop);
        Ok(link)
    }

    fn with(
        kick: OwnedFd,
        wake: OwnedFd,
        name: PortName,
        message: [u8; KICK],
        extra: Arc<ExtraBufs>,
    ) -> Result<Self, Error> {
        // A kick never waits, a sleep always does.
        set_blocking(&kick, false).map_err(|error| Error::Doorbell(error.into()))?;
        set_blocking(&wake, true).map_err(|error| Error::Doorbell(error.into()))?;
        Ok(Self {
            kick,
            wake,
            name,
            message,
            state: Mutex::default(),
            turn: Condvar::new(),
            extra,
            connection: Mutex::default(),
            stop: None,
        })
    }

    /// The port's extra buffers.
    pub fn extra_bufs(&self) -> &Arc<ExtraBufs> {
        &self.extra
    }

    /// Rings the other side's doorbell.
    #[cold]
    pub fn kick(&self) -> Result<(), Lost> {
        sys::ring_doorbell(self.kick.as_fd(), &self.message).map_err(|_| self.lose())
    }

    /// Number of kicks so far: note it before arming.
    pub fn kicks(&self) -> u64 {
        self.lock().kicks
    }

    /// Sleeps until there has been a kick after `seen`.
    pub fn sleep(&self, seen: u64, deadline: Option<Instant>) -> Result<Woken, Lost> {
        let mut state = self.lock();
        loop {
            if state.lost || self.is_stopped() {
                return Err(Lost);
            }
            if state.kicks != seen {
                return Ok(Woken::Kicked);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(Woken::TimedOut);
            }
            state = if state.reading {
                self.wait_for_reader(state, deadline)
            } else {
                self.read_for_all(state, deadline)
            };
        }
    }

    fn wait_for_reader<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = match deadline {
            None => self.turn.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.turn.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiting -= 1;
        state
    }

    fn read_for_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        state.reading = true;
        drop(state);
        let read = self.read(deadline);
        let mut state = self.lock();
        state.reading = false;
        self.note(&mut state, read);
        state
    }

    /// Records what a read found, for all threads.
    fn note(&self, state: &mut State, read: Result<Woken, Lost>) {
        match read {
            Ok(Woken::Kicked) => state.kicks += 1,
            Ok(Woken::TimedOut) => {}
            Err(Lost) => state.lost = true,
        }
        if state.waiting > 0 {
            self.turn.notify_all();
        }
    }

    /// Blocks in `read`: `poll` before it costs a microsecond and is for deadlines, and for ports
    /// that can be stopped.
    fn read(&self, deadline: Option<Instant>) -> Result<Woken, Lost> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let has_kick = match (&self.stop, left) {
            (None, None) => true,
            (None, Some(left)) => self.poll(PollFlags::IN, left)?,
            (Some(stop), left) => self.poll_with(stop, left)?,
        };
        if has_kick { self.take_kicks() } else { Ok(Woken::TimedOut) }
    }

    /// Is there something to read within `left`, and before it is to stop?
    fn poll_with(&self, stop: &Stop, left: Option<Duration>) -> Result<bool, Lost> {
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(_) => Err(Lost),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_said)
    }

    fn take_kicks(&self) -> Result<Woken, Lost> {
        let mut kicks = [0u8; 64];
        loop {
            return match rustix::io::read(&self.wake, &mut kicks) {
                Err(Errno::INTR) => continue,
                Ok(1..) => Ok(Woken::Kicked),
                Ok(0) | Err(_) => Err(Lost),
            };
        }
    }

    /// Is there something to read, or the end of file, within `left`?
    fn poll(&self, events: PollFlags, left: Duration) -> Result<bool, Lost> {
        let left = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&self.wake, events)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(_) => Err(Lost),
        }
    }

    /// Takes the kicks that wait in the doorbell, without blocking.
    pub fn acknowledge(&self) -> Result<(), Lost> {
        let mut state = self.lock();
        // Another thread that reads takes them.
        if !state.lost && !state.reading && self.poll(PollFlags::IN, Duration::ZERO)? {
            let read = self.take_kicks();
            self.note(&mut state, read);
        }
        if state.lost { Err(Lost) } else { Ok(()) }
    }

    /// Is the other side still there? One system call.
    pub fn check(&self) -> Result<(), Lost> {
        // No event asked for: what remains is the hang-up.
        match self.poll(PollFlags::empty(), Duration::ZERO) {
            Ok(false) if !self.lock().lost => Ok(()),
            _ => Err(self.lose()),
        }
    }

    /// Why the other side is gone. A daemon that still answers has taken the port away; it may also
    /// be about to end, so an open connection alone says nothing. Whether the other end of a pipe
    /// is there the daemon does not know.
    #[cold]
    pub fn why(&self) -> Error {
        if self.is_stopped() {
            return Error::Stopped;
        }
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = connection.as_ref().filter(|_| self.name.pipe().is_none()) else {
            return Lost.into();
        };
        let answer = connection
            .call(Request::Session(SessionRequest::Detach(PortRef { port: self.name.clone() })));
        match answer.map_err(|error| error.code()) {
            Err(Some(ErrorCode::NotFound)) => Error::Deleted(self.name.clone()),
            _ => Lost.into(),
        }
    }

    /// Makes a call on the control connection.
    pub fn call(&self, call: Request) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        match connection.as_ref() {
            Some(connection) => connection.call_with_fds(call),
            None => Err(ControlError::Lost(std::path::PathBuf::new())),
        }
    }

    /// Closes the control connection: the daemon detaches the port.
    pub fn detach(&self) {
        self.extra.close();
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn lose(&self) -> Lost {
        let mut state = self.lock();
        self.note(&mut state, Err(Lost));
        Lost
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleeps for Arc<Link> {
    fn kicks(&self) -> u64 {
        self.as_ref().kicks()
    }

    fn sleep(&self, seen: u64, deadline: Option<Instant>) -> Result<Woken, Lost> {
        self.as_ref().sleep(seen, deadline)
    }

    fn check(&self) -> Result<(), Lost> {
        if self.is_stopped() { Err(Lost) } else { self.as_ref().check() }
    }

    fn why(&self) -> Error {
        self.as_ref().why()
    }
}

/// Ports of one thread, whose doorbells no other thread reads: a kick on any of them wakes it.
impl Sleeps for [Arc<Link>] {
    fn kicks(&self) -> u64 {
        0
    }

    fn sleep(&self, _: u64, deadline: Option<Instant>) -> Result<Woken, Lost> {
        if self.iter().any(|link| link.is_stopped()) {
            return Err(Lost);
        }
        let stops = self.iter().filter_map(|link| link.stop.as_ref().map(AsFd::as_fd));
        let all = self.iter().map(|link| link.wake.as_fd()).chain(stops);
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => return Ok(Woken::TimedOut),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(Lost),
        }
        let taken = self.iter().map(|link| link.acknowledge()).fold(Ok(()), Result::and);
        taken.map(|()| Woken::Kicked)
    }

    fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Sleeps::check)
    }

    fn why(&self) -> Error {
        let lost = self.iter().find(|link| Sleeps::check(*link).is_err()).or(self.first());
        lost.map_or(Error::Lost(Lost), Sleeps::why)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.detach();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Makes a descriptor's reads and writes wait, or not.
pub fn set_blocking(fd: &OwnedFd, blocking: bool) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(
        fd,
        if blocking { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK },
    )
}
