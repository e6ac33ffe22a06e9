//! The memory that a frontend lends, region by region.
//!
//! A region is a part of a file, of which [`ring::guest::file`] says which files can be mapped.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::virtqueue::{Inflight, area_len};
use ring::guest::file::{BadFile, FilePart};
use ring::guest::log::DirtyLog;
use ring::guest::{Extent, GuestMapping, GuestMemory};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::message::{Area, Region, Shape};
use crate::machine::quota::{Charge, Quota, QuotaExceeded, Resource};

/// The most regions: as many as QEMU's own library offers.
pub const REGIONS_MAX: usize = 509;

/// Why the port does not accept memory.
#[derive(Debug, thiserror::Error)]
pub enum BadMemory {
    /// The file could block.
    #[error(
        "guest memory is a file on a disk; give the machine memory that is shared: \
         memory-backend-memfd,share=on, or a file on tmpfs or hugetlbfs"
    )]
    NotMemory,
    /// The file is smaller than the region.
    #[error("a memory region of {0} bytes is larger than its file")]
    Small(u64),
    /// Two regions overlap, or one wraps around.
    #[error("memory regions overlap")]
    Overlap,
    /// The area is too small for its queues.
    #[error("an inflight area of {0} bytes for {1} queues")]
    NoInflight(u64, u16),
    /// The region to be removed does not exist.
    #[error("no memory region begins at {0:#x}")]
    Missing(u64),
    /// The frontend lends too many regions, or one that is too large.
    #[error("more than {REGIONS_MAX} memory regions, or one that has no end")]
    TooMuch,
    /// The user's quota is used up.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// The table of all VMs' mappings is full.
    #[error(
        "the machines of all users share as many memory regions as the daemon can map; see \
         docs/limits.md"
    )]
    Full,
    /// A system call failed.
    #[error("map a memory region: {0}")]
    System(#[from] io::Error),
}

impl BadMemory {
    /// Why a part of `size` bytes of a file is not mapped.
    fn of(why: BadFile, size: u64) -> Self {
        match why {
            BadFile::NotMemory => Self::NotMemory,
            BadFile::Small => Self::Small(size),
            BadFile::TooMuch => Self::TooMuch,
            BadFile::Full => Self::Full,
            BadFile::System(error) => Self::System(error),
        }
    }
}

/// A region, and its charges, which end after the mapping.
#[derive(Clone, Debug)]
pub struct Slot {
    extent: Extent,
    _charges: Arc<[Charge; 2]>,
}

/// The regions of a session. QEMU 7 lends each region once for each pair of queues, and takes it
/// back as often.
#[derive(Debug, Default)]
pub struct Table(Vec<Slot>);

impl Table {
    /// Adds a region.
    ///
    /// # Errors
    /// [`BadMemory`]; the table is unchanged.
    pub fn add(
        &mut self,
        region: Region,
        fd: &OwnedFd,
        quota: &Arc<Quota>,
    ) -> Result<(), BadMemory> {
        if self.0.len() >= REGIONS_MAX {
            return Err(BadMemory::TooMuch);
        }
        let again = self.0.iter().find(|slot| is_same(&slot.extent, region)).cloned();
        let slot = again.map_or_else(|| map(region, fd, quota), Ok)?;
        let all = self.extents().chain([&slot.extent]).cloned().collect();
        GuestMemory::new(once(all)).ok_or(BadMemory::Overlap)?;
        self.0.push(slot);
        Ok(())
    }

    /// Removes a region. It stays mapped and charged until the return value is dropped.
    ///
    /// # Errors
    /// The region does not exist.
    pub fn remove(&mut self, region: Region) -> Result<Slot, BadMemory> {
        let at = self.0.iter().position(|slot| is_same(&slot.extent, region));
        let at = at.ok_or(BadMemory::Missing(region.guest))?;
        Ok(self.0.swap_remove(at))
    }

    /// All regions, as the queues use them.
    #[must_use]
    pub fn memory(&self) -> Arc<GuestMemory> {
        let memory = GuestMemory::new(once(self.extents().cloned().collect()));
        Arc::new(memory.expect("looked at when they were added"))
    }

    /// Whether there are no regions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.0.iter().map(|slot| &slot.extent)
    }
}

