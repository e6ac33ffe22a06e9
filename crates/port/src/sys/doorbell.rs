//! A worker's doorbell: what wakes it.
//!
//! Each port whose client kicks has an eventfd, which no thread of the daemon reads, in the
//! worker's epoll set:
//!
//! ```text
//!   client ── write ──► eventfd ◄── worker's epoll set ◄── epoll_wait
//!             (shared, hostile)      (ours)
//! ```
//!
//! It is edge-triggered, so a report is all that has to be done about a kick. A client can fill,
//! read and lock its eventfd, change its mode, and register it in any number of other epoll sets,
//! some of which it may keep locked. What that makes slow, and who does it:
//!
//! - To add the eventfd to a set takes its lock, tens of milliseconds: a worker, before a client
//!   has the eventfd, or when the port moves; of a port that is taken over, a thread of its own,
//!   for which the daemon waits a second at most, while the one before goes on
//!   ([`prepare_kicks`]).
//! - To take it out takes the same, with the set's mutex held: the closer of the port's user.
//! - To close it last takes as long as a client keeps a set locked: that closer, too.
//!
//! To change what a registration asks for takes nothing of the client's. So the worker ends the
//! port's kicks, and the control thread has those of a port that is taken over ring.
//!
//! The first two are timed ([`SlowCalls`]), and after a slow one the closer rests: a worker that
//! has events waits meanwhile. What is registered is taken out by the daemon, or it would stay in
//! the set for as long as a client has the eventfd.
//!
//! No set of the daemon is in another one. To put it there takes a mutex of the whole system, which
//! any process can hold for ever, as to add any file to a set that is in another one.

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::slow_calls::SlowCalls;
use super::wake::Closer;

/// The data of the daemon's own kicks, and of ports that are not there any more.
const NO_PORT: u64 = u64::MAX;
/// The most descriptors of one report.
const EVENTS: usize = 64;

/// A worker's doorbell.
///
/// Beside kicks, it watches ports that have a descriptor of their own, level-triggered, so that
/// nothing needs to be armed and no event is missed.
#[derive(Debug)]
pub struct Doorbell {
    epoll: Arc<OwnedFd>,
    own: Arc<OwnedFd>,
}

impl Doorbell {
    /// A new doorbell.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        add(&epoll, &own, NO_PORT, EDGE)?;
        Ok(Self { epoll: Arc::new(epoll), own: Arc::new(own) })
    }

    /// What rings here for a port that has descriptors of its own.
    #[must_use]
    pub fn bell(&self, number: u32) -> PortBell {
        PortBell { epoll: self.epoll.clone(), number }
    }

    /// Another handle, for other threads.
    #[must_use]
    pub fn ringer(&self) -> Ringer {
        Ringer { epoll: self.epoll.clone(), own: self.own.clone() }
    }

    /// Waits for a ring, for no longer than `limit`, then adds the numbers of the ports to `rung`;
    /// none if the daemon itself rang. `false`: nothing rang.
    pub fn wait(&self, rung: &mut Vec<u32>, limit: Option<Duration>) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        self.look(rung, limit.as_ref())
    }

    /// [`Doorbell::wait`] without waiting.
    pub fn poll(&self, rung: &mut Vec<u32>) {
        self.look(rung, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }

    fn look(&self, rung: &mut Vec<u32>, timeout: Option<&Timespec>) -> bool {
        let mut space = [MaybeUninit::uninit(); EVENTS];
        // A signal interrupted the call: as if something had rung, the caller looks around.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout) else { return true };
        rung.extend(events.iter().filter_map(|event| u32::try_from(event.data.u64()).ok()));
        !events.is_empty()
    }
}

/// A worker's doorbell, as a port with descriptors of its own rings it.
#[derive(Clone, Debug)]
pub struct PortBell {
    epoll: Arc<OwnedFd>,
    number: u32,
}

impl PortBell {
    /// The bell that a worker gives to an adapter.
    ///
    /// # Panics
    /// If it is something else.
    #[must_use]
    pub fn of(bell: &dyn Any) -> &Self {
        bell.downcast_ref().expect("workers give such bells")
    }

