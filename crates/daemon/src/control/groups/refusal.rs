//! Why there is no port in a trust group.

use thiserror::Error;

use crate::control::refusal::quota::{mib, tenths};
use protocol::{ErrorCode, GroupAccess, users};

/// A trust group that is over a user's quota.
#[derive(Debug)]
pub struct Unaffordable {
    /// The group.
    pub group: String,
    /// Bytes that its region is to have.
    pub asked: u64,
    /// The user whose quota is charged.
    pub uid: u32,
    /// Bytes that this user has.
    pub held: u64,
    /// Bytes that a user may have.
    pub limit: u64,
}

/// Why there is no port in a trust group.
#[derive(Debug, Error)]
pub enum GroupRefusal {
    /// The user cannot pay for a trust group.
    #[error(
        "trust group {group} takes {} with its first port, and {} has {} of {} (quota.memory): ask \
         for less with --group-memory, close other ports, or raise the quota",
        mib(.0.asked), users::user_name(.0.uid), tenths(.0.held), mib(.0.limit), group = .0.group
    )]
    Memory(Unaffordable),
    /// The owner of a declared trust group cannot pay for it.
    #[error(
        "trust group {group} takes {} from the quota of {}, its owner, with its first port, and {} \
         of {} are in use (quota.memory): lower memory of [group.{group}] \
         in uvala.toml, or raise the quota",
        mib(.0.asked), users::user_name(.0.uid), tenths(.0.held), mib(.0.limit), group = .0.group
    )]
    Unpaid(Unaffordable),
    /// A declared trust group is for others.
    #[error(
        "trust group {group} belongs to {}{} with mode {}: no permission to have ports in it; \
         [group.{group}] in uvala.toml says which users may; another name makes a group \
         of your own",
        users::user_name(*.owner), of_group(.access), .access.mode
    )]
    Denied {
        /// The group.
        group: String,
        /// Owner of the group.
        owner: u32,
        /// The other users that the group admits.
        access: GroupAccess,
    },
    /// The region of a declared trust group is as large as that says.
    #[error(
        "trust group {group} has {}: ask for no more than that, or raise memory of [group.{group}] \
         in uvala.toml to {}",
        mib(*.has), mib(*.asked)
    )]
    Fixed {
        /// The group.
        group: String,
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes of its region.
        has: u64,
    },
    /// The region of a trust group is full.
    #[error(
        "trust group {group} has no room for this port in its {}: close other members, or close \
         all and create the group with more: --group-memory, or memory of \
         [new_group] in uvala.toml, or of [group.{group}] if it is declared there",
        mib(*.has)
    )]
    Full {
        /// The group.
        group: String,
        /// Bytes of its region.
        has: u64,
    },
    /// The region of a trust group would not hold its first port.
    #[error(
        "{} are too little for trust group {group}: this port alone takes {}; ask for that or more",
        mib(*.asked), mib(*.least)
    )]
    TooSmall {
        /// The group.
        group: String,
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that the port takes.
        least: u64,
    },
}

impl GroupRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(_) | Self::Unpaid(_) => ErrorCode::Quota,
            Self::Denied { .. } => ErrorCode::Permission,
            Self::Full { .. } => ErrorCode::NoMemory,
            Self::Fixed { .. } | Self::TooSmall { .. } => ErrorCode::BadRequest,
        }
    }
}

/// The Unix group of a trust group, if it has one.
fn of_group(access: &GroupAccess) -> String {
    access.group.map_or_else(String::new, |id| format!(", group {},", users::group_name(id)))
}
