//! The library's own descriptors: regions, doorbells, eventfds. The program must not close them.
//!
//! The library keeps them at high numbers, where a program that closes everything from 3 to some
//! limit does not meet them, and one bit for each number says which they are: `close` of one is
//! `EBADF`,
//! `dup2` onto one is `EBUSY`, `close_range` goes around them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

/// Where they begin.
const FIRST: RawFd = 600;
/// Numbers that have a bit: a million, the most that Linux gives by default.
const NUMBERS: usize = 1 << 20;
const BITS: usize = u64::BITS as usize;

static OWN: [AtomicU64; NUMBERS / BITS] = [const { AtomicU64::new(0) }; NUMBERS / BITS];
/// Bits that are set: 0 lets every call pass at once.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The word that the bit of `fd` is in, and the bit.
fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    OWN.get(fd / BITS).map(|word| (word, 1 << (fd % BITS)))
}

/// Says that `fd` is the library's.
pub fn set(fd: RawFd) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Says that `fd` is the library's no longer, because it is about to be closed.
pub fn clear(fd: RawFd) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    {
        let before = COUNT.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "no more bits are cleared than were set");
    }
}

/// Whether `fd` is one of the library's own.
#[inline]
#[must_use]
pub fn contains(fd: RawFd) -> bool {
    !is_empty() && place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Whether the library has no descriptors of its own.
#[inline]
#[must_use]
pub fn is_empty() -> bool {
    COUNT.load(Ordering::Relaxed) == 0
}

/// The library's descriptors from `first` to `last`, in order.
pub fn between(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let numbers = |at: usize, mut word: u64| {
        std::iter::from_fn(move || {
            let bit = usize::try_from(word.trailing_zeros()).ok().filter(|_| word != 0)?;
            word &= word - 1;
            RawFd::try_from(at * BITS + bit).ok()
        })
    };
    let words = OWN.iter().enumerate().skip(first as usize / BITS);
    let all = words.flat_map(move |(at, word)| numbers(at, word.load(Ordering::Relaxed)));
    all.filter(move |fd| fd.cast_unsigned() >= first)
        .take_while(move |fd| fd.cast_unsigned() <= last)
}

/// A descriptor of the library's own, out of the program's way.
#[derive(Debug)]
pub struct Own(OwnedFd);

impl Own {
    /// Moves it to a high number, and keeps the program from closing it.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST).unwrap_or(fd);
        set(fd.as_raw_fd());
        Self(fd)
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        clear(self.0.as_raw_fd());
    }
}

/// Moves a descriptor to a high number; where the limit is lower, it stays where it is.
///
/// # Errors
/// What `fcntl` says, but for that.
pub fn raise(fd: &mut OwnedFd) -> Result<(), Errno> {
    match rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), FIRST) {
        Err(Errno::INVAL | Errno::MFILE) => {}
        moved => *fd = moved?,
    }
    Ok(())
}
