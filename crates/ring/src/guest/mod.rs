//! A guest's memory, which its VMM lends: virtqueues, and the buffers that they name.
//!
//! ```text
//!   guest addresses   0 ─────────► 3 GiB   4 GiB ───────► 6 GiB
//!                     │  extent 0  │         │  extent 1  │
//!                     ▼            ▼         ▼            ▼
//!   our mappings    [ memfd, 0 … 3 GiB ]   [ memfd, 3 … 5 GiB ]
//! ```
//!
//! A guest's address means nothing until it has become a [`GuestSlice`]: bytes within one
//! [`Extent`], looked up once. A buffer that crosses from one extent into the next is two slices.
//! Bytes move by copying only ([`Reader`], [`Writer`]), and words that both sides use are atomics
//! in a [`Window`]. No code ever holds a `&[u8]` of it.
//!
//! The memory is the guest's and its VMM's: they may write it at any moment, and the VMM may take
//! it away, unlike a region of the daemon's. [`lost`] says what happens then.

#![allow(unsafe_code)] // UNSAFETY: this is where guests' memory is mapped and bounded.

pub mod file;
pub mod log;
pub mod lost;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::format::abi::LINE;
use crate::memory::{copy, unmap};

/// A mapping of memory that a VMM owns.
#[derive(Debug)]
pub struct GuestMapping {
    base: NonNull<u8>,
    size: usize,
    guard: lost::SigbusGuard,
}

// SAFETY: the mapping belongs to no thread; all access is by atomics or by copies that assume
// that others write at the same time.
unsafe impl Send for GuestMapping {}
// SAFETY: as above.
unsafe impl Sync for GuestMapping {}

impl GuestMapping {
    /// Maps `size` bytes of `fd` from `offset` on, shared and writable. They are in no core dump of
    /// this process: what a guest keeps in its memory is for the guest and its VMM alone.
    ///
    /// # Errors
    /// What `mmap` says, or `ENOSPC`: more mappings than can be [guarded](lost).
    pub fn map(fd: impl AsFd, offset: u64, size: usize) -> io::Result<Arc<Self>> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, protection, flags, fd, offset)? };
        // SAFETY: the mapping that was just made; its contents stay as they are.
        let advised = unsafe { rustix::mm::madvise(base, size, Advice::LinuxDontDump) };
        debug_assert!(advised.is_ok(), "a mapping of a file: {advised:?}");
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        match lost::SigbusGuard::new(base.as_ptr().addr(), size) {
            Ok(guard) => Ok(Arc::new(Self { base, size, guard })),
            Err(error) => {
                // SAFETY: it was mapped just now, and no code uses it yet.
                unsafe { unmap(base, size) };
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.size && len <= self.size - offset, "outside of the mapping");
        // SAFETY: just checked to lie in the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for GuestMapping {
    fn drop(&mut self) {
        self.guard.end();
        // SAFETY: `map` mapped it, and no code uses it any more.
        unsafe { unmap(self.base, self.size) };
    }
}

/// A stretch of guest addresses, and where it is mapped.
#[derive(Clone, Debug)]
pub struct Extent {
    /// First guest address.
    pub guest: u64,
    /// First address in the address space of the VMM.
    pub user: u64,
    /// Bytes.
    pub size: u64,
    /// Where the extent begins in the mapping.
    pub offset: usize,
    /// The mapping.
    pub lent: Arc<GuestMapping>,
}

impl Extent {
    fn is_sound(&self) -> bool {
        let ends = self.guest.checked_add(self.size).and(self.user.checked_add(self.size));
        let size = usize::try_from(self.size).ok();
        let end = size.and_then(|size| self.offset.checked_add(size));
        self.size > 0 && ends.is_some() && end.is_some_and(|end| end <= self.lent.size)
    }
}

/// Bytes of a guest's memory, in one piece, that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSlice {
    extent: u32,
    len: u32,
    offset: usize,
}

impl GuestSlice {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Always false: there is no empty slice.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part behind the first `bytes` bytes; `None`: nothing is left.
    #[inline]
    #[must_use]
    pub fn behind(self, bytes: u32) -> Option<Self> {
        let len = self.len.checked_sub(bytes).filter(|len| *len > 0)?;
        Some(Self { len, offset: self.offset + bytes as usize, ..self })
    }
}

/// Eight bytes at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Word(u64);

/// All memory of a guest, as it is mapped at one time.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// By guest address; they do not overlap.
    extents: Vec<Extent>,
}

impl GuestMemory {
    /// The memory of these extents; `None`: they overlap, or are not where they are said to be.
    #[must_use]
    pub fn new(mut extents: Vec<Extent>) -> Option<Self> {
        extents.sort_by_key(|extent| extent.guest);
        let apart = |pair: &[Extent]| pair[0].guest + pair[0].size <= pair[1].guest;
        let sound = extents.iter().all(Extent::is_sound) && extents.windows(2).all(apart);
        sound.then_some(Self { extents })
    }

