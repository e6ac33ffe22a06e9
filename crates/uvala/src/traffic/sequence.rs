//! Which frames of a stream are missing, late, or there twice.
//!
//! The last [`WINDOW`] numbers below the highest one are remembered, a bit each: a late frame is
//! told from a second copy there. Beyond the window the two look the same, and count as copies. A
//! stream begins with the first number seen; who listens late has lost nothing.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// How late a frame may be, in frames.
pub const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

/// What happened to the frames of a stream, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Numbers between the first and the highest one that never came.
    pub lost: u64,
    /// Frames that came after one with a higher number.
    pub reordered: u64,
    /// Frames that came before already.
    pub duplicates: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
    }
}

/// One stream.
#[derive(Clone, Debug)]
pub struct Checker {
    first: u64,
    next: u64,
    /// Bit `n % WINDOW`: was `n` seen? For the numbers of the window below `next`.
    seen: [u64; WORDS],
    tally: Tally,
}

impl Checker {
    /// A stream whose first frame has this number.
    pub fn new(first: u64) -> Self {
        Self { first, next: first, seen: [0; WORDS], tally: Tally::default() }
    }

    /// Takes note of a frame.
    #[inline]
    pub fn note(&mut self, number: u64) {
        if number < self.next {
            return self.note_late(number);
        }
        if number > self.next {
            self.skip_to(number);
        }
        self.mark(number);
        self.next = number + 1;
    }

    /// What has happened so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    #[cold]
    fn note_late(&mut self, number: u64) {
        if self.next - number > WINDOW || self.is_seen(number) {
            self.tally.duplicates += 1;
            return;
        }
        self.mark(number);
        self.tally.reordered += 1;
        if number >= self.first {
            self.tally.lost -= 1;
        }
    }

    #[cold]
    fn skip_to(&mut self, number: u64) {
        let gap = number - self.next;
        self.tally.lost += gap;
        if gap >= WINDOW {
            self.seen = [0; WORDS];
        } else {
            (self.next..number).for_each(|skipped| self.unmark(skipped));
        }
    }

    fn is_seen(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.seen[word] & bit != 0
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] |= bit;
    }

    fn unmark(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] &= !bit;
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    (usize::try_from(at / 64).expect("less than the window"), 1 << (at % 64))
}

/// All streams that arrive at a port.
#[derive(Debug, Default)]
pub struct Streams {
    /// The stream of the last frame: nearly always that of the next one.
    current: Option<(u16, Checker)>,
    others: HashMap<u16, Checker>,
}

impl Streams {
    /// Takes note of a frame.
    #[inline]
    pub fn note(&mut self, stream: u16, number: u64) {
        match &mut self.current {
            Some((current, checker)) if *current == stream => checker.note(number),
            _ => self.change(stream, number),
        }
    }

    fn change(&mut self, stream: u16, number: u64) {
        if let Some((stream, checker)) = self.current.take() {
            self.others.insert(stream, checker);
        }
        let mut checker = self.others.remove(&stream).unwrap_or_else(|| Checker::new(number));
        checker.note(number);
        self.current = Some((stream, checker));
    }

    /// How many streams there are.
    pub fn count(&self) -> usize {
        self.others.len() + usize::from(self.current.is_some())
    }

    /// What happened to all of them.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        let current = self.current.iter().map(|(_, checker)| checker);
        current.chain(self.others.values()).for_each(|checker| all += checker.tally());
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The same by remembering everything.
    fn model(numbers: &[u64]) -> Tally {
        let mut tally = Tally::default();
        let mut seen = HashSet::new();
        let mut highest = None;
        for &number in numbers {
            let late = highest.is_some_and(|highest| number < highest);
            let too_late = highest.is_some_and(|highest| number + WINDOW <= highest);
            if too_late || seen.contains(&number) {
                tally.duplicates += 1;
                continue;
            }
            seen.insert(number);
            tally.reordered += u64::from(late);
            highest = highest.max(Some(number));
        }
        if let (Some(&first), Some(highest)) = (numbers.first(), highest) {
            tally.lost = (first..=highest).filter(|number| !seen.contains(number)).count() as u64;
        }
        tally
    }

    #[track_caller]
    fn check(numbers: &[u64], expected: Tally) {
        let mut streams = Streams::default();
        numbers.iter().for_each(|&number| streams.note(7, number));
        assert_eq!(streams.tally(), expected);
        assert_eq!(model(numbers), expected);
    }

    #[test]
    fn test_in_order_is_clean() {
        check(&[5, 6, 7, 8], Tally::default());
    }

    #[test]
    fn test_loss_reorder_and_copies_are_told_apart() {
        check(&[0, 1, 4], Tally { lost: 2, ..Tally::default() });
        check(&[0, 2, 1, 3], Tally { reordered: 1, ..Tally::default() });
        check(&[0, 1, 1, 2], Tally { duplicates: 1, ..Tally::default() });
        check(&[10, 9, 11], Tally { reordered: 1, ..Tally::default() });
        check(&[0, 5000, 1], Tally { lost: 4999, duplicates: 1, reordered: 0 });
    }

    #[test]
    fn test_streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for (stream, number) in [(1, 0), (2, 100), (1, 1), (2, 101), (2, 103)] {
            streams.note(stream, number);
        }
        assert_eq!(streams.count(), 2);
        assert_eq!(streams.tally(), Tally { lost: 1, ..Tally::default() });
    }

    proptest! {
        #[test]
        fn test_checker_agrees_with_the_model(
            steps in prop::collection::vec((0u64..40, -30i64..2000), 1..400),
        ) {
            // Mostly forward, sometimes back, sometimes far ahead.
            let mut at = 3000_u64;
            let numbers: Vec<u64> = steps.iter().map(|&(kind, jump)| {
                at = if kind < 30 { at + 1 } else { at.saturating_add_signed(jump % 50) };
                if kind == 39 { at += jump.unsigned_abs(); }
                if kind == 38 { at.saturating_sub(jump.unsigned_abs()) } else { at }
            }).collect();
            let mut checker = Checker::new(numbers[0]);
            numbers.iter().for_each(|&number| checker.note(number));
            prop_assert_eq!(checker.tally(), model(&numbers));
        }
    }
}
