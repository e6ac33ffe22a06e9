//! Memory that its owner takes away while the daemon uses it.
//!
//! A thread that touches a page behind the end of a mapped file gets SIGBUS. A guest's memory is a
//! file of the VMM's; not every VMM seals it against shrinking, so any access may end so:
//!
//! ```text
//!   access ──► SIGBUS ──► found in the table: zeros are mapped in its place, LOST is set
//!     ▲                     │              └── not found: not ours; the process ends as it would
//!     └── goes on ──────────┘
//! ```
//!
//! The access is repeated and finds zeros. The device model treats them as any invalid request, and
//! the port sees by `SigbusGuard::is_lost` what has happened. So a VMM that takes memory away harms
//! its own port only.
//!
//! The table is fixed: a signal handler can neither lock nor allocate. The threads that map and
//! unmap write its entries, under a lock; the handler reads them. The entry that the handler looks
//! for does not change meanwhile, because the thread that touched the mapping keeps it. Other
//! entries may end and be used again while it looks, so each has a version, odd while it changes.
//! The handler ignores a range whose version has changed, or it would map zeros over memory of
//! another user.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `version` | a thread that maps | the handler | Release after the range / Acquire before it |
//! | `base`, `end` | a thread that maps | the handler | Relaxed, between versions |
//! | `lost` | the handler | the port's worker | Relaxed |
//! | `USED` | a thread that maps | the handler | Release after the entry / Acquire before it |

#![allow(unsafe_code)] // UNSAFETY: a signal handler that maps memory.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// Mappings that can be guarded at a time, in the whole process.
const WATCHES: usize = 8192;

/// Written under the lock, but for `lost`, which the handler writes.
struct Entry {
    version: AtomicUsize,
    /// 0: free.
    base: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

impl Entry {
    const fn free() -> Self {
        Self {
            version: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Changes the range; one thread at a time.
    fn set(&self, range: Range<usize>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees a part of the new range sees that version, too.
        fence(Ordering::Release);
        self.base.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The range, unless it is being changed.
    fn range(&self) -> Option<Range<usize>> {
        let version = self.version.load(Ordering::Acquire);
        let range = self.base.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version;
        (same && version.is_multiple_of(2)).then_some(range)
    }
}

static TABLE: [Entry; WATCHES] = [const { Entry::free() }; WATCHES];
/// Entries from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Taken to change the table; true once the handler is installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The handler that was there before. Written once, before ours is installed.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written once under the lock, before the handler can run.
unsafe impl Sync for Before {}
static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// A mapping that is guarded.
#[derive(Debug)]
pub(super) struct SigbusGuard(usize);

impl SigbusGuard {
    /// Guards `size` bytes at `base`, which no thread has touched yet.
    pub(super) fn new(base: usize, size: usize) -> io::Result<Self> {
        let mut installed = INSTALLED.lock().expect("no thread panics with it");
        if !*installed {
            install()?;
            *installed = true;
        }
        let free = TABLE.iter().position(|entry| entry.base.load(Ordering::Relaxed) == 0);
        let at = free.ok_or(io::ErrorKind::StorageFull)?;
        let entry = &TABLE[at];
        assert!(size > 0 && base != 0, "an empty range guards nothing");
        entry.lost.store(false, Ordering::Relaxed);
        entry.set(base..base + size);
        USED.fetch_max(at + 1, Ordering::Release);
        Ok(Self(at))
    }

    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.0].lost.load(Ordering::Relaxed)
    }

    /// Ends the guard, before the mapping is unmapped.
    pub(super) fn end(&self) {
        let _changing = INSTALLED.lock().expect("no thread panics with it");
        TABLE[self.0].set(0..0);
    }
}

fn install() -> io::Result<()> {
    // SAFETY: a structure of integers, of which zeros are a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does nothing that a handler may not; the old action is written once,
    // under the lock of the caller.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, BEFORE.0.get().cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The signal handler: maps zeros over a guarded mapping.
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a valid structure, and errno belongs to this thread.
    let (address, errno) = unsafe { ((*info).si_addr().addr(), *libc::__errno_location()) };
    let used = USED.load(Ordering::Acquire);
    let found = TABLE[..used].iter().find_map(|entry| {
        entry.range().filter(|range| range.contains(&address)).map(|range| (entry, range))
    });
    match found {
        Some((entry, range)) if replace(&range) => entry.lost.store(true, Ordering::Relaxed),
        // The access is repeated, and ends as it would have without us.
        // SAFETY: installed means that it was written.
        _ => unsafe {
            libc::sigaction(libc::SIGBUS, BEFORE.0.get().cast(), std::ptr::null_mut());
        },
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Maps zeros over a mapping.
fn replace(range: &Range<usize>) -> bool {
    let (base, size) = (range.start, range.len());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is one of our mappings, and no code relies on its contents.
    let place = unsafe {
        libc::mmap(std::ptr::with_exposed_provenance_mut(base), size, protection, flags, -1, 0)
    };
    place != libc::MAP_FAILED
}

#[cfg(all(test, not(miri)))] // Miri has neither memfds nor SIGBUS.
mod tests {
    use super::*;

    #[test]
    fn no_range_is_half_of_one_mapping_and_half_of_another() {
        let entry = Entry::free();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..3_000_000 {
                    [10..20, 0..0, 50..60, 0..0].into_iter().for_each(|range| entry.set(range));
                }
            });
            while !writer.is_finished() {
                let seen = entry.range();
                assert!(seen.is_none_or(|range| [10..20, 50..60, 0..0].contains(&range)));
            }
        });
    }
}
