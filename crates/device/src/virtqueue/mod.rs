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
//! in guest memory (*indirect*). [`Queue::next`] walks the list and appends its fragments to
//! [`Buffers`]. It bounds what the guest wrote there (indexes, addresses, lengths, flags) once, on
//! the way; the results are [`GuestSlice`]s, which cannot be out of range. A receive queue takes
//! buffers until a frame fits, and [rewinds](Queue::rewind) if there are too few.
//!
//! The device returns buffers in the order in which it took them, and all of them in the same turn.
//! So the whole state of a queue between two turns is its index, [`Queue::base`], from which
//! another device can continue.
//!
//! An invalid descriptor or index ([`Broken`]) ends the queue, because nothing in it can be trusted
//! any more. Its owner stops using it until the driver sets it up again.

mod inflight;
mod packed;
mod split;
mod store;

pub use inflight::{Inflight, area_len};

use core::sync::atomic::Ordering;
use std::sync::Arc;

use ring::guest::log::DirtyLog;
use ring::guest::{GuestMemory, GuestSlice, Window};

/// Feature bits that the queues depend on (6).
pub mod features {
    /// A frame may fill several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// A descriptor may refer to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by an index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
    /// The queues are packed.
    pub const RING_PACKED: u64 = 1 << 34;
    /// The device returns buffers in the order in which they were made available, as this one
    /// always does. Drivers with this feature have less to read.
    pub const IN_ORDER: u64 = 1 << 35;
}

/// The largest queue (2.7, 2.8.10.1).
pub const SIZE_MAX: u16 = 32768;
/// The most fragments of the buffers that are taken at a time. QEMU allows its guests as many for
/// one buffer.
pub const PIECES_MAX: usize = 1024;

/// How many buffers ahead the device prefetches.
const AHEAD: u16 = 6;

/// Flags of a descriptor (2.7.5, 2.8.1).
mod flag {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}
/// The length of a descriptor.
const DESCRIPTOR: usize = 16;

/// A violation of the specification by the driver, after which the queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// 2.7.13: the available index is further ahead than the queue is long.
    #[error("its available index makes no sense")]
    Index,
    /// 2.7.5: the descriptor is outside of its table.
    #[error("it names a descriptor that is not there")]
    Descriptor,
    /// 2.7.5.2: the chain is a loop.
    #[error("a chain of descriptors has no end")]
    Loop,
    /// The address is outside of guest memory.
    #[error("a buffer lies outside of the guest's memory")]
    Address,
    /// The fragment has no bytes.
    #[error("a buffer has an empty piece")]
    Empty,
    /// 2.6: a buffer is readable where it must be writable, or the other way round.
    #[error("a buffer is to be read where it should be written, or written where read")]
    Direction,
    /// 2.7.5.3: an indirect table is inside another one, or is invalid.
    #[error("an indirect table makes no sense")]
    Table,
    /// The buffer has more than [`PIECES_MAX`] fragments.
    #[error("a buffer has too many pieces")]
    Pieces,
}

/// Why a queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQueue {
    /// The size is invalid.
    #[error("a queue of {0} buffers")]
    Size(u32),
    /// A part of the queue is not contiguous in guest memory, or not aligned.
    #[error("the {0} of a queue are not in the guest's memory")]
    Place(&'static str),
    /// The in-flight area is too small.
    #[error("a queue of {0} buffers, more than its inflight area has room for")]
    Inflight(u16),
    /// The index is invalid for a queue of this size.
    #[error("a queue that begins at {0}")]
    Base(u32),
}

/// The direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads the buffers: a transmit queue.
    Read,
    /// The device writes the buffers: a receive queue.
    Write,
}

/// The addresses of a queue, in the address space of the process that lends the memory (2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The descriptor area.
    pub descriptors: u64,
    /// The driver area.
    pub driver: u64,
    /// The device area.
    pub device: u64,
}

/// The three areas of a queue.
#[derive(Debug)]
struct Areas {
    descriptors: Window,
    driver: Window,
    device: Window,
    log: Option<Log>,
    inflight: Option<Inflight>,
}

