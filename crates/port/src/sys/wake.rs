//! What wakes a client: the daemon's end of a socket pair, or a futex in the port's memory.
//!
//! ```text
//!   worker ── send, 1 byte ──► daemon's end ═══ client's end ──► poll, read
//!          └─ add, FUTEX_WAKE ─────────────────────────────────► FUTEX_WAIT
//! ```
//!
//! The daemon's end has never been in another process but the next daemon, so no other process can
//! change its flags, or hold what a call on it locks: to send locks the queue of the client's end,
//! which the kernel holds for a moment only. What a client does while it reads (splice, memory that
//! faults slowly) holds other locks. The daemon's end takes nothing in, neither bytes nor
//! descriptors.
//!
//! What remains is that a wake-up takes the time of the worker: the kernel calls all that watch the
//! client's end, or passes by all that wait for futexes which its table has in the same place, of
//! whatever process. So the time of each is taken ([`SlowCalls`]). After slow ones by futex, the
//! clients of that user are woken by socket for a minute. Where those of a user have had their
//! share of the time, the switch wakes its clients later ([`Wake::try_wake`]). To close the
//! daemon's end calls those that watch it, too, and another thread than the worker does it
//! ([`Closer`]).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ring::doorbell::WakeBy;
use ring::wake::PortWake;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};
use rustix::thread::futex;
use switch::{Stage, Wake};

use super::slow_calls::{self, SlowCalls};

/// What a [`Closer`] does.
pub type Closing = Box<dyn FnOnce() + Send>;

/// Closes descriptors, and what holds any, in a thread that may have to wait.
#[derive(Clone)]
pub struct Closer(Arc<dyn Fn(Closing) + Send + Sync>);

impl Closer {
    /// Has `run` do what may have to wait.
    pub fn new(run: impl Fn(Closing) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Closes in the thread that drops the owner.
    #[must_use]
    pub fn in_place() -> Self {
        Self::new(|closing| closing())
    }

    /// Closes a descriptor, or drops what holds some.
    pub fn close(&self, value: impl Send + 'static) {
        self.run(move || drop(value));
    }

    /// Does what ends with a descriptor that is closed.
    pub(super) fn run(&self, closing: impl FnOnce() + Send + 'static) {
        (self.0)(Box::new(closing));
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closer").finish_non_exhaustive()
    }
}

/// A value that a [`Closer`] drops: a descriptor, or what holds descriptors or memory of a
/// client's.
#[derive(Debug)]
pub struct ClosedElsewhere<T: Send + 'static = OwnedFd> {
    /// There until this is dropped.
    value: Option<T>,
    closer: Closer,
}

impl<T: Send + 'static> ClosedElsewhere<T> {
    /// Leaves dropping `value` to `closer`.
    #[must_use]
    pub fn new(value: T, closer: &Closer) -> Self {
        Self { value: Some(value), closer: closer.clone() }
    }

    /// Leaves it to another closer.
    pub fn leave_to(&mut self, closer: &Closer) {
        self.closer = closer.clone();
    }

    /// What drops it.
    #[must_use]
    pub fn closer(&self) -> &Closer {
        &self.closer
    }

    /// The value.
    ///
    /// # Panics
    /// Never: it is there until this is dropped.
    #[must_use]
    pub fn get(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }

    /// The value: from here on the caller drops it.
    ///
    /// # Panics
    /// Never, likewise.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.value.take().expect("there until it is dropped")
    }

    /// Another value made of this one, for the same closer.
    #[must_use]
    pub fn map<U: Send + 'static>(self, make: impl FnOnce(T) -> U) -> ClosedElsewhere<U> {
        let closer = self.closer.clone();
        ClosedElsewhere::new(make(self.into_inner()), &closer)
    }
}

impl<T: Send + 'static> Drop for ClosedElsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.closer.close(value);
        }
    }
}

/// The daemon's end of a client's doorbell.
#[derive(Debug)]
pub struct Waker {
    socket: ClosedElsewhere,
    slow: Option<SlowCalls>,
}

