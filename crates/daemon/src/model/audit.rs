//! The buffers of a trust group, as `uvala audit` lists them.

use ring::audit::Held;

use super::keys::PortKey;

/// Most members of a group in one part of an audit.
pub const AUDIT_MEMBERS: usize = 32;

/// One part of an audit: some members of a trust group, and totals of the whole group.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Bytes of the group's region that are committed.
    pub committed: u64,
    /// Buffers of the region.
    pub buffers: u32,
    /// Free buffers of the region.
    pub free: u32,
    /// Buffers that all members were given.
    pub given: u32,
    /// Buffers that all members own now.
    pub owned: u32,
    /// The members of this part.
    pub members: Vec<AuditedMember>,
    /// Extra buffers that were examined.
    pub listed: u32,
    /// The first member of the next part, if there is one.
    pub next: Option<PortKey>,
}

/// A member of an audited group.
#[derive(Clone, Copy, Debug)]
pub struct AuditedMember {
    /// The member's port.
    pub port: PortKey,
    /// The buffers that it holds.
    pub held: Held,
    /// The port is reserved, but not attached yet.
    pub begins: bool,
}
