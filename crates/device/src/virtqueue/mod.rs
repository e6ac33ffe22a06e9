//! The device's half of a virtqueue (2.6 to 2.8).
//!
//! # Theory of operation
//!
//! ```text
//!   driver                               device
//!   fills buffers, makes them available ──► next()       their pieces, bounded, as spans
//!                                            │  copied from or to
//!                                           give_back()   noted
//!   takes them back ◄────────────────────── publish()     all at once
//! ```
//!
//! A *buffer* is a list of descriptors: chained in the queue's own table, or in a table of its own
//! in the guest's memory (*indirect*). [`Queue::next`] walks one and appends its pieces to
//! [`Buffers`]; what the guest says there (indexes, addresses, lengths, flags) is bounded on the
//! way, once, and comes out as [`GuestSlice`]s that cannot be out of range. A receive queue asks for
//! buffers until a frame fits, and [rewinds](Queue::rewind) if there are too few.
//!
//! Buffers go back in the order in which they came, all before anything that waits, so that a
//! queue's whole state between two turns is where it is: [`Queue::base`], with which a successor
//! goes on.
//!
//! What makes no sense ([`Broken`]) ends the queue: nothing can be believed of it any more. Its
//! owner stops to use it until the driver sets it up anew.

mod inflight;
mod packed;
mod split;

pub use inflight::{Inflight, area_len};

use core::sync::atomic::Ordering;
use std::sync::Arc;

use ring::guest::log::DirtyLog;
use ring::guest::{GuestMemory, GuestSlice, Window};

/// Feature bits that the queues depend on (6).
pub mod features {
    /// A frame may fill several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Buffers may be described by tables of their own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
    /// The queues are packed.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers come back in the order in which they were made available: ours always do. Drivers
    /// that know it have less to look at.
    pub const IN_ORDER: u64 = 1 << 35;
}

/// Largest queue (2.7, 2.8.10.1).
pub const SIZE_MAX: u16 = 32768;
/// Most pieces of what is taken at a time. QEMU allows its guests as many for one buffer.
pub const PIECES_MAX: usize = 1024;

/// A buffer is fetched so many buffers before it is taken.
const AHEAD: u16 = 6;

/// Flags of a descriptor (2.7.5, 2.8.1).
mod flag {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// What a driver has done that none may do. The queue cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// 2.7.13: the available index is further ahead than the queue is long.
    #[error("its available index makes no sense")]
    Index,
    /// 2.7.5: a descriptor that is not in its table.
    #[error("it names a descriptor that is not there")]
    Descriptor,
    /// 2.7.5.2: the chain goes round.
    #[error("a chain of descriptors has no end")]
    Loop,
    /// An address that is not in the guest's memory.
    #[error("a buffer lies outside of the guest's memory")]
    Address,
    /// A piece of no bytes.
    #[error("a buffer has an empty piece")]
    Empty,
    /// 2.6: what is to be read where it is to be written, or the other way round.
    #[error("a buffer is to be read where it should be written, or written where read")]
    Direction,
    /// 2.7.5.3: a table in a table, or one that is no table.
    #[error("an indirect table makes no sense")]
    Table,
    /// More pieces than [`PIECES_MAX`].
    #[error("a buffer has too many pieces")]
    Pieces,
}

/// Why there is no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQueue {
    /// Not a size that a queue can have.
    #[error("a queue of {0} buffers")]
    Size(u32),
    /// A part of it is not in the guest's memory in one piece, or not aligned.
    #[error("the {0} of a queue are not in the guest's memory")]
    Place(&'static str),
    /// There is no room to note how far it is.
    #[error("a queue of {0} buffers, more than its inflight area has room for")]
    Inflight(u16),
    /// Its indexes are not those of a queue of this size.
    #[error("a queue that begins at {0}")]
    Base(u32),
}

/// Who reads the buffers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device: a transmit queue.
    Read,
    /// The driver, what the device writes: a receive queue.
    Write,
}

/// Where a queue lies, in the address space of the process that lends the memory (2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The descriptor area.
    pub descriptors: u64,
    /// The driver area.
    pub driver: u64,
    /// The device area.
    pub device: u64,
}

/// The three parts of a queue.
#[derive(Debug)]
struct Areas {
    descriptors: Window,
    driver: Window,
    device: Window,
    log: Option<Log>,
    inflight: Option<Inflight>,
}

/// Where the pages are noted that we write.
#[derive(Debug)]
struct Log {
    log: Arc<DirtyLog>,
    /// Guest address of the device area.
    device: u64,
}

impl Log {
    /// Notes that some of the device area was written.
    fn mark_device(&self, offset: usize, len: usize) {
        mark(&self.log, self.device, offset, len);
    }
}

