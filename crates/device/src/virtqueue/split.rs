//! Split virtqueues (2.7).
//!
//! ```text
//!   descriptors   │ address, len, flags, next │ …                     written by the driver
//!   driver area   │ flags │ idx │ ring[size] │ used_event │           written by the driver
//!   device area   │ flags │ idx │ ring[size] of (id, len) │ avail_event │  written by us
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `avail.idx` | driver | device | Release after the ring / Acquire before it |
//! | `used.idx` | device | driver | Release after the ring / Acquire before it |
//! | flags and events | see [`crate::notify`] | | |

use core::sync::atomic::{AtomicU16, Ordering};

use ring::guest::GuestMemory;

use super::{
    AHEAD, Areas, BadQueue, Broken, Buffers, DESCRIPTOR, Descriptor, Direction, Inflight, Mark,
    Places, SIZE_MAX, Taken, features, flag,
};
use crate::notify::{Owed, Suppression, want_kicks, want_none};

/// Offsets in the driver area and the device area.
const FLAGS: usize = 0;
const IDX: usize = 2;
const RING: usize = 4;
/// The length of an element of the device's ring.
const USED: usize = 8;

/// A wrapping index in a word of its own. Two indexes in one word would be loaded together, and the
/// load of one would wait for the store to the other, which waits for all earlier stores.
#[derive(Clone, Copy, Debug)]
struct Count(u32);

impl Count {
    #[inline(always)]
    fn new(count: u16) -> Self {
        Self(count.into())
    }

