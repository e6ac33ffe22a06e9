//! The worker's side of a virtual machine's port.
//!
//! ```text
//!   transmit queues ──► taken, one after the other ──► batch ──► switch
//!                   ◄── given back, when all are delivered ◄────
//!   receive queues  ◄── header and frame, copied into buffers ◄─ switch
//! ```
//!
//! A frame that the guest sends stays in guest memory until the switch copies it to its
//! destination: there is no copy in between. A guest that changes the frame meanwhile garbles its
//! own frame only. The switch reads addresses and tags once, decides by this copy, and delivers it.
//! Rules of a chain read further headers, which the guest can still change.
//!
//! Checksum and segmentation offloads stay with the frame: the receiver gets a partial checksum or
//! an unsegmented frame if it accepts that, in both directions.
//!
//! The work of a turn is bounded by the buffers that the port reads, not by the frames that it
//! makes of them: buffers that it drops cost time, too, and a driver can add more meanwhile. A turn
//! takes few long frames, because it copies them. Transmit queues are served in rotation.
//!
//! The port interrupts the driver for received frames as the queue's
//! [moderation](device::moderation) decides, and for transmitted buffers at once: drivers seldom
//! ask for that.
//!
//! The protocol thread replaces queues by [requests](super::handoff). If the port finds an error in
//! a queue, it marks the queue and tells the protocol thread, which takes the queue out. Guest
//! memory that was [truncated](ring::guest::lost) reads as zeros. These can look like an error, or
//! like an empty queue; so a port that goes to sleep checks for truncation.
//!
//! A frontend that is evicted can block the protocol thread, which then takes no queue out for as
//! long as the frontend likes. So the port looks itself whether the frontend was
//! [evicted](crate::machine::requests): from then on it acts as if it had no queues, and touches
//! them only to end a batch that it has taken, and to give them to the protocol thread.

mod notify;

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
use switch::{Adapter, DropReason, Drops, Sent};

use super::handoff::{Order, Orders, Ring, Trouble};
use crate::machine::requests::{Admission, Requests};
use crate::sys::vhost::{Event, KickPlace};

/// The most frames that a port takes in one turn.
const FRAMES: usize = intake::FRAMES as usize;
/// The most fragments that it reads in one turn, but for those of the last buffer. Of a list of
/// frames it writes no more fragments beyond the usual ones.
const PIECES: usize = PIECES_MAX;
/// The least number of fragments that a buffer counts for.
const PIECES_MIN: usize = PIECES / FRAMES;
/// The bytes that count as one fragment: a turn is 256 KiB.
const PIECE: u64 = 256;
/// The length of the frame that announces where a VM is.
const ANNOUNCEMENT: u32 = 60;

/// A port's queues; even numbers are the guest's receive queues.
pub(super) struct Machine {
    rings: Vec<Option<Box<Ring>>>,
    /// The interrupt moderation of each receive queue, by pair.
    moderation: Vec<Moderation>,
    /// Receive queues whose driver is owed an interrupt.
    owing: Vec<usize>,
    /// The origin of times.
    start: Instant,
    /// The pair whose transmit queue is the first in the next turn.
    first: usize,
    /// Receive queues that got frames since the last flush.
    filled: Vec<usize>,
    /// Receive queues that are full, while frames are delivered.
    full: Vec<usize>,
    orders: Orders,
    /// Says whether the frontend is evicted.
    requests: Arc<Requests>,
    /// The admission of the frontend that the queues are from.
    admission: Admission,
    /// Where the protocol thread has the queues' kicks ring.
    kicks: Arc<KickPlace>,
    /// Signals trouble to the protocol thread.
    trouble: Arc<Event>,
    /// Memory for announcements.
    intake: Intake,
    buffers: Buffers,
    /// Buffers of frames that are being delivered, with the number of their queue.
    held: Vec<(usize, Taken)>,
    /// The queues of those buffers.
    emptied: Vec<usize>,
    taken: Vec<Taken>,
    /// A MAC address to announce.
    announcement: Option<[u8; 6]>,
}

