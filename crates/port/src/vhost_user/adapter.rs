//! The worker's side of a virtual machine's port.
//!
//! ```text
//!   transmit queues ──► taken, one after the other ──► batch ──► switch
//!                   ◄── given back, when all are delivered ◄────
//!   receive queues  ◄── header and frame, copied into buffers ◄─ switch
//! ```
//!
//! A frame that the guest sends stays where it is until it is copied to where it goes: there is no
//! copy in between. A guest that changes it meanwhile garbles its own frame; what a switch decides
//! from, addresses and tags, was read once and is delivered as it was read. Rules of a chain look
//! further into it: what they saw there need not be what arrives.
//!
//! What the guest left to its network card (a checksum begun, a run of segments) goes with the
//! frame to whoever gets it, and what others left to theirs is put before a guest that takes it.
//!
//! A turn is bounded by what is looked at, not by what comes of it: buffers that are thrown away
//! cost time as well, and a driver can make more of them meanwhile. Long frames are few in a turn:
//! they are copied in it. Transmit queues take turns.
//!
//! The driver is told of what its receive queues got as their [moderation](device::moderation)
//! says; of what was sent for it, at once: drivers seldom ask for that.
//!
//! Queues come and go by [orders](super::handoff). What is wrong with one is noted in it; the
//! protocol thread is told and takes it out. Memory that was [taken away](ring::guest::lost) reads
//! as zeros. They may be nonsense, or a queue that is empty for ever: a port that falls asleep
//! looks whether it is that.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use device::moderation::{Coalesce, Moderation};
use device::virtio_net::{HEADER_MAX, LEFT, header};
use device::virtqueue::{Broken, Buffers, PIECES_MAX, Taken};
use packet::offload::{Offloads, PendingOffload, VNET_LEN, needs_offload};
use ring::doorbell::store_load_fence;
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::guest::{Reader, Writer};
use ring::intake::{self, Intake};
use switch::receive::batch::{Batch, Delivery, Entry, prologue};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use super::handoff::{Order, Orders, Ring, Trouble};
use crate::sys::vhost::{EpollSet, Event};

/// Frames that a port takes in one turn.
const FRAMES: usize = intake::FRAMES as usize;
/// Pieces that it looks at in one turn, but for those of its last buffer.
const PIECES: usize = PIECES_MAX;
/// What a buffer counts for at least.
const PIECES_MIN: usize = PIECES / FRAMES;
/// Bytes that count as much as a piece: 256 KiB are a turn.
const PIECE: u64 = 256;
/// Bytes of a frame by which the network is told where a machine is.
const ANNOUNCEMENT: u32 = 60;

/// A port's queues, the guest's to receive at even places.
pub(super) struct Machine {
    rings: Vec<Option<Box<Ring>>>,
    /// When the driver is told of what a receive queue got, by pair.
    moderation: Vec<Moderation>,
    /// Receive queues whose driver is owed an interrupt.
    owing: Vec<usize>,
    /// What times are counted from.
    start: Instant,
    /// The pair whose transmit queue is the first in the next turn.
    first: usize,
    /// Receive queues in which something was put since the last flush.
    filled: Vec<usize>,
    /// Receive queues without room, while frames are put.
    full: Vec<usize>,
    orders: Orders,
    epoll_set: Arc<EpollSet>,
    /// Tells the protocol thread of trouble.
    trouble: Arc<Event>,
    /// For frames of ours.
    intake: Intake,
    buffers: Buffers,
    /// Buffers of frames that are being delivered, by the queue that they come from.
    held: Vec<(usize, Taken)>,
    /// Those queues.
    emptied: Vec<usize>,
    taken: Vec<Taken>,
    /// An address to be announced.
    announcement: Option<[u8; 6]>,
}

