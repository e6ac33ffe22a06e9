//! Where the buffers of trust groups are, asked of the workers.
//!
//! A call looks at some members of one group. A worker stops for [`SLOTS`] of its members' slots,
//! or for one member, and moves frames before it stops again; lists of extra buffers, which no
//! switch touches, are followed here, and [`LISTED`] of them make a call the last of its page.

use ring::audit::{Held, Tally};
use ring::layout::PortLayout;

use super::memory::Memory;
use super::{Site, Workers};
use crate::control::datapath::{AUDIT_MEMBERS, Audited, AuditedMember, GroupKey, PortKey};

/// Slots that a worker looks at before it moves frames again, unless one port has more.
const SLOTS: u32 = 32_768;
/// Extra buffers after which a call ends.
const LISTED: u32 = 65_536;

/// A member as control knows it.
struct Member {
    port: PortKey,
    layout: PortLayout,
    given: u32,
    /// The worker that moves its frames; `None`: it is being made.
    worker: Option<usize>,
}

impl Workers {
    /// Of all members together: what they were given, and what they have, is counted at once. Of
    /// each, at its worker, where nothing moves meanwhile; what moves between members of two
    /// workers, or of two stretches, may count twice or not at all.
    pub(super) fn audit_group(&self, group: &GroupKey, from: PortKey) -> Option<Audited> {
        let (mut tally, all) = (Tally::new(self.groups.get(group)?.region()), self.members(group));
        let mut audited = Audited {
            buffers: tally.usable(),
            free: tally.free(),
            given: all.iter().map(|member| member.given).sum(),
            owned: all.iter().map(|member| tally.owned(&member.layout)).sum(),
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
                if !begins {
                    audited.listed += tally.extra(&member.layout, &mut held);
                }
                audited.members.push(AuditedMember { port: member.port, held, begins });
            }
            rest = &rest[stretch.len()..];
        }
        Some(audited)
    }

    /// What they have in their slots, as their worker sees it between two turns.
    fn count_slots(&self, mut tally: Tally, stretch: &[Member]) -> (Tally, Vec<Held>) {
        let ports: Vec<_> = stretch.iter().map(|member| (member.layout, member.given)).collect();
        match stretch.first().and_then(|member| member.worker) {
            Some(worker) => self.workers[worker].handle.call(move |_| {
                tally.recount();
                let held = ports.iter().map(|(port, given)| tally.slots(port, *given)).collect();
                (tally, held)
            }),
            None => {
                let owned = |(port, given): &(PortLayout, u32)| Held {
                    given: *given,
                    owned: tally.owned(port),
                    ..Held::default()
                };
                let held = ports.iter().map(owned).collect();
                (tally, held)
            }
        }
    }

    /// The members of a group, by their keys.
    fn members(&self, group: &GroupKey) -> Vec<Member> {
        let plugged = self.ports.iter().filter_map(|(&port, place)| {
            let memory = place.memory.as_ref().filter(|memory| memory.group == *group)?;
            let Memory { layout, given, .. } = *memory;
            Some(Member { port, layout, given, worker: Some(self.place(place.switch).worker) })
        });
        let begins = self.sites.iter().filter_map(|(&port, Site { spec, memory })| {
            let layout = *memory.plot.layout();
            let of_it = spec.group.as_ref() == Some(group);
            of_it.then(|| Member { port, layout, given: spec.rings.buffers(), worker: None })
        });
        let mut all: Vec<_> = plugged.chain(begins).collect();
        all.sort_by_key(|member| member.port);
        all
    }
}

/// The first of them that one worker looks at in one go.
fn stretch(members: &[Member], most: usize) -> &[Member] {
    let mut slots = 0;
    let count = members.iter().take(most).take_while(|member| {
        slots += member.layout.counts().buffers();
        member.worker == members[0].worker && (slots <= SLOTS || member.port == members[0].port)
    });
    &members[..count.count()]
}
