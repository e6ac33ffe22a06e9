//! Frames that begin inside of their buffers.
//!
//! A program may ask that some bits of its slots' `ptr` say where in their buffers frames begin:
//! room for headers that it puts in front of what it passes on. It is between a program and the
//! switch alone. The flag beside `head` in the CSB says that the ring has offsets, `offset_mask` in
//! the ring which bits they are; the switch looks at both when it looks at `head`.
//!
//! Holders of one ring share its offsets. Who comes first says what they are; the others may ask
//! for as much or less.

#![allow(unsafe_code)] // UNSAFETY: words and slots of shared memory, by raw pointers.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{SyncRing, SyncRings};
use crate::format::abi::{NetmapRing, sync_flag};

/// Offsets that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Bits of `ptr` that hold them.
    pub mask: u64,
    /// No offset is larger.
    pub max: u32,
    /// What all slots say at first, unless others have them already; 0 leaves them alone.
    pub initial: u32,
}

/// A ring has other offsets, for another holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherOffsets;

impl SyncRings {
    /// Gives all rings offsets; returns the largest that is allowed.
    ///
    /// # Errors
    /// [`OtherOffsets`]: a ring has others, which do not include these.
    pub fn set_offsets(&self, asked: Offsets) -> Result<u32, OtherOffsets> {
        let tx = self.tx.iter().map(|ring| (ring, true));
        let mut rings = tx.chain(self.rx.iter().map(|ring| (ring, false)));
        rings.try_fold(asked.max, |max, (ring, is_tx)| Ok(ring.set_offsets(asked, is_tx)?.max(max)))
    }
}

impl SyncRing {
    fn offset_mask(&self) -> &AtomicU64 {
        // SAFETY: an aligned word of the mapped ring; atomics may be shared with the program.
        unsafe { &*self.ring.byte_add(offset_of!(NetmapRing, offset_mask)).cast::<AtomicU64>() }
    }

    fn set_offsets(&self, asked: Offsets, is_tx: bool) -> Result<u32, OtherOffsets> {
        let flags = &self.atok().sync_flags;
        let new = sync_flag::OFFSETS | asked.max << sync_flag::OFFSET_MAX_SHIFT;
        match flags.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.offset_mask().store(asked.mask, Ordering::Release);
                self.move_free(asked, is_tx);
                Ok(asked.max)
            }
            Err(there) => {
                let max = there >> sync_flag::OFFSET_MAX_SHIFT;
                let holds = self.offset_mask().load(Ordering::Acquire) & asked.mask == asked.mask;
                if holds && max >= asked.max { Ok(max) } else { Err(OtherOffsets) }
            }
        }
    }

    /// Writes the initial offset into all slots but those that hold frames already. A frame that
    /// the switch is putting into the ring at this very moment may be mistaken for a later one.
    fn move_free(&self, asked: Offsets, is_tx: bool) {
        if asked.initial == 0 {
            return;
        }
        let (_, published) = self.published();
        let hwtail = self.hwtail(published);
        let frames = if is_tx { 0 } else { self.span.distance(published, hwtail) };
        for i in frames..self.span.slots() {
            let at = self.span.add(published, i).at();
            // SAFETY: a slot of this ring; the program has not seen it yet.
            unsafe {
                let ptr = &raw mut (*self.slots.add(at)).ptr;
                ptr.write_volatile(ptr.read_volatile() & !asked.mask | u64::from(asked.initial));
            }
        }
    }
}
