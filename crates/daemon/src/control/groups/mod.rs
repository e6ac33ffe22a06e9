//! Trust groups: the memory they begin with, and the user that pays for it.
//!
//! The workers make a group's region with its first port, and take it back after its last, which
//! may be on another thread, when the kernel has given an interface's buffers back. So what groups
//! cost is looked at whenever something has gone, and before a client asks for more.

mod audit;
pub mod declared;
pub mod refusal;

use std::io;

use protocol::{Attach, HostIf};

use super::{Caller, Control};
use crate::control::datapath::Datapath;
use crate::control::groups::refusal::GroupRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::groups::{Charge, GroupSize, GroupWish};
use crate::model::error::DatapathError;
use crate::model::groups::trust_group;
use crate::model::keys::GroupKey;
use crate::model::plan::PortPlan;
use crate::model::specs::{GROUP_MEMORY_MAX, GROUP_MEMORY_MIN};

impl<D: Datapath> Control<D> {
    /// The group that a client wants a port in, which takes so much memory.
    pub(super) fn group_of(
        &self,
        caller: &Caller,
        attach: &Attach,
        memory: u64,
    ) -> Result<Option<GroupWish>, Refusal> {
        let asked = attach.group_memory;
        let Some(group) = &attach.group else {
            let text = "--group-memory needs a trust group: name one with --group NAME";
            return asked.map_or(Ok(None), |_| Err(Refusal::bad_value(text.to_owned())));
        };
        if let Some(bytes) = asked
            && !(GROUP_MEMORY_MIN..=GROUP_MEMORY_MAX).contains(&bytes)
        {
            let asked = match bytes.is_multiple_of(1 << 20) {
                true => format!("{}MiB", bytes >> 20),
                false => format!("{bytes} bytes"),
            };
            let text = format!("--group-memory {asked} is out of range, 1MiB to 4095MiB");
            return Err(Refusal::bad_value(text));
        }
        self.wish(self.defaults.declared.admit(caller, group)?, asked, memory).map(Some)
    }

    /// The group that a port asks for, if the port takes so much memory. For a declared group, size
    /// and payer come from the declaration alone: else any member could spend its owner's quota.
    fn wish(&self, key: GroupKey, asked: Option<u64>, least: u64) -> Result<GroupWish, Refusal> {
        let Some(declared) = self.defaults.declared.find(&key) else {
            let size = GroupSize { usual: self.defaults.new_group, least };
            return self.state.group_wish(key, asked, size);
        };
        declared.check(&key.1, asked, least)?;
        let size = GroupSize { usual: declared.memory, least: 0 };
        let wish = self.state.group_wish(key, None, size)?;
        Ok(GroupWish { payer: Some(declared.permissions.owner), ..wish })
    }

    /// What a group costs that `uid` makes by an interface.
    fn charge(&self, key: &GroupKey, uid: u32) -> Charge {
        match self.defaults.declared.find(key) {
            None => Charge { uid, memory: self.defaults.new_group },
            Some(group) => Charge { uid: group.permissions.owner, memory: group.memory },
        }
    }

    /// A port of the configuration, with whose its trust group is, where that is declared.
    pub(super) fn with_declared(&self, plan: &PortPlan) -> PortPlan {
        let mut plan = plan.clone();
        if let Some(group) = plan.host.as_mut().and_then(|host| host.trust_group.as_mut())
            && let Some((daemon, name)) = trust_group(group)
            && !group.contains('/')
        {
            *group = format!("{}/{name}", self.defaults.declared.owner(&name, daemon));
        }
        plan
    }

    /// Whether a user can pay for the group that an interface is to be in. One that went without
    /// being asked is forgotten before: what it cost is nothing to the next of its name.
    pub(super) fn check_group_of(&mut self, uid: u32, host: &HostIf) -> Result<(), Refusal> {
        self.refresh_groups();
        let Some(key) = host.trust_group.as_deref().and_then(trust_group) else { return Ok(()) };
        self.state.check_group(uid, &self.wish(key, None, 0)?)
    }

    /// From now on a user pays for the group, if it exists and no user does.
    pub(super) fn charge_group_of(&mut self, uid: u32, host: &HostIf) {
        if let Some(key) = host.trust_group.as_deref().and_then(trust_group)
            && self.datapath.has_group(&key)
        {
            let charge = self.charge(&key, uid);
            self.state.charge_group(key, charge);
        }
    }

    /// Groups may have gone, or begun anew with an interface that came back.
    pub(super) fn refresh_groups(&mut self) {
        let datapath = &self.datapath;
        self.state.forget_groups(|group| datapath.has_group(group));
        for group in self.datapath.groups() {
            if self.state.charge_of(&group).is_none() {
                let charge = self.charge(&group, self.maker_of(&group));
                self.state.charge_group(group, charge);
            }
        }
    }

    /// The owner of an interface's port that is in a group.
    fn maker_of(&self, group: &GroupKey) -> u32 {
        let mut ports = self.state.ports().map(|(_, port)| port);
        let is_in = |host: &HostIf| {
            host.trust_group.as_deref().and_then(trust_group).as_ref() == Some(group)
        };
        let maker = ports.find(|port| port.host.as_deref().is_some_and(is_in));
        maker.map_or(group.0, |port| port.owner)
    }
}

/// Why there is no port in a group.
pub(super) fn refused(error: DatapathError, group: Option<&GroupWish>) -> Refusal {
    match (&error, group) {
        (DatapathError::System(why), Some(wish)) if why.kind() == io::ErrorKind::StorageFull => {
            GroupRefusal::Full { group: wish.key.1.clone(), has: wish.memory }.into()
        }
        _ => error.into(),
    }
}