impl Waker {
    /// A doorbell and its two ends: the client's, for reading, and the daemon's.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(closer: &Closer, slow: SlowCalls) -> io::Result<(OwnedFd, Self)> {
        Self::make(closer, Some(slow))
    }

    fn make(closer: &Closer, slow: Option<SlowCalls>) -> io::Result<(OwnedFd, Self)> {
        let (read, ours) = doorbell_pair()?;
        shutdown(&ours, Shutdown::Read)?;
        Ok((read, Self { socket: ClosedElsewhere::new(ours, closer), slow }))
    }

    /// The doorbell of a client that the daemon before this one had: its end of it.
    #[must_use]
    pub fn take_over(ours: OwnedFd, closer: &Closer, slow: SlowCalls) -> Self {
        Self { socket: ClosedElsewhere::new(ours, closer), slow: Some(slow) }
    }

    /// A copy of the daemon's end, for the next daemon.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.get().try_clone()
    }

    /// A doorbell of the daemon's own threads.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn of_daemon() -> io::Result<(OwnedFd, Self)> {
        Self::make(&Closer::in_place(), None)
    }

    /// Wakes one waiter of a futex.
    fn wake_by_futex(&self, now: u64, futex: &AtomicU32) {
        // The call fails for an address that is not mapped, and this one is.
        let wake = || _ = futex::wake(futex, futex::Flags::empty(), 1);
        match &self.slow {
            None => wake(),
            Some(slow) => slow.time_futex(now, wake),
        }
    }

    /// Whether its client is to be woken by futex, if it asks for it.
    fn allows_futex(&self, now: u64) -> bool {
        self.slow.as_ref().is_none_or(|slow| slow.allows_futex(now))
    }

    /// Rings. A full socket needs no more bytes: the client has been woken many times over.
    pub fn wake(&self) {
        self.wake_at(self.now());
    }

    fn wake_at(&self, now: u64) {
        match &self.slow {
            None => self.send(),
            Some(slow) => slow.time_wake(now, || self.send()),
        }
    }

    /// The time in nanoseconds; one reading serves for all that a wake-up asks. Where nothing is
    /// timed, none is read.
    fn now(&self) -> u64 {
        self.slow.as_ref().map_or(0, |_| slow_calls::now())
    }

    /// Rings, whatever share of the time the user's wake-ups have had, and counts for none.
    fn wake_at_once(&self) {
        match &self.slow {
            None => self.send(),
            Some(slow) => slow.time(|| self.send()),
        }
    }

    /// Whether the user's wake-ups have not had their share of the time.
    fn may_wake(&self, now: u64) -> bool {
        self.slow.as_ref().is_none_or(|slow| slow.may_wake(now))
    }

    fn send(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while send(self.socket.get(), &[0], flags) == Err(Errno::INTR) {}
    }

    /// Whether no process can be woken by it any more.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        // Without requested events, poll reports only that the other end is closed.
        let mut fds = [PollFd::new(self.socket.get(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Two connected sockets. Each has room for a few bytes only: one is enough, and what the other
/// side does not read is the daemon's memory.
///
/// # Errors
/// No descriptors left.
pub fn doorbell_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for end in [&a, &b] {
        // The kernel takes its least size instead.
        set_socket_send_buffer_size(end, 1)?;
    }
    Ok((a, b))
}

/// Wakes the client of a port of its own: by futex, if it sleeps so.
#[derive(Debug)]
pub struct PortWaker {
    words: PortWake,
    waker: Arc<Waker>,
}

impl PortWaker {
    /// The client may sleep by the futex from here on.
    #[must_use]
    pub fn new(words: PortWake, waker: impl Into<Arc<Waker>>) -> Self {
        words.words().offer_futex();
        Self::resumed(words, waker)
    }

    /// The client of a port that another daemon has served: the words are as that one left them.
    /// This touches no memory of the client's, which could be slow; the next wake-up does.
    #[must_use]
    pub fn resumed(words: PortWake, waker: impl Into<Arc<Waker>>) -> Self {
        Self { words, waker: waker.into() }
    }

    /// Offers the futex, or takes the offer back.
    fn offer_futex(&self, allowed: bool) {
        let words = self.words.words();
        match (words.offers_futex(), allowed) {
            (false, true) => words.offer_futex(),
            (true, false) => words.withdraw_futex(),
            (false, false) | (true, true) => {}
        }
    }

    /// Wakes the client, whose user's futexes are allowed or not, at this time.
    fn wake_at(&self, now: u64, allowed: bool) {
        self.offer_futex(allowed);
        match self.words.words().ring() {
            WakeBy::Futex if allowed => self.waker.wake_by_futex(now, self.words.futex()),
            // A client that sleeps by a futex that it was offered before looks soon by itself.
            WakeBy::Futex | WakeBy::Descriptor => self.waker.wake_at(now),
        }
    }
}

impl Wake for PortWaker {
    fn wake(&self) {
        let now = self.waker.now();
        self.wake_at(now, self.waker.allows_futex(now));
    }

    fn try_wake(&self, begin: &mut dyn FnMut(Stage)) -> bool {
        let now = self.waker.now();
        if !self.waker.may_wake(now) {
            return false;
        }
        let allowed = self.waker.allows_futex(now);
        let by_futex = allowed && self.words.words().is_by_futex();
        begin(if by_futex { Stage::WakeByFutex } else { Stage::Wake });
        self.wake_at(now, allowed);
        true
    }
}

/// Wakes all clients that hold a port.
#[derive(Debug)]
pub struct Wakers(pub Vec<Arc<Waker>>);

impl Wake for Wakers {
    fn wake(&self) {
        self.0.iter().for_each(|waker| waker.wake());
    }

    /// The clients are woken together, so all of them wait for one that has to.
    fn try_wake(&self, begin: &mut dyn FnMut(Stage)) -> bool {
        let now = slow_calls::now();
        let may_wake = self.0.iter().all(|waker| waker.may_wake(now));
        if may_wake {
            begin(Stage::Wake);
            self.0.iter().for_each(|waker| waker.wake_at(slow_calls::now()));
        }
        may_wake
    }
}

/// Wakes all clients that hold a monitor or a capture. The switch wakes these in the middle of a
/// turn, never later, so it takes nothing of what is left to the wake-ups of their users' ports.
#[derive(Debug)]
pub struct MirrorWakers(pub Wakers);

impl Wake for MirrorWakers {
    fn wake(&self) {
        self.0.0.iter().for_each(|waker| waker.wake_at_once());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use ring::Region;
    use ring::cursor::RingSize;
    use ring::layout::{FIRST_BLOCK, PortLayout, RingCounts};

    use super::*;
    use crate::shm::region_layout;
    use crate::sys::slow_calls::Probation;

    fn readable(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    /// A region with one port, and what makes handles of the port's words.
    fn port_words() -> (Arc<Region>, impl Fn(&Arc<Region>) -> PortWake) {
        let slots = RingSize::new(16).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let layout = region_layout(counts, 0, 2048).expect("legal");
        let (region, _fd) = Region::create("test", layout).expect("memory");
        let words = move |region: &_| PortWake::new(region, &PortLayout::new(FIRST_BLOCK, counts));
        (region, words)
    }

    #[test]
    fn all_holders_are_woken_and_a_deserted_doorbell_is_noticed() {
        let pairs = [0, 1].map(|_| Waker::of_daemon().expect("descriptors"));
        let [(first, a), (second, b)] = pairs.map(|(read, waker)| (read, Arc::new(waker)));
        Wakers(vec![a.clone(), b.clone()]).wake();
        for read in [&first, &second] {
            assert_eq!(rustix::io::read(read, &mut [0u8; 4]), Ok(1));
        }
        drop(first);
        assert_eq!([a, b].map(|waker| waker.is_deserted()), [true, false]);
    }

    #[test]
    fn a_full_or_deserted_doorbell_does_not_block() {
        let (read, waker) = Waker::of_daemon().expect("descriptors");
        (0..10_000).for_each(|_| waker.wake());
        assert!(matches!(rustix::io::read(&read, &mut [0u8; 4096]), Ok(1..64)));
        assert!(!readable(&read), "one look takes all");
        drop(read);
        waker.wake();
    }

    #[test]
    fn a_client_can_queue_nothing_for_the_daemon() {
        let (read, waker) = Waker::of_daemon().expect("descriptors");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        assert_eq!(send(&read, b"x", flags), Err(Errno::PIPE));
        assert!(!waker.is_deserted());
    }

    #[test]
    fn the_end_of_a_doorbell_is_closed_by_the_closer_and_then_the_client_sees_it() {
        let (closed, queue) = channel();
        let closer = Closer::new(move |closing| closed.send(closing).expect("listening"));
        let (read, waker) = Waker::make(&closer, None).expect("descriptors");
        drop(waker);
        assert!(!readable(&read));
        queue.recv().expect("one")();
        assert!(readable(&read));
        assert_eq!(rustix::io::read(&read, &mut [0u8; 4]), Ok(0));
    }

    #[test]
    fn a_port_is_woken_the_way_it_sleeps() {
        let (region, words) = port_words();
        let (read, waker) = Waker::of_daemon().expect("descriptors");
        let (client, port) = (words(&region), PortWaker::new(words(&region), waker));
        client.words().sleep_by(WakeBy::Futex);
        let seen = client.words().wakes();
        port.wake();
        assert!(client.words().wakes() != seen && !readable(&read));
        client.words().sleep_by(WakeBy::Descriptor);
        port.wake();
        assert!(readable(&read));
    }

    #[test]
    fn the_memory_of_a_port_that_is_taken_over_is_touched_by_the_first_wake_up_only() {
        let (region, words) = port_words();
        let (_read, waker) = Waker::of_daemon().expect("descriptors");
        let port = PortWaker::resumed(words(&region), waker);
        assert!(!words(&region).words().offers_futex(), "as it was");
        port.wake();
        assert!(words(&region).words().offers_futex());
    }

    #[test]
    fn a_port_is_woken_by_socket_while_its_users_futexes_are_left_alone() {
        let (region, words) = port_words();
        let probation = Arc::new(Probation::default());
        let slow = SlowCalls::new(probation.clone(), drop);
        let (read, waker) = Waker::new(&Closer::in_place(), slow).expect("descriptors");
        let (client, port) = (words(&region), PortWaker::new(words(&region), waker));
        client.words().sleep_by(WakeBy::Futex);
        port.wake();
        assert!(!readable(&read) && client.words().offers_futex());
        probation.rest_futexes();
        port.wake();
        assert!(readable(&read) && !client.words().offers_futex());
    }
}
