//! Trust groups: one region for several ports.
//!
//! The region is made once, in the size that its creator asks for, and a user is charged for all of
//! it: every member maps all of it, and may commit it by writing. The daemon commits no memory that
//! no port uses. A port that joins gets a block and buffers. When it leaves, it returns the buffers
//! that it owns then: the switch swaps buffers, so these need not be the ones it was given, but
//! they are as many, in its slots or taken out of them. [`ring::owners`] records the owner of each.
//! The memory of free buffers is returned to the system.
//!
//! A port without rings may be a member, too: it has a [`Share`] of the buffers and a page of the
//! port blocks, whose number identifies it as an owner. Its adapter may be dropped on any thread,
//! so it returns its buffers itself; the group frees the page later.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ring::abi::{FIRST_BUFFER, Slot};
use ring::audit::{Held, Tally};
use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RegionLayout, RingCounts};
use ring::leaver::Leaver;
use ring::owners::Owner;
use ring::{BufferIndex, HUGE_PAGE, Region};

use crate::free_space::FreeSpace;
use crate::reservation::{Reservation, ReservedPort};
use crate::shm::PortMemory;
use crate::sys::Waker;

/// The part of a region that is for port blocks, beside their slots: one byte of 64.
const BLOCKS_SHARE: usize = 64;

/// The size of a group's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The most bytes.
    pub bytes: u64,
    /// The distance of buffers.
    pub stride: u32,
    /// Rings and extra buffers of the first port, for which the region has room in any case.
    pub first: Option<(RingCounts, u32)>,
}

impl Size {
    /// The range of port blocks, and the number of buffers after them; `None` if such a region is
    /// impossible.
    fn parts(&self) -> Option<(Range<usize>, u32)> {
        let bytes = usize::try_from(self.bytes).ok()? / PAGE * PAGE;
        let (block, buffers) = self.first.map_or(Some((PAGE, 0)), |(counts, extra)| {
            let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
            Some((block, counts.buffers().checked_add(extra)?))
        })?;
        let (slot, stride) = (size_of::<Slot>(), self.stride as usize);
        let all = (buffers.checked_add(FIRST_BUFFER)? as usize).checked_mul(stride)?;
        let share = bytes / BLOCKS_SHARE + bytes / (stride + slot) * slot;
        // Buffers begin at a huge page, where the region is large enough.
        let unit = if share >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let most = bytes.checked_sub(all)? / PAGE * PAGE;
        let end = share.next_multiple_of(unit).min(most).min(Owner::BLOCKS_END);
        let end = Some(end.max(FIRST_BLOCK + block)).filter(|&end| end <= Owner::BLOCKS_END)?;
        let pool = u32::try_from(bytes.checked_sub(end)? / stride.max(1)).ok()?;
        let pool = pool.checked_sub(FIRST_BUFFER).filter(|&pool| pool >= buffers)?;
        Some((FIRST_BLOCK..end, pool))
    }
}

/// A trust group.
#[derive(Debug)]
pub struct Group {
    region: Arc<Region>,
    fd: OwnedFd,
    blocks: FreeSpace,
    members: usize,
    shares: Vec<Enrolled>,
    building: Arc<Mutex<()>>,
}

/// The group's record of a share.
#[derive(Debug)]
struct Enrolled {
    share: Weak<Share>,
    page: usize,
    /// The share's buffers are in the pool again.
    over: Arc<AtomicBool>,
}

impl Enrolled {
    fn is_over(&self) -> bool {
        // Acquire: pairs with the Release in the share's drop.
        self.over.load(Ordering::Acquire)
    }
}

/// The buffers that a port without rings has of a group. Dropping this returns them to the pool; no
/// other code may use them by then.
#[derive(Debug)]
pub struct Share {
    region: Arc<Region>,
    group: String,
    owner: Owner,
    given: AtomicU32,
    sending: AtomicU32,
    over: Arc<AtomicBool>,
    /// The doorbell to ring when the share is returned.
    bell: Arc<Waker>,
}

impl Share {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The group's name.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The owner that the buffers are recorded for.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Takes buffers out of the pool, once.
    ///
    /// # Errors
    /// `ENOSPC` if there are fewer; the share then has none.
    pub fn take(&self, wanted: u32) -> io::Result<Vec<BufferIndex>> {
        let buffers = self.region.take(self.owner, wanted as usize);
        if buffers.len() < wanted as usize {
            self.region.free(self.owner);
            return Err(full());
        }
        self.given.store(wanted, Ordering::Relaxed);
        Ok(buffers)
    }

