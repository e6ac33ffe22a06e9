//! The header in front of each frame in a queue of virtio-net (5.1.6).

use crate::virtqueue::features::{MRG_RXBUF, VERSION_1};

/// Feature bits (5.1.3).
pub mod features {
    /// The device completes partial checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver accepts partial checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The device tells its MTU.
    pub const MTU: u64 = 1 << 3;
    /// The driver accepts unsegmented TCP over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver accepts unsegmented TCP over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver accepts unsegmented TCP with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device segments TCP over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device segments TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device segments TCP with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame may fill several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The device has a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The driver can announce itself after a migration.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// The device has several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// The driver accepts unsegmented UDP over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver accepts unsegmented UDP over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device segments UDP.
    pub const HOST_USO: u64 = 1 << 56;
}

/// The longest header.
pub const HEADER_MAX: usize = 12;

/// The length of the header with these features (5.1.6.1).
#[must_use]
pub fn header_len(features: u64) -> usize {
    if features & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { HEADER_MAX }
}

/// The bytes of the header that describe offloads; all zeros if there are none.
pub const LEFT: usize = 10;

/// The header of a frame that fills this many buffers.
#[must_use]
pub const fn header(left: [u8; LEFT], buffers: u16) -> [u8; HEADER_MAX] {
    let mut header = [0; HEADER_MAX];
    let (first, last) = header.split_at_mut(LEFT);
    first.copy_from_slice(&left);
    last.copy_from_slice(&buffers.to_le_bytes());
    header
}