    /// Watches a descriptor: the bell rings whenever it is readable or has an error, until it is
    /// closed or [unwatched](PortBell::unwatch).
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        add(&self.epoll, fd, self.number.into(), epoll::EventFlags::IN)
    }

    /// Watches a descriptor, edge-triggered: the bell rings each time that it becomes readable, and
    /// no thread has to read it.
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn watch_edges(&self, fd: impl AsFd) -> io::Result<()> {
        add(&self.epoll, fd, self.number.into(), EDGE)
    }

    /// Has a descriptor that is watched ring when it is writable, too, or no more.
    pub fn watch_room(&self, fd: impl AsFd, wanted: bool) {
        let room = if wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(self.number.into());
        // Changing a watch that exists cannot fail.
        let _ = epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN | room);
    }

    /// Has a descriptor that is watched ring no more. This takes no lock of those that have it.
    pub(super) fn mute(&self, fd: impl AsFd) {
        mute(&self.epoll, fd);
    }

    /// Ends a watch.
    pub fn unwatch(&self, fd: impl AsFd) {
        // The call fails if the descriptor is not watched any more.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Watches all descriptors of a port, or none; whether it has any that are watched.
    pub fn watch_all<T: AsFd>(&self, all: impl IntoIterator<Item = T> + Clone) -> bool {
        let watched = all.clone().into_iter().try_for_each(|fd| self.watch(fd));
        let is_watched = said(watched);
        if !is_watched {
            self.unwatch_all(all.clone());
        }
        is_watched && all.into_iter().next().is_some()
    }

    /// Ends all watches of a port.
    pub fn unwatch_all<T: AsFd>(&self, all: impl IntoIterator<Item = T>) {
        all.into_iter().for_each(|fd| self.unwatch(fd));
    }
}

impl PartialEq for PortBell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.epoll, &other.epoll) && self.number == other.number
    }
}

/// Whether a watch has begun; says why not.
pub fn said(watched: io::Result<()>) -> bool {
    if let Err(error) = &watched {
        tracing::error!("cannot watch an interface, so its port receives nothing: {error}");
    }
    watched.is_ok()
}

/// A worker's doorbell, seen by other threads.
#[derive(Clone, Debug)]
pub struct Ringer {
    epoll: Arc<OwnedFd>,
    own: Arc<OwnedFd>,
}

impl Ringer {
    /// Rings for no port.
    pub fn ring(&self) {
        write_or_skip(&self.own);
    }

    /// A port's kick, which rings for no port yet: the daemon's copy of an eventfd.
    #[must_use]
    pub fn kick(&self, event: OwnedFd, closer: &Closer, slow: Arc<SlowCalls>) -> Kick {
        self.kick_by(Arc::new(event), closer, slow)
    }

    fn kick_by(&self, event: Arc<OwnedFd>, closer: &Closer, slow: Arc<SlowCalls>) -> Kick {
        let (epoll, closer) = (self.epoll.clone(), closer.clone());
        Kick { event: Some(event), epoll, is_added: false, closer, slow }
    }
}

/// The worker's side of a port's kick. Any thread may drop it: the closer takes it out of the
/// worker's set, and closes it.
#[derive(Debug)]
pub struct Kick {
    /// There until this is dropped. The set knows the file by this copy, which the kicks of a port
    /// that is handed over share.
    event: Option<Arc<OwnedFd>>,
    epoll: Arc<OwnedFd>,
    /// The set has it, where it may ring for no port yet.
    is_added: bool,
    closer: Closer,
    slow: Arc<SlowCalls>,
}

impl Kick {
    fn event(&self) -> &OwnedFd {
        self.event.as_ref().expect("open until it is dropped")
    }

    /// From here on, a kick rings for `number`; so does one that has come before. If it is
    /// [prepared](prepare_kicks), this takes no lock of the client's.
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn connect(&self, number: u32) -> io::Result<()> {
        match self.is_added {
            true => modify(&self.epoll, self.event(), number.into(), EDGE),
            false => self.slow.time(|| add(&self.epoll, self.event(), number.into(), EDGE)),
        }
    }

