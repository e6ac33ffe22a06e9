//! The doorbells of one attachment, and how threads sleep on them.
//!
//! # Theory of operation
//!
//! To *kick* is to write an eventfd (to wake the other end of a pipe: as the switch wakes us; in a
//! guest: a register of the port's device, whose timer stands for the socket below). To
//! *sleep* is to wait on a futex in the port's memory, and if that takes long, in `poll` for the
//! port's socket. What a wake-up says does not matter: a thread that wakes up looks at its rings
//! again. End of file means that the other side is gone.
//!
//! ```text
//!               20 ms are over: change the mode, and all threads arm once more
//!        ┌──────────────────────────────────┐
//!   by futex (half the cost)           by descriptor (sees end of file and a stop; no timer)
//! ```
//!
//! The other side rings by the mode that stands in the port's memory; [`ring::doorbell`] says why
//! no wake-up is lost. It stays as it is between two sleeps, unless that side offers no futex any
//! more, and is that of the descriptor always once a program has taken the descriptor for an event
//! loop of its own.
//!
//! One doorbell serves all rings of a port, and two threads may sleep at once, a sender and a
//! receiver. A wake-up that one of them takes may have been meant for the other. So:
//!
//! ```text
//!  sleeper                                  state (under a mutex)
//!  enter: I sleep; the first sets the mode  sleepers, by_futex
//!  seen = kicks ─────────────────────────►  kicks   how many wake-ups there were
//!  arm; look at the ring once more          reading a thread waits for the next
//!  sleep(seen):                             lost    end of file has been read
//!    kicks != seen      → awake
//!    no thread reads    → I wait, then kicks += 1 and wake the others
//!    else               → wait until the reader says something
//! ```
//!
//! No wake-up is lost: one that answers my arming comes after I noted `seen`. It has changed the
//! futex or stands in the socket when a thread reads, or its reader has counted it after `seen`. A
//! reader that leaves without a kick (its time is over) wakes the others, and one of them reads on.
//! A change of the mode counts as a kick, so that all threads arm anew.
//!
//! Bytes of earlier sleeps may stand in the socket. The next thread that polls takes them, wakes up
//! for nothing, and sleeps again.
//!
//! Only sleeping takes the mutex; a thread that finds its ring ready never comes here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::name::PortName;
use protocol::{Attached, ErrorCode, PortRef, Reply, Request, SessionRequest};
use ring::doorbell::WakeBy;
use ring::extra::ExtraBufs;
use ring::wake::PortWake;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::control::{Connection, ControlError, PortFds};
use crate::kick::Kick;
use crate::seen::Seen;
use crate::wait::{Sleeps, Woken};
use crate::{Error, Lost, Stop, sys};

/// How long a thread sleeps by futex before it sleeps by descriptor: longer than the kernel's tick,
/// or the kernel programs the core's timer for each sleep.
const NAP: Duration = Duration::from_millis(20);

/// The words by which the two sides of a port wake each other.
#[derive(Debug)]
pub struct PortWakes {
    /// How this side is woken.
    pub own: PortWake,
    /// How the other end of a pipe is woken, which is another client and may be gone.
    pub peer: Option<PortWake>,
}

/// Both doorbells and the control connection of one attachment.
#[derive(Debug)]
pub struct Link {
    kick: Kick,
    wake: OwnedFd,
    words: PortWakes,
    name: PortName,
    seen: Seen,
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
    /// The futex when `kicks` counted it.
    wakes: u32,
    /// Threads between [`Sleeps::enter`] and [`Sleeps::leave`].
    sleepers: u32,
    /// The mode of sleep that stands in the port's memory.
    by_futex: bool,
    /// The program may sleep on the descriptor.
    descriptor_taken: bool,
    reading: bool,
    /// Threads that wait for the one that reads.
    waiting: u32,
    lost: bool,
}

impl Link {
    /// Takes over the descriptors of an attach reply.
    pub fn new(
        PortFds { kick, wake, .. }: PortFds,
        attached: &Attached,
        words: PortWakes,
        extra: Arc<ExtraBufs>,
        connection: Option<Connection>,
        stop: Option<Stop>,
    ) -> Result<Self, Error> {
        // A kick never waits. The descriptor that a program gets does, but for a pipe, where both
        // are one.
        let is_device = kick.is_device();
        let waits = words.peer.is_none() && !is_device;
        for (fd, blocking) in [(kick.as_fd(), false), (wake.as_fd(), waits)] {
            set_blocking(fd, blocking).map_err(|error| Error::Doorbell(error.into()))?;
        }
        let own = words.own.words();
        own.sleep_by(WakeBy::Descriptor);
        // The host's switch wakes no futex of a guest's.
        let state = State { wakes: own.wakes(), descriptor_taken: is_device, ..State::default() };
        if let Some(peer) = &words.peer {
            peer.words().offer_futex();
        }
        Ok(Self {
            kick,
            wake,
            words,
            name: attached.port.clone(),
            seen: Seen::default(),
            state: Mutex::new(state),
            turn: Condvar::new(),
            extra,
            connection: Mutex::new(connection),
            stop,
        })
    }

    /// The port's name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// The port's extra buffers.
    pub fn extra_bufs(&self) -> &Arc<ExtraBufs> {
        &self.extra
    }

    /// Rings the other side's doorbell. Neither an eventfd nor a futex tells that there is no other
    /// side any more, so this looks now and then.
    #[cold]
    pub fn kick(&self) -> Result<(), Lost> {
        let rung = match &self.words.peer {
            None => self.kick.ring(),
            Some(peer) => match peer.words().ring() {
                WakeBy::Descriptor => sys::ring_socket(self.kick.as_fd()),
                WakeBy::Futex => {
                    sys::wake_futex(peer.futex());
                    Ok(())
                }
            },
        };
        rung.map_err(|_| self.lose())?;
        self.check_now_and_then()
    }

