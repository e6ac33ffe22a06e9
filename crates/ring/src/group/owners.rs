//! Owners of the buffers of a shared region.
//!
//! # Theory of operation
//!
//! The ports of a trust group share a region, and the switch swaps buffers between their slots. A
//! client may take buffers out of its slots and keep them, so the slots of a port that goes do not
//! tell which buffers are free again. This file does: it holds one number for each buffer, in the
//! daemon's own memory.
//!
//! ```text
//!            join                            swap
//!   pool ────────────► member ◄────────────────────────────► other member
//!     ▲                  │  └─ leave: it stands in a slot of that one ─►
//!     └──────────────────┘
//!      leave: all others
//! ```
//!
//! A buffer belongs to the member that the pool or the switch gave it to last. Every buffer has one
//! owner at any time: whatever peers write into their slots, a buffer comes back once, and at the
//! latest when the last member goes. The switch does not check the owner of a buffer before it
//! passes the buffer on: a client that sends a buffer that it does not own harms its own group
//! only. For functions in a chain the switch does check ([`crate::kring::metadata`]): a frame in a
//! buffer that the function does not own, or sends twice, is dropped, and a slot that comes back
//! with another member's buffer is passed over. So a buffer leaves a function only by a frame that
//! it sends, for another that comes: a function has as many as the pool gave it, whatever its
//! neighbours do.
//!
//! *Clients that exchange buffers themselves.* A process with two ports of one group may move a
//! buffer from a slot of one into a slot of the other; the switch does not see that. When a member
//! leaves, every other keeps what stands in its own slots; what it then owns beyond what the pool
//! gave it, it gives up as far as the leaver left it behind (`Leaver`). Swaps are one for
//! one, so a member whose client does nothing of the kind never owns more.
//!
//! *Cost.* Two stores for each swapped frame, into an array of two bytes for each buffer: the
//! buffers of two ports of the default size take 128 cache lines. Regions of one port have none.
//!
//! *Concurrency.* A group's ports may be on switches of several workers, so a number has several
//! writers, one after the other: a buffer gets from one worker to another by a client that was
//! given it and publishes it, which orders the stores. Where members name one buffer twice, their
//! workers race for the last word, and either is right. The control thread claims and takes back
//! by compare-and-exchange, so that it undoes no swap.

use core::sync::atomic::{AtomicU16, Ordering};

use crate::format::layout::{BufferIndex, PAGE, PortLayout};

/// A member of a region, or its pool. The number is the page of the member's port block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(u16);

impl Owner {
    /// The pool. Its number is page 0, where the region's header is.
    pub const POOL: Self = Self(0);

    /// The port of this block.
    ///
    /// # Panics
    /// If it lies behind [`Self::BLOCKS_END`].
    #[must_use]
    pub fn of(port: &PortLayout) -> Self {
        Self::at(port.nifp())
    }

    /// Blocks lie before this offset of a region, 240 MiB.
    pub const BLOCKS_END: usize = 0xf000 * PAGE;

    /// A number of its own, below 65536.
    #[must_use]
    pub fn number(self) -> usize {
        self.0.into()
    }

    /// The owner of the page at this offset of the region.
    ///
    /// # Panics
    /// As [`Owner::of`].
    #[must_use]
    pub fn at(offset: usize) -> Self {
        assert!(offset < Self::BLOCKS_END, "no region has this many blocks");
        Self(u16::try_from(offset / PAGE).expect("16 bits"))
    }
}

/// The owner of each buffer of a region; empty where one port has all of them.
#[derive(Debug)]
pub struct Owners(Box<[AtomicU16]>);

impl Owners {
    /// All `buffers` buffers are in the pool.
    pub(crate) fn new(buffers: u32) -> Self {
        const { assert!(Owner::POOL.0 == 0) };
        Self(crate::memory::zeros(buffers as usize))
    }

    /// Whether one port has all buffers, and no other owner is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The owner of a buffer now.
    #[must_use]
    pub fn of(&self, buffer: BufferIndex) -> Owner {
        Owner(self.0[buffer.get() as usize].load(Ordering::Relaxed))
    }

    /// Whether `owner` owns `buffer`, a checked index.
    #[inline(always)]
    pub(crate) fn is(&self, buffer: u32, owner: Owner) -> bool {
        self.0[buffer as usize].load(Ordering::Relaxed) == owner.0
    }

    /// The switch has put `buffer`, which was checked, into a slot of `to`.
    #[inline(always)]
    pub(crate) fn give(&self, buffer: u32, to: Owner) {
        self.0[buffer as usize].store(to.0, Ordering::Relaxed);
    }

    /// Changes the owner if it is `from`.
    pub fn pass(&self, buffer: BufferIndex, from: Owner, to: Owner) -> bool {
        pass(&self.0[buffer.get() as usize], from, to)
    }

    /// How many buffers one owner has.
    #[must_use]
    pub fn count(&self, owner: Owner) -> usize {
        self.0.iter().filter(|of| of.load(Ordering::Relaxed) == owner.0).count()
    }

    /// The number of the first buffer behind all that have an owner other than the pool.
    #[must_use]
    pub fn end(&self) -> u32 {
        let free = self.0.iter().rev().take_while(|of| of.load(Ordering::Relaxed) == Owner::POOL.0);
        u32::try_from(self.0.len() - free.count()).expect("a region is below 4 GiB")
    }

    /// Adds how many buffers each owner has to `counts`, by [`Owner::number`].
    pub fn count_into(&self, counts: &mut [u32]) {
        self.0.iter().for_each(|of| counts[usize::from(of.load(Ordering::Relaxed))] += 1);
    }

    /// All buffers of one owner become another's.
    pub fn pass_all(&self, from: Owner, to: Owner) {
        for owner in &self.0 {
            pass(owner, from, to);
        }
    }
}

fn pass(owner: &AtomicU16, from: Owner, to: Owner) -> bool {
    // The plain load first: most buffers are others', and a failed exchange costs as much as one.
    owner.load(Ordering::Relaxed) == from.0
        && owner.compare_exchange(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::RegionLayout;
    use crate::region::Region;

    #[test]
    fn a_buffer_has_one_owner_and_only_that_one_passes_it_on() {
        let layout = RegionLayout::new(PAGE, 2112, 10).expect("legal");
        let (region, _) = Region::create_shared("test", layout).expect("memory");
        let (owners, [a, b]) = (region.owners(), [Owner(1), Owner(2)]);
        let in_pool = owners.count(Owner::POOL);
        let buffers: Vec<_> = region.buffers().take(3).collect();
        for &buffer in &buffers {
            assert!(owners.pass(buffer, Owner::POOL, a));
            assert!(!owners.pass(buffer, Owner::POOL, b), "it is not in the pool any more");
        }
        owners.give(buffers[0].get(), b);
        assert_eq!([a, b].map(|owner| owners.count(owner)), [2, 1]);
        owners.pass_all(a, Owner::POOL);
        assert_eq!(owners.of(buffers[0]), b);
        assert_eq!(owners.count(Owner::POOL), in_pool - 1);
        owners.pass_all(b, Owner::POOL);
        assert_eq!(owners.count(Owner::POOL), in_pool);
    }
}
