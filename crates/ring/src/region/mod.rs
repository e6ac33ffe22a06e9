//! Regions: one sealed memfd with port blocks and a buffer pool.
//!
//! The daemon creates a region, formats port blocks in it and hands the memfd to clients; a
//! client attaches what it was given. Seals forbid shrinking and growing for ever, so a mapping
//! can never fault. A region is one trust domain: a process that maps it can write all of it.
//!
//! When the daemon lets go of a region, it gives the pages back to the system itself. A client that
//! keeps the memfd, or leaves it unread in a socket, keeps an empty file: what it writes there from
//! now on is charged to the client's control group, for no other process touches it.

#![allow(unsafe_code)] // UNSAFETY: buffers are handed out as raw addresses inside `ring` only.

pub mod extra;
mod format;
mod huge_pages;
mod pages;
mod pool;

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::format::abi::RegionHeader;
use crate::format::layout::{BufferIndex, PAGE, RegionLayout};
use crate::group::owners::{Owner, Owners};
use crate::memory::{Memory, sealed};

/// Identity of a region's memory, the same for all processes that map it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId {
    device: u64,
    inode: u64,
}

/// A mapped region.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    layout: RegionLayout,
    id: RegionId,
    /// Address of buffer 0.
    pool: *mut u8,
    owners: Owners,
    pins: Mutex<Pins>,
    /// How often a move of memory to huge pages began or ended. Writer: the thread that moves it.
    /// Reader: a thread that reads pages to see whether that takes long.
    moves: AtomicU32,
    /// This process made the region, or owns it since the end of the one that did: it empties the
    /// region in the end.
    is_own: AtomicBool,
}

/// How much of a region the kernel has pinned. A thread that takes buffers out of the pool or
/// brings them back holds the lock, so that no thread gives memory to the system that another is
/// getting.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// Number of pins.
    count: u32,
    /// The memory of buffers below this one stays.
    pub end: u32,
}