    #[inline(always)]
    fn get(self) -> u16 {
        let [low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    #[inline(always)]
    fn plus(self, more: u16) -> Self {
        Self::new(self.get().wrapping_add(more))
    }
}

/// A split virtqueue.
#[derive(Debug)]
pub struct Split {
    pub(super) areas: Areas,
    /// The size of the queue, minus one.
    mask: usize,
    size: u16,
    direction: Direction,
    indirect: bool,
    suppression: Suppression,
    /// The next buffer to take.
    next: Count,
    /// The driver's index at the last look.
    available: Count,
    /// The number of returned buffers, and the number that the driver knows of.
    used: Count,
    published: Count,
    owed: Owed,
}

impl Split {
    pub(super) fn new(
        memory: &GuestMemory,
        places: Places,
        direction: Direction,
        size: u32,
        base: u32,
        features: u64,
    ) -> Result<Self, BadQueue> {
        let good = size.is_power_of_two() && size <= SIZE_MAX.into();
        let count = u16::try_from(size).ok().filter(|_| good).ok_or(BadQueue::Size(size))?;
        let next = u16::try_from(base).map_err(|_| BadQueue::Base(base))?;
        let suppression = match features & features::EVENT_IDX {
            0 => Suppression::Flags,
            _ => Suppression::EventIndex,
        };
        let event = if suppression == Suppression::EventIndex { size_of::<u16>() } else { 0 };
        let slots = usize::from(count);
        let sizes = [slots * DESCRIPTOR, RING + slots * 2 + event, RING + slots * USED + event];
        let areas = Areas::find(memory, places, sizes, [16, 2, 4])?;
        // A device that died has returned all buffers up to this index.
        let used = u16::from_le(areas.device.u16(IDX).load(Ordering::Acquire));
        let indirect = features & features::INDIRECT_DESC != 0;
        Ok(Self {
            areas,
            mask: slots - 1,
            size: count,
            direction,
            indirect,
            suppression,
            next: Count::new(next),
            available: Count::new(next),
            used: Count::new(used),
            published: Count::new(used),
            owed: Owed::default(),
        })
    }

    pub(super) fn track(&mut self, area: Inflight, features: u64) -> Result<(), BadQueue> {
        if !area.holds(self.size, false) {
            return Err(BadQueue::Inflight(self.size));
        }
        if area.is_left(self.size) {
            // Buffers that were not returned are taken again.
            (self.next, self.available) = (self.used, self.used);
        }
        area.begin_split(self.size, features, self.used.get());
        self.areas.inflight = Some(area);
        Ok(())
    }

    /// The slot of an index.
    #[inline(always)]
    fn slot(&self, index: u16) -> usize {
        usize::from(index) & self.mask
    }

    #[inline]
    fn avail_idx(&self) -> u16 {
        u16::from_le(self.areas.driver.u16(IDX).load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn next(
        &mut self,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<Option<Taken>, Broken> {
        if self.next.get() == self.available.get() {
            let available = self.avail_idx();
            if available.wrapping_sub(self.next.get()) > self.size {
                return Err(Broken::Index);
            }
            self.available = Count::new(available);
            if self.next.get() == available {
                return Ok(None);
            }
        }
        let place = RING + 2 * self.slot(self.next.get());
        let id = u16::from_le(self.areas.driver.u16(place).load(Ordering::Relaxed));
        let before = buffers.bytes();
        self.walk(memory, id, buffers)?;
        self.next = self.next.plus(1);
        Ok(Some(Taken::new(id, 1, buffers.bytes() - before)))
    }

    /// Prefetches the beginning of a buffer that will be taken soon. The contents are checked when
    /// the buffer is taken.
    #[inline(always)]
    pub(super) fn prefetch(&self, memory: &GuestMemory) {
        let soon = self.next.get().wrapping_add(AHEAD);
        if self.available.get().wrapping_sub(self.next.get()) <= AHEAD {
            return;
        }
        let place = RING + 2 * self.slot(soon);
        let id = u16::from_le(self.areas.driver.u16(place).load(Ordering::Relaxed));
        if id < self.size {
            self.areas.prefetch(memory, self.direction, id);
        }
    }

    /// Follows the chain that begins at `id` (2.7.5.2).
    #[inline(always)]
    fn walk(&self, memory: &GuestMemory, id: u16, buffers: &mut Buffers) -> Result<(), Broken> {
        let mut at = id;
        for _ in 0..self.size {
            if at >= self.size {
                return Err(Broken::Descriptor);
            }
            let descriptor = Descriptor::split(self.areas.descriptor(at));
            if descriptor.flags & flag::INDIRECT != 0 {
                return self.walk_table(memory, descriptor, buffers);
            }
            buffers.push(memory, self.direction, descriptor)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok(());
            }
            at = descriptor.next;
        }
        Err(Broken::Loop)
    }

    /// Follows the chain of an indirect table (2.7.5.3), which begins with its first entry.
    #[inline(never)]
    fn walk_table(
        &self,
        memory: &GuestMemory,
        table: Descriptor,
        buffers: &mut Buffers,
    ) -> Result<(), Broken> {
        let entries = table.table()?;
        if !self.indirect {
            return Err(Broken::Table);
        }
        let mut at = 0;
        for _ in 0..entries {
            if at >= entries {
                return Err(Broken::Descriptor);
            }
            let descriptor = Descriptor::split(table.entry(memory, at)?);
            if descriptor.flags & flag::INDIRECT != 0 {
                return Err(Broken::Table);
            }
            buffers.push(memory, self.direction, descriptor)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok(());
            }
            at = descriptor.next.into();
        }
        Err(Broken::Loop)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next.get(), false)
    }

    pub(super) fn rewind(&mut self, Mark(next, _): Mark) {
        self.next = Count::new(next);
    }

    #[inline(always)]
    pub(super) fn give_back(&mut self, taken: Taken, written: u32) {
        let place = RING + USED * self.slot(self.used.get());
        let device = &self.areas.device;
        for (place, word) in [(place, u32::from(taken.id())), (place + 4, written)] {
            let (shared, word) = (device.u32(place), word.to_le());
            // A driver that uses buffers in order, for frames of one length, finds the value that
            // was there the last time; the line then stays in its cache.
            if shared.load(Ordering::Relaxed) != word {
                shared.store(word, Ordering::Relaxed);
            }
        }
        self.used = self.used.plus(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.areas.device.u16(IDX).store(self.used.get().to_le(), Ordering::Release);
        self.log_used();
        if let Some(area) = &self.areas.inflight {
            area.set_used(self.used.get());
        }
    }

    /// Logs what was written since the last call.
    #[inline]
    fn log_used(&mut self) {
        let Some(log) = &self.areas.log else { return };
        let (first, slots) = (self.slot(self.published.get()), usize::from(self.size));
        let count = usize::from(self.used.get().wrapping_sub(self.published.get())).min(slots);
        let before_end = count.min(slots - first);
        log.mark_device(0, RING);
        log.mark_device(RING + USED * first, USED * before_end);
        log.mark_device(RING, USED * (count - before_end));
        self.published = self.used;
    }

    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.next.get() != self.available.get() || self.next.get() != self.avail_idx()
    }

    #[inline]
    pub(super) fn available(&self) -> u16 {
        // An invalid index is found when buffers are taken.
        self.avail_idx().wrapping_sub(self.next.get()).min(self.size)
    }

    /// The words by which the driver asks for interrupts, and the device for kicks.
    #[inline]
    fn used_event(&self) -> &AtomicU16 {
        let behind = RING + 2 * usize::from(self.size);
        let with_index = self.suppression == Suppression::EventIndex;
        self.areas.driver.u16(if with_index { behind } else { FLAGS })
    }

    #[inline]
    fn avail_event(&self) -> &AtomicU16 {
        let behind = RING + USED * usize::from(self.size);
        let with_index = self.suppression == Suppression::EventIndex;
        self.areas.device.u16(if with_index { behind } else { FLAGS })
    }

    pub(super) fn want_kicks(&mut self) {
        let flags = self.areas.device.u16(FLAGS);
        want_kicks(self.suppression, flags, self.avail_event(), self.next.get());
        self.areas.log_suppression(size_of::<u16>());
    }

    pub(super) fn want_none(&mut self) {
        want_none(self.suppression, self.areas.device.u16(FLAGS));
        self.areas.log_suppression(size_of::<u16>());
    }

    #[inline]
    pub(super) fn must_tell(&mut self) -> bool {
        let mut owed = std::mem::take(&mut self.owed);
        let flags = self.areas.driver.u16(FLAGS);
        let must = owed.must_tell(self.suppression, flags, self.used_event(), self.used.get());
        self.owed = owed;
        must
    }

    pub(super) fn base(&self) -> u32 {
        self.next.get().into()
    }
}
