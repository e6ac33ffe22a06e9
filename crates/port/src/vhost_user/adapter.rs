//! The worker's side of a virtual machine's port.
//!
//! ```text
//!   transmit queues ──► taken, one after the other ──► intake ──► batch ──► switch
//!   receive queues  ◄── header and frame, copied into buffers ◄──────────── switch
//! ```
//!
//! A frame that the guest left to its network card (a checksum begun, a run of segments) is
//! finished in memory of ours, so a guest that changes it meanwhile changes its own copy.
//!
//! A turn is bounded by what is looked at, not by what comes of it: buffers that are thrown away
//! cost time as well, and a driver can make more of them meanwhile. Transmit queues take turns.
//!
//! Queues come and go by [orders](super::hand). What is wrong with one is noted in it; the
//! protocol thread is told and takes it out. Memory that was [taken away](ring::guest::lost) reads
//! as zeros. They may be nonsense, or a queue that is empty for ever: a port that falls asleep
//! looks whether it is that.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use device::virtio_net::{HEADER_MAX, finished};
use device::virtqueue::{Broken, Buffers, PIECES_MAX, Taken};
use ring::doorbell::store_load_fence;
use ring::guest::{Reader, Writer};
use ring::plain::Intake;
use ring::put::FRAME_MAX;
use switch::batch::{Batch, Delivery, prologue};
use switch::frame::Header;
use switch::offload::{Finishing, VNET_LEN, is_unfinished};
use switch::{Adapter, DropReason, Drops, Sent};

use super::hand::{Inbox, Order, Ring, Trouble};
use crate::sys::vhost::{Ear, Event};

/// Frames that a port takes in one turn, and their usual length in bytes.
const FRAMES: u32 = 64;
const USUAL: u32 = 1518;
/// Pieces that it looks at in one turn, but for those of its last buffer.
const PIECES: usize = PIECES_MAX;
/// What a buffer counts for at least.
const PIECES_MIN: usize = PIECES / FRAMES as usize;
const ETHERNET: usize = 14;

/// A port's queues, the guest's to receive at even places.
pub(super) struct Machine {
    rings: Vec<Option<Box<Ring>>>,
    /// The pair whose transmit queue is the first in the next turn.
    first: usize,
    /// Receive queues in which something was put since the last flush.
    filled: Vec<usize>,
    /// Receive queues without room, while frames are put.
    full: Vec<usize>,
    inbox: Inbox,
    ear: Arc<Ear>,
    /// Tells the protocol thread of trouble.
    trouble: Arc<Event>,
    intake: Intake,
    buffers: Buffers,
    taken: Vec<Taken>,
    /// A frame of the guest's, while it is being finished.
    unfinished: Unfinished,
    /// An address to be announced.
    announcement: Option<[u8; 6]>,
}

/// A frame that is given out segment by segment.
#[derive(Default)]
struct Unfinished {
    frame: Vec<u8>,
    finishing: Option<Finishing>,
}

