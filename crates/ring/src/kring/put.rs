//! Putting one frame of any shape into a receive ring: chains of slots in and out, VLAN tags
//! inserted and stripped.

#![allow(unsafe_code)] // UNSAFETY: copies between buffers that were bounded before.

use std::sync::Arc;

use crate::format::abi::slot_flag;
use crate::format::cursor::Index;
use crate::format::slot::SlotWord;
use crate::frame::{FRAME_MAX, Frag, Frame, Prologue, SLOTS_MAX, Source};
use crate::kring::{Refused, RxKring, TxKring};
use crate::memory::copy::{self};
use crate::region::Region;

impl RxKring {
    /// Slots that a frame of `bytes` bytes needs at most, also once a VLAN tag is inserted.
    #[inline]
    #[must_use]
    pub fn slots_for(&self, bytes: u32) -> u32 {
        let bytes = bytes + 4 + u32::from(self.vnet_header_len());
        if bytes <= self.region().stride() && !self.has_offsets() {
            return 1;
        }
        self.slots_of_chain(bytes)
    }

    /// As many slots as it takes where each frame begins as late in its buffer as the client says.
    #[cold]
    fn slots_of_chain(&self, bytes: u32) -> u32 {
        let stride = self.region().stride();
        if !self.has_offsets() {
            return bytes.div_ceil(stride);
        }
        bytes.div_ceil(stride.saturating_sub(self.offset_max()).max(1)).min(self.capacity())
    }

    /// Whether a piece fits one slot as it is, copied line by line.
    #[inline]
    #[must_use]
    pub fn fits(&self, piece: Frag) -> bool {
        let moved = piece.offset != 0 || self.is_staged();
        !moved && u32::from(piece.len) <= self.region().stride()
    }

    /// Whether a slot of this ring may get the piece's buffer: it must be able to say where the
    /// frame begins.
    #[inline]
    #[must_use]
    pub fn can_swap(&self, piece: Frag) -> bool {
        self.can_say(piece.offset)
    }

    /// Copies a frame of one piece that [`RxKring::fits`], with `header` for its first bytes.
    ///
    /// # Errors
    /// [`Refused`]: nothing has been delivered.
    #[inline]
    pub fn put_single(&mut self, from: &Region, piece: Frag, header: u128) -> Result<u32, Refused> {
        assert!(self.fits(piece));
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        let to = self.free_buffer()?;
        let (data, len) = (from.buffer(piece.buffer), usize::from(piece.len));
        // SAFETY: both buffers are aligned to a line and hold `len`, rounded up to whole lines.
        // The source slot is the sender's and the destination slot the receiver's; where a
        // hostile group made both name one buffer, whole lines are copied onto themselves.
        unsafe { copy::copy_frame(self.region().buffer(to), data, copy::block(header), len) };
        self.fill(SlotWord::new(to.get(), piece.len, 0));
        Ok(u32::from(piece.len))
    }

    /// Moves a frame of one piece by swapping buffers with the slot of `tx` that it came from,
    /// which has been taken and not published yet. `to_function`: this ring is a function's, see
    /// [`crate::kring::metadata::Functions`].
    ///
    /// # Errors
    /// [`Refused`]: nothing has been delivered.
    pub fn put_swapped(
        &mut self,
        tx: &TxKring,
        slot: Index,
        piece: Frag,
        to_function: bool,
    ) -> Result<u32, Refused> {
        debug_assert!(Arc::ptr_eq(tx.region(), self.region()) && self.can_swap(piece));
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        let spare = self.free_buffer()?;
        if to_function && !self.region().owners().is(spare.get(), self.owner()) {
            self.pass_over();
            return Err(Refused::BadSlot);
        }
        if self.has_offsets() {
            self.set_free_offset(piece.offset);
        }
        tx.replace(slot, spare.get());
        self.region().owners().give(piece.buffer.get(), self.owner());
        self.fill(SlotWord::new(piece.buffer.get(), piece.len, slot_flag::BUF_CHANGED));
        Ok(u32::from(piece.len))
    }

    /// Copies a frame into as many slots as it takes; returns the bytes delivered.
    ///
    /// # Errors
    /// [`Refused`]: nothing of the frame has been delivered; spoilt slots are passed over.
    pub fn put(&mut self, frame: Frame<'_>, head: Prologue) -> Result<u32, Refused> {
        self.put_behind(&[], frame, head)
    }

