//! Trust groups: one region for several ports.
//!
//! The region is made once, larger than it will ever need to be; memory that no port uses is never
//! committed. A port that joins gets a block and buffers. When it leaves, what it owns comes back:
//! frames are swapped, so these need not be the buffers it was given, but they are as many, whether
//! they stand in its slots or were taken out. Who owns which is kept by [`ring::owners`]. Their
//! memory is the system's again: a user is charged for what the daemon has committed for them.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RegionLayout, RingCounts};
use ring::owners::{Leaver, Owner};
use ring::{BufferIndex, Region};

use crate::area::Area;
use crate::plot::{Furniture, Plot};
use crate::shm::PortMemory;

/// Room for port blocks, in bytes: 128 ports of the default size.
const BLOCKS: usize = 128 * 10 * PAGE;
/// Buffers, likewise.
const BUFFERS: u32 = 128 * 2048;

/// A trust group.
#[derive(Debug)]
pub struct Group {
    region: Arc<Region>,
    fd: OwnedFd,
    blocks: Area,
    members: usize,
    building: Arc<Mutex<()>>,
}

impl Group {
    /// A group without members, for buffers of `stride` bytes.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(name: &str, stride: u32) -> io::Result<Self> {
        Self::with_room(name, stride, FIRST_BLOCK..FIRST_BLOCK + BLOCKS, BUFFERS)
    }

    /// A group with as much room for port blocks and buffers as is given.
    ///
    /// # Errors
    /// No descriptors left, or more than 4 GiB.
    pub(crate) fn with_room(
        name: &str,
        stride: u32,
        blocks: Range<usize>,
        buffers: u32,
    ) -> io::Result<Self> {
        let layout = RegionLayout::new(blocks.end - FIRST_BLOCK, stride, buffers);
        let (region, fd) = Region::create_shared(name, layout.ok_or_else(full)?)?;
        let (blocks, building) = (Area::new(blocks.start, blocks.len()), Arc::default());
        Ok(Self { region, fd, blocks, members: 0, building })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A descriptor of the region.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Is nobody in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Reserves a port in the group's region.
    ///
    /// # Errors
    /// `ENOMEM` where the group is full; nothing is left behind.
    pub fn join(
        &mut self,
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
    ) -> io::Result<PortMemory> {
        let fd = self.fd.try_clone()?;
        let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let layout = PortLayout::new(self.blocks.find(size).ok_or_else(full)?, counts);
        let wanted = counts.buffers().checked_add(extra_bufs).ok_or_else(full)? as usize;
        let buffers = self.take(Owner::of(&layout), wanted);
        if buffers.len() < wanted {
            self.region.free(Owner::of(&layout));
            return Err(full());
        }
        self.blocks.take(size);
        self.members += 1;
        let port = Furniture { layout, buffers, extra_bufs };
        let plot = Plot::new(&self.region, name, vec![port], false).among(&self.building);
        Ok(PortMemory { plot: plot.into(), fd })
    }

    /// Takes back a port that was never plugged in.
    pub fn abandon(&mut self, layout: &PortLayout) {
        self.region.free(Owner::of(layout));
        self.free_block(layout);
    }

    /// Who builds in the region holds it.
    pub(crate) fn building(&self) -> &Arc<Mutex<()>> {
        &self.building
    }

    /// Takes up to `wanted` buffers out of the pool; their memory is not committed.
    pub(crate) fn take(&self, owner: Owner, wanted: usize) -> Vec<BufferIndex> {
        let owners = self.region.owners();
        let free = self.region.buffers();
        free.filter(|buffer| owners.pass(*buffer, Owner::POOL, owner)).take(wanted).collect()
    }

    /// Takes back a port that no worker uses any more. `settle` makes every other member
    /// [settle](ring::host::HostPort::settle) with it.
    pub fn leave(&mut self, layout: &PortLayout, settle: impl FnOnce(Arc<Leaver>)) {
        let leaver = Arc::new(Leaver::new(self.region.clone(), layout));
        settle(leaver.clone());
        leaver.release();
        self.free_block(layout);
    }

    fn free_block(&mut self, layout: &PortLayout) {
        self.region.decommit(layout.nifp()..layout.end());
        self.blocks.give_back(layout.nifp(), layout.end() - layout.nifp());
        self.members -= 1;
    }
}

/// There is no room.
pub(crate) fn full() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "the trust group's region is full")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::cursor::Span;
    use ring::extra::ExtraBufs;

    fn counts() -> RingCounts {
        let slots = Span::new(1024).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    fn in_pool(group: &Group) -> usize {
        group.region.owners().count(Owner::POOL)
    }

    #[test]
    fn members_come_and_go_without_a_leak() {
        let mut group = Group::new("test", 2112).expect("memory");
        let (blocks, buffers) = (group.blocks.clone(), in_pool(&group));
        let join = |group: &mut Group, name, extra_bufs| {
            let memory = group.join(name, counts(), extra_bufs).expect("room");
            memory.plot.build().expect("memory");
            memory.plot
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

    /// Bytes of memory that the group's region takes.
    fn committed(group: &Group) -> u64 {
        512 * rustix::fs::fstat(group.fd()).expect("a memfd").st_blocks.cast_unsigned()
    }

    #[test]
    fn memory_of_members_that_left_is_the_systems_again() {
        let mut group = Group::new("test", 2112).expect("memory");
        let join = |group: &mut Group| {
            let memory = group.join("a", counts(), 5000).expect("room");
            memory.plot.build().expect("memory");
            memory.plot
        };
        let (stays, goes) = (join(&mut group), join(&mut group));
        let both = committed(&group);
        // Every other buffer of one is the other's, as swaps leave it.
        let owners = group.region.owners();
        let [one, other] = [&stays, &goes].map(|plot| Owner::of(plot.layout()));
        let own = |owner| group.region.buffers().filter(move |b| owners.of(*b) == owner);
        let pairs: Vec<_> = own(one).zip(own(other)).step_by(2).collect();
        for (a, b) in pairs {
            assert!(owners.pass(a, one, other) && owners.pass(b, other, one));
        }
        group.leave(goes.layout(), drop);
        assert!(committed(&group) > both / 2, "what stays is there, and pages it lies on");
        group.leave(stays.layout(), drop);
        let empty = committed(&Group::new("test", 2112).expect("memory"));
        // The first buffer shares its page with one that nobody gets.
        assert_eq!(committed(&group), empty + PAGE as u64);
    }

    #[test]
    fn a_full_group_refuses_and_stays_whole() {
        let mut group = Group::new("test", 2112).expect("memory");
        let buffers = in_pool(&group);
        assert!(group.join("a", counts(), BUFFERS).is_err());
        assert!(group.is_empty());
        assert_eq!(in_pool(&group), buffers);
        let blocks = group.blocks.clone();
        let memory = group.join("a", counts(), 0).expect("room");
        group.abandon(memory.plot.layout());
        assert!(group.is_empty() && group.blocks == blocks && in_pool(&group) == buffers);
    }
}
