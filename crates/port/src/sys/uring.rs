//! Reads and writes of several frames in one system call, by `io_uring`.
//!
//! ```text
//!   call:  operations ──► submission ring ──► io_uring_enter ──► completion ring ──► results
//!                                             does each of them
//! ```
//!
//! No operation is in flight after a call. Each operation has the flag `RWF_NOWAIT`: the kernel
//! executes it while it accepts it, or answers `EAGAIN`, and never keeps it for later. So a call
//! borrows memory for its own duration only, as `read` does, and there is nothing to cancel when a
//! port is deleted, its queue is detached, or its interface dies with a namespace. A call returns
//! when it has as many results as it has submitted operations.
//!
//! Operations name files by descriptor; files are not registered with the ring. The kernel releases
//! what a ring holds at leisure, so a TAP would outlive its port, or a daemon that was killed.

#![allow(unsafe_code)] // UNSAFETY: the kernel reads and writes where operations say.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types::Fd};
use rustix::io::Errno;

use super::write_list::WriteList;

/// The most operations of a call.
pub const MOST: usize = 64;

/// The result of an operation that is not complete: no value of the kernel's.
const OPEN: i32 = i32::MIN;

/// An `io_uring` instance.
pub struct Uring {
    ring: IoUring,
    /// The results of the last call's operations, in order.
    results: Vec<i32>,
}

impl Uring {
    /// An instance for files like this one.
    ///
    /// # Errors
    /// `ENOSYS`, `EPERM`: the kernel offers none; `EOPNOTSUPP`: the file does not support
    /// `RWF_NOWAIT`.
    pub fn new(file: &OwnedFd) -> io::Result<Self> {
        let ring = IoUring::new(u32::try_from(MOST).expect("a small number"))?;
        let mut uring = Self { ring, results: Vec::with_capacity(MOST) };
        // A read of no bytes, which shows whether the file supports it.
        let nothing = uring.read_each(file, std::iter::once(&mut [][..])).next();
        nothing.expect("one result for one read").map_err(io::Error::from)?;
        Ok(uring)
    }

    /// Reads from a file into the first [`MOST`] of these, in order. The result is `EAGAIN` if
    /// there was nothing; a frame may have arrived for the next one.
    pub fn read_each<'a>(
        &mut self,
        file: &OwnedFd,
        rooms: impl Iterator<Item = &'a mut [u8]>,
    ) -> Outcomes<'_> {
        self.results.clear();
        for room in rooms.take(MOST) {
            let len = u32::try_from(room.len()).unwrap_or(u32::MAX);
            let read = opcode::Read::new(number(file), room.as_mut_ptr(), len);
            self.push(read.offset(HERE).rw_flags(libc::RWF_NOWAIT).build());
        }
        // SAFETY: the rooms are borrowed, each by itself, until this function returns.
        unsafe { self.run() };
        self.results.iter().map(outcome as fn(&i32) -> _)
    }

    /// Performs the writes of a list, each to its queue, and reports their results in order.
    ///
    /// # Panics
    /// If there are more than [`MOST`].
    pub fn write_each(
        &mut self,
        queues: &[OwnedFd],
        mut list: WriteList<'_, '_>,
        tell: impl FnMut(Result<usize, Errno>),
    ) {
        self.results.clear();
        list.each(|queue, pieces| {
            let file = number(&queues[queue]);
            let entry = match pieces {
                [only] => {
                    let len = u32::try_from(only.iov_len).unwrap_or(u32::MAX);
                    let write = opcode::Write::new(file, only.iov_base.cast(), len);
                    write.offset(HERE).rw_flags(libc::RWF_NOWAIT).build()
                }
                pieces => {
                    let count = u32::try_from(pieces.len()).expect("a few hundred");
                    let write = opcode::Writev::new(file, pieces.as_ptr(), count);
                    write.offset(HERE).rw_flags(libc::RWF_NOWAIT).build()
                }
            };
            self.push(entry);
        });
        // SAFETY: the kernel only reads the writes and their fragments, which live as long as the
        // list; a sender that writes there changes its own frame only.
        unsafe { self.run() };
        self.results.iter().map(outcome).for_each(tell);
    }

    fn push(&mut self, entry: squeue::Entry) {
        let entry = entry.user_data(self.results.len() as u64);
        // SAFETY: the kernel sees it in `run`, whose caller answers for what it points to.
        unsafe { self.ring.submission().push(&entry) }.expect("a ring is empty between two calls");
        self.results.push(OPEN);
    }

    /// Runs all operations that were pushed.
    ///
    /// # Safety
    /// The memory that they point to may be used as they say until this returns.
    unsafe fn run(&mut self) {
        let mut open = self.results.len();
        while open > 0 {
            match self.ring.submit_and_wait(open).map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) | Err(Some(Errno::INTR)) => {}
                // The kernel has no memory for operations now, and the caller's memory is borrowed
                // until all are complete.
                Err(Some(Errno::AGAIN | Errno::BUSY)) => rustix::thread::sched_yield(),
                Err(why) => panic!("a ring that has worked takes no operations: {why:?}"),
            }
            for done in self.ring.completion() {
                let at = usize::try_from(done.user_data()).expect("we have written it");
                debug_assert_eq!(self.results[at], OPEN);
                self.results[at] = done.result();
                open -= 1;
            }
        }
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Uring")
    }
}

/// The offset for files without offsets.
const HERE: u64 = u64::MAX;

fn number(file: &OwnedFd) -> Fd {
    Fd(file.as_raw_fd())
}

/// The results of operations, in order.
pub type Outcomes<'a> = std::iter::Map<std::slice::Iter<'a, i32>, fn(&i32) -> Result<usize, Errno>>;

fn outcome(result: &i32) -> Result<usize, Errno> {
    usize::try_from(*result).map_err(|_| Errno::from_raw_os_error(-result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::empty();
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("two")
    }

    #[test]
    fn several_reads_are_done_in_order_and_none_waits() {
        let (ours, theirs) = pair();
        // The file may be blocking; the operations never block.
        let Ok(mut uring) = Uring::new(&ours) else {
            println!("SKIPPED: no io_uring here");
            return;
        };
        for message in [&b"a"[..], b"bb", b"ccc"] {
            send(&theirs, message, SendFlags::empty()).expect("room");
        }
        let mut rooms = [[0; 8]; 5];
        let read: Vec<_> = uring.read_each(&ours, rooms.iter_mut().map(|it| &mut it[..])).collect();
        let dry = Err(Errno::AGAIN);
        assert_eq!(read, [Ok(1), Ok(2), Ok(3), dry, dry]);
        assert_eq!(rooms.map(|room| room[0]), [b'a', b'b', b'c', 0, 0]);
    }

    #[test]
    fn a_ring_holds_no_file() {
        let (ours, theirs) = pair();
        let Ok(uring) = Uring::new(&ours) else {
            println!("SKIPPED: no io_uring here");
            return;
        };
        drop(ours);
        assert_eq!(send(&theirs, b"?", SendFlags::NOSIGNAL), Err(Errno::PIPE));
        drop(uring);
    }
}
