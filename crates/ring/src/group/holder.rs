//! What the holder of a port that several may hold has of his own: a `netmap_if` and extra buffers.
//!
//! The `netmap_if` has a page for itself, before all port blocks of the region, so that the offsets
//! of rings are positive. In it are the offsets of the rings that the holder has bound, 0 for
//! others, and the head of his list of extra buffers. The two sides of an interface are two ports;
//! one holder may have rings of both:
//!
//! ```text
//!   netmap_if   NIC tx… │ host tx… │ NIC rx… │ host rx…
//! ```
//!
//! *Who owns the buffers* ([`crate::group::owners`]). Those on loan are the holder's. He may put
//! them into slots, and what stood there into his list: then the port has some of his, and his list
//! some of the port's. When he leaves, what is in his list goes back to the pool, as long as it is
//! his or the port's; what is not becomes the port's. So the port has as many as before, and
//! nothing comes back twice.

use std::io;

use crate::format::held::HeldSides;
use crate::format::layout::{BufferIndex, PAGE};
use crate::group::owners::Owner;
use crate::region::Region;

/// A holder's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    nifp: usize,
}

impl Holder {
    /// A holder whose page is at `nifp`.
    ///
    /// # Panics
    /// If that is no page.
    #[must_use]
    pub fn new(nifp: usize) -> Self {
        assert!(nifp.is_multiple_of(PAGE));
        Self { nifp }
    }

    /// Offset of the `netmap_if`.
    #[must_use]
    pub fn nifp(&self) -> usize {
        self.nifp
    }

    /// The owner of the buffers on loan.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::at(self.nifp)
    }
}

impl Region {
    /// Writes a holder's `netmap_if`: his rings and `extra` buffers.
    ///
    /// # Errors
    /// `ENOMEM` where the page cannot be committed.
    ///
    /// # Panics
    /// If the page does not lie before the blocks of the ports.
    pub fn format_holder(
        &self,
        holder: &Holder,
        name: &str,
        sides: &HeldSides,
        extra: &[BufferIndex],
    ) -> io::Result<()> {
        assert!(sides.ports().all(|port| holder.nifp + PAGE <= port.nifp()));
        self.memory().populate(holder.nifp, PAGE)?;
        self.format_nifp(holder.nifp, name, sides, true);
        self.format_list(holder.nifp, extra);
        Ok(())
    }