impl Machine {
    pub(super) fn new(
        queues: usize,
        coalesce: Option<Coalesce>,
        orders: Orders,
        requests: &Arc<Requests>,
        kicks: &Arc<KickPlace>,
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
            requests: requests.clone(),
            admission: Admission::default(),
            kicks: kicks.clone(),
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
        while let Some((admission, order)) = self.orders.next() {
            let is_another = self.admission != admission;
            debug_assert!(
                !is_another || self.rings.iter().all(Option::is_none),
                "a frontend takes all queues out before the next one comes"
            );
            self.admission = admission;
            match order {
                Order::Swap(at, ring, reply) => {
                    // The protocol thread waits for the answer.
                    let _ = reply.send(self.swap(at, ring));
                }
                Order::Announce(address, reply) => {
                    self.announcement = Some(address).filter(|_| !self.is_evicted());
                    let _ = reply.send(None);
                }
            }
        }
    }

    /// Puts a queue in the place of queue `at`, and returns the old one.
    fn swap(&mut self, at: usize, mut ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        if self.is_evicted() {
            return std::mem::replace(&mut self.rings[at], ring);
        }
        if let Some(ring) = &mut ring {
            ring.queue.want_none();
            // An earlier daemon may have died before it interrupted the driver for its last work.
            ring.call.iter().for_each(|call| call.tell());
        }
        let mut old = std::mem::replace(&mut self.rings[at], ring);
        // The next owner does not know which interrupts are owed.
        if let Some(old) = &mut old {
            store_load_fence();
            tell(old);
        }
        old
    }

    /// Whether the frontend that the queues are from was evicted.
    #[inline]
    fn is_evicted(&self) -> bool {
        self.requests.is_evicted(self.admission)
    }

    /// The queues that the port serves: none of a frontend that was evicted.
    #[inline]
    fn served(&self) -> &[Option<Box<Ring>>] {
        if self.is_evicted() { &[] } else { &self.rings }
    }

    fn served_mut(&mut self) -> &mut [Option<Box<Ring>>] {
        if self.is_evicted() { &mut [] } else { &mut self.rings }
    }

