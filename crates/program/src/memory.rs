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

use crate::limits::{CALLS_MAX, STACK};

/// The region of null, where nothing is. A helper may be given no bytes of it.
const NULL_REGION: usize = 0;
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
#[inline(always)]
pub(crate) fn address(region: usize, offset: usize) -> u64 {
    debug_assert!(u32::try_from(offset).is_ok(), "regions are small");
    (region as u64) << 32 | offset as u64
}

/// What stands for a map in a program. As an address it is a fault.
pub(crate) fn map_handle(map: usize) -> u64 {
    HANDLES | map as u64
}

/// The number of the map that a handle stands for.
#[inline(always)]
pub(crate) fn map_of(handle: u64) -> Option<usize> {
    handle.checked_sub(HANDLES).map(to_usize)
}

/// A number of the machine's width.
#[inline(always)]
pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Bytes of `struct uvala_frame`.
pub(crate) const FRAME: usize = 112;
/// Bytes of the stacks of all functions.
const STACKS: usize = STACK * CALLS_MAX;

/// The regions of a program that only its own runs use.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) frame: [u8; FRAME],
    stack: [u8; STACKS],
    data: Box<[u8]>,
}

impl Memory {
    /// Memory with these constants.
    pub(crate) fn new(data: &[u8]) -> Self {
        Self { frame: [0; _], stack: [0; _], data: data.into() }
    }

    /// The bytes of a region.
    pub(crate) fn region(&self, region: usize) -> Option<&[u8]> {
        match region {
            NULL_REGION => Some(&[]),
            FRAME_REGION => Some(&self.frame),
            STACK_REGION => Some(&self.stack),
            DATA_REGION => Some(&self.data),
            _ => None,
        }
    }

    /// The number at an address of the frame or the stack; `None`: it is not there.
    #[inline(always)]
    pub(crate) fn load_near<const BYTES: usize>(&self, address: u64) -> Option<u64> {
        let place = offset_of(address);
        match region_of(address) {
            FRAME_REGION => {
                within::<BYTES, FRAME>(place).and_then(|at| load::<BYTES>(&self.frame[at..]))
            }
            STACK_REGION => {
                within::<BYTES, STACKS>(place).and_then(|at| load::<BYTES>(&self.stack[at..]))
            }
            _ => None,
        }
    }

    /// Writes a number to the stack; `None`: the address is elsewhere.
    #[inline(always)]
    pub(crate) fn store_near<const BYTES: usize>(&mut self, at: u64, number: u64) -> Option<()> {
        if region_of(at) != STACK_REGION {
            return None;
        }
        let place = within::<BYTES, STACKS>(offset_of(at))?;
        store::<BYTES>(&mut self.stack[place..], number)
    }
}

/// A place, if so many bytes are there in a region of `SIZE`: one comparison bounds the access.
#[inline(always)]
fn within<const BYTES: usize, const SIZE: usize>(place: usize) -> Option<usize> {
    (place <= const { SIZE - BYTES }).then_some(place)
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