fn is_same(extent: &Extent, region: Region) -> bool {
    (extent.guest, extent.user, extent.size) == (region.guest, region.user, region.size)
}

/// The regions without duplicates.
fn once(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_by_key(|extent| (extent.guest, extent.user, extent.size));
    extents.dedup_by_key(|extent| (extent.guest, extent.user, extent.size));
    extents
}

fn map(region: Region, fd: &OwnedFd, quota: &Arc<Quota>) -> Result<Slot, BadMemory> {
    let Region { guest, user, size, offset } = region;
    let (lent, offset, charges) = map_part(fd, offset, size, quota)?;
    let extent = Extent { guest, user, size, offset, lent };
    Ok(Slot { extent, _charges: Arc::new(charges) })
}

/// A log of dirty pages, and its charges.
#[derive(Debug)]
pub struct LogArea {
    log: Arc<DirtyLog>,
    _charges: [Charge; 2],
}

impl LogArea {
    /// Maps a log.
    ///
    /// # Errors
    /// [`BadMemory`]
    pub fn new(area: &Area, quota: &Arc<Quota>) -> Result<Self, BadMemory> {
        let Area { size, offset, fd } = area;
        let (lent, offset, charges) = map_part(fd, *offset, *size, quota)?;
        let bytes = usize::try_from(*size).map_err(|_| BadMemory::TooMuch)?;
        let log = DirtyLog::new(lent, offset, bytes).expect("as large as it was mapped");
        Ok(Self { log: Arc::new(log), _charges: charges })
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Arc<DirtyLog> {
        &self.log
    }
}

/// The in-flight area, which records how far queues are, and its charges.
#[derive(Debug)]
pub struct InflightArea {
    memory: GuestMemory,
    /// The bytes of each queue's part.
    stride: u64,
    _charges: [Charge; 2],
}

impl InflightArea {
    /// Creates the file of an in-flight area. The frontend keeps it for the next daemon.
    ///
    /// # Errors
    /// No memory.
    pub fn make(shape: Shape) -> io::Result<Area> {
        let size = area_len(shape.size) as u64 * u64::from(shape.queues);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("uvala-inflight", flags)?;
        ftruncate(&fd, size)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Area { size, offset: 0, fd })
    }

    /// Maps an in-flight area.
    ///
    /// # Errors
    /// [`BadMemory`]
    pub fn new(shape: Shape, area: &Area, quota: &Arc<Quota>) -> Result<Self, BadMemory> {
        let Area { size, offset, fd } = area;
        let stride = size.checked_div(shape.queues.into()).unwrap_or(0) / 64 * 64;
        if stride == 0 {
            return Err(BadMemory::NoInflight(*size, shape.queues));
        }
        let (lent, offset, charges) = map_part(fd, *offset, *size, quota)?;
        let extent = Extent { guest: 0, user: 0, size: *size, offset, lent };
        let memory = GuestMemory::new(vec![extent]).ok_or(BadMemory::Small(*size))?;
        Ok(Self { memory, stride, _charges: charges })
    }

    /// The part of one queue.
    #[must_use]
    pub fn of(&self, queue: usize) -> Option<Inflight> {
        let begin = self.stride.checked_mul(queue as u64)?;
        let len = usize::try_from(self.stride).ok()?;
        self.memory.window(begin, len, 64).map(Inflight::new)
    }
}

