//! What the machines of one user may take of what all share.
//!
//! A daemon has 128 TiB of addresses, so many descriptors, and a [table](ring::guest::lost) of so
//! many mappings. Machines say by messages what they take of these, long after control has made
//! their port; so what a user's ports have taken together is counted here, and each of them gives
//! back what it has let go:
//!
//! ```text
//!   port, eventfd, memory region ──► take ──► Charge, kept beside what it stands for
//!                                     │          └── dropped: given back
//!                                     └── Spent: refused, with the setting that says so
//! ```
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | `taken` | threads of the user's ports, control | the same | Relaxed: no data depends on it |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What there is an end to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Good {
    /// Addresses that memory is mapped at.
    Bytes,
    /// Mappings of memory.
    Regions,
    /// Open files.
    Descriptors,
}

/// How much of each a user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that is lent.
    pub bytes: u64,
    /// Mappings of it.
    pub regions: u64,
    /// Open files.
    pub descriptors: u64,
}

impl Limits {
    /// No end.
    pub const NONE: Self = Self { bytes: u64::MAX, regions: u64::MAX, descriptors: u64::MAX };

    fn of(&self, good: Good) -> u64 {
        match good {
            Good::Bytes => self.bytes,
            Good::Regions => self.regions,
            Good::Descriptors => self.descriptors,
        }
    }
}

/// A user has had enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it takes {asked} {}, and the machines of user {user} have {have} of {limit} ({}): take away \
     ports or machines, or raise the quota",
    words(*.good).0, words(*.good).1
)]
pub struct Spent {
    user: u32,
    good: Good,
    asked: u64,
    have: u64,
    limit: u64,
}

/// What it is called, and the setting that limits it.
fn words(good: Good) -> (&'static str, &'static str) {
    match good {
        Good::Bytes => ("bytes of memory", "quota.machine_memory"),
        Good::Regions => ("memory regions", "quota.machine_regions"),
        Good::Descriptors => ("descriptors", "quota.machine_descriptors"),
    }
}

/// What one user's machines may take, and have taken.
#[derive(Debug)]
pub struct Allowance {
    user: u32,
    limits: Limits,
    taken: [AtomicU64; 3],
}

impl Allowance {
    /// Of a user who has nothing yet.
    #[must_use]
    pub fn new(user: u32, limits: Limits) -> Arc<Self> {
        Arc::new(Self { user, limits, taken: Default::default() })
    }

    /// Takes so much of something, until the charge is dropped.
    ///
    /// # Errors
    /// There is not so much left.
    pub fn take(self: &Arc<Self>, good: Good, asked: u64) -> Result<Charge, Spent> {
        let (limit, user) = (self.limits.of(good), self.user);
        let fits = |have: u64| have.checked_add(asked).filter(|sum| *sum <= limit);
        let taken = &self.taken[good as usize];
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Charge { from: self.clone(), good, count: asked }),
            Err(have) => Err(Spent { user, good, asked, have, limit }),
        }
    }
}

/// What was taken.
#[derive(Debug)]
pub struct Charge {
    from: Arc<Allowance>,
    good: Good,
    count: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let before = self.from.taken[self.good as usize].fetch_sub(self.count, Ordering::Relaxed);
        debug_assert!(before >= self.count, "it was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let limits = Limits { regions: 3, ..Limits::NONE };
        let allowance = Allowance::new(7, limits);
        let two = allowance.take(Good::Regions, 2).expect("of three");
        let error = allowance.take(Good::Regions, 2).expect_err("one is left").to_string();
        assert!(error.contains("have 2 of 3 (quota.machine_regions)"), "{error}");
        let one = allowance.take(Good::Regions, 1).expect("the last");
        assert!(allowance.take(Good::Regions, u64::MAX).is_err(), "no sum wraps around");
        drop(two);
        let _two = allowance.take(Good::Regions, 2).expect("again");
        let _bytes = allowance.take(Good::Bytes, 1 << 40).expect("apart from each other");
        drop(one);
    }
}
