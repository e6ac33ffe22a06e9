//! An Ethernet interface by a packet socket: a veth, a network card, a VLAN of one.
//!
//! The interface stays the kernel's. The port gets every frame that arrives on it, also those for
//! other stations (promiscuous mode), and sends by it. The host's own stack receives the frames,
//! too, unless the port has the interface alone: then the stack neither sends nor receives by it,
//! except frames that a port of kind `stack` passes.
//!
//! Frames can be unsegmented in both directions. Messages that were received and find no room in
//! the batch wait in the inbox, and the port receives no more before all are delivered.

use std::any::Any;
use std::sync::Arc;

use hostif::HostError;
use hostif::namespace::{self, Home};
use hostif::packet::Handles;
use hostif::sys::bpf::Attached;
use packet::offload::{Offloads, PendingOffload, VNET_LEN};
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake};
use rustix::io::Errno;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use super::{Link, Opened, State, write_out};
use crate::sys::packet::{BATCH, Inbox, PacketSocket, Received};
use crate::sys::{PortBell, Waker};

const ADDRESSES: usize = 12;
const TAG: isize = 4;

/// Opens a packet socket on interface `name` of `namespace`, or of the daemon's own, and makes a
/// port of it; `alone` cuts the host's stack off.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(
    name: &str,
    namespace: Option<&str>,
    alone: bool,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let target = namespace.map(namespace::open).transpose()?;
    let open = || hostif::packet::open(name, alone);
    let handles = namespace::within(namespace.zip(target.as_ref()), open)?;
    with_handles(handles, alone, Home::of(target.as_ref()), bell)
}

/// Makes a port of an open packet socket in namespace `home`.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_handles(
    handles: Handles,
    alone: bool,
    home: Home,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let Handles { socket, programs, interface } = handles;
    let link = Link::new(&interface, home.is_foreign(), bell);
    let intake = Intake::new(FRAMES, interface.mtu + super::HEADERS);
    let intake = intake.map_err(HostError::system("memory for", &interface.name))?;
    let port = Packet {
        socket: socket.into(),
        link: link.clone(),
        intake,
        inbox: Box::default(),
        next: 0,
        accepts: accepts(alone),
        write: Vec::new(),
        ends: Vec::with_capacity(BATCH),
        _programs: programs,
    };
    Ok(Opened { adapter: Box::new(port), link, interface, home, undo: None })
}

/// The offloads that the kernel accepts. A socket that bypasses the queueing discipline also
/// bypasses the code that segments frames for a card that cannot.
fn accepts(alone: bool) -> Offloads {
    match (alone, crate::sys::knows_datagram_runs()) {
        (true, _) => Offloads::CHECKSUM,
        (false, true) => Offloads::ALL,
        (false, false) => Offloads::ALL.without(Offloads::USO),
    }
}

/// The worker's side of an interface.
struct Packet {
    socket: PacketSocket,
    link: Arc<Link>,
    intake: Intake,
    inbox: Box<Inbox>,
    /// The next message of the inbox to deliver.
    next: usize,
    /// The offloads that the interface accepts.
    accepts: Offloads,
    /// Frames to send with their headers, one after another, and where each ends.
    write: Vec<u8>,
    ends: Vec<usize>,
    /// The programs that cut the host's stack off, attached while the port exists.
    _programs: Vec<Attached>,
}

impl Packet {
    /// Delivers the messages of the inbox; returns `false` if there was not enough room.
    fn give_out(&mut self, batch: &mut Batch, drops: &mut Drops) -> bool {
        while self.next < self.inbox.count() {
            if !batch.has_room() || !self.intake.fits(FRAME_MAX as usize) {
                return false;
            }
            let received = self.inbox.get(self.next).ok_or(DropReason::TooLong);
            let taken = received.and_then(|received| take(&received, &mut self.intake, batch));
            if let Err(why) = taken {
                drops.add(why, 1);
            }
            self.next += 1;
        }
        true
    }

    fn flush_writes(&mut self, sent: &mut Sent) {
        let (mut frames, mut start): ([&[u8]; BATCH], _) = ([&[]; BATCH], 0);
        let count = self.ends.len();
        for (frame, &end) in frames.iter_mut().zip(&self.ends) {
            (*frame, start) = (&self.write[start..end], end);
        }
        let mut at = 0;
        while at < count {
            match self.socket.send(&frames[at..count]) {
                Ok(done) => {
                    for frame in &frames[at..at + done] {
                        sent.delivered.add(1, (frame.len() - VNET_LEN) as u64);
                    }
                    at += done.max(1);
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // The interface is up, but cannot take such a frame.
                    let bad = errno == Errno::INVAL;
                    let why = if bad { DropReason::Offload } else { self.link.refused(errno) };
                    // If one frame finds no room, the next one does not either.
                    let alone = bad || why == DropReason::TooLong;
                    let lost = if alone { 1 } else { count - at };
                    sent.drops.add(why, lost as u64);
                    at += lost;
                }
            }
        }
        self.write.clear();
        self.ends.clear();
    }
}

/// Puts a received frame into the batch, with the VLAN tag that the kernel stripped.
fn take(received: &Received<'_>, intake: &mut Intake, batch: &mut Batch) -> Result<(), DropReason> {
    let Received { head, frame, tag } = received;
    if frame.len() < ETHERNET {
        return Err(DropReason::TooShort);
    }
    let left = PendingOffload::read(*head, frame.len()).map_err(|_| DropReason::Offload)?;
    let (addresses, rest) = frame.split_at(ADDRESSES);
    let (tag, moved) = match tag {
        Some(tag) => (&tag[..], TAG),
        None => (&[][..], 0),
    };
    let bytes = frame.len() + tag.len();
    if bytes > FRAME_MAX as usize {
        return Err(DropReason::TooLong);
    }
    let first = batch.frags().len();
    intake.push(&[addresses, tag, rest], batch.frags());
    batch.push_received(first, u32::try_from(bytes).expect("bounded"));
    let pushed = left.map_or(Ok(()), |left| batch.push_offload(left.moved(moved)));
    pushed.map_err(|_| DropReason::Offload)
}

impl Adapter for Packet {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        if !self.give_out(batch, drops) {
            return;
        }
        self.next = 0;
        match self.socket.receive(&mut self.inbox) {
            Ok(_) => {
                self.give_out(batch, drops);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Reported once; the socket continues when the interface is up again.
            Err(_) => self.link.seen(State::Down),
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        for &delivery in list {
            if let Err(why) = write_out(batch, delivery, VNET_LEN, &self.link, &mut self.write) {
                sent.drops.add(why, 1);
                continue;
            }
            self.ends.push(self.write.len());
            if self.ends.len() == BATCH {
                self.flush_writes(&mut sent);
            }
        }
        self.flush_writes(&mut sent);
        if sent.delivered.frames > 0 {
            self.link.seen(State::Up);
        }
        sent
    }

    fn accepts(&self) -> Offloads {
        self.accepts
    }
}

impl Notify for Packet {
    fn pending(&mut self) -> bool {
        self.next < self.inbox.count()
    }

    fn is_socket(&self) -> bool {
        true
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        PortBell::of(bell).watch_all([self.socket.descriptor()])
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch_all([self.socket.descriptor()]);
    }
}
