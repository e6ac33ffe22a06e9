//! Frames to write, each behind its header: the memory from which a system call writes.
//!
//! ```text
//!   bytes    │ header, short frame │ header, prologue │ header, short frame │ …
//!             ▲                     ▲           + fragments of the batch
//!   frame     0                     1
//! ```
//!
//! Short frames are copied behind their header; long ones are written in fragments. The memory of
//! the batch is borrowed for the life of the [`WriteList`], which is written before the batch is
//! reused.

#![allow(unsafe_code)] // UNSAFETY: the addresses for the kernel have no lifetime.

use std::marker::PhantomData;

use ring::frame::{Frame, Prologue, RawSlice};
use switch::receive::batch::FRAGS_MAX;

/// Memory for write lists, used again and again.
#[derive(Debug)]
pub struct WriteBuffer {
    bytes: Vec<u8>,
    pieces: Vec<libc::iovec>,
    writes: Vec<Write>,
    most: usize,
}

// SAFETY: the addresses of the fragments are used only through a list, which begins empty.
unsafe impl Send for WriteBuffer {}

/// One write.
#[derive(Debug)]
struct Write {
    queue: usize,
    /// The offset of the first fragment in the bytes; the others are anywhere.
    start: usize,
    /// The end of its fragments, and the start of the next write's.
    end: usize,
}

impl WriteBuffer {
    /// Memory for `most` writes, none of which copies more than `longest` bytes.
    #[must_use]
    pub fn new(most: usize, longest: usize) -> Self {
        let bytes = longest * most.min(16);
        Self {
            bytes: Vec::with_capacity(bytes),
            // One fragment for the header of each.
            pieces: Vec::with_capacity(2 * most + FRAGS_MAX),
            writes: Vec::with_capacity(most),
            most,
        }
    }

    /// An empty list.
    pub fn begin<'f>(&mut self) -> WriteList<'_, 'f> {
        self.bytes.clear();
        self.pieces.clear();
        self.writes.clear();
        WriteList { buffer: self, frames: PhantomData }
    }
}

/// A list of writes whose frames live as long as `'f`.
#[derive(Debug)]
pub struct WriteList<'a, 'f> {
    buffer: &'a mut WriteBuffer,
    frames: PhantomData<Frame<'f>>,
}

impl<'f> WriteList<'_, 'f> {
    /// Whether there is room for one more write that copies at most this many bytes.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        let WriteBuffer { bytes: all, pieces, writes, most } = &*self.buffer;
        writes.len() < *most
            && (writes.is_empty() || all.capacity() - all.len() >= bytes)
            && pieces.capacity() - pieces.len() > FRAGS_MAX
    }

    /// The number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.writes.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a write to this queue, whose bytes `write` appends; adds none if `write` fails.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn copy<T, E>(
        &mut self,
        queue: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
    ) -> Result<T, E> {
        let start = self.buffer.bytes.len();
        let written = write(&mut self.buffer.bytes);
        match written {
            Ok(_) => self.close(queue, start, |_| {}),
            Err(_) => self.buffer.bytes.truncate(start),
        }
        written
    }

    /// Adds a write to this queue: a frame, with `head` for its first bytes, behind `vnet_header`.
    pub fn lend(&mut self, queue: usize, vnet_header: &[u8], frame: Frame<'f>, head: &Prologue) {
        let start = self.buffer.bytes.len();
        self.buffer.bytes.extend_from_slice(vnet_header);
        // The first fragment is the prologue's, which does not live as long as the frame.
        self.buffer.bytes.extend_from_slice(&head.bytes[..usize::from(head.len)]);
        let mut is_head = true;
        self.close(queue, start, |pieces| {
            frame.raw_slices(head, |place| {
                if !std::mem::take(&mut is_head) {
                    push_piece(pieces, place);
                }
            });
        });
    }

    /// Completes a write whose own bytes begin at `start`.
    fn close(&mut self, queue: usize, start: usize, more: impl FnOnce(&mut Vec<libc::iovec>)) {
        let WriteBuffer { bytes, pieces, writes, .. } = &mut *self.buffer;
        let first = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: bytes.len() - start };
        pieces.push(first);
        more(pieces);
        writes.push(Write { queue, start, end: pieces.len() });
    }

    /// Calls `tell` for each write, in order, with its queue and its fragments. These are valid
    /// while the list and its frames live.
    pub(super) fn each(&mut self, mut tell: impl FnMut(usize, &[libc::iovec])) {
        let WriteBuffer { bytes, pieces, writes, .. } = &mut *self.buffer;
        let (bytes, mut begin) = (bytes.as_mut_ptr(), 0);
        for write in writes {
            pieces[begin].iov_base = bytes.wrapping_add(write.start).cast();
            tell(write.queue, &pieces[begin..write.end]);
            begin = write.end;
        }
    }
}

/// Adds a fragment, or extends the last one if the memory is adjacent.
fn push_piece(pieces: &mut Vec<libc::iovec>, RawSlice { at, len }: RawSlice) {
    if let Some(last) = pieces.last_mut()
        && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == at
    {
        last.iov_len += len;
        return;
    }
    pieces.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
}
