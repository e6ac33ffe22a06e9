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
//! A thread of the daemon or the helper opens an interface ([`hostif`]), and the control thread
//! hands the adapter to the worker. Both sides share the [`Link`]: the control thread records in it
//! what netlink reports; the worker records that the interface is gone and, for one in another
//! namespace, whether it takes frames. A change of state rings the bell, and the control thread
//! logs it.
//!
//! A virtio-net header precedes each frame. So a partial checksum or an unsegmented frame that one
//! stack leaves to its network card goes to another stack as it is (`packet::offload`).

pub mod packet;
pub mod stack;
pub mod tap;
pub mod xdp;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ::packet::offload::{PendingOffload, VNET_LEN};
use hostif::namespace::Home;
use hostif::netlink::Interface;
use hostif::tap::TapSpec;
use hostif::xdp::XdpSpec;
use hostif::{HostError, Undo};
use protocol::{HostIf, PortKind, Queues};
use rustix::io::Errno;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Notify, Sent};

use crate::group::Share;
use crate::sys::{ClosedElsewhere, Waker};

/// The queues of a TAP. Who closes the last descriptor of one that a client has, too, may have to
/// wait for it.
pub type TapQueues = ClosedElsewhere<Vec<OwnedFd>>;

/// The length of Ethernet header and VLAN tag, which the MTU does not include.
const HEADERS: u32 = 14 + 4;

/// What a port's interface is opened with, beside what the request says of it.
pub struct OpenWith<'a> {
    /// The doorbell that a change of the interface's state rings.
    pub bell: &'a Arc<Waker>,
    /// The port's share of its trust group's buffers.
    pub share: Option<&'a Arc<Share>>,
    /// Whether the interface must exist: a TAP is then opened, and never created.
    pub existing: bool,
}

/// Opens the interface of a port with the privileges of this process: one arm for each kind.
///
/// # Errors
/// The interface does not exist, is in use, or this process lacks a privilege.
///
/// # Panics
/// If ports of this kind have no interface.
pub fn open(kind: PortKind, wanted: &HostIf, with: &OpenWith<'_>) -> Result<Opened, HostError> {
    let name = wanted.ifname.clone().unwrap_or_default();
    let (namespace, bell) = (wanted.netns.clone(), with.bell);
    match kind {
        PortKind::Packet => packet::open(&name, namespace.as_deref(), wanted.alone, bell),
        PortKind::Stack => stack::open(&name, namespace.as_deref(), bell),
        PortKind::Xdp => {
            let filter = wanted.filter.clone().unwrap_or_default();
            let queues = wanted.queues.as_ref().map(Queues::numbers);
            xdp::open(&XdpSpec { name, namespace, queues, filter }, bell, with.share.cloned())
        }
        PortKind::Tap => {
            let spec = TapSpec {
                name,
                namespace,
                mtu: wanted.mtu,
                mac: wanted.mac,
                address: wanted.address.map(|address| (address.ip, address.prefix)),
                queues: wanted.queues.as_ref().and_then(Queues::count),
                existing: with.existing,
                strict: false,
            };
            tap::open(&spec, bell)
        }
        other => unreachable!("ports of kind {} have no interface", other.name()),
    }
}

/// Whether an interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The interface carries frames.
    Up,
    /// The interface exists and carries no frames.
    Down,
    /// The interface was deleted.
    Gone,
}

impl State {
    /// The state of an interface that exists.
    #[must_use]
    pub fn of(interface: &Interface) -> Self {
        if interface.running { Self::Up } else { Self::Down }
    }
}

/// The state of an interface, shared by worker and control thread.
#[derive(Debug)]
pub struct Link {
    state: AtomicU8,
    mtu: AtomicU32,
    /// The interface is in another namespace, of which netlink reports no changes.
    foreign: bool,
    bell: Arc<Waker>,
    /// The way in which frames are read and written, where the kernel offers several.
    how: OnceLock<String>,
    /// The share of a trust group's buffers.
    share: OnceLock<Weak<Share>>,
    /// The descriptors of a TAP, which another process may keep when this one ends.
    queues: OnceLock<Weak<TapQueues>>,
}

