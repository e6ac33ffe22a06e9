//! Frames copied out: into memory of the daemon, and into memory of a guest.

#![allow(unsafe_code)] // UNSAFETY: copies from pieces into bytes of the daemon or of a guest.

use super::{Frame, Prologue, Source, VNET_HEADER_MAX};
use crate::format::abi::LINE;
use crate::guest::{GuestMemory, GuestSlice, Writer};
use crate::memory::copy::{self, HEADER};

/// Where some bytes of a frame lie, for a system call that reads them.
#[derive(Clone, Copy, Debug)]
pub struct RawSlice {
    /// Address of the first byte.
    pub at: *const u8,
    /// Number of bytes.
    pub len: usize,
}

impl Frame<'_> {
    /// Calls `tell` for each stretch of the frame's bytes, in order, with `head` for the first of
    /// them. They hold as long as the frame and `head` do.
    pub fn raw_slices(self, head: &Prologue, mut tell: impl FnMut(RawSlice)) {
        let mut source = Source::new(&[], self, *head);
        tell(RawSlice { at: head.bytes.as_ptr(), len: head.len.into() });
        while let Some((at, len)) = source.next_piece() {
            tell(RawSlice { at, len });
        }
    }

    /// Appends the frame's bytes, with `head` for the first of them.
    pub fn append_to(self, head: Prologue, to: &mut Vec<u8>) {
        let bytes = (self.bytes - u32::from(head.skip) + u32::from(head.len)) as usize;
        to.reserve(bytes);
        let mut source = Source::new(&[], self, head);
        // SAFETY: `bytes` bytes are reserved behind the vector's end, and `copy_to` writes each of
        // them.
        unsafe {
            source.copy_to(to.as_mut_ptr().add(to.len()), bytes);
            to.set_len(to.len() + bytes);
        }
    }
}

impl Frame<'_> {
    /// Writes `vnet_header`, and behind it a frame in one piece with `header` for its first bytes,
    /// to the beginning of a span; `false`: the frame is not in one piece, or has no whole header,
    /// or the span is too short.
    ///
    /// The header stays in registers. A copy of a few bytes that waits for narrower stores to its
    /// source waits for all stores before them, and these go to lines that another processor has.
    #[inline(always)]
    #[must_use]
    pub fn write_single(
        self,
        vnet_header: &[u8; VNET_HEADER_MAX],
        header: u128,
        memory: &GuestMemory,
        to: GuestSlice,
    ) -> bool {
        let bytes = self.bytes as usize;
        let Some(from) = self.only().filter(|_| bytes >= HEADER) else { return false };
        if (to.len() as usize) < VNET_HEADER_MAX + bytes {
            return false;
        }
        let to = memory.at(to, 0);
        // SAFETY: there is room for header and frame at `to`, and `from` has all bytes of the
        // frame.
        unsafe {
            write_vnet_header(to, vnet_header);
            let to = to.add(VNET_HEADER_MAX);
            to.cast::<u128>().write_unaligned(header);
            copy::copy_bytes(to.add(HEADER), from.add(HEADER), bytes - HEADER);
        }
        true
    }

    /// Writes the frame with `head` for its first bytes; returns how many it wrote.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn write_to(self, head: Prologue, to: &mut Writer<'_>) -> u32 {
        let bytes = self.bytes - u32::from(head.skip) + u32::from(head.len);
        let mut source = Source::new(&[], self, head);
        to.write_with(bytes as usize, |place, len| source.copy_to(place, len));
        bytes
    }
}

/// Writes the header in front of a frame. Where the header ends a cache line and stands there
/// already, nothing is written, so that the line stays in the caches of both sides.
///
/// # Safety
/// `to` has room for it.
#[inline(always)]
unsafe fn write_vnet_header(to: *mut u8, vnet_header: &[u8; VNET_HEADER_MAX]) {
    let mut old = [0; VNET_HEADER_MAX];
    let alone = (to.addr() + VNET_HEADER_MAX).is_multiple_of(LINE);
    // SAFETY: the caller's promise.
    unsafe {
        if alone {
            copy::copy_bytes(old.as_mut_ptr(), to, VNET_HEADER_MAX);
        }
        if !alone || old != *vnet_header {
            copy::copy_bytes(to, vnet_header.as_ptr(), VNET_HEADER_MAX);
        }
    }
}
