//! Where the buffers of a shared region are, to see that none is lost.
//!
//! Every buffer has one owner ([`crate::owners`]); what an owner has stands in its slots or in its
//! list of extra buffers, or its client has taken it out of both. Swaps are one for one, so what a
//! member owns is as many as it was given, and the pool has the rest. A worker takes the tally of
//! its own members between two turns, when it holds no buffer itself.
//!
//! What stands where is the clients' word: one that exchanges two buffers at this moment has one of
//! them in two places. What is owned is the daemon's own.

use std::sync::Arc;

use crate::host::HostPort;
use crate::owners::Owner;
use crate::region::{BufferIndex, Region};

/// What a member has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Buffers that the pool gave it.
    pub given: u32,
    /// Buffers that are its own now.
    pub owned: u32,
    /// Of these, in slots of its transmit rings.
    pub tx: u32,
    /// In slots of its receive rings.
    pub rx: u32,
    /// In its list of extra buffers.
    pub extra: u32,
    /// Places where it has another's, or one that stands elsewhere too.
    pub wrong: u32,
}

impl Held {
    /// Those that stand nowhere: its client has taken them out.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.owned.saturating_sub(self.tx + self.rx + self.extra)
    }
}

/// A tally of a region, as far as one worker sees it.
#[derive(Debug)]
pub struct Tally {
    region: Arc<Region>,
    /// How many each owner has, by its number.
    owned: Vec<u32>,
    /// Buffers that stand somewhere.
    seen: Vec<bool>,
}

impl Tally {
    /// Counts who owns how many.
    #[must_use]
    pub fn new(region: &Arc<Region>) -> Self {
        let owned = region.owners().counts();
        let seen = vec![false; region.layout().buffers as usize];
        Self { region: region.clone(), owned, seen }
    }

    /// What a port has; `None`: it is not in this region.
    #[must_use]
    pub fn of(&mut self, port: &HostPort) -> Option<Held> {
        if !Arc::ptr_eq(port.region(), &self.region) {
            return None;
        }
        let (layout, region) = (port.layout(), self.region.clone());
        let own = Owner::of(layout);
        let mut held = Held { given: port.given(), owned: self.owned(own), ..Held::default() };
        let (tx, rx) = region.ring_buffers(layout);
        for buffer in tx {
            *self.place(own, buffer, &mut held.tx, &mut held.wrong) += 1;
        }
        for buffer in rx {
            *self.place(own, buffer, &mut held.rx, &mut held.wrong) += 1;
        }
        for buffer in region.extra_buffers(layout) {
            *self.place(own, buffer, &mut held.extra, &mut held.wrong) += 1;
        }
        Some(held)
    }

    fn owned(&self, owner: Owner) -> u32 {
        self.owned.get(owner.number()).copied().unwrap_or(0)
    }

    /// Where a buffer counts that stands in a place of `own`.
    fn place<'a>(
        &mut self,
        own: Owner,
        buffer: BufferIndex,
        right: &'a mut u32,
        wrong: &'a mut u32,
    ) -> &'a mut u32 {
        let twice = std::mem::replace(&mut self.seen[buffer.get() as usize], true);
        if twice || self.region.owners().of(buffer) != own { wrong } else { right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::ports;

    #[test]
    fn what_stands_in_two_places_or_is_anothers_is_wrong() {
        let [a, mut b] = ports();
        let region = a.host.region().clone();
        let tally = || {
            let mut tally = Tally::new(&region);
            [&a.host, &b.host].map(|host| tally.of(host).expect("a member"))
        };
        let whole = tally();
        for held in whole {
            assert_eq!((held.owned, held.tx, held.rx), (held.given, 16, 16));
            assert_eq!((held.kept(), held.wrong), (0, 0));
        }
        let (own, others) = (b.tx.buffer_index(1), a.tx.buffer_index(0));
        b.tx.refresh();
        b.tx.set_buffer_index(0, own);
        let mut tally = Tally::new(&region);
        let held = tally.of(&b.host).expect("a member");
        assert_eq!((held.tx, held.wrong, held.kept()), (15, 1, 1));
        b.tx.set_buffer_index(0, others);
        let held = Tally::new(&region).of(&b.host).expect("a member");
        assert_eq!((held.tx, held.wrong, held.kept()), (15, 1, 1));
    }
}
