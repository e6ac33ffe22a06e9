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
//! An interface is opened and set up by a thread of its own ([`netlink`]); the control thread hands
//! the worker the adapter. Both know the [`Link`]: the control thread says there what netlink says;
//! the worker says that the interface is gone, and, of one in another namespace, whether it takes
//! frames. Whoever changes the state rings the bell, and the control thread logs it.
//!
//! Frames come and go behind a virtio-net header, which says what is left to do to them: what one
//! stack of the host leaves to its network card, another takes as it is ([`switch::offload`]).

pub mod namespace;
pub mod netlink;
pub mod packet;
pub mod stack;
mod strangers;
pub mod tap;
pub mod xdp;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rustix::event::epoll;
use rustix::io::Errno;
use switch::offload::{VNET_LEN, Vnet};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Sent, Wake};

use crate::group::Share;
use crate::sys::Waker;
use crate::sys::packet::is_interface;
use namespace::Home;
use netlink::{Interface, Netlink};

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
    to.extend(left.map_or([0; VNET_LEN], Vnet::bytes));
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

/// What was changed for a port, and is put back when this is dropped, unless the port is made.
pub trait Undo: Send {
    /// The port is made: it stays changed.
    ///
    /// # Errors
    /// Whose task that was has put it back already.
    fn keep(&mut self) -> io::Result<()>;
}

/// Is it one interface? Of one that was handed over from elsewhere we know its name and its address
/// only.
#[must_use]
pub fn is_same(one: (Home, &Interface), other: (Home, &Interface)) -> bool {
    let by = |(_, interface): (_, &Interface)| (interface.name.clone(), interface.mac);
    match (one.0.number(), other.0.number()) {
        (Some(here), Some(there)) => here == there && one.1.index == other.1.index,
        _ => by(one) == by(other),
    }
}