// SAFETY: `pool` points into `memory`, which may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(
        memory: Memory,
        layout: RegionLayout,
        [device, inode]: [u64; 2],
        owners: Owners,
        is_own: bool,
    ) -> Arc<Self> {
        let bytes = layout.buffers as usize * layout.stride as usize;
        let pool = memory.range(layout.pool, bytes);
        let id = RegionId { device, inode };
        let (pins, moves) = (Mutex::default(), AtomicU32::new(0));
        let is_own = AtomicBool::new(is_own);
        Arc::new(Self { memory, layout, id, pool, owners, pins, moves, is_own })
    }

    /// Makes a region for one port: memfd, size, seals, mapping, header. The memfd is what clients
    /// get.
    ///
    /// # Errors
    /// What the system calls say: no memory, too many files.
    pub fn create(name: &str, layout: RegionLayout) -> io::Result<(Arc<Self>, OwnedFd)> {
        Self::make(name, layout, Owners::new(0))
    }

    /// Makes a region whose ports swap buffers; all buffers are in its pool.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create_shared(name: &str, layout: RegionLayout) -> io::Result<(Arc<Self>, OwnedFd)> {
        Self::make(name, layout, Owners::new(layout.buffers))
    }

    fn make(name: &str, layout: RegionLayout, owners: Owners) -> io::Result<(Arc<Self>, OwnedFd)> {
        let fd = sealed::create(name, layout.size())?;
        let memory = Memory::map(&fd, layout.size())?;
        memory.populate(0, PAGE)?;
        memory.write(
            0,
            RegionHeader {
                magic: RegionHeader::MAGIC,
                version: RegionHeader::VERSION,
                stride: layout.stride,
                buffers: layout.buffers,
                pad: 0,
                pool_offset: layout.pool as u64,
                size: layout.size() as u64,
            },
        );
        Ok((Self::new(memory, layout, sealed::identity(&fd)?, owners, true), fd))
    }

    /// Maps a region that the daemon handed out, after checking its seals and size.
    ///
    /// # Errors
    /// `InvalidData` if the memfd is not sealed or not of the size that `layout` says.
    pub fn attach(fd: BorrowedFd<'_>, layout: RegionLayout) -> io::Result<Arc<Self>> {
        Self::attach_if(sealed::is_sealed(fd, layout.size())?, fd, layout)
    }

    /// Maps a region of one port that the daemon before this one made, and still uses.
    ///
    /// # Errors
    /// As [`Region::attach`]; `ENOMEM` where the memory cannot be had.
    pub fn take_over(fd: BorrowedFd<'_>, layout: RegionLayout) -> io::Result<Arc<Self>> {
        let region = Self::attach(fd, layout)?;
        // The pages are there. A worker does not stop for each that it touches first.
        region.memory.populate(0, layout.size())?;
        Ok(region)
    }

    /// From now on the region is this process's as if it had made it: the one that did has ended.
    pub fn own(&self) {
        self.is_own.store(true, Ordering::Relaxed);
    }

    /// Maps a region that a PCI device of this machine has, by its file in sysfs. It is at least as
    /// large as the layout says, and cannot shrink.
    ///
    /// # Errors
    /// `InvalidData` if it is smaller.
    pub fn attach_device(fd: BorrowedFd<'_>, layout: RegionLayout) -> io::Result<Arc<Self>> {
        Self::attach_if(sealed::is_as_large(fd, layout.size())?, fd, layout)
    }

    fn attach_if(
        is_as_announced: bool,
        fd: BorrowedFd<'_>,
        layout: RegionLayout,
    ) -> io::Result<Arc<Self>> {
        if !is_as_announced {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "region is not as announced"));
        }
        let memory = Memory::map(fd, layout.size())?;
        Ok(Self::new(memory, layout, sealed::identity(fd)?, Owners::new(0), false))
    }

    /// Size of the region, and its buffers.
    #[must_use]
    pub fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// Identity of the memory: buffers can be exchanged where it is equal.
    #[inline]
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// The owners of the buffers; the daemon knows them, where several ports share the region.
    #[inline(always)]
    #[must_use]
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The buffers below number `end` are the kernel's, too, which keeps their pages: from now on
    /// they are not given back to the system.
    pub(crate) fn pin(&self, end: u32) {
        let mut pins = self.pins();
        (pins.count, pins.end) = (pins.count + 1, pins.end.max(end));
    }

    /// One fewer has them. After the last, the memory of those that are the pool's is the system's.
    pub(crate) fn unpin(&self) {
        let mut pins = self.pins();
        assert!(pins.count > 0, "no more unpins than pins");
        pins.count -= 1;
        if pins.count == 0 {
            let end = std::mem::take(&mut pins.end);
            let is_free = |&buffer: &BufferIndex| self.owners.of(buffer) == Owner::POOL;
            let pinned = self.buffers().take_while(|buffer| buffer.get() < end);
            self.decommit_buffers(&pinned.filter(is_free).collect::<Vec<_>>(), &pins);
        }
    }

    pub(crate) fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mapping.
    #[inline(always)]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Distance and size of the buffers, in bytes.
    #[inline(always)]
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.layout.stride
    }

    /// A buffer index that a peer wrote; `None` if no usable buffer has it.
    #[inline(always)]
    #[must_use]
    pub fn check(&self, raw: u32) -> Option<BufferIndex> {
        self.layout.check(raw)
    }

    /// Address of buffer 0.
    #[inline(always)]
    pub(crate) fn pool(&self) -> *mut u8 {
        self.pool
    }

    /// Address of a buffer; `stride` bytes from there are mapped, and it is aligned to a line.
    #[inline(always)]
    pub(crate) fn buffer(&self, index: BufferIndex) -> *mut u8 {
        let offset = index.get() as usize * self.layout.stride as usize;
        debug_assert!(index.get() < self.layout.buffers);
        // SAFETY: an index from `check` of a region of this size lies in the pool. Indexes are
        // only combined with the region that checked them: both live in the same port half.
        unsafe { self.pool.add(offset) }
    }

    /// Offset of a buffer.
    pub(crate) fn offset(&self, index: BufferIndex) -> usize {
        self.layout.pool + index.get() as usize * self.layout.stride as usize
    }

    /// Commits the memory of `count` buffers from `first` on.
    ///
    /// # Errors
    /// `ENOMEM` where the memory cannot be had.
    pub fn populate_buffers(&self, first: BufferIndex, count: u32) -> io::Result<()> {
        let stride = self.layout.stride as usize;
        let start = self.layout.pool + first.get() as usize * stride;
        let end = (start + count as usize * stride).next_multiple_of(PAGE);
        let start = start / PAGE * PAGE;
        self.memory.populate(start, end.min(self.memory.size()) - start)
    }

    /// Gives the whole pages of a range of the region back to the system.
    pub fn decommit(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(self.memory.size()) / PAGE * PAGE;
        if start < end {
            self.memory.decommit(start, end - start);
        }
    }

    /// All usable buffers, in order.
    pub fn buffers(&self) -> impl Iterator<Item = BufferIndex> + use<> {
        self.layout.indexes()
    }
}

impl Drop for Region {
    /// Takes as long as the region is large, and longer if many processes map it.
    fn drop(&mut self) {
        if *self.is_own.get_mut() {
            self.memory.empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn who_keeps_the_memfd_of_a_region_that_is_gone_keeps_no_memory() {
        let layout = RegionLayout::new(PAGE, 4096, 500).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        let blocks = || rustix::fs::fstat(&fd).expect("a file").st_blocks;
        let client = Region::attach(fd.as_fd(), layout).expect("a region");
        region.memory().populate(0, layout.size()).expect("memory");
        assert!(blocks() >= 500 * 8);
        drop(region);
        assert_eq!(blocks(), 0);
        // What the client writes now, it writes for itself, and takes nothing from other clients.
        client.memory().populate(0, PAGE).expect("memory");
        drop(client);
        assert_eq!(blocks(), 8);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_region_of_another_process_is_emptied_by_its_owner_only() {
        let layout = RegionLayout::new(PAGE, 4096, 10).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        let next = || Region::take_over(fd.as_fd(), layout).expect("a region");
        region.memory().write(PAGE, 7u32);
        drop(next());
        assert_eq!(region.memory().read::<u32>(PAGE), 7, "the other one goes on");
        let owner = next();
        owner.own();
        drop(owner);
        assert_eq!(region.memory().read::<u32>(PAGE), 0);
    }
}
