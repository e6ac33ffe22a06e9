//! A member that leaves a trust group, and the buffers that are settled with the others.

use std::sync::Arc;

use super::owners::Owner;
use crate::format::layout::{BufferIndex, PortLayout};
use crate::region::Region;
use crate::region::extra::LIST_MAX;

/// A member that leaves. Its switch has dropped it already.
///
/// Every other member has to [`reconcile`](crate::kring::krings::Krings::reconcile) with it, on
/// that member's worker, where no swap is under way; then its buffers can go back to the pool.
#[derive(Debug)]
pub struct Leaver {
    pub(crate) region: Arc<Region>,
    pub(crate) owner: Owner,
    /// Buffers of other members that stand in its slots or its list of extra buffers, by owner.
    foreign: Vec<(Owner, BufferIndex)>,
}

impl Leaver {
    /// The port of a block of `region`. Its list is its client's to write: it is followed as far as
    /// an audit follows it. What is behind that comes back when its owners go.
    #[must_use]
    pub fn new(region: Arc<Region>, port: &PortLayout) -> Self {
        let (owner, owners) = (Owner::of(port), region.owners());
        let listed = region.extra_buffers(port).take(LIST_MAX as usize);
        let left_behind = region.slot_buffers(port).chain(listed);
        let strange = left_behind.filter_map(|buffer| match owners.of(buffer) {
            Owner::POOL => None,
            of if of == owner => None,
            of => Some((of, buffer)),
        });
        let mut foreign: Vec<_> = strange.collect();
        foreign.sort_unstable_by_key(|(of, buffer)| (*of, buffer.get()));
        foreign.dedup();
        Self { region, owner, foreign }
    }

    /// The buffers of one owner that the leaver holds.
    pub(crate) fn foreign(&self, owner: Owner) -> impl Iterator<Item = BufferIndex> + '_ {
        let first = self.foreign.partition_point(|(of, _)| *of < owner);
        let own = self.foreign[first..].iter().take_while(move |(of, _)| *of == owner);
        own.map(|(_, buffer)| *buffer)
    }

    /// Returns the leaver's buffers to the pool, once every other member has reconciled.
    pub fn release(&self) {
        self.region.free(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_leavers_list_is_bounded_and_each_looks_at_its_own_only() {
        let [a, b, c] = fixture::ports();
        let region = a.host.region();
        let [of_b, of_c] = [&b, &c].map(|half| half.tx.buffer_index(3));
        // In a circle, and from each back to the first.
        let all: Vec<_> = region.buffers().collect();
        region.format_extra(a.host.layout(), &all);
        let last = region.offset(*all.last().expect("many"));
        region.memory().write(last, all[0].get());
        let leaver = Leaver::new(region.clone(), a.host.layout());
        let own = |half: &fixture::BothHalves| {
            let all = leaver.foreign(Owner::of(half.host.layout()));
            all.map(BufferIndex::get).collect::<Vec<_>>()
        };
        assert_eq!([own(&a).len(), own(&b).len(), own(&c).len()], [0, 32, 32], "each once");
        assert!(own(&b).contains(&of_b) && own(&c).contains(&of_c));
        // They stand in their slots, too: nothing is taken from them.
        assert!(b.host.reconcile(&leaver) >= 32);
        assert_eq!(region.owners().count(Owner::of(b.host.layout())), 32);
    }
}
