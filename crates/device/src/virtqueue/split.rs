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
    Areas, BadQueue, Broken, Buffers, DESCRIPTOR, Descriptor, Direction, Mark, Places, SIZE_MAX,
    Taken, features, flag,
};
use crate::notify::{Owed, Suppression, want_kicks, want_none};

/// Offsets in the driver area and the device area.
const FLAGS: usize = 0;
const IDX: usize = 2;
const RING: usize = 4;
/// Bytes of an element of the device's ring.
const USED: usize = 8;

/// A split virtqueue.
#[derive(Debug)]
pub struct Split {
    areas: Areas,
    size: u16,
    direction: Direction,
    indirect: bool,
    suppression: Suppression,
    /// Next buffer to take.
    next: u16,
    /// As far as the driver had come when we looked last.
    available: u16,
    /// Buffers given back.
    used: u16,
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
        // A predecessor that died has given back whatever it has given back.
        let used = u16::from_le(areas.device.u16(IDX).load(Ordering::Acquire));
        let indirect = features & features::INDIRECT_DESC != 0;
        Ok(Self {
            areas,
            size: count,
            direction,
            indirect,
            suppression,
            next,
            available: next,
            used,
            owed: Owed::default(),
        })
    }

    /// The place of an index in a ring.
    #[inline(always)]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    #[inline]
    fn avail_idx(&self) -> u16 {
        u16::from_le(self.areas.driver.u16(IDX).load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn next(
        &mut self,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<Option<Taken>, Broken> {
        if self.next == self.available {
            let available = self.avail_idx();
            if available.wrapping_sub(self.next) > self.size {
                return Err(Broken::Index);
            }
            self.available = available;
            if self.next == available {
                return Ok(None);
            }
        }
        let place = RING + 2 * self.slot(self.next);
        let id = u16::from_le(self.areas.driver.u16(place).load(Ordering::Relaxed));
        let before = buffers.bytes();
        self.walk(memory, id, buffers)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(Taken { id, slots: 1, bytes: buffers.bytes() - before }))
    }

    /// Follows the chain that begins at `id` (2.7.5.2).
    #[inline]
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

    /// Follows the chain of a table (2.7.5.3), which begins with its first entry.
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
        Mark(self.next, false)
    }

    pub(super) fn rewind(&mut self, Mark(next, _): Mark) {
        self.next = next;
    }

    #[inline]
    pub(super) fn give_back(&mut self, taken: Taken, written: u32) {
        let place = RING + USED * self.slot(self.used);
        let device = &self.areas.device;
        device.u32(place).store(u32::from(taken.id).to_le(), Ordering::Relaxed);
        device.u32(place + 4).store(written.to_le(), Ordering::Relaxed);
        self.used = self.used.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.areas.device.u16(IDX).store(self.used.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.next != self.available || self.next != self.avail_idx()
    }

    /// Where the driver says when it wants to be told, and where we say it.
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
        want_kicks(self.suppression, flags, self.avail_event(), self.next);
    }

    pub(super) fn want_none(&mut self) {
        want_none(self.suppression, self.areas.device.u16(FLAGS));
    }

    #[inline]
    pub(super) fn must_tell(&mut self) -> bool {
        let mut owed = std::mem::take(&mut self.owed);
        let flags = self.areas.driver.u16(FLAGS);
        let must = owed.must_tell(self.suppression, flags, self.used_event(), self.used);
        self.owed = owed;
        must
    }

    pub(super) fn base(&self) -> u32 {
        self.next.into()
    }
}