impl Link {
    /// The link of an interface that exists, here or in another namespace. A change of state rings
    /// `bell`.
    #[must_use]
    pub fn new(interface: &Interface, foreign: bool, bell: &Arc<Waker>) -> Arc<Self> {
        let state = AtomicU8::new(State::of(interface) as u8);
        let mtu = AtomicU32::new(interface.mtu);
        let (bell, how, share) = (bell.clone(), OnceLock::new(), OnceLock::new());
        Arc::new(Self { state, mtu, foreign, bell, how, share, queues: OnceLock::new() })
    }

    /// The state of the interface.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Up,
            1 => State::Down,
            _ => State::Gone,
        }
    }

    /// Records a state. A deleted interface stays deleted: a new one has a new link.
    pub fn note(&self, state: State) {
        let old = self.state();
        if old != state && old != State::Gone {
            self.state.store(state as u8, Ordering::Relaxed);
            self.bell.wake();
        }
    }

    /// Records what a worker has observed. For interfaces of the daemon's namespace, netlink
    /// reports up and down, in the right order.
    fn seen(&self, state: State) {
        if self.foreign || state == State::Gone {
            self.note(state);
        }
    }

    /// The way in which frames are read and written, where the kernel offers several.
    #[must_use]
    pub fn how(&self) -> Option<&str> {
        self.how.get().map(String::as_str)
    }

    /// The share of a trust group's buffers, if frames are in the group's memory.
    #[must_use]
    pub fn share(&self) -> Option<Arc<Share>> {
        self.share.get().and_then(Weak::upgrade)
    }

    /// The descriptors of the port's own TAP, as long as it is open.
    #[must_use]
    pub fn queues(&self) -> Option<&Weak<TapQueues>> {
        self.queues.get()
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

    /// Whether the interface takes a frame of this length; a Linux bridge has the same rule. In
    /// another namespace the MTU may be another one by now: there the kernel decides.
    fn takes(&self, bytes: usize) -> bool {
        self.foreign || bytes <= (self.mtu() + HEADERS) as usize
    }

    /// The drop reason for a frame that the interface refused.
    fn refused(&self, errno: Errno) -> DropReason {
        match errno {
            Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM => DropReason::NoRoom,
            Errno::MSGSIZE => DropReason::TooLong,
            // A VM has truncated the memory that the frame is in; the interface is fine.
            Errno::FAULT => DropReason::BadIndex,
            _ => {
                self.seen(State::Down);
                DropReason::LinkDown
            }
        }
    }
}

/// Appends a frame behind its virtio-net header, padded to `header` bytes.
fn write_out(
    batch: &Batch,
    delivery: Delivery,
    header: usize,
    link: &Link,
    to: &mut Vec<u8>,
) -> Result<(), DropReason> {
    let offload = batch.offload(delivery);
    to.extend(offload.map_or([0; VNET_LEN], PendingOffload::bytes));
    to.resize(to.len() - VNET_LEN + header, 0);
    let start = to.len();
    batch.append(delivery, to);
    let bytes = to.len() - start;
    if link.takes(offload.map_or(bytes, |offload| offload.longest(bytes))) {
        return Ok(());
    }
    to.truncate(start - header);
    Err(DropReason::TooLong)
}

/// Stands for an interface that does not exist.
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

/// A doorbell for links whose state changes: the end that the control thread reads, and the end
/// that links ring.
///
/// # Errors
/// No descriptors left.
pub fn bell() -> io::Result<(OwnedFd, Arc<Waker>)> {
    let (read, waker) = Waker::of_daemon()?;
    let flags = rustix::fs::fcntl_getfl(&read)?;
    rustix::fs::fcntl_setfl(&read, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok((read, Arc::new(waker)))
}

/// An opened interface.
pub struct Opened {
    /// The adapter, for the worker.
    pub adapter: Box<dyn Adapter>,
    /// The link that worker and control thread share.
    pub link: Arc<Link>,
    /// The last description by the kernel.
    pub interface: Interface,
    /// The namespace of the interface.
    pub home: Home,
    /// Reverts the changes to the interface. The last field, so that all else is closed first.
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
        assert!(link.takes(1519), "of its MTU no more than the first value is known");
        let ours = Link::new(&interface, false, &bell);
        assert!(ours.takes(1518) && !ours.takes(1519));
        ours.seen(State::Down);
        assert_eq!(ours.state(), State::Up, "netlink says that");
    }
}
