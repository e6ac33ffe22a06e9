//! Frame metadata: what the switch and the functions of a chain tell each other about a frame.
//!
//! The metadata is one word, which lies in the slot of the frame and travels with it from function
//! to function (`docs/spec/frame-metadata.md`).
//!
//! ```text
//!  63    62     61 60 59  55 54    52 51   44 43       32 31   24 23            0
//! ┌─────┬──────┬─────┬──────┬────────┬───────┬───────────┬───────┬───────────────┐
//! │valid│turned│action│ hops │position│ chain │ port      │ order │ flow hash     │
//! └─────┴──────┴─────┴──────┴────────┴───────┴───────────┴───────┴───────────────┘
//! ```
//!
//! In a frame that a function receives, `port` is the port by which the frame entered the switch,
//! or the port of the function that sent it to this instance. In a frame that a function sends with
//! the action `port`, it is the destination. The word 0 is no metadata: the frame is in no chain.
//!
//! Every value of every field is legal. A function that writes arbitrary bits can send its own
//! frames astray, to where the operator lets functions send frames, and can do no more harm.

use crate::port::PortId;

/// The number of functions in the longest chain.
pub const POSITIONS: usize = 8;
/// The number of functions that a frame may pass, whatever they ask for.
pub const HOPS_MAX: u64 = 31;

/// Where the fields lie.
mod field {
    pub const HASH: u64 = 0xff_ffff;
    pub const ORDER: u32 = 24;
    pub const PORT: u32 = 32;
    pub const CHAIN: u32 = 44;
    pub const POSITION: u32 = 52;
    pub const HOPS: u32 = 55;
    pub const ACTION: u32 = 60;
    pub const TURNED: u64 = 1 << 62;
    pub const VALID: u64 = 1 << 63;
}
use field::{ACTION, CHAIN, HASH, HOPS, ORDER, PORT, POSITION, TURNED, VALID};

/// The bits of the port and of the action, in their places.
const PORT_MASK: u64 = 0xfff << PORT;
const ACTION_MASK: u64 = 3 << ACTION;

/// What a function asks the switch to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pass it to the next function of the chain, or out at the chain's end.
    Next,
    /// Drop it.
    Drop,
    /// Pass it to a service, whose number is in the upper half of the slot's flags.
    Service,
    /// Send it to the port whose number is in the metadata.
    Port,
}

/// The metadata of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata(u64);

impl Metadata {
    /// The bits that a decision inside a chain depends on, unless it is a choice by hash.
    pub const DECISION_MASK: u64 = !(HASH | PORT_MASK);
    /// The bits that a frame's way out of a chain depends on.
    pub const EXIT_MASK: u64 = !HASH;

    /// Metadata for a function that wants its frame dropped as one with a bad action, although the
    /// frame is in no chain: the chain with the highest number never exists.
    pub const BAD_ACTION: Self = Self(VALID | 0xff << CHAIN | 2 << ACTION);

    /// The metadata in a slot's word, valid or not.
    #[inline]
    #[must_use]
    pub const fn new(word: u64) -> Self {
        Self(word)
    }

    /// The metadata in a slot's word; `None` for a frame that is in no chain.
    #[inline]
    #[must_use]
    pub fn read(word: u64) -> Option<Self> {
        (word & VALID != 0).then_some(Self(word))
    }

    /// The metadata of a frame that enters a chain at its first function. `order` is the number of
    /// the chain's current order of services.
    #[must_use]
    pub fn entering(hash: u32, ingress: PortId, chain: u8, order: u8) -> Self {
        let port = u64::from(ingress.number()) << PORT;
        let order = u64::from(order) << ORDER;
        Self(VALID | u64::from(hash) & HASH | order | port | u64::from(chain) << CHAIN)
    }

    /// The word for a slot.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Whether the frame is in a chain.
    #[inline]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// The hash of the flow, equal in both directions. It is 0 where no choice by hash was needed.
    #[inline]
    #[must_use]
    pub const fn hash(self) -> u32 {
        (self.0 & HASH) as u32
    }

    /// This metadata with another hash, of which the lower 24 bits count. Functions further on
    /// in the chain choose instances by it.
    #[inline]
    #[must_use]
    pub fn with_hash(self, hash: u32) -> Self {
        Self(self.0 & !HASH | u64::from(hash) & HASH)
    }

    /// The number of the order of services that the chain had when the frame entered it.
    #[inline]
    #[must_use]
    pub const fn order(self) -> u8 {
        (self.0 >> ORDER & 0xff) as u8
    }

    /// The port by which the frame entered, or to which it is to go.
    #[inline]
    #[must_use]
    pub fn port(self) -> PortId {
        PortId::from_low_bits(self.0 >> PORT)
    }

    /// This metadata with another port.
    #[inline]
    #[must_use]
    pub fn with_port(self, port: PortId) -> Self {
        Self(self.0 & !PORT_MASK | u64::from(port.number()) << PORT)
    }

    /// The number of the chain.
    #[inline]
    #[must_use]
    pub const fn chain(self) -> usize {
        (self.0 >> CHAIN & 0xff) as usize
    }

    /// The position in the chain of the function that the frame is at.
    #[inline]
    #[must_use]
    pub const fn position(self) -> usize {
        (self.0 >> POSITION & 7) as usize
    }

