//! The registers of a ptnet device, as one table.
//!
//! Offsets up to 0x40 are those of netmap's `net/netmap_virt.h`. The rows behind them are ours, in
//! space that netmap leaves free; a driver uses them once the device has acknowledged
//! [`feature::REGION`]. What is not in the table reads as zeros and ignores writes.

/// Bits of `PTFEAT`.
pub mod feature {
    /// Frames have a virtio-net header in front.
    pub const VNET_HDR: u32 = 1;
    /// The port's region is BAR 4, and its CSB the one in there.
    pub const REGION: u32 = 1 << 31;
    /// What the device acknowledges.
    pub const SERVED: u32 = REGION;
}

/// Commands that a driver writes to `PTCTL`.
pub mod command {
    /// Starts the rings.
    pub const CREATE: u32 = 1;
    /// Stops them.
    pub const DELETE: u32 = 2;
}

/// Bits of `STATUS`.
pub mod status {
    /// The switch has the port.
    pub const LINK: u32 = 1;
}

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
    ($($name:ident $offset:literal $writable:expr;)*) => {
        $(pub(super) const $name: u32 = $offset;)*

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
// name         offset writable
PTFEAT           0x00  feature::SERVED;
PTCTL            0x04  NONE;
MAC_LO           0x08  NONE;
MAC_HI           0x0c  NONE;
CSBBAH           0x10  NONE;
CSBBAL           0x14  NONE;
NIFP_OFS         0x18  NONE;
NUM_TX_RINGS     0x1c  NONE;
NUM_RX_RINGS     0x20  NONE;
NUM_TX_SLOTS     0x24  NONE;
NUM_RX_SLOTS     0x28  NONE;
// Stays 0: no header in front of frames.
VNET_HDR_LEN     0x2c  NONE;
HOSTMEMID        0x30  NONE;
// A CSB in the guest's memory is not served.
CSB_GH_BAH       0x34  NONE;
CSB_GH_BAL       0x38  NONE;
CSB_HG_BAH       0x3c  NONE;
CSB_HG_BAL       0x40  NONE;
// Ours. Offsets are from the region's start.
STATUS           0x44  NONE;
EPOCH            0x48  NONE;
REGION_LEN       0x4c  NONE;
BELL_OFS         0x50  NONE;
ATOK_OFS         0x54  NONE;
KTOA_OFS         0x58  NONE;
NUM_BUFS         0x5c  NONE;
BUF_OFS          0x60  NONE;
BUF_SIZE         0x64  NONE;
}

/// The first doorbell; the others follow, a word for each ring, transmit rings first.
pub const KICK: u32 = 0x80;
/// Bytes of BAR 0.
pub const IO_LEN: u32 = 0x100;
/// Words in front of the doorbells.
pub(super) const WORDS: usize = KICK as usize / 4;
