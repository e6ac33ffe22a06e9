//! Buffers exchanged between rings and ports without rings, inside a shared region.
//!
//! ```text
//!   received:  kernel ─► port ─── buffer ──► slot of a receive ring
//!                  ▲         └─◄─ spare ───┘
//!   sent:      slot of a transmit ring ── buffer ──► port ─► kernel ─┐
//!                                     └─◄─ spare ────┘ ▲─────────────┘
//! ```
//!
//! Such a port has as many buffers as the pool gave it: for each that it gives, it gets one. It
//! takes a buffer only if the kernel can use it and the giver owns it ([`crate::group::owners`]),
//! so that it never has one twice; in place of others it copies. The frame itself is not touched.

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::layout::BufferIndex;
use crate::format::slot::SlotWord;
use crate::frame::Frag;
use crate::group::owners::{Owner, Owners};
use crate::kring::{Refused, RxKring, TxKring};
use crate::region::Region;

/// The terms of exchange of a port without rings that has buffers of a shared region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    owner: Owner,
    /// The port can use buffers below this number: the kernel has no others.
    end: u32,
}

/// The side that gives a frame's buffer and gets another for it.
#[derive(Clone, Copy)]
pub enum Giver<'a> {
    /// The ring that it was taken from, not published yet.
    Ring(&'a TxKring),
    /// A port without rings.
    Port(Exchange),
}

impl Exchange {
    /// The terms of a member of a region that can use buffers below number `end`.
    #[must_use]
    pub fn new(owner: Owner, end: u32) -> Self {
        Self { owner, end }
    }

    /// Whether the port can have this buffer, if `of` owns it.
    fn takes(self, owners: &Owners, buffer: BufferIndex, of: Owner) -> bool {
        buffer.get() < self.end && owners.is(buffer.get(), of)
    }

    /// Takes the buffer of a single frame, and gives `spare` for it. `false`: that cannot be, and
    /// nothing has changed. Where another port without rings gives, the caller tells it.
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
            (Giver::Port(other), _) => {
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
    /// Puts a single frame into the next free slot by its buffer, which `from` owns, and returns
    /// the slot's buffer for it. `None`: `from` cannot have that one, and nothing has changed.
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
