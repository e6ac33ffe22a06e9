//! What travels with a frame from function to function: a slot's [mark](ring::metadata).
//!
//! ```text
//!  63    62     60 59   55 54  52 51   44 43       32 31   24 23            0
//! ┌────┬──────┬───┬───────┬──────┬───────┬───────────┬───────┬───────────────┐
//! │ 1  │turned│act│ hops  │ pos  │ chain │ port      │ order │ flow hash     │
//! └────┴──────┴───┴───────┴──────┴───────┴───────────┴───────┴───────────────┘
//! ```
//!
//! To a function, `port` is the one by which the frame came in, or that of the function which has
//! sent it to this instance; from it, with the action `port`, the one to go to. A mark of 0 is
//! none. `docs/spec/frame-metadata.md` tells functions the same.
//!
//! Every value of every field is legal: what a function writes can send its own frames astray, to
//! where its operator lets functions send frames, and nothing else.

/// Longest chain.
pub const POSITIONS: usize = 8;
/// Most functions that a frame passes, whatever they ask for.
pub const HOPS_MAX: u64 = 31;

const HASH: u64 = 0xff_ffff;
const ORDER: u32 = 24;
const PORT: u32 = 32;
const CHAIN: u32 = 44;
const POSITION: u32 = 52;
const HOPS: u32 = 55;
const ACTION: u32 = 60;
const TURNED: u64 = 1 << 62;
const VALID: u64 = 1 << 63;

/// What a function wants done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The next function of the chain, or its end.
    Next,
    /// Nowhere.
    Drop,
    /// To the service whose number is in the upper half of the slot's flags.
    Service,
    /// To a port, by its number in the switch.
    Port,
}

/// The metadata of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(u64);

impl Meta {
    /// The bits that a decision inside a chain depends on, unless it is a choice by hash.
    pub(crate) const DECISION: u64 = !(HASH | 0xfff << PORT);
    /// Those that its way out of one depends on.
    pub(crate) const WAY_OUT: u64 = !HASH;

    /// Of a frame that enters a chain, which has this order now.
    #[must_use]
    pub fn entering(hash: u32, ingress: PortId, chain: u8, order: u8) -> Self {
        let port = u64::from(ingress.number()) << PORT;
        let order = u64::from(order) << ORDER;
        Self(VALID | u64::from(hash) & HASH | order | port | u64::from(chain) << CHAIN)
    }

    /// What a mark says, if it says anything.
    #[inline]
    #[must_use]
    pub fn of(mark: u64) -> Option<Self> {
        (mark & VALID != 0).then_some(Self(mark))
    }

    /// The mark.
    #[inline]
    #[must_use]
    pub fn mark(self) -> u64 {
        self.0
    }

    /// The flow's hash, the same in both directions; 0 where nobody needed it.
    #[inline]
    #[must_use]
    pub fn hash(self) -> u32 {
        (self.0 & HASH) as u32
    }

    /// The number of the order of services that the chain had when the frame entered it.
    #[inline]
    #[must_use]
    pub fn order(self) -> u8 {
        (self.0 >> ORDER & 0xff) as u8
    }

    /// The port that the frame came in by, or is to go to.
    #[inline]
    #[must_use]
    pub fn port(self) -> PortId {
        PortId::from_low_bits(self.0 >> PORT)
    }

    /// The chain's number.
    #[inline]
    #[must_use]
    pub fn chain(self) -> usize {
        (self.0 >> CHAIN & 0xff) as usize
    }

    /// Where in the chain.
    #[inline]
    #[must_use]
    pub fn position(self) -> usize {
        (self.0 >> POSITION & 7) as usize
    }

    /// Functions that it has been to before.
    #[inline]
    #[must_use]
    pub fn hops(self) -> u64 {
        self.0 >> HOPS & HOPS_MAX
    }

    /// May it leave by the port that it came by? The function has made another frame of it.
    #[inline]
    #[must_use]
    pub fn is_turned(self) -> bool {
        self.0 & TURNED != 0
    }

    /// What is wanted.
    #[inline]
    #[must_use]
    pub fn wish(self) -> Wish {
        match self.0 >> ACTION & 3 {
            0 => Wish::Next,
            1 => Wish::Drop,
            2 => Wish::Service,
            _ => Wish::Port,
        }
    }

    /// The same as a frame of this port.
    #[inline]
    #[must_use]
    pub fn from(self, port: PortId) -> Self {
        Self(self.0 & !(0xfff << PORT) | u64::from(port.number()) << PORT)
    }

    /// The same at another position, one hop on, with nothing wished for.
    #[inline]
    #[must_use]
    pub fn moved(self, position: usize) -> Self {
        let fields = 7 << POSITION | HOPS_MAX << HOPS | 3 << ACTION;
        let hops = (self.hops() + 1).min(HOPS_MAX);
        Self(self.0 & !fields | (position as u64 & 7) << POSITION | hops << HOPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_fields_do_not_touch_each_other() {
        let port = PortId::new(0xabc).unwrap();
        let meta = Meta::entering(0xdead_beef, port, 0x9e, 0x77);
        let moved = meta.moved(5).moved(3);
        assert_eq!((moved.hash(), moved.port(), moved.chain()), (0xad_beef, port, 0x9e));
        assert_eq!(moved.order(), 0x77);
        assert_eq!((moved.position(), moved.hops(), moved.wish()), (3, 2, Wish::Next));
        assert_eq!(Meta::of(0), None);
    }

    #[test]
    fn test_any_mark_is_in_range() {
        for bits in [u64::MAX, VALID, VALID | 0x5555_5555_5555_5555] {
            let meta = Meta::of(bits).unwrap();
            assert!(meta.position() < POSITIONS && meta.hops() <= HOPS_MAX);
            assert!(meta.moved(7).hops() <= HOPS_MAX);
        }
    }
}
use packet::PortId;