    /// Records how many buffers the kernel is sending, for audits.
    pub fn note_sending(&self, count: u32) {
        self.sending.store(count, Ordering::Relaxed);
    }

    /// The buffers that the pool gave to the share.
    #[must_use]
    pub fn given(&self) -> u32 {
        self.given.load(Ordering::Relaxed)
    }

    /// The share's part of a count of the region's buffers.
    #[must_use]
    pub fn held(&self, tally: &Tally) -> Held {
        let (owned, tx) = (tally.owned(self.owner), self.sending.load(Ordering::Relaxed));
        let rx = owned.saturating_sub(tx);
        Held { given: self.given(), owned, tx, rx, ..Held::default() }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.region.free(self.owner);
        self.over.store(true, Ordering::Release);
        self.bell.wake();
    }
}

impl Group {
    /// A group without members.
    ///
    /// # Errors
    /// `ENOSPC` if the size is too small for the first port, or above 4 GiB; no descriptors left,
    /// or no address space.
    pub fn new(name: &str, size: &Size) -> io::Result<Self> {
        let (blocks, buffers) = size.parts().ok_or_else(full)?;
        Self::with_room(name, size.stride, blocks, buffers)
    }

    /// A group with room for these port blocks and buffers.
    ///
    /// # Errors
    /// `ENOSPC` above 4 GiB; no descriptors left.
    pub(crate) fn with_room(
        name: &str,
        stride: u32,
        blocks: Range<usize>,
        buffers: u32,
    ) -> io::Result<Self> {
        let layout = RegionLayout::new(blocks.end - FIRST_BLOCK, stride, buffers);
        let (region, fd) = Region::create_shared(name, layout.ok_or_else(full)?)?;
        let (blocks, building) = (FreeSpace::new(blocks.start, blocks.len()), Arc::default());
        Ok(Self { region, fd, blocks, members: 0, shares: Vec::new(), building })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The memory that is committed now, by any member.
    #[must_use]
    pub fn committed(&self) -> u64 {
        let blocks = rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks);
        512 * u64::try_from(blocks).unwrap_or(0)
    }

    /// A descriptor of the region.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether the group has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members == 0 && self.shares.iter().all(Enrolled::is_over)
    }

    /// A share for a port without rings, without buffers yet. Dropping it rings `bell`.
    ///
    /// # Errors
    /// `ENOSPC` if the group is full.
    pub fn enrol(&mut self, name: &str, bell: &Arc<Waker>) -> io::Result<Arc<Share>> {
        self.clear_away();
        let page = self.blocks.find(PAGE).ok_or_else(full)?;
        self.blocks.take(PAGE);
        let over = Arc::new(AtomicBool::new(false));
        let share = Arc::new(Share {
            region: self.region.clone(),
            group: name.to_owned(),
            owner: Owner::at(page),
            given: AtomicU32::new(0),
            sending: AtomicU32::new(0),
            over: over.clone(),
            bell: bell.clone(),
        });
        self.shares.push(Enrolled { share: Arc::downgrade(&share), page, over });
        Ok(share)
    }

    /// The shares that were not returned.
    pub fn shares(&self) -> impl Iterator<Item = Arc<Share>> {
        self.shares.iter().filter_map(|it| it.share.upgrade())
    }

    /// Frees the pages of shares that were returned.
    fn clear_away(&mut self) {
        let Self { shares, blocks, .. } = self;
        for it in shares.extract_if(.., |it| it.is_over()) {
            blocks.give_back(it.page, PAGE);
        }
    }

    /// Reserves a port in the group's region.
    ///
    /// # Errors
    /// `ENOSPC` if the group is full; nothing is left behind.
    pub fn join(
        &mut self,
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
    ) -> io::Result<PortMemory> {
        self.clear_away();
        let fd = self.fd.try_clone()?;
        let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let layout = PortLayout::new(self.blocks.find(size).ok_or_else(full)?, counts);
        let wanted = counts.buffers().checked_add(extra_bufs).ok_or_else(full)? as usize;
        let buffers = self.region.take(Owner::of(&layout), wanted);
        if buffers.len() < wanted {
            self.region.free(Owner::of(&layout));
            return Err(full());
        }
        self.blocks.take(size);
        self.members += 1;
        let port = ReservedPort { layout, buffers, extra_bufs };
        let reservation =
            Reservation::new(&self.region, name, vec![port], false).among(&self.building);
        Ok(PortMemory { reservation: reservation.into(), fd })
    }

    /// Removes a port that was never plugged in.
    pub fn abandon(&mut self, layout: &PortLayout) {
        self.region.free(Owner::of(layout));
        self.free_block(layout);
    }

    /// The lock of the thread that builds in the region.
    pub(crate) fn building(&self) -> &Arc<Mutex<()>> {
        &self.building
    }

    /// Removes a port that no worker uses any more. `return_buffers` makes every other member
    /// return the port's buffers.
    pub fn leave(&mut self, layout: &PortLayout, return_buffers: impl FnOnce(Arc<Leaver>)) {
        let leaver = Arc::new(Leaver::new(self.region.clone(), layout));
        return_buffers(leaver.clone());
        leaver.release();
        self.free_block(layout);
    }

    fn free_block(&mut self, layout: &PortLayout) {
        self.region.decommit(layout.nifp()..layout.end());
        self.blocks.give_back(layout.nifp(), layout.end() - layout.nifp());
        self.members -= 1;
    }
}

