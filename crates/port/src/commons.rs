//! Regions of ports that netmap programs bind.
//!
//! ```text
//!  header │ pages of holders │ port blocks            │ buffers
//!         │ one netmap_if    │ of the port, its       │ most of them never committed
//!         │ each             │ pipes, who joined      │
//! ```
//!
//! Such a region is a [trust group](crate::group) of the ports in it, with two things more: pages
//! for the holders of its ports, and a number by which others may join. It is made large, because
//! nobody knows how many pipes there will be, and nothing of it costs memory before it is used.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ring::Region;
use ring::layout::{FIRST_BLOCK, PAGE, PortLayout, RingCounts};
use ring::loan::Loan;
use ring::owners::Leaver;

use crate::area::Area;
use crate::group::{Group, full};
use crate::shm::PortMemory;

/// Pages for holders.
const HOLDERS: usize = 4096;
/// Where port blocks begin and where buffers do: at a multiple of a huge page.
const BLOCKS: Range<usize> = FIRST_BLOCK + HOLDERS * PAGE..64 << 20;
/// Buffers, unless a port needs more: 128 pipes of the default size.
const BUFFERS: u32 = 1 << 19;

/// A region of bound ports.
#[derive(Debug)]
pub struct Commons {
    group: Group,
    holders: Area,
}

/// Parts of such a region, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Pages of holders.
    pub holders: Range<usize>,
    /// Port blocks.
    pub blocks: Range<usize>,
}

impl Commons {
    /// A region without ports that has room for at least `buffers` buffers.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(name: &str, stride: u32, buffers: u32) -> io::Result<Self> {
        let buffers = buffers_of(stride, buffers);
        let group = Group::with_room(name, stride, BLOCKS, buffers)?;
        Ok(Self { group, holders: Area::new(FIRST_BLOCK, HOLDERS * PAGE) })
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.group.region()
    }

    /// Its memfd.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.group.fd().as_fd()
    }

    /// Is there no port in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// Where is what?
    #[must_use]
    pub fn parts() -> Parts {
        Parts { holders: FIRST_BLOCK..BLOCKS.start, blocks: BLOCKS }
    }

    /// Makes a port in the region.
    ///
    /// # Errors
    /// `ENOMEM` where the region or the machine is full; nothing is left behind.
    pub fn add_port(&mut self, name: &str, counts: RingCounts) -> io::Result<PortMemory> {
        let memory = self.group.join(name, counts, 0)?;
        if let Err(error) = memory.plot.build() {
            self.group.abandon(memory.plot.layout());
            return Err(error);
        }
        Ok(memory)
    }

    /// Takes back a port that nobody holds and no worker uses any more; `settle` as in
    /// [`Group::leave`].
    pub fn remove_port(&mut self, layout: &PortLayout, settle: impl FnOnce(Arc<Leaver>)) {
        self.group.leave(layout, settle);
    }

    /// Gives a holder of a port his page, and up to `extra` buffers; says how many.
    ///
    /// # Errors
    /// `ENOMEM` where the region or the machine is full; nothing is left behind.
    pub fn lend(
        &mut self,
        port: &PortLayout,
        name: &str,
        bound: [Range<u16>; 2],
        extra: u32,
    ) -> io::Result<(Loan, u32)> {
        let loan = Loan::new(self.holders.find(PAGE).ok_or_else(full)?);
        let region = self.group.region();
        let lent = self.group.claim(loan.owner(), extra as usize).and_then(|buffers| {
            region.format_loan(&loan, name, port, bound, &buffers)?;
            u32::try_from(buffers.len()).map_err(|_| full())
        });
        match lent {
            Ok(count) => {
                self.holders.take(PAGE);
                Ok((loan, count))
            }
            Err(error) => {
                region.free(loan.owner());
                Err(error)
            }
        }
    }

    /// Takes back what the holder of a port had, with `extra` buffers lent to him.
    pub fn take_back(&mut self, port: &PortLayout, loan: &Loan, extra: u32) {
        // Who was lent nothing has a list of his own making: its buffers are the port's.
        if extra > 0 {
            self.group.region().end_loan(loan, port);
        }
        self.group.region().decommit(loan.nifp()..loan.nifp() + PAGE);
        self.holders.give_back(loan.nifp(), PAGE);
    }
}

/// Buffers of a region that needs at least `wanted`: as many as are usual, or twice those needed,
/// as far as 4 GiB go.
#[must_use]
pub fn buffers_of(stride: u32, wanted: u32) -> u32 {
    let most = (u32::MAX - (128 << 20)) / stride;
    wanted.saturating_mul(2).max(BUFFERS).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::cursor::Span;
    use ring::owners::Owner;

    fn counts() -> RingCounts {
        let slots = Span::new(64).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    fn in_pool(commons: &Commons) -> usize {
        commons.region().owners().count(Owner::POOL)
    }

    #[test]
    fn ports_and_holders_come_and_go_without_a_leak() {
        let mut commons = Commons::new("test", 2112, 0).expect("memory");
        let (pool, holders) = (in_pool(&commons), commons.holders.clone());
        let port = |_| *commons.add_port("test", counts()).expect("room").plot.layout();
        let ports = [0, 1].map(port);
        let mut lend = |port: usize, extra| {
            commons.lend(&ports[port], "test", [0..1, 0..1], extra).expect("room")
        };
        let loans = [(0, lend(0, 10)), (0, lend(0, 0)), (1, lend(1, 5))];
        assert_eq!(loans.map(|(_, (_, count))| count), [10, 0, 5]);
        assert_eq!(in_pool(&commons), pool - 2 * 128 - 15);
        loans.iter().for_each(|(port, (loan, n))| commons.take_back(&ports[*port], loan, *n));
        assert_eq!(in_pool(&commons), pool - 2 * 128);
        ports.iter().for_each(|port| commons.remove_port(port, drop));
        assert!(commons.is_empty());
        assert_eq!((in_pool(&commons), commons.holders), (pool, holders));
    }

    #[test]
    fn there_are_as_many_extra_buffers_as_there_is_room() {
        let mut commons = Commons::new("test", 64, 0).expect("memory");
        let port = *commons.add_port("test", counts()).expect("room").plot.layout();
        let (loan, count) = commons.lend(&port, "test", [0..1, 0..1], u32::MAX).expect("room");
        assert_eq!(count, BUFFERS - 128);
        assert!(commons.add_port("another", counts()).is_err());
        commons.take_back(&port, &loan, count);
        commons.add_port("another", counts()).expect("room again");
    }

    #[test]
    fn a_large_first_port_makes_a_larger_region_and_4_gib_are_the_end() {
        assert_eq!(buffers_of(2112, 10), BUFFERS);
        assert_eq!(buffers_of(2112, BUFFERS), 2 * BUFFERS);
        let most = buffers_of(2112, u32::MAX);
        assert!(Commons::new("test", 2112, u32::MAX).is_ok());
        assert!((1_900_000..2_000_000).contains(&most), "{most}");
    }
}
