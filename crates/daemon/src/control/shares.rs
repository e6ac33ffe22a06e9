//! Shares of the descriptors that the daemon may have open.
//!
//! A quota is a number that an operator has chosen. Where the limit of descriptors is low, a user
//! could take all of them within its quotas, and keep out all others. So an ordinary user has a
//! share of each kind at most, and the last descriptors are for root and the daemon's own user:
//!
//! ```text
//!  0                                                          limit
//!  ├─ 1/4 connections ─┬─ 1/4 ports ─┬─ 1/8 machines ─┬─ … ─┬─────┤
//!  └────────────── of each ordinary user ─────────────┘     └─ reserve
//! ```
//!
//! Several users together can still use up what is not the reserve. The kernel gives out the lowest
//! number that is free, so a descriptor with a number of the reserve says that all below are taken:
//! nothing has to be counted.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use protocol::{InterfaceRequest, PortRequest, Request, SessionRequest};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use super::refusal::QuotaRefusal;
use crate::model::policy::Caller;

/// How many descriptors the daemon may have open.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    limit: u64,
}

/// What takes descriptors, and has a quota.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The quota's key.
    pub name: &'static str,
    /// Descriptors that each takes, at most.
    each: u64,
}

/// A connection to the control socket.
pub const CONNECTION: Item = Item { name: "connections", each: 1 };
/// A port with a client: memory and doorbells.
pub const PORT: Item = Item { name: "ports", each: 4 };

/// A user may have this part of the descriptors for its connections, and for its ports.
const SHARES: u64 = 4;
/// A user may have this part of them for its machines.
const MACHINES: u64 = 8;
/// The reserve is this part of them, in these bounds.
const RESERVE: u64 = 32;
const RESERVE_MIN: u64 = 8;
const RESERVE_MAX: u64 = 64;

impl Shares {
    /// There is no limit.
    pub const UNLIMITED: Self = Self { limit: u64::MAX };

    /// The limit is that of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self { limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) }
    }

    /// Refuses one more to a user that has as many as its quota or its share allows.
    pub fn admit(
        self,
        caller: &Caller,
        item: Item,
        have: u64,
        quota: u32,
    ) -> Result<(), QuotaRefusal> {
        let (uid, what) = (caller.uid, item.name);
        QuotaRefusal::count(uid, what, have, quota.into())?;
        if !caller.privileged && have >= self.limit / SHARES / item.each {
            return Err(QuotaRefusal::Share { uid, what, have, descriptors: self.limit });
        }
        Ok(())
    }

    /// The descriptors that the machines of an ordinary user may have.
    #[must_use]
    pub fn of_machines(self, quota: u64) -> u64 {
        quota.min(self.limit / MACHINES)
    }

    /// Refuses an ordinary user a new descriptor that is one of the last.
    pub fn keep_reserve(self, privileged: bool, new: BorrowedFd<'_>) -> Result<(), QuotaRefusal> {
        match !privileged && self.is_reserved(new) {
            true => Err(QuotaRefusal::Reserved),
            false => Ok(()),
        }
    }

    /// Refuses an ordinary user a call that would take some of the last descriptors. A copy of
    /// `any` descriptor has the number of the next.
    pub fn afford(
        self,
        privileged: bool,
        call: Request,
        any: impl AsFd,
    ) -> Result<Request, QuotaRefusal> {
        if !privileged && takes_descriptors(&call) {
            let next = fcntl_dupfd_cloexec(any, 0).map_err(|_| QuotaRefusal::Reserved)?;
            self.keep_reserve(privileged, next.as_fd())?;
        }
        Ok(call)
    }

    fn is_reserved(self, fd: BorrowedFd<'_>) -> bool {
        let reserve = (self.limit / RESERVE).clamp(RESERVE_MIN, RESERVE_MAX);
        u64::try_from(fd.as_raw_fd()).is_ok_and(|fd| fd >= self.limit.saturating_sub(reserve))
    }
}

fn takes_descriptors(call: &Request) -> bool {
    matches!(
        call,
        Request::Session(SessionRequest::Attach(_) | SessionRequest::Bind(_))
            | Request::Port(PortRequest::Add(_))
            | Request::Interface(InterfaceRequest::Add(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::Process;

    fn caller(uid: u32) -> Caller {
        let (process, privileged) = (Process::Number(1), uid == 0);
        Caller { pid: 1, process, uid, gid: uid, groups: Vec::new(), privileged }
    }

    /// How many one user gets.
    fn most(shares: Shares, uid: u32, item: Item) -> u64 {
        (0..).find(|&have| shares.admit(&caller(uid), item, have, 4096).is_err()).unwrap()
    }

    #[test]
    fn test_a_user_has_a_share_where_the_quota_is_more() {
        let few = Shares { limit: 1024 };
        assert_eq!([most(few, 7, CONNECTION), most(few, 7, PORT)], [256, 64]);
        assert_eq!([most(few, 0, CONNECTION), most(few, 0, PORT)], [4096, 4096], "root has none");
        let usual = Shares { limit: 65536 };
        assert_eq!([most(usual, 7, CONNECTION), most(usual, 7, PORT)], [4096, 4096]);
        assert_eq!(most(Shares::UNLIMITED, 7, PORT), 4096);
        assert_eq!([few.of_machines(8192), usual.of_machines(8192)], [128, 8192]);
        let refused = few.admit(&caller(0), PORT, 64, 64).unwrap_err().to_string();
        assert!(refused.contains("quota.ports"), "{refused}");
        let refused = few.admit(&caller(7), PORT, 64, 65).unwrap_err().to_string();
        assert!(refused.contains("64 ports") && refused.contains("1024"), "{refused}");
    }

    #[test]
    fn test_the_last_descriptors_are_reserved() {
        let is_reserved = |limit, fd| {
            let file = fcntl_dupfd_cloexec(std::io::stderr(), fd).unwrap();
            Shares { limit }.is_reserved(file.as_fd())
        };
        assert!(!is_reserved(1024, 500) && is_reserved(512, 500));
        assert!(!Shares::UNLIMITED.is_reserved(std::io::stderr().as_fd()));
    }
}
