//! An Ethernet interface by AF_XDP: the port takes the frames of its driver's queues.
//!
//! ```text
//!   driver ── program ──► socket of queue 0 ─┐                        ┌─► rings of the receiver
//!               │    └──► socket of queue 1 ─┴─► chunks of one pool ──┤
//!               └──► the host's stack: what the filter leaves         └─► …
//! ```
//!
//! The kernel puts a received frame into a chunk of the port's memory, from which the switch copies
//! it to its receiver: one copy, and a second one by the kernel if the driver has no zero-copy
//! mode. The chunk returns to its queue at the start of the next turn. Frames to send are copied
//! into chunks and put into the ring of the first queue, which keeps their order; the kernel is
//! told once in a turn.
//!
//! A port that is a member of a trust group has its chunks in the group's region (`store`). It
//! exchanges buffers with other members instead of copying: the port receives into the buffer that
//! it got for a frame, and keeps a buffer that it sends until the kernel returns it.
//!
//! A virtual interface can deliver frames with a partial checksum, which the port completes
//! ([`packet::offload::partial`]). A frame that is longer than the MTU is unsegmented, and AF_XDP
//! does not tell its offload: the port drops and counts it.

mod store;

use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hostif::HostError;
use hostif::namespace::{self, Home};
use hostif::sys::ethtool::Tags;
use hostif::sys::steer::{self, Steering};
use hostif::xdp::{Handles, XdpSpec};
use packet::flow::PREFIX;
use packet::offload::partial::PartialChecksum;
use ring::exchange::Giver;
use ring::frame::{FRAME_MAX, Frag};
use ring::umem::{Chunk, Umem, delivered};
use rustix::io::Errno;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use super::{Link, Opened, State};
use crate::group::Share;
use crate::sys::xdp::{Bound, Descriptor, Place, SLOTS, XdpSocket};
use crate::sys::{PortBell, Waker};
use store::{Store, Wanted};

/// The number of chunks to send from.
const SEND: u32 = 1024;
/// The most fragments of a frame that the kernel takes.
const PIECES: usize = 18;
const ETHERNET: u32 = 14;
/// The most frames of one turn: a frame costs little, and a switch of threads much.
const TURN: u32 = 256;
/// The least number of descriptors that one call sends, if that many wait.
const PER_KICK: u32 = 32;

/// Opens sockets on the queues of an existing interface and makes a port of them; `share`: their
/// memory is that of a trust group.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(
    spec: &XdpSpec,
    bell: &Arc<Waker>,
    share: Option<Arc<Share>>,
) -> Result<Opened, HostError> {
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let inside = spec.namespace.as_deref().zip(target.as_ref());
    let handles = namespace::within(inside, || hostif::xdp::open(spec))?;
    with_handles(handles, Home::of(target.as_ref()), bell, share)
}

/// Makes a port of open AF_XDP sockets in namespace `home`; `share` as in [`open`].
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_handles(
    handles: Handles,
    home: Home,
    bell: &Arc<Waker>,
    share: Option<Arc<Share>>,
) -> Result<Opened, HostError> {
    let Handles { sockets, steering, interface, tags, undo } = handles;
    let name = interface.name.clone();
    let link = Link::new(&interface, home.is_foreign(), bell);
    let numbers: Vec<u16> = sockets.iter().map(|(number, _)| *number).collect();
    let wanted =
        Wanted { interface: &interface, queues: u32::try_from(sockets.len()).expect("few") };
    let (mut store, chunks) = Store::register(&sockets[0].1, &wanted, share)?;
    let mut chunks = chunks.into_iter();
    let mut all: Vec<Queue> = Vec::new();
    let mut bound = Bound { zero_copy: false, chains: false };
    let copies = !steering.native || store.is_shared();
    for (number, socket) in sockets {
        let (queue, first) = (u32::from(number), all.first().map(Queue::as_fd));
        let place = Place { index: interface.index, queue, first, copies };
        let is_first = first.is_none();
        let (socket, how) = bind(socket, &store.umem, &place, &name)?;
        if is_first {
            bound = how;
        }
        let mut own = Queue { socket, lent: Vec::with_capacity(SLOTS as usize), out: 0..0 };
        own.lent.extend(chunks.by_ref().take(SLOTS as usize));
        own.give_back(&store.umem);
        steer::enter(steering.map.as_fd(), queue, own.as_fd())
            .map_err(|errno| HostError::system("steer frames of", &name)(errno.into()))?;
        all.push(own);
    }
    let how = describe(&numbers, steering.native, bound, &store.umem, tags);
    let _ = link.how.set(how + &std::mem::take(&mut store.note));
    let _ = link.share.set(store.share());
    let adapter = Xdp {
        queues: all,
        next: 0,
        free: chunks.collect(),
        store,
        link: link.clone(),
        chains: bound.chains,
        repairs: !interface.driver.is_empty(),
        parts: Vec::with_capacity(PIECES),
        stalled: false,
        _steering: steering,
    };
    Ok(Opened { adapter: Box::new(adapter), link, interface, home, undo })
}

