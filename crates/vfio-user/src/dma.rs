//! The guest's memory, map by map.
//!
//! ```text
//!   guest addresses  0 ─────── 640 KiB ─ 768 KiB ── 1 MiB ────────── 3 GiB
//!                    │ mapped  │        │ ROM, no fd │ mapped           │
//!                    ▼                  ▼            ▼
//!                 mapping of a file   counted     mapping of a file
//! ```
//!
//! Firmware maps and unmaps all memory several times before a kernel runs. A map is its own mapping
//! of the VMM's file, and [`DmaTable::memory`] is made anew with each change: an access that began
//! before an unmap has ended before the reply to it.
//!
//! The device reaches what it may both read and write, and what came with a descriptor. Other maps
//! (ROMs, regions of other devices) only take their addresses, so that no other map lies there.

use std::collections::BTreeMap;

use ring::guest::file::{BadFile, FilePart};
use ring::guest::{Extent, GuestMemory};
use rustix::io::Errno;

use crate::message::DmaMap;
use crate::refused::Refused;

/// The most maps of a session. QEMU has a map for each module of memory, and about twenty more.
pub const MAPS_MAX: usize = 1024;

/// The most bytes of memory that a session's maps reach in all: a guest larger than any host. What
/// a VMM passes may be a sparse file, so maps alone cost it nothing, and addresses the device.
pub const BYTES_MAX: u64 = 1 << 40;

/// What addresses and sizes are multiples of, unless a server says otherwise.
const PAGE: u64 = 4096;

/// The maps of a session.
#[derive(Debug, Default)]
pub struct DmaTable {
    /// By guest address; they do not overlap.
    maps: BTreeMap<u64, Map>,
    memory: GuestMemory,
}

#[derive(Debug)]
struct Map {
    size: u64,
    /// `None`: the device does not reach it.
    extent: Option<Extent>,
}

impl DmaTable {
    /// What the device reaches.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The number of maps, and of those that the device does not reach.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.maps.len(), self.maps.values().filter(|map| map.extent.is_none()).count())
    }

    /// Adds a map.
    ///
    /// # Errors
    /// [`Refused`]; the table is unchanged.
    pub fn map(&mut self, map: DmaMap) -> Result<(), Refused> {
        let DmaMap { address, size, .. } = map;
        if self.maps.len() >= MAPS_MAX {
            return Err(Refused::new(Errno::NOSPC, format!("more than {MAPS_MAX} maps of memory")));
        }
        let is_whole = [address, size, map.offset].iter().all(|it| it.is_multiple_of(PAGE));
        let end = address.checked_add(size).filter(|_| size > 0 && is_whole);
        let end = end.ok_or_else(|| {
            Refused::new(Errno::INVAL, "a map of no whole pages, or one that wraps around")
        })?;
        if self.overlaps(address, end) {
            let why = format!("a map at {address:#x} that overlaps another one");
            return Err(Refused::new(Errno::EXIST, why));
        }
        let extent = extent(&map, BYTES_MAX - self.reached())?;
        self.maps.insert(address, Map { size, extent });
        self.rebuild();
        Ok(())
    }

    /// Removes all maps that lie in a range.
    ///
    /// # Errors
    /// None lies there, or one lies there in part; the table is unchanged.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), Refused> {
        let wrong = |why: &str| {
            Refused::new(Errno::INVAL, format!("{why} at {address:#x}, {size:#x} bytes, to unmap"))
        };
        let end = address.checked_add(size).ok_or_else(|| wrong("an end of memory"))?;
        let ends = |(start, map): (&u64, &Map)| start + map.size;
        let before = self.maps.range(..address).next_back().map(ends);
        let last = self.maps.range(address..end).next_back().map(ends);
        if before.is_some_and(|before| before > address) || last.is_some_and(|last| last > end) {
            return Err(wrong("a part of a map"));
        }
        if last.is_none() {
            return Err(Refused::new(Errno::NOENT, format!("no map at {address:#x} to unmap")));
        }
        self.maps.retain(|start, _| !(address..end).contains(start));
        self.rebuild();
        Ok(())
    }

    /// Removes all maps.
    pub fn clear(&mut self) {
        self.maps.clear();
        self.rebuild();
    }

    /// Bytes that the device reaches.
    fn reached(&self) -> u64 {
        self.memory.extents().iter().map(|extent| extent.size).sum()
    }

    fn overlaps(&self, address: u64, end: u64) -> bool {
        let before = self.maps.range(..end).next_back();
        before.is_some_and(|(start, map)| start + map.size > address)
    }

    fn rebuild(&mut self) {
        let extents = self.maps.values().filter_map(|map| map.extent.clone()).collect();
        self.memory = GuestMemory::new(extents).expect("they do not overlap");
    }
}

