//! A quota is used up.

use protocol::users;
use thiserror::Error;

/// The quota that is used up.
#[derive(Debug, Error)]
pub enum QuotaRefusal {
    /// The user has as many ports, switches, static addresses or connections as one user may have.
    #[error(
        "{} has {have} {what}, the limit for one user; delete some, or raise quota.{what}",
        users::user_name(*.uid)
    )]
    Count {
        /// The user.
        uid: u32,
        /// The key of the quota in `[quota]` of the configuration.
        what: &'static str,
        /// How many the user has.
        have: u64,
    },
    /// The user has its share of the daemon's descriptors.
    #[error(
        "{} has {have} {what}, the share of one user where the daemon may have {descriptors} \
         descriptors; delete some, or raise that limit: LimitNOFILE in the unit, or ulimit -n",
        users::user_name(*.uid)
    )]
    Share {
        /// The user.
        uid: u32,
        /// What takes descriptors.
        what: &'static str,
        /// How many the user has.
        have: u64,
        /// Descriptors that the daemon may have open.
        descriptors: u64,
    },
    /// The last descriptors are not for this user.
    #[error(
        "the daemon has few descriptors left, and keeps them for root and its own user; close \
         connections and ports, or raise its limit: LimitNOFILE in the unit, or ulimit -n"
    )]
    Reserved,
    /// The user listens to events as often as one user may.
    #[error(
        "{} listens to events {have} times, the limit for one user; stop some listeners",
        users::user_name(*.uid)
    )]
    Listeners {
        /// The user.
        uid: u32,
        /// How often the user listens.
        have: usize,
    },
    /// The user's programs leave replies with descriptors unread.
    #[error(
        "{have} replies with descriptors to programs of {} are unread; let these programs read \
         their replies, or stop them",
        users::user_name(*.uid)
    )]
    Unread {
        /// The user.
        uid: u32,
        /// How many there are.
        have: u32,
    },
    /// The user's programs keep files of closed ports from being closed.
    #[error(
        "programs of {} keep {have} files of closed ports from being closed: they watch their \
         doorbells in an epoll set that they never let go; end them",
        users::user_name(*.uid)
    )]
    Unclosed {
        /// The user.
        uid: u32,
        /// How many there are.
        have: u32,
    },
    /// The user's switches hold as many addresses as they may.
    #[error(
        "the switch takes {asked} addresses, and {} has {have} of {limit} (quota.addresses): ask \
         for fewer with --fdb-capacity, delete other switches, or raise the quota",
        users::user_name(*.uid)
    )]
    Addresses {
        /// The user.
        uid: u32,
        /// Addresses that the switch needs.
        asked: u64,
        /// Addresses that the user's switches hold.
        have: u64,
        /// Addresses that they may hold.
        limit: u64,
    },
    /// The user's switches have as many rules and chains as they may.
    #[error(
        "this takes {asked} rules and chains more, and {} has {have} of {limit} (quota.rules); \
         delete some, or raise the quota",
        users::user_name(*.uid)
    )]
    Rules {
        /// The user.
        uid: u32,
        /// Rules and chains that are added.
        asked: u64,
        /// Rules and chains of the user's switches.
        have: u64,
        /// Rules and chains that they may have.
        limit: u64,
    },
    /// The user has too little memory left.
    #[error(
        "this takes {}, and {} has {} of {} (quota.memory); close other ports, or raise the quota",
        mib(*.asked), users::user_name(*.uid), tenths(*.held), mib(*.limit)
    )]
    Memory {
        /// The user.
        uid: u32,
        /// Bytes that the port or pipe takes.
        asked: u64,
        /// Bytes that the user has.
        held: u64,
        /// Bytes that a user may have.
        limit: u64,
    },
    /// No user may have so much memory.
    #[error(
        "this takes {}, more than one user may have in all: {} (quota.memory); ask for fewer slots \
         or extra buffers, or raise the quota",
        mib(*.asked), mib(*.limit)
    )]
    MoreThanQuota {
        /// Bytes that the port or pipe takes.
        asked: u64,
        /// Bytes that a user may have.
        limit: u64,
    },
}

impl QuotaRefusal {
    /// Refuses one more to a user that has as many as one user may have.
    pub fn count(uid: u32, what: &'static str, have: u64, limit: u64) -> Result<(), Self> {
        if have < limit { Ok(()) } else { Err(Self::Count { uid, what, have }) }
    }
}

/// Bytes as text in MiB.
pub(in crate::control) fn mib(bytes: u64) -> String {
    format!("{} MiB", tenths(bytes))
}

/// Bytes in MiB with one decimal, rounded up, without the unit.
pub(in crate::control) fn tenths(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}
