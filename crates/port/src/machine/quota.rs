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
//!                                     └── QuotaExceeded: refused, with the setting that says so
//! ```
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | `taken` | threads of the user's ports, control | the same | Relaxed: no data depends on it |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What there is an end to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
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

    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Regions => self.regions,
            Resource::Descriptors => self.descriptors,
        }
    }
}

/// A user has had enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it takes {asked} {}, and the machines of user {user} have {have} of {limit} ({}): take away \
     ports or machines, or raise the quota",
    names(*.resource).0, names(*.resource).1
)]
pub struct QuotaExceeded {
    user: u32,
    resource: Resource,
    asked: u64,
    have: u64,
    limit: u64,
}

/// What it is called, and the setting that limits it.
fn names(resource: Resource) -> (&'static str, &'static str) {
    match resource {
        Resource::Bytes => ("bytes of memory", "quota.machine_memory"),
        Resource::Regions => ("memory regions", "quota.machine_regions"),
        Resource::Descriptors => ("descriptors", "quota.machine_descriptors"),
    }
}

/// What one user's machines may take, and have taken.
#[derive(Debug)]
pub struct Quota {
    user: u32,
    limits: Limits,
    taken: [AtomicU64; 3],
}

impl Quota {
    /// Of a user who has nothing yet.
    #[must_use]
    pub fn new(user: u32, limits: Limits) -> Arc<Self> {
        Arc::new(Self { user, limits, taken: Default::default() })
    }

    /// Takes so much of something, until the charge is dropped.
    ///
    /// # Errors
    /// There is not so much left.
    pub fn take(self: &Arc<Self>, resource: Resource, asked: u64) -> Result<Charge, QuotaExceeded> {
        let (limit, user) = (self.limits.of(resource), self.user);
        let fits = |have: u64| have.checked_add(asked).filter(|sum| *sum <= limit);
        let taken = &self.taken[resource as usize];
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Charge { from: self.clone(), resource, count: asked }),
            Err(have) => Err(QuotaExceeded { user, resource, asked, have, limit }),
        }
    }
}

/// What was taken.
#[derive(Debug)]
pub struct Charge {
    from: Arc<Quota>,
    resource: Resource,
    count: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let before =
            self.from.taken[self.resource as usize].fetch_sub(self.count, Ordering::Relaxed);
        debug_assert!(before >= self.count, "it was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let limits = Limits { regions: 3, ..Limits::NONE };
        let quota = Quota::new(7, limits);
        let two = quota.take(Resource::Regions, 2).expect("of three");
        let error = quota.take(Resource::Regions, 2).expect_err("one is left").to_string();
        assert!(error.contains("have 2 of 3 (quota.machine_regions)"), "{error}");
        let one = quota.take(Resource::Regions, 1).expect("the last");
        assert!(quota.take(Resource::Regions, u64::MAX).is_err(), "no sum wraps around");
        drop(two);
        let _two = quota.take(Resource::Regions, 2).expect("again");
        let _bytes = quota.take(Resource::Bytes, 1 << 40).expect("apart from each other");
        drop(one);
    }
}
