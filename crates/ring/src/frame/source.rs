//! The bytes of a frame in order, from one piece to the next.

#![allow(unsafe_code)] // UNSAFETY: copies between pieces that were bounded before.

use super::{Frame, Pieces, Prologue};
use crate::memory::copy::{self, HEADER};

impl Pieces<'_> {
    /// Where the first piece continues behind `done` bytes, and how many bytes follow.
    #[inline]
    fn first(&self, done: usize) -> (*const u8, usize) {
        match *self {
            Self::Region(region, frags) => {
                let (frag, len) = (frags[0], usize::from(frags[0].len()));
                let at = done.min(len);
                // SAFETY: `at` is at most the length of the piece, and offset and length were
                // bounded by the buffer's stride.
                let from = unsafe { region.buffer(frag.buffer).add(usize::from(frag.offset) + at) };
                (from, len - at)
            }
            Self::Guest(memory, spans) => {
                let (span, at) = (spans[0], u32::try_from(done).unwrap_or(u32::MAX));
                let at = at.min(span.len());
                (memory.at(span, at), (span.len() - at) as usize)
            }
        }
    }

    /// Length of the first piece; `None`: no piece is left.
    #[inline]
    fn first_len(&self) -> Option<usize> {
        match *self {
            Self::Region(_, frags) => frags.first().map(|frag| usize::from(frag.len())),
            Self::Guest(_, spans) => spans.first().map(|span| span.len() as usize),
        }
    }

    #[inline]
    fn drop_first(&mut self) {
        match self {
            Self::Region(_, frags) => *frags = &frags[1..],
            Self::Guest(_, spans) => *spans = &spans[1..],
        }
    }
}

impl Frame<'_> {
    /// Where the frame lies, if it is in one piece.
    #[inline]
    pub(crate) fn only(&self) -> Option<*const u8> {
        let one = match self.pieces {
            Pieces::Region(_, frags) => frags.len() == 1,
            Pieces::Guest(_, spans) => spans.len() == 1,
        };
        let (from, len) = if one { self.pieces.first(0) } else { return None };
        (len >= self.bytes as usize).then_some(from)
    }

    /// Copies the beginning of the frame out, once; returns how many bytes it has there.
    #[inline]
    pub fn prefix(self, to: &mut [u8]) -> usize {
        let bytes = to.len().min(self.bytes as usize);
        Source::new(&[], self, Prologue::NONE).copy_to(to.as_mut_ptr(), bytes);
        bytes
    }
}

/// The bytes of a frame in order: a virtio-net header, the prologue, then the rest of the pieces.
pub(crate) struct Source<'a> {
    /// The rest of the virtio-net header.
    vnet_header: &'a [u8],
    head: Prologue,
    /// Bytes of the prologue already copied.
    head_at: usize,
    /// The pieces that are left, and how many bytes of the first are done.
    pieces: Pieces<'a>,
    done: usize,
}

impl<'a> Source<'a> {
    #[inline]
    pub(crate) fn new(vnet_header: &'a [u8], frame: Frame<'a>, head: Prologue) -> Self {
        assert!(usize::from(head.len) <= HEADER);
        let mut source = Self { vnet_header, head, head_at: 0, pieces: frame.pieces, done: 0 };
        source.advance(head.skip.into());
        source
    }

    /// Skips `bytes` bytes of the pieces.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        while let Some(len) = self.pieces.first_len().filter(|len| *len <= self.done) {
            self.pieces.drop_first();
            self.done -= len;
        }
    }

    /// Copies the next `bytes` bytes of the frame to the start of a buffer.
    #[inline]
    pub(crate) fn copy_to(&mut self, to: *mut u8, bytes: usize) {
        debug_assert!(bytes == 0 || !to.is_null());
        let mut at = self.copy_vnet_header(to, bytes);
        // SAFETY: `at` is at most `bytes`, which lie in the destination.
        at += self.copy_head(unsafe { to.add(at) }, bytes - at);
        while at < bytes {
            let (from, room) = self.pieces.first(self.done);
            let part = room.min(bytes - at);
            // SAFETY: `part` bytes lie in the piece, and `bytes` in the destination.
            unsafe { copy::copy_bytes(to.add(at), from, part) };
            at += part;
            self.advance(part);
        }
    }

    /// The next bytes behind the prologue that lie in one piece.
    pub(crate) fn next_piece(&mut self) -> Option<(*const u8, usize)> {
        self.pieces.first_len()?;
        let (at, len) = self.pieces.first(self.done);
        self.advance(len);
        Some((at, len))
    }

    #[inline]
    fn copy_vnet_header(&mut self, to: *mut u8, bytes: usize) -> usize {
        let (now, later) = self.vnet_header.split_at(self.vnet_header.len().min(bytes));
        // SAFETY: no more than `bytes`, which lie in the destination; the header is ours.
        unsafe { copy::copy_bytes(to, now.as_ptr(), now.len()) };
        self.vnet_header = later;
        now.len()
    }

    #[inline]
    fn copy_head(&mut self, to: *mut u8, bytes: usize) -> usize {
        let part = (usize::from(self.head.len) - self.head_at).min(bytes);
        let head = &self.head.bytes[self.head_at..self.head_at + part];
        // SAFETY: `part` is at most `bytes`, which lie in the destination; the prologue is ours.
        unsafe { copy::copy_bytes(to, head.as_ptr(), part) };
        self.head_at += part;
        part
    }
}
