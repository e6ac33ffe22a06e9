//! Rings whose frames begin inside of their buffers.
//!
//! The client says in each slot where its frame begins ([`crate::user::sync::offsets`]). The switch
//! reads that offset once for each slot and bounds it. Such rings take no part in runs.

#![allow(unsafe_code)] // UNSAFETY: slots are read and written through raw pointers.

use super::{Kring, RingView, RxKring, TxKring};
use crate::format::abi::{NetmapRing, Slot, sync_flag};
use crate::format::cursor::Index;

impl RingView {
    /// Address of a slot.
    #[inline(always)]
    pub(crate) fn slot(&self, i: Index) -> *mut Slot {
        // SAFETY: an index is below `span`, and that many slots are mapped.
        unsafe { self.slots.add(i.at()) }
    }
}

impl Kring {
    #[cold]
    pub(super) fn change_offsets(&mut self, flags: u32) {
        // SAFETY: the head of the ring is mapped before its slots.
        let mask = unsafe {
            let ring = self.slots.cast::<NetmapRing>().sub(1);
            (&raw const (*ring).offset_mask).read_volatile()
        };
        self.offset_mask = if flags & sync_flag::OFFSETS != 0 { mask } else { 0 };
        self.offset_max = flags >> sync_flag::OFFSET_MAX_SHIFT;
    }

    /// Where the frame in a slot begins; `None` outside of its buffer.
    pub(super) fn offset(&self, i: Index) -> Option<u16> {
        if self.offset_mask == 0 {
            return Some(0);
        }
        // SAFETY: an index is below `span`, and that many slots are mapped.
        let ptr = unsafe { (&raw const (*self.slots.add(i.at())).ptr).read_volatile() };
        let offset = u16::try_from(ptr & self.offset_mask).ok()?;
        (u32::from(offset) <= self.region.stride()).then_some(offset)
    }

    /// Writes where the frame in a slot begins; the client's other bits stay.
    fn set_offset(&self, i: Index, offset: u16) {
        debug_assert_eq!(u64::from(offset) & !self.offset_mask, 0);
        // SAFETY: as in `offset`; no reference to a slot exists.
        unsafe {
            let ptr = &raw mut (*self.slots.add(i.at())).ptr;
            let others = ptr.read_volatile() & !self.offset_mask;
            ptr.write_volatile(others | u64::from(offset));
        }
    }
}

impl TxKring {
    /// Whether frames begin elsewhere than at the start of their buffers.
    #[inline(always)]
    pub(crate) fn is_staged(&self) -> bool {
        self.ring.is_staged()
    }
}

impl RxKring {
    /// Whether the client says where frames begin.
    #[inline(always)]
    pub(crate) fn has_offsets(&self) -> bool {
        self.ring.offset_mask != 0
    }

    /// Whether frames begin elsewhere than at the start of their buffers.
    #[inline(always)]
    pub(crate) fn is_staged(&self) -> bool {
        self.ring.is_staged()
    }

    /// No frame begins behind this place in its buffer, as the client promises.
    pub(crate) fn offset_max(&self) -> u32 {
        self.ring.offset_max
    }

    /// Whether a slot of this ring can say that its frame begins at `offset`.
    #[inline]
    pub(crate) fn can_say(&self, offset: u16) -> bool {
        u64::from(offset) & !self.ring.offset_mask == 0
    }

    /// Where the frame of the `i`-th free slot is to begin, if that leaves room for a byte.
    pub(crate) fn free_offset(&self, i: u32) -> Option<u16> {
        let offset = self.ring.offset(self.ring.span.add(self.tail, i))?;
        (u32::from(offset) < self.ring.region.stride()).then_some(offset)
    }

    /// Sets where the frame of the next free slot begins.
    pub(crate) fn set_free_offset(&self, offset: u16) {
        self.ring.set_offset(self.tail, offset);
    }
}
