//! Trust groups: one region for several ports.
//!
//! The region is made once, larger than it will ever need to be; memory that no port uses is never
//! committed. A port that joins gets a block and buffers. When it leaves, the buffers that stand in
//! its slots and in its list of extra ones come back: frames are swapped, so they need not be the
//! ones it was given, but they are as many. What a client holds then is lost until the group ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RegionLayout, RingCounts};
use ring::{BufferIndex, Region};

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
    /// Free pieces of the block area, each an offset and a size, in order.
    blocks: Vec<(usize, usize)>,
    /// Which buffers are free, by index.
    free: Vec<bool>,
    members: usize,
}

impl Group {
    /// A group without members, for buffers of `stride` bytes.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(name: &str, stride: u32) -> io::Result<Self> {
        let layout = RegionLayout::new(BLOCKS, stride, BUFFERS).ok_or_else(full)?;
        let (region, fd) = Region::create(name, layout)?;
        let mut free = vec![false; layout.buffers as usize];
        region.buffers().for_each(|buffer| free[buffer.get() as usize] = true);
        Ok(Self { region, fd, blocks: vec![(FIRST_BLOCK, BLOCKS)], free, members: 0 })
    }

    /// Is nobody in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Makes a port in the group's region.
    ///
    /// # Errors
    /// `ENOMEM` where the group or the machine is full; nothing is left behind.
    pub fn join(
        &mut self,
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
    ) -> io::Result<PortMemory> {
        let fd = self.fd.try_clone()?;
        let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let wanted = counts.buffers().checked_add(extra_bufs).ok_or_else(full)? as usize;
        let buffers: Vec<_> = self.free_buffers().take(wanted).collect();
        let hole = self.blocks.iter().position(|&(_, free)| free >= size);
        let Some(hole) = hole.filter(|_| buffers.len() == wanted) else { return Err(full()) };
        let layout = PortLayout::new(self.blocks[hole].0, counts);
        for run in buffers.chunk_by(|a, b| a.get() + 1 == b.get()) {
            let count = u32::try_from(run.len()).map_err(|_| full())?;
            self.region.populate_buffers(run[0], count)?;
        }
        self.region.format_port(name, &layout, buffers.iter().copied(), false)?;
        self.region.format_extra(&layout, &buffers[counts.buffers() as usize..]);
        buffers.iter().for_each(|buffer| self.free[buffer.get() as usize] = false);
        self.blocks[hole] = (self.blocks[hole].0 + size, self.blocks[hole].1 - size);
        self.members += 1;
        Ok(PortMemory { region: self.region.clone(), fd, layout })
    }

    /// Takes back a port that no worker uses any more.
    pub fn leave(&mut self, layout: &PortLayout) {
        let extra = self.region.extra_buffers(layout);
        for buffer in self.region.slot_buffers(layout).chain(extra) {
            self.free[buffer.get() as usize] = true;
        }
        self.blocks.push((layout.nifp(), layout.end() - layout.nifp()));
        self.blocks.sort_unstable();
        self.blocks.dedup_by(|next, before| {
            let adjacent = before.0 + before.1 == next.0;
            before.1 += if adjacent { next.1 } else { 0 };
            adjacent
        });
        self.members -= 1;
    }

    fn free_buffers(&self) -> impl Iterator<Item = BufferIndex> + '_ {
        self.region.buffers().filter(|buffer| self.free[buffer.get() as usize])
    }
}

fn full() -> io::Error {
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

    #[test]
    fn members_come_and_go_without_a_leak() {
        let mut group = Group::new("test", 2112).expect("memory");
        let free = |group: &Group| group.free_buffers().count();
        let (blocks, buffers) = (group.blocks.clone(), free(&group));
        let a = group.join("a", counts(), 0).expect("room");
        let b = group.join("b", counts(), 10).expect("room");
        assert_eq!(free(&group), buffers - 2 * 2048 - 10);
        let kept = ExtraBufs::new(&b.region, &b.layout).take();
        group.leave(&a.layout);
        group.leave(&b.layout);
        assert!(group.is_empty());
        assert_eq!(group.blocks, blocks);
        assert_eq!(free(&group), buffers - 1, "what a client holds comes back with the group");
        drop(kept);
    }

    #[test]
    fn a_full_group_refuses_and_stays_whole() {
        let mut group = Group::new("test", 2112).expect("memory");
        assert!(group.join("a", counts(), BUFFERS).is_err());
        assert!(group.is_empty());
        assert!(group.join("a", counts(), 0).is_ok());
    }
}
