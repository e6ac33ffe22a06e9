//! Regions of ports that netmap programs bind.
//!
//! ```text
//!  header │ pages of holders │ port blocks            │ buffers
//!         │ one netmap_if    │ of the port, its       │ most of them never committed
//!         │ each             │ pipes, who joined      │
//! ```
//!
//! Such a region is a [trust group](crate::group) of its ports, with two additions: pages for the
//! holders of ports, and a number by which other ports can join. It is large, because the number of
//! pipes is not known in advance; memory costs nothing before it is used.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::abi::FIRST_BUFFER;
use ring::held::HeldSides;
use ring::holder::Holder;
use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RingCounts};
use ring::leaver::Leaver;
use ring::{BufferIndex, Region};

use crate::free_space::FreeSpace;
use crate::group::{Group, full};
use crate::reservation::commit;
use crate::shm::PortMemory;

/// The number of holders' pages.
const HOLDERS: usize = 4096;
/// The range of port blocks; buffers begin after it, at a multiple of a huge page.
const BLOCKS: Range<usize> = FIRST_BLOCK + HOLDERS * PAGE..64 << 20;
/// The number of buffers, unless a port needs more: enough for 128 pipes of the default size.
const BUFFERS: u32 = 1 << 19;

/// The number of holders' pages in a region of limited size.
const FEW_HOLDERS: usize = 16;
/// The part of such a region that is for port blocks, beside the first port's: one byte of 16.
const BLOCKS_SHARE: usize = 16;

/// A region of ports that netmap programs bind.
#[derive(Debug)]
pub struct NetmapRegion {
    group: Group,
    holders: FreeSpace,
    parts: Parts,
}

/// The layout of such a region, for audits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The holders' pages.
    pub holders: Range<usize>,
    /// The port blocks.
    pub blocks: Range<usize>,
}

impl Default for Parts {
    /// The layout of a region of the usual size.
    fn default() -> Self {
        Self { holders: FIRST_BLOCK..BLOCKS.start, blocks: BLOCKS }
    }
}

impl NetmapRegion {
    /// A region without ports, with room for at least `buffers` buffers.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(name: &str, stride: u32, buffers: u32) -> io::Result<Self> {
        let buffers = buffers_of(stride, buffers);
        Self::with_parts(name, stride, buffers, Parts::default())
    }

    /// A region without ports of at most this many bytes, with as many buffers as fit.
    ///
    /// # Errors
    /// `ENOSPC` if that is too small for a port with such rings; no descriptors left.
    pub fn within(name: &str, stride: u32, counts: RingCounts, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes.min(u32::MAX.into())).map_err(|_| full())? / PAGE * PAGE;
        let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let holders = FIRST_BLOCK..FIRST_BLOCK + FEW_HOLDERS * PAGE;
        let share = bytes / BLOCKS_SHARE / PAGE * PAGE;
        let blocks = holders.end..holders.end + block + share;
        let pool = bytes.checked_sub(blocks.end).ok_or_else(full)? / stride.max(1) as usize;
        let buffers = u32::try_from(pool).ok().and_then(|all| all.checked_sub(FIRST_BUFFER));
        let buffers = buffers.filter(|&buffers| buffers >= counts.buffers()).ok_or_else(full)?;
        Self::with_parts(name, stride, buffers, Parts { holders, blocks })
    }

    fn with_parts(name: &str, stride: u32, buffers: u32, parts: Parts) -> io::Result<Self> {
        let group = Group::with_room(name, stride, parts.blocks.clone(), buffers)?;
        let holders = FreeSpace::new(parts.holders.start, parts.holders.len());
        Ok(Self { group, holders, parts })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.group.region()
    }

    /// The region's memfd.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.group.fd().as_fd()
    }

    /// Whether the region has no ports.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// The region's layout.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Reserves a port in the region.
    ///
    /// # Errors
    /// `ENOSPC` if the region is full; nothing is left behind.
    pub fn add_port(&mut self, name: &str, counts: RingCounts) -> io::Result<PortMemory> {
        self.group.join(name, counts, 0)
    }

    /// Removes a port that no worker has seen.
    pub fn abandon_port(&mut self, layout: &PortLayout) {
        self.group.abandon(layout);
    }

    /// Removes a port that has no holder and that no worker uses any more; `return_buffers` as in
    /// [`Group::leave`].
    pub fn remove_port(&mut self, layout: &PortLayout, return_buffers: impl FnOnce(Arc<Leaver>)) {
        self.group.leave(layout, return_buffers);
    }

    /// Reserves a page for a holder of ports, and up to `extra` buffers.
    ///
    /// # Errors
    /// `ENOSPC` if the region is full; nothing is left behind.
    pub fn reserve_holder(
        &mut self,
        name: &str,
        sides: HeldSides,
        extra: u32,
    ) -> io::Result<Arc<HolderMemory>> {
        let holder = Holder::new(self.holders.find(PAGE).ok_or_else(full)?);
        self.holders.take(PAGE);
        Ok(Arc::new(HolderMemory {
            region: self.group.region().clone(),
            holder,
            name: name.to_owned(),
            sides,
            buffers: self.group.region().take(holder.owner(), extra as usize),
            building: self.group.building().clone(),
            built: AtomicBool::new(false),
        }))
    }

    /// Releases the memory of a holder.
    pub fn release_holder(&mut self, memory: &HolderMemory) {
        let region = self.group.region();
        if !memory.built.load(Ordering::Acquire) {
            region.free(memory.holder.owner());
        } else if !memory.buffers.is_empty() {
            // A holder without extra buffers may have made a list of the port's own buffers; those
            // stay.
            region.release_holder(&memory.holder, &memory.sides);
        }
        region.decommit(memory.nifp()..memory.nifp() + PAGE);
        self.holders.give_back(memory.nifp(), PAGE);
    }
}

