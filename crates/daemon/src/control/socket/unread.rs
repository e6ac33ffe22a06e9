//! Replies with descriptors that clients have not read.
//!
//! The kernel counts descriptors on their way through sockets against the user of the daemon.
//! Beyond `RLIMIT_NOFILE` it lets the daemon send none (`ETOOMANYREFS`), to no client. So each user
//! has a share of them, and each connection one reply at a time:
//!
//! ```text
//!             reply with descriptors              the client reads it
//!  (settled) ────────────────────────► (owing) ─────────────────────────► (settled)
//!                                         │
//!                                         │ hang-up, half-close
//!                                         ▼               the client reads it, or closes its end
//!                                      (gone, owing) ─────────────────────────────────► (closed)
//! ```
//!
//! No call of an owing connection is served. One that hangs up loses its ports at once, but its
//! socket stays, and counts, as long as the kernel has descriptors in it: a client could otherwise
//! close one half and begin anew.

use std::collections::HashMap;

use crate::control::refusal::QuotaRefusal;

/// Number of unread replies with descriptors, by user.
#[derive(Debug)]
pub struct Unread {
    users: HashMap<u32, u32>,
    limit: u32,
}

impl Unread {
    /// No replies yet, for a daemon that may have this many descriptors.
    #[must_use]
    pub fn new(descriptors: Option<u64>) -> Self {
        let share = descriptors.unwrap_or(u64::MAX) / SHARES / DESCRIPTORS;
        let limit = u32::try_from(share).unwrap_or(u32::MAX).max(LEAST);
        Self { users: HashMap::new(), limit }
    }

    /// Refuses one more to a user that has its share.
    pub fn admit(&self, uid: u32) -> Result<(), QuotaRefusal> {
        match self.users.get(&uid) {
            Some(&have) if have >= self.limit => Err(QuotaRefusal::Unread { uid, have }),
            _ => Ok(()),
        }
    }

    /// Counts one that was sent.
    pub fn add(&mut self, uid: u32) {
        *self.users.entry(uid).or_default() += 1;
    }

    /// Forgets one that was read.
    pub fn remove(&mut self, uid: u32) {
        let have = self.users.get_mut(&uid).expect("what was sent is counted");
        *have -= 1;
        if *have == 0 {
            self.users.remove(&uid);
        }
    }

    /// The user that has most, and how many.
    #[must_use]
    pub fn most(&self) -> Option<(u32, u32)> {
        self.users.iter().map(|(uid, have)| (*uid, *have)).max_by_key(|(_, have)| *have)
    }
}

/// A user may have this part of the descriptors that can be on their way.
const SHARES: u64 = 16;
/// Descriptors of a reply.
const DESCRIPTORS: u64 = 3;
/// The least limit of one user.
const LEAST: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_user_has_a_share_and_the_others_theirs() {
        let mut unread = Unread::new(Some(65536));
        assert_eq!(unread.limit, 1365);
        (0..1365).for_each(|_| unread.add(1));
        assert!(unread.admit(1).is_err() && unread.admit(2).is_ok());
        unread.add(2);
        assert_eq!(unread.most(), Some((1, 1365)));
        unread.remove(1);
        assert!(unread.admit(1).is_ok());
        (0..1364).for_each(|_| unread.remove(1));
        assert_eq!(unread.most(), Some((2, 1)));
        assert_eq!((Unread::new(Some(100)).limit, Unread::new(None).limit), (32, u32::MAX));
    }
}
