//! What `engine` hands back to `control`: geometry, descriptors and rows of tables.

use std::os::fd::OwnedFd;

use packet::{MacAddr, VlanId};

use super::keys::PortKey;

/// What a client needs to use a port: the reply [`Attached`](protocol::Attached) and the
/// descriptors that go with it.
#[derive(Debug)]
pub struct Attachment {
    /// The reply.
    pub geometry: protocol::Attached,
    /// The region.
    pub region: OwnedFd,
    /// The doorbell that the client writes.
    pub kick: OwnedFd,
    /// The doorbell that the client reads.
    pub wake: OwnedFd,
}

/// What a netmap program needs to use the rings that it bound: the reply
/// [`Bound`](protocol::Bound) and the descriptors that go with it.
#[derive(Debug)]
pub struct Binding {
    /// The reply.
    pub bound: protocol::Bound,
    /// The region.
    pub region: OwnedFd,
    /// The doorbell that the program writes.
    pub kick: OwnedFd,
    /// The doorbell that the program reads.
    pub wake: OwnedFd,
}

/// An entry of a forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbRow {
    /// MAC address.
    pub mac: MacAddr,
    /// VLAN.
    pub vlan: VlanId,
    /// The port behind which the address is.
    pub port: PortKey,
    /// An operator added the entry; it does not age.
    pub is_static: bool,
    /// Milliseconds since the switch last saw the address.
    pub age_ms: u64,
}
