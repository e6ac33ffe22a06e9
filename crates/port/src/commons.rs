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
use ring::owners::{Leaver, Owner};

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
        let first = self.is_empty();
        let memory = self.group.join(name, counts, 0)?;
        if first {
            memory.region.collapse_first(counts.buffers());
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
                region.owners().pass_all(loan.owner(), Owner::POOL);
                Err(error)
            }
        }
    }

    /// Takes back what the holder of a port had.
    pub fn take_back(&mut self, port: &PortLayout, loan: &Loan) {
        self.group.region().end_loan(loan, port);
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
