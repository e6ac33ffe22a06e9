//! Packed virtqueues (2.8).
//!
//! One ring of descriptors that both sides write in turn. Two flags and a bit that each side
//! inverts at the end of the ring, its *wrap counter*, tell which side owns a descriptor:
//!
//! ```text
//!   available to us:  AVAIL == our wrap, USED != our wrap
//!   given back:       AVAIL == USED == our wrap
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | flags of a descriptor | both, in turn | both | Release, last / Acquire, first |
//! | driver and device event | see [`crate::notify`], with a position in place of an index | | |
//!
//! The first descriptor given back is written last: the driver looks at the ring in order, so it
//! sees all or nothing (2.8.21).
//!
//! [`recovery`] finds where a device was that died.

pub(super) mod recovery;

use core::sync::atomic::Ordering;

use ring::guest::GuestMemory;

use super::inflight::Where;
use super::store::Put;
use super::{
    AHEAD, Areas, BadQueue, Broken, Buffers, DESCRIPTOR, Descriptor, Direction, Inflight, Log,
    Mark, Places, SIZE_MAX, Taken, features, flag, mark,
};
use crate::notify::passes;

/// Further flags of a descriptor (2.8.1).
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The words of an event area: position, flags (2.8.14).
const WHERE: usize = 0;
const HOW: usize = 2;
const EVENT: usize = 4;
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT: u16 = 2;
/// The wrap counter in a position.
const WRAP: u16 = 1 << 15;

/// A position in the ring, with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    slot: u16,
    wrap: bool,
}

