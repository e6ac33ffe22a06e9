//! The few system calls that need care: the doorbells, the masks of signals, and the barrier.

#![allow(unsafe_code)] // UNSAFETY: signal masks have no safe interface.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::{MembarrierCommand, futex};

/// Rings an eventfd. A full one has rung.
pub fn ring(event: &OwnedFd) -> Result<(), Errno> {
    loop {
        match rustix::io::write(event, &1_u64.to_ne_bytes()) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Rings the other end of a pair of sockets; one that is closed is `EPIPE`, without the signal. A
/// full one has rung.
pub fn ring_socket(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Wakes one thread that sleeps on the futex, which has changed.
pub fn wake_futex(word: &AtomicU32) {
    // The call fails for an address that is not mapped.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Sleeps until the futex differs from `seen` and is woken, or something else happens. `true`: the
/// time is over.
pub fn sleep_on_futex(word: &AtomicU32, seen: u32, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).ok();
    futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref()) == Err(Errno::TIMEDOUT)
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

/// Whether this process is registered for the workers' barrier. Asked once; where the kernel says
/// no, ports publish with fences.
pub fn has_barrier() -> bool {
    static REGISTERED: LazyLock<bool> = LazyLock::new(|| {
        rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    });
    *REGISTERED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_closed_end_is_an_error_and_no_signal() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        use std::os::fd::AsFd;
        // SAFETY: the default disposition, deadly as in a C program, is a valid one.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        // A full one has rung.
        (0..10_000).for_each(|_| assert_eq!(ring_socket(a.as_fd()), Ok(())));
        drop(b);
        assert_eq!(ring_socket(a.as_fd()), Err(Errno::PIPE));
    }

    #[test]
    fn test_a_futex_that_has_changed_ends_a_sleep_and_one_that_has_not_takes_its_time() {
        let word = AtomicU32::new(3);
        assert!(!sleep_on_futex(&word, 1, Duration::from_secs(20)));
        assert!(sleep_on_futex(&word, 3, Duration::from_millis(1)));
    }
}
