//! Regions of ports that netmap programs bind.
//!
//! ```text
//!  header │ pages of holders │ port blocks            │ buffers
//!         │ one netmap_if    │ of the port, its       │ most of them never committed
//!         │ each             │ pipes, who joined      │
//! ```
//!
//! Such a region is a [trust group](crate::group) of its ports, with two additions: pages for the
//! holders of ports, and a number by which other ports can join. The number of pipes is not known
//! in advance, so a region is larger than its first port, which costs no memory before it is used.
//! But clients map all of it, so a user pays for all of it; its size is a share of what that user
//! may have. One rule lays out regions of every size, from that of one port to 4 GiB.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::abi::FIRST_BUFFER;
use ring::held::HeldSides;
use ring::holder::Holder;
use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RegionLayout, RingCounts};
use ring::leaver::Leaver;
use ring::owners::Owner;
use ring::{BufferIndex, HUGE_PAGE, Region};

use crate::free_space::FreeSpace;
use crate::group::{Group, full};
use crate::reservation::commit;
use crate::shm::PortMemory;

/// Most holders' pages.
const HOLDERS: usize = 4096;
/// Fewest holders' pages.
const FEW_HOLDERS: usize = 16;
/// The part of a region that is for holders' pages and port blocks: one byte of 16.
const BLOCKS_SHARE: usize = 16;
/// Where buffers begin at the latest, unless the first port needs more.
const BLOCKS_END: usize = 64 << 20;
/// Bytes of a region, unless its ports need more or its user has less: enough for 115 pipes of the
/// default size.
pub const USUAL_BYTES: u64 = 1 << 30;
/// Most bytes of a region: offsets have 32 bits.
const MOST_BYTES: usize = (4 << 30) - 2 * PAGE;

/// A region of ports that netmap programs bind.
#[derive(Debug)]
pub struct NetmapRegion {
    group: Group,
    holders: FreeSpace,
    parts: Parts,
    /// Dropped when the memory is the system's again.
    life: Arc<()>,
}

/// What the ports take that a region is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    stride: u32,
    /// Bytes of the port blocks.
    blocks: usize,
    buffers: u32,
    /// Buffers that are asked for beyond those, and that the region need not have.
    extra: u32,
}

impl Needs {
    /// The needs of ports with these rings.
    #[must_use]
    pub fn new(stride: u32, ports: &[RingCounts], extra: u32) -> Self {
        let block = |counts| PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let blocks = ports.iter().map(|counts| block(*counts)).sum();
        let buffers = ports.iter().map(RingCounts::buffers).fold(0, u32::saturating_add);
        Self { stride, blocks, buffers, extra }
    }

    /// Bytes of the smallest region with room for the ports; `None`: no region is that large.
    #[must_use]
    pub fn least(&self) -> Option<u64> {
        let bytes = self.blocks_end().checked_add(self.pool()?)?.checked_next_multiple_of(PAGE)?;
        (bytes <= MOST_BYTES && self.blocks_end() <= Owner::BLOCKS_END).then_some(bytes as u64)
    }

    /// The layout of a region for the ports, of at most `most` bytes: `share` bytes, but at least
    /// twice what the ports need with their extra buffers; or what they need, or what there is.
    /// `None` if that is too little for the ports.
    #[must_use]
    pub fn plan(&self, share: u64, most: u64) -> Option<Parts> {
        let buffers = self.buffers.saturating_add(self.extra);
        let all = Self { buffers, ..*self };
        let roomy = Self { blocks: 2 * self.blocks, buffers: buffers.saturating_mul(2), ..*self };
        let needed = [roomy, all].into_iter().find_map(|needs| {
            let bytes = needs.least().filter(|&bytes| bytes <= most)?;
            Some((needs, bytes.max(share)))
        });
        let (needs, bytes) = needed.unwrap_or((*self, most));
        Parts::within(&needs, bytes.min(most))
    }