    /// Has the time of calls that the client can make slow taken by `slow` from here on.
    pub fn time_by(&mut self, slow: SlowCalls) {
        self.slow = Arc::new(slow);
    }

    /// From here on, kicks ring no more.
    pub fn disconnect(&self) {
        mute(&self.epoll, self.event());
    }

    /// Another copy of the eventfd.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.event().try_clone()
    }

    /// The kick of the same port at another worker, by a copy of its own: the port may come back
    /// before this one is taken out of the set.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn at(&self, ringer: &Ringer) -> io::Result<Self> {
        Ok(ringer.kick(self.copy()?, &self.closer, self.slow.clone()))
    }

    /// The kick of the same port at another worker, by the same copy. Only one of them is kept.
    #[must_use]
    pub fn also_at(&self, ringer: &Ringer) -> Self {
        let event = self.event.clone().expect("open until it is dropped");
        ringer.kick_by(event, &self.closer, self.slow.clone())
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let (epoll, slow) = (self.epoll.clone(), self.slow.clone());
        self.closer.run(move || {
            // The eventfd is not there if it was never connected.
            let _ = at_leisure(&slow, || epoll::delete(&epoll, &event));
            drop((slow, epoll));
            drop(event);
        });
    }
}

/// Does a call that takes a lock of a client's, and takes the time. No worker does this: one that
/// has events waits meanwhile, so after a slow call the thread rests for ten times as long.
pub(super) fn at_leisure<R>(slow: &SlowCalls, call: impl FnOnce() -> R) -> R {
    const REST: u32 = 10;
    let begin = Instant::now();
    let timing = slow.begin();
    let outcome = call();
    if slow.end(&timing) {
        std::thread::sleep(begin.elapsed() * REST);
    }
    outcome
}

/// Puts the kicks of a port that another daemon has handed over, one for each worker, into the sets
/// of their workers, where they ring for no port yet. A client can make this slow. So a set that no
/// worker waits for gets the eventfd first, and it is refused if that takes long.
///
/// # Errors
/// This is no eventfd, or a slow one; no descriptors or memory left.
pub fn prepare_kicks(kicks: &mut [Kick]) -> io::Result<()> {
    if let Some(kick) = kicks.first() {
        // Versions up to November 2026 hand over an epoll set, and to watch that may take for ever.
        if !is_eventfd(kick.event()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timing = kick.slow.begin_closely();
        add(&set, kick.event(), NO_PORT, EDGE)?;
        if kick.slow.end(&timing) {
            return Err(io::Error::other("its client makes kicks slow"));
        }
    }
    for kick in kicks {
        add(&kick.epoll, kick.event(), NO_PORT, MUTE)?;
        kick.is_added = true;
    }
    Ok(())
}

/// Whether a descriptor is an eventfd. To watch or poll another kind of file could block.
pub(super) fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|path| path.as_os_str() == "anon_inode:[eventfd]")
}

fn mute(set: &OwnedFd, fd: impl AsFd) {
    let gone = modify(set, fd, NO_PORT, MUTE);
    debug_assert!(gone.is_ok(), "nothing can fail but what is a bug");
}

const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
/// Errors are reported whatever a set asks for, so it stays edge-triggered.
const MUTE: epoll::EventFlags = epoll::EventFlags::ET;

/// Changes what a registration asks for, which takes no lock of those that have the file.
fn modify(set: &OwnedFd, fd: impl AsFd, data: u64, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::modify(set, fd, epoll::EventData::new_u64(data), flags)?)
}

fn add(set: &OwnedFd, fd: impl AsFd, data: u64, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(data), flags)?)
}