/// What to do, where the error cannot name the group.
const FULL: &str = "the memory of its trust group is full; begin the group with more: memory of \
    [new_group], or of [group.NAME], in uvala.toml";

/// The error of a region without room, however much memory the system has.
pub(crate) fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, FULL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::cursor::RingSize;
    use ring::extra::ExtraBufs;

    fn counts() -> RingCounts {
        let slots = RingSize::new(1024).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    fn new_group() -> Group {
        Group::new("test", &Size { bytes: 64 << 20, stride: 2112, first: None }).expect("memory")
    }

    #[test]
    fn blocks_of_the_largest_group_of_the_smallest_buffers_have_numbers_of_owners() {
        let size = Size { bytes: 4095 << 20, stride: 64, first: None };
        let (blocks, buffers) = size.parts().expect("a region");
        assert_eq!(blocks.end, Owner::BLOCKS_END);
        assert_eq!(Owner::at(blocks.end - 1).number(), Owner::BLOCKS_END / PAGE - 1);
        assert!(u64::from(buffers) > (3 << 30) / 64);
        let ring = RingSize::new(16384).expect("a power of two");
        let counts = RingCounts { tx_rings: 512, rx_rings: 512, tx_slots: ring, rx_slots: ring };
        let first = Some((counts, 0));
        assert_eq!(Size { first, ..size }.parts(), None, "a block of 256 MiB");
    }

    fn in_pool(group: &Group) -> usize {
        group.region.owners().count(Owner::POOL)
    }

    #[test]
    fn members_come_and_go_without_a_leak() {
        let mut group = new_group();
        let (blocks, buffers) = (group.blocks.clone(), in_pool(&group));
        let join = |group: &mut Group, name, extra_bufs| {
            let memory = group.join(name, counts(), extra_bufs).expect("room");
            memory.reservation.build().expect("memory");
            memory.reservation
        };
        let (a, b) = (join(&mut group, "a", 0), join(&mut group, "b", 10));
        assert_eq!(in_pool(&group), buffers - 2 * 2048 - 10);
        let kept = ExtraBufs::new(b.region(), b.layout()).take();
        group.leave(a.layout(), drop);
        group.leave(b.layout(), drop);
        assert!(group.is_empty());
        assert_eq!(group.blocks, blocks);
        assert_eq!(in_pool(&group), buffers, "what a client holds comes back too");
        drop(kept);
    }

    #[test]
    fn a_share_is_given_up_by_whoever_drops_it_and_its_number_is_free_after_that() {
        let mut group = new_group();
        let (blocks, buffers) = (group.blocks.clone(), in_pool(&group));
        let (bell, waker) = crate::host::bell().expect("descriptors");
        let share = group.enrol("nf", &waker).expect("room");
        assert!(share.take(1 << 20).is_err() && in_pool(&group) == buffers);
        assert_eq!(share.take(100).expect("room").len(), 100);
        share.note_sending(30);
        let held = Held { given: 100, owned: 100, tx: 30, rx: 70, ..Held::default() };
        let tally = Tally::new(&group.region);
        assert_eq!((share.held(&tally), in_pool(&group)), (held, buffers - 100));
        let other = group.enrol("nf", &waker).expect("room");
        assert_ne!(share.owner(), other.owner());
        drop(other);
        assert!(!group.is_empty() && group.shares().count() == 1);
        let owner = share.owner();
        std::thread::spawn(move || drop(share)).join().expect("no panic");
        assert!(group.is_empty() && in_pool(&group) == buffers);
        assert_eq!(rustix::io::read(&bell, &mut [0u8; 8]), Ok(2), "rung for each");
        let memory = group.join("a", counts(), 0).expect("room");
        assert_eq!(Owner::of(memory.reservation.layout()), owner);
        group.abandon(memory.reservation.layout());
        assert_eq!(group.blocks, blocks);
    }

    #[test]
    fn memory_of_members_that_left_is_the_systems_again() {
        let mut group = new_group();
        let join = |group: &mut Group| {
            let memory = group.join("a", counts(), 5000).expect("room");
            memory.reservation.build().expect("memory");
            memory.reservation
        };
        let (stays, goes) = (join(&mut group), join(&mut group));
        let both = group.committed();
        // Every other buffer of one port is the other's, as swaps leave them.
        let owners = group.region.owners();
        let [one, other] = [&stays, &goes].map(|reservation| Owner::of(reservation.layout()));
        let own = |owner| group.region.buffers().filter(move |b| owners.of(*b) == owner);
        let pairs: Vec<_> = own(one).zip(own(other)).step_by(2).collect();
        for (a, b) in pairs {
            assert!(owners.pass(a, one, other) && owners.pass(b, other, one));
        }
        group.leave(goes.layout(), drop);
        assert!(group.committed() > both / 2, "what stays is there, and pages it lies on");
        group.leave(stays.layout(), drop);
        let empty = new_group().committed();
        // The first buffer shares its page with one that no port gets.
        assert_eq!(group.committed(), empty + PAGE as u64);
    }

    #[test]
    fn huge_pages_commit_nothing_that_is_nobodys() {
        let mut group = new_group();
        let mut before = group.committed();
        for name in ["a", "b", "c"] {
            let memory = group.join(name, counts(), 0).expect("room");
            memory.reservation.clone().build_while_wanted().expect("memory");
            let runs = memory.reservation.huge_pages();
            assert!(!runs.is_empty());
            std::iter::from_fn(|| runs.take()).for_each(|run| group.region.collapse(run));
            let layout = memory.reservation.layout();
            let buffers = layout.counts().buffers() as usize * 2112 + 2 * PAGE;
            let most = buffers + layout.end() - layout.nifp();
            let now = group.committed();
            assert!(now - before <= most as u64, "{name}: {} of {most}", now - before);
            before = now;
        }
    }

    #[test]
    fn a_region_has_no_more_bytes_than_it_is_given_and_room_for_its_first_port() {
        let all = RingSize::new(16384).expect("legal");
        let large = RingCounts { tx_slots: all, rx_slots: all, ..counts() };
        for (first, stride) in [(counts(), 2112), (counts(), 64), (large, 2112), (large, 65_472)] {
            let block = PortLayout::new(FIRST_BLOCK, first).end() - FIRST_BLOCK;
            let least = RegionLayout::new(block, stride, first.buffers() + 7).expect("legal");
            for bytes in [least.size() as u64, least.size() as u64 + 5000, 3 << 30] {
                let size = Size { bytes, stride, first: Some((first, 7)) };
                let mut group = Group::new("test", &size).expect("room");
                let has = group.region().layout().size() as u64;
                assert!(has <= bytes && bytes - has < 2 * u64::from(stride) + (4 << 12));
                let memory = group.join("a", first, 7).expect("room for the first");
                assert!(memory.reservation.layout().end() <= group.region().layout().pool);
            }
            let size = Size { bytes: least.size() as u64 - 4096, stride, first: Some((first, 7)) };
            let refused = Group::new("test", &size).map(drop).map_err(|error| error.kind());
            assert_eq!(refused, Err(io::ErrorKind::StorageFull));
        }
        for bytes in [0, 4096, 5 << 30, u64::MAX] {
            assert!(Group::new("test", &Size { bytes, stride: 2112, first: None }).is_err());
        }
    }

    #[test]
    fn members_of_the_usual_size_fill_what_there_is() {
        for (mib, members) in [(64, 15), (512, 121)] {
            let size = Size { bytes: mib << 20, stride: 2112, first: None };
            let mut group = Group::new("test", &size).expect("memory");
            let joined = (0..).take_while(|_| group.join("a", counts(), 0).is_ok()).count();
            assert_eq!(joined, members, "{mib} MiB, 4.2 each");
        }
    }

    #[test]
    fn a_full_group_refuses_and_stays_whole() {
        let mut group = new_group();
        let buffers = in_pool(&group);
        assert!(group.join("a", counts(), 1 << 20).is_err());
        assert!(group.is_empty());
        assert_eq!(in_pool(&group), buffers);
        let blocks = group.blocks.clone();
        let memory = group.join("a", counts(), 0).expect("room");
        group.abandon(memory.reservation.layout());
        assert!(group.is_empty() && group.blocks == blocks && in_pool(&group) == buffers);
    }
}
