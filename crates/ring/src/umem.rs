//! Buffers that the kernel fills and empties: the memory of AF_XDP sockets.
//!
//! ```text
//!   own      │ 256 │ frame         │ 256 │ frame         │        chunks are aligned
//!            └ chunk               └ chunk
//!   shared   │ frame         │ frame         │ frame             chunks begin before their buffers
//!            buffer 5  └ 256 buffer 6  └ 256 buffer 7
//! ```
//!
//! *Own*: the pool of a private [`Region`] is cut into chunks. A received frame stays
//! where it is until the switch has copied it to where it goes; one that is sent is copied here
//! once.
//!
//! *Shared*: the first buffers of a trust group's region. The kernel leaves room before a frame, so
//! it is told of a chunk that begins so much before the buffer, and the frame begins where members
//! expect it. It never writes into that room. Buffers are exchanged with members
//! ([`crate::kring::exchange`]); members may write into a frame whenever they like, as into each
//! other's, so bytes are copied out before they mean anything. As long as the kernel has the
//! memory, none of it may be given back to the system: its pages would be others than the members'
//! (`Region::pin`).
//!
//! A descriptor of the kernel names a place by its distance from the start of the pool. It is
//! bounded here, once, and is a [`Frag`] from then on.

#![allow(unsafe_code)] // UNSAFETY: frames in the pool are read and written in place.

use std::io;
use std::sync::Arc;

use crate::format::abi::FIRST_BUFFER;
use crate::format::layout::{BufferIndex, PAGE, RegionLayout};
use crate::frame::{Frag, Frame, Prologue, Source};
use crate::memory::copy;
use crate::region::Region;

/// Room that the kernel takes at the start of a chunk that it receives into.
pub const HEADROOM: u32 = 256;
/// Bytes of a chunk, at least and at most, as the kernel has it.
const CHUNK_MIN: u32 = 2048;
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const CHUNK_MAX: u32 = PAGE as u32;
/// Above these bits of an address is how far into its chunk the frame begins, where chunks are not
/// aligned.
const OFFSET_SHIFT: u32 = 48;

/// The memory of one or more AF_XDP sockets. These are closed before it is dropped.
#[derive(Debug)]
pub struct Umem {
    region: Arc<Region>,
    /// Buffers from this one on are not the kernel's.
    end: u32,
    chunk: u32,
    /// Bytes that a chunk begins before its buffer; 0 where they are aligned.
    lead: u32,
}

/// A chunk: a buffer of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(u32);

impl From<BufferIndex> for Chunk {
    fn from(buffer: BufferIndex) -> Self {
        Self(buffer.get())
    }
}

impl Umem {
    /// A UMEM of this many chunks of `size` bytes each, in memory of its own.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files.
    pub fn new(size: u32, count: u32) -> io::Result<Self> {
        let layout = RegionLayout::new(0, size, count).ok_or(io::ErrorKind::InvalidInput)?;
        let (region, _) = Region::create("umem", layout)?;
        let first = region.buffers().next().ok_or(io::ErrorKind::InvalidInput)?;
        region.populate_buffers(first, count)?;
        Ok(Self { region, end: layout.buffers, chunk: size, lead: 0 })
    }

    /// The buffers of a shared region below number `end`; `None`: buffers of this size cannot be
    /// received into.
    #[must_use]
    pub fn shared(region: &Arc<Region>, end: u32) -> Option<Self> {
        let chunk = (region.stride() + HEADROOM).min(CHUNK_MAX);
        if chunk < CHUNK_MIN {
            return None;
        }
        let end = end.min(region.layout().buffers);
        region.pin(end);
        Some(Self { region: region.clone(), end, chunk, lead: HEADROOM })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the pool begins and how many bytes of it the kernel gets.
    #[must_use]
    pub fn pool(&self) -> (usize, usize) {
        (self.region.pool().addr(), self.end as usize * self.region.stride() as usize)
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_size(&self) -> u32 {
        self.chunk
    }

    /// Whether chunks begin at multiples of their size.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.lead == 0
    }

    /// Most bytes of a frame that are received into one chunk.
    #[must_use]
    pub fn receives(&self) -> u32 {
        self.chunk - HEADROOM
    }

    /// Most bytes of a frame that are sent from one chunk.
    #[must_use]
    pub fn sends(&self) -> u32 {
        self.chunk.min(self.region.stride())
    }

    /// All chunks of memory of its own that may be used, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        (FIRST_BUFFER..self.end).map(Chunk)
    }

