//! Huge pages for the memory of a region.
//!
//! The buffers of a few rings lie on more small pages than a TLB has entries. The kernel can move
//! the small pages of a huge one together (`MADV_COLLAPSE`), also while they are in use. Without
//! huge pages everything works, only slower.
//!
//! *Cost.* At first a call waits until every core has put away the pages that it has at hand. Where
//! other programs keep the cores busy, that takes up to a third of a second, and until then no
//! thread of this process can map or unmap memory, or start a thread. So a call takes a run of huge
//! pages, and waits once for all of them. Then it moves one after the other; a thread that touches
//! the one that is being moved waits for the end of that: less than a millisecond if the caller
//! keeps its core and few processes map the page, but longer with each further mapping, at which
//! the kernel has to look. A client can have tens of thousands, so a caller has to stop when that
//! takes too much processor time. Callers are threads that no other waits for.
//!
//! *Shared regions.* Memory of buffers in the pool is not committed, and moving it would commit it.
//! So a huge page with such a buffer is left alone. A buffer may get back into the pool during a
//! call, which does not hold the pool's lock because the control thread waits for that; the memory
//! of such buffers is given back after the call.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Region;
use crate::format::abi::FIRST_BUFFER;
use crate::format::layout::BufferIndex;
use crate::group::owners::Owner;
use crate::memory::HUGE_PAGE;

/// Most huge pages of one call.
const RUN: usize = 8;

impl Region {
    /// All huge pages of a region that one port has, in runs for [`Region::collapse`]. All its
    /// memory is committed.
    #[must_use]
    pub fn huge_pages(&self) -> Vec<Range<usize>> {
        let pages: Vec<_> = (0..self.memory.size() / HUGE_PAGE).collect();
        runs(&pages)
    }

    /// The huge pages on which these buffers lie, which are in order, likewise.
    #[must_use]
    pub fn huge_pages_of(&self, buffers: &[BufferIndex]) -> Vec<Range<usize>> {
        let last_byte = self.stride() as usize - 1;
        let ends = |buffer: &BufferIndex| [0, last_byte].map(|at| self.offset(*buffer) + at);
        let mut pages: Vec<_> = buffers.iter().flat_map(ends).map(|at| at / HUGE_PAGE).collect();
        pages.dedup();
        runs(&pages)
    }

    /// Moves a run to huge pages where the kernel can. Leaves those alone on which a buffer is the
    /// pool's.
    pub fn collapse(&self, pages: Range<usize>) {
        let taken: Vec<_> = pages.filter(|page| self.is_taken(*page)).collect();
        for run in runs(&taken) {
            let (start, size) = (run.start * HUGE_PAGE, run.len() * HUGE_PAGE);
            self.moves.fetch_add(1, Ordering::SeqCst);
            self.memory.collapse(start, size);
            self.moves.fetch_add(1, Ordering::SeqCst);
            // The kernel has taken what it moved out of the page tables. It is put back here, so
            // that no worker has to do that. Without memory for it, workers do it.
            let _ = self.memory.populate(start, size);
            run.for_each(|page| self.decommit_free(page));
        }
    }

    /// How often this process began or ended to move memory of the region: an odd number while it
    /// does so, and a thread that touches that memory may have to wait.
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Gives the memory of buffers back that have become the pool's since a huge page was looked
    /// at: the call may have committed it again.
    fn decommit_free(&self, page: usize) {
        let pins = self.pins();
        if !self.is_taken(page) {
            let all = self.numbers_on(bytes_of(page)).filter_map(|number| self.check(number));
            let free = all.filter(|buffer| self.owners.of(*buffer) == Owner::POOL);
            self.decommit_buffers(&free.collect::<Vec<_>>(), &pins);
        }
    }

    /// Whether every buffer on a huge page belongs to a member, or all of the region to one port.
    fn is_taken(&self, page: usize) -> bool {
        let is_members = |number: u32| {
            let of = |buffer| self.owners.of(buffer) != Owner::POOL;
            number < FIRST_BUFFER || self.check(number).is_some_and(of)
        };
        let bytes = bytes_of(page);
        let is_of_pool = bytes.start >= self.layout.pool;
        self.owners.is_empty() || (is_of_pool && self.numbers_on(bytes).all(is_members))
    }
}

/// The bytes of a huge page.
fn bytes_of(page: usize) -> Range<usize> {
    page * HUGE_PAGE..(page + 1) * HUGE_PAGE
}

/// Huge pages in order, as runs of at most [`RUN`].
fn runs(pages: &[usize]) -> Vec<Range<usize>> {
    let all = pages.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(RUN));
    all.map(|run| run[0]..run[0] + run.len()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::*;
    use crate::format::layout::{FIRST_BLOCK, PAGE, RegionLayout};

    /// Pages on which nothing but the test's buffers lie: the pool begins at the first huge page,
    /// and has two of them.
    fn shared() -> (Arc<Region>, OwnedFd) {
        let layout = RegionLayout::new(HUGE_PAGE - FIRST_BLOCK, 4096, 1022).expect("legal");
        Region::create_shared("test", layout).expect("memory")
    }

    fn pages(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).expect("a file").st_blocks / 8
    }

    #[test]
    fn runs_are_of_neighbours_and_bounded() {
        assert_eq!(runs(&[0, 1, 2, 5]), [0..3, 5..6]);
        let many: Vec<_> = (3..22).collect();
        assert_eq!(runs(&many), [3..11, 11..19, 19..22]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri moves no pages")]
    fn contents_stay_where_they_are() {
        let layout = RegionLayout::new(PAGE, 4096, 1500).expect("legal");
        let (region, _fd) = Region::create("test", layout).expect("memory");
        region.memory().populate(0, layout.size()).expect("memory");
        for (buffer, number) in region.buffers().zip(7u32..) {
            region.memory().write(region.offset(buffer), number);
        }
        let runs = region.huge_pages();
        assert_eq!(runs.first(), Some(&(0..2)));
        let calls = u32::try_from(runs.len()).expect("few");
        runs.into_iter().for_each(|run| region.collapse(run));
        assert_eq!(region.moves(), 2 * calls);
        for (buffer, number) in region.buffers().zip(7u32..) {
            assert_eq!(region.memory().read::<u32>(region.offset(buffer)), number);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri moves no pages")]
    fn pages_of_the_pool_are_left_alone() {
        let (region, fd) = shared();
        let own = region.take(Owner::at(PAGE), 600);
        region.populate_buffers(own[0], 600).expect("memory");
        let before = pages(&fd);
        // The second has free buffers.
        assert_eq!([0, 1, 2].map(|page| region.is_taken(page)), [false, true, false]);
        region.huge_pages_of(&own).into_iter().for_each(|run| region.collapse(run));
        // Two numbers at the beginning are no buffers, and their pages were not committed.
        assert!(pages(&fd) <= before + 2, "{} of {before}", pages(&fd));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn what_was_freed_meanwhile_is_given_back() {
        let (region, fd) = shared();
        let [goes, stays] = [510, 512].map(|count| {
            let own = region.take(Owner::at(count * PAGE), count);
            let committed = u32::try_from(count).expect("few");
            region.populate_buffers(own[0], committed).expect("memory");
            Owner::at(count * PAGE)
        });
        region.free(goes);
        let left = pages(&fd);
        // As a call does that has looked at the page before.
        region.memory().populate(HUGE_PAGE, HUGE_PAGE).expect("memory");
        (1..3).for_each(|page| region.decommit_free(page));
        assert_eq!(pages(&fd), left + 2, "what lies before the first buffer stays");
        assert_eq!(region.owners().count(stays), 512);
    }
}
