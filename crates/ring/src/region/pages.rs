//! Reading the pages of a port, to see whether that takes long.
//!
//! A process that has a region can make others wait for its pages: it punches holes, or has the
//! kernel move pages, in a thread that hardly gets a core. Then a read takes as long as that.
//!
//! To read a page of a memfd that is not committed commits it. So only pages of the port are read:
//! those of its rings, and those on which buffers lie that it owns. The owner of a buffer may
//! change meanwhile. If the pool gets it back just before the read, its page is committed, until
//! a port has the buffer again.

use std::ops::{Range, RangeInclusive};

use super::Region;
use crate::format::layout::{PAGE, PortLayout};
use crate::group::owners::Owner;

impl Region {
    /// How many pages the region has.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.memory.size() / PAGE
    }

    /// Reads some bytes of each page in the range that is the port's: in a region of one port, of
    /// all.
    ///
    /// # Panics
    /// If the region has fewer pages.
    pub fn read_pages(&self, port: &PortLayout, pages: Range<usize>) {
        for page in pages.filter(|page| self.is_page_of(port, *page)) {
            let _: u32 = self.memory.read(page * PAGE);
        }
    }

    /// The numbers of the buffers that lie on these bytes of the pool; those behind the last are no
    /// buffers.
    pub(super) fn numbers_on(&self, bytes: Range<usize>) -> RangeInclusive<u32> {
        let number = |at: usize| {
            let number = (at - self.layout.pool) / self.layout.stride as usize;
            u32::try_from(number).expect("a region is below 4 GiB")
        };
        number(bytes.start)..=number(bytes.end - 1)
    }

    fn is_page_of(&self, port: &PortLayout, page: usize) -> bool {
        let start = page * PAGE;
        if self.owners.is_empty() {
            return true;
        }
        if start < self.layout.pool {
            return (port.nifp()..port.end()).contains(&start);
        }
        let mut buffers = self.numbers_on(start..start + PAGE).filter_map(|n| self.check(n));
        buffers.any(|buffer| self.owners.of(buffer) == Owner::of(port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::cursor::RingSize;
    use crate::format::layout::{FIRST_BLOCK, RegionLayout, RingCounts};

    fn port(block: usize) -> PortLayout {
        let slots = RingSize::new(8).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        PortLayout::new(block, counts)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn pages_of_others_and_of_the_pool_are_not_read() {
        let own = port(FIRST_BLOCK);
        let other = port(own.end());
        let layout = RegionLayout::new(other.end() - FIRST_BLOCK, 2112, 500).expect("legal");
        let (region, fd) = Region::create_shared("test", layout).expect("memory");
        let committed = || rustix::fs::fstat(&fd).expect("a file").st_blocks / 8;
        let _ = region.take(Owner::of(&other), 40);
        let buffers = region.take(Owner::of(&own), 100);
        let _ = region.take(Owner::of(&other), 40);
        let before = committed();
        region.read_pages(&own, 0..region.pages());
        let (first, last) = (region.offset(buffers[0]), region.offset(buffers[99]));
        let lie_on = (last + 2111) / PAGE - first / PAGE + 1;
        let expected = (own.end() - own.nifp()) / PAGE + lie_on;
        assert_eq!(usize::try_from(committed() - before), Ok(expected));
        region.read_pages(&own, 0..region.pages());
        assert_eq!(usize::try_from(committed() - before), Ok(expected));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_region_of_one_port_is_read_whole_and_in_parts() {
        let own = port(FIRST_BLOCK);
        let layout = RegionLayout::new(own.end() - FIRST_BLOCK, 2112, 50).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        let committed = || rustix::fs::fstat(&fd).expect("a file").st_blocks / 8;
        let before = committed();
        region.read_pages(&own, 1..4);
        assert_eq!(committed(), before + 3);
        region.read_pages(&own, 0..region.pages());
        assert_eq!(usize::try_from(committed()), Ok(region.pages()));
    }
}