    /// The buffer that a chunk is.
    ///
    /// # Panics
    /// If that is not of this pool.
    #[must_use]
    pub fn buffer(&self, chunk: Chunk) -> BufferIndex {
        self.region.check(chunk.0).expect("a chunk of this pool")
    }

    /// Where a buffer begins, as descriptors say it.
    #[must_use]
    pub fn address(&self, chunk: Chunk) -> u64 {
        u64::from(chunk.0) * u64::from(self.region.stride())
    }

    /// Where its chunk begins.
    #[must_use]
    pub fn fill_address(&self, chunk: Chunk) -> u64 {
        self.address(chunk) - u64::from(self.lead)
    }

    /// Where in the pool a descriptor's address is.
    fn place(&self, address: u64) -> u64 {
        match self.is_aligned() {
            true => address,
            false => (address & ((1 << OFFSET_SHIFT) - 1)) + (address >> OFFSET_SHIFT),
        }
    }

    /// A buffer, and how far into it an address is.
    fn buffer_of(&self, address: u64) -> Option<(BufferIndex, u64)> {
        let (place, stride) = (self.place(address), u64::from(self.region.stride()));
        let number = u32::try_from(place / stride).ok().filter(|number| *number < self.end)?;
        Some((self.region.check(number)?, place % stride))
    }

    /// The chunk whose frame an address lies in, if there is one.
    #[must_use]
    pub fn chunk_of(&self, address: u64) -> Option<Chunk> {
        self.buffer_of(address).map(|(buffer, _)| Chunk::from(buffer))
    }

    /// The piece of a frame that a descriptor names, if it lies in one buffer.
    #[must_use]
    pub fn piece(&self, address: u64, len: u32) -> Option<Frag> {
        let (buffer, offset) = self.buffer_of(address)?;
        if offset + u64::from(len) > u64::from(self.region.stride()) {
            return None;
        }
        let (offset, len) = (u16::try_from(offset).ok()?, u16::try_from(len).ok()?);
        Some(Frag { buffer, offset, len })
    }

    /// What names a piece, to send it from where it lies; `None`: the kernel cannot.
    #[must_use]
    pub fn address_of(&self, piece: Frag) -> Option<u64> {
        let sent = piece.buffer.get() < self.end && u32::from(piece.len) <= self.chunk;
        sent.then(|| self.address(piece.buffer.into()) + u64::from(piece.offset))
    }

    /// Copies bytes of a piece that has been received out, from `at` on; returns how many.
    pub fn read(&self, piece: Frag, at: usize, to: &mut [u8]) -> usize {
        let len = to.len().min(usize::from(piece.len).saturating_sub(at));
        if len > 0 {
            // SAFETY: `at + len` bytes of the piece lie in its buffer; the destination is ours.
            unsafe { copy::copy_bytes(to.as_mut_ptr(), self.bytes(piece).add(at), len) };
        }
        len
    }

    /// Writes over bytes of such a piece.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn write_at(&mut self, piece: Frag, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= usize::from(piece.len));
        // SAFETY: just looked at; no reference into a region exists.
        unsafe { copy::copy_bytes(self.bytes(piece).add(at), bytes.as_ptr(), bytes.len()) };
    }

    /// Where a piece begins.
    fn bytes(&self, piece: Frag) -> *mut u8 {
        assert!(self.region.check(piece.buffer.get()).is_some());
        // SAFETY: the offset of a piece is at most the stride, and the buffer is the region's.
        unsafe { self.region.buffer(piece.buffer).add(piece.offset.into()) }
    }

    /// Copies a frame, with `head` for its first bytes, into chunks, of which `chunk` gives the
    /// next one; `done` is told of each where it begins, how much is in it and whether more
    /// follows.
    ///
    /// # Panics
    /// If a chunk is not of this pool.
    pub fn write(
        &mut self,
        frame: Frame<'_>,
        head: Prologue,
        mut chunk: impl FnMut() -> Chunk,
        mut done: impl FnMut(u64, u32, bool),
    ) {
        let mut left = delivered(frame, head);
        let mut source = Source::new(&[], frame, head);
        while left > 0 {
            let (to, part) = (chunk(), left.min(self.sends()));
            source.copy_to(self.region.buffer(self.buffer(to)), part as usize);
            left -= part;
            done(self.address(to), part, left > 0);
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        if !self.is_aligned() {
            self.region.unpin();
        }
    }
}

