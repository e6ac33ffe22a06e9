//! How a guest finds its port in a ptnet device: the numbers of its registers, and what they mean.
//!
//! The port's region is BAR 4 of the device, 1b36:000d. Registers and doorbells are 32-bit words in
//! BAR 0, I/O ports. Offsets up to 0x40 are those of netmap's `net/netmap_virt.h`; the others are
//! ours, in space that netmap leaves free, and valid once the device has acknowledged
//! [`feature::REGION`]. Offsets that registers hold are from the region's start.
//!
//! The device is `uvala-device`; `guest/linux` is a driver, in C, with these numbers in a header of
//! its own.

/// Vendor and device.
pub const IDENTITY: [u16; 2] = [0x1b36, 0x000d];

/// Registers.
pub mod register {
    /// Features: a driver writes what it knows, the device keeps what it serves.
    pub const PTFEAT: u32 = 0x00;
    /// Commands; reads as the error number of the last one.
    pub const PTCTL: u32 = 0x04;
    /// The last four bytes of the MAC address.
    pub const MAC_LO: u32 = 0x08;
    /// The first two bytes of it.
    pub const MAC_HI: u32 = 0x0c;
    /// Where netmap's driver writes the place of its CSB, before there were two of them.
    pub const CSBBAH: u32 = 0x10;
    /// The lower half of `CSBBAH`.
    pub const CSBBAL: u32 = 0x14;
    /// The `netmap_if`.
    pub const NIFP_OFS: u32 = 0x18;
    /// Transmit rings.
    pub const NUM_TX_RINGS: u32 = 0x1c;
    /// Receive rings.
    pub const NUM_RX_RINGS: u32 = 0x20;
    /// Slots of each transmit ring.
    pub const NUM_TX_SLOTS: u32 = 0x24;
    /// Slots of each receive ring.
    pub const NUM_RX_SLOTS: u32 = 0x28;
    /// Bytes of the virtio-net header in front of frames.
    pub const VNET_HDR_LEN: u32 = 0x2c;
    /// Number of netmap's second device.
    pub const HOSTMEMID: u32 = 0x30;
    /// A CSB in the guest's memory, that of the guest.
    pub const CSB_GH_BAH: u32 = 0x34;
    /// The lower half of `CSB_GH_BAH`.
    pub const CSB_GH_BAL: u32 = 0x38;
    /// A CSB in the guest's memory, that of the host.
    pub const CSB_HG_BAH: u32 = 0x3c;
    /// The lower half of `CSB_HG_BAH`.
    pub const CSB_HG_BAL: u32 = 0x40;
    /// What the port is like now.
    pub const STATUS: u32 = 0x44;
    /// Changes when the rings are no longer those that were started.
    pub const EPOCH: u32 = 0x48;
    /// Bytes of the region.
    pub const REGION_LEN: u32 = 0x4c;
    /// The worker's need-kick word.
    pub const BELL_OFS: u32 = 0x50;
    /// The driver's CSB lines.
    pub const ATOK_OFS: u32 = 0x54;
    /// The switch's.
    pub const KTOA_OFS: u32 = 0x58;
    /// Buffers, the reserved ones included.
    pub const NUM_BUFS: u32 = 0x5c;
    /// Buffer 0.
    pub const BUF_OFS: u32 = 0x60;
    /// Size of the buffers, and their distance.
    pub const BUF_SIZE: u32 = 0x64;
}

/// Bits of `PTFEAT`.
pub mod feature {
    /// Frames have a virtio-net header in front.
    pub const VNET_HDR: u32 = 1;
    /// The port's region is BAR 4, and its CSB the one in there.
    pub const REGION: u32 = 1 << 31;
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
    /// The port is an instance of a service: frames come to it by chains.
    pub const FUNCTION: u32 = 2;
}

/// The first doorbell in BAR 0; the others follow, a word for each ring, transmit rings first.
pub const KICK: u32 = 0x80;
