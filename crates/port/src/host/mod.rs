//! Network interfaces of the host as ports.
//!
//! ```text
//!   control thread                         worker                        kernel
//!  ┌────────────────┐   adapter          ┌──────────┐  read, write      ┌───────────┐
//!  │ has it opened, │ ─────────────────► │ tap,     │ ◄───────────────► │ interface │
//!  │ hands it over  │                    │ packet   │  (watched)        └─────┬─────┘
//!  │                │ ◄───── Link ────── └──────────┘                         │
//!  │                │  state, MTU, bell                                       │
//!  │                │ ◄──────────────── netlink: comes, goes, up, down ───────┘
//!  └────────────────┘
//! ```
//!
//! An interface is opened and set up by a thread of its own ([`hostif`]); the control thread hands
//! the worker the adapter. Both know the [`Link`]: the control thread says there what netlink says;
//! the worker says that the interface is gone, and, of one in another namespace, whether it takes
//! frames. Whoever changes the state rings the bell, and the control thread logs it.
//!
//! Frames come and go behind a virtio-net header, which says what is left to do to them: what one
//! stack of the host leaves to its network card, another takes as it is ([`packet::offload`]).

pub mod packet;
pub mod stack;
pub mod tap;
pub mod xdp;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ::packet::offload::{PendingOffload, VNET_LEN};
use hostif::Undo;
use hostif::namespace::Home;
use hostif::netlink::Interface;
use rustix::event::epoll;
use rustix::io::Errno;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Notify, Sent, Wake};

use crate::group::Share;
use crate::sys::Waker;

/// Bytes of a frame that an Ethernet interface of MTU 0 takes: its header and a tag.
const HEADERS: u32 = 14 + 4;

/// Whether an interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It does.
    Up,
    /// It is there and does not.
    Down,
    /// There is no such interface any more.
    Gone,
}

impl State {
    /// The state of an interface that is there.
    #[must_use]
    pub fn of(interface: &Interface) -> Self {
        if interface.running { Self::Up } else { Self::Down }
    }
}

/// What worker and control thread know of an interface.
#[derive(Debug)]
pub struct Link {
    state: AtomicU8,
    mtu: AtomicU32,
    /// It lives in another namespace, of which netlink does not tell us.
    foreign: bool,
    bell: Arc<Waker>,
    /// How frames come and go, where the kernel could do it in several ways.
    how: OnceLock<String>,
    /// What it has of a trust group's buffers.
    share: OnceLock<Weak<Share>>,
}

impl Link {
    /// An interface that is there, here or in another namespace; `bell` is rung whenever its state
    /// changes.
    #[must_use]
    pub fn new(interface: &Interface, foreign: bool, bell: &Arc<Waker>) -> Arc<Self> {
        let state = AtomicU8::new(State::of(interface) as u8);
        let mtu = AtomicU32::new(interface.mtu);
        let (bell, how, share) = (bell.clone(), OnceLock::new(), OnceLock::new());
        Arc::new(Self { state, mtu, foreign, bell, how, share })
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Up,
            1 => State::Down,
            _ => State::Gone,
        }
    }

    /// Notes a state. What is gone stays gone: another interface has another link.
    pub fn note(&self, state: State) {
        let old = self.state();
        if old != state && old != State::Gone {
            self.state.store(state as u8, Ordering::Relaxed);
            self.bell.wake();
        }
    }

    /// Notes what a worker has seen. Whether an interface of our namespace is up or down, netlink
    /// says, and says it in the right order.
    fn seen(&self, state: State) {
        if self.foreign || state == State::Gone {
            self.note(state);
        }
    }

    /// How frames come and go, where the kernel could do it in several ways.
    #[must_use]
    pub fn how(&self) -> Option<&str> {
        self.how.get().map(String::as_str)
    }

    /// What it has of a trust group's buffers, if they are in its memory.
    #[must_use]
    pub fn share(&self) -> Option<Arc<Share>> {
        self.share.get().and_then(Weak::upgrade)
    }

    /// The MTU.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Notes an MTU.
    pub fn note_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Does the interface take a frame of this length? A bridge asks the same.
    fn takes(&self, bytes: usize) -> bool {
        bytes <= (self.mtu() + HEADERS) as usize
    }

    /// What became of a frame that the interface refused.
    fn refused(&self, errno: Errno) -> DropReason {
        match errno {
            Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM => DropReason::NoRoom,
            Errno::MSGSIZE => DropReason::TooLong,
            // A machine has taken the memory away that the frame lies in: of the interface this
            // says nothing.
            Errno::FAULT => DropReason::BadIndex,
            _ => {
                self.seen(State::Down);
                DropReason::LinkDown
            }
        }
    }
}

