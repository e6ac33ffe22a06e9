//! The memory that a frontend lends, region by region.
//!
//! What is mapped must be memory and nothing else: a file of a user-space file system, or one on a
//! disk, could keep the worker waiting in the middle of a copy for as long as its owner likes. So
//! only files of tmpfs (memfds among them) and of hugetlbfs are taken. That they may be truncated
//! is seen to by [`ring::guest::lost`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::guest::{Extent, GuestMemory, Lent};

use super::message::Region;

/// Most regions: what QEMU's own library offers.
pub const REGIONS_MAX: usize = 509;
/// Most bytes that one port may have us map: address space is finite for all.
const BYTES_MAX: u64 = 4 << 40;

/// Magic numbers of file systems (`linux/magic.h`).
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Why memory is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BadMemory {
    /// It could block.
    #[error(
        "guest memory is a file on a disk; give the machine memory that is shared: \
         memory-backend-memfd,share=on, or a file on tmpfs or hugetlbfs"
    )]
    NotMemory,
    /// Smaller than the region.
    #[error("a memory region of {0} bytes is larger than its file")]
    Small(u64),
    /// Two regions overlap, or one wraps around.
    #[error("memory regions overlap")]
    Overlap,
    /// To be taken back, and not there.
    #[error("no memory region begins at {0:#x}")]
    Missing(u64),
    /// Too many, or too large.
    #[error("more memory than one port may lend")]
    TooMuch,
    /// The system cannot.
    #[error("map a memory region: {0}")]
    System(#[from] io::Error),
}

/// The regions. QEMU 7 lends each as often as the device has pairs of queues, and takes it back as
/// often.
#[derive(Debug, Default)]
pub struct Table(Vec<Extent>);

impl Table {
    /// Adds a region.
    ///
    /// # Errors
    /// [`BadMemory`]: nothing has changed.
    pub fn add(&mut self, region: Region, fd: &OwnedFd) -> Result<(), BadMemory> {
        let lent: u64 = self.0.iter().map(|extent| extent.size).sum();
        if self.0.len() >= REGIONS_MAX || lent.saturating_add(region.size) > BYTES_MAX {
            return Err(BadMemory::TooMuch);
        }
        let again = self.0.iter().find(|extent| is_same(extent, region)).cloned();
        let extent = again.map_or_else(|| map(region, fd), Ok)?;
        let all = self.0.iter().chain([&extent]).cloned().collect();
        GuestMemory::new(once(all)).ok_or(BadMemory::Overlap)?;
        self.0.push(extent);
        Ok(())
    }

    /// Takes a region away.
    ///
    /// # Errors
    /// There is none such.
    pub fn remove(&mut self, region: Region) -> Result<(), BadMemory> {
        let at = self.0.iter().position(|extent| is_same(extent, region));
        let at = at.ok_or(BadMemory::Missing(region.guest))?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// All of them, as the rings use them.
    #[must_use]
    pub fn memory(&self) -> Arc<GuestMemory> {
        let memory = GuestMemory::new(once(self.0.clone()));
        Arc::new(memory.expect("looked at when they were added"))
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_same(extent: &Extent, region: Region) -> bool {
    (extent.guest, extent.user, extent.size) == (region.guest, region.user, region.size)
}

/// Each of them once.
fn once(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_by_key(|extent| (extent.guest, extent.user, extent.size));
    extents.dedup_by_key(|extent| (extent.guest, extent.user, extent.size));
    extents
}

fn map(region: Region, fd: &OwnedFd) -> Result<Extent, BadMemory> {
    let system = |errno: rustix::io::Errno| BadMemory::System(errno.into());
    let place = rustix::fs::fstatfs(fd).map_err(system)?;
    if ![TMPFS, HUGETLBFS].contains(&u64::try_from(place.f_type).unwrap_or(0)) {
        return Err(BadMemory::NotMemory);
    }
    let file = rustix::fs::fstat(fd).map_err(system)?;
    let Region { guest, user, size, offset } = region;
    let end = offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok());
    let end = end.filter(|end| i64::try_from(*end).is_ok_and(|end| end <= file.st_size));
    let end = end.ok_or(BadMemory::Small(size))?;
    // Whole pages of this file system, huge ones where it has those.
    let page = u64::try_from(place.f_bsize).unwrap_or(4096).max(4096);
    let begin = offset / page * page;
    let bytes =
        usize::try_from(end.next_multiple_of(page) - begin).map_err(|_| BadMemory::TooMuch)?;
    let lent = Lent::map(fd, begin, bytes)?;
    let offset = usize::try_from(offset - begin).expect("within a page");
    Ok(Extent { guest, user, size, offset, lent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(bytes: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, bytes).expect("ours");
        fd
    }

    fn region(guest: u64, size: u64, offset: u64) -> Region {
        Region { guest, size, user: guest + (1 << 40), offset }
    }

    #[test]
    fn regions_come_and_go_and_many_of_them_at_that() {
        let (mut table, fd) = (Table::default(), file(1 << 20));
        for i in 0..256 {
            table.add(region(i * 8192, 4096, i * 4096), &fd).expect("there is room");
        }
        let memory = table.memory();
        assert!(memory.words(255 * 8192 + 4080).is_some() && memory.words(4096).is_none());
        table.remove(region(0, 4096, 0)).expect("it is there");
        assert!(matches!(table.remove(region(0, 4096, 0)), Err(BadMemory::Missing(0))));
        assert!(table.memory().words(0).is_none());
    }

    #[test]
    fn regions_that_overlap_or_are_larger_than_their_file_are_refused() {
        let (mut table, fd) = (Table::default(), file(8192));
        table.add(region(0, 8192, 0), &fd).expect("all of it");
        assert!(matches!(table.add(region(4096, 4096, 0), &fd), Err(BadMemory::Overlap)));
        for (size, offset) in [(8192, 4096), (u64::MAX, 4096), (4096, u64::MAX), (8193, 0)] {
            let error = table.add(region(1 << 30, size, offset), &fd).expect_err("too large");
            assert!(matches!(error, BadMemory::Small(_) | BadMemory::TooMuch), "{error}");
        }
        assert!(matches!(
            table.add(region(1 << 30, 0, 0), &fd),
            Err(BadMemory::Overlap | BadMemory::System(_))
        ));
    }

    #[test]
    fn a_region_that_is_lent_twice_is_taken_back_twice() {
        let (mut table, fd) = (Table::default(), file(4096));
        (0..2).for_each(|_| table.add(region(0, 4096, 0), &fd).expect("the same"));
        for _ in 0..2 {
            assert!(table.memory().words(0).is_some());
            table.remove(region(0, 4096, 0)).expect("it is there");
        }
        assert!(table.is_empty());
    }

    #[test]
    fn files_that_are_not_memory_are_refused() {
        let fd = std::fs::File::open("/proc/self/status").expect("Linux").into();
        let error = Table::default().add(region(0, 4096, 0), &fd).expect_err("a file");
        assert!(error.to_string().contains("memory-backend-memfd"), "{error}");
    }
}