impl Machine {
    pub(super) fn new(
        queues: usize,
        coalesce: Option<Coalesce>,
        orders: Orders,
        epoll_set: &Arc<EpollSet>,
        trouble: &Arc<Event>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            rings: (0..queues).map(|_| None).collect(),
            moderation: vec![Moderation::new(coalesce); queues.div_ceil(2)],
            owing: Vec::with_capacity(queues),
            start: Instant::now(),
            first: 0,
            filled: Vec::with_capacity(queues),
            full: Vec::with_capacity(queues),
            orders,
            epoll_set: epoll_set.clone(),
            trouble: trouble.clone(),
            intake: Intake::new(1, ANNOUNCEMENT)?,
            held: Vec::with_capacity(FRAMES + 1),
            emptied: Vec::with_capacity(queues),
            buffers: Buffers::default(),
            taken: Vec::with_capacity(PIECES_MAX),
            announcement: None,
        })
    }

    #[cold]
    fn take_orders(&mut self) {
        while let Some(order) = self.orders.next() {
            match order {
                Order::Swap(at, mut ring, reply) => {
                    if let Some(ring) = &mut ring {
                        ring.queue.want_none();
                        // A predecessor may have died before it told the driver of its last work.
                        ring.call.iter().for_each(|call| call.tell());
                    }
                    let mut old = std::mem::replace(&mut self.rings[at], ring);
                    // Whoever has it next does not know of what the driver was not told yet.
                    if let Some(old) = &mut old {
                        store_load_fence();
                        tell(old);
                    }
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
        batch.push_received(first, ANNOUNCEMENT);
    }

    fn transmits(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter().skip(1).step_by(2).flatten().map(Box::as_ref)
    }

    fn receives_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.rings.iter_mut().step_by(2).flatten().map(Box::as_mut)
    }

    fn transmits_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.rings.iter_mut().skip(1).step_by(2).flatten().map(Box::as_mut)
    }

    /// Puts a frame into a queue.
    fn put(&mut self, at: usize, batch: &Batch, delivery: Delivery) -> Result<u32, DropReason> {
        let ring = self.rings[at].as_mut().expect("it can be put into");
        let plain = put_plain(ring, &mut self.buffers, batch, delivery).transpose();
        let any = || put(ring, &mut self.buffers, &mut self.taken, batch, delivery);
        match plain.unwrap_or_else(any) {
            Ok(bytes) => {
                self.moderation[at / 2].add(1);
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

    /// Tells the driver what a receive queue has got, if it is time; notes it if not.
    fn remind(&mut self, at: usize) {
        let Self { rings, moderation, owing, start, .. } = self;
        let Some(ring) = &mut rings[at] else { return };
        let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let queue = &mut moderation[at / 2];
        if queue.due(now_ns) {
            tell(ring);
        } else if queue.owes() && !owing.contains(&at) {
            owing.push(at);
        }
    }

    /// Takes what the transmit queues have, one after the other, as far as there is room.
    fn take(&mut self, batch: &mut Batch, drops: &mut Drops) {
        let Self { held, rings, first, buffers, trouble, .. } = self;
        let mut taking = Taking { held, batch, drops, left: PIECES };
        let (begin, pairs) = (*first, rings.len() / 2);
        for pair in (begin..pairs).chain(0..begin) {
            if !taking.has_room() {
                break;
            }
            // The last one goes on in the next turn, unless it had all of this one.
            *first = if pair == begin { (pair + 1) % pairs } else { pair };
            let Some(ring) = &mut rings[2 * pair + 1] else { continue };
            if ring.trouble.is_none()
                && let Err(why) = taking.drain(2 * pair + 1, ring, buffers)
            {
                ring.trouble = Some(trouble_of(ring, why));
                trouble.set();
            }
        }
    }

    /// Notes it if a log is lost that a queue has just written to: nothing else would show it.
    fn look_at_log(&mut self, at: usize) {
        let Some(ring) = &mut self.rings[at] else { return };
        if ring.log.as_ref().is_some_and(|log| log.is_lost()) {
            ring.trouble = Some(Trouble::Lost);
            self.trouble.set();
        }
    }

    /// Notes it if the memory is lost. All queues lie in the same, so that one stands for all.
    fn look_for_loss(&mut self) {
        let mut used = self.rings.iter_mut().flatten().filter(|ring| ring.trouble.is_none());
        if let Some(ring) = used.next().filter(|ring| ring.is_lost()) {
            ring.trouble = Some(Trouble::Lost);
            self.trouble.set();
        }
    }

    /// The receive queues that frames can be put into.
    #[inline]
    fn usable_queues(&self) -> impl Iterator<Item = (usize, &Ring)> + Clone {
        let receives = self.rings.iter().enumerate().step_by(2);
        let there = receives.filter_map(|(at, ring)| Some((at, ring.as_deref()?)));
        there.filter(|(_, ring)| ring.is_usable())
    }

    /// The receive queue, if there is one only.
    fn only_receive_queue(&self) -> Option<usize> {
        let mut queues = self.usable_queues().map(|(at, _)| at);
        queues.next().filter(|_| queues.next().is_none())
    }

    /// The queue that a frame is put into: of several, always the same for the frames of one flow,
    /// so that none of them overtakes another, and for the answers, where both have as many.
    #[inline]
    fn receive_queue(&self, batch: &Batch, entry: &Entry) -> Option<usize> {
        let mut queues = self.usable_queues().map(|(at, _)| at);
        let count = queues.clone().count();
        let chosen = if count < 2 { 0 } else { batch.flow(entry) as usize % count };
        queues.nth(chosen)
    }
}

/// What is taken from a queue, and where it goes.
struct Taking<'a> {
    held: &'a mut Vec<(usize, Taken)>,
    batch: &'a mut Batch,
    drops: &'a mut Drops,
    /// Pieces that may still be looked at.
    left: usize,
}

impl Taking<'_> {
    fn has_room(&self) -> bool {
        self.batch.has_room() && self.left > 0
    }

    /// Takes what a queue has, as far as there is room.
    fn drain(&mut self, at: usize, ring: &mut Ring, buffers: &mut Buffers) -> Result<(), Broken> {
        // While memory is plugged in, queues differ for a moment: this one waits for the next turn.
        while self.has_room() && self.batch.may_lend(&ring.memory) {
            buffers.clear();
            ring.queue.prefetch(&ring.memory);
            let Some(taken) = ring.queue.next(&ring.memory, buffers)? else { break };
            let long = usize::try_from(taken.bytes / PIECE).unwrap_or(usize::MAX);
            let pieces = buffers.spans().len().max(long).max(PIECES_MIN);
            self.left = self.left.saturating_sub(pieces);
            if let Err(why) = self.accept(ring, buffers) {
                self.drops.add(why, 1);
            }
            self.held.push((at, taken));
        }
        Ok(())
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
        if self.accept_piece(ring, buffers) {
            return Ok(());
        }
        let mut reader = Reader::new(&ring.memory, buffers.spans());
        let mut header = [0; HEADER_MAX];
        reader.read(&mut header[..ring.header]);
        let header = header.first_chunk::<VNET_LEN>().expect("it is longer");
        // That it has looked at a checksum itself, a guest may not say (5.1.6.2.1).
        let left =
            if needs_offload(header) { PendingOffload::read(*header, bytes) } else { Ok(None) };
        let left = left.map_err(|_| DropReason::Offload)?;
        let bytes = u32::try_from(bytes).expect("bounded");
        self.batch.push_lent(&ring.memory, &reader, bytes);
        if let Some(left) = left {
            self.batch.push_left(left);
        }
        Ok(())
    }

    /// The same for what most frames are: finished, in one piece. `false`: it is not that.
    #[inline]
    fn accept_piece(&mut self, ring: &Ring, buffers: &Buffers) -> bool {
        let &[whole] = buffers.spans() else { return false };
        let is_blank = |header: [u8; VNET_LEN]| header == [0; VNET_LEN];
        let header = u32::try_from(ring.header).expect("it is short");
        let frame = whole.behind(header);
        ring.memory.first(whole).is_some_and(is_blank)
            && frame.is_some_and(|frame| self.batch.push_lent_piece(&ring.memory, frame))
    }
}

/// Interrupts the driver, if it wants that.
fn tell(ring: &mut Ring) {
    if let Some(call) = &ring.log_call {
        call.tell();
    }
    if ring.queue.must_tell()
        && let Some(call) = &ring.call
    {
        call.tell();
    }
}

/// What is behind a queue that makes no sense: where memory is lost, it is the zeros that do not.
#[cold]
fn trouble_of(ring: &Ring, why: Broken) -> Trouble {
    if ring.is_lost() { Trouble::Lost } else { Trouble::Broken(why) }
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

/// In front of a frame to which nothing is left to do, in one buffer.
const PLAIN: [u8; HEADER_MAX] = header([0; LEFT], 1);
/// Its length.
const BEFORE: u32 = 12;
const _: () = assert!(BEFORE as usize == HEADER_MAX);

/// Puts what most frames are into what most buffers are: a finished frame, as it is, in one piece,
/// into one piece. `None`: it is not that, and nothing was done.
#[inline(always)]
fn put_plain(
    ring: &mut Ring,
    buffers: &mut Buffers,
    batch: &Batch,
    delivery: Delivery,
) -> Result<Option<u32>, NotPut> {
    let usual = ring.mergeable && ring.header == HEADER_MAX && ring.log.is_none();
    let Some((frame, header)) = batch.plain(delivery).filter(|_| usual) else { return Ok(None) };
    let mark = ring.queue.mark();
    buffers.clear();
    ring.queue.prefetch(&ring.memory);
    let Some(one) = ring.queue.next(&ring.memory, buffers)? else {
        return Err(NotPut::Dropped(DropReason::NoRoom));
    };
    if let &[only] = buffers.spans()
        && frame.write_single(&PLAIN, header, &ring.memory, only)
    {
        ring.queue.give_back(one, frame.bytes + BEFORE);
        return Ok(Some(frame.bytes));
    }
    ring.queue.rewind(mark);
    Ok(None)
}

/// Puts one frame into as many buffers as it takes; returns the bytes delivered.
#[inline(never)]
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
        let next = if full { Ok(None) } else { ring.queue.next(&ring.memory, buffers) };
        let Ok(Some(one)) = next else {
            // Also where the queue broke: whoever goes on with it begins with these buffers.
            ring.queue.rewind(mark);
            next?;
            // In vain: not once more for the next frame, if it was more work than usual.
            let usual = buffers.spans().len() <= PIECES_MIN;
            let why = if too_long && usual { DropReason::TooLong } else { DropReason::NoRoom };
            return Err(NotPut::Dropped(why));
        };
        taken.push(one);
    }
    let knows = ring.accepts.contain(Offloads::CHECKSUM);
    let left = batch.left(delivery).filter(|_| knows).map_or([0; LEFT], PendingOffload::bytes);
    let header = header(left, u16::try_from(taken.len()).expect("few"));
    let mut writer = Writer::new(&ring.memory, buffers.spans());
    writer.write(&header[..ring.header]);
    batch.frame(entry).write_to(head, &mut writer);
    if let Some(log) = &ring.log {
        log.mark_spans(&ring.memory, buffers.spans(), needed);
    }
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
        if self.orders.signal.is_set() {
            self.take_orders();
        }
        debug_assert!(self.held.is_empty(), "all was delivered");
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
        let mut only = self.only_receive_queue();
        for delivery in list {
            let entry = &batch.frames()[usize::from(delivery.frame)];
            let Some(at) = only.or_else(|| self.receive_queue(batch, entry)) else {
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
                    if why == DropReason::NoRoom {
                        // Where there is no room for one, there is none for the next.
                        self.full.push(at);
                        self.moderation[at / 2].lose();
                    }
                    // A queue that broke is none any more.
                    only = only.filter(|_| why != DropReason::LinkDown);
                    sent.drops.add(why, 1);
                }
            }
        }
        for at in &self.filled {
            self.rings[*at].iter_mut().for_each(|ring| ring.queue.publish());
        }
        sent
    }

    /// Gives the buffers back, in the order in which they were taken.
    fn delivered(&mut self) -> bool {
        for (at, taken) in self.held.drain(..) {
            let ring = self.rings[at].as_mut().expect("queues change between turns");
            ring.queue.give_back(taken, 0);
            if !self.emptied.contains(&at) {
                self.emptied.push(at);
            }
        }
        for at in &self.emptied {
            self.rings[*at].iter_mut().for_each(|ring| ring.queue.publish());
        }
        !self.emptied.is_empty()
    }

    /// Its driver knows one set of features for all queues.
    fn accepts(&self) -> Offloads {
        let mut queues = self.rings.iter().step_by(2).flatten();
        queues.next().map_or(Offloads::NONE, |ring| ring.accepts)
    }

    /// The worker has passed a fence since the queues were published.
    fn flush(&mut self) {
        while let Some(at) = self.emptied.pop() {
            self.rings[at].iter_mut().for_each(|ring| tell(ring));
        }
        while let Some(at) = self.filled.pop() {
            self.look_at_log(at);
            self.remind(at);
        }
    }

    fn can_wait(&self) -> bool {
        true
    }

    /// Of the fullest queue: which one frames take is not known before.
    fn room(&mut self) -> u32 {
        self.usable_queues().map(|(_, ring)| ring.room()).min().unwrap_or(u32::MAX)
    }
}