    /// Announces the VM's location to the network by a RARP request, as hosts do.
    #[cold]
    fn announce(&mut self, address: [u8; 6], batch: &mut Batch) {
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&address);
        // RARP; Ethernet, IPv4, address lengths, reverse request.
        frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        frame[22..28].copy_from_slice(&address);
        frame[32..38].copy_from_slice(&address);
        let first = batch.frags().len();
        self.intake.push(&[&frame], batch.frags());
        batch.push_received(first, ANNOUNCEMENT);
    }

    fn transmits(&self) -> impl Iterator<Item = &Ring> {
        self.served().iter().skip(1).step_by(2).flatten().map(Box::as_ref)
    }

    fn receives_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.served_mut().iter_mut().step_by(2).flatten().map(Box::as_mut)
    }

    fn transmits_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.served_mut().iter_mut().skip(1).step_by(2).flatten().map(Box::as_mut)
    }

    /// Copies a frame into a queue.
    fn put(
        &mut self,
        at: usize,
        batch: &Batch,
        delivery: Delivery,
        left: &mut usize,
    ) -> Result<u32, DropReason> {
        let ring = self.rings[at].as_mut().expect("it can be put into");
        let plain = put_plain(ring, &mut self.buffers, batch, delivery).transpose();
        let any = || put(ring, &mut self.buffers, &mut self.taken, batch, delivery, left);
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
                ring.trouble = Some(ring.trouble_of(why));
                self.trouble.set();
                Err(DropReason::LinkDown)
            }
        }
    }

    /// Copies listed frames into queues. What finds no room is dropped; or it `STOPS` there, if the
    /// queue has had more room before. Returns how many frames it has dealt with.
    #[inline(always)]
    fn put_list<const STOPS: bool>(&mut self, batch: &Batch, list: &[Delivery]) -> (Sent, usize) {
        let (mut sent, mut done) = (Sent::default(), list.len());
        self.full.clear();
        let (mut only, mut left) = (self.only_receive_queue(), PIECES);
        for (number, delivery) in list.iter().enumerate() {
            let entry = &batch.frames()[usize::from(delivery.frame)];
            let Some(at) = only.or_else(|| self.receive_queue(batch, entry)) else {
                sent.drops.add(DropReason::LinkDown, 1);
                continue;
            };
            if left == 0 || self.full.contains(&at) {
                if STOPS {
                    done = number;
                    break;
                }
                sent.drops.add(DropReason::NoRoom, 1);
                continue;
            }
            match self.put(at, batch, *delivery, &mut left) {
                Ok(bytes) => sent.delivered.add(1, bytes.into()),
                Err(DropReason::NoRoom) if STOPS && self.may_have_room_later(at) => {
                    done = number;
                    break;
                }
                Err(why) => {
                    if why == DropReason::NoRoom && !STOPS {
                        // If one frame finds no room, the next one does not either.
                        self.full.push(at);
                        self.moderation[at / 2].lose();
                    }
                    // An invalid queue is not used any more.
                    only = only.filter(|_| why != DropReason::LinkDown);
                    sent.drops.add(why, 1);
                }
            }
        }
        for at in &self.filled {
            self.rings[*at].iter_mut().for_each(|ring| ring.queue.publish());
        }
        (sent, done)
    }

    /// Whether a receive queue has had more buffers than it has now.
    fn may_have_room_later(&self, at: usize) -> bool {
        self.rings[at].as_ref().is_some_and(|ring| ring.queue.available() < ring.most)
    }

    /// Interrupts the driver of a receive queue if moderation allows it; notes the queue otherwise.
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

    /// Takes frames from the transmit queues in turn, as far as there is room.
    fn take(&mut self, batch: &mut Batch, drops: &mut Drops) {
        let Self { held, rings, first, buffers, trouble, .. } = self;
        let mut taking = Taking { held, batch, drops, left: PIECES };
        let (begin, pairs) = (*first, rings.len() / 2);
        for pair in (begin..pairs).chain(0..begin) {
            if !taking.has_room() {
                break;
            }
            // The last queue continues in the next turn, unless it had all of this one.
            *first = if pair == begin { (pair + 1) % pairs } else { pair };
            let Some(ring) = &mut rings[2 * pair + 1] else { continue };
            if ring.trouble.is_none()
                && let Err(why) = taking.drain(2 * pair + 1, ring, buffers)
            {
                ring.trouble = Some(ring.trouble_of(why));
                trouble.set();
            }
        }
    }

    /// Marks a queue whose dirty log was truncated while the port wrote to it.
    fn look_at_log(&mut self, at: usize) {
        let Some(ring) = &mut self.rings[at] else { return };
        if ring.log.as_ref().is_some_and(|log| log.is_lost()) {
            ring.trouble = Some(Trouble::Lost);
            self.trouble.set();
        }
    }

    /// Marks a queue if guest memory was truncated. All queues are in the same memory, so one
    /// stands for all.
    fn look_for_loss(&mut self) {
        let mut used = self.rings.iter_mut().flatten().filter(|ring| ring.trouble.is_none());
        if let Some(ring) = used.next().filter(|ring| ring.is_lost()) {
            ring.trouble = Some(Trouble::Lost);
            self.trouble.set();
        }
    }

    /// The receive queues that can take frames.
    #[inline]
    fn usable_queues(&self) -> impl Iterator<Item = (usize, &Ring)> + Clone {
        let receives = self.served().iter().enumerate().step_by(2);
        let there = receives.filter_map(|(at, ring)| Some((at, ring.as_deref()?)));
        there.filter(|(_, ring)| ring.is_usable())
    }

    /// The receive queue, if there is only one.
    fn only_receive_queue(&self) -> Option<usize> {
        let mut queues = self.usable_queues().map(|(at, _)| at);
        queues.next().filter(|_| queues.next().is_none())
    }

    /// The queue for a frame: the same one for all frames of a flow, so that they stay in order,
    /// and for both directions of a flow if both sides have as many queues.
    #[inline]
    fn receive_queue(&self, batch: &Batch, entry: &Entry) -> Option<usize> {
        let mut queues = self.usable_queues().map(|(at, _)| at);
        let count = queues.clone().count();
        let chosen = if count < 2 { 0 } else { batch.flow(entry) as usize % count };
        queues.nth(chosen)
    }
}

