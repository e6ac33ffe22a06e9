//! What a sender requests for one frame by the flags of its slot.
//!
//! netmap documents two flags for its switch and ignores both. This switch honours them:
//! `NS_NO_LEARN` keeps it from learning the source address, and a destination in `NS_PORT_MASK`,
//! the number of a port, replaces what the tables say.
//!
//! A slot with one of these flags is not plain ([`ring::run`]), so runs consist of frames without
//! flags, and the flags cost a run nothing.

use packet::PortId;
use ring::abi::slot_flag::{NO_LEARN, PORT_MASK, RFRAGS_SHIFT};

/// The flags of a frame that the switch honours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFlags(u16);

impl SlotFlags {
    /// No request.
    pub const NONE: Self = Self(0);
    /// The request not to learn the source address.
    pub(crate) const NO_LEARN: Self = Self(NO_LEARN);

    /// Reads the flags of a frame's first slot. In a frame of several slots the upper half of the
    /// flags counts the slots that the frame was received in. There it names no port, because
    /// programs pass such slots on as they are.
    #[inline]
    #[must_use]
    pub fn new(flags: u16, has_fragments: bool) -> Self {
        Self(flags & if has_fragments { NO_LEARN } else { NO_LEARN | PORT_MASK })
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
