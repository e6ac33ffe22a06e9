//! A sequence counter: a reader without a lock finds out that a writer was at work.
//!
//! # Theory of operation
//!
//! The counter is odd while a writer changes the data, and each change leaves another even number
//! (Linux calls this a seqcount). A reader that finds the same even number before and after has
//! seen the data of one moment. Data are atomics that are loaded and stored Relaxed.
//!
//! ```text
//!   writer                             reader
//!   STORE counter = n + 1 (odd)        LOAD  counter (Acquire): even, or give up
//!   fence Release          ◄────────►  LOAD  data
//!   STORE data                         fence Acquire
//!   STORE counter = n + 2 (Release)    LOAD  counter: the same, or give up
//! ```
//!
//! A reader that has loaded a word of the change sees, behind the two fences, at least the odd
//! number. Writers come one at a time: the caller has a lock.

use crate::format::atomic::{AtomicU64, Ordering, fence};

/// The counter of data that are read while one writer may change them.
#[derive(Debug)]
pub struct Sequence(AtomicU64);

/// A change, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Change<'a> {
    counter: &'a AtomicU64,
    end: u64,
}

impl Default for Sequence {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sequence {
    /// A number that is another one after each change, and odd during one.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u64 {
        // Acquire: pairs with the Release of the last change's end.
        self.0.load(Ordering::Acquire)
    }

    /// What `read` finds in the data, if no writer was at work meanwhile. Otherwise it may have
    /// found parts of different moments.
    #[inline]
    pub fn read<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.number();
        let found = read();
        // Partner: the fence of `change`.
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == before;
        is_whole.then_some(found)
    }

    /// Begins a change of the data.
    #[inline]
    pub fn change(&self) -> Change<'_> {
        let number = self.0.load(Ordering::Relaxed);
        assert!(number.is_multiple_of(2), "writers come one at a time");
        self.0.store(number + 1, Ordering::Relaxed);
        // Partner: the fence of `read`.
        fence(Ordering::Release);
        Change { counter: &self.0, end: number + 2 }
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        self.counter.store(self.end, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_during_a_change_is_refused() {
        let sequence = Sequence::default();
        assert_eq!(sequence.read(|| 1), Some(1));
        let before = sequence.number();
        let change = sequence.change();
        assert_eq!(sequence.read(|| 1), None);
        drop(change);
        assert_ne!(sequence.number(), before);
        assert_eq!(sequence.read(|| 1), Some(1));
        assert_eq!(sequence.read(|| drop(sequence.change())), None, "it began and ended meanwhile");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn a_reader_sees_the_data_of_one_moment() {
        loom::model(|| {
            let data = Arc::new((Sequence::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let writer = {
                let data = data.clone();
                thread::spawn(move || {
                    for number in 1..=2 {
                        let _change = data.0.change();
                        data.1.iter().for_each(|word| word.store(number, Ordering::Relaxed));
                    }
                })
            };
            let look = || [0, 1].map(|at: usize| data.1[at].load(Ordering::Relaxed));
            if let Some([first, second]) = data.0.read(look) {
                assert_eq!(first, second);
            }
            writer.join().unwrap();
            assert_eq!(data.0.read(look), Some([2, 2]));
        });
    }
}
