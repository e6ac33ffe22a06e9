//! Signals eventfds that other processes hold, without ever blocking.
//!
//! `write` to an eventfd waits while its counter is full, unless the file is non-blocking. But the
//! file is shared, and so is that mode: a hostile holder fills the counter, clears the mode, and
//! has put the worker to sleep. The kernel's own way to signal an eventfd never blocks, and
//! asynchronous I/O reaches it (`io_submit(2)`, `IOCB_FLAG_RESFD`): an operation that does nothing,
//! a read of no bytes, completes at once, and the kernel signals its completion by the eventfd.
//!
//! Each operation leaves an entry in a kernel ring, which is emptied now and then. Any number of
//! threads may signal at a time.

#![allow(unsafe_code)] // UNSAFETY: io_submit(2) and its kin are in no safe wrapper that we use.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};

/// The least number of entries that the kernel keeps.
const ENTRIES: usize = 256;
/// Signals between two times that the ring is emptied.
const ROUND: u32 = 128;

const PREAD: u16 = 0;
const RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`, little-endian.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}
const _: () = assert!(size_of::<Operation>() == 64);

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    data: u64,
    object: u64,
    results: [i64; 2],
}
const _: () = assert!(size_of::<Entry>() == 32);

/// An asynchronous I/O context.
#[derive(Debug)]
pub struct Signals {
    context: libc::c_ulong,
    /// A file to read nothing from.
    empty: OwnedFd,
    /// The number of signals so far; all threads write it, in no order.
    given: AtomicU32,
}

impl Signals {
    /// A new context.
    ///
    /// # Errors
    /// `ENOSYS`: the kernel has no asynchronous I/O; `EAGAIN`: `fs.aio-max-nr` is reached.
    pub fn new() -> io::Result<Self> {
        let empty = memfd_create(c"uvala-empty", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word, which lives until the call is over.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ENTRIES, &raw mut context) };
        done(made)?;
        Ok(Self { context, empty, given: AtomicU32::new(0) })
    }

    /// Adds one to the counter of an eventfd, unless that is full.
    ///
    /// # Errors
    /// `EINVAL`: not an eventfd.
    pub fn give(&self, to: impl AsFd) -> io::Result<()> {
        // One thread takes out the entries of a round, whichever threads made them.
        if self.given.fetch_add(1, Ordering::Relaxed) % ROUND == ROUND - 1 {
            self.empty_ring();
        }
        match self.submit(&to) {
            Err(full) if full.kind() == io::ErrorKind::WouldBlock => {
                self.empty_ring();
                self.submit(&to)
            }
            other => other,
        }
    }

    fn submit(&self, to: &impl AsFd) -> io::Result<()> {
        let operation = Operation {
            opcode: PREAD,
            fd: number(&self.empty),
            flags: RESFD,
            result_fd: number(to),
            ..Operation::default()
        };
        let list = [&raw const operation];
        // SAFETY: one operation, read and written by the kernel during the call only: a read of no
        // bytes is over when it returns.
        done(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_ptr()) })
    }

    fn empty_ring(&self) {
        let mut entries = [Entry::default(); ENTRIES];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many entries as there is room for.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                ENTRIES,
                entries.as_mut_ptr(),
                &raw const now,
            )
        };
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and nothing is under way in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn number(fd: &impl AsFd) -> u32 {
    u32::try_from(fd.as_fd().as_raw_fd()).expect("open descriptors are not negative")
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).expect("signalled");
        u64::from_ne_bytes(count)
    }

    #[test]
    fn each_signal_counts_one_and_rings_do_not_fill_up() {
        let (signals, event) = (Signals::new().unwrap(), eventfd(0, EventfdFlags::NONBLOCK));
        let event = event.unwrap();
        for many in [1, 2, 5000] {
            (0..many).for_each(|_| signals.give(&event).unwrap());
            assert_eq!(count(&event), many);
        }
    }

    #[test]
    fn threads_share_a_context() {
        let (signals, event) = (Signals::new().unwrap(), eventfd(0, EventfdFlags::NONBLOCK));
        let event = event.unwrap();
        let give = || (0..5000).for_each(|_| signals.give(&event).unwrap());
        std::thread::scope(|scope| drop([scope.spawn(give), scope.spawn(give)]));
        assert_eq!(count(&event), 10_000);
    }

    #[test]
    fn nothing_but_an_eventfd_is_signalled() {
        let signals = Signals::new().unwrap();
        let refused = signals.give(&signals.empty).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
