//! What a verdict means at the destination, and the last one of each port.

use packet::PortId;

use crate::decide::bridge::{TagAction, VlanVerdict};
use crate::model::stats::DropReason;

/// What the switch does with a frame.
#[derive(Clone, Copy)]
pub(crate) enum Egress {
    /// Sends it to this port, with this change of the tag.
    To(PortId, TagAction),
    /// Floods it to several ports.
    Flood(VlanVerdict),
    /// Drops it.
    Drop(DropReason),
}

/// The last verdict for frames of one port.
///
/// The entry holds for one header key, for one generation of the bridge, and for a short time, so
/// that the source address is refreshed.
#[derive(Default)]
pub(crate) struct VerdictCache {
    pub(crate) key: u128,
    pub(crate) generation: u64,
    pub(crate) now_ms: u64,
    pub(crate) egress: Option<Egress>,
}
