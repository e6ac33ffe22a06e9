//! TAPs: frames written from where they lie, with `pwritev2`.

#![allow(unsafe_code)] // UNSAFETY: the wrapper that we use takes slices, and these are pieces.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use ring::frame::{Frame, Prologue, RawSlice};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use switch::receive::batch::FRAGS_MAX;

/// Memory for the pieces of a frame, used again and again.
#[derive(Debug, Default)]
pub struct Pieces(Vec<libc::iovec>);

// SAFETY: the addresses are used only by `write`, which begins without any.
unsafe impl Send for Pieces {}

impl Pieces {
    /// Memory for the pieces of any frame.
    #[must_use]
    pub fn new() -> Self {
        // Two more: for the header in front, and for the frame's first bytes.
        Self(Vec::with_capacity(2 + FRAGS_MAX))
    }

    /// Writes a frame, with `head` for its first bytes, behind `header`. Returns the length of all.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn write(
        &mut self,
        tap: &OwnedFd,
        header: &[u8],
        frame: Frame<'_>,
        head: &Prologue,
        flags: ReadWriteFlags,
    ) -> Result<usize, Errno> {
        self.0.clear();
        self.push(RawSlice { at: header.as_ptr(), len: header.len() });
        frame.raw_slices(head, |slice| self.push(slice));
        let count = libc::c_int::try_from(self.0.len()).expect("a few hundred");
        let (tap, at, flags) = (tap.as_raw_fd(), self.0.as_ptr(), flags.bits().cast_signed());
        retry_on_intr(|| {
            // SAFETY: the kernel only reads the pieces, which live until it returns. A sender that
            // writes there changes its own frame only.
            let written = unsafe { libc::pwritev2(tap, at, count, -1, flags) };
            usize::try_from(written).map_err(|_| last_error())
        })
    }

    /// Adds a piece, or extends the last one if the memory is adjacent.
    fn push(&mut self, RawSlice { at, len }: RawSlice) {
        if let Some(last) = self.0.last_mut()
            && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == at
        {
            last.iov_len += len;
            return;
        }
        self.0.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
