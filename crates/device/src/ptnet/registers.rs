//! The registers of a ptnet device, as one table: which bits of each a write changes.
//!
//! What is not in the table reads as zeros and ignores writes.

pub use ring::ptnet::register::*;

use ring::ptnet::{KICK, feature};

/// What the device acknowledges of `PTFEAT`.
const SERVED: u32 = feature::REGION;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    #[cfg(test)]
    pub name: &'static str,
    /// Byte offset in BAR 0.
    pub offset: u32,
    /// The bits that a write changes.
    pub writable: u32,
}

macro_rules! registers {
    ($($name:ident $writable:expr;)*) => {
        /// All registers, by offset.
        pub(super) const TABLE: &[Register] = &[$(Register {
            #[cfg(test)]
            name: stringify!($name),
            offset: $name,
            writable: $writable,
        },)*];
    };
}

/// Bits that a write changes: none. Those with an effect have no bits of their own to write.
const NONE: u32 = 0;

registers! {
PTFEAT        SERVED;
PTCTL         NONE;
MAC_LO        NONE;
MAC_HI        NONE;
CSBBAH        NONE;
CSBBAL        NONE;
NIFP_OFS      NONE;
NUM_TX_RINGS  NONE;
NUM_RX_RINGS  NONE;
NUM_TX_SLOTS  NONE;
NUM_RX_SLOTS  NONE;
// Stays 0: no header in front of frames.
VNET_HDR_LEN  NONE;
HOSTMEMID     NONE;
// A CSB in the guest's memory is not served.
CSB_GH_BAH    NONE;
CSB_GH_BAL    NONE;
CSB_HG_BAH    NONE;
CSB_HG_BAL    NONE;
STATUS        NONE;
EPOCH         NONE;
REGION_LEN    NONE;
BELL_OFS      NONE;
ATOK_OFS      NONE;
KTOA_OFS      NONE;
NUM_BUFS      NONE;
BUF_OFS       NONE;
BUF_SIZE      NONE;
}

/// Bytes of BAR 0.
pub const IO_LEN: u32 = 0x100;
/// Words in front of the doorbells.
pub(super) const WORDS: usize = KICK as usize / 4;
