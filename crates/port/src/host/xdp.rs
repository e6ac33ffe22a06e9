//! Any Ethernet interface, by AF_XDP: its driver's queues are ours, the rest stays the kernel's.
//!
//! ```text
//!   driver ── program ──► socket of queue 0 ─┐                        ┌─► rings of the receiver
//!               │    └──► socket of queue 1 ─┴─► chunks of one pool ──┤
//!               └──► the host's stack: what the filter leaves         └─► …
//! ```
//!
//! A frame is received into a chunk of a pool that is a region's, and goes from there straight to
//! its receiver: one copy by us, and none by the kernel where the driver knows how. The chunk goes
//! back to its queue at the start of the next turn. What is sent is copied into a chunk, put into
//! the ring of the first queue (so that its order stays), and the kernel is told once for a turn.
//!
//! By a virtual interface, frames arrive whose checksum a stack has left to its card; they are
//! completed ([`switch::offload::begun`]). What is longer than the interface carries is a run of
//! segments of which nothing else is known: it is dropped and counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ring::kring::Frag;
use ring::put::FRAME_MAX;
use ring::umem::{Chunk, Umem, delivered};
use rustix::io::Errno;
use switch::batch::{Batch, Delivery};
use switch::offload::begun::Begun;
use switch::{Adapter, DropReason, Drops, Sent};

use super::netlink::Interface;
use super::tap::Opened;
use super::{HostError, Link, State, namespace, system};
use crate::sys::Waker;
use crate::sys::steer::{self, Filter, Steering};
use crate::sys::xdp::{self, Bound, Descriptor, HEADROOM, Place, SLOTS, Tags, XdpSocket};

/// Most queues of a port.
pub const QUEUES_MAX: u16 = 64;
/// Chunks to send from.
const SEND: u32 = 1024;
/// Bytes of a chunk: for frames of the usual length, and for others.
const SMALL: u32 = 2048;
const LARGE: u32 = 4096;
/// Pieces of a frame that the kernel takes.
const PIECES: usize = 18;
const ETHERNET: u32 = 14;
/// Frames of one turn: taking one costs little, and giving the core away much.
const TURN: u32 = 256;
/// Descriptors that one call sends at least, if there are so many.
const PER_KICK: u32 = 32;

/// What an interface is to be taken with.
#[derive(Clone, Debug, Default)]
pub struct XdpSpec {
    /// Its name.
    pub name: String,
    /// The namespace it is in.
    pub namespace: Option<String>,
    /// Which of its queues, in ascending order; all, if not said.
    pub queues: Option<Vec<u16>>,
    /// Which of its frames.
    pub filter: Filter,
}

/// What takes rights to have: all else is done without.
#[derive(Debug)]
pub struct Rights {
    /// A socket for each queue, not bound yet, with the number of the queue.
    pub sockets: Vec<(u16, OwnedFd)>,
    /// The program.
    pub steering: Steering,
    /// The interface.
    pub interface: Interface,
    /// What becomes of VLAN tags.
    pub tags: Tags,
}

/// Opens sockets on the queues of an interface that is there.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &XdpSpec, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let inside = spec.namespace.as_deref().zip(target.as_ref());
    let rights =
        namespace::within(inside, || rights(&spec.name, spec.queues.as_deref(), &spec.filter))?;
    open_with(rights, target.is_some(), bell)
}

/// Gets what takes rights: sockets, and a program in front of the driver.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn rights(name: &str, queues: Option<&[u16]>, filter: &Filter) -> Result<Rights, HostError> {
    let interface = super::find(name)?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let socket = || {
        xdp::open().map_err(|errno| match errno {
            Errno::PERM | Errno::ACCESS => HostError::MayNotXdp(name.to_owned()),
            Errno::AFNOSUPPORT => HostError::NoXdp(name.to_owned()),
            errno => system("open an AF_XDP socket on", name)(errno.into()),
        })
    };
    // The right is asked for first.
    let mut first = Some(socket()?);
    let there = xdp::queues(name);
    let all: Vec<u16> = (0..QUEUES_MAX).take(there as usize).collect();
    let wanted = queues.unwrap_or(&all);
    let Some(&highest) = wanted.last().filter(|queue| u32::from(**queue) < there) else {
        return Err(HostError::Queues(name.to_owned(), there));
    };
    let mut sockets = Vec::new();
    for &queue in wanted {
        sockets.push((queue, first.take().map_or_else(socket, Ok)?));
    }
    let steering = steer::attach(filter, u32::from(highest) + 1, interface.index);
    let steering = steering.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => HostError::MayNotXdp(name.to_owned()),
        Errno::BUSY | Errno::EXIST => HostError::ProgramTaken(name.to_owned()),
        Errno::NOSYS => HostError::NoXdp(name.to_owned()),
        errno => system("attach an XDP program to", name)(errno.into()),
    })?;
    Ok(Rights { sockets, steering, interface, tags: xdp::keep_tags(name) })
}

