//! Trust groups: which user pays for their regions.
//!
//! ```text
//!            first port                          last port goes
//!  (none) ─────────────► charged to its owner ───────────────────► (none)
//! ```
//!
//! A region is charged whole, once, to the owner of the port that made the group, until the group
//! is gone: any member may commit all of it. What ports of the group take is in it, and charged to
//! no user. A group is found by its user and its name, so users are not in each other's way; only
//! a privileged user makes a port in another user's group, and pays if that is its first. What
//! the configuration declares is charged to the owner that it names.

use super::State;
use crate::control::groups::refusal::{GroupRefusal, Unaffordable};
use crate::control::refusal::Refusal;
use crate::model::keys::GroupKey;

/// What a region costs that several ports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The user whose quota is charged.
    pub uid: u32,
    /// Bytes of the region.
    pub memory: u64,
}

/// How much memory a new group has by default.
#[derive(Clone, Copy, Debug)]
pub struct GroupSize {
    /// Bytes that groups have.
    pub usual: u64,
    /// Bytes that its first port takes.
    pub least: u64,
}

/// A group as a port wants it.
#[derive(Clone, Debug)]
pub struct GroupWish {
    /// Key of the group.
    pub key: GroupKey,
    /// Bytes of its region, if there is none yet.
    pub memory: u64,
    /// The group exists already.
    pub exists: bool,
    /// The user whose quota is charged, if not the creator's: the owner of a declared group.
    pub payer: Option<u32>,
}

impl State {
    /// What a group costs, and which user pays.
    #[must_use]
    pub fn charge_of(&self, group: &GroupKey) -> Option<Charge> {
        self.groups.get(group).copied()
    }

    /// The workers have made a group.
    pub fn charge_group(&mut self, group: GroupKey, charge: Charge) {
        self.groups.entry(group).or_insert(charge);
    }

    /// Drops the charges of groups that no longer exist.
    pub fn forget_groups(&mut self, is_there: impl Fn(&GroupKey) -> bool) {
        self.groups.retain(|group, _| is_there(group));
    }

    /// Whether the quota of the group's creator, or of its declared owner, has room for it.
    pub fn check_group(&self, maker: u32, wish: &GroupWish) -> Result<(), Refusal> {
        if wish.exists {
            return Ok(());
        }
        let (group, asked) = (wish.key.1.clone(), wish.memory);
        let uid = wish.payer.unwrap_or(maker);
        let (held, limit) = (self.usage(uid).memory, self.quota.memory);
        let price = Unaffordable { group, asked, uid, held, limit };
        let refused = |_| match wish.payer {
            None => GroupRefusal::Memory(price),
            Some(_) => GroupRefusal::Unpaid(price),
        };
        Ok(self.check_memory(uid, asked).map_err(refused)?)
    }

    /// The group that a port wants to be in: as it is, if it is there; if it is new and no client
    /// says, of its usual size, or the least.
    pub fn group_wish(
        &self,
        key: GroupKey,
        asked: Option<u64>,
        size: GroupSize,
    ) -> Result<GroupWish, Refusal> {
        let (group, GroupSize { usual, least }) = (key.1.clone(), size);
        match (self.charge_of(&key), asked) {
            // After a restart a member may come after one that asked for less: all are admitted.
            (Some(Charge { memory, .. }), _) => {
                Ok(GroupWish { key, memory, exists: true, payer: None })
            }
            (None, Some(asked)) if asked < least => {
                Err(GroupRefusal::TooSmall { group, asked, least }.into())
            }
            (None, asked) => {
                let memory = asked.unwrap_or(usual.max(least));
                Ok(GroupWish { key, memory, exists: false, payer: None })
            }
        }
    }
}
