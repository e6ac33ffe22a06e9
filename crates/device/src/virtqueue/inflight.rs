//! The record that a device leaves for its successor (vhost-user, "Inflight I/O tracking").
//!
//! A device that dies loses its state. This area, in memory that outlives it, records how far the
//! device was:
//!
//! ```text
//!   split    features, version, size, last batch, used index │ an entry for each descriptor
//!   packed   features, version, size, free, old free, where │ the same
//! ```
//!
//! The entries are for devices that return buffers in any order. This device returns them in order,
//! and until then a split queue is as the driver left it: a successor begins after the last
//! returned buffer, and takes the others again. So no entry is ever in use.
//!
//! In a packed queue, the device overwrites descriptors before the driver can see that they were
//! returned. It saves the old contents in the entry of the same number:
//!
//! ```text
//!   keep ──► write the descriptors ──► used := new ──► first flags ──► forget ──► old := new
//!     \______ died: restored, from old on ______/       \______ died: done, from new on
//! ```
//!
//! All words have one writer, the device that has the queue. The order in which they are written is
//! all that counts: each step is a Release after the step before. The memory is the other side's;
//! what is read there is bounded here.

use core::sync::atomic::Ordering;

use ring::guest::Window;

use super::store::Put;
use super::{DESCRIPTOR, SIZE_MAX};

const FEATURES: usize = 0;
/// Offsets of version and size.
const VERSION: usize = 8;
const SIZE: usize = 10;
/// Offsets for a split queue.
const USED_IDX: usize = 14;
const SPLIT_ENTRIES: usize = 16;
const SPLIT_ENTRY: usize = 16;
/// Offsets for a packed queue: slots and wrap counters in one word.
const WHERE: usize = 16;
const PACKED_ENTRIES: usize = 32;
const PACKED_ENTRY: usize = 32;

/// The version of the specification.
const KNOWN: u16 = 1;

/// The length of the area of a queue, rounded up as other implementations do it.
#[must_use]
pub fn area_len(size: u16) -> usize {
    (PACKED_ENTRIES + PACKED_ENTRY * usize::from(size)).next_multiple_of(64)
}

/// The area of one queue.
#[derive(Debug)]
pub struct Inflight(Window);

/// The positions of a packed queue's device, before and after the last return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Where {
    pub(super) used: (u16, bool),
    pub(super) old: (u16, bool),
}

impl Inflight {
    /// The area in this window.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self(window)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Whether the area has room for a queue of this size.
    pub(super) fn holds(&self, size: u16, packed: bool) -> bool {
        debug_assert!(size <= SIZE_MAX);
        let (begin, entry) =
            if packed { (PACKED_ENTRIES, PACKED_ENTRY) } else { (SPLIT_ENTRIES, SPLIT_ENTRY) };
        begin + entry * usize::from(size) <= self.0.len()
    }

    /// Whether an earlier device left a record for a queue of this size.
    pub(super) fn is_left(&self, size: u16) -> bool {
        let word = |at| self.0.u16(at).load(Ordering::Relaxed);
        word(VERSION) == KNOWN && word(SIZE) == size
    }

    /// Removes the record, so that a successor begins at the index that it is given.
    pub fn clear(&self) {
        self.0.u16(VERSION).put(0, Ordering::Release);
    }

    /// Starts the record of a queue that has returned all earlier buffers.
    pub(super) fn begin_split(&self, size: u16, features: u64, used: u16) {
        self.begin(size, features, SPLIT_ENTRIES, SPLIT_ENTRY, 48);
        self.set_used(used);
        self.0.u16(VERSION).put(KNOWN, Ordering::Release);
    }

    pub(super) fn begin_packed(&self, size: u16, features: u64, at: (u16, bool)) {
        self.begin(size, features, PACKED_ENTRIES, PACKED_ENTRY, 16);
        self.set_where(Where { used: at, old: at });
        self.0.u16(VERSION).put(KNOWN, Ordering::Release);
    }

    /// Marks all entries as free; each names the next one, in the bits from `next` on.
    fn begin(&self, size: u16, features: u64, begin: usize, entry: usize, next: u32) {
        self.0.u64(FEATURES).put(features, Ordering::Relaxed);
        self.0.u64(VERSION).put(0, Ordering::Relaxed);
        for slot in 0..size {
            let behind = u64::from(slot + 1) << next;
            self.0.u64(begin + entry * usize::from(slot)).put(behind, Ordering::Relaxed);
        }
        self.0.u16(SIZE).put(size, Ordering::Relaxed);
    }

    pub(super) fn set_used(&self, used: u16) {
        self.0.u16(USED_IDX).put(used, Ordering::Release);
    }

    pub(super) fn place(&self) -> Where {
        let word = self.0.u64(WHERE).load(Ordering::Acquire).to_ne_bytes();
        let [u0, u1, o0, o1, used_wrap, old_wrap, ..] = word;
        let slot = |bytes| u16::from_ne_bytes(bytes);
        Where { used: (slot([u0, u1]), used_wrap != 0), old: (slot([o0, o1]), old_wrap != 0) }
    }

    pub(super) fn set_where(&self, place: Where) {
        let Where { used, old } = place;
        let ([u0, u1], [o0, o1]) = (used.0.to_ne_bytes(), old.0.to_ne_bytes());
        let word = [u0, u1, o0, o1, used.1.into(), old.1.into(), 0, 0];
        self.0.u64(WHERE).put(u64::from_ne_bytes(word), Ordering::Release);
    }

    /// Saves the two words of a descriptor that is overwritten next.
    pub(super) fn keep(&self, slot: u16, [address, rest]: [u64; 2]) {
        // A descriptor has length, ID and flags; an entry has ID and flags first.
        let place = Self::entry(slot);
        self.0.u64(place + 16).put(rest.rotate_left(32), Ordering::Relaxed);
        self.0.u64(place + 24).put(address, Ordering::Relaxed);
        self.0.u16(place).put(u16::from_ne_bytes([1, 0]), Ordering::Release);
    }

    /// The saved words of a descriptor.
    pub(super) fn kept(&self, slot: u16) -> Option<[u64; 2]> {
        let place = Self::entry(slot);
        let [is_kept, _] = self.0.u16(place).load(Ordering::Acquire).to_ne_bytes();
        let word = |at| self.0.u64(place + at).load(Ordering::Relaxed);
        (is_kept == 1).then(|| [word(24), word(16).rotate_right(32)])
    }

    pub(super) fn forget(&self, slot: u16) {
        self.0.u16(Self::entry(slot)).put(0, Ordering::Release);
    }

    fn entry(slot: u16) -> usize {
        PACKED_ENTRIES + PACKED_ENTRY * usize::from(slot)
    }
}

const _: () = assert!(DESCRIPTOR == 16, "an entry keeps one");
