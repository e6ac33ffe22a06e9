//! The two halves of a slot, each read and written as one word.
//!
//! ```text
//!   0         4       6       8                16
//!   │ buf_idx │ len   │ flags │ ptr            │
//!   └─── SlotWord ────────────┴─ metadata, or an offset into the buffer
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | either | the slot's owner | its next owner | volatile, before Release of `head` or `hwtail` |

#![allow(unsafe_code)] // UNSAFETY: the address of a field of a mapped slot.

use super::abi::Slot;

/// What the first eight bytes of a slot say, read at once.
#[derive(Clone, Copy)]
pub(crate) struct SlotWord(pub(crate) u64);

#[allow(clippy::cast_possible_truncation)] // reason: takes fields out of a packed word.
impl SlotWord {
    #[inline(always)]
    pub(crate) fn new(buffer: u32, len: u16, flags: u16) -> Self {
        Self(u64::from(buffer) | u64::from(len) << 32 | u64::from(flags) << 48)
    }

    #[inline(always)]
    pub(crate) fn buffer(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn len(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    pub(crate) fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// Address of the second word of a slot: its metadata.
///
/// # Safety
/// `slot` is a mapped slot.
pub(crate) unsafe fn metadata_word(slot: *mut Slot) -> *mut u64 {
    // SAFETY: as the caller says.
    unsafe { &raw mut (*slot).ptr }
}
