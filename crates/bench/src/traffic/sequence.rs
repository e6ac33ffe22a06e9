//! Finds missing, late and duplicate frames in a stream.
//!
//! What is remembered is what has not come: gaps, of consecutive numbers each. A frame whose number
//! is in a gap is late, however late it is; one that is in none came before. Of a stream with more
//! than [`GAPS`] of them the oldest are given up: what comes of such numbers may be either, and
//! counts by itself. A stream begins with the first number seen; a late receiver has lost nothing.
//!
//! ```text
//!        gap              gap       next
//!  ██████░░░░░████████████░░██████████
//! ```

use std::collections::{HashMap, VecDeque};
use std::ops::{AddAssign, Range};

use serde::{Deserialize, Serialize};

/// Most gaps of a stream that are remembered: 256 KiB of them.
pub const GAPS: usize = 16_384;

/// What happened to the frames of a stream, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Numbers between the first and the highest one that never came.
    pub lost: u64,
    /// Frames that came after one with a higher number.
    pub reordered: u64,
    /// Frames that came before already.
    pub duplicates: u64,
    /// Frames that are one or the other, from where gaps were given up.
    pub late_or_twice: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
        self.late_or_twice += other.late_or_twice;
    }
}

/// One stream.
#[derive(Clone, Debug)]
pub struct Checker {
    first: u64,
    next: u64,
    /// In order, and apart; numbers before `first` do not count as lost.
    gaps: VecDeque<Range<u64>>,
    /// Gaps below this one may have been given up.
    known: u64,
    tally: Tally,
}

impl Checker {
    /// A stream whose first frame has this number.
    pub fn new(first: u64) -> Self {
        let before = (first > 0).then_some(0..first);
        let gaps = before.into_iter().collect();
        Self { first, next: first, gaps, known: 0, tally: Tally::default() }
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
        self.next = number.saturating_add(1);
    }

    /// What has happened so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    #[cold]
    fn note_late(&mut self, number: u64) {
        let at = self.gaps.partition_point(|gap| gap.end <= number);
        match self.gaps.get(at) {
            Some(gap) if gap.contains(&number) => {
                self.fill(at, number);
                self.tally.reordered += 1;
                self.tally.lost -= u64::from(number >= self.first);
            }
            _ if number < self.known => self.tally.late_or_twice += 1,
            _ => self.tally.duplicates += 1,
        }
    }

    /// A number of this gap has arrived.
    fn fill(&mut self, at: usize, number: u64) {
        let Range { start, end } = self.gaps[at].clone();
        match (start < number, number + 1 < end) {
            (false, false) => drop(self.gaps.remove(at)),
            (false, true) => self.gaps[at].start = number + 1,
            (true, false) => self.gaps[at].end = number,
            (true, true) => {
                self.gaps[at].end = number;
                self.gaps.insert(at + 1, number + 1..end);
                self.give_up();
            }
        }
    }

    #[cold]
    fn skip_to(&mut self, number: u64) {
        self.tally.lost += number - self.next;
        self.gaps.push_back(self.next..number);
        self.give_up();
    }

    /// The oldest gap, if there are too many.
    fn give_up(&mut self) {
        if self.gaps.len() > GAPS
            && let Some(gap) = self.gaps.pop_front()
        {
            self.known = gap.end;
        }
    }
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

    /// The tally that a model finds, which remembers every number.
    fn model(numbers: &[u64]) -> Tally {
        let mut tally = Tally::default();
        let mut seen = HashSet::new();
        let mut highest = None;
        for &number in numbers {
            if !seen.insert(number) {
                tally.duplicates += 1;
                continue;
            }
            tally.reordered += u64::from(highest.is_some_and(|highest| number < highest));
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
        check(
            &[0, 5000, 1, 1],
            Tally { lost: 4998, duplicates: 1, reordered: 1, ..Tally::default() },
        );
    }

    /// What an instance held that stalled: a ring of frames, behind millions that went elsewhere.
    #[test]
    fn test_frames_are_late_and_not_doubled_however_late_they_are() {
        let held = 1000..2024_u64;
        let mut checker = Checker::new(0);
        (0..10_000_000).filter(|number| !held.contains(number)).for_each(|it| checker.note(it));
        assert_eq!(checker.tally(), Tally { lost: 1024, ..Tally::default() });
        held.clone().for_each(|number| checker.note(number));
        assert_eq!(checker.tally(), Tally { reordered: 1024, ..Tally::default() });
        held.for_each(|number| checker.note(number));
        let all = Tally { reordered: 1024, duplicates: 1024, ..Tally::default() };
        assert_eq!(checker.tally(), all);
    }

    #[test]
    fn test_more_gaps_than_are_remembered_are_either() {
        let count = GAPS as u64 + 10;
        let mut checker = Checker::new(0);
        (0..=count).for_each(|number| checker.note(number * 2));
        assert_eq!(checker.gaps.len(), GAPS);
        // Late, the one before the ten oldest that were given up; a copy; late, of the newest.
        for number in [1, 0, count * 2, count * 2 - 1] {
            checker.note(number);
        }
        let lost = count - 1;
        assert_eq!(checker.tally(), Tally { lost, reordered: 1, duplicates: 1, late_or_twice: 2 });
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
