//! Quotas of one user's VMs for resources that all users share.
//!
//! A daemon has 128 TiB of address space, a limited number of descriptors, and a
//! [table](ring::guest::lost) of a limited number of mappings. A VMM takes of these by messages,
//! long after the control thread has made its port. So this module counts what all ports of a user
//! hold, and each port returns what it releases. [Lines of the log](super::log) are limited for
//! each minute instead.
//!
//! ```text
//!   port, eventfd, memory region ──► take ──► Charge, kept beside the resource
//!                                     │          └── dropped: returned
//!                                     └── QuotaExceeded: refused; names the setting
//! ```
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | `taken` | threads of the user's ports, control | the same | Relaxed: no data depends on it |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::log::UserLines;
use crate::log_budget::NextReport;

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of address space for mapped memory.
    Bytes,
    /// Memory mappings.
    Regions,
    /// File descriptors.
    Descriptors,
}

/// A user's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of guest memory.
    pub bytes: u64,
    /// Mappings of guest memory.
    pub regions: u64,
    /// File descriptors.
    pub descriptors: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { bytes: u64::MAX, regions: u64::MAX, descriptors: u64::MAX };

    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Regions => self.regions,
            Resource::Descriptors => self.descriptors,
        }
    }
}

/// The user's quota does not allow the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it takes {asked} {}, and the machines of user {user} have {have} of {limit} ({}): delete \
     ports or stop machines, or raise the quota",
    names(*.resource).0, names(*.resource).1
)]
pub struct QuotaExceeded {
    user: u32,
    resource: Resource,
    asked: u64,
    have: u64,
    limit: u64,
}

/// The name of a resource, and the setting that limits it.
fn names(resource: Resource) -> (&'static str, &'static str) {
    match resource {
        Resource::Bytes => ("bytes of memory", "quota.machine_memory"),
        Resource::Regions => ("memory regions", "quota.machine_regions"),
        Resource::Descriptors => ("descriptors", "quota.machine_descriptors"),
    }
}

/// One user's limits and usage.
#[derive(Debug)]
pub struct Quota {
    user: u32,
    limits: Limits,
    taken: [AtomicU64; 3],
    lines: Arc<UserLines>,
}

impl Quota {
    /// The quota of a user without usage. The number of its suppressed lines is logged with its
    /// next line.
    #[must_use]
    pub fn new(user: u32, limits: Limits) -> Arc<Self> {
        Self::with_lines(user, limits, &NextReport::default())
    }

    /// The quota of a user without usage. Its lines say in `next` when the log is to have the
    /// number of suppressed ones.
    #[must_use]
    pub fn with_lines(user: u32, limits: Limits, next: &NextReport) -> Arc<Self> {
        let lines = UserLines::new(user, next);
        Arc::new(Self { user, limits, taken: Default::default(), lines })
    }

    /// The lines that the user's ports may log.
    #[must_use]
    pub fn lines(&self) -> &Arc<UserLines> {
        &self.lines
    }

    /// Charges an amount of a resource until the charge is dropped.
    ///
    /// # Errors
    /// The rest of the quota is smaller.
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

/// An amount that is charged to a user.
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