impl Notify for Machine {
    fn owes_wake(&self) -> bool {
        !self.owing.is_empty()
    }

    /// The worker has passed fences since.
    fn wake_if_due(&mut self) {
        for _ in 0..self.owing.len() {
            let at = self.owing.swap_remove(0);
            self.remind(at);
        }
    }

    fn want_room(&mut self) {
        self.receives_mut().for_each(|ring| ring.queue.want_kicks());
    }

    fn found_room(&mut self) {
        self.receives_mut().for_each(|ring| ring.queue.want_none());
    }

    fn arm(&mut self) {
        self.look_for_loss();
        self.transmits_mut().for_each(|ring| ring.queue.want_kicks());
    }

    fn disarm(&mut self) {
        self.epoll_set.clear();
        self.transmits_mut().for_each(|ring| ring.queue.want_none());
    }

    fn pending(&mut self) -> bool {
        self.orders.signal.is_set()
            || self.announcement.is_some()
            || self.transmits().any(|ring| ring.trouble.is_none() && ring.queue.pending())
    }

    fn watched(&self) -> Option<&dyn Any> {
        Some(self.epoll_set.descriptor())
    }
}

impl Drop for Machine {
    /// What an interrupt was put off for, the driver hears of before nobody is there to tell it.
    fn drop(&mut self) {
        store_load_fence();
        let Self { rings, moderation, .. } = self;
        let owed = rings.iter_mut().step_by(2).zip(moderation).filter(|(_, queue)| queue.owes());
        owed.filter_map(|(ring, _)| ring.as_mut()).for_each(|ring| tell(ring));
    }
}

#[cfg(test)]
mod tests;
