//! Where everything lies in a region.
//!
//! ```text
//! 0        RegionHeader
//! 4096     port block ─┬─ NetmapIf, ring_ofs[]          (64-byte aligned)
//! │                    ├─ Bell
//! │                    ├─ CsbAtok[tx rings + rx rings]
//! │                    ├─ CsbKtoa[tx rings + rx rings]
//! │                    └─ NetmapRing + slots, ring by ring, TX first   (128-byte aligned)
//! │        … more port blocks, in a trust group
//! pool     buffers, `stride` bytes apart                (page aligned)
//! ```
//!
//! Both sides compute the offsets from the same few numbers, which travel in the attach reply:
//! neither has to believe what it reads in the region itself.

use core::mem::size_of;

use crate::format::abi::{CsbAtok, CsbKtoa, FIRST_BUFFER, LINE, NetmapIf, NetmapRing, Slot};
use crate::format::cursor::RingSize;

/// Granularity of port blocks and of the pool, in bytes.
pub const PAGE: usize = 4096;
/// Offset of the first port block: the region's header has the first page to itself.
pub const FIRST_BLOCK: usize = PAGE;
/// Most rings of a port in one direction.
pub const MAX_RINGS: u16 = 64;
/// Default distance of buffers in bytes: 33 lines. A power of two would put the first line of all
/// buffers into a few cache sets and halve the forwarding rate.
pub const DEFAULT_STRIDE: u32 = 2112;
/// Largest distance of buffers in bytes: the length of a slot has 16 bits.
pub const MAX_STRIDE: u32 = 65_472;

/// The rings of a port: what a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCounts {
    /// Transmit rings, `1..=MAX_RINGS`.
    pub tx_rings: u16,
    /// Receive rings, `1..=MAX_RINGS`.
    pub rx_rings: u16,
    /// Slots of each transmit ring.
    pub tx_slots: RingSize,
    /// Slots of each receive ring.
    pub rx_slots: RingSize,
}

impl RingCounts {
    /// Buffers that fill every slot.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        u32::from(self.tx_rings) * self.tx_slots.slots()
            + u32::from(self.rx_rings) * self.rx_slots.slots()
    }

    fn rings(&self) -> usize {
        usize::from(self.tx_rings) + usize::from(self.rx_rings)
    }
}

/// Offsets of one port's structures in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLayout {
    block: usize,
    counts: RingCounts,
}

impl PortLayout {
    /// A port whose block starts at `block`, a multiple of [`PAGE`].
    #[must_use]
    pub fn new(block: usize, counts: RingCounts) -> Self {
        assert!(block.is_multiple_of(PAGE));
        Self { block, counts }
    }

    /// How many rings the port has, and how many slots.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        self.counts
    }

    /// Offset of the `NetmapIf`.
    #[must_use]
    pub fn nifp(&self) -> usize {
        self.block
    }

    /// Offset of `ring_ofs[i]`, in netmap's order: TX, host TX, RX, host RX.
    #[must_use]
    pub fn ring_ofs(&self, i: usize) -> usize {
        self.block + size_of::<NetmapIf>() + i * size_of::<i64>()
    }

    /// Offset of the port's [`Bell`](crate::abi::Bell).
    #[must_use]
    pub fn bell(&self) -> usize {
        // The list has an entry for a host TX and a host RX ring, although there are no such rings.
        self.ring_ofs(self.counts.rings() + 2).next_multiple_of(LINE)
    }

    /// Offset of the client's CSB line of ring `i`, TX rings first.
    #[must_use]
    pub fn atok(&self, i: usize) -> usize {
        self.bell() + LINE + i * size_of::<CsbAtok>()
    }

    /// Offset of the switch's CSB line of ring `i`, TX rings first.
    #[must_use]
    pub fn ktoa(&self, i: usize) -> usize {
        self.atok(self.counts.rings()) + i * size_of::<CsbKtoa>()
    }

    /// Offset of ring `i`, TX rings first.
    #[must_use]
    pub fn ring(&self, i: usize) -> usize {
        let start = self.ktoa(self.counts.rings()).next_multiple_of(align_of::<NetmapRing>());
        let tx_rings = usize::from(self.counts.tx_rings);
        let (tx, rx) = (i.min(tx_rings), i.saturating_sub(tx_rings));
        start + tx * ring_size(self.counts.tx_slots) + rx * ring_size(self.counts.rx_slots)
    }

    /// First byte after the block.
    #[must_use]
    pub fn end(&self) -> usize {
        self.ring(self.counts.rings()).next_multiple_of(PAGE)
    }
}