/// Maps the part of the file, if the device is to reach it; at most this many bytes.
fn extent(map: &DmaMap, most: u64) -> Result<Option<Extent>, Refused> {
    let reached = map.fd.as_ref().filter(|_| map.readable && map.writable);
    let Some(fd) = reached else { return Ok(None) };
    if map.size > most {
        let why = format!("more than {} GiB of guest memory in all", BYTES_MAX >> 30);
        return Err(Refused::new(Errno::NOMEM, why));
    }
    let part = FilePart::new(fd, map.offset, map.size);
    let (lent, offset) = part.and_then(|part| part.map(fd)).map_err(refused)?;
    let DmaMap { address, size, .. } = *map;
    Ok(Some(Extent { guest: address, user: address, size, offset, lent }))
}

fn refused(why: BadFile) -> Refused {
    let (errno, why) = match why {
        BadFile::NotMemory => (
            Errno::INVAL,
            "guest memory is a file on a disk; give the machine memory that is shared: \
             memory-backend-memfd,share=on, or a file on tmpfs or hugetlbfs"
                .to_owned(),
        ),
        BadFile::Small => (Errno::INVAL, "a map that is larger than its file".to_owned()),
        BadFile::TooMuch | BadFile::Full => {
            (Errno::NOMEM, "more guest memory than can be mapped".to_owned())
        }
        BadFile::System(error) => {
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            (errno, format!("map guest memory: {error}"))
        }
    };
    Refused::new(errno, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn file(pages: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, pages * PAGE).expect("ours");
        fd
    }

    fn map(address: u64, size: u64, fd: Option<&OwnedFd>) -> DmaMap {
        let fd = fd.map(|fd| fd.try_clone().expect("descriptors"));
        DmaMap { readable: true, writable: true, offset: 0, address, size, fd }
    }

    fn errno(result: Result<(), Refused>) -> Errno {
        result.expect_err("refused").errno
    }

    #[test]
    fn maps_that_wrap_overlap_or_are_larger_than_their_file_are_refused() {
        let (mut table, fd) = (DmaTable::default(), file(4));
        table.map(map(8 * PAGE, 4 * PAGE, Some(&fd))).expect("there is room");
        let top = u64::MAX - PAGE + 1;
        for (address, size) in [(0, 0), (u64::MAX, 1), (top, 2 * PAGE), (1, PAGE), (0, PAGE + 1)] {
            assert_eq!(errno(table.map(map(address, size, Some(&fd)))), Errno::INVAL);
        }
        for (address, size) in
            [(8 * PAGE, PAGE), (11 * PAGE, 2 * PAGE), (7 * PAGE, 2 * PAGE), (0, 64 * PAGE)]
        {
            assert_eq!(errno(table.map(map(address, size, None))), Errno::EXIST, "{address:#x}");
        }
        assert_eq!(errno(table.map(map(0, 5 * PAGE, Some(&fd)))), Errno::INVAL);
        let beyond = DmaMap { offset: top - PAGE, ..map(0, 2 * PAGE, Some(&fd)) };
        assert_eq!(errno(table.map(beyond)), Errno::INVAL);
        assert_eq!(table.counts(), (1, 0));
        table.map(map(12 * PAGE, PAGE, Some(&fd))).expect("beside the other");
        table.map(map(7 * PAGE, PAGE, Some(&fd))).expect("on its other side");
    }

    #[test]
    fn what_came_without_a_descriptor_or_is_read_only_is_not_reached() {
        let (mut table, fd) = (DmaTable::default(), file(4));
        table.map(map(0, PAGE, None)).expect("it is counted");
        let rom = DmaMap { writable: false, ..map(PAGE, PAGE, Some(&fd)) };
        table.map(rom).expect("it is counted");
        table.map(map(2 * PAGE, PAGE, Some(&fd))).expect("there is room");
        assert_eq!(table.counts(), (3, 2));
        let reached = |table: &DmaTable, at: u64| table.memory().words(at * PAGE).is_some();
        assert_eq!([0, 1, 2].map(|at| reached(&table, at)), [false, false, true]);
        table.unmap(PAGE, 2 * PAGE).expect("two maps");
        assert_eq!((table.counts(), reached(&table, 2)), ((1, 1), false));
    }

    #[test]
    fn an_unmap_takes_whole_maps() {
        let (mut table, fd) = (DmaTable::default(), file(4));
        for at in [2, 4] {
            table.map(map(at * PAGE, 2 * PAGE, Some(&fd))).expect("there is room");
        }
        for (address, size) in [(2, 1), (3, 1), (3, 3), (1, 2), (2, 3)] {
            assert_eq!(errno(table.unmap(address * PAGE, size * PAGE)), Errno::INVAL);
        }
        for (address, size) in [(0, PAGE), (u64::MAX, 0), (6 * PAGE, PAGE), (2 * PAGE, 0)] {
            assert_eq!(errno(table.unmap(address, size)), Errno::NOENT, "{address:#x}");
        }
        assert_eq!(errno(table.unmap(2 * PAGE, u64::MAX)), Errno::INVAL);
        table.unmap(4 * PAGE, 2 * PAGE).expect("a whole map");
        table.clear();
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn memory_is_remapped_as_often_as_firmware_likes_and_there_are_only_so_many_maps() {
        let (mut table, fd) = (DmaTable::default(), file(4));
        for _ in 0..3 {
            for at in 0..MAPS_MAX as u64 {
                table.map(map(at * PAGE, PAGE, Some(&fd))).expect("there is room");
            }
            assert_eq!(errno(table.map(map(1 << 40, PAGE, None))), Errno::NOSPC);
            table.unmap(0, MAPS_MAX as u64 * PAGE).expect("all of them");
        }
        assert!(table.memory().extents().is_empty());
    }

    #[test]
    fn a_session_maps_only_so_many_bytes_in_all() {
        let (mut table, fd) = (DmaTable::default(), file(BYTES_MAX / PAGE));
        let half = BYTES_MAX / 2;
        table.map(map(0, half, Some(&fd))).expect("there is room");
        table.map(map(8 * half, half, None)).expect("it is not reached");
        let refused = table.map(map(half, half + PAGE, Some(&fd))).expect_err("too much");
        assert_eq!((refused.errno, refused.why.contains("1024 GiB")), (Errno::NOMEM, true));
        table.map(map(half, half, Some(&fd))).expect("all of it");
        assert_eq!(errno(table.map(map(4 * half, PAGE, Some(&fd)))), Errno::NOMEM);
        table.unmap(0, half).expect("a map");
        table.map(map(4 * half, PAGE, Some(&fd))).expect("there is room again");
    }

    #[test]
    fn a_file_that_is_no_memory_is_refused() {
        let fd = std::fs::File::open("/proc/self/status").expect("Linux").into();
        let refused = DmaTable::default().map(map(0, PAGE, Some(&fd))).expect_err("a file");
        assert!(refused.why.contains("memory-backend-memfd"), "{}", refused.why);
    }
}
