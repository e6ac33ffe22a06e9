//! What `engine` hands back to `control`: geometry, descriptors and rows of tables.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use packet::{MacAddr, VlanId};
use switch::McastRow;

use super::keys::PortKey;

/// Keeps the memory of a port. Dropping the last one takes as long as the memory is large.
#[derive(Debug)]
pub struct Lease {
    _memory: Arc<dyn Any + Send + Sync>,
    /// Dropped when the memory is the system's again.
    life: Arc<()>,
}

impl Lease {
    /// A lease of this memory.
    #[must_use]
    pub fn new(memory: Arc<dyn Any + Send + Sync>) -> Self {
        Self::shared(memory, Arc::new(()))
    }

    /// A lease of this memory of several ports: `life` is that of all of it.
    #[must_use]
    pub fn shared(memory: Arc<dyn Any + Send + Sync>, life: Arc<()>) -> Self {
        Self { _memory: memory, life }
    }

    /// Tells when the lease has ended and the memory was given back.
    #[must_use]
    pub fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }
}

/// What a client needs to use a port: the reply [`Attached`](protocol::Attached) and the
/// descriptors that go with it.
#[derive(Debug)]
pub struct Attachment {
    /// The reply.
    pub geometry: protocol::Attached,
    /// Keeps the region's pages.
    pub lease: Lease,
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
    /// Keeps the region's pages.
    pub lease: Lease,
    /// The region.
    pub region: OwnedFd,
    /// The doorbell that the program writes.
    pub kick: OwnedFd,
    /// The doorbell that the program reads.
    pub wake: OwnedFd,
}

/// An entry of a forwarding database that has come, moved or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbChange {
    /// MAC address.
    pub mac: MacAddr,
    /// VLAN.
    pub vlan: VlanId,
    /// The port behind which the address was.
    pub from: Option<PortKey>,
    /// The port behind which it is.
    pub to: Option<PortKey>,
    /// An operator added the entry.
    pub is_static: bool,
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
    /// A routing daemon has named it; it does not age.
    pub extern_learn: bool,
    /// Milliseconds since the switch last saw the address.
    pub age_ms: u64,
}

/// A row of the multicast database: a part of it that is at a port, or the switch's own querier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdbRow {
    /// The port; none: the switch itself.
    pub port: Option<PortKey>,
    /// What the switch says of it.
    pub row: McastRow,
}

/// A number of things, as replies show it.
#[must_use]
pub fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