    /// The extents.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether any of the memory was taken away. Looks at all extents: not for every turn.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.extents.iter().any(|extent| extent.lent.guard.is_lost())
    }

    /// Guest address of a slice.
    #[inline]
    #[must_use]
    pub fn guest_address(&self, slice: GuestSlice) -> u64 {
        let extent = &self.extents[slice.extent as usize];
        extent.guest + (slice.offset - extent.offset) as u64
    }

    /// As much of `len` bytes at `guest` as lies in one piece.
    #[inline]
    #[must_use]
    pub fn slice(&self, guest: u64, len: u32) -> Option<GuestSlice> {
        // Guests choose how many extents there are, and which they use.
        let index = self.extents.partition_point(|extent| extent.guest <= guest).checked_sub(1)?;
        let extent = &self.extents[index];
        let into = Some(guest - extent.guest).filter(|into| *into < extent.size)?;
        let len = u32::try_from(extent.size - into).map_or(len, |room| room.min(len));
        let offset = extent.offset + usize::try_from(into).ok()?;
        Some(GuestSlice { extent: u32::try_from(index).ok()?, len, offset })
    }

    /// Appends the pieces of `len` bytes at `guest`, at most up to `most` slices in all. `false`:
    /// not all of them are there, or there are too many.
    #[inline]
    pub fn slices(
        &self,
        mut guest: u64,
        mut len: u32,
        slices: &mut Vec<GuestSlice>,
        most: usize,
    ) -> bool {
        loop {
            let Some(slice) = self.slice(guest, len).filter(|_| slices.len() < most) else {
                return false;
            };
            slices.push(slice);
            len -= slice.len;
            if len == 0 {
                return true;
            }
            match guest.checked_add(slice.len.into()) {
                Some(next) => guest = next,
                None => return false,
            }
        }
    }

    /// A copy of the first `N` bytes of a slice; `None`: it has fewer.
    #[inline]
    #[must_use]
    pub fn first<const N: usize>(&self, slice: GuestSlice) -> Option<[u8; N]> {
        if (slice.len as usize) < N {
            return None;
        }
        let mut bytes = [0; N];
        // SAFETY: the slice has this many bytes, and the array is ours.
        unsafe { copy::copy_bytes(bytes.as_mut_ptr(), self.at(slice, 0), N) };
        Some(bytes)
    }

    /// Has the processor fetch the first two lines of a slice, for writing or only to be read.
    #[inline(always)]
    pub fn prefetch(&self, slice: GuestSlice, writes: bool) {
        let begin = self.at(slice, 0);
        copy::prefetch(begin, writes);
        copy::prefetch(begin.wrapping_add(LINE), writes);
    }

    /// Two little-endian words of eight bytes at a guest address: a descriptor of a table.
    #[inline]
    #[must_use]
    pub fn words(&self, guest: u64) -> Option<[u64; 2]> {
        let slice = self.slice(guest, 16).filter(|slice| slice.len == 16)?;
        let first = self.at(slice, 0).cast::<Word>();
        // SAFETY: the slice has 16 bytes; volatile, so that each word is read exactly once.
        Some([0, 1].map(|i| u64::from_le(unsafe { first.add(i).read_volatile() }.0)))
    }

    /// `len` bytes at an address of the process that lends them, in one piece and aligned.
    #[must_use]
    pub fn window(&self, user: u64, len: usize, align: usize) -> Option<Window> {
        let holds = |extent: &&Extent| user.wrapping_sub(extent.user) < extent.size;
        let extent = self.extents.iter().find(holds)?;
        let into = usize::try_from(user - extent.user).ok()?;
        let room = usize::try_from(extent.size).ok()? - into;
        let base = NonNull::new(extent.lent.at(extent.offset + into, len.min(room)))?;
        let lent = extent.lent.clone();
        let aligned = base.as_ptr().addr().is_multiple_of(align);
        (len <= room && aligned).then_some(Window {
            base,
            len,
            guest: extent.guest + into as u64,
            lent,
        })
    }

    /// Address of a slice from `skip` on.
    #[inline(always)]
    pub(crate) fn at(&self, slice: GuestSlice, skip: u32) -> *mut u8 {
        assert!(skip <= slice.len);
        let lent = &self.extents[slice.extent as usize].lent;
        lent.at(slice.offset + skip as usize, (slice.len - skip) as usize)
    }
}

macro_rules! atomics {
    ($($name:ident $atomic:ident $int:ident,)*) => {$(
        /// The word at a guest address; `None`: it is not there, or not aligned. It is
        /// little-endian, and the guest writes it, too.
        #[inline]
        #[must_use]
        pub fn $name(&self, guest: u64) -> Option<&$atomic> {
            const BYTES: u32 = $int::BITS / 8;
            let slice = self.slice(guest, BYTES).filter(|slice| slice.len == BYTES)?;
            let word = self.at(slice, 0);
            if !word.addr().is_multiple_of(align_of::<$atomic>()) {
                return None;
            }
            // SAFETY: the slice has these bytes, they are aligned, and their mapping lives as long
            // as `self`; an atomic may be shared with its other writers.
            Some(unsafe { $atomic::from_ptr(word.cast::<$int>()) })
        }
    )*};
}

