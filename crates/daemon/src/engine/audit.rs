//! Where the buffers of trust groups are, asked of the workers.
//!
//! A call looks at some members of one group. A worker stops for [`SLOTS`] of its members' slots,
//! or for one member, and moves frames before it stops again; lists of extra buffers, which no
//! switch touches, are followed here, and [`LISTED`] of them make a call the last of its page.

use std::collections::BTreeSet;
use std::sync::Arc;

use port::group::{Group, Share};
use ring::audit::{Held, Member as Rings, Tally};
use ring::owners::Owner;

use super::{Site, Workers};
use crate::control::datapath::groups::Groups;
use crate::model::audit::{AUDIT_MEMBERS, Audited, AuditedMember};
use crate::model::keys::{GroupKey, PortKey};

/// Slots that a worker looks at before it moves frames again, unless one port has more.
const SLOTS: u32 = 32_768;
/// Extra buffers after which a call ends.
const LISTED: u32 = 65_536;

/// A member as control knows it.
struct Member {
    port: PortKey,
    place: Place,
    /// The worker that moves its frames; `None`: it is being made.
    worker: Option<usize>,
}

/// Where its buffers are.
#[derive(Clone)]
enum Place {
    /// In rings.
    Rings(Rings),
    /// With the kernel.
    Share(Arc<Share>),
}

impl Place {
    fn given(&self) -> u32 {
        match self {
            Self::Rings(rings) => rings.given,
            Self::Share(share) => share.given(),
        }
    }

    fn owner(&self) -> Owner {
        match self {
            Self::Rings(rings) => rings.owner(),
            Self::Share(share) => share.owner(),
        }
    }

    /// Slots to look at.
    fn slots(&self) -> u32 {
        match self {
            Self::Rings(rings) => rings.given,
            Self::Share(_) => 0,
        }
    }

    fn held(&self, tally: &mut Tally) -> Held {
        match self {
            Self::Rings(rings) => tally.slots(rings),
            Self::Share(share) => share.held(tally),
        }
    }
}

impl Workers {
    /// What they have in their slots, as their worker sees it between two turns.
    fn count_slots(&self, mut tally: Tally, stretch: &[Member]) -> (Tally, Vec<Held>) {
        let places: Vec<_> = stretch.iter().map(|member| member.place.clone()).collect();
        match stretch.first().and_then(|member| member.worker) {
            Some(worker) => self.workers[worker].handle.call(move |_| {
                tally.recount();
                let held = places.iter().map(|place| place.held(&mut tally)).collect();
                (tally, held)
            }),
            None => {
                let owned = |place: &Place| Held {
                    given: place.given(),
                    owned: tally.owned(place.owner()),
                    ..Held::default()
                };
                let held = places.iter().map(owned).collect();
                (tally, held)
            }
        }
    }

    /// The members of a group, by their keys.
    fn members(&self, group: &GroupKey) -> Vec<Member> {
        let plugged = self.ports.iter().filter_map(|(&port, place)| {
            let memory = place.memory.as_ref().filter(|memory| memory.group == *group)?;
            let rings = Rings::new(&memory.layout, memory.given);
            let worker = Some(place.worker);
            Some(Member { port, place: Place::Rings(rings), worker })
        });
        let begins = self.sites.iter().filter_map(|(&port, Site { spec, memory, .. })| {
            let place = Place::Rings(Rings::new(memory.reservation.layout(), spec.rings.buffers()));
            let of_it = spec.group.as_ref() == Some(group);
            of_it.then_some(Member { port, place, worker: None })
        });
        let shares = self.groups.get(group).into_iter().flat_map(Group::shares);
        let interfaces = shares.filter_map(|share| {
            let port = self.host.who_has(&share)?;
            let worker = Some(self.ports.get(&port)?.worker);
            Some(Member { port, place: Place::Share(share), worker })
        });
        let mut all: Vec<_> = plugged.chain(begins).chain(interfaces).collect();
        all.sort_by_key(|member| member.port);
        all
    }

    /// Buffers of interfaces that are being opened or closed: no port's.
    fn between(&self, group: &Group, tally: &Tally) -> u32 {
        let is_ports = |share: &Arc<Share>| {
            self.host.who_has(share).is_some_and(|port| self.switch_of(port).is_some())
        };
        let others = group.shares().filter(|share| !is_ports(share));
        others.map(|share| tally.owned(share.owner())).sum()
    }
}

/// The first of them that one worker looks at in one go.
fn stretch(members: &[Member], most: usize) -> &[Member] {
    let mut slots = 0;
    let count = members.iter().take(most).take_while(|member| {
        slots += member.place.slots();
        member.worker == members[0].worker && (slots <= SLOTS || member.port == members[0].port)
    });
    &members[..count.count()]
}

impl Groups for Workers {
    fn groups(&self) -> Vec<GroupKey> {
        self.groups.keys().cloned().collect()
    }

    fn has_group(&self, group: &GroupKey) -> bool {
        self.groups.contains_key(group)
    }

    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited> {
        let shared = self.groups.get(group)?;
        let (mut tally, all) = (Tally::new(shared.region()), self.members(group));
        // Members that share theirs are one.
        let owners: BTreeSet<_> = all.iter().map(|member| member.place.owner()).collect();
        let mut audited = Audited {
            committed: shared.committed(),
            buffers: tally.usable() - self.between(shared, &tally),
            free: tally.free(),
            given: all.iter().map(|member| member.place.given()).sum(),
            owned: owners.into_iter().map(|owner| tally.owned(owner)).sum(),
            members: Vec::new(),
            listed: 0,
            next: None,
        };
        let mut rest = &all[all.partition_point(|member| member.port < from)..];
        while let Some(first) = rest.first() {
            let room = AUDIT_MEMBERS - audited.members.len();
            if room == 0 || audited.listed >= LISTED {
                audited.next = Some(first.port);
                break;
            }
            let stretch = stretch(rest, room);
            let held;
            (tally, held) = self.count_slots(tally, stretch);
            for (member, mut held) in stretch.iter().zip(held) {
                let begins = member.worker.is_none();
                if let (false, Place::Rings(rings)) = (begins, &member.place) {
                    audited.listed += tally.extra(rings, &mut held);
                }
                audited.members.push(AuditedMember { port: member.port, held, begins });
            }
            rest = &rest[stretch.len()..];
        }
        Some(audited)
    }
}
