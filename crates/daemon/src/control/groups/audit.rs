//! Where the buffers of trust groups are: pages of parts of groups.
//!
//! Only what stands on a page is counted, a part after the other, each of so few members that
//! [`PARTS`] of them fit a message whatever they are called.

use std::collections::BTreeMap;
use std::fmt;

use protocol::name::PortName;
use protocol::{GroupAudit, MemberAudit, Page, PageFrom, Reply};
use ring::audit::Held;
use ring::region::extra::LIST_MAX;

use crate::control::datapath::Datapath;
use crate::control::groups::declared::DeclaredGroup;
use crate::control::refusal::Refusal;
use crate::control::state::groups::Charge;
use crate::control::{Control, PAGE_BYTES};
use crate::model::audit::{AUDIT_MEMBERS, Audited, AuditedMember};
use crate::model::keys::{GroupKey, PortKey};
use crate::model::policy::Caller;

/// Parts of groups on a page.
const PARTS: usize = 8;
/// A member in JSON, at most, with a name of 63 bytes.
const MEMBER_BYTES: usize = 224;
/// What is said of its group, at most.
const GROUP_BYTES: usize = 320;
const _: () = assert!(PARTS * (AUDIT_MEMBERS * MEMBER_BYTES + GROUP_BYTES) <= PAGE_BYTES);

/// Where a page begins: at a member of a group, or at the next that is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    group: GroupKey,
    port: PortKey,
}

impl Place {
    fn begin_of(group: GroupKey) -> Self {
        Self { group, port: PortKey(0) }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (uid, name, port) = (parts.next()?, parts.next()?, parts.next()?);
        let group = (uid.parse().ok()?, name.to_owned());
        Some(Self { group, port: PortKey(port.parse().ok()?) })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group: (uid, name), port: PortKey(port) } = self;
        write!(f, "{uid}/{name}/{port}")
    }
}

impl<D: Datapath> Control<D> {
    /// Groups of the caller, and groups that the caller may look at.
    pub(in crate::control) fn audit(
        &mut self,
        caller: &Caller,
        from: &PageFrom,
    ) -> Result<Reply, Refusal> {
        self.refresh_groups();
        let wrong = || Refusal::bad_value("from: no place in an audit".to_owned());
        let from = from.from.as_deref().map(|text| Place::parse(text).ok_or_else(wrong));
        let from = from.transpose()?;
        let mut groups = self.datapath.groups();
        groups.retain(|group| self.defaults.declared.shows(caller, group));
        groups.retain(|group| from.as_ref().is_none_or(|from| *group >= from.group));
        let mut groups = groups.into_iter();
        let mut place = groups.next().map(Place::begin_of);
        // That group may have gone meanwhile.
        if let (Some(from), Some(first)) = (from, &mut place)
            && from.group == first.group
        {
            *first = from;
        }
        let names: BTreeMap<_, _> =
            self.state.ports().map(|(name, port)| (port.key, name)).collect();
        let (mut items, mut listed) = (Vec::new(), 0);
        while let Some(Place { group, port }) =
            place.take_if(|_| items.len() < PARTS && listed < LIST_MAX)
        {
            if let Some(part) = self.datapath.audit(&group, port) {
                listed += part.listed;
                place = part.next.map(|port| Place { group: group.clone(), port });
                let charge = self.state.charge_of(&group);
                let access = self.defaults.declared.find(&group).map(DeclaredGroup::access);
                items.push(GroupAudit { access, ..shown(group, charge, part, &names) });
            }
            place = place.or_else(|| groups.next().map(Place::begin_of));
        }
        Ok(Reply::Audit(Page { items, next: place.map(|place| place.to_string()) }))
    }
}

fn shown(
    group: GroupKey,
    charge: Option<Charge>,
    part: Audited,
    names: &BTreeMap<PortKey, &PortName>,
) -> GroupAudit {
    let member = |AuditedMember { port, held, begins }: &AuditedMember| {
        let kept = if *begins { 0 } else { held.kept() };
        let Held { given, owned, tx, rx, extra, wrong } = *held;
        let port = PortName::clone(names.get(port)?);
        Some(MemberAudit { port, given, owned, tx, rx, extra, kept, wrong, begins: *begins })
    };
    let members = part.members.iter().filter_map(member).collect();
    let Charge { uid: charged_to, memory } = charge.unwrap_or(Charge { uid: group.0, memory: 0 });
    let ((uid, group), Audited { committed, buffers, free, given, owned, .. }) = (group, part);
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