    /// Copies a frame behind a virtio-net header, whose bytes are not counted.
    ///
    /// # Errors
    /// As [`RxKring::put`].
    pub fn put_behind(
        &mut self,
        vnet_header: &[u8],
        frame: Frame<'_>,
        head: Prologue,
    ) -> Result<u32, Refused> {
        let own = u32::try_from(vnet_header.len()).expect("a header is short");
        let bytes = own + frame.bytes - u32::from(head.skip) + u32::from(head.len);
        let mut source = Source::new(vnet_header, frame, head);
        if self.has_offsets() {
            return self.put_inside(source, bytes).map(|bytes| bytes.saturating_sub(own));
        }
        let slots = bytes.div_ceil(self.region().stride());
        if bytes > FRAME_MAX || slots >= self.slots() || slots > SLOTS_MAX {
            return Err(Refused::TooLong);
        }
        if slots > self.room() {
            return Err(Refused::NoRoom);
        }
        if slots == 1 {
            let to = self.free_buffer()?;
            source.copy_to(self.region().buffer(to), bytes as usize);
            self.fill(SlotWord::new(to.get(), len16(bytes), 0));
        } else {
            self.put_chain(source, slots, bytes)?;
        }
        Ok(bytes - own)
    }

    /// Marks every slot with the number of slots and all but the last with `NS_MOREFRAG`, as
    /// netmap does. All buffers are checked before the first slot is filled.
    fn put_chain(&mut self, mut source: Source<'_>, slots: u32, bytes: u32) -> Result<(), Refused> {
        self.check_free(slots)?;
        let (stride, mut left) = (self.region().stride(), bytes);
        let count = len16(slots) << slot_flag::RFRAGS_SHIFT;
        while left > 0 {
            let (to, part) = (self.free_buffer()?, left.min(stride));
            source.copy_to(self.region().buffer(to), part as usize);
            left -= part;
            let more = if left > 0 { slot_flag::MOREFRAG } else { 0 };
            self.fill(SlotWord::new(to.get(), len16(part), count | more));
        }
        Ok(())
    }

    /// Copies a frame into buffers in which frames begin where the client says.
    #[cold]
    fn put_inside(&mut self, mut source: Source<'_>, bytes: u32) -> Result<u32, Refused> {
        let slots = self.slots_inside(bytes)?;
        self.check_free(slots)?;
        let count = if slots > 1 { len16(slots) << slot_flag::RFRAGS_SHIFT } else { 0 };
        let mut left = bytes;
        for i in 1..=slots {
            // A client that moves offsets meanwhile gets less of its frame.
            let (to, offset) = (self.free_buffer()?, self.free_offset(0).unwrap_or(0));
            let part = left.min(self.region().stride() - u32::from(offset));
            // SAFETY: `offset` is below the stride.
            let data = unsafe { self.region().buffer(to).add(offset.into()) };
            source.copy_to(data, part as usize);
            left -= part;
            let more = if i < slots { slot_flag::MOREFRAG } else { 0 };
            self.fill(SlotWord::new(to.get(), len16(part), count | more));
        }
        Ok(bytes - left)
    }

    /// How many slots `bytes` bytes need; an offset that leaves no room spoils its slot.
    fn slots_inside(&mut self, bytes: u32) -> Result<u32, Refused> {
        let (mut slots, mut room) = (0, 0);
        while room < bytes {
            let empty = self.room() + 1 == self.slots();
            if bytes > FRAME_MAX || slots == SLOTS_MAX || slots == self.room() && empty {
                return Err(Refused::TooLong);
            }
            if slots == self.room() {
                return Err(Refused::NoRoom);
            }
            let Some(offset) = self.free_offset(slots) else {
                self.set_aside(slots)?;
                self.pass_over();
                return Err(Refused::BadSlot);
            };
            room += self.region().stride() - u32::from(offset);
            slots += 1;
        }
        Ok(slots)
    }

    /// Checks the next `slots` buffers; passes over everything up to the first spoilt one.
    fn check_free(&mut self, slots: u32) -> Result<(), Refused> {
        let Some(spoilt) = (0..slots).find(|&i| !self.is_free_slot_good(i)) else {
            return Ok(());
        };
        self.set_aside(spoilt)?;
        self.pass_over();
        Err(Refused::BadSlot)
    }

    /// Gives the next `slots` slots back with nothing in them.
    fn set_aside(&mut self, slots: u32) -> Result<(), Refused> {
        for _ in 0..slots {
            let to = self.free_buffer()?;
            self.fill(SlotWord::new(to.get(), 0, 0));
        }
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation)] // reason: callers bound it by a slot's 16 bits.
fn len16(bytes: u32) -> u16 {
    debug_assert!(bytes <= u32::from(u16::MAX));
    bytes as u16
}