/// Makes a port of what was opened; `foreign`: in another namespace.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open_with(rights: Rights, foreign: bool, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let Rights { sockets, steering, interface, tags } = rights;
    let name = interface.name.clone();
    let link = Link::new(&interface, foreign, bell);
    let numbers: Vec<u16> = sockets.iter().map(|(number, _)| *number).collect();
    let count = u32::try_from(sockets.len()).expect("few");
    let size = if interface.mtu + super::HEADERS + HEADROOM > SMALL { LARGE } else { SMALL };
    let umem = Umem::new(size, count * SLOTS + SEND).map_err(system("memory for", &name))?;
    let mut chunks = umem.chunks();
    let mut all: Vec<Queue> = Vec::new();
    let mut bound = Bound { zero_copy: false, chains: false };
    for (number, socket) in sockets {
        let (queue, first) = (u32::from(number), all.first().map(Queue::as_fd));
        let place = Place { index: interface.index, queue, first, copies: !steering.native };
        let is_first = first.is_none();
        let (mut socket, how) = bind(socket, &umem, &place, &name)?;
        if is_first {
            bound = how;
        }
        let own = chunks.by_ref().take(SLOTS as usize);
        let own: Vec<u64> = own.map(|chunk| umem.address(chunk)).collect();
        socket.fill(own.into_iter());
        steer::enter(steering.map.as_fd(), queue, socket.as_fd())
            .map_err(|errno| system("steer frames of", &name)(errno.into()))?;
        all.push(Queue { socket, lent: Vec::with_capacity(SLOTS as usize) });
    }
    let watched = if all.len() > 1 { Some(super::watch_all(&all)) } else { None };
    let watched = watched.transpose().map_err(|errno| system("watch", &name)(errno.into()))?;
    let _ = link.how.set(describe(&numbers, steering.native, bound, tags));
    let adapter = Xdp {
        queues: all,
        next: 0,
        watched,
        free: chunks.collect(),
        umem,
        link: link.clone(),
        chains: bound.chains,
        repairs: !interface.driver.is_empty(),
        parts: Vec::with_capacity(PIECES),
        stalled: false,
        _steering: steering,
    };
    Ok(Opened { adapter: Box::new(adapter), link, interface })
}

/// Binds a socket. The kernel gives a queue back some time after its socket was closed.
fn bind(
    socket: OwnedFd,
    umem: &Umem,
    place: &Place<'_>,
    name: &str,
) -> Result<(XdpSocket, Bound), HostError> {
    const TRIES: u32 = 20;
    let why = |errno| match errno {
        Errno::BUSY => HostError::QueueTaken(name.to_owned(), place.queue),
        Errno::NOBUFS => HostError::Locked(name.to_owned()),
        Errno::NODEV => HostError::Missing(name.to_owned()),
        errno => system("bind an AF_XDP socket to", name)(errno.into()),
    };
    let socket = XdpSocket::new(socket, umem, place.first.is_none()).map_err(why)?;
    for _ in 0..TRIES {
        match socket.bind(place) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(10)),
            bound => return bound.map(|bound| (socket, bound)).map_err(why),
        }
    }
    Err(why(Errno::BUSY))
}

