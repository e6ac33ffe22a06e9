//! The memory of a program, in regions.
//!
//! An address is the number of a region and an offset in it, so there is no address outside of the
//! program's memory. What a program computes with addresses is its business: where the result
//! names no region, or leaves it, the access is a fault.
//!
//! ```text
//!  63            32 31             0
//!  ┌───────────────┬───────────────┐     0 null, always a fault     3 constants
//!  │ region        │ offset        │     1 the frame                4… values of map 0, 1, …
//!  └───────────────┴───────────────┘     2 the stack
//! ```

use crate::dispatch::Op;
use crate::fault::FaultKind;

/// The region of the frame.
pub(crate) const FRAME_REGION: usize = 1;
/// The region of the stack.
pub(crate) const STACK_REGION: usize = 2;
/// The region of constants.
pub(crate) const DATA_REGION: usize = 3;
/// The region of the first map's values.
pub(crate) const MAP_REGION: usize = 4;

/// In place of a region: the rest is the number of a map.
const HANDLES: u64 = 0xffff_0000_0000_0000;

/// An address.
pub(crate) fn address(region: usize, offset: usize) -> u64 {
    debug_assert!(u32::try_from(offset).is_ok(), "regions are small");
    (region as u64) << 32 | offset as u64
}

/// What stands for a map in a program. As an address it is a fault.
pub(crate) fn map_handle(map: usize) -> u64 {
    HANDLES | map as u64
}

/// The number of the map that a handle stands for.
pub(crate) fn map_of(handle: u64) -> Option<usize> {
    (handle & HANDLES == HANDLES).then(|| to_usize(handle & !HANDLES))
}

/// A number of the machine's width.
pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// What a program may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    Read,
    Write,
    /// Write, and others see it.
    Share,
}

#[derive(Clone, Debug)]
struct Region {
    bytes: Box<[u8]>,
    rights: Rights,
}

/// The memory of a program.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    regions: Box<[Region]>,
    /// Values of maps were changed by the program.
    pub(crate) changed: bool,
}

impl Memory {
    /// Memory with these numbers of bytes; `maps`: of the values of each map.
    pub(crate) fn new(
        frame: usize,
        stack: usize,
        data: &[u8],
        maps: impl Iterator<Item = usize>,
    ) -> Self {
        let zeros = |bytes: usize, rights| Region { bytes: vec![0; bytes].into(), rights };
        let constants = Region { bytes: data.into(), rights: Rights::Read };
        let first = [
            zeros(0, Rights::Read),
            zeros(frame, Rights::Read),
            zeros(stack, Rights::Write),
            constants,
        ];
        let maps = maps.map(|bytes| zeros(bytes, Rights::Share));
        Self { regions: first.into_iter().chain(maps).collect(), changed: false }
    }

    /// The bytes of a region.
    pub(crate) fn region(&self, region: usize) -> &[u8] {
        &self.regions[region].bytes
    }

    /// The bytes of a region, to change them.
    pub(crate) fn region_mut(&mut self, region: usize) -> &mut [u8] {
        &mut self.regions[region].bytes
    }

    /// Exchanges a region of two programs.
    pub(crate) fn swap(&mut self, mine: usize, other: &mut Self, theirs: usize) {
        std::mem::swap(&mut self.regions[mine], &mut other.regions[theirs]);
    }

    /// All bytes from an address to the end of its region.
    #[inline(always)]
    fn from(&self, address: u64) -> Option<&[u8]> {
        let region = self.regions.get(to_usize(address >> 32))?;
        region.bytes.get(to_usize(address & u64::from(u32::MAX))..)
    }

    /// So many bytes from an address on.
    pub(crate) fn bytes(&self, address: u64, count: usize) -> Result<&[u8], FaultKind> {
        self.from(address).and_then(|bytes| bytes.get(..count)).ok_or(FaultKind::Read)
    }

    /// Reads a number.
    #[inline(always)]
    pub(crate) fn load(&self, address: u64, size: Op) -> Result<u64, FaultKind> {
        let bytes = self.from(address).ok_or(FaultKind::Read)?;
        let number = match size {
            Op::Size1 => bytes.first().map(|&byte| byte.into()),
            Op::Size2 => bytes.first_chunk().map(|&bytes| u16::from_le_bytes(bytes).into()),
            Op::Size4 => bytes.first_chunk().map(|&bytes| u32::from_le_bytes(bytes).into()),
            _ => bytes.first_chunk().map(|&bytes| u64::from_le_bytes(bytes)),
        };
        number.ok_or(FaultKind::Read)
    }

    /// Writes a number.
    #[inline(always)]
    pub(crate) fn store(&mut self, address: u64, size: Op, number: u64) -> Result<(), FaultKind> {
        let region = self.regions.get_mut(to_usize(address >> 32)).ok_or(FaultKind::Write)?;
        if region.rights == Rights::Read {
            return Err(FaultKind::Write);
        }
        self.changed |= region.rights == Rights::Share;
        let rest = region.bytes.get_mut(to_usize(address & u64::from(u32::MAX))..);
        let rest = rest.unwrap_or_default();
        let [b0, b1, b2, b3, ..] = number.to_le_bytes();
        let written = match size {
            Op::Size1 => rest.first_mut().map(|place| *place = b0),
            Op::Size2 => rest.first_chunk_mut().map(|place| *place = [b0, b1]),
            Op::Size4 => rest.first_chunk_mut().map(|place| *place = [b0, b1, b2, b3]),
            _ => rest.first_chunk_mut().map(|place| *place = number.to_le_bytes()),
        };
        written.ok_or(FaultKind::Write)
    }
}