fn ring_size(slots: RingSize) -> usize {
    let slots = slots.slots() as usize * size_of::<Slot>();
    (size_of::<NetmapRing>() + slots).next_multiple_of(align_of::<NetmapRing>())
}

/// Size and buffers of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Distance of the buffers in bytes, a multiple of 64.
    pub stride: u32,
    /// Number of buffers, the two reserved ones included.
    pub buffers: u32,
    /// Offset of buffer 0, page aligned.
    pub pool: usize,
}

impl RegionLayout {
    /// A region with `blocks` bytes of port blocks and `buffers` usable buffers; `None` where the
    /// stride is no multiple of a line in `64..=MAX_STRIDE`, or the sizes overflow 4 GiB (netmap's
    /// legacy interface has 32 bits for the size).
    #[must_use]
    pub fn new(blocks: usize, stride: u32, buffers: u32) -> Option<Self> {
        let aligned = (stride as usize).is_multiple_of(LINE);
        if !aligned || !(64..=MAX_STRIDE).contains(&stride) {
            return None;
        }
        let buffers = buffers.checked_add(FIRST_BUFFER)?;
        let pool = FIRST_BLOCK.checked_add(blocks)?.checked_next_multiple_of(PAGE)?;
        let layout = Self { stride, buffers, pool };
        let size = (buffers as usize).checked_mul(stride as usize)?.checked_add(pool)?;
        (size <= u32::MAX as usize - PAGE).then_some(layout)
    }

    /// A buffer index that a peer wrote; `None` if no usable buffer has it.
    #[inline(always)]
    #[must_use]
    pub fn check(&self, raw: u32) -> Option<BufferIndex> {
        // One comparison: indexes below the first wrap to huge numbers.
        let usable = self.buffers - FIRST_BUFFER;
        (raw.wrapping_sub(FIRST_BUFFER) < usable).then_some(BufferIndex(raw))
    }

    /// The indexes of all usable buffers, in order.
    pub fn indexes(&self) -> impl Iterator<Item = BufferIndex> + use<> {
        (FIRST_BUFFER..self.buffers).map(BufferIndex)
    }

    /// Size of the region in bytes, whole pages.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.pool + self.buffers as usize * self.stride as usize).next_multiple_of(PAGE)
    }
}

/// Index of a usable buffer of a region: `FIRST_BUFFER..buffers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferIndex(u32);

impl BufferIndex {
    /// The number itself.
    #[inline(always)]
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rings: u16, slots: u32) -> RingCounts {
        let span = RingSize::new(slots).expect("a legal ring");
        RingCounts { tx_rings: rings, rx_rings: rings, tx_slots: span, rx_slots: span }
    }

    #[test]
    fn structures_follow_each_other_without_overlap() {
        let layout = PortLayout::new(FIRST_BLOCK, counts(3, 100));
        assert!(layout.bell() >= layout.ring_ofs(8));
        assert_eq!(layout.atok(0), layout.bell() + LINE);
        assert_eq!(layout.ktoa(0), layout.atok(6));
        assert!(layout.ring(0) >= layout.ktoa(6));
        for i in 0..6 {
            assert!(layout.ring(i + 1) >= layout.ring(i) + 256 + 1600);
            assert!(layout.ring(i).is_multiple_of(128));
        }
        assert!(layout.end() >= layout.ring(6));
    }

    #[test]
    fn a_default_port_takes_less_than_six_megabytes() {
        let counts = counts(1, 1024);
        let block = PortLayout::new(FIRST_BLOCK, counts);
        let blocks = block.end() - FIRST_BLOCK;
        let region = RegionLayout::new(blocks, DEFAULT_STRIDE, counts.buffers());
        assert!(region.expect("legal").size() < 6 << 20);
    }

    #[test]
    fn odd_strides_and_huge_pools_are_refused() {
        assert!(RegionLayout::new(PAGE, 2100, 10).is_none());
        assert!(RegionLayout::new(PAGE, 0, 10).is_none());
        assert!(RegionLayout::new(PAGE, 2112, u32::MAX).is_none());
        assert!(RegionLayout::new(PAGE, 2112, 2_100_000).is_none());
    }
}
