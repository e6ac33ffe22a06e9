//! Memory that its owner takes away while we use it.
//!
//! Whoever touches a page of a file that is not there any more gets a SIGBUS. A guest's memory is
//! a file of somebody else's, and not everybody seals it, so that can happen at any access:
//!
//! ```text
//!   access ──► SIGBUS ──► found in the table: zeros are mapped in its place, LOST is set
//!     ▲                     │              └── not found: not ours; the process ends as it would
//!     └── goes on ──────────┘
//! ```
//!
//! The access is repeated and finds zeros, what was going on ends as it would with any nonsense,
//! and whoever looks at `Watch::is_lost` afterwards knows better. So it costs the port that lent
//! the memory, and nobody else.
//!
//! The table is fixed: a signal handler can neither lock nor allocate. Entries are written by who
//! maps and unmaps, under a lock; the handler reads them.

#![allow(unsafe_code)] // UNSAFETY: a signal handler that maps memory.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// Mappings that can be watched at a time, in the whole process.
const WATCHES: usize = 8192;

struct Entry {
    /// 0: free.
    base: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Entry; WATCHES] = [const {
    Entry { base: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; WATCHES];
/// Entries from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Whoever changes the table; true once the handler is installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The handler that was there before. Written once, before ours is installed.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written once under the lock, before anybody reads it.
unsafe impl Sync for Before {}
static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// A mapping that is watched.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches `size` bytes at `base`, which nobody has touched yet.
    pub(super) fn new(base: usize, size: usize) -> io::Result<Self> {
        let mut installed = INSTALLED.lock().expect("nobody panics with it");
        if !*installed {
            install()?;
            *installed = true;
        }
        let free = TABLE.iter().position(|entry| entry.base.load(Ordering::Relaxed) == 0);
        let at = free.ok_or(io::ErrorKind::StorageFull)?;
        let entry = &TABLE[at];
        entry.lost.store(false, Ordering::Relaxed);
        entry.end.store(base + size, Ordering::Relaxed);
        // The handler reads the base first.
        entry.base.store(base, Ordering::Release);
        USED.fetch_max(at + 1, Ordering::Release);
        Ok(Self(at))
    }

    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.0].lost.load(Ordering::Relaxed)
    }

    /// Before it is unmapped.
    pub(super) fn end(&self) {
        let _changing = INSTALLED.lock().expect("nobody panics with it");
        TABLE[self.0].base.store(0, Ordering::Relaxed);
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

/// The handler.
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a valid structure, and errno belongs to this thread.
    let (address, errno) = unsafe { ((*info).si_addr().addr(), *libc::__errno_location()) };
    let used = USED.load(Ordering::Acquire);
    let is_it = |entry: &&Entry| {
        let base = entry.base.load(Ordering::Acquire);
        base != 0 && (base..entry.end.load(Ordering::Relaxed)).contains(&address)
    };
    match TABLE[..used].iter().find(is_it) {
        Some(entry) if replace(entry) => entry.lost.store(true, Ordering::Relaxed),
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
fn replace(entry: &Entry) -> bool {
    let base = entry.base.load(Ordering::Relaxed);
    let size = entry.end.load(Ordering::Relaxed) - base;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is one of our mappings, of which nobody relies on the contents.
    let place = unsafe {
        libc::mmap(std::ptr::with_exposed_provenance_mut(base), size, protection, flags, -1, 0)
    };
    place != libc::MAP_FAILED
}
