//! A worker's doorbell: what wakes it.
//!
//! Each port whose client kicks has an eventfd, which no thread of the daemon reads, and an epoll
//! set of its own with that eventfd in it. The worker's set holds the ports' sets:
//!
//! ```text
//!   client ── write ──► eventfd ◄── port's epoll set ◄── worker's epoll set ◄── epoll_wait
//!             (shared, hostile)      (ours)               (ours)
//! ```
//!
//! Everything is edge-triggered, so a report is all that has to be done about a kick. A client can
//! fill, read and lock its eventfd, change its mode, and register it in any number of other epoll
//! sets. What that makes slow is to add the eventfd to a set and to take it out, and to write it;
//! the worker does none of that. It takes the port's set out of its own, whose wait queue no other
//! process knows, and the reclaimer closes the port's set.
//!
//! To put one epoll set into another takes a mutex of the whole system, which other processes can
//! hold for long. So a builder does that, while the port is being made, or before it moves to
//! another worker. Until it has moved, the port's set is in the sets of two workers.

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// The data of the daemon's own kicks, and of ports that are not plugged in yet.
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
        match add(&self.epoll, &fd, self.number.into(), epoll::EventFlags::IN) {
            // It is prepared.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let data = epoll::EventData::new_u64(self.number.into());
                Ok(epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN)?)
            }
            done => done,
        }
    }

    /// Ends a watch.
    pub fn unwatch(&self, fd: impl AsFd) {
        // The call fails if the descriptor is not watched any more.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Watches all descriptors of a port, or none; whether it has any that are watched.
    pub fn watch_all<T: AsFd>(&self, all: impl IntoIterator<Item = T> + Clone) -> bool {
        match all.clone().into_iter().try_for_each(|fd| self.watch(fd)) {
            Ok(()) => all.into_iter().next().is_some(),
            Err(error) => {
                tracing::error!("cannot watch an interface, so its port receives nothing: {error}");
                self.unwatch_all(all);
                false
            }
        }
    }

    /// Ends all watches of a port.
    pub fn unwatch_all<T: AsFd>(&self, all: impl IntoIterator<Item = T>) {
        all.into_iter().for_each(|fd| self.unwatch(fd));
    }
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

    /// A port's kick, which rings for no port yet.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn kick(&self) -> io::Result<(Kick, OwnedFd)> {
        let (set, event) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, new_event()?);
        add(&set, &event, NO_PORT, EDGE)?;
        add(&self.epoll, &set, NO_PORT, EDGE)?;
        Ok((Kick { set: PortSet(set.into()), epoll: self.epoll.clone() }, event))
    }

    /// Prepares a port's set to ring here, too. This may wait for other processes. The set rings
    /// for no port before [`Kick::connect`] or [`PortBell::watch`]; without either it stays
    /// prepared until it is closed.
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn prepare(&self, set: &PortSet) -> io::Result<()> {
        match add(&self.epoll, &set.0, NO_PORT, epoll::EventFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    /// A kick that has been [prepared](Self::prepare) to ring here.
    #[must_use]
    pub fn kick_of(&self, set: PortSet) -> Kick {
        Kick { set, epoll: self.epoll.clone() }
    }
}

/// An epoll set of a port, which rings for the workers in whose sets it is.
#[derive(Clone, Debug)]
pub struct PortSet(pub Arc<OwnedFd>);

/// The worker's side of a port's kick. A thread that may have to wait drops it.
#[derive(Debug)]
pub struct Kick {
    set: PortSet,
    epoll: Arc<OwnedFd>,
}

impl Kick {
    /// From here on, a kick rings for `number`; so does one that has come before.
    ///
    /// # Errors
    /// No memory, or the kick was not prepared to ring for this worker.
    pub fn connect(&self, number: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number.into());
        Ok(epoll::modify(&self.epoll, &self.set.0, data, EDGE)?)
    }

    /// What another worker needs to be rung instead.
    #[must_use]
    pub fn set(&self) -> PortSet {
        self.set.clone()
    }

    /// From here on, kicks ring no more.
    pub fn disconnect(&self) {
        // Nothing can fail but what is a bug.
        let gone = epoll::delete(&self.epoll, &self.set.0);
        debug_assert!(gone.is_ok());
    }
}

/// A kick and its client's end, made by one thread for another.
#[derive(Debug, Default)]
pub struct KickSlot(Mutex<Slot>);

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Unmade,
    Made(Kick, OwnedFd),
    Taken,
}

impl KickSlot {
    /// Makes the kick, unless that was done before.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn fill(&self, ringer: &Ringer) -> io::Result<()> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*slot, Slot::Unmade) {
            let (kick, event) = ringer.kick()?;
            *slot = Slot::Made(kick, event);
        }
        Ok(())
    }

    /// Takes the kick, once.
    #[must_use]
    pub fn take(&self) -> Option<(Kick, OwnedFd)> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Made(kick, event) => Some((kick, event)),
            Slot::Unmade | Slot::Taken => None,
        }
    }
}

const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

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
    use rustix::pipe::{PipeFlags, pipe_with};

    fn rung(bell: &Doorbell) -> Vec<u32> {
        let mut rung = Vec::new();
        bell.poll(&mut rung);
        rung
    }

    #[test]
    fn each_kick_rings_once_for_its_port_and_the_eventfd_is_never_read() {
        let bell = Doorbell::new().expect("descriptors");
        let made = [5, 9].map(|number| {
            let (kick, event) = bell.ringer().kick().expect("descriptors");
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
        let (kick, event) = bell.ringer().kick().expect("descriptors");
        write_or_skip(&event);
        assert!(rung(&bell).is_empty(), "no port has it");
        write_or_skip(&event);
        kick.connect(7).expect("memory");
        assert_eq!(rung(&bell), [7]);
    }

    #[test]
    fn a_kick_moves_to_another_doorbell_and_none_is_lost() {
        let bells = [0, 1].map(|_| Doorbell::new().expect("descriptors"));
        let [old, new] = &bells;
        let (kick, event) = old.ringer().kick().expect("descriptors");
        kick.connect(5).expect("memory");
        let moved = new.ringer().kick_of(kick.set());
        assert!(moved.connect(9).is_err(), "it is not prepared");
        (0..2).for_each(|_| new.ringer().prepare(&kick.set()).expect("memory"));
        write_or_skip(&event);
        assert_eq!((rung(old), rung(new)), (vec![5], vec![]), "prepared only");
        write_or_skip(&event);
        moved.connect(9).expect("prepared");
        kick.disconnect();
        drop(kick);
        assert_eq!((rung(old), rung(new)), (vec![], vec![9]));
        write_or_skip(&event);
        assert_eq!(rung(new), [9]);
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
        let (kick, event) = bell.ringer().kick().expect("descriptors");
        kick.connect(7).expect("memory");
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("room");
        rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::empty()).expect("ours");
        assert_eq!((rung(&bell), rung(&bell)), (vec![7], vec![]));
        kick.disconnect();
    }
}
