//! From the numbers of an attach reply to offsets, each number checked.
//!
//! The daemon is trusted with more than this (it made the memory), but a daemon of another version
//! or a broken one must cost an error and never a wild pointer.

use protocol::Attached;
use ring::cursor::RingSize;
use ring::layout::{FIRST_BLOCK, MAX_RINGS, PAGE, PortLayout, RegionLayout, RingCounts};

use crate::Error;

/// Where everything of a port lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The region.
    pub region: RegionLayout,
    /// The port's own block.
    pub port: PortLayout,
    /// The block of a pipe's other end.
    pub peer: Option<PortLayout>,
}

impl Geometry {
    /// Checks what the daemon announced.
    pub fn new(attached: &Attached) -> Result<Self, Error> {
        Self::with_rings(attached, 1)
    }

    /// The geometry of an attachment that need not have rings.
    pub fn of_any(attached: &Attached) -> Result<Self, Error> {
        Self::with_rings(attached, 0)
    }

    fn with_rings(attached: &Attached, least: u16) -> Result<Self, Error> {
        let region = region(attached).ok_or(Error::Geometry("size of the region"))?;
        let counts =
            counts(attached, least).ok_or(Error::Geometry("number or size of the rings"))?;
        let block = |at| block(at, counts, region.pool).ok_or(Error::Geometry("place of a block"));
        let port = block(attached.block)?;
        let peer = attached.peer_block.map(block).transpose()?;
        let apart = |peer: &PortLayout| peer.end() <= port.nifp() || port.end() <= peer.nifp();
        if !peer.as_ref().is_none_or(apart) {
            return Err(Error::Geometry("blocks of a pipe overlap"));
        }
        Ok(Self { region, port, peer })
    }

    /// The block at `at`, of a port whose transmit rings are this one's receive rings.
    pub fn facing(&self, at: u64) -> Result<PortLayout, Error> {
        let RingCounts { tx_rings, rx_rings, tx_slots, rx_slots } = self.port.counts();
        let turned = RingCounts {
            tx_rings: rx_rings,
            rx_rings: tx_rings,
            tx_slots: rx_slots,
            rx_slots: tx_slots,
        };
        block(at, turned, self.region.pool).ok_or(Error::Geometry("place of a block"))
    }
}

fn region(attached: &Attached) -> Option<RegionLayout> {
    let pool = usize::try_from(attached.pool).ok()?;
    let blocks = pool.checked_sub(FIRST_BLOCK)?;
    let usable = attached.buffers.checked_sub(ring::abi::FIRST_BUFFER).filter(|&n| n > 0)?;
    let layout = RegionLayout::new(blocks, attached.stride, usable)?;
    let announced = usize::try_from(attached.region_bytes).ok()?;
    (layout.pool == pool && layout.size() == announced).then_some(layout)
}

fn counts(attached: &Attached, least: u16) -> Option<RingCounts> {
    let rings = |count: u16| (least..=MAX_RINGS).contains(&count).then_some(count);
    Some(RingCounts {
        tx_rings: rings(attached.tx_rings)?,
        rx_rings: rings(attached.rx_rings)?,
        tx_slots: RingSize::new(attached.tx_slots)?,
        rx_slots: RingSize::new(attached.rx_slots)?,
    })
}

fn block(at: u64, counts: RingCounts, pool: usize) -> Option<PortLayout> {
    let at = usize::try_from(at).ok()?;
    if !at.is_multiple_of(PAGE) || at < FIRST_BLOCK || at >= pool {
        return None;
    }
    let layout = PortLayout::new(at, counts);
    (layout.end() <= pool).then_some(layout)
}
