//! What a verdict means at the destination, and the last one of each port.

use packet::PortId;

use crate::decide::bridge::{Bridge, TagAction, VlanVerdict};
use crate::decide::forward::Verdict;
use crate::model::stats::DropReason;

/// What the switch does with a frame.
#[derive(Clone, Copy)]
pub(crate) enum Egress {
    /// Sends it to this port, with this change of the tag.
    To(PortId, TagAction),
    /// Sends it to several ports.
    Flood(VlanVerdict),
    /// Drops it.
    Drop(DropReason),
}

impl Egress {
    /// Whether the frame goes to one port, as it is.
    #[inline]
    pub(crate) fn keeps_frame(self) -> bool {
        matches!(self, Self::To(_, TagAction::Keep))
    }

    /// What a verdict about a frame from `src` means.
    pub(crate) fn of(bridge: &Bridge, src: PortId, verdict: VlanVerdict) -> Self {
        match verdict.forward {
            Verdict::Drop(reason) => Self::Drop(reason),
            Verdict::Flood(_) | Verdict::Set(..) | Verdict::Members => Self::Flood(verdict),
            Verdict::To(dst) => match bridge.egress(src, dst, &verdict) {
                Ok(tag) => Self::To(dst, tag),
                Err(reason) => Self::Drop(reason),
            },
        }
    }
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
    /// The verdict ends with the turn.
    pub(crate) is_fleeting: bool,
}
