//! Rings whose frames have a virtio-net header in front.
//!
//! The header is a matter between the clients of two such ports. The switch takes it off a sent
//! frame, puts it on a received one, and decides from the frame alone. Such rings take no part in
//! runs, so rings without headers pay nothing for them.

#![allow(unsafe_code)] // UNSAFETY: the header is copied out of a buffer.

use super::{BadSlot, Frag, Kring, RxKring, TxKring};
use crate::frame::VNET_HEADER_MAX;
use crate::memory::copy;

/// A virtio-net header; a ring uses as many bytes of it as its frames have in front.
pub type VnetHeader = [u8; VNET_HEADER_MAX];

impl Kring {
    fn set_vnet_header_len(&mut self, len: u8) {
        assert!(usize::from(len) <= VNET_HEADER_MAX);
        self.vnet_header_len = len;
    }
}

impl TxKring {
    /// Sets how many bytes of a header each frame has in front.
    pub fn set_vnet_header_len(&mut self, len: u8) {
        self.ring.set_vnet_header_len(len);
    }

    /// Bytes of the header in front of each frame.
    #[inline]
    #[must_use]
    pub fn vnet_header_len(&self) -> u8 {
        self.ring.vnet_header_len
    }

    /// The header of the last frame that was taken.
    #[must_use]
    pub fn vnet_header(&self) -> VnetHeader {
        self.vnet_header
    }

    /// Takes the header off a frame whose pieces begin at `start`. The header may have a slot of
    /// its own, which is removed then.
    #[cold]
    pub(super) fn take_vnet_header(
        &mut self,
        frags: &mut Vec<Frag>,
        start: usize,
    ) -> Result<(), BadSlot> {
        let len = u16::from(self.ring.vnet_header_len);
        let first = frags.get_mut(start).filter(|first| first.len >= len);
        let first = first.ok_or(BadSlot::TooShort)?;
        let to = self.vnet_header.as_mut_ptr();
        // SAFETY: `len` bytes from the offset lie in the buffer, and fit the array, which is ours.
        unsafe {
            let from = self.ring.region.buffer(first.buffer).add(first.offset.into());
            copy::copy_bytes(to, from, len.into());
        }
        first.offset += len;
        first.len -= len;
        if first.len == 0 {
            frags.remove(start);
        }
        Ok(())
    }
}

impl RxKring {
    /// Sets how many bytes of a header each frame has in front.
    pub fn set_vnet_header_len(&mut self, len: u8) {
        self.ring.set_vnet_header_len(len);
    }

    /// Bytes of the header in front of each frame.
    #[inline]
    #[must_use]
    pub fn vnet_header_len(&self) -> u8 {
        self.ring.vnet_header_len
    }
}
