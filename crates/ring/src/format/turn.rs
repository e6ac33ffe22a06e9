//! Turns: the syncs of one netmap ring come one after the other.
//!
//! # Theory of operation
//!
//! A sync loads several words of a ring, decides, and stores some of them. Threads and processes
//! that hold the same ring may sync it at the same time. So each sync takes a *turn*: it counts up
//! a word of the ring, which is odd while a sync has the turn.
//!
//! ```text
//!            take            drop
//!    0 free ──────► 1 held ────────► 2 free
//!                     │
//!                     └────────────► 3 held by another ────► 4 free
//!                      stood still
//! ```
//!
//! *No sync waits for ever.* A process may be killed or stopped in its turn, and the handler of a
//! signal may sync inside of a sync. So where the number stands still for `PATIENCE` looks, the
//! next sync takes the turn all the same: after some 30 ms, or more where its core is busy. While
//! the number changes, others are at work, and it waits on. But a neighbour may write any number:
//! after `LOOKS` looks, some 0.4 s, it waits no longer.
//!
//! A sync that was only slow, and so has lost its turn, finds that out ([`SyncTurn::is_held`])
//! before it publishes or starts over, and gives nothing back. What is left is the instant behind
//! that look: a sync that is stopped there may still publish too much, or start over. Only the
//! ring's own frames suffer.
//!
//! | word | writers and readers | ordering |
//! |---|---|---|
//! | `NetmapRing::turn` | syncs of the ring | taken with Acquire, given back with Release |
//!
//! A child of `fork` has nothing to give back: the word is shared, and the thread of the parent
//! that has the turn gives it back. The model at the end of this file checks with loom that an
//! honest program's ring is in order in each turn.

use crate::format::atomic::{AtomicU32, Ordering};

/// Looks at one number before its holder is taken for dead.
const PATIENCE: u32 = 384;
/// Looks in all.
const LOOKS: u32 = 4096;

/// The turn to sync a ring, until dropped.
#[derive(Debug)]
#[must_use]
pub struct SyncTurn<'a> {
    word: &'a AtomicU32,
    number: u32,
}

impl<'a> SyncTurn<'a> {
    /// Waits until no other sync has the turn, and takes it.
    #[inline]
    pub fn take(word: &'a AtomicU32) -> Self {
        let there = word.load(Ordering::Relaxed);
        if there.is_multiple_of(2)
            && let Some(turn) = Self::claim(word, there)
        {
            return turn;
        }
        Self::wait(word)
    }

    /// Whether no other sync has taken the turn from this one.
    #[inline]
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }

    /// Takes the turn, free or not, if the word still holds `there`.
    #[inline]
    fn claim(word: &'a AtomicU32, there: u32) -> Option<Self> {
        let number = next_odd(there);
        // Acquire: pairs with the Release of the last holder's drop.
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        word.compare_exchange(there, number, order, failed).ok().map(|_| Self { word, number })
    }

    /// Waits, but not for ever.
    #[cold]
    fn wait(word: &'a AtomicU32) -> Self {
        let (mut seen, mut since) = (0, 0);
        for looks in 0..LOOKS {
            let there = word.load(Ordering::Relaxed);
            if there != seen {
                (seen, since) = (there, looks);
            }
            let may_take = there.is_multiple_of(2) || looks - since >= PATIENCE;
            if may_take && let Some(turn) = Self::claim(word, there) {
                return turn;
            }
            pause(looks);
        }
        let number = next_odd(seen);
        word.swap(number, Ordering::Acquire);
        Self { word, number }
    }
}

impl Drop for SyncTurn<'_> {
    #[inline]
    fn drop(&mut self) {
        let free = self.number.wrapping_add(1);
        // Release: pairs with the Acquire of the next holder. Where this fails, the turn is another
        // sync's.
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.word.compare_exchange(self.number, free, order, failed);
    }
}

#[inline]
fn next_odd(number: u32) -> u32 {
    number.wrapping_add(1) | 1
}

/// Lets the holder go on, after so many looks.
#[cfg(not(loom))]
fn pause(looks: u32) {
    match looks {
        // Most syncs take less than a microsecond.
        ..64 => core::hint::spin_loop(),
        // The holder may be waiting for this core.
        64..128 => rustix::thread::sched_yield(),
        // The holder may have a lower priority. The raw call is no point of cancellation.
        _ => {
            let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 };
            let _ = rustix::thread::nanosleep(&nap);
        }
    }
}

#[cfg(loom)]
fn pause(_looks: u32) {
    loom::thread::yield_now();
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_turn_is_given_back_as_the_next_even_number() {
        let word = AtomicU32::new(u32::MAX - 1);
        for number in [u32::MAX, 1, 3] {
            let turn = SyncTurn::take(&word);
            assert!(turn.is_held());
            assert_eq!(word.load(Ordering::Relaxed), number);
        }
        assert_eq!(word.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn the_turn_of_a_dead_holder_is_taken_and_stays_taken() {
        let word = AtomicU32::new(0);
        let dead = SyncTurn::take(&word);
        let turn = SyncTurn::take(&word);
        assert!(turn.is_held() && !dead.is_held());
        drop(dead);
        assert!(turn.is_held());
        drop(turn);
        assert_eq!(word.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_neighbour_that_writes_the_word_delays_a_sync_and_does_not_stop_it() {
        let (word, stop) = (AtomicU32::new(1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    word.fetch_add(2, Ordering::Relaxed);
                }
            });
            while word.load(Ordering::Relaxed) == 1 {
                std::thread::yield_now();
            }
            drop(SyncTurn::take(&word));
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[cfg(all(test, loom))]
mod models;
