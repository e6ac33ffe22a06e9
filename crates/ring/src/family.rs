//! Members that exchange buffers without the switch: functions that direct hops join.
//!
//! # Theory of operation
//!
//! The switch notes the owner of every buffer that it moves ([`crate::group::owners`]); of what clients
//! exchange among themselves it sees nothing. So members that do this have one owner together, with
//! a number of its own, and it is enough to know how many buffers the pool gave to each. A hop's
//! ring is a member too.
//!
//! ```text
//!   port a ──┐                 ┌── its slots: what it has
//!   hop    ──┼── one owner ────┤
//!   port b ──┘                 └── on the way from slot to slot, in its client's hands
//! ```
//!
//! *Leaving.* Exchanges are one for one, so who leaves has as many buffers as it was given, and
//! these stand in its slots, where nobody moves them any more. A client that was killed between the
//! two halves of an exchange left one buffer in two slots, and another in none: that one is looked
//! for among those that stand nowhere. The living have some of these too, in their hands, for some
//! nanoseconds: what is found in several looks is the dead one's. Where that does not tell, the
//! family owes it to the pool until somebody else leaves; the last one leaves everything.
//!
//! To be called on the worker of the members' switch, between two turns.

use core::mem::offset_of;
use std::sync::Arc;

use crate::format::abi::{CsbAtok, CsbKtoa, NetmapRing, Slot, slot_flag};
use crate::format::cursor::Index;
use crate::format::layout::{BufferIndex, PortLayout};
use crate::group::owners::Owner;
use crate::region::Region;

/// Looks at what stands nowhere, before it is left to the family.
const LOOKS: usize = 16;

/// What a direct hop has carried, and what stands in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that went this way.
    pub frames: u64,
    /// Frames that were not given back.
    pub waiting: u32,
}

impl Traffic {
    /// Of the hop whose receive ring is the only one at `hop`. All of it is its clients' word.
    #[must_use]
    pub fn of(region: &Region, hop: &PortLayout) -> Self {
        let counts = hop.counts();
        let (ring, span) = (usize::from(counts.tx_rings), counts.rx_slots);
        let index = |at| span.check(region.memory().read(at));
        let (atok, ktoa) = (hop.atok(ring), hop.ktoa(ring));
        let head = index(atok + offset_of!(CsbAtok, head));
        let tail = index(ktoa + offset_of!(CsbKtoa, hwtail));
        let frames = region.memory().read(ktoa + offset_of!(CsbKtoa, frames));
        let slots = head.zip(tail).map_or(0, |(head, tail)| span.distance(head, tail));
        let ends = |i: &u32| {
            let at = span.add(head.unwrap_or(Index::ZERO), *i).at() * size_of::<Slot>();
            let slot: Slot = region.memory().read(hop.ring(ring) + size_of::<NetmapRing>() + at);
            slot.len > 0 && slot.flags & slot_flag::MOREFRAG == 0
        };
        let waiting = u32::try_from((0..slots).filter(ends).count()).unwrap_or(slots);
        Self { frames, waiting }
    }
}

/// Members with one owner.
#[derive(Debug)]
pub struct Family {
    region: Arc<Region>,
    owner: Owner,
    members: Vec<Member>,
    /// Buffers that those who left have left too few.
    owed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    layout: PortLayout,
    given: usize,
}

impl Family {
    /// One without members; no other of the region has this number.
    #[must_use]
    pub fn new(region: &Arc<Region>, number: u16) -> Self {
        let owner = Owner::family(number);
        Self { region: region.clone(), owner, members: Vec::new(), owed: 0 }
    }

    /// The owner of all their buffers.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Is it of this region?
    #[must_use]
    pub fn is_in(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Is this a member?
    #[must_use]
    pub fn has(&self, port: &PortLayout) -> bool {
        self.members.iter().any(|member| member.layout == *port)
    }

    /// Has everybody left?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// What is the port's is the family's from now on.
    pub fn join(&mut self, port: &PortLayout) {
        let (owners, own) = (self.region.owners(), Owner::of(port));
        self.members.push(Member { layout: *port, given: owners.count(own) });
        owners.pass_all(own, self.owner);
    }

    /// Two become one.
    pub fn merge(&mut self, other: Self) {
        self.region.owners().pass_all(other.owner, self.owner);
        self.members.extend(other.members);
        self.owed += other.owed;
    }

    /// A member leaves, whose slots nobody changes any more. Returns the buffers that it leaves, in
    /// order: they are the family's until [`Region::free_some`].
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn leave(&mut self, port: &PortLayout) -> Vec<BufferIndex> {
        let at = self.members.iter().position(|member| member.layout == *port);
        let gone = self.members.swap_remove(at.expect("a member"));
        match self.is_empty() {
            true => self.owned().collect(),
            false => self.left_by(&gone),
        }
    }

    fn left_by(&mut self, gone: &Member) -> Vec<BufferIndex> {
        let due = gone.given + self.owed;
        let (mut own, mut nowhere) = self.look(gone);
        for _ in 0..LOOKS {
            if own.len() >= due || own.len() + nowhere.len() <= due {
                break;
            }
            let (still_own, still) = self.look(gone);
            nowhere.retain(|buffer| still.binary_search_by_key(&buffer.get(), |b| b.get()).is_ok());
            own = still_own;
        }
        if own.len() + nowhere.len() <= due {
            own.append(&mut nowhere);
        }
        own.truncate(due);
        self.owed = due - own.len();
        own.sort_by_key(|buffer| buffer.get());
        own
    }

    /// The family's buffers that stand with one who leaves and with no other, and those that stand
    /// nowhere, in order.
    fn look(&self, gone: &Member) -> (Vec<BufferIndex>, Vec<BufferIndex>) {
        let mut seen = vec![false; self.region.layout().buffers as usize];
        for member in &self.members {
            self.places(member).for_each(|buffer| seen[buffer.get() as usize] = true);
        }
        let owners = self.region.owners();
        let mut take = |buffer: &BufferIndex| {
            let new = !std::mem::replace(&mut seen[buffer.get() as usize], true);
            new && owners.of(*buffer) == self.owner
        };
        let own = self.places(gone).filter(&mut take).collect();
        (own, self.owned().filter(take).collect())
    }

    fn places(&self, member: &Member) -> impl Iterator<Item = BufferIndex> + '_ {
        let slots = self.region.slot_buffers(&member.layout);
        // A list may be written to go on and on: nobody has more than he was given.
        slots.chain(self.region.extra_buffers(&member.layout).take(member.given))
    }