/// Binds a socket. The kernel releases a queue some time after its socket was closed.
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
        errno => HostError::system("bind an AF_XDP socket to", name)(errno.into()),
    };
    let socket = XdpSocket::new(socket, umem).map_err(why)?;
    for _ in 0..TRIES {
        match socket.bind(place) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(10)),
            bound => return bound.map(|bound| (socket, bound)).map_err(why),
        }
    }
    Err(why(Errno::BUSY))
}

/// The description in `port show` and in the log.
fn describe(queues: &[u16], native: bool, bound: Bound, umem: &Umem, tags: Tags) -> String {
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
    let long = match bound.chains {
        true => String::new(),
        false => format!("; frames above {} bytes are lost", umem.receives()),
    };
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
    /// Chunks to give to the kernel for received frames.
    lent: Vec<Chunk>,
    /// The fragments of the batch that are frames of this queue, while they are delivered.
    out: Range<usize>,
}

/// A received frame: the number of its descriptors, and its length or why it is dropped.
struct Arrived {
    descriptors: u32,
    frame: Result<u32, DropReason>,
}

impl Queue {
    /// Gives free chunks to the kernel.
    fn give_back(&mut self, umem: &Umem) {
        let filled = self.socket.fill(self.lent.iter().map(|chunk| umem.fill_address(*chunk)));
        self.lent.drain(..filled as usize);
    }

    /// Finds the next frame and puts its fragments into `frags`. `None`: there is no complete
    /// frame.
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
        // A frame that fills the ring has no end.
        let endless = arrived == SLOTS;
        endless.then_some(Arrived { descriptors: SLOTS, frame: Err(DropReason::TooLong) })
    }

    /// Frees the chunks of a frame that is dropped.
    fn keep(&mut self, umem: &Umem, count: u32) {
        let chunk = |i| umem.chunk_of(self.socket.peek(i).address);
        // An address outside of the chunks is the kernel's error, and is ignored.
        self.lent.extend((0..count).filter_map(chunk));
    }
}

/// The worker's side of an interface.
struct Xdp {
    queues: Vec<Queue>,
    /// The queue to begin with.
    next: usize,
    /// Free chunks to send from.
    free: Vec<Chunk>,
    /// The memory, which outlives the sockets.
    store: Store,
    link: Arc<Link>,
    /// The kernel accepts frames of several chunks.
    chains: bool,
    /// Frames may arrive with a partial checksum.
    repairs: bool,
    /// The descriptors of a frame that is being sent.
    parts: Vec<Descriptor>,
    /// The kernel does not send at the moment.
    stalled: bool,
    /// The XDP program, attached while the port exists.
    _steering: Steering,
}