impl Machine {
    pub(super) fn new(
        queues: usize,
        inbox: Inbox,
        ear: &Arc<Ear>,
        trouble: &Arc<Event>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            rings: (0..queues).map(|_| None).collect(),
            first: 0,
            filled: Vec::with_capacity(queues),
            full: Vec::with_capacity(queues),
            inbox,
            ear: ear.clone(),
            trouble: trouble.clone(),
            intake: Intake::new(FRAMES, USUAL)?,
            buffers: Buffers::default(),
            taken: Vec::with_capacity(PIECES_MAX),
            unfinished: Unfinished {
                frame: Vec::with_capacity(FRAME_MAX as usize),
                finishing: None,
            },
            announcement: None,
        })
    }

    #[cold]
    fn take_orders(&mut self) {
        while let Some(order) = self.inbox.next() {
            match order {
                Order::Swap(at, mut ring, reply) => {
                    if let Some(ring) = &mut ring {
                        ring.queue.want_none();
                        // A predecessor may have died before it told the driver of its last work.
                        ring.call.iter().for_each(|call| call.tell());
                    }
                    let old = std::mem::replace(&mut self.rings[at], ring);
                    // Whoever asked waits for it.
                    let _ = reply.send(old);
                }
                Order::Announce(address, reply) => {
                    self.announcement = Some(address);
                    let _ = reply.send(None);
                }
            }
        }
    }

    /// Tells the network where the machine is now: a RARP request, as hosts do it.
    #[cold]
    fn announce(&mut self, address: [u8; 6], batch: &mut Batch) {
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&address);
        // RARP; Ethernet, IPv4, their lengths, "request reverse".
        frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        frame[22..28].copy_from_slice(&address);
        frame[32..38].copy_from_slice(&address);
        let first = batch.frags().len();
        self.intake.push(&[&frame], batch.frags());
        batch.push_received(first, 60);
    }

    fn transmits(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter().skip(1).step_by(2).flatten().map(Box::as_ref)
    }

    fn transmits_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.rings.iter_mut().skip(1).step_by(2).flatten().map(Box::as_mut)
    }

    /// Puts a frame into a queue.
    fn put(&mut self, at: usize, batch: &Batch, delivery: Delivery) -> Result<u32, DropReason> {
        let ring = self.rings[at].as_mut().expect("it can be put into");
        match put(ring, &mut self.buffers, &mut self.taken, batch, delivery) {
            Ok(bytes) => {
                if !self.filled.contains(&at) {
                    self.filled.push(at);
                }
                Ok(bytes)
            }
            Err(NotPut::Dropped(why)) => Err(why),
            Err(NotPut::Broken(why)) => {
                ring.trouble = Some(trouble_of(ring, why));
                self.trouble.set();
                Err(DropReason::LinkDown)
            }
        }
    }

    /// Takes what the transmit queues have, one after the other, as far as there is room.
    fn take(&mut self, batch: &mut Batch, drops: &mut Drops) {
        let Self { intake, unfinished, rings, first, buffers, trouble, .. } = self;
        let mut taking = Intaking { intake, unfinished, batch, drops, left: PIECES };
        taking.give_out();
        let (begin, pairs) = (*first, rings.len() / 2);
        for pair in (begin..pairs).chain(0..begin) {
            if !taking.has_room() {
                break;
            }
            // The last one goes on in the next turn, unless it had all of this one.
            *first = if pair == begin { (pair + 1) % pairs } else { pair };
            let Some(ring) = &mut rings[2 * pair + 1] else { continue };
            if ring.trouble.is_none()
                && let Err(why) = taking.drain(ring, buffers)
            {
                ring.trouble = Some(trouble_of(ring, why));
                trouble.set();
            }
        }
    }

    /// Notes it if the memory is lost. All queues lie in the same, so that one stands for all.
    fn look_for_loss(&mut self) {
        let mut used = self.rings.iter_mut().flatten().filter(|ring| ring.trouble.is_none());
        if let Some(ring) = used.next().filter(|ring| ring.memory.is_lost()) {
            ring.trouble = Some(Trouble::Lost);
            self.trouble.set();
        }
    }

    /// The queue that a frame is put into: of several, always the same for the same two stations,
    /// so that none of their frames overtakes another.
    #[inline]
    fn receive_queue(&self, header: Header) -> Option<usize> {
        let usable = |at: &usize| {
            let ring = self.rings[*at].as_ref();
            ring.is_some_and(|ring| ring.enabled && ring.trouble.is_none())
        };
        let mut queues = (0..self.rings.len()).step_by(2).filter(usable);
        let count = queues.clone().count();
        let chosen = if count < 2 { 0 } else { spread(header) % count };
        queues.nth(chosen)
    }
}

/// A number that differs between stations.
fn spread(header: Header) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let [a, b] = [0, 64].map(|shift| u64::try_from((header.key() >> shift) & u128::from(u64::MAX)));
    let mixed = (a.unwrap_or(0) ^ b.unwrap_or(0).rotate_left(29)).wrapping_mul(ODD);
    usize::try_from(mixed >> 40).unwrap_or(0)
}

