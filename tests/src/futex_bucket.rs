//! Very many waiters in one bucket of the kernel's table of futexes. Who wakes any futex of that
//! bucket walks past all of them, whatever word they wait for.
//!
//! Which words share a bucket shows in the time that a wake-up takes. An `io_uring` has one thread
//! wait any number of times.

#![allow(unsafe_code)] // UNSAFETY: a ring that is shared with the kernel.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{io, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

/// Words to look among: many times as many as there are buckets for each of a few cores.
const WORDS: usize = 8000;
/// The search may take so long.
const SEARCH: Duration = Duration::from_secs(8);
/// What a wake-up past the crowd takes at least.
const SLOW: Duration = Duration::from_millis(1);
/// Slots of a ring.
const SLOTS: u32 = 512;
/// Bytes of the ring's words.
const PAGE: usize = 4096;
/// Bytes of its slots.
const SLOT_BYTES: usize = SLOTS as usize * size_of::<Slot>();

/// `struct io_uring_sqe` of linux/io_uring.h, in place of which an array of its numbers.
type Slot = [u64; 8];

/// Waiters for a word that lies in the bucket of another one.
pub struct Crowd {
    _words: Box<[AtomicU32]>,
    _waits: Waits,
}

/// Has so many wait in the bucket of a word. An error says why the system has none of it.
pub fn crowd(word: &AtomicU32, waiters: u32) -> Result<Crowd, String> {
    let io_uring = |error: io::Error| format!("no waits by io_uring: {error}");
    let words: Box<[AtomicU32]> = (0..WORDS).map(|_| AtomicU32::new(0)).collect();
    let neighbour = neighbour(word, &words).map_err(io_uring)?;
    let neighbour = neighbour.ok_or("no other futex was found in the bucket of the port's")?;
    let mut waits = Waits::new().map_err(io_uring)?;
    waits.add(neighbour, waiters).map_err(io_uring)?;
    let took = wake(word);
    if took < SLOW {
        return Err(format!("{waiters} waiters in the bucket cost a wake-up {took:?} only"));
    }
    Ok(Crowd { _words: words, _waits: waits })
}

/// One of the words that lies in the bucket of `word`.
fn neighbour<'a>(word: &AtomicU32, words: &'a [AtomicU32]) -> io::Result<Option<&'a AtomicU32>> {
    /// Waiters for each word, and more of them where they seem to be in the way.
    const FEW: u32 = 500;
    const MORE: u32 = 4000;
    /// What it takes to walk past the first of them.
    const NOTABLE: Duration = Duration::from_micros(1);
    let (alone, begin) = (wake(word), Instant::now());
    // Waiters end with their ring: there are never too many of them.
    for some in words.chunks(64) {
        let mut waits = Waits::new()?;
        for other in some {
            waits.add(other, FEW)?;
            let few = wake(word).saturating_sub(alone);
            if few < NOTABLE {
                continue;
            }
            waits.add(other, MORE)?;
            if wake(word).saturating_sub(alone) > 4 * few {
                return Ok(Some(other));
            }
        }
        if begin.elapsed() > SEARCH {
            break;
        }
    }
    Ok(None)
}

/// The time of a wake-up without a sleeper.
fn wake(word: &AtomicU32) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        let _ = futex::wake(word, futex::Flags::empty(), 1);
        begin.elapsed()
    };
    // The thread may have lost its core in most of them.
    (0..20).map(time).min().unwrap_or_default()
}

/// A ring, and the waits that were begun by it. They end with it.
struct Waits {
    fd: OwnedFd,
    words: *mut c_void,
    slots: *mut c_void,
    /// The word that says how many slots were filled so far.
    tail: *const AtomicU32,
    filled: u32,
}

impl Waits {
    /// Makes a ring without any.
    fn new() -> io::Result<Self> {
        /// Slots are taken in turn.
        const NO_SQARRAY: u32 = 1 << 16;
        /// Where `mmap` finds the slots.
        const SQES: u64 = 0x1000_0000;
        // `struct io_uring_params`, in place of which an array of its numbers: the third are the
        // flags, the twelfth is where the tail lies.
        let mut parameters = [0_u32; 30];
        parameters[2] = NO_SQARRAY;
        let at = parameters.as_mut_ptr();
        // SAFETY: a live structure for the kernel to read and write.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, SLOTS, at) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor")) };
        let (words, slots) = (map(&fd, PAGE, 0)?, map(&fd, SLOT_BYTES, SQES)?);
        let index = parameters[11] as usize / size_of::<AtomicU32>();
        let tail = words.cast::<AtomicU32>().wrapping_add(index).cast_const();
        Ok(Self { fd, words, slots, tail, filled: 0 })
    }

    /// Has so many more wait for a word.
    fn add(&mut self, word: &AtomicU32, count: u32) -> io::Result<()> {
        /// `IORING_OP_FUTEX_WAIT`, and in place of a descriptor: a shared word of 32 bits.
        const WAIT: u64 = 51 | (2 << 32);
        let address = ptr::from_ref(word).expose_provenance() as u64;
        let value = word.load(Ordering::Relaxed).into();
        let slot: Slot = [WAIT, value, address, 0, 0, 0, u32::MAX.into(), 0];
        for index in 0..SLOTS as usize {
            // SAFETY: within the mapping, which the kernel reads while `submit` calls it only.
            unsafe { self.slots.cast::<Slot>().add(index).write(slot) };
        }
        let mut left = count;
        while left > 0 {
            let some = left.min(SLOTS);
            self.submit(some)?;
            left -= some;
        }
        Ok(())
    }

    fn submit(&mut self, count: u32) -> io::Result<()> {
        self.filled = self.filled.wrapping_add(count);
        // SAFETY: a word of the mapping; an atomic may be shared.
        unsafe { &*self.tail }.store(self.filled, Ordering::Release);
        let (fd, enter, none) = (self.fd.as_raw_fd(), libc::SYS_io_uring_enter, 0_usize);
        // SAFETY: the kernel only compares the words that it was told of, or finds none there.
        let taken = unsafe { libc::syscall(enter, fd, count, none, none, none, none) };
        match u32::try_from(taken) {
            Ok(taken) if taken == count => Ok(()),
            Ok(taken) => Err(io::Error::other(format!("{taken} of {count} were taken"))),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        for (place, bytes) in [(self.words, PAGE), (self.slots, SLOT_BYTES)] {
            // SAFETY: `new` mapped so much there, and nothing refers to it any more.
            let _ = unsafe { munmap(place, bytes) };
        }
    }
}

/// Maps a part of a ring.
fn map(fd: &OwnedFd, bytes: usize, at: u64) -> io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let place = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, at) };
    Ok(place?)
}
