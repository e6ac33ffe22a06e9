//! Buffers exchanged with ports that have no rings, inside a shared region.
//!
//! ```text
//!   received:  kernel ─► trader ── buffer ──► slot of a receive ring
//!                  ▲          └─◄─ spare ───┘
//!   sent:      slot of a transmit ring ── buffer ──► trader ─► kernel ─┐
//!                                     └─◄─ spare ────┘ ▲───────────────┘
//! ```
//!
//! A trader has as many buffers as the pool gave it: for each that it gives it gets one. It takes
//! only what it can use and what belongs to who gives it ([`crate::group::owners`]), so that it never has
//! a buffer twice; in place of others it copies. The frame itself is not touched.

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::layout::BufferIndex;
use crate::format::slot::SlotWord;
use crate::frame::Frag;
use crate::group::owners::{Owner, Owners};
use crate::kring::{Refused, RxKring, TxKring};
use crate::region::Region;

/// A port without rings that has buffers of a shared region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    owner: Owner,
    /// Those from this number on are of no use to it.
    end: u32,
}

/// Who gives a frame's buffer for another.
#[derive(Clone, Copy)]
pub enum Giver<'a> {
    /// The ring that it was taken from, not published yet.
    Ring(&'a TxKring),
    /// A port without rings.
    Exchange(Exchange),
}

impl Exchange {
    /// A member of a region that can use buffers below number `end`.
    #[must_use]
    pub fn new(owner: Owner, end: u32) -> Self {
        Self { owner, end }
    }

    /// Can it have this one, if that is `of`'s?
    fn takes(self, owners: &Owners, buffer: BufferIndex, of: Owner) -> bool {
        buffer.get() < self.end && owners.is(buffer.get(), of)
    }

    /// Takes the buffer of a frame of one piece, and leaves `spare` with who gave it. `false`: that
    /// cannot be, nothing has changed. Of another trader, the caller tells it.
    #[must_use]
    pub fn take(
        self,
        region: &Region,
        piece: Frag,
        from: Giver<'_>,
        slot: Option<Index>,
        spare: BufferIndex,
    ) -> bool {
        let owners = region.owners();
        match (from, slot) {
            (Giver::Ring(tx), Some(slot)) => {
                let plain = tx.vnet_header_len() == 0;
                if !plain || !self.takes(owners, piece.buffer, tx.owner()) {
                    return false;
                }
                tx.replace(slot, spare.get());
            }
            (Giver::Exchange(other), _) => {
                let takes = self.takes(owners, piece.buffer, other.owner);
                if !takes || !other.takes(owners, spare, self.owner) {
                    return false;
                }
                owners.give(spare.get(), other.owner);
            }
            (Giver::Ring(_), None) => return false,
        }
        owners.give(piece.buffer.get(), self.owner);
        true
    }
}

impl RxKring {
    /// Puts a frame of one piece into the next free slot by its buffer, which is the trader's, and
    /// gives the slot's for it. `None`: the trader cannot have that one, nothing has changed.
    ///
    /// # Errors
    /// [`Refused`]: nothing has been delivered.
    pub fn put_exchanged(
        &mut self,
        piece: Frag,
        from: Exchange,
    ) -> Result<Option<BufferIndex>, Refused> {
        debug_assert!(self.can_swap(piece));
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        let (spare, own) = (self.free_buffer()?, self.owner());
        let owners = self.region().owners();
        if !from.takes(owners, spare, own) || !owners.is(piece.buffer.get(), from.owner) {
            return Ok(None);
        }
        owners.give(spare.get(), from.owner);
        owners.give(piece.buffer.get(), own);
        if self.has_offsets() {
            self.set_free_offset(piece.offset);
        }
        self.fill(SlotWord::new(piece.buffer.get(), piece.len, slot_flag::BUF_CHANGED));
        Ok(Some(spare))
    }
}