    fn check_now_and_then(&self) -> Result<(), Lost> {
        if self.seen.is_long_ago() { self.check() } else { Ok(()) }
    }

    /// A thread is about to arm and sleep. The first says by what; it sleeps by futex if it may.
    fn enter(&self) {
        let (mut state, words) = (self.lock(), self.words.own.words());
        let may_change = state.sleepers == 0 && !state.descriptor_taken;
        if may_change && state.by_futex != words.offers_futex() {
            state.by_futex = !state.by_futex;
            words.sleep_by(if state.by_futex { WakeBy::Futex } else { WakeBy::Descriptor });
        }
        state.sleepers += 1;
    }

    /// A thread does not sleep any more.
    fn leave(&self) {
        self.lock().sleepers -= 1;
    }

    /// From here on the other side wakes by descriptor. Threads that sleep arm once more, so that
    /// it sees that.
    fn sleep_by_descriptor(&self, state: &mut State) {
        if state.by_futex {
            state.by_futex = false;
            self.words.own.words().sleep_by(WakeBy::Descriptor);
            self.note(state, Ok(Woken::Kicked));
        }
    }

    /// The program may sleep on the descriptor from here on.
    fn take_descriptor(&self) {
        let mut state = self.lock();
        state.descriptor_taken = true;
        self.sleep_by_descriptor(&mut state);
    }

    /// Counts the wake-ups by futex since the last look.
    fn count_wakes(&self, state: &mut State) {
        let now = self.words.own.words().wakes();
        if std::mem::replace(&mut state.wakes, now) != now {
            self.note(state, Ok(Woken::Kicked));
        }
    }

    /// Number of kicks so far: note it before arming.
    pub fn kicks(&self) -> u64 {
        let mut state = self.lock();
        self.count_wakes(&mut state);
        state.kicks
    }

    /// Sleeps until there has been a kick after `seen`.
    pub fn sleep(&self, seen: u64, deadline: Option<Instant>) -> Result<Woken, Lost> {
        let mut state = self.lock();
        loop {
            if state.lost || self.is_stopped() {
                return Err(Lost);
            }
            self.count_wakes(&mut state);
            if state.kicks != seen {
                return Ok(Woken::Kicked);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                drop(state);
                // Many short waits in a row sleep for no moment, and still find out.
                return self.check_now_and_then().map(|()| Woken::TimedOut);
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
        let nap = state.by_futex.then_some(state.wakes);
        drop(state);
        let (mut read, mut nap_is_over) = (Ok(Woken::TimedOut), false);
        match nap {
            Some(wakes) => nap_is_over = self.nap(wakes, deadline),
            None => read = self.read(deadline),
        }
        let mut state = self.lock();
        state.reading = false;
        self.note(&mut state, read);
        if nap_is_over {
            self.sleep_by_descriptor(&mut state);
        }
        state
    }

    /// Sleeps by futex. `true`: long enough to go on by descriptor.
    fn nap(&self, wakes: u32, deadline: Option<Instant>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let nap = left.map_or(NAP, |left| left.min(NAP));
        sys::sleep_on_futex(self.words.own.futex(), wakes, nap) && nap == NAP
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

    /// Waits for the descriptor, and takes the kicks out of it.
    fn read(&self, deadline: Option<Instant>) -> Result<Woken, Lost> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if self.poll_with_stop(left)? { self.take_kicks() } else { Ok(Woken::TimedOut) }
    }

    /// Waits for something to read: `true` within `left`, `false` after it or when the program is
    /// to stop.
    fn poll_with_stop(&self, left: Option<Duration>) -> Result<bool, Lost> {
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let stop = self.stop.as_ref().map(|stop| PollFd::new(stop, PollFlags::IN));
        let mut fds = [wake.clone(), stop.clone().unwrap_or(wake)];
        let count = 1 + usize::from(stop.is_some());
        match rustix::event::poll(&mut fds[..count], left.as_ref()) {
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
                // Another process with a copy of the descriptor may have taken them.
                Ok(1..) | Err(Errno::AGAIN) if !self.kick.is_lost() => {
                    self.kick.slacken(&self.wake);
                    Ok(Woken::Kicked)
                }
                Ok(_) | Err(_) => Err(Lost),
            };
        }
    }

    /// Waits for something to read or the end of file: true within `left`, false after it.
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

    /// Checks that the daemon still holds the other side. One system call.
    pub fn check(&self) -> Result<(), Lost> {
        // No event asked for: what remains is the hang-up.
        match self.poll(PollFlags::empty(), Duration::ZERO) {
            Ok(false) if !self.lock().lost && !self.kick.is_lost() => Ok(()),
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

    /// Closes the control connection: the daemon detaches the port. A device's port is free again.
    pub fn detach(&self) {
        self.extra.close();
        self.kick.release();
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
    fn enter(&self) {
        self.as_ref().enter();
    }

    fn leave(&self) {
        self.as_ref().leave();
    }

    fn found(&self) {
        self.kick.quicken(&self.wake);
    }

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
    /// One call waits for all descriptors.
    fn enter(&self) {
        self.iter().for_each(|link| link.take_descriptor());
    }

    fn leave(&self) {}

    fn found(&self) {
        self.iter().for_each(Sleeps::found);
    }

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
    /// The descriptor, for a program that may sleep on it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.take_descriptor();
        self.wake.as_fd()
    }
}

/// Makes a descriptor's reads and writes wait, or not.
pub fn set_blocking(fd: BorrowedFd<'_>, blocking: bool) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(
        fd,
        if blocking { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK },
    )
}