/// An eventfd for a client.
///
/// # Errors
/// No descriptors left.
pub fn new_event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds one to the counter of an eventfd that no other process holds; a full one has rung.
fn write_or_skip(fd: &OwnedFd) {
    while rustix::io::write(fd, &1_u64.to_ne_bytes()) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::aio::Signals;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn rung(bell: &Doorbell) -> Vec<u32> {
        let mut rung = Vec::new();
        bell.poll(&mut rung);
        rung
    }

    /// A kick at a doorbell, and its client's end.
    fn kick_at(bell: &Doorbell, closer: &Closer) -> (Kick, OwnedFd) {
        let event = new_event().expect("descriptors");
        let (ours, slow) = (event.try_clone().expect("descriptors"), SlowCalls::unreported());
        (bell.ringer().kick(ours, closer, Arc::new(slow)), event)
    }

    fn kick(bell: &Doorbell) -> (Kick, OwnedFd) {
        kick_at(bell, &Closer::in_place())
    }

    #[test]
    fn each_kick_rings_once_for_its_port_and_the_eventfd_is_never_read() {
        let bell = Doorbell::new().expect("descriptors");
        let made = [5, 9].map(|number| {
            let (kick, event) = kick(&bell);
            kick.connect(number).expect("memory");
            (kick, event)
        });
        for _ in 0..3 {
            (0..10).for_each(|_| write_or_skip(&made[1].1));
            assert_eq!((rung(&bell), rung(&bell)), (vec![9], vec![]));
        }
        write_or_skip(&made[0].1);
        let mut numbers = Vec::new();
        bell.wait(&mut numbers, None);
        assert_eq!(numbers, [5]);
        made[1].0.disconnect();
        write_or_skip(&made[1].1);
        assert!(rung(&bell).is_empty());
    }

    #[test]
    fn a_kick_that_comes_before_its_port_is_found_then() {
        let bell = Doorbell::new().expect("descriptors");
        let (kick, event) = kick(&bell);
        write_or_skip(&event);
        assert!(rung(&bell).is_empty(), "no port has it");
        kick.connect(7).expect("memory");
        assert_eq!(rung(&bell), [7]);
    }

    #[test]
    fn a_kick_moves_to_another_doorbell_and_back_and_none_is_lost() {
        let bells = [0, 1].map(|_| Doorbell::new().expect("descriptors"));
        let [old, new] = &bells;
        let (kick, event) = kick(old);
        kick.connect(5).expect("memory");
        let moved = kick.at(&new.ringer()).expect("descriptors");
        write_or_skip(&event);
        assert_eq!((rung(old), rung(new)), (vec![5], vec![]));
        moved.connect(9).expect("memory");
        assert_eq!(rung(new), [9], "one that has come before");
        kick.disconnect();
        let back = moved.at(&old.ringer()).expect("descriptors");
        back.connect(6).expect("the one before is another copy");
        assert_eq!(rung(old), [6]);
        moved.disconnect();
        drop((kick, moved));
        write_or_skip(&event);
        assert_eq!((rung(old), rung(new)), (vec![6], vec![]));
    }

    #[test]
    fn a_kick_that_was_dropped_is_in_no_set_when_it_is_closed() {
        let bell = Doorbell::new().expect("descriptors");
        let (later, chores) = std::sync::mpsc::channel();
        let closer = Closer::new(move |closing| later.send(closing).expect("listening"));
        let (kick, event) = kick_at(&bell, &closer);
        kick.connect(5).expect("memory");
        let fd = kick.event().as_raw_fd();
        kick.disconnect();
        drop(kick);
        let watched = || watched(&bell).contains(&fd);
        write_or_skip(&event);
        assert!(watched() && rung(&bell).is_empty(), "it rings no more");
        chores.recv().expect("one")();
        assert!(!watched());
    }

    /// The descriptors that a doorbell's set has.
    fn watched(bell: &Doorbell) -> Vec<i32> {
        let path = format!("/proc/self/fdinfo/{}", bell.epoll.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("ours");
        let fd = |line: &str| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok();
        text.lines().filter_map(fd).collect()
    }

    #[test]
    fn a_kick_that_is_handed_over_is_in_all_sets_before_and_rings_at_one_for_its_port() {
        let bells = [0, 1].map(|_| Doorbell::new().expect("descriptors"));
        let (first, event) = kick(&bells[0]);
        write_or_skip(&event);
        let second = first.also_at(&bells[1].ringer());
        let mut kicks = vec![first, second];
        let before = [0, 1].map(|at| watched(&bells[at]).len());
        prepare_kicks(&mut kicks).expect("an eventfd");
        for at in [0, 1] {
            assert_eq!(watched(&bells[at]).len(), before[at] + 1);
            write_or_skip(&event);
            assert!(rung(&bells[at]).is_empty(), "for no port");
        }
        let kick = kicks.swap_remove(1);
        kick.connect(7).expect("nothing is added");
        assert_eq!(watched(&bells[1]).len(), before[1] + 1);
        assert_eq!(rung(&bells[1]), [7], "one that has come before");
        write_or_skip(&event);
        assert_eq!((rung(&bells[0]), rung(&bells[1])), (vec![], vec![7]));
        drop(kicks);
        assert_eq!(watched(&bells[0]).len(), before[0], "the worker that has the port is another");
    }

    #[test]
    fn what_is_handed_over_and_is_no_eventfd_or_a_slow_one_is_in_no_workers_set() {
        let bell = Doorbell::new().expect("descriptors");
        let before = watched(&bell);
        let (read, _write) = pipe_with(PipeFlags::CLOEXEC).expect("descriptors");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors");
        let others = [read, set].map(|fd| (fd, SlowCalls::unreported()));
        let slow = (new_event().expect("descriptors"), SlowCalls::all_slow());
        for (fd, slow) in others.into_iter().chain([slow]) {
            let mut kicks = [bell.ringer().kick(fd, &Closer::in_place(), Arc::new(slow))];
            assert!(prepare_kicks(&mut kicks).is_err());
            assert_eq!(watched(&bell), before);
        }
    }

    /// Asynchronous I/O fills a counter further than a write does, which is an error to all that
    /// wait for it.
    #[test]
    fn an_eventfd_with_an_error_wakes_nobody_when_its_port_is_gone() {
        let bell = Doorbell::new().expect("descriptors");
        let (kick, event) = kick(&bell);
        kick.connect(5).expect("memory");
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("room");
        let Ok(signals) = Signals::new() else { return };
        signals.give(&event).expect("asynchronous I/O");
        assert_eq!((rung(&bell), rung(&bell)), (vec![5], vec![]));
        kick.disconnect();
        bell.wait(&mut Vec::new(), Some(Duration::ZERO));
        assert!(!bell.wait(&mut Vec::new(), Some(Duration::ZERO)));
    }

    #[test]
    fn the_daemon_rings_for_no_port() {
        let bell = Doorbell::new().expect("descriptors");
        bell.ringer().ring();
        let mut numbers = Vec::new();
        bell.wait(&mut numbers, None);
        assert_eq!((numbers, rung(&bell)), (vec![], vec![]));
    }

    #[test]
    fn what_is_watched_is_ready_as_long_as_it_is_readable() {
        let bell = Doorbell::new().expect("descriptors");
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("descriptors");
        let (again, more) = pipe_with(PipeFlags::CLOEXEC).expect("descriptors");
        let both = [&read, &again];
        assert!(bell.bell(5).watch_all(both) && !bell.bell(6).watch_all(None::<&OwnedFd>));
        assert!(rung(&bell).is_empty());
        for end in [write, more] {
            rustix::io::write(&end, b"x").expect("room");
        }
        assert_eq!((rung(&bell), rung(&bell)), (vec![5, 5], vec![5, 5]));
        bell.bell(5).unwatch_all(both);
        assert!(rung(&bell).is_empty());
    }

    /// The counter is as full as it gets, and writing waits: as a hostile client leaves it.
    #[test]
    fn a_full_eventfd_made_blocking_rings_no_more_and_holds_nobody_up() {
        let bell = Doorbell::new().expect("descriptors");
        let (kick, event) = kick(&bell);
        kick.connect(7).expect("memory");
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("room");
        rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::empty()).expect("ours");
        assert_eq!((rung(&bell), rung(&bell)), (vec![7], vec![]));
        kick.disconnect();
    }
}
