//! Trust groups, and where their buffers are.

use crate::model::audit::Audited;
use crate::model::keys::{GroupKey, PortKey};

/// Trust groups, and where their buffers are.
pub trait Groups {
    /// All trust groups in the order of their keys.
    fn groups(&self) -> Vec<GroupKey>;

    /// Whether a trust group exists.
    fn has_group(&self, group: &GroupKey) -> bool;

    /// Examines the buffers of a group: its members from port `from` on, at most
    /// [`AUDIT_MEMBERS`](crate::model::audit::AUDIT_MEMBERS). `None`: there is no such group.
    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited>;
}

#[cfg(test)]
mod fake {
    use ring::audit::Held;

    use super::Groups;
    use crate::control::fake::Fake;
    use crate::model::audit::{Audited, AuditedMember};
    use crate::model::keys::{GroupKey, PortKey};

    impl Groups for Fake {
        fn groups(&self) -> Vec<GroupKey> {
            self.groups.keys().cloned().collect()
        }

        fn has_group(&self, group: &GroupKey) -> bool {
            self.groups.contains_key(group) || self.grouped.values().any(|of| of == group)
        }

        fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited> {
            self.audited.push(group.clone());
            let mut rest = self.groups.get(group)?.iter().filter(|port| **port >= from);
            let held = Held { given: 2, owned: 2, ..Held::default() };
            let member = |port: &PortKey| AuditedMember { port: *port, held, begins: false };
            let members = rest.by_ref().take(2).map(member).collect();
            let (buffers, free, given, owned) = (10, 10, 0, 0);
            let next = rest.next().copied();
            Some(Audited { committed: 0, buffers, free, given, owned, members, listed: 0, next })
        }
    }
}
