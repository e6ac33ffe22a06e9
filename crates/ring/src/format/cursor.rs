//! Arithmetic of ring indexes, as netmap has them.
//!
//! An index is a slot's position, `0..n`; a count is a distance. One slot of a ring is always
//! empty, so that equal indexes mean "empty" and the greatest distance is `n - 1`. A number that a
//! peer wrote becomes an [`Index`] only by [`RingSize::check`]: an `Index` is always in range.

/// Position of a slot, always below the [`RingSize`] that it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(u32);

impl Index {
    /// The first slot.
    pub const ZERO: Self = Self(0);

    /// The number itself.
    #[inline(always)]
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number as an array position.
    #[inline(always)]
    #[must_use]
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// Number of slots of a ring, by which its indexes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize(u32);

impl RingSize {
    /// Fewest slots of a ring.
    pub const MIN: u32 = 8;
    /// Most slots of a ring; netmap's limit for its ring objects is of this order.
    pub const MAX: u32 = 16_384;

    /// A ring of `slots` slots; `None` outside [`RingSize::MIN`]..=[`RingSize::MAX`].
    #[must_use]
    pub fn new(slots: u32) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&slots).then_some(Self(slots))
    }

    /// Number of slots.
    #[inline(always)]
    #[must_use]
    pub fn slots(self) -> u32 {
        self.0
    }

    /// An index that a peer wrote; `None` if no slot has it.
    #[inline(always)]
    #[must_use]
    pub fn check(self, raw: u32) -> Option<Index> {
        (raw < self.0).then_some(Index(raw))
    }

    /// The slot after `i`.
    #[inline(always)]
    #[must_use]
    pub fn next(self, i: Index) -> Index {
        debug_assert!(i.0 < self.0, "an index of a ring of this size");
        let next = i.0 + 1;
        Index(if next == self.0 { 0 } else { next })
    }

    /// The slot before `i`.
    #[inline(always)]
    #[must_use]
    pub fn prev(self, i: Index) -> Index {
        Index(if i.0 == 0 { self.0 - 1 } else { i.0 - 1 })
    }

    /// The slot `count` after `i`; `count` is below the number of slots.
    #[inline(always)]
    #[must_use]
    pub fn add(self, i: Index, count: u32) -> Index {
        debug_assert!(i.0 < self.0 && count < self.0);
        let sum = i.0 + count;
        Index(if sum >= self.0 { sum - self.0 } else { sum })
    }

    /// Steps from `from` forward to `to`, `0..n`.
    #[inline(always)]
    #[must_use]
    pub fn distance(self, from: Index, to: Index) -> u32 {
        debug_assert!(from.0 < self.0 && to.0 < self.0);
        if to.0 >= from.0 { to.0 - from.0 } else { to.0 + self.0 - from.0 }
    }

    /// Whether `x` is in the cyclic interval from `from` to `to`, both included.
    #[inline(always)]
    #[must_use]
    pub fn contains(self, from: Index, to: Index, x: Index) -> bool {
        self.distance(from, x) <= self.distance(from, to)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span_and_two() -> impl Strategy<Value = (RingSize, Index, Index)> {
        (RingSize::MIN..=RingSize::MAX)
            .prop_flat_map(|n| (Just(RingSize(n)), (0..n).prop_map(Index), (0..n).prop_map(Index)))
    }

    proptest! {
        #[test]
        fn next_and_prev_are_inverse((n, i, _) in span_and_two()) {
            prop_assert_eq!(n.prev(n.next(i)), i);
            prop_assert_eq!(n.next(n.prev(i)), i);
        }

        #[test]
        fn adding_the_distance_arrives((n, a, b) in span_and_two()) {
            prop_assert_eq!(n.add(a, n.distance(a, b)), b);
            prop_assert!(n.distance(a, b) < n.slots());
        }

        #[test]
        fn check_accepts_exactly_the_slots(n in RingSize::MIN..=RingSize::MAX, raw: u32) {
            prop_assert_eq!(RingSize(n).check(raw).is_some(), raw < n);
        }

        #[test]
        fn contains_is_the_walk_from_start_to_end((n, a, b) in span_and_two(), steps in 0u32..64) {
            let x = n.add(a, steps % n.slots());
            prop_assert_eq!(n.contains(a, b, x), steps % n.slots() <= n.distance(a, b));
        }
    }

    #[test]
    fn spans_have_limits() {
        assert!(RingSize::new(RingSize::MIN - 1).is_none());
        assert!(RingSize::new(RingSize::MAX + 1).is_none());
        assert_eq!(RingSize::new(1000).map(RingSize::slots), Some(1000));
    }
}
