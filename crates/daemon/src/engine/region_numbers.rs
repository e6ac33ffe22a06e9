//! Numbers of regions: netmap's `nr_mem_id`.
//!
//! libnetmap keeps a region mapped until its last port is unmapped, and takes a region of the same
//! number for the same memory. A program that closes a port and keeps its mapping would send into
//! memory that no port has any more. So a number comes again only after all others have been used,
//! and the first one is drawn by lot: the mapping may be from before a restart of the daemon.

/// The lowest number; 1 is netmap's common region, 0 none.
const FIRST: u16 = 2;
/// The first number is below this one: the higher ones are free in every daemon that has made few
/// regions.
const FIRST_BELOW: u64 = 1 << 15;

/// The number to look at next.
#[derive(Debug)]
pub(super) struct RegionNumbers(u16);

impl RegionNumbers {
    pub(super) fn new(seed: u64) -> Self {
        let lot = seed % (FIRST_BELOW - u64::from(FIRST));
        Self(FIRST + u16::try_from(lot).expect("below the limit"))
    }

    /// The number that has not been used for the longest time, among those that no region has.
    pub(super) fn next(&self, is_used: impl Fn(u16) -> bool) -> Option<u16> {
        (self.0..=u16::MAX).chain(FIRST..self.0).find(|number| !is_used(*number))
    }

    /// `number` is a region's.
    pub(super) fn advance(&mut self, number: u16) {
        self.0 = number.checked_add(1).unwrap_or(FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_again_after_all_others() {
        let mut numbers = RegionNumbers::new(u64::MAX);
        let mut draw = || {
            let number = numbers.next(|number| number == 7).expect("one is free");
            numbers.advance(number);
            number
        };
        let round: Vec<u16> = (FIRST..u16::MAX).map(|_| draw()).collect();
        let mut sorted = round.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq((FIRST..=u16::MAX).filter(|number| *number != 7)));
        assert_eq!(draw(), round[0]);
    }

    #[test]
    fn there_is_none_where_all_are_used() {
        assert_eq!(RegionNumbers::new(0).next(|_| true), None);
        assert_eq!(RegionNumbers::new(9).next(|number| number != FIRST), Some(FIRST));
    }
}
