//! The memory of a program, in regions. Those of maps are in the maps ([`crate::maps`]); the others
//! are of one worker's runs.
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

/// The regions of a program that only its own runs use.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    regions: [Box<[u8]>; MAP_REGION],
}

impl Memory {
    /// Memory with these numbers of bytes.
    pub(crate) fn new(frame: usize, stack: usize, data: &[u8]) -> Self {
        let zeros = |bytes: usize| vec![0; bytes].into();
        Self { regions: [zeros(0), zeros(frame), zeros(stack), data.into()] }
    }

    /// The bytes of a region.
    #[inline(always)]
    pub(crate) fn region(&self, region: usize) -> Option<&[u8]> {
        self.regions.get(region).map(|bytes| &**bytes)
    }

    /// The bytes of a region, to change them.
    #[inline(always)]
    pub(crate) fn region_mut(&mut self, region: usize) -> &mut [u8] {
        &mut self.regions[region]
    }
}

/// The region of an address.
#[inline(always)]
pub(crate) fn region_of(address: u64) -> usize {
    to_usize(address >> 32)
}

/// The place of an address in its region.
#[inline(always)]
pub(crate) fn offset_of(address: u64) -> usize {
    to_usize(address & u64::from(u32::MAX))
}

/// The number in the first 1, 2, 4 or 8 bytes; `None`: they are too few.
#[inline(always)]
pub(crate) fn load<const BYTES: usize>(bytes: &[u8]) -> Option<u64> {
    let mut number = [0; 8];
    number[..BYTES].copy_from_slice(bytes.first_chunk::<BYTES>()?);
    Some(u64::from_le_bytes(number))
}

/// Writes a number to the first 1, 2, 4 or 8 bytes; `None`: they are too few.
#[inline(always)]
pub(crate) fn store<const BYTES: usize>(bytes: &mut [u8], number: u64) -> Option<()> {
    bytes.first_chunk_mut::<BYTES>()?.copy_from_slice(&number.to_le_bytes()[..BYTES]);
    Some(())
}