    /// Where the buffers of the smallest region begin.
    fn blocks_end(&self) -> usize {
        FIRST_BLOCK + FEW_HOLDERS * PAGE + self.blocks
    }

    /// Bytes of the buffers.
    fn pool(&self) -> Option<usize> {
        let buffers = self.buffers.checked_add(FIRST_BUFFER)? as usize;
        buffers.checked_mul(self.stride as usize)
    }
}

/// The layout of such a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The holders' pages.
    pub holders: Range<usize>,
    /// The port blocks.
    pub blocks: Range<usize>,
    layout: RegionLayout,
}

impl Parts {
    /// A region of at most this many bytes, with as many buffers as fit; `None` if that is too
    /// small for the ports.
    #[must_use]
    fn within(needs: &Needs, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?.min(MOST_BYTES) / PAGE * PAGE;
        let most = bytes.checked_sub(needs.pool()?)? / PAGE * PAGE;
        let least = Some(needs.blocks_end()).filter(|&end| end <= most.min(Owner::BLOCKS_END))?;
        // Buffers begin at a huge page, where the region is large enough.
        let share = bytes / BLOCKS_SHARE;
        let unit = if share >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let end = share.next_multiple_of(unit).min(BLOCKS_END).min(most).max(least);
        let pages = (FEW_HOLDERS + (end - least) / 4 / PAGE).min(HOLDERS);
        let holders = FIRST_BLOCK..FIRST_BLOCK + pages * PAGE;
        let buffers = u32::try_from((bytes - end).checked_div(needs.stride as usize)?).ok()?;
        let buffers = buffers.checked_sub(FIRST_BUFFER)?;
        let layout = RegionLayout::new(end - FIRST_BLOCK, needs.stride, buffers)?;
        Some(Self { blocks: holders.end..end, holders, layout })
    }

    /// The sizes that clients are told.
    #[must_use]
    pub fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    /// Bytes of the region.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }
}