impl Xdp {
    /// Puts frames of one queue into the batch; returns `false` if that is full.
    fn receive(&mut self, at: usize, left: &mut u32, batch: &mut Batch, drops: &mut Drops) -> bool {
        let (queue, umem) = (&mut self.queues[at], &mut self.store.umem);
        let longest = self.link.mtu() + super::HEADERS;
        let begin = batch.frags().len();
        queue.out = begin..begin;
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
            let frame = frame.and_then(|bytes| match bytes > longest {
                true => Err(DropReason::Offload),
                false => Ok(bytes),
            });
            match frame {
                Err(why) => {
                    frags.truncate(first);
                    queue.keep(umem, descriptors);
                    drops.add(why, 1);
                }
                Ok(bytes) => {
                    if self.repairs {
                        repair(umem, &frags[first..]);
                    }
                    queue.out.end = frags.len();
                    batch.push_received(first, bytes);
                }
            }
            queue.socket.take(descriptors);
        }
        false
    }

    fn reap(&mut self) {
        let socket = &mut self.queues[0].socket;
        while self.free.len() < SEND as usize
            && let Some(address) = socket.reap()
        {
            self.free.extend(self.store.umem.chunk_of(address));
        }
    }

    /// Checks for room in the send ring, and for free chunks.
    fn can_send(&mut self, pieces: u32) -> Result<(), DropReason> {
        if self.free.len() < pieces as usize {
            self.reap();
        }
        let room = self.free.len() >= pieces as usize && self.queues[0].socket.room() >= pieces;
        if room { Ok(()) } else { Err(DropReason::NoRoom) }
    }

    fn put(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let (frame, head) = batch.outgoing(delivery);
        let bytes = delivered(frame, head);
        let pieces = bytes.div_ceil(self.store.umem.sends());
        let most = if self.chains { PIECES } else { 1 };
        if !self.link.takes(bytes as usize) || pieces as usize > most {
            return Err(DropReason::TooLong);
        }
        self.can_send(pieces)?;
        let (free, parts) = (&mut self.free, &mut self.parts);
        parts.clear();
        self.store.umem.write(
            frame,
            head,
            || free.pop().expect("there are enough"),
            |address, len, more| {
                let options = if more { Descriptor::CONTINUED } else { 0 };
                parts.push(Descriptor { address, len, options });
            },
        );
        self.queues[0].socket.push(parts);
        Ok(bytes as usize)
    }

    /// Sends a frame of the group's memory in place, if it is one buffer, and leaves a free buffer
    /// in exchange; copies other frames.
    fn put_exchanged(
        &mut self,
        batch: &mut Batch,
        delivery: Delivery,
        from: Giver<'_>,
    ) -> Result<usize, DropReason> {
        let Some((piece, slot)) = batch.exchangeable(delivery, self.store.umem.region()) else {
            return self.put(batch, delivery);
        };
        let bytes = usize::from(piece.len());
        let address = self.store.umem.address_of(piece).filter(|_| self.link.takes(bytes));
        let (Some(trader), Some(address)) = (self.store.trader, address) else {
            return self.put(batch, delivery);
        };
        self.can_send(1)?;
        let spare = self.free.pop().expect("there is one");
        let left = self.store.umem.buffer(spare);
        if !trader.take(self.store.umem.region(), piece, from, slot, left) {
            self.free.push(spare);
            return self.put(batch, delivery);
        }
        if let Giver::Port(_) = from {
            batch.replace_buffer(delivery.frame, left);
        }
        self.queues[0].socket.push(&[Descriptor { address, len: piece.len().into(), options: 0 }]);
        Ok(bytes)
    }

    /// Whether the interface is down. For one in another namespace, only sending tells.
    fn is_down(&self) -> bool {
        self.link.state() != State::Up && !self.link.foreign
    }

    /// Makes the kernel send; a call sends a part of the ring.
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
                // Few are left, which go with the next frames.
                break;
            }
            left = now;
        }
        self.link.seen(State::Up);
        self.reap();
    }
}

/// Completes a partial checksum. The memory may be a group's, so bytes are copied out before they
/// are read.
fn repair(umem: &mut Umem, pieces: &[Frag]) {
    let mut head = [0; PREFIX];
    let len = umem.read(pieces[0], 0, &mut head);
    let Some(mut partial) = PartialChecksum::find(&head[..len]) else { return };
    let mut block = [0; 512];
    for &piece in pieces {
        let mut at = 0;
        while at < usize::from(piece.len()) {
            let len = umem.read(piece, at, &mut block);
            partial.add(&block[..len]);
            at += len;
        }
    }
    if let Some((at, sum)) = partial.checksum() {
        umem.write_at(pieces[0], at, &sum);
    }
}

fn all_down(list: &[Delivery]) -> Sent {
    let mut sent = Sent::default();
    sent.drops.add(DropReason::LinkDown, list.len() as u64);
    sent
}

impl Adapter for Xdp {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        let umem = &self.store.umem;
        self.queues.iter_mut().for_each(|queue| queue.give_back(umem));
        batch.restart(umem.region());
        if let Some(trader) = self.store.trader {
            batch.set_exchange(trader);
        }
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

    fn take_back(&mut self, batch: &Batch) {
        for queue in &mut self.queues {
            let pieces = &batch.received()[std::mem::take(&mut queue.out)];
            queue.lent.extend(pieces.iter().map(|piece| Chunk::from(piece.buffer())));
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        if self.is_down() {
            return all_down(list);
        }
        Sent::each(list, |delivery| self.put(batch, delivery))
    }

    fn send_owned(&mut self, batch: &mut Batch, list: &[Delivery], from: Giver<'_>) -> Sent {
        if self.is_down() {
            return all_down(list);
        }
        Sent::each(list, |delivery| self.put_exchanged(batch, delivery, from))
    }

    fn flush(&mut self) {
        self.kick();
        self.store.note_sending(SEND as usize - self.free.len());
    }
}

impl Notify for Xdp {
    fn pending(&mut self) -> bool {
        !self.stalled && self.queues[0].socket.unsent() > 0
    }

    fn is_socket(&self) -> bool {
        true
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        PortBell::of(bell).watch_all(&self.queues)
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch_all(&self.queues);
    }
}
