//! What lies in front of each frame in a queue of virtio-net (5.1.6).

use crate::virtqueue::features::{MRG_RXBUF, VERSION_1};

/// Feature bits (5.1.3).
pub mod features {
    /// The device finishes checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The device says its MTU.
    pub const MTU: u64 = 1 << 3;
    /// The device cuts TCP runs over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The same over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// With marks of congestion.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame may fill several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// There is a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The driver announces itself when it has moved.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// The device cuts UDP runs.
    pub const HOST_USO: u64 = 1 << 56;
}

/// Most bytes of a header.
pub const HEADER_MAX: usize = 12;
/// Where the number of buffers stands.
const BUFFERS: std::ops::Range<usize> = 10..12;

/// Bytes of the header with these features (5.1.6.1).
#[must_use]
pub fn header_len(features: u64) -> usize {
    if features & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { HEADER_MAX }
}

/// The header of a finished frame that fills so many buffers.
#[must_use]
pub fn finished(buffers: u16) -> [u8; HEADER_MAX] {
    let mut header = [0; HEADER_MAX];
    header[BUFFERS].copy_from_slice(&buffers.to_le_bytes());
    header
}