impl NetmapRegion {
    /// A region without ports. `life` is dropped when the system has its memory again.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(name: &str, parts: &Parts, life: Arc<()>) -> io::Result<Self> {
        let RegionLayout { stride, buffers, .. } = parts.layout;
        let group = Group::with_room(name, stride, parts.blocks.clone(), buffers - FIRST_BUFFER)?;
        let holders = FreeSpace::new(parts.holders.start, parts.holders.len());
        Ok(Self { group, holders, parts: parts.clone(), life })
    }

    /// Kept by each client that has the memory.
    #[must_use]
    pub fn life(&self) -> &Arc<()> {
        &self.life
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ring::cursor::RingSize;
    use ring::held::HeldRings;

    fn counts() -> RingCounts {
        let slots = RingSize::new(64).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    /// A region of the usual size, for one port.
    fn usual(stride: u32) -> NetmapRegion {
        let parts = Needs::new(stride, &[counts()], 0).plan(USUAL_BYTES, u64::MAX);
        NetmapRegion::new("test", &parts.expect("a region"), Arc::default()).expect("memory")
    }

    fn all(port: &PortLayout) -> HeldSides {
        HeldSides { nic: Some(HeldRings { port: *port, tx: 0..1, rx: 0..1 }), host: None }
    }

    fn in_pool(region: &NetmapRegion) -> usize {
        region.region().owners().count(Owner::POOL)
    }

    #[test]
    fn ports_and_holders_come_and_go_without_a_leak() {
        let mut region = usual(2112);
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
        let mut region = usual(2112);
        let pool = in_pool(&region);
        let port = *region.add_port("test", counts()).expect("room").reservation.layout();
        let memory = region.reserve_holder("test", all(&port), u32::MAX).expect("room");
        assert_eq!(memory.extra_bufs() + FIRST_BUFFER + 128, u32::try_from(pool).expect("few"));
        assert!(region.add_port("another", counts()).is_err());
        region.release_holder(&memory);
        region.add_port("another", counts()).expect("room again");
    }

    #[test]
    fn what_nobody_waits_for_is_not_built_and_comes_back_whole() {
        let mut region = usual(2112);
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
    fn a_region_has_a_share_unless_its_first_ports_need_more() {
        let pool = |parts: &Parts| parts.layout.buffers as usize - 2;
        let needs = |extra| Needs::new(2112, &[counts()], extra);
        let usual = needs(10).plan(USUAL_BYTES, u64::MAX).expect("a region");
        assert_eq!((usual.holders.len() / PAGE, usual.blocks.end), (HOLDERS, BLOCKS_END));
        assert!(usual.bytes() <= USUAL_BYTES && usual.bytes() > USUAL_BYTES - 8192);
        assert_eq!(pool(&usual), 476_623);
        // Twice the buffers, or if that is too much, these, or what there is.
        let least = needs(0).least().expect("a region");
        let all = needs(1000).least().expect("a region") + 1000 * 2112;
        let sizes = [u64::MAX, all + PAGE as u64, least + 3000, least];
        let sizes = sizes.map(|most| pool(&needs(1000).plan(least, most).expect("a region")));
        let expected = [2256..2270, 1128..1131, 129..131, 128..130];
        sizes.iter().zip(&expected).for_each(|(size, range)| {
            assert!(range.contains(size), "{size} of {range:?}");
        });
        assert_eq!(needs(1000).plan(least, least - PAGE as u64), None);
        let most = needs(u32::MAX).plan(0, u64::MAX).expect("a region");
        assert!((4095 << 20..1 << 32).contains(&most.bytes()), "4 GiB are the end");
        NetmapRegion::new("test", &most, Arc::default()).expect("address space");
        assert_eq!(Needs::new(0, &[counts()], 0).plan(USUAL_BYTES, u64::MAX), None);
    }

    fn any_counts() -> impl Strategy<Value = RingCounts> {
        let size = || (8u32..=16384).prop_map(|slots| RingSize::new(slots).expect("legal"));
        (0u16..=64, 0u16..=64, size(), size()).prop_map(
            |(tx_rings, rx_rings, tx_slots, rx_slots)| RingCounts {
                tx_rings,
                rx_rings,
                tx_slots,
                rx_slots,
            },
        )
    }

    proptest! {
        /// However large it is: it has no more than it is given, and its ports have room in it.
        #[test]
        fn a_region_is_within_its_bytes_and_holds_its_ports(
            ports in proptest::collection::vec(any_counts(), 1..4),
            lines in 1u32..=1023,
            extra in prop_oneof![Just(0), 0u32..100_000, Just(u32::MAX)],
            (share, beyond) in (0u64..1 << 33, prop_oneof![Just(0), 0u64..1 << 20, 0u64..1 << 33]),
        ) {
            let needs = Needs::new(64 * lines, &ports, extra);
            let Some(least) = needs.least() else {
                prop_assert_eq!(needs.plan(share, u64::MAX), None);
                return Ok(());
            };
            prop_assert_eq!(needs.plan(share, least - 1), None);
            let parts = needs.plan(share, least + beyond).expect("what is needed is there");
            prop_assert!(parts.bytes() <= least + beyond);
            let wanted = u64::from(needs.buffers).saturating_add(extra.into());
            let unused = parts.bytes() + u64::from(needs.stride) + (PAGE as u64);
            let pool = u64::from(parts.layout.buffers - FIRST_BUFFER);
            prop_assert!(unused >= share.min(least + beyond).min(MOST_BYTES as u64));
            prop_assert!(pool >= wanted || unused >= (least + beyond).min(MOST_BYTES as u64));
            let mut region = NetmapRegion::new("test", &parts, Arc::default()).expect("memory");
            for counts in ports {
                region.add_port("a", counts).expect("room");
            }
            for _ in 0..FEW_HOLDERS {
                region.reserve_holder("a", HeldSides::default(), 0).expect("room");
            }
        }
    }
}
