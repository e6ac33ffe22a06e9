//! Where the buffers of trust groups are, asked of the workers.

use std::sync::Arc;

use ring::Region;
use ring::audit::Held;
use ring::owners::Owner;

use super::{Site, Workers};
use crate::control::datapath::{Audited, AuditedMember};

impl Workers {
    /// A tally of all groups. The workers count their own members, one after the other: what moves
    /// meanwhile between members of two workers, which only a client can do, may count twice or not
    /// at all.
    pub(super) fn audit_groups(&self) -> Vec<Audited> {
        let groups = self.groups.iter();
        groups.map(|((uid, name), group)| self.audit(*uid, name, group.region())).collect()
    }

    fn audit(&self, uid: u32, name: &str, region: &Arc<Region>) -> Audited {
        // The pool has those, too, that are no buffers.
        let usable = region.buffers().count();
        let unusable = region.layout().buffers as usize - usable;
        let free = region.owners().count(Owner::POOL).saturating_sub(unusable);
        let mut members = self.members_to_be(region);
        for (number, crew) in self.workers.iter().enumerate() {
            let region = region.clone();
            let held = crew.handle.call(move |worker| worker.audit(&region));
            members.extend(held.into_iter().filter_map(|(at, id, held)| {
                let mut homes = self.switches.values();
                let home = homes.find(|home| (home.worker, home.at) == (number, at))?;
                Some(AuditedMember { port: *home.keys.get(&id)?, held, begins: false })
            }));
        }
        let (buffers, free) = (narrow(usable), narrow(free));
        Audited { uid, name: name.to_owned(), buffers, free, members }
    }

    /// Members that are being made.
    fn members_to_be(&self, region: &Arc<Region>) -> Vec<AuditedMember> {
        let sites =
            self.sites.values().filter(|site| Arc::ptr_eq(site.memory.plot.region(), region));
        let member = |site: &Site| {
            let count = narrow(region.owners().count(Owner::of(site.memory.plot.layout())));
            let held = Held { given: count, owned: count, ..Held::default() };
            AuditedMember { port: site.spec.key, held, begins: true }
        };
        sites.map(member).collect()
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a region is below 4 GiB")
}