/// The page and the extra buffers of a holder. As with a [reservation](crate::reservation), the
/// place is reserved at once and another thread builds it; one thread builds in a region at a time.
#[derive(Debug)]
pub struct HolderMemory {
    region: Arc<Region>,
    holder: Holder,
    name: String,
    sides: HeldSides,
    buffers: Vec<BufferIndex>,
    building: Arc<Mutex<()>>,
    built: AtomicBool,
}

impl HolderMemory {
    /// The offset of the holder's `netmap_if`.
    #[must_use]
    pub fn nifp(&self) -> usize {
        self.holder.nifp()
    }

    /// The number of extra buffers.
    #[must_use]
    pub fn extra_bufs(&self) -> u32 {
        u32::try_from(self.buffers.len()).expect("a region is below 4 GiB")
    }

    /// Commits the memory and writes the structures, but stops when only the caller refers to them.
    ///
    /// # Errors
    /// `ENOMEM` if there is not enough memory; `Interrupted` if they are not wanted any more.
    pub fn build_while_wanted(self: Arc<Self>) -> io::Result<()> {
        let wanted = || Arc::strong_count(&self) > 1;
        // A thread that panicked in the lock has built nothing.
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        commit(&self.region, &self.buffers, wanted)?;
        if !wanted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.region.format_holder(&self.holder, &self.name, &self.sides, &self.buffers)?;
        self.built.store(true, Ordering::Release);
        Ok(())
    }
}

/// The buffers of a region that needs at least `wanted`: the usual number, or twice those needed,
/// up to 4 GiB.
#[must_use]
pub fn buffers_of(stride: u32, wanted: u32) -> u32 {
    let most = (u32::MAX - (128 << 20)) / stride;
    wanted.saturating_mul(2).max(BUFFERS).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::cursor::RingSize;
    use ring::held::HeldRings;
    use ring::owners::Owner;

    fn counts() -> RingCounts {
        let slots = RingSize::new(64).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    fn all(port: &PortLayout) -> HeldSides {
        HeldSides { nic: Some(HeldRings { port: *port, tx: 0..1, rx: 0..1 }), host: None }
    }

    fn in_pool(region: &NetmapRegion) -> usize {
        region.region().owners().count(Owner::POOL)
    }

    #[test]
    fn ports_and_holders_come_and_go_without_a_leak() {
        let mut region = NetmapRegion::new("test", 2112, 0).expect("memory");
        let (pool, holders) = (in_pool(&region), region.holders.clone());
        let port = |_| {
            let memory = region.add_port("test", counts()).expect("room");
            memory.reservation.build().expect("memory");
            *memory.reservation.layout()
        };
        let ports = [0, 1].map(port);
        let mut reserve = |port: usize, extra| {
            let memory = region.reserve_holder("test", all(&ports[port]), extra).expect("room");
            memory.clone().build_while_wanted().expect("memory");
            memory
        };
        let memories = [reserve(0, 10), reserve(0, 0), reserve(1, 5)];
        assert_eq!(memories.each_ref().map(|memory| memory.extra_bufs()), [10, 0, 5]);
        assert_eq!(in_pool(&region), pool - 2 * 128 - 15);
        memories.iter().for_each(|memory| region.release_holder(memory));
        assert_eq!(in_pool(&region), pool - 2 * 128);
        ports.iter().for_each(|port| region.remove_port(port, drop));
        assert!(region.is_empty());
        assert_eq!((in_pool(&region), region.holders), (pool, holders));
    }

    #[test]
    fn there_are_as_many_extra_buffers_as_there_is_room() {
        let mut region = NetmapRegion::new("test", 64, 0).expect("memory");
        let port = *region.add_port("test", counts()).expect("room").reservation.layout();
        let memory = region.reserve_holder("test", all(&port), u32::MAX).expect("room");
        assert_eq!(memory.extra_bufs(), BUFFERS - 128);
        assert!(region.add_port("another", counts()).is_err());
        region.release_holder(&memory);
        region.add_port("another", counts()).expect("room again");
    }

    #[test]
    fn what_nobody_waits_for_is_not_built_and_comes_back_whole() {
        let mut region = NetmapRegion::new("test", 2112, 0).expect("memory");
        let (pool, holders) = (in_pool(&region), region.holders.clone());
        let port = *region.add_port("test", counts()).expect("room").reservation.layout();
        let memory = region.reserve_holder("test", all(&port), 1000).expect("room");
        region.release_holder(&memory);
        let built = memory.build_while_wanted().map_err(|error| error.kind());
        assert_eq!(built, Err(io::ErrorKind::Interrupted));
        region.abandon_port(&port);
        assert!(region.is_empty());
        assert_eq!((in_pool(&region), region.holders), (pool, holders));
    }

    #[test]
    fn a_large_first_port_makes_a_larger_region_and_4_gib_are_the_end() {
        assert_eq!(buffers_of(2112, 10), BUFFERS);
        assert_eq!(buffers_of(2112, BUFFERS), 2 * BUFFERS);
        let most = buffers_of(2112, u32::MAX);
        assert!(NetmapRegion::new("test", 2112, u32::MAX).is_ok());
        assert!((1_900_000..2_000_000).contains(&most), "{most}");
    }
}
