//! What stands in a frame's slot, as `docs/spec/frame-metadata.md` has it.

use super::Action;

const HASH: u64 = 0xff_ffff;
const ORDER: u32 = 24;
const PORT: u32 = 32;
const CHAIN: u32 = 44;
const POSITION: u32 = 52;
const HOPS: u32 = 55;
const HOPS_MAX: u64 = 31;
const ACTION: u32 = 60;
const TURNED: u64 = 1 << 62;
const VALID: u64 = 1 << 63;

/// What the switch says of a frame, and is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta(u64);

impl Meta {
    /// Of a slot.
    #[must_use]
    pub fn new(mark: u64) -> Self {
        Self(mark)
    }

    /// For a slot.
    #[must_use]
    pub fn mark(self) -> u64 {
        self.0
    }

    /// Is the frame in a chain?
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// The flow's hash, equal in both directions; 0 where nobody needed it.
    #[must_use]
    pub fn hash(self) -> u32 {
        u32::try_from(self.0 & HASH).expect("24 bits")
    }

    /// Instances further on are chosen by the lower 24 bits of this hash instead.
    #[must_use]
    pub fn with_hash(self, hash: u32) -> Self {
        Self(self.0 & !HASH | u64::from(hash) & HASH)
    }

    /// Number of the order of services that its chain had when the frame entered it.
    #[inline]
    #[must_use]
    pub fn order(self) -> u8 {
        u8::try_from(self.0 >> ORDER & 0xff).expect("8 bits")
    }

    /// Number of the port by which the frame came in.
    #[must_use]
    pub fn ingress(self) -> u16 {
        u16::try_from(self.0 >> PORT & 0xfff).expect("12 bits")
    }

    /// Number of its chain.
    #[must_use]
    pub fn chain(self) -> u8 {
        u8::try_from(self.0 >> CHAIN & 0xff).expect("8 bits")
    }

    /// Where in the chain this function is.
    #[must_use]
    pub fn position(self) -> u8 {
        u8::try_from(self.0 >> POSITION & 7).expect("3 bits")
    }

    /// May it go on, or has it been to as many functions as there may be?
    #[inline]
    pub(super) fn may_hop(self) -> bool {
        self.0 >> HOPS & HOPS_MAX < HOPS_MAX
    }

    /// As the next function of the chain gets it from the switch.
    #[inline]
    pub(super) fn at_next(self) -> Self {
        let position = (u64::from(self.position()) + 1) & 7;
        let hops = (self.0 >> HOPS & HOPS_MAX) + 1;
        let kept = self.0 & !(7 << POSITION | HOPS_MAX << HOPS | 3 << ACTION);
        Self(kept | position << POSITION | hops.min(HOPS_MAX) << HOPS)
    }

    /// It is another frame now: it may leave by the port by which it came.
    #[must_use]
    pub fn turned(self) -> Self {
        Self(self.0 | TURNED)
    }

    /// With what is to become of the frame.
    #[inline]
    pub(super) fn with(self, action: Action) -> Self {
        let plain = self.0 & !(3 << ACTION);
        let to = |port: u16| plain & !(0xfff << PORT) | u64::from(port & 0xfff) << PORT;
        Self(match action {
            // Of a frame that is in no chain, in one that there never is.
            Action::NONE if !self.is_valid() => VALID | 0xff << CHAIN | 2 << ACTION,
            Action::Next | Action::Hold => plain,
            Action::Drop => plain | 1 << ACTION,
            Action::Service(_) => plain | 2 << ACTION,
            Action::Port(port) => VALID | to(port) | 3 << ACTION,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_fields_are_where_the_specification_has_them() {
        let meta = Meta::new(0x8000_0000_0000_0000 | 5 << 52 | 9 << 44 | 0x123 << 32 | 0xdead_beef);
        assert!(meta.is_valid());
        assert_eq!((meta.hash(), meta.order(), meta.ingress()), (0xad_beef, 0xde, 0x123));
        assert_eq!((meta.chain(), meta.position()), (9, 5));
        assert_eq!(meta.with(Action::Port(0xabc)).mark() >> 32 & 0xfff, 0xabc);
        assert_eq!(meta.with(Action::Drop).mark() >> 60 & 3, 1);
        assert_eq!(meta.with(Action::Drop).with(Action::Next), meta);
        assert_eq!(meta.with(Action::NONE).mark() >> 60, 8 | 2);
        let lost = Meta::default().with(Action::NONE);
        assert!(lost.is_valid() && lost.chain() == 255, "it does not leave by its address");
        assert_eq!(Action::Port(0x1000).told(), Action::NONE);
        assert_eq!(Action::Port(0xfff).told(), Action::Port(0xfff));
        let other = meta.turned().with_hash(0x700_0007);
        assert_eq!((other.hash(), other.order()), (7, 0xde));
    }

    #[test]
    fn test_a_direct_hop_says_what_the_switch_would() {
        let meta = Meta::new(0x8000_0000_0000_0000 | 3 << 55 | 5 << 52 | 9 << 44 | 0x123 << 32 | 1);
        let next = meta.with(Action::Drop).at_next();
        assert_eq!((next.position(), next.chain(), next.ingress(), next.hash()), (6, 9, 0x123, 1));
        assert_eq!((next.mark() >> 55 & 31, next.mark() >> 60), (4, 8));
        assert!(next.may_hop());
        assert!(!Meta::new(meta.mark() | 31 << 55).may_hop());
    }
}
