//! The beginning of a frame in a region, read once.

#![allow(unsafe_code)] // UNSAFETY: bytes are copied out of buffers.

use super::Frag;
use crate::format::abi::LINE;
use crate::memory::copy;
use crate::region::Region;

impl Region {
    /// The first 16 bytes of a piece of a frame, read once.
    #[inline]
    #[must_use]
    pub fn header(&self, piece: Frag) -> u128 {
        if piece.offset != 0 {
            return self.header_inside(piece);
        }
        // SAFETY: buffers are aligned to a line and at least one line long.
        copy::number(unsafe { copy::header(self.buffer(piece.buffer)) })
    }

    /// The header of a piece that begins anywhere in its buffer and may be shorter than a header.
    #[cold]
    fn header_inside(&self, piece: Frag) -> u128 {
        let mut bytes = [0u8; copy::HEADER];
        let len = usize::from(piece.len).min(bytes.len());
        // SAFETY: `offset + len` of a piece lies in its buffer.
        unsafe {
            let from = self.buffer(piece.buffer).add(piece.offset.into());
            copy::copy_bytes(bytes.as_mut_ptr(), from, len);
        }
        u128::from_ne_bytes(bytes)
    }

    /// The first `N` words of a frame, little-endian and each read once. `None`: the frame is
    /// shorter, or does not begin where its buffer does.
    #[inline(always)]
    #[must_use]
    pub fn words<const N: usize>(&self, piece: Frag) -> Option<[u64; N]> {
        const { assert!(N * size_of::<u64>() <= LINE) };
        if piece.offset != 0 || usize::from(piece.len()) < N * size_of::<u64>() {
            return None;
        }
        let from = self.buffer(piece.buffer).cast::<u64>();
        // SAFETY: a buffer is aligned to a line, and has at least one.
        Some(std::array::from_fn(|at| u64::from_le(unsafe { from.add(at).read_volatile() })))
    }

    /// Copies the beginning of a frame out, once; returns how many bytes it has there.
    #[inline]
    pub fn prefix<const N: usize>(&self, piece: Frag, to: &mut [u8; N]) -> usize {
        let len = usize::from(piece.len()).min(N);
        // SAFETY: `len` bytes from the offset lie in the buffer; the array is ours and as long.
        unsafe {
            let from = self.buffer(piece.buffer).add(piece.offset.into());
            copy::copy_bytes(to.as_mut_ptr(), from, len);
        }
        len
    }
}
