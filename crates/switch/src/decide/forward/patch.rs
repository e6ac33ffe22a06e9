//! The patch cable: two ports, and what enters at one leaves at the other, whatever its addresses
//! (PAUSE frames too: a cable is no bridge). With one port, or three, nothing is connected.

use packet::PortId;

use super::Verdict;
use crate::model::stats::DropReason;

/// The two ends, while there are exactly two ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patch(Option<[PortId; 2]>);

impl Patch {
    /// Connects the ports of a switch, if they are two.
    pub(crate) fn new(mut ports: impl Iterator<Item = PortId>) -> Self {
        match (ports.next(), ports.next(), ports.next()) {
            (Some(a), Some(b), None) => Self(Some([a, b])),
            _ => Self(None),
        }
    }

    #[inline]
    pub(crate) fn decide(self, src: PortId) -> Verdict {
        match self.0 {
            Some([a, b]) if src == a => Verdict::To(b),
            Some([a, b]) if src == b => Verdict::To(a),
            _ => Verdict::Drop(DropReason::PatchUnconnected),
        }
    }
}