/// Notes that a part of an area that begins at `guest` was written.
fn mark(log: &DirtyLog, guest: u64, offset: usize, len: usize) {
    let len = u32::try_from(len).expect("the largest queue has 512 KiB");
    log.mark(guest.wrapping_add(offset as u64), len);
}

impl Areas {
    fn find(
        memory: &GuestMemory,
        places: Places,
        sizes: [usize; 3],
        aligns: [usize; 3],
    ) -> Result<Self, BadQueue> {
        let find = |i: usize, place, what| {
            memory.window(place, sizes[i], aligns[i]).ok_or(BadQueue::Place(what))
        };
        Ok(Self {
            descriptors: find(0, places.descriptors, "descriptors")?,
            driver: find(1, places.driver, "words of the driver")?,
            device: find(2, places.device, "words of the device")?,
            log: None,
            inflight: None,
        })
    }

    /// Notes that the words were written with which we ask for kicks.
    fn log_suppression(&self, event: usize) {
        if let Some(log) = &self.log {
            log.mark_device(0, event);
            log.mark_device(self.device.len() - event, event);
        }
    }

    /// Fetches the beginning of what descriptor `at`, which is in the ring, stands for.
    #[inline(always)]
    fn prefetch(&self, memory: &GuestMemory, direction: Direction, at: u16) {
        let Descriptor { address, len, .. } = Descriptor::split(self.descriptor(at));
        if let Some(span) = memory.span(address, len) {
            memory.prefetch(span, direction == Direction::Write);
        }
    }

    /// The words of descriptor `at`, which is in the ring.
    #[inline]
    fn descriptor(&self, at: u16) -> [u64; 2] {
        let place = usize::from(at) * DESCRIPTOR;
        [place, place + 8]
            .map(|place| u64::from_le(self.descriptors.u64(place).load(Ordering::Relaxed)))
    }
}

/// The pieces of buffers that were taken.
#[derive(Debug)]
pub struct Buffers {
    spans: Vec<GuestSlice>,
    bytes: u64,
}

impl Default for Buffers {
    /// Has its capacity from the start.
    fn default() -> Self {
        Self { spans: Vec::with_capacity(PIECES_MAX), bytes: 0 }
    }
}

impl Buffers {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.bytes = 0;
    }

    /// The pieces, in order.
    #[must_use]
    pub fn spans(&self) -> &[GuestSlice] {
        &self.spans
    }

    /// Sum of their lengths.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Is there room for another piece?
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.spans.len() < PIECES_MAX
    }

    /// Appends what one descriptor stands for.
    #[inline(always)]
    fn push(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        descriptor: Descriptor,
    ) -> Result<(), Broken> {
        let Descriptor { address, len, flags, .. } = descriptor;
        if (flags & flag::WRITE != 0) != (direction == Direction::Write) {
            return Err(Broken::Direction);
        }
        if len == 0 {
            return Err(Broken::Empty);
        }
        if !memory.spans(address, len, &mut self.spans, PIECES_MAX) {
            return Err(if self.has_room() { Broken::Address } else { Broken::Pieces });
        }
        self.bytes += u64::from(len);
        Ok(())
    }
}

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    /// The next of a chain; of a packed queue, the buffer's number.
    next: u16,
}

impl Descriptor {
    /// From its two words, as a table of a split queue has them (2.7.5).
    #[inline]
    fn split([address, rest]: [u64; 2]) -> Self {
        let [l0, l1, l2, l3, f0, f1, n0, n1] = rest.to_le_bytes();
        let (flags, next) = (u16::from_le_bytes([f0, f1]), u16::from_le_bytes([n0, n1]));
        Self { address, len: u32::from_le_bytes([l0, l1, l2, l3]), flags, next }
    }

    /// The same of a packed queue, where number and flags are the other way round (2.8.13).
    #[inline]
    fn packed(words: [u64; 2]) -> Self {
        let Self { address, len, flags, next } = Self::split(words);
        Self { address, len, flags: next, next: flags }
    }

    /// How many descriptors the table has that it stands for.
    #[inline]
    fn table(self) -> Result<u64, Broken> {
        let entries = u64::from(self.len) / DESCRIPTOR as u64;
        let whole = self.len.is_multiple_of(16) && entries > 0;
        let alone = self.flags & flag::NEXT == 0;
        if whole && alone { Ok(entries) } else { Err(Broken::Table) }
    }

    /// The words of entry `at` of that table.
    #[inline]
    fn entry(self, memory: &GuestMemory, at: u64) -> Result<[u64; 2], Broken> {
        let place = self.address.checked_add(at * DESCRIPTOR as u64);
        place.and_then(|place| memory.words(place)).ok_or(Broken::Address)
    }
}