impl Position {
    /// A position from 15 bits and the wrap counter.
    fn of(bits: u16) -> Self {
        Self { slot: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    fn bits(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    /// The position this many descriptors further, at most one round.
    #[inline]
    fn after(self, slots: u16, size: u16) -> Self {
        let slot = u32::from(self.slot) + u32::from(slots);
        let (round, size) = (slot >= size.into(), u32::from(size));
        let slot = u16::try_from(if round { slot - size } else { slot }).expect("below the size");
        Self { slot, wrap: self.wrap != round }
    }

    /// The flags of an available descriptor at this position, and of a returned one.
    #[inline]
    fn flags(self) -> (u16, u16) {
        if self.wrap { (AVAIL, AVAIL | USED) } else { (USED, 0) }
    }
}

/// A packed virtqueue.
#[derive(Debug)]
pub struct Packed {
    pub(super) areas: Areas,
    size: u16,
    direction: Direction,
    indirect: bool,
    event_index: bool,
    in_order: bool,
    /// The next descriptor to take, the next to return, and the first one that the driver does not
    /// know of.
    next: Position,
    used: Position,
    published: Position,
    /// What makes the returned descriptors visible: the second word of the first, and its place.
    first: Option<(usize, u64)>,
    /// The descriptors returned since the last interrupt; `None`: interrupt in any case.
    untold: Option<u16>,
    /// The descriptors whose contents are saved in the in-flight area.
    kept: Vec<u16>,
}

impl Packed {
    pub(super) fn new(
        memory: &GuestMemory,
        places: Places,
        direction: Direction,
        size: u32,
        base: u32,
        features: u64,
    ) -> Result<Self, BadQueue> {
        let good = (1..=u32::from(SIZE_MAX)).contains(&size);
        let size = u16::try_from(size).ok().filter(|_| good).ok_or(BadQueue::Size(size))?;
        // The upper half is the position of returned descriptors, which is the same, because all
        // buffers were returned; some frontends leave it out.
        let [b0, b1, ..] = base.to_le_bytes();
        let next = Position::of(u16::from_le_bytes([b0, b1]));
        if next.slot >= size {
            return Err(BadQueue::Base(base));
        }
        let sizes = [usize::from(size) * DESCRIPTOR, EVENT, EVENT];
        Ok(Self {
            areas: Areas::find(memory, places, sizes, [16, 4, 4])?,
            size,
            direction,
            indirect: features & features::INDIRECT_DESC != 0,
            event_index: features & features::EVENT_IDX != 0,
            in_order: features & features::IN_ORDER != 0,
            next,
            used: next,
            published: next,
            first: None,
            untold: None,
            kept: Vec::new(),
        })
    }

    pub(super) fn track(&mut self, area: Inflight, features: u64) -> Result<(), BadQueue> {
        if !area.holds(self.size, true) {
            return Err(BadQueue::Inflight(self.size));
        }
        match self.recover(&area) {
            Some(at) => self.continue_at(at),
            None => area.begin_packed(self.size, features, (self.used.slot, self.used.wrap)),
        }
        self.kept = Vec::with_capacity(self.size.into());
        self.areas.inflight = Some(area);
        Ok(())
    }

    /// The words of a descriptor, as they are in the ring.
    fn raw(&self, slot: u16) -> [u64; 2] {
        let place = usize::from(slot) * DESCRIPTOR;
        [place, place + 8].map(|at| self.areas.descriptors.u64(at).load(Ordering::Relaxed))
    }

    #[inline]
    fn is_available(&self, at: Position) -> bool {
        self.owner_bits(at.slot) == at.flags().0
    }

    /// The two flags that tell which side owns a descriptor.
    #[inline]
    fn owner_bits(&self, slot: u16) -> u16 {
        let place = usize::from(slot) * DESCRIPTOR + 14;
        u16::from_le(self.areas.descriptors.u16(place).load(Ordering::Acquire)) & (AVAIL | USED)
    }

    #[inline]
    pub(super) fn next(
        &mut self,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<Option<Taken>, Broken> {
        if !self.is_available(self.next) {
            return Ok(None);
        }
        let before = buffers.bytes();
        let (id, slots) = self.walk(memory, buffers)?;
        self.next = self.next.after(slots, self.size);
        Ok(Some(Taken::new(id, slots, buffers.bytes() - before)))
    }

    /// [`super::split::Split::prefetch`] for a packed queue. The lines of a descriptor that is not
    /// available are left to the driver.
    #[inline(always)]
    pub(super) fn prefetch(&self, memory: &GuestMemory) {
        let soon = self.next.after(AHEAD.min(self.size - 1), self.size);
        if self.is_available(soon) {
            self.areas.prefetch(memory, self.direction, soon.slot);
        }
    }

    /// The descriptors that were taken, and whose return the driver has not seen.
    #[inline]
    fn unpublished(&self) -> u16 {
        let round = if self.next.wrap == self.published.wrap { 0 } else { self.size };
        self.next.slot + round - self.published.slot
    }

    /// Takes descriptors to the end of the chain; returns the ID, which is in the last one, and
    /// their number (2.8.6).
    #[inline]
    fn walk(&self, memory: &GuestMemory, buffers: &mut Buffers) -> Result<(u16, u16), Broken> {
        let mut at = self.next;
        // A driver cannot have made more descriptors available than it has seen returned.
        for slots in 1..=self.size - self.unpublished() {
            let descriptor = Descriptor::packed(self.areas.descriptor(at.slot));
            if descriptor.flags & flag::INDIRECT != 0 {
                self.walk_table(memory, descriptor, buffers)?;
                return Ok((descriptor.next, slots));
            }
            buffers.push(memory, self.direction, descriptor)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok((descriptor.next, slots));
            }
            at = at.after(1, self.size);
        }
        Err(Broken::Loop)
    }

    /// Takes all descriptors of an indirect table (2.8.7).
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
        for at in 0..entries {
            let descriptor = Descriptor::packed(table.entry(memory, at)?);
            if descriptor.flags & flag::INDIRECT != 0 {
                return Err(Broken::Table);
            }
            buffers.push(memory, self.direction, descriptor)?;
        }
        Ok(())
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.next.slot, self.next.wrap)
    }

    pub(super) fn rewind(&mut self, Mark(slot, wrap): Mark) {
        self.next = Position { slot, wrap };
    }

    #[inline]
    pub(super) fn give_back(&mut self, taken: Taken, written: u32) {
        let place = usize::from(self.used.slot) * DESCRIPTOR + 8;
        let word = self.returned(self.used, taken.id(), written);
        if let Some(area) = &self.areas.inflight {
            area.keep(self.used.slot, self.raw(self.used.slot));
            self.kept.push(self.used.slot);
        }
        if taken.slots() > 1 {
            self.mark_rest(self.used, taken.slots());
        }
        if self.first.is_none() {
            self.first = Some((place, word));
        } else {
            self.areas.descriptors.u64(place).put(word, Ordering::Release);
        }
        self.used = self.used.after(taken.slots(), self.size);
        self.untold = self.untold.map(|untold| untold.saturating_add(taken.slots()));
    }

    /// The second word of a returned descriptor.
    #[inline]
    fn returned(&self, at: Position, id: u16, written: u32) -> u64 {
        let write = if self.direction == Direction::Write { flag::WRITE } else { 0 };
        let flags = at.flags().1 | write;
        (u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48).to_le()
    }

    /// Marks the other descriptors of a chain that begins at `first` as given back.
    #[inline(never)]
    fn mark_rest(&self, first: Position, slots: u16) {
        for at in (1..slots).map(|slot| first.after(slot, self.size)) {
            let flags = self.areas.descriptors.u16(usize::from(at.slot) * DESCRIPTOR + 14);
            let others = u16::from_le(flags.load(Ordering::Relaxed)) & !(AVAIL | USED);
            flags.put((others | at.flags().1).to_le(), Ordering::Release);
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if let Some((place, word)) = self.first.take() {
            self.note_used(false);
            self.areas.descriptors.u64(place).put(word, Ordering::Release);
            self.note_used(true);
            self.log_used();
            self.published = self.used;
        }
    }

    /// Records the position in the in-flight area, before and after the driver can see it.
    #[inline]
    fn note_used(&mut self, is_seen: bool) {
        let Some(area) = &self.areas.inflight else { return };
        let used = (self.used.slot, self.used.wrap);
        if is_seen {
            self.kept.drain(..).for_each(|slot| area.forget(slot));
            area.set_where(Where { used, old: used });
        } else {
            area.set_where(Where { used, old: area.place().old });
        }
    }

    /// Logs the writes of what is now published.
    #[inline]
    fn log_used(&self) {
        let Some(Log { log, .. }) = &self.areas.log else { return };
        let (from, to) = (usize::from(self.published.slot), usize::from(self.used.slot));
        let guest = self.areas.descriptors.guest();
        let log = |from: usize, to: usize| {
            mark(log, guest, from * DESCRIPTOR, (to - from) * DESCRIPTOR);
        };
        if self.published.wrap == self.used.wrap {
            log(from, to);
        } else {
            log(from, self.size.into());
            log(0, to);
        }
    }

    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.is_available(self.next)
    }

    /// The exact number would take a walk through the descriptors.
    pub(super) fn available(&self) -> u16 {
        u16::from(self.pending())
    }

    pub(super) fn want_kicks(&mut self) {
        let device = &self.areas.device;
        if self.event_index {
            device.u16(WHERE).store(self.next.bits().to_le(), Ordering::Relaxed);
        }
        let how = if self.event_index { AT } else { ENABLE };
        device.u16(HOW).store(how.to_le(), Ordering::Release);
        self.areas.log_suppression(EVENT);
    }

    pub(super) fn want_none(&mut self) {
        self.areas.device.u16(HOW).store(DISABLE.to_le(), Ordering::Relaxed);
        self.areas.log_suppression(EVENT);
    }

    #[inline]
    pub(super) fn must_tell(&mut self) -> bool {
        let untold = self.untold.replace(0);
        if untold == Some(0) {
            return false;
        }
        let driver = &self.areas.driver;
        match u16::from_le(driver.u16(HOW).load(Ordering::Acquire)) {
            DISABLE => false,
            AT if self.event_index => {
                let at = Position::of(u16::from_le(driver.u16(WHERE).load(Ordering::Relaxed)));
                untold.is_none_or(|untold| self.has_passed(at, untold))
            }
            _ => true,
        }
    }

    /// Whether `at` is among the last `count` descriptors that were returned (2.8.10).
    fn has_passed(&self, at: Position, count: u16) -> bool {
        let round = if at.wrap == self.used.wrap { 0 } else { self.size };
        let event = at.slot.wrapping_sub(round);
        passes(event, self.used.slot.wrapping_sub(count), self.used.slot)
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next.bits()) | u32::from(self.used.bits()) << 16
    }
}
