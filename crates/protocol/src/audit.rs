//! Where the buffers of trust groups are.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::name::PortName;

/// A trust group in an audit. In a page, some of its members: a part, which others follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupAudit {
    /// The group's name.
    pub group: String,
    /// The user that owns it.
    pub uid: u32,
    /// Bytes of its region, which are charged as long as the group is there.
    pub memory: u64,
    /// Bytes committed so far: the daemon or a member has touched them.
    pub committed: u64,
    /// The user that is charged for them: the one that made the first port, or the one that the
    /// configuration names.
    pub charged_to: u32,
    /// Other users that may have ports in it, where the daemon's configuration declares the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<GroupAccess>,
    /// Buffers of its region.
    pub buffers: u32,
    /// Buffers that no member has: free for members that come.
    pub free: u32,
    /// Buffers that all its members were given when they came.
    pub given: u32,
    /// Buffers that are theirs now.
    pub owned: u32,
    /// The ports in the group.
    pub members: Vec<MemberAudit>,
}

/// Access to a trust group besides its owner's: `w` to have ports in it, `r` to list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupAccess {
    /// Unix group, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Bits, as of a file.
    pub mode: Mode,
}

/// A member in an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MemberAudit {
    /// The member's port.
    pub port: PortName,
    /// Buffers that it was given when it came.
    pub given: u32,
    /// Buffers that are its own now.
    pub owned: u32,
    /// Buffers in slots of its transmit rings.
    pub tx: u32,
    /// Buffers in slots of its receive rings.
    pub rx: u32,
    /// Buffers in its list of extra buffers.
    pub extra: u32,
    /// Buffers that stand nowhere: the client has taken them out.
    pub kept: u32,
    /// Places where it has another's buffer, or one that stands elsewhere too. Of a client that
    /// exchanges two buffers at this moment, one.
    pub wrong: u32,
    /// The member is being created: nothing stands anywhere yet.
    #[serde(default)]
    pub begins: bool,
}

impl GroupAudit {
    /// Whole groups, of their parts in order. One that was wrong in a part is wrong.
    #[must_use]
    pub fn whole(parts: Vec<Self>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for part in parts {
            match groups.last_mut().filter(|last| last.key() == part.key()) {
                None => groups.push(part),
                Some(last) => {
                    let mut members = std::mem::take(&mut last.members);
                    members.extend_from_slice(&part.members);
                    if last.problem().is_none() {
                        *last = part;
                    }
                    last.members = members;
                }
            }
        }
        groups
    }

    fn key(&self) -> (u32, &str) {
        (self.uid, &self.group)
    }

    /// Why buffers out are not buffers in, if they are not.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (all, free) = (u64::from(self.buffers), u64::from(self.free));
        let (given, owned) = (u64::from(self.given), u64::from(self.owned));
        if free + owned != all {
            let text = "free and members' are not all there are";
            return Some(format!("{text}: {free} + {owned} of {all}; please report it"));
        }
        // A client that dies while it exchanges buffers of its two ports may leave two in one of
        // them.
        let cure = "they come back when these members go";
        (given != owned)
            .then(|| format!("members were given {given} buffers and have {owned}; {cure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(group: &str, [free, given, owned]: [u32; 3], port: &str) -> GroupAudit {
        let member = MemberAudit {
            port: port.parse().unwrap(),
            given,
            owned,
            tx: 0,
            rx: 0,
            extra: 0,
            kept: 0,
            wrong: 0,
            begins: false,
        };
        let (group, members) = (group.to_owned(), vec![member]);
        let (memory, committed, charged_to) = (1 << 20, 1 << 16, 0);
        let (uid, buffers) = (0, 100);
        GroupAudit {
            group,
            uid,
            memory,
            committed,
            charged_to,
            access: None,
            buffers,
            free,
            given,
            owned,
            members,
        }
    }

    #[test]
    fn test_buffers_in_are_buffers_out() {
        let problem = |counts| part("nf", counts, "vale0:a").problem();
        assert_eq!(problem([60, 40, 40]), None);
        assert!(problem([60, 40, 39]).unwrap().contains("60 + 39 of 100"));
        assert!(problem([61, 40, 39]).unwrap().contains("have 39"));
    }

    #[test]
    fn test_parts_make_groups_and_what_is_wrong_in_one_is_wrong() {
        let good = |group, port| part(group, [60, 40, 40], port);
        let bad = part("nf", [61, 40, 39], "vale0:b");
        let parts = vec![good("a", "vale0:z"), good("nf", "vale0:a"), bad, good("nf", "vale0:c")];
        let groups = GroupAudit::whole(parts);
        let [a, nf] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!((a.members.len(), a.problem()), (1, None));
        let ports: Vec<_> = nf.members.iter().map(|member| member.port.to_string()).collect();
        assert_eq!(ports, ["vale0:a", "vale0:b", "vale0:c"]);
        assert!(nf.problem().is_some());
    }
}