/// What is taken from a queue, and where it goes.
struct Intaking<'a> {
    intake: &'a mut Intake,
    unfinished: &'a mut Unfinished,
    batch: &'a mut Batch,
    drops: &'a mut Drops,
    /// Pieces that may still be looked at.
    left: usize,
}

impl Intaking<'_> {
    fn has_room(&self) -> bool {
        let fits = self.intake.fits(FRAME_MAX as usize);
        let room = self.batch.has_room() && fits && self.unfinished.finishing.is_none();
        room && self.left > 0
    }

    /// Takes what a queue has, as far as there is room.
    fn drain(&mut self, ring: &mut Ring, buffers: &mut Buffers) -> Result<(), Broken> {
        let mut any = false;
        let outcome = loop {
            if !self.has_room() {
                break Ok(());
            }
            buffers.clear();
            match ring.queue.next(&ring.memory, buffers) {
                Err(why) => break Err(why),
                Ok(None) => break Ok(()),
                Ok(Some(taken)) => {
                    let pieces = buffers.spans().len().max(PIECES_MIN);
                    self.left = self.left.saturating_sub(pieces);
                    if let Err(why) = self.accept(ring, buffers) {
                        self.drops.add(why, 1);
                    }
                    ring.queue.give_back(taken, 0);
                    any = true;
                }
            }
        };
        if any {
            ring.queue.publish();
            store_load_fence();
            tell(ring);
        }
        outcome
    }

    /// One frame.
    fn accept(&mut self, ring: &Ring, buffers: &Buffers) -> Result<(), DropReason> {
        if !ring.enabled {
            return Err(DropReason::LinkDown);
        }
        let bytes = usize::try_from(buffers.bytes()).map_err(|_| DropReason::TooLong)?;
        let bytes = bytes.checked_sub(ring.header).ok_or(DropReason::TooShort)?;
        if bytes < ETHERNET {
            return Err(DropReason::TooShort);
        }
        if bytes > FRAME_MAX as usize {
            return Err(DropReason::TooLong);
        }
        let mut reader = Reader::new(&ring.memory, buffers.spans());
        let mut header = [0; HEADER_MAX];
        reader.read(&mut header[..ring.header]);
        let header = header.first_chunk::<VNET_LEN>().expect("it is longer");
        if is_unfinished(header) {
            return self.accept_unfinished(*header, reader, bytes);
        }
        let first = self.batch.frags().len();
        self.intake.pull(&mut reader, bytes, self.batch.frags());
        self.batch.push_received(first, u32::try_from(bytes).expect("bounded"));
        Ok(())
    }

    /// One that is to be finished first.
    #[inline(never)]
    fn accept_unfinished(
        &mut self,
        header: [u8; VNET_LEN],
        mut reader: Reader<'_>,
        bytes: usize,
    ) -> Result<(), DropReason> {
        let frame = &mut self.unfinished.frame;
        frame.resize(bytes, 0);
        reader.read(frame);
        let finishing = Finishing::new(header, frame).map_err(|_| DropReason::Offload)?;
        self.unfinished.finishing = Some(finishing);
        self.give_out();
        Ok(())
    }

    /// Gives out the segments of an unfinished frame, as far as there is room.
    fn give_out(&mut self) {
        let Unfinished { frame, finishing } = &mut *self.unfinished;
        let Some(mut rest) = finishing.take() else { return };
        let longest = rest.longest(frame);
        while self.batch.has_room() && self.intake.fits(longest) {
            let Some(pieces) = rest.next(frame) else { return };
            let first = self.batch.frags().len();
            self.intake.push(&pieces, self.batch.frags());
            let bytes = pieces[0].len() + pieces[1].len();
            self.batch.push_received(first, u32::try_from(bytes).expect("bounded"));
        }
        *finishing = Some(rest);
    }
}

/// Interrupts the driver, if it wants that.
fn tell(ring: &mut Ring) {
    if ring.queue.must_tell()
        && let Some(call) = &ring.call
    {
        call.tell();
    }
}

/// What is behind a queue that makes no sense: where memory is lost, it is the zeros that do not.
#[cold]
fn trouble_of(ring: &Ring, why: Broken) -> Trouble {
    if ring.memory.is_lost() { Trouble::Lost } else { Trouble::Broken(why) }
}

