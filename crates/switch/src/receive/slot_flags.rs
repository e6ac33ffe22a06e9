//! What a frame has to itself beside its header: what its sender requests by the flags of its slot,
//! and whether a second tag follows the first.
//!
//! netmap documents two flags for its switch and ignores both. This switch honours them:
//! `NS_NO_LEARN` keeps it from learning the source address, and a destination in `NS_PORT_MASK`,
//! the number of a port, replaces what the tables say.
//!
//! A second tag lies behind the header that runs have in common. A verdict needs to know of it
//! where the first one is removed, and frames of such a verdict are staged.
//!
//! A slot with one of these flags is not plain ([`ring::run`]), so runs consist of frames without
//! flags, and the flags cost a run nothing.

use packet::PortId;
use ring::abi::slot_flag::{NO_LEARN, PORT_MASK, RFRAGS_SHIFT};

/// Not a flag of slots: the switch sets it.
const INNER_TAG: u16 = 1;
const _: () = assert!(INNER_TAG & (NO_LEARN | PORT_MASK) == 0);

/// The flags of a frame that the switch looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFlags(u16);

impl SlotFlags {
    /// No request.
    pub const NONE: Self = Self(0);
    /// Reads the flags of a frame's first slot. In a frame of several slots the upper half of the
    /// flags counts the slots that the frame was received in. There it names no port, because
    /// programs pass such slots on as they are.
    #[inline]
    #[must_use]
    pub fn new(flags: u16, has_fragments: bool) -> Self {
        Self(flags & if has_fragments { NO_LEARN } else { NO_LEARN | PORT_MASK })
    }

    /// The flags of a frame with a second 802.1Q tag behind the first.
    #[inline]
    #[must_use]
    pub const fn with_inner_tag(self) -> Self {
        Self(self.0 | INNER_TAG)
    }

    /// The flags of a frame from which nothing is learned, whatever its sender requests.
    #[inline]
    pub(crate) const fn without_learning(self) -> Self {
        Self(self.0 & INNER_TAG | NO_LEARN)
    }

    /// Whether a second 802.1Q tag follows the first.
    #[inline]
    pub(crate) fn has_inner_tag(self) -> bool {
        self.0 & INNER_TAG != 0
    }

    /// Whether the switch may learn the source address.
    #[inline]
    pub(crate) fn learning(self) -> bool {
        self.0 & NO_LEARN == 0
    }

    /// The port that the sender requests as the destination.
    #[inline]
    pub(crate) fn destination(self) -> Option<PortId> {
        PortId::new(usize::from(self.0 >> RFRAGS_SHIFT)).filter(|port| port.index() > 0)
    }
}
