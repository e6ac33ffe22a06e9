//! TAPs: frames written with `pwritev2`.

#![allow(unsafe_code)] // UNSAFETY: the wrapper that we use takes slices, and these are pieces.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::{Errno, ReadWriteFlags};

use super::write_list::WriteList;

/// Performs the writes of a list, one system call each, and reports their results in order.
pub fn write_each(
    queues: &[OwnedFd],
    mut list: WriteList<'_, '_>,
    flags: ReadWriteFlags,
    mut tell: impl FnMut(Result<usize, Errno>),
) {
    let flags = flags.bits().cast_signed();
    list.each(|queue, pieces| {
        let (tap, at) = (queues[queue].as_raw_fd(), pieces.as_ptr());
        let count = libc::c_int::try_from(pieces.len()).expect("a few hundred");
        loop {
            // SAFETY: the kernel only reads the pieces, which live until it returns. A sender
            // that writes there changes its own frame only.
            let written = unsafe { libc::pwritev2(tap, at, count, -1, flags) };
            match usize::try_from(written).map_err(|_| last_error()) {
                Err(Errno::INTR) => {}
                result => return tell(result),
            }
        }
    });
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
