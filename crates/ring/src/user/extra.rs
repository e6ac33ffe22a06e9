//! Extra buffers: those of a port that stand in no slot.
//!
//! # Theory of operation
//!
//! The extra buffers are a list in the region, as in netmap:
//!
//! ```text
//!  NetmapIf::ni_bufs_head ──► buffer 7 [ 9 …… ] ──► buffer 9 [ 0 …… ]     0 ends the list
//!
//!      take: off the head ──► Buffer ──► dropped: back to the head
//!                             ▲    │
//!                             swap ▼  a slot's buffer
//! ```
//!
//! The daemon makes the list; the client alone takes from it and gives back. When a port leaves its
//! trust group, the daemon takes its buffers wherever they are ([`crate::group::owners`]).
//!
//! A [`Buffer`] owns one number: no slot, no list and no other `Buffer` holds it, as long as all
//! processes that map the region keep to that. It is exchanged with a slot's number and never
//! copied. It may outlive its port: its memory then stays mapped, and dropping it returns the
//! number nowhere; in a trust group another member gets the buffer. There, a buffer that was taken
//! out of a slot belongs to that slot's port, whichever port's list it is returned to.

#![allow(unsafe_code)] // UNSAFETY: an owned buffer becomes a slice.

use core::mem::offset_of;
use core::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::format::abi::NetmapIf;
use crate::format::layout::{BufferIndex, PortLayout};
use crate::region::Region;

/// The extra buffers of a port, seen from its client.
#[derive(Debug)]
pub struct ExtraBufs {
    region: Arc<Region>,
    /// Offset of `ni_bufs_head`.
    head: usize,
    /// Whether the port is still ours. Its threads may take and give at the same time.
    open: Mutex<bool>,
}