/// The log of pages that the device writes.
#[derive(Debug)]
struct Log {
    log: Arc<DirtyLog>,
    /// The guest address of the device area.
    device: u64,
}

impl Log {
    /// Logs a write to the device area.
    fn mark_device(&self, offset: usize, len: usize) {
        mark(&self.log, self.device, offset, len);
    }
}

/// Logs a write to an area that begins at `guest`.
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

    /// Logs the write of the words that ask for kicks.
    fn log_suppression(&self, event: usize) {
        if let Some(log) = &self.log {
            log.mark_device(0, event);
            log.mark_device(self.device.len() - event, event);
        }
    }

    /// Prefetches the memory to which descriptor `at` of the ring points.
    #[inline(always)]
    fn prefetch(&self, memory: &GuestMemory, direction: Direction, at: u16) {
        let Descriptor { address, len, .. } = Descriptor::split(self.descriptor(at));
        if let Some(span) = memory.slice(address, len) {
            memory.prefetch(span, direction == Direction::Write);
        }
    }

    /// The words of descriptor `at` of the ring.
    #[inline]
    fn descriptor(&self, at: u16) -> [u64; 2] {
        let place = usize::from(at) * DESCRIPTOR;
        [place, place + 8]
            .map(|place| u64::from_le(self.descriptors.u64(place).load(Ordering::Relaxed)))
    }
}

/// The fragments of the buffers that were taken.
#[derive(Debug)]
pub struct Buffers {
    slices: Vec<GuestSlice>,
    bytes: u64,
}

impl Default for Buffers {
    /// Allocates the capacity at once.
    fn default() -> Self {
        Self { slices: Vec::with_capacity(PIECES_MAX), bytes: 0 }
    }
}

impl Buffers {
    /// Removes all fragments.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.bytes = 0;
    }

    /// The fragments, in order.
    #[must_use]
    pub fn slices(&self) -> &[GuestSlice] {
        &self.slices
    }

    /// The sum of their lengths.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is room for another fragment.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.slices.len() < PIECES_MAX
    }

    /// Appends the fragments of one descriptor.
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
        if !memory.slices(address, len, &mut self.slices, PIECES_MAX) {
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
    /// The next descriptor of a chain; in a packed queue, the buffer's ID.
    next: u16,
}

impl Descriptor {
    /// A descriptor of a split queue, from its two words (2.7.5).
    #[inline]
    fn split([address, rest]: [u64; 2]) -> Self {
        let [l0, l1, l2, l3, f0, f1, n0, n1] = rest.to_le_bytes();
        let (flags, next) = (u16::from_le_bytes([f0, f1]), u16::from_le_bytes([n0, n1]));
        Self { address, len: u32::from_le_bytes([l0, l1, l2, l3]), flags, next }
    }

    /// A descriptor of a packed queue, in which ID and flags are swapped (2.8.13).
    #[inline]
    fn packed(words: [u64; 2]) -> Self {
        let Self { address, len, flags, next } = Self::split(words);
        Self { address, len, flags: next, next: flags }
    }

    /// The number of descriptors in the indirect table.
    #[inline]
    fn table(self) -> Result<u64, Broken> {
        let entries = u64::from(self.len) / DESCRIPTOR as u64;
        let whole = self.len.is_multiple_of(16) && entries > 0;
        let alone = self.flags & flag::NEXT == 0;
        if whole && alone { Ok(entries) } else { Err(Broken::Table) }
    }

    /// The words of descriptor `at` of the indirect table.
    #[inline]
    fn entry(self, memory: &GuestMemory, at: u64) -> Result<[u64; 2], Broken> {
        let place = self.address.checked_add(at * DESCRIPTOR as u64);
        place.and_then(|place| memory.words(place)).ok_or(Broken::Address)
    }
}

/// A buffer that was taken and must be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The driver's ID of the buffer, and the number of descriptors that it takes in a packed
    /// queue. They are in one word, so that it is stored as it is loaded.
    name: u64,
    /// The bytes of the buffer.
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

/// The position of a queue before buffers were taken.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u16, bool);

