//! The few system calls that need care: a write that cannot kill the process, and the barrier.
//!
//! Writing to a pipe whose reader has died raises `SIGPIPE`, which kills a C program that has made
//! no arrangements. A library must not change a signal's disposition for its host, so the signal
//! is avoided for this one write: by `RWF_NOSIGNAL` (Linux 6.18), else by blocking it in this
//! thread around the write and taking it out of the queue if it came.

#![allow(unsafe_code)] // UNSAFETY: signal masks have no safe interface.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::MembarrierCommand;

/// `RWF_NOSIGNAL` of linux/fs.h.
const NO_SIGNAL: u32 = 0x100;

/// Cleared by the first kernel answer that it does not know the flag. Relaxed: a late look costs
/// one failing call.
static HAS_NO_SIGNAL: AtomicBool = AtomicBool::new(true);

/// Rings a doorbell that others ring too; a dead reader is `EPIPE`.
///
/// A full one will wake the other side, but does not tell it who else wanted to. A peer may keep
/// it full on purpose, with very little in it (what is spliced into a pipe takes a slot each time),
/// so this waits a moment for room: the other side makes some as soon as it is awake.
pub fn ring_doorbell(fd: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
    for _ in 0..ATTEMPTS {
        match write_quietly(fd, message) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Room or not, what counts is the next attempt.
                let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&PATIENCE));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Attempts to ring a doorbell that is full, and how long each waits: a second in all. A peer that
/// does not read for so long is stopped, or overloaded.
const ATTEMPTS: u32 = 100;
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Writes to a pipe; a dead reader is `EPIPE` and nothing else.
pub fn write_quietly(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    if HAS_NO_SIGNAL.load(Ordering::Relaxed) {
        let flags = ReadWriteFlags::from_bits_retain(NO_SIGNAL);
        // Offset -1: the file's own position, as in `write`.
        match rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], u64::MAX, flags) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                HAS_NO_SIGNAL.store(false, Ordering::Relaxed);
            }
            result => return result,
        }
    }
    write_masked(fd, bytes)
}

fn write_masked(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let mask = SigpipeMask::new();
    let result = rustix::io::write(fd, bytes);
    if result == Err(Errno::PIPE) {
        mask.take_pending();
    }
    result
}

/// `SIGPIPE` is blocked in this thread as long as this lives.
struct SigpipeMask {
    pipe: libc::sigset_t,
    before: libc::sigset_t,
    was_pending: bool,
}

impl SigpipeMask {
    fn new() -> Self {
        let (mut pipe, mut before) = (empty_set(), empty_set());
        let mut pending = empty_set();
        // SAFETY: every pointer is to a live signal set; SIGPIPE is a signal.
        let was_pending = unsafe {
            libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
            libc::sigpending(&raw mut pending);
            libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
        };
        Self { pipe, before, was_pending }
    }

    /// Removes the signal that our write raised; one that was there before stays.
    fn take_pending(&self) {
        if self.was_pending {
            return;
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a live signal set and a live time; no information is asked for.
        unsafe {
            libc::sigtimedwait(&raw const self.pipe, std::ptr::null_mut(), &raw const now);
        }
    }
}

impl Drop for SigpipeMask {
    fn drop(&mut self) {
        // SAFETY: a live signal set that `pthread_sigmask` itself wrote.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// Starts a thread that no signal comes to: they are for those of the program. It has its mask from
/// the thread that starts it, so there is no moment at which it takes one.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (empty_set(), empty_set());
    // SAFETY: live signal sets.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let started = start();
    // SAFETY: a live signal set that `pthread_sigmask` itself wrote.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Is this process registered for the workers' barrier? Asked once; where the kernel says no,
/// ports publish with fences.
pub fn has_barrier() -> bool {
    static REGISTERED: LazyLock<bool> = LazyLock::new(|| {
        rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    });
    *REGISTERED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Makes `SIGPIPE` deadly, as it is in a C program.
    fn deadly() {
        // SAFETY: the default disposition is a valid one.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }

    #[test]
    fn test_a_dead_reader_is_an_error_and_no_signal() {
        deadly();
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(write_quietly(write.as_fd(), b"four"), Ok(4));
        assert_eq!(write_masked(write.as_fd(), b"four"), Ok(4));
        drop(read);
        assert_eq!(write_quietly(write.as_fd(), b"four"), Err(Errno::PIPE));
        assert_eq!(write_masked(write.as_fd(), b"four"), Err(Errno::PIPE));
    }
}