    /// The number of functions that the frame has passed before this one.
    #[inline]
    #[must_use]
    pub const fn hops(self) -> u64 {
        self.0 >> HOPS & HOPS_MAX
    }

    /// Whether the frame may pass to a further function.
    #[inline]
    #[must_use]
    pub const fn may_hop(self) -> bool {
        self.hops() < HOPS_MAX
    }

    /// The metadata that the function at `position` receives: one more hop, and no action.
    #[inline]
    #[must_use]
    pub fn moved(self, position: usize) -> Self {
        let fields = 7 << POSITION | HOPS_MAX << HOPS | ACTION_MASK;
        let hops = (self.hops() + 1).min(HOPS_MAX);
        Self(self.0 & !fields | (position as u64 & 7) << POSITION | hops << HOPS)
    }

    /// Whether a function made a new frame of this one, which may leave by the port it entered by.
    #[inline]
    #[must_use]
    pub const fn is_turned(self) -> bool {
        self.0 & TURNED != 0
    }

    /// This metadata for a frame that may leave by the port by which it entered, such as one that a
    /// router has rewritten.
    #[inline]
    #[must_use]
    pub const fn turned(self) -> Self {
        Self(self.0 | TURNED)
    }

    /// What the function asks for.
    #[inline]
    #[must_use]
    pub const fn action(self) -> Action {
        match self.0 >> ACTION & 3 {
            0 => Action::Next,
            1 => Action::Drop,
            2 => Action::Service,
            _ => Action::Port,
        }
    }

    /// This metadata with another action.
    #[inline]
    #[must_use]
    pub const fn with_action(self, action: Action) -> Self {
        let code = match action {
            Action::Next => 0,
            Action::Drop => 1,
            Action::Service => 2,
            Action::Port => 3,
        };
        Self(self.0 & !ACTION_MASK | code << ACTION)
    }

    /// Valid metadata that asks for the frame to go to a port, also for a frame in no chain.
    #[inline]
    #[must_use]
    pub fn to_port(self, port: PortId) -> Self {
        let to = self.with_port(port).with_action(Action::Port);
        Self(to.0 | VALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u64) -> PortId {
        PortId::from_low_bits(number)
    }

    #[test]
    fn test_fields_do_not_touch_each_other() {
        let port = PortId::new(0xabc).unwrap();
        let meta = Metadata::entering(0xdead_beef, port, 0x9e, 0x77);
        let moved = meta.moved(5).moved(3);
        assert_eq!((moved.hash(), moved.port(), moved.chain()), (0xad_beef, port, 0x9e));
        assert_eq!(moved.order(), 0x77);
        assert_eq!((moved.position(), moved.hops(), moved.action()), (3, 2, Action::Next));
        assert_eq!(Metadata::read(0), None);
    }

    #[test]
    fn test_any_word_is_in_range() {
        for bits in [u64::MAX, VALID, VALID | 0x5555_5555_5555_5555] {
            let meta = Metadata::read(bits).unwrap();
            assert!(meta.position() < POSITIONS && meta.hops() <= HOPS_MAX);
            assert!(meta.moved(7).hops() <= HOPS_MAX);
        }
    }

    #[test]
    fn test_fields_are_where_the_specification_has_them() {
        let word = 0x8000_0000_0000_0000 | 5 << 52 | 9 << 44 | 0x123 << 32 | 0xdead_beef;
        let meta = Metadata::new(word);
        assert!(meta.is_valid());
        assert_eq!((meta.hash(), meta.order(), meta.port()), (0xad_beef, 0xde, port(0x123)));
        assert_eq!((meta.chain(), meta.position()), (9, 5));
        assert_eq!(meta.to_port(port(0xabc)).word() >> 32 & 0xfff, 0xabc);
        assert_eq!(meta.with_action(Action::Drop).word() >> 60 & 3, 1);
        assert_eq!(meta.with_action(Action::Drop).with_action(Action::Next), meta);
        assert_eq!(meta.with_action(Action::Service).word() >> 60, 8 | 2);
        assert!(Metadata::default().to_port(port(1)).is_valid());
        assert!(Metadata::BAD_ACTION.is_valid() && Metadata::BAD_ACTION.chain() == 255);
        let other = meta.turned().with_hash(0x700_0007);
        assert_eq!((other.hash(), other.order()), (7, 0xde));
    }

    #[test]
    fn test_every_action_is_read_as_it_was_written() {
        for action in [Action::Next, Action::Drop, Action::Service, Action::Port] {
            assert_eq!(Metadata::new(u64::MAX).with_action(action).action(), action);
            assert_eq!(Metadata::new(0).with_action(action).action(), action);
        }
    }

    #[test]
    fn test_the_next_function_receives_one_more_hop_and_no_action() {
        let word = 0x8000_0000_0000_0000 | 3 << 55 | 5 << 52 | 9 << 44 | 0x123 << 32 | 1;
        let meta = Metadata::new(word);
        let next = meta.with_action(Action::Drop).moved(meta.position() + 1);
        assert_eq!((next.position(), next.chain()), (6, 9));
        assert_eq!((next.port(), next.hash()), (port(0x123), 1));
        assert_eq!((next.word() >> 55 & 31, next.word() >> 60), (4, 8));
        assert!(next.may_hop());
        assert!(!Metadata::new(meta.word() | 31 << 55).may_hop());
    }
}
