//! What the networks of a port share: its limits. What came first stays.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::{AddAssign, SubAssign};

use super::{Limits, Plan};
use crate::bgp::{Route, Subject};

/// What plans have of what [`Limits`] bounds.
#[derive(Clone, Copy, Default)]
struct Taken {
    remotes: usize,
    stations: usize,
    neighbours: usize,
    announced: usize,
}

impl AddAssign for Taken {
    fn add_assign(&mut self, more: Self) {
        self.remotes += more.remotes;
        self.stations += more.stations;
        self.neighbours += more.neighbours;
        self.announced += more.announced;
    }
}

impl SubAssign for Taken {
    fn sub_assign(&mut self, less: Self) {
        self.remotes -= less.remotes;
        self.stations -= less.stations;
        self.neighbours -= less.neighbours;
        self.announced -= less.announced;
    }
}

impl Plan {
    /// Hosts that get floods, and those that the port still has.
    #[must_use]
    pub fn remotes(&self) -> BTreeSet<IpAddr> {
        self.hosts.keys().chain(&self.port_remotes).copied().collect()
    }

    fn taken(&self) -> Taken {
        Taken {
            remotes: self.remotes().len(),
            stations: self.there.len(),
            neighbours: self.there.values().map(|it| it.addresses.len()).sum(),
            announced: self.here.len(),
        }
    }
}

/// Lets each plan of a port see what is its own, with what the others leave of the limits.
pub fn share<K>(plans: &mut [(K, Plan)], limits: Limits, mut see: impl FnMut(&K, &mut Plan)) {
    let mut taken = Taken::default();
    plans.iter().for_each(|(_, plan)| taken += plan.taken());
    for (key, plan) in plans {
        taken -= plan.taken();
        plan.set_limits(Limits {
            remotes: limits.remotes.saturating_sub(taken.remotes),
            stations: limits.stations.saturating_sub(taken.stations),
            neighbours: limits.neighbours.saturating_sub(taken.neighbours),
            announced: limits.announced.saturating_sub(taken.announced),
            ..limits
        });
        see(key, plan);
        taken += plan.taken();
    }
}

/// Leaves out the routes by which hosts want floods for which the port has no room, and returns how
/// many these are. A host that is in one network of the port may be in all of them.
pub fn admit<'a>(
    mut hosts: BTreeSet<IpAddr>,
    room: usize,
    networks: impl IntoIterator<Item = &'a mut Vec<Route>>,
) -> usize {
    let mut refused = 0;
    for routes in networks {
        routes.retain(|&Route { subject, host }| {
            let is_known = subject != Subject::Floods || hosts.contains(&host);
            let is_in = is_known || (hosts.len() < room && hosts.insert(host));
            refused += usize::from(!is_in);
            is_in
        });
    }
    refused
}