/// A buffer that was taken and is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How the driver calls it, and how many descriptors of a packed queue it takes up. In one
    /// word, so that it is stored as it is loaded.
    name: u64,
    /// Bytes that it holds.
    pub bytes: u64,
}

impl Taken {
    #[inline(always)]
    fn new(id: u16, slots: u16, bytes: u64) -> Self {
        Self { name: u64::from(id) | u64::from(slots) << 16, bytes }
    }

    #[inline(always)]
    fn id(self) -> u16 {
        let [low, high, ..] = self.name.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    #[inline(always)]
    fn slots(self) -> u16 {
        let [_, _, low, high, ..] = self.name.to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

/// Where a queue was before something was taken.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u16, bool);

/// A virtqueue.
#[derive(Debug)]
pub enum Queue {
    /// 2.7.
    Split(split::Split),
    /// 2.8.
    Packed(packed::Packed),
}

macro_rules! each {
    ($self:ident, $queue:ident => $body:expr) => {
        match $self {
            Self::Split($queue) => $body,
            Self::Packed($queue) => $body,
        }
    };
}

impl Queue {
    /// The queue of `size` buffers at these places, which goes on where another has ended.
    ///
    /// # Errors
    /// [`BadQueue`]
    pub fn new(
        memory: &GuestMemory,
        places: Places,
        direction: Direction,
        size: u32,
        base: u32,
        features: u64,
    ) -> Result<Self, BadQueue> {
        if features & features::RING_PACKED == 0 {
            split::Split::new(memory, places, direction, size, base, features).map(Self::Split)
        } else {
            packed::Packed::new(memory, places, direction, size, base, features).map(Self::Packed)
        }
    }

    /// Notes from now on which pages of the guest's memory the queue itself writes. The device area
    /// is said to be at `device`, if that is not where it was found.
    pub fn log_to(&mut self, log: Arc<DirtyLog>, device: Option<u64>) {
        let areas = each!(self, queue => &mut queue.areas);
        let device = device.unwrap_or(areas.device.guest());
        areas.log = Some(Log { log, device });
    }

    /// Notes from now on in `area` how far it is. Where a predecessor has left something there, it
    /// goes on from that.
    ///
    /// # Errors
    /// There is no room for a queue of this size.
    pub fn track(&mut self, area: Inflight, features: u64) -> Result<(), BadQueue> {
        each!(self, queue => queue.track(area, features))
    }

    /// Is the memory gone in which it notes how far it is?
    #[must_use]
    pub fn has_lost_track(&self) -> bool {
        let areas = each!(self, queue => &queue.areas);
        areas.inflight.as_ref().is_some_and(Inflight::is_lost)
    }

    /// Takes the next buffer, if there is one, and appends its pieces.
    ///
    /// # Errors
    /// [`Broken`]: do not use the queue any more.
    #[inline(always)]
    pub fn next(
        &mut self,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<Option<Taken>, Broken> {
        each!(self, queue => queue.next(memory, buffers))
    }

    /// Has the processor fetch the beginning of a buffer that will be taken soon.
    #[inline(always)]
    pub fn prefetch(&self, memory: &GuestMemory) {
        each!(self, queue => queue.prefetch(memory));
    }

    /// Where it is.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> Mark {
        each!(self, queue => queue.mark())
    }

    /// Has taken nothing since; none of that was given back.
    #[inline]
    pub fn rewind(&mut self, mark: Mark) {
        each!(self, queue => queue.rewind(mark));
    }

    /// Gives a buffer back, in the order they were taken, with so many bytes written.
    #[inline]
    pub fn give_back(&mut self, taken: Taken, written: u32) {
        each!(self, queue => queue.give_back(taken, written));
    }

    /// The driver sees what was given back.
    #[inline]
    pub fn publish(&mut self) {
        each!(self, queue => queue.publish());
    }

    /// Is there a buffer to take, or nonsense to be found?
    #[inline]
    #[must_use]
    pub fn pending(&self) -> bool {
        each!(self, queue => queue.pending())
    }

    /// Buffers that can be taken for sure.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u16 {
        each!(self, queue => queue.available())
    }

    /// Asks for kicks. To be fenced, and followed by another look ([`crate::notify`]).
    #[inline]
    pub fn want_kicks(&mut self) {
        each!(self, queue => queue.want_kicks());
    }

    /// Needs none.
    #[inline]
    pub fn want_none(&mut self) {
        each!(self, queue => queue.want_none());
    }

    /// Must the driver be told of what was published? After a fence.
    #[inline]
    pub fn must_tell(&mut self) -> bool {
        each!(self, queue => queue.must_tell())
    }

    /// Where a successor is to begin, as vhost-user says it.
    #[must_use]
    pub fn base(&self) -> u32 {
        each!(self, queue => queue.base())
    }
}

#[cfg(test)]
mod tests;