/// What `port show` and the log say.
fn describe(queues: &[u16], native: bool, bound: Bound, tags: Tags) -> String {
    let plural = if queues.len() == 1 { "queue" } else { "queues" };
    let all_from_0 = (0..).zip(queues).all(|(number, queue)| number == *queue);
    let which = match queues {
        _ if all_from_0 => String::new(),
        [first, .., last] if usize::from(last - first) + 1 == queues.len() => {
            format!(" ({first} to {last})")
        }
        some => format!(" ({})", some.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")),
    };
    let mode = if native { "in the driver" } else { "behind the driver (slower)" };
    let copies = if bound.zero_copy { "zero-copy" } else { "copied by the kernel" };
    let long = if bound.chains { "" } else { "; frames above 3840 bytes are lost" };
    let tags = match tags {
        Tags::Kept => "",
        Tags::KeptNow => "; rxvlan is off now, so that VLAN tags stay in frames",
        Tags::Lost => "; VLAN tags are lost: the card takes them out (rxvlan)",
    };
    format!("{} {plural}{which}, {mode}, {copies}{long}{tags}", queues.len())
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A queue of the interface.
struct Queue {
    socket: XdpSocket,
    /// Chunks whose frames are on their way to their receivers.
    lent: Vec<u64>,
}

/// A frame that has arrived: its descriptors, and what it is.
struct Arrived {
    descriptors: u32,
    frame: Result<u32, DropReason>,
}

impl Queue {
    /// What is on its way no more can be received into again.
    fn give_back(&mut self) {
        let filled = self.socket.fill(self.lent.iter().copied());
        self.lent.drain(..filled as usize);
    }

    /// Finds the next frame and puts its pieces into `frags`. None: there is none, or it is not
    /// there as a whole yet.
    fn next(&self, umem: &Umem, frags: &mut Vec<Frag>) -> Option<Arrived> {
        let (mut bytes, mut good) = (0u32, true);
        let arrived = self.socket.arrived();
        for i in 0..arrived {
            let Descriptor { address, len, options } = self.socket.peek(i);
            match umem.piece(address, len) {
                Some(piece) if frags.len() < frags.capacity() => frags.push(piece),
                _ => good = false,
            }
            bytes = bytes.saturating_add(len);
            if options & Descriptor::CONTINUED == 0 {
                let frame = match bytes {
                    _ if !good => Err(DropReason::BadFragments),
                    0..ETHERNET => Err(DropReason::TooShort),
                    _ if bytes > FRAME_MAX => Err(DropReason::TooLong),
                    _ => Ok(bytes),
                };
                return Some(Arrived { descriptors: i + 1, frame });
            }
        }
        // A frame as long as the ring has no end.
        let endless = arrived == SLOTS;
        endless.then_some(Arrived { descriptors: SLOTS, frame: Err(DropReason::TooLong) })
    }

    /// The descriptors of a frame are ours, and the kernel gets their chunks in the next turn.
    fn take(&mut self, umem: &Umem, count: u32) {
        for i in 0..count {
            // What is no chunk of ours is nobody's.
            if let Some(chunk) = umem.chunk_of(self.socket.peek(i).address) {
                self.lent.push(umem.address(chunk));
            }
        }
        self.socket.take(count);
    }
}

/// The worker's side of an interface.
struct Xdp {
    queues: Vec<Queue>,
    /// The queue to begin with.
    next: usize,
    watched: Option<OwnedFd>,
    /// Chunks to send from that are free.
    free: Vec<Chunk>,
    umem: Umem,
    link: Arc<Link>,
    /// Frames may have several chunks.
    chains: bool,
    /// Frames may arrive with a checksum that was begun.
    repairs: bool,
    /// The descriptors of a frame that is sent.
    parts: Vec<Descriptor>,
    /// The kernel sends nothing at the moment.
    stalled: bool,
    /// Attached as long as the interface is a port.
    _steering: Steering,
}

impl Xdp {
    /// Moves frames of one queue into the batch; `false`: that is full.
    fn receive(&mut self, at: usize, left: &mut u32, batch: &mut Batch, drops: &mut Drops) -> bool {
        let (queue, umem) = (&mut self.queues[at], &mut self.umem);
        let longest = self.link.mtu() + super::HEADERS;
        while *left > 0 {
            if !batch.has_room() {
                return false;
            }
            let frags = batch.frags();
            let first = frags.len();
            let Some(Arrived { descriptors, frame }) = queue.next(umem, frags) else {
                frags.truncate(first);
                return true;
            };
            *left -= 1;
            queue.take(umem, descriptors);
            let frame = frame.and_then(|bytes| match bytes > longest {
                true => Err(DropReason::Offload),
                false => Ok(bytes),
            });
            match frame {
                Err(why) => {
                    frags.truncate(first);
                    drops.add(why, 1);
                }
                Ok(bytes) => {
                    if self.repairs {
                        repair(umem, &frags[first..]);
                    }
                    batch.push_received(first, bytes);
                }
            }
        }
        false
    }

    fn reap(&mut self) {
        let socket = &mut self.queues[0].socket;
        while self.free.len() < SEND as usize
            && let Some(address) = socket.reap()
        {
            self.free.extend(self.umem.chunk_of(address));
        }
    }

    fn put(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let (frame, head) = batch.outgoing(delivery);
        let bytes = delivered(frame, head);
        let pieces = bytes.div_ceil(self.umem.chunk_size());
        let most = if self.chains { PIECES } else { 1 };
        if !self.link.takes(bytes as usize) || pieces as usize > most {
            return Err(DropReason::TooLong);
        }
        if self.free.len() < pieces as usize {
            self.reap();
        }
        let socket = &mut self.queues[0].socket;
        if self.free.len() < pieces as usize || socket.room() < pieces {
            return Err(DropReason::NoRoom);
        }
        let (free, parts) = (&mut self.free, &mut self.parts);
        parts.clear();
        self.umem.write(
            frame,
            head,
            || free.pop().expect("there are enough"),
            |address, len, more| {
                let options = if more { Descriptor::CONTINUED } else { 0 };
                parts.push(Descriptor { address, len, options });
            },
        );
        socket.push(parts);
        Ok(bytes as usize)
    }

    /// Makes the kernel send what there is; a call sends some.
    fn kick(&mut self) {
        let socket = &self.queues[0].socket;
        let mut left = socket.unsent();
        self.stalled = false;
        while left > 0 {
            match socket.kick() {
                Ok(()) => {}
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
                Err(errno) => {
                    let gone = matches!(errno, Errno::NXIO | Errno::NODEV);
                    self.link.seen(if gone { State::Gone } else { State::Down });
                    self.stalled = true;
                    return;
                }
            }
            let now = socket.unsent();
            if now + PER_KICK > left {
                // Little goes now; what is left goes with what comes.
                break;
            }
            left = now;
        }
        self.link.seen(State::Up);
        self.reap();
    }
}

fn repair(umem: &mut Umem, pieces: &[Frag]) {
    let Some(mut begun) = Begun::find(umem.bytes(pieces[0])) else { return };
    pieces.iter().for_each(|piece| begun.add(umem.bytes(*piece)));
    if let Some((at, sum)) = begun.checksum() {
        umem.bytes(pieces[0])[at..at + 2].copy_from_slice(&sum);
    }
}

impl Adapter for Xdp {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.queues.iter_mut().for_each(Queue::give_back);
        batch.restart(self.umem.region());
        if !self.stalled && self.queues[0].socket.unsent() > 0 {
            self.kick();
        }
        let mut left = TURN;
        for _ in 0..self.queues.len() {
            let at = self.next;
            self.next = (at + 1) % self.queues.len();
            if !self.receive(at, &mut left, batch, drops) {
                return;
            }
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        // Of an interface elsewhere we know by sending.
        if self.link.state() != State::Up && !self.link.foreign {
            let mut sent = Sent::default();
            sent.drops.add(DropReason::LinkDown, list.len() as u64);
            return sent;
        }
        Sent::each(list, |delivery| self.put(batch, delivery))
    }

    fn flush(&mut self) {
        self.kick();
    }

    fn pending(&mut self) -> bool {
        !self.stalled && self.queues[0].socket.unsent() > 0
    }

    fn is_socket(&self) -> bool {
        true
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        let one = || self.queues[0].socket.as_fd();
        Some(self.watched.as_ref().map_or_else(one, AsFd::as_fd))
    }
}
