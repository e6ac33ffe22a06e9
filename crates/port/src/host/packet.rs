//! Any Ethernet interface, by a packet socket: a veth, a network card, a VLAN of one.
//!
//! The interface stays the kernel's. The port gets every frame that arrives on it, also those for
//! others (it is made promiscuous), and sends by it. The host's own stack gets what arrives too,
//! unless the port has the interface alone: then the stack neither gets nor sends anything by it,
//! except what a port of kind `stack` hands over.
//!
//! A frame can come as a run of segments that its sender left to a card. A run is cut one segment
//! after the other, over several turns if need be: the messages that were received wait in the
//! inbox, and nothing is received before all are given out.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ring::plain::Intake;
use ring::put::FRAME_MAX;
use rustix::io::Errno;
use switch::batch::{Batch, Delivery};
use switch::offload::Finishing;
use switch::{Adapter, DropReason, Drops, Sent};

use super::netlink::{Interface, Netlink};
use super::tap::Opened;
use super::{FRAMES, HostError, Link, State, check_name, namespace, system};
use crate::sys::Waker;
use crate::sys::bpf::{self, Attached, Hook, Program};
use crate::sys::packet::{BATCH, Inbox, PacketSocket, Received};

const ADDRESSES: usize = 12;
const ETHERNET: usize = 14;
const TAG: usize = 4;

/// Opens a packet socket on an interface that is there; `alone`: the host's stack is cut off.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(
    name: &str,
    namespace: Option<&str>,
    alone: bool,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    check_name(name)?;
    let target = namespace.map(namespace::open).transpose()?;
    let (socket, programs, interface) =
        namespace::within(namespace.zip(target.as_ref()), || socket(name, alone))?;
    let link = Link::new(&interface, target.is_some(), bell);
    let intake = Intake::new(FRAMES, interface.mtu + super::HEADERS);
    let intake = intake.map_err(system("memory for", name))?;
    let port = Packet {
        socket,
        link: link.clone(),
        intake,
        inbox: Box::default(),
        next: 0,
        begun: None,
        write: Vec::new(),
        ends: Vec::with_capacity(BATCH),
        _programs: programs,
    };
    Ok(Opened { adapter: Box::new(port), link, interface })
}

fn socket(name: &str, alone: bool) -> Result<(PacketSocket, Vec<Attached>, Interface), HostError> {
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let found = netlink.find(name).map_err(system("look up", name))?;
    let interface = found.ok_or_else(|| HostError::Missing(name.to_owned()))?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let socket = PacketSocket::open(interface.index, alone).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => HostError::MayNotPacket,
        Errno::NODEV => HostError::Missing(name.to_owned()),
        errno => system("open a packet socket on", name)(errno.into()),
    })?;
    let cuts = [(Program::DropOthers, Hook::Ingress), (Program::Drop, Hook::Egress)];
    let cuts = cuts.into_iter().filter(|_| alone);
    let programs: Result<Vec<_>, _> =
        cuts.map(|(program, hook)| bpf::attach(program, hook, interface.index)).collect();
    Ok((socket, programs.map_err(|errno| super::refused(name, errno))?, interface))
}

/// The worker's side of an interface.
struct Packet {
    socket: PacketSocket,
    link: Arc<Link>,
    intake: Intake,
    inbox: Box<Inbox>,
    /// The message of the inbox that is to be given out next.
    next: usize,
    /// It has been begun.
    begun: Option<Finishing>,
    /// Frames to be sent, one behind the other, and where they end.
    write: Vec<u8>,
    ends: Vec<usize>,
    /// What cuts the host's stack off, attached as long as the interface is a port.
    _programs: Vec<Attached>,
}

impl Packet {
    /// Gives out what the inbox holds, as far as there is room. `false`: there is not enough.
    fn give_out(&mut self, batch: &mut Batch, drops: &mut Drops) -> bool {
        while self.next < self.inbox.count() {
            let Some(mut received) = self.inbox.get(self.next) else {
                drops.add(DropReason::TooLong, 1);
                self.next += 1;
                continue;
            };
            let begun = match self.begun.take() {
                Some(begun) => Ok(begun),
                None => begin(&mut received),
            };
            match begun.map(|begun| finish(begun, &mut received, &mut self.intake, batch)) {
                Err(why) => drops.add(why, 1),
                Ok(Some(rest)) => {
                    self.begun = Some(rest);
                    return false;
                }
                Ok(None) => {}
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
                        sent.delivered.add(1, frame.len() as u64);
                    }
                    at += done.max(1);
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let why = self.link.refused(errno);
                    // Where there is no room for one, there is none for the next.
                    let lost = if why == DropReason::TooLong { 1 } else { count - at };
                    sent.drops.add(why, lost as u64);
                    at += lost;
                }
            }
        }
        self.write.clear();
        self.ends.clear();
    }
}

fn begin(received: &mut Received<'_>) -> Result<Finishing, DropReason> {
    if received.frame.len() < ETHERNET {
        return Err(DropReason::TooShort);
    }
    let begun = Finishing::new(received.head, received.frame);
    let begun = begun.map_err(|_| DropReason::Offload)?;
    match begun.longest(received.frame) + TAG <= FRAME_MAX as usize {
        true => Ok(begun),
        false => Err(DropReason::TooLong),
    }
}

/// Puts a message's frames into the batch, with the tag that the kernel took out. What does not
/// fit is returned.
fn finish(
    mut begun: Finishing,
    received: &mut Received<'_>,
    intake: &mut Intake,
    batch: &mut Batch,
) -> Option<Finishing> {
    let longest = begun.longest(received.frame) + TAG;
    loop {
        if !batch.has_room() || !intake.fits(longest) {
            return Some(begun);
        }
        let [head, payload] = begun.next(received.frame)?;
        let tag: &[u8] = received.tag.as_ref().map_or(&[], |tag| tag);
        let (addresses, rest) = head.split_at(ADDRESSES);
        let first = batch.frags().len();
        intake.push(&[addresses, tag, rest, payload], batch.frags());
        let bytes = head.len() + tag.len() + payload.len();
        batch.push_received(first, u32::try_from(bytes).expect("bounded"));
    }
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
            // Said once; the socket goes on when the interface is up again.
            Err(_) => self.link.seen(State::Down),
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        for &delivery in list {
            let before = self.write.len();
            batch.append(delivery, &mut self.write);
            if !self.link.takes(self.write.len() - before) {
                self.write.truncate(before);
                sent.drops.add(DropReason::TooLong, 1);
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

    fn pending(&mut self) -> bool {
        self.next < self.inbox.count()
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