/// Bytes of a frame as it is to be delivered.
#[must_use]
pub fn delivered(frame: Frame<'_>, head: Prologue) -> u32 {
    frame.bytes - u32::from(head.skip) + u32::from(head.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_outside_of_the_pool_and_across_chunks_are_none() {
        let umem = Umem::new(2048, 4).expect("memory");
        let first = umem.chunks().next().expect("four");
        let start = umem.address(first);
        assert_eq!(umem.chunk_of(start + 2047), Some(first));
        assert!(umem.piece(start + 256, 1792).is_some());
        assert!(umem.piece(start + 256, 1793).is_none(), "into the next chunk");
        let end = start + 4 * 2048;
        for (address, len) in [(0, 60), (start - 1, 1), (end, 1), (u64::MAX, 1), (1 << 40, 0)] {
            assert!(umem.piece(address, len).is_none(), "{address}");
        }
        assert!(umem.piece(start, u32::MAX).is_none());
    }

    #[test]
    fn a_long_frame_goes_into_several_chunks_as_it_was() {
        let mut umem = Umem::new(2048, 8).expect("memory");
        let data: Vec<u8> = (0..5000u32).map(|i| i.to_le_bytes()[0] ^ 0x33).collect();
        let from = crate::intake::Intake::new(4, 9000);
        let (mut intake, mut frags) = (from.expect("memory"), Vec::new());
        intake.push(&[&data], &mut frags);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&data[..16]);
        let head = Prologue { bytes, len: 16, skip: 16 };
        let pieces = crate::frame::Pieces::Region(intake.region(), &frags);
        let frame = Frame { pieces, bytes: 5000 };
        let (mut free, mut parts) = (umem.chunks(), Vec::new());
        umem.write(
            frame,
            head,
            || free.next().expect("eight"),
            |address, len, more| parts.push((address, len, more)),
        );
        let shape: Vec<_> = parts.iter().map(|(_, len, more)| (*len, *more)).collect();
        assert_eq!(shape, [(2048, true), (2048, true), (904, false)]);
        let mut out = Vec::new();
        for (address, len, _) in parts {
            let (piece, mut bytes) = (umem.piece(address, len).expect("ours"), [0; 2048]);
            let read = umem.read(piece, 0, &mut bytes);
            out.extend_from_slice(&bytes[..read]);
        }
        assert_eq!(out, data);
    }

    fn shared(stride: u32) -> (Arc<Region>, Option<Umem>) {
        let layout = RegionLayout::new(PAGE, stride, 64).expect("legal");
        let (region, _) = Region::create_shared("test", layout).expect("memory");
        let umem = Umem::shared(&region, 32);
        (region, umem)
    }

    #[test]
    fn frames_in_shared_memory_begin_where_their_buffers_do() {
        let (region, umem) = shared(2112);
        let umem = umem.expect("large enough");
        let [second, last] = [FIRST_BUFFER, 31].map(Chunk);
        let start = umem.fill_address(second);
        assert_eq!(start + 256, umem.address(second));
        assert_eq!((umem.chunk_size(), umem.receives(), umem.sends()), (2368, 2112, 2112));
        assert_eq!(umem.pool().1 as u64, umem.fill_address(last) + 2368, "to the last byte");
        let frame = umem.piece(start | 256 << 48, 1500).expect("one buffer");
        assert_eq!((frame.buffer.get(), frame.offset, frame.len), (FIRST_BUFFER, 0, 1500));
        assert_eq!(umem.chunk_of(start | 256 << 48), Some(second));
        assert_eq!(umem.address_of(frame), Some(umem.address(second)));
        let beyond = Frag { buffer: region.check(32).expect("a buffer"), ..frame };
        assert_eq!(umem.address_of(beyond), None);
        assert!(umem.piece(umem.address(Chunk(32)), 60).is_none());
    }

    #[test]
    fn small_buffers_are_not_shared_and_of_large_ones_a_page_is() {
        assert!(shared(1728).1.is_none() && shared(1792).1.is_some());
        let umem = shared(9024).1.expect("large enough");
        assert_eq!((umem.chunk_size(), umem.receives(), umem.sends()), (4096, 3840, 4096));
    }
}
