//! Rings whose frames have a virtio-net header in front: the switch's half.
//!
//! The header is between the clients of two such ports; the switch takes it off and puts it on, and
//! looks at frames only. Such rings take no part in runs, and cost others nothing.

#![allow(unsafe_code)] // UNSAFETY: the header is copied out of a buffer.

use super::{BadSlot, Frag, Kring, RxKring, TxKring};
use crate::copy;

/// Most bytes of a header.
pub const FRONT_MAX: usize = 12;

/// A header, of which a ring has as many bytes as its frames have in front.
pub type Front = [u8; FRONT_MAX];

impl Kring {
    fn set_front(&mut self, len: u8) {
        assert!(usize::from(len) <= FRONT_MAX);
        self.front = len;
    }
}

impl TxKring {
    /// From now on, frames have so many bytes in front.
    pub fn set_front(&mut self, len: u8) {
        self.ring.set_front(len);
    }

    /// How many bytes that are.
    #[inline]
    #[must_use]
    pub fn front_len(&self) -> u8 {
        self.ring.front
    }

    /// What was in front of the last frame that was taken.
    #[must_use]
    pub fn front(&self) -> Front {
        self.front
    }

    /// Takes the header off a frame whose pieces begin at `start`; it may have a slot of its own.
    #[cold]
    pub(super) fn take_front(
        &mut self,
        frags: &mut Vec<Frag>,
        start: usize,
    ) -> Result<(), BadSlot> {
        let len = u16::from(self.ring.front);
        let first = frags.get_mut(start).filter(|first| first.len >= len);
        let first = first.ok_or(BadSlot::TooShort)?;
        let to = self.front.as_mut_ptr();
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
    /// As [`TxKring::set_front`].
    pub fn set_front(&mut self, len: u8) {
        self.ring.set_front(len);
    }

    /// As [`TxKring::front_len`].
    #[inline]
    #[must_use]
    pub fn front_len(&self) -> u8 {
        self.ring.front
    }
}
