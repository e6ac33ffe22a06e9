//! Turns: threads that change one thing, one after the other.
//!
//! There is no waiting in the kernel: a child of `fork` would wait there for a thread that it does
//! not have. A child gives all turns back ([`Turn::give_back`]).

use std::sync::atomic::{AtomicBool, Ordering};

/// A turn, until dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// Waits until no other thread has `busy`, and takes it.
    #[must_use]
    pub fn take(busy: &'a AtomicBool) -> Self {
        while busy.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        Self(busy)
    }

    /// In the child of a `fork`: the thread that had the turn is not here.
    pub fn give_back(busy: &AtomicBool) {
        busy.store(false, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
