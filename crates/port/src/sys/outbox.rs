//! Frames on their way out, each behind its header: where the bytes lie that a system call writes.
//!
//! ```text
//!   bytes   │ header, short frame │ header, prologue │ header, short frame │ …
//!             ▲                     ▲           + pieces of the batch's memory
//!   letters   0                     1
//! ```
//!
//! Short frames are copied behind their header; of long ones the pieces are told. What lies in the
//! batch is lent for the life of the [`Outbox`], which is written before the batch goes.

#![allow(unsafe_code)] // UNSAFETY: what the kernel is told of memory has no lifetime.

use std::marker::PhantomData;

use ring::frame::{Frame, Place, Prologue};
use switch::receive::batch::FRAGS_MAX;

/// Room for letters, to be used again and again.
#[derive(Debug)]
pub struct Letters {
    bytes: Vec<u8>,
    pieces: Vec<libc::iovec>,
    letters: Vec<Letter>,
    most: usize,
}

// SAFETY: where pieces lie is of no use to anybody outside of an outbox, which begins anew.
unsafe impl Send for Letters {}

/// One frame.
#[derive(Debug)]
struct Letter {
    queue: usize,
    /// Where its first piece begins among the bytes; the others are anywhere.
    start: usize,
    /// Its pieces end here, and those of the next begin.
    end: usize,
}

impl Letters {
    /// Room for `most` letters at a time, of which none has more than `longest` bytes of its own.
    #[must_use]
    pub fn new(most: usize, longest: usize) -> Self {
        let bytes = longest * most.min(16);
        Self {
            bytes: Vec::with_capacity(bytes),
            // A front before the pieces of each.
            pieces: Vec::with_capacity(2 * most + FRAGS_MAX),
            letters: Vec::with_capacity(most),
            most,
        }
    }

    /// An empty outbox.
    pub fn begin<'f>(&mut self) -> Outbox<'_, 'f> {
        self.bytes.clear();
        self.pieces.clear();
        self.letters.clear();
        Outbox { letters: self, frames: PhantomData }
    }
}

/// Letters with frames that live as long as `'f`.
#[derive(Debug)]
pub struct Outbox<'a, 'f> {
    letters: &'a mut Letters,
    frames: PhantomData<Frame<'f>>,
}

impl<'f> Outbox<'_, 'f> {
    /// Is there room for one more, with so many bytes of its own at most?
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        let Letters { bytes: all, pieces, letters, most } = &*self.letters;
        letters.len() < *most
            && (letters.is_empty() || all.capacity() - all.len() >= bytes)
            && pieces.capacity() - pieces.len() > FRAGS_MAX
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.letters.letters.len()
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A letter for this queue, whose bytes `write` appends; none if it fails.
    ///
    /// # Errors
    /// What `write` says.
    pub fn copy<T, E>(
        &mut self,
        queue: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
    ) -> Result<T, E> {
        let start = self.letters.bytes.len();
        let written = write(&mut self.letters.bytes);
        match written {
            Ok(_) => self.close(queue, start, |_| {}),
            Err(_) => self.letters.bytes.truncate(start),
        }
        written
    }

    /// A letter for this queue: a frame, with `head` for its first bytes, behind `front`.
    pub fn lend(&mut self, queue: usize, front: &[u8], frame: Frame<'f>, head: &Prologue) {
        let start = self.letters.bytes.len();
        self.letters.bytes.extend_from_slice(front);
        // The first place is the prologue's, which does not live as long as the frame.
        self.letters.bytes.extend_from_slice(&head.bytes[..usize::from(head.len)]);
        let mut is_head = true;
        self.close(queue, start, |pieces| {
            frame.places(head, |place| {
                if !std::mem::take(&mut is_head) {
                    push_piece(pieces, place);
                }
            });
        });
    }

    /// Ends a letter whose own bytes begin at `start`.
    fn close(&mut self, queue: usize, start: usize, more: impl FnOnce(&mut Vec<libc::iovec>)) {
        let Letters { bytes, pieces, letters, .. } = &mut *self.letters;
        let first = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: bytes.len() - start };
        pieces.push(first);
        more(pieces);
        letters.push(Letter { queue, start, end: pieces.len() });
    }

    /// Tells of each letter, in order, its queue and its pieces. They may be read from as long as
    /// the outbox and its frames live.
    pub(super) fn each(&mut self, mut tell: impl FnMut(usize, &[libc::iovec])) {
        let Letters { bytes, pieces, letters, .. } = &mut *self.letters;
        let (bytes, mut begin) = (bytes.as_mut_ptr(), 0);
        for letter in letters {
            pieces[begin].iov_base = bytes.wrapping_add(letter.start).cast();
            tell(letter.queue, &pieces[begin..letter.end]);
            begin = letter.end;
        }
    }
}

/// Adds a piece, or makes the last one longer where it goes on: buffers of an intake lie one behind
/// the other.
fn push_piece(pieces: &mut Vec<libc::iovec>, Place { at, len }: Place) {
    if let Some(last) = pieces.last_mut()
        && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == at
    {
        last.iov_len += len;
        return;
    }
    pieces.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
}