/// A virtqueue.
#[derive(Debug)]
pub enum Queue {
    /// A split virtqueue (2.7).
    Split(split::Split),
    /// A packed virtqueue (2.8).
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
    /// A queue of `size` buffers at these addresses, which continues at index `base`.
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

    /// Starts to log the pages of guest memory that the queue itself writes. `device` is the guest
    /// address of the device area, if it differs from the queue's address.
    pub fn log_to(&mut self, log: Arc<DirtyLog>, device: Option<u64>) {
        let areas = each!(self, queue => &mut queue.areas);
        let device = device.unwrap_or(areas.device.guest());
        areas.log = Some(Log { log, device });
    }

    /// Starts to record the queue's progress in `area`. If an earlier device left a record there,
    /// the queue continues from that.
    ///
    /// # Errors
    /// The area is too small for the queue.
    pub fn track(&mut self, area: Inflight, features: u64) -> Result<(), BadQueue> {
        each!(self, queue => queue.track(area, features))
    }

    /// Continues where an earlier device was, of which the frontend may know nothing, because that
    /// device died. A record in `area` says it, which [`Self::track`] follows; else the ring of a
    /// packed queue says it, where it contradicts the frontend. A split queue says how many buffers
    /// were returned, and frontends look there.
    ///
    /// `false`: the queue is in doubt, because nothing decides between frontend and ring. The
    /// caller must not use it until its driver has set it up again.
    pub fn resume(&mut self, area: Option<&Inflight>) -> bool {
        match self {
            Self::Split(_) => true,
            Self::Packed(queue) => queue.resume(area),
        }
    }

    /// Whether the memory of the in-flight area was truncated.
    #[must_use]
    pub fn has_lost_track(&self) -> bool {
        let areas = each!(self, queue => &queue.areas);
        areas.inflight.as_ref().is_some_and(Inflight::is_lost)
    }

    /// Takes the next buffer, if there is one, and appends its fragments.
    ///
    /// # Errors
    /// [`Broken`]: the caller must not use the queue any more.
    #[inline(always)]
    pub fn next(
        &mut self,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<Option<Taken>, Broken> {
        each!(self, queue => queue.next(memory, buffers))
    }

    /// Prefetches the beginning of a buffer that will be taken soon.
    #[inline(always)]
    pub fn prefetch(&self, memory: &GuestMemory) {
        each!(self, queue => queue.prefetch(memory));
    }

    /// The position of the queue.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> Mark {
        each!(self, queue => queue.mark())
    }

    /// Returns to a position. None of the buffers that were taken since may have been returned.
    #[inline]
    pub fn rewind(&mut self, mark: Mark) {
        each!(self, queue => queue.rewind(mark));
    }

    /// Returns a buffer, in the order in which they were taken, with this many bytes written.
    #[inline]
    pub fn give_back(&mut self, taken: Taken, written: u32) {
        each!(self, queue => queue.give_back(taken, written));
    }

    /// Makes the returned buffers visible to the driver.
    #[inline]
    pub fn publish(&mut self) {
        each!(self, queue => queue.publish());
    }

    /// Whether there is a buffer to take, or an error to find.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> bool {
        each!(self, queue => queue.pending())
    }

    /// The least number of buffers that can be taken.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u16 {
        each!(self, queue => queue.available())
    }

    /// Asks for kicks. The caller passes a fence and looks again ([`crate::notify`]).
    #[inline]
    pub fn want_kicks(&mut self) {
        each!(self, queue => queue.want_kicks());
    }

    /// Asks for no kicks.
    #[inline]
    pub fn want_none(&mut self) {
        each!(self, queue => queue.want_none());
    }

    /// Whether the driver must be interrupted for what was published. The caller has passed a
    /// fence.
    #[inline]
    pub fn must_tell(&mut self) -> bool {
        each!(self, queue => queue.must_tell())
    }

    /// The index at which another device continues, in vhost-user's format.
    #[must_use]
    pub fn base(&self) -> u32 {
        each!(self, queue => queue.base())
    }
}

#[cfg(test)]
mod tests;