/// Frames that are being taken from transmit queues.
struct Taking<'a> {
    held: &'a mut Vec<(usize, Taken)>,
    batch: &'a mut Batch,
    drops: &'a mut Drops,
    /// The number of fragments that this turn may still read.
    left: usize,
}

impl Taking<'_> {
    fn has_room(&self) -> bool {
        self.batch.has_room() && self.left > 0
    }

    /// Takes the frames of a queue, as far as there is room.
    fn drain(&mut self, at: usize, ring: &mut Ring, buffers: &mut Buffers) -> Result<(), Broken> {
        // While memory is hot-plugged, queues can differ in memory for a moment; this one waits for
        // the next turn.
        while self.has_room() && self.batch.accepts_guest(&ring.memory) {
            buffers.clear();
            ring.queue.prefetch(&ring.memory);
            let Some(taken) = ring.queue.next(&ring.memory, buffers)? else { break };
            let long = usize::try_from(taken.bytes / PIECE).unwrap_or(usize::MAX);
            let pieces = buffers.slices().len().max(long).max(PIECES_MIN);
            self.left = self.left.saturating_sub(pieces);
            if let Err(why) = self.accept(ring, buffers) {
                self.drops.add(why, 1);
            }
            self.held.push((at, taken));
        }
        Ok(())
    }

    /// Takes one frame.
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
        let mut reader = Reader::new(&ring.memory, buffers.slices());
        let mut header = [0; HEADER_MAX];
        reader.read(&mut header[..ring.header]);
        let header = header.first_chunk::<VNET_LEN>().expect("it is longer");
        // A driver must not claim that it has validated a checksum (5.1.6.2.1).
        let left =
            if needs_offload(header) { PendingOffload::read(*header, bytes) } else { Ok(None) };
        let left = left.map_err(|_| DropReason::Offload)?;
        let bytes = u32::try_from(bytes).expect("bounded");
        self.batch.push_guest(&ring.memory, &reader, bytes);
        left.map_or(Ok(()), |left| self.batch.push_offload(left)).map_err(|_| DropReason::Offload)
    }

    /// [`Self::accept`] for most frames: without offloads, in one fragment. Returns `false` for
    /// others.
    #[inline]
    fn accept_piece(&mut self, ring: &Ring, buffers: &Buffers) -> bool {
        let &[whole] = buffers.slices() else { return false };
        let is_blank = |header: [u8; VNET_LEN]| header == [0; VNET_LEN];
        let header = u32::try_from(ring.header).expect("it is short");
        let frame = whole.behind(header);
        ring.memory.first(whole).is_some_and(is_blank)
            && frame.is_some_and(|frame| self.batch.push_guest_slice(&ring.memory, frame))
    }
}

/// Interrupts the driver, if it asked for that.
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

/// The header of a frame without offloads, in one buffer.
const PLAIN: [u8; HEADER_MAX] = header([0; LEFT], 1);
/// The length of that header.
const BEFORE: u32 = 12;
const _: () = assert!(BEFORE as usize == HEADER_MAX);

/// Delivers most frames into most buffers: a frame without offloads, in one fragment, into one
/// buffer. Returns `None` for others, without effect.
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
    if let &[only] = buffers.slices()
        && frame.write_single(&PLAIN, header, &ring.memory, only)
    {
        ring.queue.give_back(one, frame.bytes + BEFORE);
        return Ok(Some(frame.bytes));
    }
    ring.queue.rewind(mark);
    Ok(None)
}