impl ExtraBufs {
    /// The extra buffers of the port at `port`.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Arc<Self> {
        Arc::new(Self { region: region.clone(), head: head(port), open: Mutex::new(true) })
    }

    /// Takes a buffer; its contents are old ones. `None`: none is left, or the port is gone.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<Buffer> {
        let open = self.lock();
        let index = self.region.check(self.region.memory().read(self.head)).filter(|_| *open)?;
        let next: u32 = self.region.memory().read(self.region.offset(index));
        self.region.memory().write(self.head, next);
        Some(Buffer { home: self.clone(), index })
    }

    /// The port is no longer this client's: from now on the list is left alone.
    pub fn close(&self) {
        *self.lock() = false;
    }

    /// Makes a [`Buffer`] of a number again; `None`: the region has no such buffer.
    ///
    /// # Safety
    /// The number came from [`Buffer::into_index`], or from a slot in exchange for such a one, and
    /// is nowhere else.
    #[must_use]
    pub unsafe fn adopt(self: &Arc<Self>, number: u32) -> Option<Buffer> {
        Some(Buffer { home: self.clone(), index: self.region.check(number)? })
    }

    fn give(&self, index: BufferIndex) {
        let open = self.lock();
        if *open {
            let next: u32 = self.region.memory().read(self.head);
            self.region.memory().write(self.region.offset(index), next);
            self.region.memory().write(self.head, index.get());
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that stands in no slot: as long as the region's stride, its holder's alone. Dropped,
/// it goes back to the list that it came from.
#[derive(Debug)]
pub struct Buffer {
    home: Arc<ExtraBufs>,
    index: BufferIndex,
}

impl Buffer {
    /// Takes the number out, for bindings to other languages; see [`ExtraBufs::adopt`].
    #[must_use]
    pub fn into_index(self) -> u32 {
        let number = self.index.get();
        let mut this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is neither used nor dropped afterwards.
        unsafe { core::ptr::drop_in_place(&raw mut this.home) };
        number
    }

    /// The region that it is in.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.home.region
    }

    /// The number, to be exchanged and not to be copied.
    #[inline]
    pub(crate) fn index_mut(&mut self) -> &mut BufferIndex {
        &mut self.index
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let region = self.region();
        // SAFETY: a mapped buffer of that size, which `self` owns.
        unsafe { core::slice::from_raw_parts(region.buffer(self.index), region.stride() as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let region = &self.home.region;
        let size = region.stride() as usize;
        // SAFETY: a mapped buffer of that size, which `self` owns and lends mutably.
        unsafe { core::slice::from_raw_parts_mut(region.buffer(self.index), size) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give(self.index);
    }
}

/// Offset of the word that names the first extra buffer.
fn head(port: &PortLayout) -> usize {
    port.nifp() + offset_of!(NetmapIf, ni_bufs_head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::cursor::RingSize;
    use crate::format::layout::{DEFAULT_STRIDE, FIRST_BLOCK, RegionLayout, RingCounts};
    use crate::user::{RxRing, TxRing};

    /// A port with rings of 8 slots and `extra` buffers more.
    fn port(extra: u32) -> (Arc<Region>, PortLayout) {
        let slots = RingSize::new(8).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let port = PortLayout::new(FIRST_BLOCK, counts);
        let layout =
            RegionLayout::new(port.end() - FIRST_BLOCK, DEFAULT_STRIDE, counts.buffers() + extra);
        let (region, _) = Region::create("test", layout.expect("legal")).expect("memory");
        region.format_port("test", &port, region.buffers(), true).expect("memory");
        let rest: Vec<_> = region.buffers().skip(counts.buffers() as usize).collect();
        region.format_extra(&port, &rest);
        (region, port)
    }

    fn listed(region: &Region, port: &PortLayout) -> Vec<u32> {
        region.extra_buffers(port).map(BufferIndex::get).collect()
    }

    #[test]
    fn taken_buffers_leave_the_list_and_dropped_ones_return() {
        let (region, port) = port(3);
        let extra = ExtraBufs::new(&region, &port);
        assert_eq!(listed(&region, &port), [18, 19, 20]);
        let (mut a, b) = (extra.take().expect("three"), extra.take().expect("two"));
        assert_eq!(listed(&region, &port), [20]);
        a.fill(7);
        assert_eq!((a.len(), a[2111]), (2112, 7));
        drop(a);
        assert_eq!(listed(&region, &port), [18, 20]);
        drop(b);
        assert_eq!(listed(&region, &port), [19, 18, 20]);
        let all: Vec<_> = std::iter::from_fn(|| extra.take()).collect();
        assert_eq!((all.len(), listed(&region, &port)), (3, vec![]));
    }

    #[test]
    fn a_closed_port_is_left_alone() {
        let (region, port) = port(2);
        let extra = ExtraBufs::new(&region, &port);
        let kept = extra.take().expect("two");
        extra.close();
        assert!(extra.take().is_none());
        drop(kept);
        assert_eq!(listed(&region, &port), [19]);
    }

    #[test]
    fn swapping_exchanges_the_buffers_and_keeps_what_the_slot_says() {
        let (region, port) = port(1);
        let (mut tx, mut rx) = (TxRing::new(&region, &port, 0), RxRing::new(&region, &port, 0));
        let extra = ExtraBufs::new(&region, &port);
        let mut buffer = extra.take().expect("one");
        buffer.fill(1);
        tx.frame(3, 60).fill(2);
        assert!(tx.swap(3, &mut buffer));
        assert_eq!((tx.buffer_index(3), tx.buffer(3)[0], buffer[0]), (18, 1, 2));
        assert_eq!(rx.refresh(), 0);
        drop(buffer);
        assert_eq!(listed(&region, &port), [5], "the slot's first buffer");
    }

    #[test]
    fn a_buffer_of_another_region_is_refused() {
        let ((region, port), (other, far)) = (port(1), port(1));
        let mut tx = TxRing::new(&region, &port, 0);
        let mut buffer = ExtraBufs::new(&other, &far).take().expect("one");
        assert!(!tx.swap(0, &mut buffer));
        assert_eq!(tx.buffer_index(0), 2);
    }

    #[test]
    fn a_number_that_no_buffer_has_ends_the_list_and_refuses_the_swap() {
        let (region, port) = port(3);
        let extra = ExtraBufs::new(&region, &port);
        let mut buffer = extra.take().expect("three");
        let mut tx = TxRing::new(&region, &port, 0);
        tx.set_buffer_index(0, u32::MAX);
        assert!(!tx.swap(0, &mut buffer));
        region.memory().write(head(&port), 1u32);
        assert!(extra.take().is_none());
        region.memory().write(region.offset(buffer.index), buffer.index.get());
        region.memory().write(head(&port), buffer.index.get());
        assert_eq!(region.extra_buffers(&port).count(), 21, "a circle ends");
    }

    #[test]
    fn numbers_go_to_other_languages_and_come_back() {
        let (region, port) = port(1);
        let extra = ExtraBufs::new(&region, &port);
        let number = extra.take().expect("one").into_index();
        assert_eq!((number, listed(&region, &port)), (18, vec![]));
        // SAFETY: the number was taken just now and is nowhere else.
        drop(unsafe { extra.adopt(number) });
        assert_eq!(listed(&region, &port), [18]);
        // SAFETY: no buffer has this number, so nothing comes of it.
        assert!(unsafe { extra.adopt(21) }.is_none());
        assert_eq!(Arc::strong_count(&extra), 1);
    }
}
