//! Where the buffers of trust groups are.

use serde::{Deserialize, Serialize};

use crate::name::PortName;

/// A trust group in an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupAudit {
    /// Its name.
    pub group: String,
    /// User whose it is.
    pub uid: u32,
    /// Buffers of its region.
    pub buffers: u32,
    /// Of these, nobody's: free for members that come.
    pub free: u32,
    /// Its members.
    pub members: Vec<MemberAudit>,
}

/// A member in an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberAudit {
    /// Its port.
    pub port: PortName,
    /// Buffers that it was given when it came.
    pub given: u32,
    /// Buffers that are its own now.
    pub owned: u32,
    /// Of these, in slots of its transmit rings.
    pub tx: u32,
    /// In slots of its receive rings.
    pub rx: u32,
    /// In its list of extra buffers.
    pub extra: u32,
    /// Nowhere: its client has taken them out.
    pub kept: u32,
    /// Places where it has another's buffer, or one that stands elsewhere too. Of a client that
    /// exchanges two buffers at this moment, one.
    pub wrong: u32,
    /// It is being made: nothing stands anywhere yet.
    #[serde(default)]
    pub begins: bool,
}

impl GroupAudit {
    /// Why buffers out are not buffers in, if they are not.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let sum = |of: fn(&MemberAudit) -> u32| -> u64 {
            self.members.iter().map(|member| u64::from(of(member))).sum()
        };
        let (all, free) = (u64::from(self.buffers), u64::from(self.free));
        let (given, owned) = (sum(|m| m.given), sum(|m| m.owned));
        if free + owned != all {
            let text = "free and members' are not all there are";
            return Some(format!("{text}: {free} + {owned} of {all}; please report it"));
        }
        // Who exchanges buffers between two ports of its own and dies may leave one of them two.
        let cure = "they come back when these members go";
        (given != owned)
            .then(|| format!("members were given {given} buffers and have {owned}; {cure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_buffers_in_are_buffers_out() {
        let member = |given, owned| MemberAudit {
            port: "vale0:a".parse().unwrap(),
            given,
            owned,
            tx: 0,
            rx: 0,
            extra: 0,
            kept: 0,
            wrong: 0,
            begins: false,
        };
        let group = |free, members| {
            let group = "nf".to_owned();
            GroupAudit { group, uid: 0, buffers: 100, free, members }.problem()
        };
        assert_eq!(group(60, vec![member(20, 20), member(20, 20)]), None);
        assert_eq!(group(60, vec![member(20, 21), member(20, 19)]), None, "they are whole");
        assert!(
            group(60, vec![member(20, 19), member(20, 20)]).unwrap().contains("60 + 39 of 100")
        );
        assert!(group(61, vec![member(20, 19), member(20, 20)]).unwrap().contains("have 39"));
    }
}