/// Why an interface cannot be a port. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Not the name of an interface.
    #[error(
        "{0:?} is no name of an interface: 1 to 15 letters, without '/', ':', '%' and spaces; \
         choose such an ifname"
    )]
    Name(String),
    /// There is none of that name.
    #[error("no interface {0}; see: ip link")]
    Missing(String),
    /// There is one, and it is no TAP.
    #[error("interface {0} exists and is no TAP; choose another ifname, or --kind packet")]
    NotTap(String),
    /// It has packets and no frames.
    #[error(
        "interface {0} is a TUN, which carries no Ethernet frames; choose another ifname, or make \
         it with: ip tuntap add dev {0} mode tap"
    )]
    IsTun(String),
    /// There is one already where it should go.
    #[error("there is an interface {0} in {1} already; choose another ifname, or delete it")]
    Taken(String, String),
    /// Another program has the TAP open.
    #[error("interface {0} is in use by another program; end that, or choose another ifname")]
    Busy(String),
    /// It is a port of the switch already.
    #[error(
        "interface {0} is port {1} of this switch already, and a second one would double its \
         frames or send them in circles; use that, or delete it first: uvala port del {1}"
    )]
    Twin(String, String),
    /// The host has it beside its own side.
    #[error(
        "the host's side of interface {0} and port {1} of this switch would give the host each \
         frame twice; give one of them up, or add the packet port with --alone"
    )]
    Beside(String, String),
    /// A TAP that was made with one queue.
    #[error(
        "interface {0} was made with one queue; leave --queues out, or make it with: \
         ip tuntap add dev {0} mode tap multi_queue"
    )]
    OneQueue(String),
    /// Not so many queues.
    #[error("a TAP has 1 to {0} queues; choose --queues so")]
    TapQueues(u16),
    /// What was handed over is something else.
    #[error("what was handed over is no open TAP: it takes /dev/net/tun after TUNSETIFF")]
    NotGivenTap,
    /// It is several.
    #[error("the descriptors that were handed over are of different TAPs; give each its own port")]
    GivenTaps,
    /// It was opened in another way.
    #[error(
        "{0} was handed over with other flags than it takes: open it with IFF_TAP (not IFF_TUN), \
         IFF_NO_PI and IFF_VNET_HDR"
    )]
    GivenOtherwise(String),
    /// Nothing came with the call.
    #[error("no descriptor of TAP {0} came with the call; add the port again, with --fd")]
    NotGiven(String),
    /// A loopback, a tunnel.
    #[error("interface {0} carries no Ethernet frames")]
    NotEthernet(String),
    /// No right to make or open a TAP.
    #[error(
        "no permission to {0}; give the daemon CAP_NET_ADMIN or a helper (docs/host.md), or make \
         the TAP for its user: ip tuntap add dev {1} mode tap user {2}"
    )]
    MayNotTap(&'static str, String, String),
    /// No right to the device of all TAPs.
    #[error(
        "no permission for /dev/net/tun; chmod 666 /dev/net/tun (it takes CAP_NET_ADMIN besides), \
         or, in a unit of systemd, DeviceAllow=/dev/net/tun rw"
    )]
    MayNotTun,
    /// No right to open a packet socket.
    #[error(
        "no permission to open packet sockets; give the daemon CAP_NET_RAW or a helper \
         (docs/host.md)"
    )]
    MayNotPacket,
    /// No right to set an interface up.
    #[error("no permission to {0} of {1}; give the daemon CAP_NET_ADMIN, or do it with: ip link")]
    MayNotChange(&'static str, String),
    /// Whoever is on the switch could change the host's routes.
    #[error(
        "the host would take routes from whoever is at the other end of {0} ({1}); let {0}'s maker \
         write /proc/sys/net, or set: sysctl net.ipv6.conf.default.accept_ra=0 (and \
         accept_redirects, autoconf)"
    )]
    Believes(String, io::Error),
    /// No right to enter a namespace.
    #[error(
        "no permission to enter network namespace {0}; give the daemon CAP_SYS_ADMIN and \
         CAP_NET_ADMIN, and CAP_SYS_PTRACE for one of a process (the helper opens nothing there), \
         or hand over an open TAP: --fd (docs/host.md)"
    )]
    MayNotEnter(String),
    /// No right to put programs in front of the stack.
    #[error(
        "no permission to cut the host off from {0}; give the daemon CAP_BPF and CAP_NET_ADMIN \
         (uvala-helper does not do it)"
    )]
    MayNotCut(String),
    /// The kernel cannot.
    #[error("the host cannot be cut off from {0}: that takes Linux 6.6 with BPF")]
    CannotCut(String),
    /// No right to AF_XDP sockets.
    #[error(
        "no permission to open AF_XDP sockets on {0}; give the daemon CAP_NET_RAW, CAP_NET_ADMIN \
         and CAP_BPF or a helper (docs/host.md), or choose --kind packet"
    )]
    MayNotXdp(String),
    /// The kernel has no AF_XDP.
    #[error("interface {0}: this kernel has no AF_XDP; choose --kind packet")]
    NoXdp(String),
    /// Somebody else's program stands there.
    #[error(
        "another XDP program is on interface {0}; end who has put it there (bpftool net), or, if \
         nobody holds it, take it off: ip link set {0} xdp off"
    )]
    ProgramTaken(String),
    /// Somebody else's socket has the queue.
    #[error("queue {1} of interface {0} is in use by another AF_XDP socket; end its program")]
    QueueTaken(String, u32),
    /// Not so many queues.
    #[error(
        "interface {0} has {1} queues, numbered from 0; choose --queues among them, or leave it out"
    )]
    Queues(String, u32),
    /// More memory than may be locked.
    #[error(
        "interface {0}: the daemon may not lock so much memory; raise LimitMEMLOCK in its unit \
         (ulimit -l), or choose fewer --queues"
    )]
    Locked(String),
    /// The same, of a trust group's.
    #[error(
        "interface {0}: the daemon may not lock the {2} MiB of trust group {1}'s memory that it is \
         to receive into; raise LimitMEMLOCK in its unit (ulimit -l), or leave --trust-group out"
    )]
    GroupLocked(String, String, usize),
    /// The helper has waited long enough.
    #[error(
        "interface {0} is as it was before, because the helper waited too long for its port; \
         add it again"
    )]
    PutBack(String),
    /// The helper was asked, and did not do it.
    #[error("{0}")]
    Helper(String),
    /// There is none of that name.
    #[error(
        "no network namespace {0}; make one of that name: ip netns add {0}, or name another one, \
         or a process in it, or its path"
    )]
    NoNamespace(String),
    /// No such process.
    #[error(
        "no network namespace of a process {0}: there is no such process, or it has ended; see: ps"
    )]
    NoProcess(String),
    /// No such file, or another one.
    #[error("no network namespace at {0}; those of ip netns are in /run/netns")]
    NoNamespaceAt(String),
    /// The system has no TAPs.
    #[error("no /dev/net/tun; load the kernel's module: modprobe tun")]
    NoTun,
    /// The system has it switched off.
    #[error("interface {0} has no IPv6; see: sysctl net.ipv6.conf.all.disable_ipv6")]
    NoIpv6(String),
    /// An MTU that the interface does not take.
    #[error("interface {0} takes no MTU of {1}; {2}")]
    Mtu(String, u32, &'static str),
    /// Something else.
    #[error("{doing} {name}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// With which interface.
        name: String,
        /// What the system said.
        error: io::Error,
    },
}

