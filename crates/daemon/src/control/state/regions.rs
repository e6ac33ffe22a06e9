//! Regions of ports that netmap programs bind: which user pays for them.
//!
//! ```text
//!          first port, interface                 last of them goes           given back
//!  (none) ───────────────────────► charged whole ─────────────────► left ─────────────► (none)
//!                                  to its maker
//! ```
//!
//! As with trust groups, a region is charged whole, once, to the user that made it, until it is
//! gone: any client that has a port in it may commit all of it. Ports and pipes that join it, extra
//! buffers and monitors in it cost nothing more. Each port in a region, and the interface that
//! keeps it, has the same record of it, so the charges are counted from the entries.
//!
//! A new region takes only a part of what its user has left, so that there is something for the
//! next ones. When it is gone, its user still pays for it until no client has it any more.

use std::collections::BTreeMap;

use super::shared::{COMMON, Interface, Region, Shared};
use super::{Port, State};
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::refusal::{AccessRefusal, Refusal};
use crate::model::policy::Caller;

/// The part of what a user's quota has left that a new region takes at most.
const SHARE: u128 = 16;

/// A region, and the user whose ports may join it.
struct Joined<'a> {
    region: &'a Region,
    uid: u32,
    common: bool,
}

fn joined(Shared { region, uid, common, .. }: &Shared) -> Joined<'_> {
    Joined { region, uid: *uid, common: *common }
}

/// The region that a port is in, and the one that an interface keeps.
fn joined_by(port: &Port) -> impl Iterator<Item = Joined<'_>> {
    let kept = port.interface.as_ref().map(|Interface { region, common, .. }| Joined {
        region,
        uid: port.owner,
        common: *common,
    });
    port.bound.as_ref().map(joined).into_iter().chain(kept)
}

/// The regions of a port: one, or two where its interface keeps another.
pub(super) fn regions_of(port: &Port) -> impl Iterator<Item = &Region> {
    joined_by(port).map(|joined| joined.region)
}

/// What a user pays for of these regions. Several ports may be in one, which is charged for once.
pub(super) fn charges<'a>(uid: u32, regions: impl IntoIterator<Item = &'a Region>) -> u64 {
    let paid = regions.into_iter().filter(|region| region.charge.uid == uid);
    let each: BTreeMap<_, _> = paid.map(|it| (it.mem_id, it.charge.memory)).collect();
    each.values().sum()
}

impl State {
    fn joined(&self) -> impl Iterator<Item = Joined<'_>> {
        let unswitched = self.unswitched.values().map(|unswitched| joined(&unswitched.shared));
        self.ports().flat_map(|(_, port)| joined_by(port)).chain(unswitched)
    }

    /// The regions of ports in which a user has a stake, and of those in regions that it pays for.
    fn joined_of_user(&self, uid: u32) -> impl Iterator<Item = Joined<'_>> {
        let unswitched = self.unswitched_of_user(uid).map(|conn| &self.unswitched[&conn].shared);
        self.ports_of_user(uid).flat_map(joined_by).chain(unswitched.map(joined))
    }

    /// The region that the caller means by a number; `None`: a new one.
    pub fn region(&self, caller: &Caller, mem_id: u16) -> Result<Option<Region>, Refusal> {
        let mut own = self.joined_of_user(caller.uid).filter(|joined| joined.uid == caller.uid);
        let found = match mem_id {
            0 => return Ok(None),
            COMMON => return Ok(own.find(|joined| joined.common).map(|own| own.region.clone())),
            _ => own.find(|own| own.region.mem_id == mem_id),
        };
        match found.or_else(|| self.joined().find(|joined| joined.region.mem_id == mem_id)) {
            None => Err(NetmapRefusal::NoRegion(mem_id).into()),
            Some(joined) if joined.uid != caller.uid => Err(AccessRefusal::SharedMemory {
                what: format!("region {mem_id}"),
                owner: joined.uid,
            }
            .into()),
            Some(joined) => Ok(Some(joined.region.clone())),
        }
    }

    /// The regions that a user pays for.
    fn charged_regions(&self, uid: u32) -> impl Iterator<Item = &Region> {
        let regions = self.joined_of_user(uid).map(|joined| joined.region);
        regions.filter(move |region| region.charge.uid == uid)
    }

    /// The most that a new region may have of a user's quota, and its share, which it has unless it
    /// needs more. The share is a smaller part the less is left: if it were always a sixteenth, 90
    /// ports in regions of their own would use up the default quota; so several hundred have room.
    #[must_use]
    pub fn room_for_region(&self, uid: u32) -> (u64, u64) {
        let quota = self.quota.memory;
        let left = quota.saturating_sub(self.usage(uid).memory);
        let share = u128::from(left) * u128::from(left) / SHARE / u128::from(quota.max(1));
        (left, u64::try_from(share).expect("a part of what is left"))
    }

    /// A port went. Of a region that went with it, the memory is left while clients have it.
    pub(super) fn note_regions_left<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) {
        let each: BTreeMap<_, _> = regions.map(|region| (region.mem_id, region)).collect();
        for Region { mem_id, charge, life } in each.into_values() {
            if !self.charged_regions(charge.uid).any(|region| region.mem_id == *mem_id) {
                self.leases.leave(*charge, life.clone());
            }
        }
    }

    /// Whether no client has got a port of this region yet.
    #[must_use]
    pub fn is_untouched(&self, region: &Region) -> bool {
        let Region { mem_id, charge, .. } = region;
        let is_it = |shared: &&Shared| shared.region.mem_id == *mem_id;
        let ports = self.ports_of_user(charge.uid).filter_map(|port| port.bound.as_ref());
        let unswitched = self.unswitched_of_user(charge.uid).map(|it| &self.unswitched[&it].shared);
        !ports.chain(unswitched).filter(is_it).any(|shared| shared.ready)
    }
}
