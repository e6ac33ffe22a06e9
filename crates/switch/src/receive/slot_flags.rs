//! What a sender asks of the switch for one frame, in the flags of its slot.
//!
//! netmap documents both flags for its switch and never looks at them. Here they are honoured:
//! `NS_NO_LEARN`, the source is not learned from this frame; and a destination in `NS_PORT_MASK`,
//! the number of a port in its switch, in place of what the tables say.
//!
//! Frames that ask for nothing are all that a run consists of: a slot with one of these flags is
//! not plain ([`ring::run`]), so looking for them costs a run nothing.

use packet::PortId;
use ring::abi::slot_flag::{NO_LEARN, PORT_MASK, RFRAGS_SHIFT};

/// What is asked for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks(u16);

impl Asks {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// That the source is not learned.
    pub(crate) const NO_LEARN: Self = Self(NO_LEARN);

    /// What the flags of a frame's first slot ask for. In a chain the upper half of the flags is
    /// the number of slots where the frame was received: it names no port there, because programs
    /// pass such slots on as they are.
    #[inline]
    #[must_use]
    pub fn new(flags: u16, is_chain: bool) -> Self {
        Self(flags & if is_chain { NO_LEARN } else { NO_LEARN | PORT_MASK })
    }

    /// Is the source to be learned?
    #[inline]
    pub(crate) fn learning(self) -> bool {
        self.0 & NO_LEARN == 0
    }

    /// The port that the frame is to go to.
    #[inline]
    pub(crate) fn destination(self) -> Option<PortId> {
        PortId::new(usize::from(self.0 >> RFRAGS_SHIFT)).filter(|port| port.index() > 0)
    }
}