/// Why a frame was not put into a queue.
enum NotPut {
    Dropped(DropReason),
    Broken(Broken),
}

impl From<Broken> for NotPut {
    fn from(why: Broken) -> Self {
        Self::Broken(why)
    }
}

/// Puts one frame into as many buffers as it takes; returns the bytes delivered.
fn put(
    ring: &mut Ring,
    buffers: &mut Buffers,
    taken: &mut Vec<Taken>,
    batch: &Batch,
    delivery: Delivery,
) -> Result<u32, NotPut> {
    let entry = &batch.frames()[usize::from(delivery.frame)];
    let head = prologue(entry.header, entry.bytes, delivery.tag);
    let bytes = entry.bytes - u32::from(head.skip) + u32::from(head.len);
    let needed = u64::from(bytes) + ring.header as u64;
    let mark = ring.queue.mark();
    buffers.clear();
    taken.clear();
    while buffers.bytes() < needed {
        // Without mergeable buffers a frame has one.
        let too_long = !ring.mergeable && !taken.is_empty();
        let full = too_long || taken.len() == PIECES_MAX;
        let next = if full { None } else { ring.queue.next(&ring.memory, buffers)? };
        let Some(one) = next else {
            ring.queue.rewind(mark);
            // In vain: not once more for the next frame, if it was more work than usual.
            let usual = buffers.spans().len() <= PIECES_MIN;
            let why = if too_long && usual { DropReason::TooLong } else { DropReason::NoRoom };
            return Err(NotPut::Dropped(why));
        };
        taken.push(one);
    }
    let header = finished(u16::try_from(taken.len()).expect("few"));
    let mut writer = Writer::new(&ring.memory, buffers.spans());
    writer.write(&header[..ring.header]);
    batch.frame(entry).write_to(head, &mut writer);
    let mut left = needed;
    for one in taken.drain(..) {
        let written = left.min(one.bytes);
        ring.queue.give_back(one, u32::try_from(written).expect("a frame is short"));
        left -= written;
    }
    Ok(bytes)
}

impl Adapter for Machine {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        if self.inbox.mail.is_waiting() {
            self.take_orders();
        }
        self.intake.clear();
        batch.restart(self.intake.region());
        if let Some(address) = self.announcement.take() {
            self.announce(address, batch);
        }
        self.take(batch, drops);
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        self.full.clear();
        for delivery in list {
            let entry = &batch.frames()[usize::from(delivery.frame)];
            let Some(at) = self.receive_queue(entry.header) else {
                sent.drops.add(DropReason::LinkDown, 1);
                continue;
            };
            if self.full.contains(&at) {
                sent.drops.add(DropReason::NoRoom, 1);
                continue;
            }
            match self.put(at, batch, *delivery) {
                Ok(bytes) => sent.delivered.add(1, bytes.into()),
                Err(why) => {
                    // Where there is no room for one, there is none for the next.
                    self.full.extend(Some(at).filter(|_| why == DropReason::NoRoom));
                    sent.drops.add(why, 1);
                }
            }
        }
        for at in &self.filled {
            self.rings[*at].iter_mut().for_each(|ring| ring.queue.publish());
        }
        sent
    }

    /// The worker has passed a fence since the queues were published.
    fn flush(&mut self) {
        while let Some(at) = self.filled.pop() {
            if let Some(ring) = &mut self.rings[at] {
                tell(ring);
            }
        }
    }

    fn arm(&mut self) {
        self.look_for_loss();
        self.transmits_mut().for_each(|ring| ring.queue.want_kicks());
    }

    fn disarm(&mut self) {
        self.ear.clear();
        self.transmits_mut().for_each(|ring| ring.queue.want_none());
    }

    fn pending(&mut self) -> bool {
        self.inbox.mail.is_waiting()
            || self.unfinished.finishing.is_some()
            || self.announcement.is_some()
            || self.transmits().any(|ring| ring.trouble.is_none() && ring.queue.pending())
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ear.as_fd())
    }
}

#[cfg(test)]
mod tests;