impl GuestMemory {
    atomics! {
        atomic_u32 AtomicU32 u32,
        atomic_u64 AtomicU64 u64,
    }
}

/// A part of a guest's memory in which words are shared with it.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    /// Guest address of its first byte.
    guest: u64,
    lent: Arc<GuestMapping>,
}

// SAFETY: `base` points into `lent`, which may be used from any thread.
unsafe impl Send for Window {}

macro_rules! words {
    ($($name:ident $atomic:ident $int:ident,)*) => {$(
        /// The word at an offset. It is little-endian.
        ///
        /// # Panics
        /// If it does not lie in the window, or is not aligned: a bug of ours.
        #[inline(always)]
        #[must_use]
        pub fn $name(&self, offset: usize) -> &$atomic {
            assert!(offset + size_of::<$int>() <= self.len, "outside of the window");
            // SAFETY: it lies in the window, which `lent` keeps mapped.
            let word = unsafe { self.base.as_ptr().add(offset) };
            assert!(word.addr().is_multiple_of(align_of::<$atomic>()));
            // SAFETY: mapped and aligned; an atomic may be shared with its other writers.
            unsafe { $atomic::from_ptr(word.cast::<$int>()) }
        }
    )*};
}

impl Window {
    words! {
        u16 AtomicU16 u16,
        u32 AtomicU32 u32,
        u64 AtomicU64 u64,
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: there is no empty window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Guest address of the window's first byte.
    #[must_use]
    pub fn guest(&self) -> u64 {
        self.guest
    }

    /// Whether the VMM has taken the memory away.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lent.guard.is_lost()
    }
}

/// A position in a list of slices.
#[derive(Debug)]
struct Cursor<'a> {
    memory: &'a GuestMemory,
    slices: &'a [GuestSlice],
    /// Bytes of the first slice that are done.
    done: u32,
}

impl Cursor<'_> {
    /// Calls `copy` with the place and the length of each piece of the next `bytes` bytes.
    #[inline]
    fn advance(&mut self, mut bytes: usize, mut copy: impl FnMut(*mut u8, usize)) {
        while bytes > 0 {
            let slice = *self.slices.first().expect("no more than there is");
            let part = bytes.min((slice.len - self.done) as usize);
            copy(self.memory.at(slice, self.done), part);
            bytes -= part;
            self.done += u32::try_from(part).expect("a slice has 32 bits");
            if self.done == slice.len {
                (self.slices, self.done) = (&self.slices[1..], 0);
            }
        }
    }

    fn left(&self) -> usize {
        self.slices.iter().map(|slice| slice.len as usize).sum::<usize>() - self.done as usize
    }
}

/// Reads slices one after the other.
#[derive(Debug)]
pub struct Reader<'a>(Cursor<'a>);

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(memory: &'a GuestMemory, slices: &'a [GuestSlice]) -> Self {
        Self(Cursor { memory, slices, done: 0 })
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.left()
    }

    /// Appends what is left of the slices to `to`.
    #[inline]
    pub fn rest(&self, to: &mut Vec<GuestSlice>) {
        let Some((&first, others)) = self.0.slices.split_first() else { return };
        let (offset, len) = (first.offset + self.0.done as usize, first.len - self.0.done);
        to.push(GuestSlice { offset, len, ..first });
        to.extend_from_slice(others);
    }

    /// Copies the next bytes out.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) {
        // SAFETY: `to` has room for that many.
        unsafe { self.copy_to(to.as_mut_ptr(), to.len()) }
    }

    /// # Safety
    /// `bytes` bytes can be written at `to`.
    #[inline]
    pub(crate) unsafe fn copy_to(&mut self, mut to: *mut u8, bytes: usize) {
        self.0.advance(bytes, |from, len| {
            // SAFETY: `from` has `len` bytes; all lengths together are `bytes`.
            unsafe {
                copy::copy_bytes(to, from, len);
                to = to.add(len);
            }
        });
    }
}

/// Writes slices one after the other.
#[derive(Debug)]
pub struct Writer<'a>(Cursor<'a>);

impl<'a> Writer<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(memory: &'a GuestMemory, slices: &'a [GuestSlice]) -> Self {
        Self(Cursor { memory, slices, done: 0 })
    }

    /// Room that is left, in bytes.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.left()
    }

    /// Has `copy` write the next `bytes` bytes, piece by piece: it gets their places and lengths.
    #[inline]
    pub(crate) fn write_with(&mut self, bytes: usize, copy: impl FnMut(*mut u8, usize)) {
        self.0.advance(bytes, copy);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn write(&mut self, from: &[u8]) {
        let mut at = 0;
        self.0.advance(from.len(), |to, len| {
            let part = &from[at..at + len];
            // SAFETY: `to` has room for `len` bytes.
            unsafe { copy::copy_bytes(to, part.as_ptr(), len) };
            at += len;
        });
    }
}

#[cfg(all(test, not(miri)))] // Miri has neither memfds nor SIGBUS.
mod tests;
