//! The audit of a shared region: where each buffer is, to see that none is lost.
//!
//! Every buffer has one owner ([`crate::group::owners`]); what an owner has stands in its slots or
//! in its list of extra buffers, or its client has taken it out of both. Swaps are one for one, so
//! what a member owns is as many as it was given, and the pool has the rest.
//!
//! ```text
//!   recount, slots    on the worker of these members, between two turns: no swap is under way
//!   extra             anywhere: the switch does not touch these lists
//! ```
//!
//! What stands where is the clients' word: one that exchanges two buffers at this moment has one of
//! them in two places. What is owned is the daemon's own.
//!
//! *Cost.* A recount reads two bytes for each buffer of the region, one after the other. A member's
//! slots are as many as it was given buffers for. A list is followed as far as its member has
//! buffers, and no farther than [`LIST_MAX`]: whatever is written into it, its end is near.

use std::sync::Arc;

use crate::format::layout::{BufferIndex, PAGE, PortLayout};
use crate::group::owners::Owner;
use crate::region::Region;
use crate::region::extra::LIST_MAX;

/// The buffers of a member, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Buffers that the pool gave it.
    pub given: u32,
    /// Buffers that are its own now.
    pub owned: u32,
    /// Own buffers in slots of its transmit rings.
    pub tx: u32,
    /// Own buffers in slots of its receive rings.
    pub rx: u32,
    /// Own buffers in its list of extra buffers.
    pub extra: u32,
    /// Places where it has another's, or one that stands elsewhere too.
    pub wrong: u32,
}

impl Held {
    /// Own buffers that stand nowhere: the client has taken them out.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.owned.saturating_sub(self.tx + self.rx + self.extra)
    }
}

/// A member to be audited.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where it lies.
    pub port: PortLayout,
    /// Buffers that the pool gave it.
    pub given: u32,
}

impl Member {
    /// A port with the buffers that the pool gave it.
    #[must_use]
    pub fn new(port: &PortLayout, given: u32) -> Self {
        Self { port: *port, given }
    }

    /// Owner of its buffers.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::of(&self.port)
    }
}

/// The running count of an audit.
#[derive(Debug)]
pub struct Tally {
    region: Arc<Region>,
    /// How many each owner has, by its number.
    owned: Vec<u32>,
    /// The owner's number in whose place a buffer was found; 0: not found yet.
    seen: Vec<u16>,
}

impl Tally {
    /// Counts the buffers of each owner.
    #[must_use]
    pub fn new(region: &Arc<Region>) -> Self {
        let (layout, region) = (region.layout(), region.clone());
        let numbers = layout.pool / PAGE;
        let (owned, seen) = (vec![0; numbers], vec![0; layout.buffers as usize]);
        let mut this = Self { region, owned, seen };
        this.recount();
        this
    }

    /// Counts the buffers of each owner again. While buffers are exchanged elsewhere the sum is
    /// right; the count of one member may be off by those under way.
    pub fn recount(&mut self) {
        self.owned.fill(0);
        self.region.owners().count_into(&mut self.owned);
    }

    /// How many usable buffers are in the pool.
    #[must_use]
    pub fn free(&self) -> u32 {
        let unusable = self.region.layout().buffers - self.usable();
        self.owned[Owner::POOL.number()].saturating_sub(unusable)
    }

    /// How many buffers members could have.
    #[must_use]
    pub fn usable(&self) -> u32 {
        u32::try_from(self.region.buffers().count()).expect("a region is below 4 GiB")
    }

    /// How many buffers one owner has.
    #[must_use]
    pub fn owned(&self, owner: Owner) -> u32 {
        self.owned.get(owner.number()).copied().unwrap_or(0)
    }

    /// Looks at the slots of a member.
    pub fn slots(&mut self, member: &Member) -> Held {
        let (own, region, given) = (member.owner(), self.region.clone(), member.given);
        let mut held = Held { given, owned: self.owned(own), ..Held::default() };
        let (tx, rx) = region.ring_buffers(&member.port);
        for buffer in tx {
            *self.place(own, buffer, &mut held.tx, &mut held.wrong) += 1;
        }
        for buffer in rx {
            *self.place(own, buffer, &mut held.rx, &mut held.wrong) += 1;
        }
        held
    }

    /// Adds the buffers in the member's list of extra buffers; returns how far the list was
    /// followed.
    pub fn extra(&mut self, member: &Member, held: &mut Held) -> u32 {
        let (own, region) = (member.owner(), self.region.clone());
        let (most, mut followed) = (held.owned.min(LIST_MAX), 0);
        for buffer in region.extra_buffers(&member.port).take(most as usize) {
            *self.place(own, buffer, &mut held.extra, &mut held.wrong) += 1;
            followed += 1;
        }
        followed
    }

    /// Where a buffer counts that stands in a place of `own`.
    fn place<'a>(
        &mut self,
        own: Owner,
        buffer: BufferIndex,
        right: &'a mut u32,
        wrong: &'a mut u32,
    ) -> &'a mut u32 {
        let stamp = u16::try_from(own.number()).expect("16 bits");
        let before = std::mem::replace(&mut self.seen[buffer.get() as usize], stamp);
        if before == stamp || self.region.owners().of(buffer) != own { wrong } else { right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, ports};

    fn held(half: &BothHalves) -> Held {
        let mut tally = Tally::new(half.host.region());
        let member = Member::new(half.host.layout(), 32);
        let mut held = tally.slots(&member);
        tally.extra(&member, &mut held);
        held
    }

    #[test]
    fn what_stands_in_two_places_or_is_anothers_is_wrong() {
        let [a, mut b] = ports();
        for held in [held(&a), held(&b)] {
            assert_eq!((held.owned, held.tx, held.rx), (held.given, 16, 16));
            assert_eq!((held.kept(), held.wrong), (0, 0));
        }
        let tally = Tally::new(a.host.region());
        assert_eq!(tally.free() + 64, tally.usable());
        let (own, others) = (b.tx.buffer_index(1), a.tx.buffer_index(0));
        b.tx.refresh();
        b.tx.set_buffer_index(0, own);
        assert_eq!((held(&b).tx, held(&b).wrong, held(&b).kept()), (15, 1, 1));
        b.tx.set_buffer_index(0, others);
        assert_eq!((held(&b).tx, held(&b).wrong, held(&b).kept()), (15, 1, 1));
    }

    #[test]
    fn a_list_is_followed_as_far_as_its_member_has_buffers() {
        let [a, b] = ports();
        let (region, port) = (a.host.region(), a.host.layout());
        // It goes on and on, through all there is and back to its beginning.
        let all: Vec<_> = region.buffers().collect();
        region.format_extra(port, &all);
        let last = region.offset(*all.last().expect("many"));
        region.memory().write(last, all[0].get());
        let mut tally = Tally::new(region);
        let member = Member::new(port, 32);
        let mut held = tally.slots(&member);
        assert_eq!(tally.extra(&member, &mut held), 32);
        assert_eq!((held.tx, held.rx, held.extra), (16, 16, 0), "they stand in slots");
        assert_eq!(held.wrong, 32);
        assert_eq!(self::held(&b).wrong, 0);
    }
}
