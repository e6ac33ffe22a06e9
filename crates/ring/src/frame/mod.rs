//! Frames wherever they lie: in buffers of a region, or in memory that a guest has lent.
//!
//! ```text
//!   Frame ─► pieces   Region  [Frag] [Frag]              buffers of a region
//!                     Guest  [GuestSlice] [GuestSlice]  a guest's memory
//! ```
//!
//! A frame is never seen as a slice, because its sender may still write it. The first bytes are
//! read once (`head`); what the switch decides from them, and then writes for the receiver, is
//! that copy: the [`Prologue`]. The rest is copied from where it lies (`source`, `write`).

mod head;
mod source;
mod write;

pub(crate) use source::Source;
pub use write::RawSlice;

use crate::format::abi::slot_flag;
use crate::format::layout::BufferIndex;
use crate::guest::{GuestMemory, GuestSlice};
use crate::memory::copy::HEADER;
use crate::region::Region;

/// Shortest frame: the header of Ethernet, in bytes.
pub const ETHERNET: usize = 14;
/// Longest frame: the largest IP packet behind an Ethernet header with a VLAN tag, in bytes.
pub const FRAME_MAX: u32 = 65_535 + 18;

/// Most slots of a frame, in either direction: a received slot has eight bits for the number of its
/// frame's slots. Where buffers are so small that the longest frames need more, they do not fit.
pub const SLOTS_MAX: u32 = 255;

const _: () = assert!(SLOTS_MAX << slot_flag::RFRAGS_SHIFT <= 0xffff);

/// Most bytes of the virtio-net header in front of a frame.
pub const VNET_HEADER_MAX: usize = 12;

/// How the beginning of a frame is written to a destination: `bytes[..len]` in place of the first
/// `skip` bytes of the source. So VLAN tags are inserted and stripped, and the receiver gets the
/// bytes that the switch decided from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// What to write.
    pub bytes: [u8; HEADER],
    /// How many of `bytes` to write, at most 16.
    pub len: u8,
    /// Bytes of the source that they replace, at most 16.
    pub skip: u8,
}

impl Prologue {
    /// Nothing is replaced: the receiver gets the frame as it lies.
    pub const NONE: Self = Self { bytes: [0; HEADER], len: 0, skip: 0 };
}

/// A frame to be delivered.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// The pieces, in order.
    pub pieces: Pieces<'a>,
    /// Sum of the pieces' lengths.
    pub bytes: u32,
}

/// Where the pieces of a frame lie.
#[derive(Clone, Copy)]
pub enum Pieces<'a> {
    /// In buffers of a region. The first piece holds at least an Ethernet header.
    Region(&'a Region, &'a [Frag]),
    /// In the memory of a guest.
    Guest(&'a GuestMemory, &'a [GuestSlice]),
}

/// One piece of a frame: bytes in a buffer of the batch's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frag {
    pub(crate) buffer: BufferIndex,
    pub(crate) len: u16,
    /// Where in the buffer the bytes begin; `offset + len` is at most the stride.
    pub(crate) offset: u16,
}

impl Frag {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Whether the frame holds no byte.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Frag {
    /// This piece in another buffer, where a copy of it lies.
    #[must_use]
    pub fn in_buffer(self, buffer: BufferIndex) -> Self {
        Self { buffer, ..self }
    }

    /// The buffer that the piece lies in.
    #[must_use]
    pub fn buffer(&self) -> BufferIndex {
        self.buffer
    }
}