/// Copies one frame into as many buffers as it needs; returns the bytes delivered. Takes the
/// fragments of too small buffers from `left`.
#[inline(never)]
fn put(
    ring: &mut Ring,
    buffers: &mut Buffers,
    taken: &mut Vec<Taken>,
    batch: &Batch,
    delivery: Delivery,
    left: &mut usize,
) -> Result<u32, NotPut> {
    let entry = &batch.frames()[usize::from(delivery.frame)];
    let head = prologue(entry, delivery.tag);
    let bytes = entry.bytes - u32::from(head.skip) + u32::from(head.len);
    let needed = u64::from(bytes) + ring.header as u64;
    let mark = ring.queue.mark();
    buffers.clear();
    taken.clear();
    while buffers.bytes() < needed {
        // Without mergeable buffers, a frame must fit into one.
        let too_long = !ring.mergeable && !taken.is_empty();
        let full = too_long || taken.len() == PIECES_MAX;
        let next = if full { Ok(None) } else { ring.queue.next(&ring.memory, buffers) };
        let Ok(Some(one)) = next else {
            // Also if the queue is invalid: its next owner begins with these buffers.
            ring.queue.rewind(mark);
            next?;
            // If it cost more than usual, the search is not repeated for the next frame.
            let usual = buffers.slices().len() <= PIECES_MIN;
            let why = if too_long && usual { DropReason::TooLong } else { DropReason::NoRoom };
            return Err(NotPut::Dropped(why));
        };
        taken.push(one);
    }
    let usual = PIECES_MIN + usize::try_from(needed / PIECE).expect("a frame is short");
    *left = left.saturating_sub(buffers.slices().len().saturating_sub(usual));
    let knows = ring.accepts.contain(Offloads::CHECKSUM);
    let left = batch.offload(delivery).filter(|_| knows).map_or([0; LEFT], PendingOffload::bytes);
    let header = header(left, u16::try_from(taken.len()).expect("few"));
    let mut writer = Writer::new(&ring.memory, buffers.slices());
    writer.write(&header[..ring.header]);
    batch.frame(entry).write_to(head, &mut writer);
    if let Some(log) = &ring.log {
        log.mark_slices(&ring.memory, buffers.slices(), needed);
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
        if !self.is_evicted() {
            self.take(batch, drops);
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        self.put_list::<false>(batch, list).0
    }

    fn send_until_full(&mut self, batch: &Batch, list: &[Delivery]) -> (Sent, usize) {
        for ring in self.receives_mut() {
            ring.most = ring.most.max(ring.queue.available());
        }
        self.put_list::<true>(batch, list)
    }

    /// Returns the buffers, in the order in which they were taken.
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

    /// The driver negotiates one set of features for all queues.
    fn accepts(&self) -> Offloads {
        let mut queues = self.rings.iter().step_by(2).flatten();
        queues.next().map_or(Offloads::NONE, |ring| ring.accepts)
    }

    /// The worker has passed a fence since the queues were published.
    fn flush(&mut self) {
        if self.is_evicted() {
            self.emptied.clear();
            self.filled.clear();
        }
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

    /// The room of the fullest queue, because the flow selects the queue.
    fn room(&mut self) -> u32 {
        self.usable_queues().map(|(_, ring)| ring.room()).min().unwrap_or(u32::MAX)
    }
}

impl Drop for Machine {
    /// Sends the interrupts that moderation has delayed.
    fn drop(&mut self) {
        if self.is_evicted() {
            return;
        }
        store_load_fence();
        let Self { rings, moderation, .. } = self;
        let owed = rings.iter_mut().step_by(2).zip(moderation).filter(|(_, queue)| queue.owes());
        owed.filter_map(|(ring, _)| ring.as_mut()).for_each(|ring| tell(ring));
    }
}

#[cfg(test)]
mod tests;
