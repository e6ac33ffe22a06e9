//! Trust groups that the configuration declares: owner, and other users that may have ports there.
//!
//! All users share such a name: a client that asks for it gets this group or a refusal.
//! A name that is not declared is each user's own.

use std::collections::BTreeMap;

use protocol::{GroupAccess, NewPorts};

use crate::config::Config;
use crate::control::groups::refusal::GroupRefusal;
use crate::model::keys::GroupKey;
use crate::model::policy::{Access, Caller, Permissions};

/// The trust groups that the configuration declares, by name.
#[derive(Clone, Debug, Default)]
pub struct Declared(BTreeMap<String, DeclaredGroup>);

/// A trust group that the configuration declares.
#[derive(Clone, Copy, Debug)]
pub struct DeclaredGroup {
    /// Owner, group and mode: `w` to have ports in the group, `r` to list it. The owner pays.
    pub permissions: Permissions,
    /// Bytes of its region.
    pub memory: u64,
}

/// The group of a trust group that is for no group: `(gid_t) -1`, which no user is in.
const NO_GROUP: u32 = u32::MAX;

impl Declared {
    /// Reads the trust groups that a configuration declares.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let daemon = rustix::process::geteuid().as_raw();
        let none = Permissions { owner: daemon, group: NO_GROUP, mode: config.switch_mode };
        let groups = config.groups.iter().map(|(name, plan)| {
            let permissions = plan.grant.permissions(daemon, &none, NewPorts::Owner);
            let memory = plan.memory.unwrap_or(config.new_group().bytes);
            (name.clone(), DeclaredGroup { permissions, memory })
        });
        Self(groups.collect())
    }

    /// What is declared of a group, if it is one of these.
    #[must_use]
    pub fn find(&self, (uid, name): &GroupKey) -> Option<&DeclaredGroup> {
        self.0.get(name).filter(|group| group.permissions.owner == *uid)
    }

    /// The user whose group a name means, where `uid` says it.
    #[must_use]
    pub fn owner(&self, name: &str, uid: u32) -> u32 {
        self.0.get(name).map_or(uid, |group| group.permissions.owner)
    }

    /// The group that a name means, where a caller wants a port in it.
    pub fn admit(&self, caller: &Caller, name: &str) -> Result<GroupKey, GroupRefusal> {
        let group = name.to_owned();
        let Some(DeclaredGroup { permissions, .. }) = self.0.get(name) else {
            return Ok((caller.uid, group));
        };
        let Permissions { owner, mode, .. } = *permissions;
        if permissions.allow(caller, Access::Attach) {
            return Ok((owner, group));
        }
        let access = GroupAccess { group: unix_group(permissions), mode };
        Err(GroupRefusal::Denied { group, owner, access })
    }

    /// Whether a caller may see what a group has.
    #[must_use]
    pub fn shows(&self, caller: &Caller, group: &GroupKey) -> bool {
        let declared = self.find(group);
        caller.privileged
            || caller.uid == group.0
            || declared.is_some_and(|it| it.permissions.allow(caller, Access::Look))
    }
}

impl DeclaredGroup {
    /// Whether its region can be what a client asks for, and hold a port that takes so much.
    pub fn check(&self, group: &str, asked: Option<u64>, least: u64) -> Result<(), GroupRefusal> {
        let (group, has) = (group.to_owned(), self.memory);
        match asked {
            Some(asked) if asked > has => Err(GroupRefusal::Fixed { group, asked, has }),
            _ if least > has => Err(GroupRefusal::TooSmall { group, asked: has, least }),
            _ => Ok(()),
        }
    }

    /// The users, besides the owner, that the group admits.
    #[must_use]
    pub fn access(&self) -> GroupAccess {
        GroupAccess { group: unix_group(&self.permissions), mode: self.permissions.mode }
    }
}

fn unix_group(permissions: &Permissions) -> Option<u32> {
    Some(permissions.group).filter(|group| *group != NO_GROUP)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::policy::Process;

    fn declared(text: &str) -> Declared {
        Declared::of(&Config::parse(text, Path::new("test.toml")).unwrap())
    }

    fn caller(uid: u32, groups: &[u32]) -> Caller {
        let process = Process::Number(1);
        Caller { pid: 1, process, uid, gid: uid, groups: groups.to_vec(), privileged: uid == 0 }
    }

    #[test]
    fn test_a_declared_name_is_its_owners_group_or_nobodys() {
        let text = "[group.nf]\nowner = 54321\ngroup = 54350\n";
        for (more, member, other) in [
            ("", true, false),
            ("mode = \"600\"", false, false),
            ("mode = \"640\"", false, false),
            ("mode = \"666\"", true, true),
        ] {
            let declared = declared(&format!("{text}{more}\n"));
            let admitted = |uid, groups| match declared.admit(&caller(uid, groups), "nf") {
                Ok(key) => key == (54321, "nf".to_owned()),
                Err(refused) => {
                    let says = refused.to_string();
                    let whose = "trust group nf belongs to 54321, group 54350, with mode 6";
                    assert!(says.starts_with(whose), "{says}");
                    false
                }
            };
            let all = [(0, &[][..]), (54321, &[]), (1001, &[7, 54350]), (54350, &[]), (1002, &[])];
            let all = all.map(|(uid, groups)| admitted(uid, groups));
            assert_eq!(all, [true, true, member, member, other], "{more}");
        }
        let own = declared(text).admit(&caller(1002, &[]), "other").unwrap();
        assert_eq!(own, (1002, "other".to_owned()));
    }

    #[test]
    fn test_what_is_not_said_of_a_group_lets_nobody_in() {
        let declared = declared("[group.nf]\n[new_group]\nmemory = \"8MiB\"\n");
        let daemon = rustix::process::geteuid().as_raw();
        assert_eq!(declared.owner("nf", 7), daemon);
        let group = declared.find(&(daemon, "nf".to_owned())).unwrap();
        assert_eq!((group.memory, group.access().group), (8 << 20, None));
        assert_eq!(group.access().mode.bits(), 0o600);
        let refused = declared.admit(&caller(1000, &[50]), "nf").unwrap_err().to_string();
        assert!(refused.contains("with mode 600: no permission to have ports"), "{refused}");
        // Another's of that name is not this one.
        assert!(declared.find(&(daemon + 1, "nf".to_owned())).is_none());
    }

    #[test]
    fn test_who_may_read_sees_a_group() {
        let declared = declared("[group.nf]\nowner = 1000\nmode = \"604\"\n");
        let shows = |uid, of: u32| declared.shows(&caller(uid, &[]), &(of, "nf".to_owned()));
        let all = [shows(0, 1000), shows(1000, 1000), shows(1001, 1000), shows(1001, 1002)];
        assert_eq!(all, [true, true, true, false]);
    }
}