/// Writes a frame out for an interface, behind a header of so many bytes that says what is left to
/// do to it; returns the bytes of the frame.
fn write_out(
    batch: &Batch,
    delivery: Delivery,
    header: usize,
    link: &Link,
    to: &mut Vec<u8>,
) -> Result<usize, DropReason> {
    let left = batch.left(delivery);
    to.extend(left.map_or([0; VNET_LEN], PendingOffload::bytes));
    to.resize(to.len() - VNET_LEN + header, 0);
    let start = to.len();
    batch.append(delivery, to);
    let bytes = to.len() - start;
    if link.takes(left.map_or(bytes, |left| left.longest(bytes))) {
        return Ok(bytes);
    }
    to.truncate(start - header);
    Err(DropReason::TooLong)
}

/// What becomes readable when one of these is.
fn watch_all<T: AsFd>(all: &[T]) -> Result<OwnedFd, Errno> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for one in all {
        epoll::add(&any, one, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

/// In the place of an interface that is not there.
#[derive(Debug)]
pub struct Absent;

impl Adapter for Absent {
    fn send(&mut self, _: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        sent.drops.add(DropReason::LinkDown, list.len() as u64);
        sent
    }
}

impl Notify for Absent {}

/// Rung by links whose state has changed: what the control thread reads, and what links ring.
///
/// # Errors
/// No descriptors left.
pub fn bell() -> io::Result<(OwnedFd, Arc<Waker>)> {
    let (read, waker) = Waker::new()?;
    let flags = rustix::fs::fcntl_getfl(&read)?;
    rustix::fs::fcntl_setfl(&read, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok((read, Arc::new(waker)))
}

/// An opened interface.
pub struct Opened {
    /// For the worker.
    pub adapter: Box<dyn Adapter>,
    /// What both know of it.
    pub link: Arc<Link>,
    /// As the kernel described it last.
    pub interface: Interface,
    /// Where that is.
    pub home: Home,
    /// What was changed for it. Goes last: when all else is closed.
    pub undo: Option<Box<dyn Undo>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_once_and_what_is_gone_stays_gone() {
        let (read, bell) = bell().expect("descriptors");
        let interface = Interface { mtu: 1500, running: true, ..Interface::default() };
        let link = Link::new(&interface, true, &bell);
        let rung = || rustix::io::read(&read, &mut [0u8; 8]).unwrap_or(0);
        link.note(State::Up);
        assert_eq!((link.state(), rung()), (State::Up, 0));
        assert_eq!(link.refused(Errno::FAULT), DropReason::BadIndex, "its sender's affair");
        assert_eq!((link.state(), rung()), (State::Up, 0));
        link.seen(State::Down);
        link.seen(State::Down);
        assert_eq!((link.state(), rung()), (State::Down, 1));
        link.note(State::Gone);
        link.note(State::Up);
        assert_eq!((link.state(), rung()), (State::Gone, 1));
        assert!(link.takes(1518) && !link.takes(1519));
        let ours = Link::new(&interface, false, &bell);
        ours.seen(State::Down);
        assert_eq!(ours.state(), State::Up, "netlink says that");
    }
}
