//! What a run may take.

/// Steps of a run. A thousand take some microseconds.
pub const STEPS_MAX: u32 = 4096;
/// Bytes of stack for each function.
pub const STACK: usize = 512;
/// Functions that may be under way at once.
pub const CALLS_MAX: usize = 8;
/// Ports of a set that a program may choose.
pub const PORTS_MAX: usize = 64;

/// Steps for each eight bytes of a key or a hash, and for each entry that a search meets.
pub(crate) const SEARCH_STEPS: u32 = 4;
/// Steps for a look at which lengths the prefixes of a map have.
pub(crate) const LENGTHS_STEPS: u32 = 32;