/// Checks what may be the name of an interface.
///
/// # Errors
/// If it may not.
pub fn check_name(name: &str) -> Result<(), HostError> {
    let bad = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
    let good = (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.contains(bad);
    if good { Ok(()) } else { Err(HostError::Name(name.to_owned())) }
}

/// Is there an interface of this name in our namespace? Whoever changes one meanwhile is not waited
/// for, so that also those may ask who have no time.
#[must_use]
pub fn exists(name: &str) -> bool {
    check_name(name).is_ok()
        && match is_interface(name) {
            Ok(()) => true,
            Err(Errno::NODEV) => false,
            // Before Linux 5.7 that takes a right.
            Err(_) => find(name).is_ok(),
        }
}

/// The interface of this name in our namespace.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn find(name: &str) -> Result<Interface, HostError> {
    check_name(name)?;
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let found = netlink.find(name).map_err(system("look up", name))?;
    found.ok_or_else(|| HostError::Missing(name.to_owned()))
}

/// The interface of this name, here or in a namespace, and where that is.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn look(name: &str, namespace: Option<&str>) -> Result<(Home, Interface), HostError> {
    let target = namespace.map(namespace::open).transpose()?;
    let found = namespace::within(namespace.zip(target.as_ref()), || find(name))?;
    Ok((Home::of(target.as_ref()), found))
}

/// Why a program cannot be attached.
fn refused(name: &str, errno: Errno) -> HostError {
    match errno {
        Errno::PERM | Errno::ACCESS => HostError::MayNotCut(name.to_owned()),
        Errno::INVAL | Errno::NOSYS => HostError::CannotCut(name.to_owned()),
        errno => system("attach programs to", name)(errno.into()),
    }
}

impl HostError {
    /// Whether it is a right that is missing, which somebody else may have. To who is locked up the
    /// kernel says that there is no such thing.
    #[must_use]
    pub fn is_right(&self) -> bool {
        use HostError::{MayNotPacket, MayNotTap, MayNotTun, MayNotXdp, NoTun, NoXdp};
        let is_tap = matches!(self, MayNotTap(..) | MayNotTun | NoTun);
        is_tap || matches!(self, MayNotPacket | MayNotXdp(_) | NoXdp(_))
    }

    /// Whether it may pass by itself, without anything that netlink would tell: another program has
    /// what we want, or a namespace is to be made yet.
    #[must_use]
    pub fn passes(&self) -> bool {
        use HostError::{Beside, Busy, NoNamespace, ProgramTaken, PutBack, QueueTaken, Twin};
        matches!(self, Busy(_) | ProgramTaken(_) | QueueTaken(..) | NoNamespace(_))
            || matches!(self, Twin(..) | Beside(..) | PutBack(_))
    }
}

fn system(doing: &'static str, name: &str) -> impl Fn(io::Error) -> HostError {
    let name = name.to_owned();
    move |error| HostError::System { doing, name: name.clone(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for good in ["eth0", "tap-1.2", "ä", "a23456789012345"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "tap%d", "a234567890123456", "a\n"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_exists_is_told_from_what_does_not() {
        assert!(exists("lo"));
        for none in ["no-such-link", "", "lo/", "lo\0"] {
            assert!(!exists(none), "{none:?}");
        }
    }

    #[test]
    fn an_interface_is_known_by_its_number_where_that_can_be_had() {
        let with =
            |index, name: &str| Interface { index, name: name.into(), ..Interface::default() };
        let (a, b) = (with(7, "a"), with(7, "b"));
        assert!(is_same((Home::Ours, &a), (Home::Ours, &b)), "it was renamed");
        assert!(!is_same((Home::Ours, &a), (Home::Other(1), &a)));
        let ours = Home::Other(namespace::own().expect("/proc"));
        assert!(is_same((Home::Ours, &a), (ours, &a)), "named by a process of ours");
        assert!(!is_same((Home::Ours, &a), (ours, &with(8, "a"))));
        assert!(is_same((Home::Unknown, &with(0, "a")), (Home::Other(1), &a)));
        let other = Interface { mac: [2; 6], ..with(0, "a") };
        assert!(!is_same((Home::Unknown, &other), (Home::Unknown, &a)));
    }

    #[test]
    fn what_a_sandbox_hides_somebody_else_may_have() {
        let eth1 = || "eth1".to_owned();
        assert!(HostError::NoTun.is_right() && HostError::NoXdp(eth1()).is_right());
        assert!(!HostError::Missing(eth1()).is_right() && !HostError::Busy(eth1()).is_right());
    }

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