    /// Takes back what a holder had.
    ///
    /// # Panics
    /// If he had no port.
    pub fn release_holder(&self, holder: &Holder, sides: &HeldSides) {
        let (owners, owner, pins) = (self.owners(), holder.owner(), self.pins());
        let mut freed = Vec::new();
        for buffer in self.list(holder.nifp) {
            let own = owners.pass(buffer, owner, Owner::POOL);
            let of = |port| owners.pass(buffer, Owner::of(port), Owner::POOL);
            if !own && !sides.ports().any(of) {
                // A list that leads elsewhere leads nowhere: circles end here too.
                break;
            }
            freed.push(buffer);
        }
        let heir = sides.ports().next().expect("a holder holds something");
        owners.pass_all(owner, Owner::of(heir));
        freed.sort_unstable_by_key(|buffer| buffer.get());
        self.decommit_buffers(&freed, &pins);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::cursor::RingSize;
    use crate::format::held::HeldRings;
    use crate::format::held::HeldSides;
    use crate::format::layout::{
        DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts,
    };
    use std::sync::Arc;

    struct Setup {
        region: Arc<Region>,
        port: PortLayout,
        holders: [Holder; 2],
    }

    /// A port with four rings, two holders' pages before it, `extra` more buffers.
    fn setup(extra: u32) -> Setup {
        let slots = RingSize::new(8).expect("legal");
        let counts = RingCounts { tx_rings: 2, rx_rings: 2, tx_slots: slots, rx_slots: slots };
        let port = PortLayout::new(FIRST_BLOCK + 2 * PAGE, counts);
        let blocks = port.end() - FIRST_BLOCK;
        let layout = RegionLayout::new(blocks, DEFAULT_STRIDE, counts.buffers() + extra);
        let (region, _) = Region::create_shared("test", layout.expect("legal")).expect("memory");
        let own: Vec<_> = region.buffers().take(counts.buffers() as usize).collect();
        for &buffer in &own {
            assert!(region.owners().pass(buffer, Owner::POOL, Owner::of(&port)));
        }
        region.format_port("test", &port, own, true).expect("memory");
        let holders = [FIRST_BLOCK, FIRST_BLOCK + PAGE].map(Holder::new);
        Setup { region, port, holders }
    }

    impl Setup {
        fn lend(&self, holder: usize, count: usize) -> Vec<BufferIndex> {
            let (owners, owner) = (self.region.owners(), self.holders[holder].owner());
            let free = self.region.buffers();
            let extra: Vec<_> =
                free.filter(|b| owners.pass(*b, Owner::POOL, owner)).take(count).collect();
            self.region
                .format_holder(&self.holders[holder], "t", &self.sides(), &extra)
                .expect("memory");
            extra
        }

        fn sides(&self) -> HeldSides {
            HeldSides { nic: Some(HeldRings { port: self.port, tx: 1..2, rx: 0..0 }), host: None }
        }

        /// The offsets in a holder's page, up to the end of what is written there.
        fn offsets<const N: usize>(&self, holder: usize) -> [u64; N] {
            let nifp = self.holders[holder].nifp();
            core::array::from_fn(|i| self.region.memory().read(nifp + 56 + 8 * i))
        }

        fn count(&self, owner: Owner) -> usize {
            self.region.owners().count(owner)
        }
    }

    #[test]
    fn a_holder_sees_the_rings_that_he_bound_and_no_other() {
        let setup = setup(0);
        setup.lend(1, 0);
        let second = setup.port.ring(1) - setup.holders[1].nifp();
        assert_eq!(setup.offsets(1), [0, second as u64, 0, 0, 0, 0]);
    }

    #[test]
    fn rings_of_both_sides_stand_in_netmaps_order() {
        let setup = setup(0);
        let (port, holder) = (setup.port, &setup.holders[0]);
        let nic = HeldRings { port, tx: 0..2, rx: 1..2 };
        let host = HeldRings { port, tx: 1..2, rx: 0..2 };
        let sides = HeldSides { nic: Some(nic), host: Some(host) };
        setup.region.format_holder(holder, "t", &sides, &[]).expect("memory");
        let at = |ring| (port.ring(ring) - holder.nifp()) as u64;
        let (tx, rx) = ([at(0), at(1), 0, at(1)], [0, at(3), at(2), at(3)]);
        assert_eq!(setup.offsets::<8>(0), [tx, rx].concat()[..]);
        let word = |offset| setup.region.memory().read::<u32>(holder.nifp() + offset);
        assert_eq!([24, 28, 36, 40].map(word), [2; 4]);
    }

    #[test]
    fn what_was_lent_comes_back_also_when_it_was_swapped_with_slots() {
        let setup = setup(10);
        let (pool, own) = (setup.count(Owner::POOL), setup.count(Owner::of(&setup.port)));
        let extra = setup.lend(0, 4);
        let other = setup.lend(1, 3);
        assert_eq!(setup.count(Owner::POOL), pool - 7);
        // The holder puts one into a slot and what stood there into his list.
        let slot = setup.port.ring(0) + 256;
        let stood: u32 = setup.region.memory().read(slot);
        setup.region.memory().write(slot, extra[0].get());
        let stood = setup.region.check(stood).expect("a buffer");
        setup.region.format_list(setup.holders[0].nifp(), &[stood, extra[1], extra[2]]);
        setup.region.release_holder(&setup.holders[0], &setup.sides());
        assert_eq!(setup.region.owners().of(extra[0]), Owner::of(&setup.port));
        assert_eq!(setup.region.owners().of(stood), Owner::POOL);
        assert_eq!(setup.count(Owner::of(&setup.port)), own + 1, "one was kept out of the list");
        assert_eq!(setup.count(setup.holders[1].owner()), other.len());
        setup.region.release_holder(&setup.holders[1], &setup.sides());
        assert_eq!(setup.count(Owner::POOL), pool - 1);
    }

    #[test]
    fn circles_foreign_and_wild_numbers_give_nothing_back_twice() {
        let setup = setup(10);
        let (a, b) = (setup.lend(0, 2), setup.lend(1, 2));
        let memory = setup.region.memory();
        memory.write(setup.region.offset(a[1]), a[0].get());
        setup.region.release_holder(&setup.holders[0], &setup.sides());
        assert_eq!(setup.count(setup.holders[0].owner()), 0);
        memory.write(setup.region.offset(b[0]), a[0].get());
        setup.region.release_holder(&setup.holders[1], &setup.sides());
        assert_eq!(setup.region.owners().of(b[1]), Owner::of(&setup.port));
        setup.lend(0, 2);
        memory.write(setup.holders[0].nifp() + 32, u32::MAX);
        setup.region.release_holder(&setup.holders[0], &setup.sides());
        let total = setup.region.buffers().count();
        assert_eq!(setup.count(Owner::POOL) + setup.count(Owner::of(&setup.port)), total + 2);
    }
}
