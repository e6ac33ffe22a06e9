//! Buffers that the kernel fills and empties: the memory of AF_XDP sockets.
//!
//! The pool of a [`Region`] that nobody else maps is cut into chunks, of which a socket receives
//! into some and sends from others. A received frame stays where it is until the switch has copied
//! it to where it goes; one that is sent is copied here once.
//!
//! A descriptor of the kernel names a place by its distance from the start of the pool. It is
//! bounded here, once, and is a [`Frag`] from then on.

#![allow(unsafe_code)] // UNSAFETY: frames in the pool are read and written in place.

use std::io;
use std::sync::Arc;

use crate::abi::FIRST_BUFFER;
use crate::kring::Frag;
use crate::layout::RegionLayout;
use crate::put::{Frame, Prologue, Source};
use crate::region::Region;

/// The memory of one or more AF_XDP sockets.
#[derive(Debug)]
pub struct Umem {
    region: Arc<Region>,
}

/// A chunk: a buffer of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(u32);

impl Umem {
    /// So many chunks of `size` bytes each.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files.
    pub fn new(size: u32, count: u32) -> io::Result<Self> {
        let layout = RegionLayout::new(0, size, count).ok_or(io::ErrorKind::InvalidInput)?;
        let (region, _) = Region::create("umem", layout)?;
        let first = region.buffers().next().ok_or(io::ErrorKind::InvalidInput)?;
        region.populate_buffers(first, count)?;
        Ok(Self { region })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the pool begins and how many bytes it has, for the kernel.
    #[must_use]
    pub fn pool(&self) -> (usize, usize) {
        let layout = self.region.layout();
        (self.region.pool().addr(), layout.buffers as usize * layout.stride as usize)
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_size(&self) -> u32 {
        self.region.stride()
    }

    /// All chunks that may be used, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        (FIRST_BUFFER..self.region.layout().buffers).map(Chunk)
    }

    /// Where a chunk begins, as descriptors say it.
    #[must_use]
    pub fn address(&self, chunk: Chunk) -> u64 {
        u64::from(chunk.0) * u64::from(self.region.stride())
    }

    /// The chunk that an address lies in, if there is one.
    #[must_use]
    pub fn chunk_of(&self, address: u64) -> Option<Chunk> {
        let number = u32::try_from(address / u64::from(self.region.stride())).ok()?;
        self.region.check(number).map(|buffer| Chunk(buffer.get()))
    }

    /// The piece of a frame that a descriptor names, if it lies in one chunk.
    #[must_use]
    pub fn piece(&self, address: u64, len: u32) -> Option<Frag> {
        let stride = u64::from(self.region.stride());
        let Chunk(number) = self.chunk_of(address)?;
        let offset = address % stride;
        let fits = offset + u64::from(len) <= stride;
        let (offset, len) = (u16::try_from(offset).ok()?, u16::try_from(len).ok()?);
        let buffer = self.region.check(number).filter(|_| fits)?;
        Some(Frag { buffer, offset, len })
    }

    /// The bytes of a piece that has been received.
    ///
    /// The kernel writes to a chunk only between its way into a fill ring and its way out of a
    /// receive ring; the caller has it after that.
    ///
    /// # Panics
    /// If the piece is not of this pool.
    pub fn bytes(&mut self, piece: Frag) -> &mut [u8] {
        let (offset, len) = (usize::from(piece.offset), usize::from(piece.len));
        assert!(self.region.check(piece.buffer.get()).is_some());
        assert!(offset + len <= self.region.stride() as usize);
        // SAFETY: these bytes lie in a buffer of the region, which only this process maps; the
        // kernel leaves a chunk alone that it has handed out; and `self` is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.region.buffer(piece.buffer).add(offset), len) }
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
            let (to, part) = (chunk(), left.min(self.region.stride()));
            let buffer = self.region.check(to.0).expect("a chunk of this pool");
            source.copy_to(self.region.buffer(buffer), part as usize);
            left -= part;
            done(self.address(to), part, left > 0);
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
        let from = crate::plain::Intake::new(4, 9000);
        let (mut intake, mut frags) = (from.expect("memory"), Vec::new());
        intake.push(&[&data], &mut frags);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&data[..16]);
        let head = Prologue { bytes, len: 16, skip: 16 };
        let pieces = crate::put::Pieces::Of(intake.region(), &frags);
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
            let piece = umem.piece(address, len).expect("ours");
            out.extend_from_slice(umem.bytes(piece));
        }
        assert_eq!(out, data);
    }
}