/// Maps `size` bytes of a file from `offset` on; also returns their offset in the mapping.
fn map_part(
    fd: &OwnedFd,
    offset: u64,
    size: u64,
    quota: &Arc<Quota>,
) -> Result<(Arc<GuestMapping>, usize, [Charge; 2]), BadMemory> {
    let bad = |why| BadMemory::of(why, size);
    let part = FilePart::new(fd, offset, size).map_err(bad)?;
    let charges = [quota.take(Resource::Bytes, part.bytes())?, quota.take(Resource::Regions, 1)?];
    let (lent, offset) = part.map(fd).map_err(bad)?;
    Ok((lent, offset, charges))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::quota::Limits;

    fn file(bytes: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, bytes).expect("ours");
        fd
    }

    fn rich() -> Arc<Quota> {
        Quota::new(0, Limits::NONE)
    }

    fn region(guest: u64, size: u64, offset: u64) -> Region {
        Region { guest, size, user: guest + (1 << 40), offset }
    }

    #[test]
    fn regions_come_and_go_and_many_of_them_at_that() {
        let (mut table, rich, fd) = (Table::default(), rich(), file(1 << 20));
        for i in 0..256 {
            table.add(region(i * 8192, 4096, i * 4096), &fd, &rich).expect("there is room");
        }
        let memory = table.memory();
        assert!(memory.words(255 * 8192 + 4080).is_some() && memory.words(4096).is_none());
        table.remove(region(0, 4096, 0)).expect("it is there");
        assert!(matches!(table.remove(region(0, 4096, 0)), Err(BadMemory::Missing(0))));
        assert!(table.memory().words(0).is_none());
    }

    #[test]
    fn regions_that_overlap_or_are_larger_than_their_file_are_refused() {
        let (mut table, rich, fd) = (Table::default(), rich(), file(8192));
        table.add(region(0, 8192, 0), &fd, &rich).expect("all of it");
        assert!(matches!(table.add(region(4096, 4096, 0), &fd, &rich), Err(BadMemory::Overlap)));
        for (size, offset) in [(8192, 4096), (u64::MAX, 4096), (4096, u64::MAX), (8193, 0)] {
            let error =
                table.add(region(1 << 30, size, offset), &fd, &rich).expect_err("too large");
            assert!(matches!(error, BadMemory::Small(_) | BadMemory::TooMuch), "{error}");
        }
        assert!(matches!(
            table.add(region(1 << 30, 0, 0), &fd, &rich),
            Err(BadMemory::Overlap | BadMemory::System(_))
        ));
    }

    #[test]
    fn an_area_of_nothing_for_a_queue_is_refused() {
        let rich = rich();
        for (queues, size) in [(0, 4096), (2, 32), (64, 64 * 64 - 1)] {
            let (shape, fd) = (Shape { queues, size: 8 }, file(4096));
            let error = InflightArea::new(shape, &Area { size, offset: 0, fd }, &rich);
            assert!(matches!(error.expect_err("no room"), BadMemory::NoInflight(..)));
        }
    }

    #[test]
    fn a_region_that_is_lent_twice_is_taken_back_twice() {
        let (mut table, rich, fd) = (Table::default(), rich(), file(4096));
        (0..2).for_each(|_| table.add(region(0, 4096, 0), &fd, &rich).expect("the same"));
        for _ in 0..2 {
            assert!(table.memory().words(0).is_some());
            table.remove(region(0, 4096, 0)).expect("it is there");
        }
        assert!(table.is_empty());
    }

    #[test]
    fn files_that_are_not_memory_are_refused() {
        let fd = std::fs::File::open("/proc/self/status").expect("Linux").into();
        let error = Table::default().add(region(0, 4096, 0), &fd, &rich()).expect_err("a file");
        assert!(error.to_string().contains("memory-backend-memfd"), "{error}");
    }

    #[test]
    fn a_user_has_only_so_many_regions_and_so_much_memory_in_all_ports() {
        let fd = file(1 << 20);
        let quota = Quota::new(0, Limits { regions: 3, bytes: 16384, ..Limits::NONE });
        let mut tables = [Table::default(), Table::default()];
        for (guest, table) in (0..).zip(&mut tables) {
            table.add(region(guest << 20, 4096, 0), &fd, &quota).expect("there is room");
            // A region that is lent again uses the same mapping.
            table.add(region(guest << 20, 4096, 0), &fd, &quota).expect("there is room");
        }
        let [first, second] = &mut tables;
        let large = region(1 << 30, 8193, 0);
        assert!(matches!(first.add(large, &fd, &quota), Err(BadMemory::QuotaExceeded(_))));
        first.add(region(1 << 30, 4096, 1), &fd, &quota).expect("two pages");
        let more = region(2 << 30, 1, 0);
        assert!(matches!(second.add(more, &fd, &quota), Err(BadMemory::QuotaExceeded(_))));
        let kept = first.remove(region(1 << 30, 4096, 1)).expect("it is there");
        assert!(second.add(more, &fd, &quota).is_err(), "it may still be in use");
        drop(kept);
        second.add(more, &fd, &quota).expect("there is room again");
    }
}