    fn owned(&self) -> impl Iterator<Item = BufferIndex> + '_ {
        self.region.buffers().filter(|buffer| self.region.owners().of(*buffer) == self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, ports};

    /// Two ports and a hop, and what the pool has.
    fn family(ports: &mut [BothHalves]) -> (Family, Arc<Region>) {
        let region = ports[0].host.region().clone();
        let mut family = Family::new(&region, 0);
        for port in ports {
            family.join(port.host.layout());
            port.host.adopt(family.owner());
        }
        (family, region)
    }

    /// A member leaves; returns how many buffers it left.
    fn leave(family: &mut Family, port: &PortLayout) -> usize {
        let freed = family.leave(port);
        family.region.free_some(family.owner, &freed);
        freed.len()
    }

    /// The client of `from` passes what it has received on, `count` slots, into `to`'s ring.
    fn exchange(from: &mut BothHalves, to: &mut BothHalves, count: u32) {
        for i in 0..count {
            let (full, spare) = (from.tx.buffer_index(i), to.tx.buffer_index(i));
            to.tx.set_buffer_index(i, full);
            from.tx.set_buffer_index(i, spare);
        }
    }

    fn numbers(buffers: &[BufferIndex]) -> Vec<u32> {
        buffers.iter().map(|buffer| buffer.get()).collect()
    }

    #[test]
    fn who_leaves_leaves_what_stands_in_its_slots_whoever_had_it_before() {
        let mut ports = ports::<3>();
        let (mut family, region) = family(&mut ports);
        let [a, b, _] = &mut ports;
        exchange(a, b, 7);
        let mut stands: Vec<_> = region.slot_buffers(a.host.layout()).collect();
        stands.sort_by_key(|buffer| buffer.get());
        let freed = family.leave(a.host.layout());
        assert_eq!(numbers(&freed), numbers(&stands));
        region.free_some(family.owner(), &freed);
        let layouts = [ports[1].host.layout(), ports[2].host.layout()];
        assert_eq!(leave(&mut family, layouts[0]), 32);
        assert_eq!(leave(&mut family, layouts[1]), 32, "the last leaves everything");
        assert!(family.is_empty());
        assert_eq!(region.owners().count(family.owner()), 0);
    }

    #[test]
    fn a_buffer_that_was_on_its_way_when_its_client_died_is_found() {
        let mut ports = ports::<3>();
        let (mut family, region) = family(&mut ports);
        let [a, b, _] = &mut ports;
        // The first half of an exchange: one buffer is in two slots, another in none.
        let (full, lost) = (a.tx.buffer_index(0), b.tx.buffer_index(0));
        b.tx.set_buffer_index(0, full);
        let freed = family.leave(a.host.layout());
        assert_eq!(freed.len(), 32);
        region.free_some(family.owner(), &freed);
        assert!(numbers(&freed).contains(&lost) && !numbers(&freed).contains(&full));
        assert_eq!(region.owners().count(family.owner()), 64);
    }

    #[test]
    fn what_cannot_be_told_from_what_the_living_have_in_hand_is_owed() {
        let mut ports = ports::<3>();
        let (mut family, region) = family(&mut ports);
        let [a, b, c] = &mut ports;
        b.tx.set_buffer_index(0, a.tx.buffer_index(0));
        c.tx.set_buffer_index(0, c.rx_slot(0));
        assert_eq!(leave(&mut family, a.host.layout()), 31, "two stand nowhere");
        let layouts = [ports[1].host.layout(), ports[2].host.layout()];
        assert_eq!(leave(&mut family, layouts[1]), 33, "it comes with the next");
        assert_eq!(leave(&mut family, layouts[0]), 32);
        assert_eq!(region.owners().count(family.owner()), 0);
    }

    #[test]
    fn a_list_without_an_end_is_followed_as_far_as_its_member_has_buffers() {
        let mut ports = ports::<3>();
        let (mut family, region) = family(&mut ports);
        let all: Vec<_> = region.buffers().collect();
        region.format_extra(ports[1].host.layout(), &all);
        let place = |member: &Member| family.places(member).count();
        assert!(family.members.iter().all(|member| place(member) <= 32 + member.given));
        // What the others say is theirs is not taken from the one who leaves in full, and is owed.
        let left = leave(&mut family, ports[0].host.layout());
        let rest: usize = [1, 2].map(|i| leave(&mut family, ports[i].host.layout())).iter().sum();
        assert_eq!(left + rest, 96);
    }

    #[test]
    fn two_families_become_one() {
        let mut ports = ports::<4>();
        let (one, other) = ports.split_at_mut(2);
        let (mut family, region) = family(one);
        let mut second = Family::new(&region, 1);
        other.iter().for_each(|port| second.join(port.host.layout()));
        family.merge(second);
        assert_eq!(region.owners().count(family.owner()), 128);
        assert!(ports.iter().all(|port| family.has(port.host.layout())));
    }
}
