//! What the device offers: features of VirtIO (5.1.3, 6) and of the vhost-user protocol, and what a
//! driver accepts by them.

use device::virtio_net::features as net;
use device::virtqueue::features as virtio;
use packet::offload::Offloads;

/// Protocol features.
pub(super) mod protocol {
    /// The device may have more than two queues.
    pub const MQ: u64 = 1 << 0;
    /// The frontend lends memory for the log of dirty pages.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// `SEND_RARP`.
    pub const RARP: u64 = 1 << 2;
    /// The frontend may ask for a reply to any request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// `NET_SET_MTU`.
    pub const MTU: u64 = 1 << 4;
    /// The in-flight area, which outlives the daemon, is in memory of the frontend.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// `RESET_DEVICE`.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// `SET_STATUS`.
    pub const STATUS: u64 = 1 << 16;

    const MEMORY: u64 = LOG_SHMFD | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS;
    const CONVERSATION: u64 = REPLY_ACK | MTU | RESET_DEVICE | STATUS;
    pub const OFFERED: u64 = MQ | MEMORY | RARP | CONVERSATION;
}

/// The feature bit for protocol features.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The feature bit for logging all writes, while the guest is migrated.
pub(super) const LOG_ALL: u64 = 1 << 26;
/// The driver may split header and frame over buffers as it likes (6.3): a legacy feature, and
/// always so since VirtIO 1.0.
const ANY_LAYOUT: u64 = 1 << 27;

/// The features that a device with this many pairs of queues offers.
#[must_use]
pub(super) fn offered(pairs: u16) -> u64 {
    let several = if pairs > 1 { net::MQ } else { 0 };
    let sent = net::CSUM | net::HOST_TSO4 | net::HOST_TSO6 | net::HOST_ECN | net::HOST_USO;
    let received = net::GUEST_CSUM | net::GUEST_TSO4 | net::GUEST_TSO6 | net::GUEST_ECN;
    let datagrams = net::GUEST_USO4 | net::GUEST_USO6;
    let control = net::CTRL_VQ | net::GUEST_ANNOUNCE;
    let tables = virtio::INDIRECT_DESC | virtio::RING_PACKED | ANY_LAYOUT;
    let queues = tables | virtio::EVENT_IDX | virtio::IN_ORDER;
    several
        | sent
        | received
        | datagrams
        | control
        | queues
        | virtio::MRG_RXBUF
        | virtio::VERSION_1
        | net::MTU
        | LOG_ALL
        | PROTOCOL_FEATURES
}

/// The offloads that a driver with these features accepts in frames that it receives.
pub(super) fn accepted(features: u64) -> Offloads {
    let runs = [
        (net::GUEST_TSO4, Offloads::TSO4),
        (net::GUEST_TSO6, Offloads::TSO6),
        (net::GUEST_ECN, Offloads::ECN),
        // The header of UDP segments does not tell the IP version, so both are needed.
        (net::GUEST_USO4 | net::GUEST_USO6, Offloads::USO),
    ];
    // Segmentation offload requires checksum offload (5.1.3.1).
    if features & net::GUEST_CSUM == 0 {
        return Offloads::NONE;
    }
    let taken = runs.into_iter().filter(|(wanted, _)| features & wanted == *wanted);
    taken.fold(Offloads::CHECKSUM, |all, (_, one)| all.and(one))
}
