//! Buffers taken out of the pool of a region, and given back.

use super::{Pins, Region};
use crate::format::layout::{BufferIndex, PAGE};
use crate::group::owners::Owner;

impl Region {
    /// Takes up to `wanted` buffers out of the pool, the lowest; their memory is not committed.
    pub fn take(&self, owner: Owner, wanted: usize) -> Vec<BufferIndex> {
        let _pins = self.pins();
        let taken = |buffer: &BufferIndex| self.owners().pass(*buffer, Owner::POOL, owner);
        self.buffers().filter(taken).take(wanted).collect()
    }

    /// Returns all buffers of one owner to the pool, and their memory to the system.
    pub fn free(&self, owner: Owner) {
        let pins = self.pins();
        let own = |buffer: &BufferIndex| self.owners().pass(*buffer, owner, Owner::POOL);
        let freed: Vec<_> = self.buffers().filter(own).collect();
        self.decommit_buffers(&freed, &pins);
    }

    /// Gives the memory of buffers back that have become the pool's, in order of their numbers:
    /// all pages whose buffers are all the pool's, also those with neighbours that were free
    /// before. What the kernel has stays.
    pub(crate) fn decommit_buffers(&self, freed: &[BufferIndex], pins: &Pins) {
        let page = u32::try_from(PAGE).expect("4096");
        let near = page.div_ceil(self.stride());
        let free = |number: u32| {
            let buffer = self.check(number).filter(|_| number >= pins.end)?;
            (self.owners().of(buffer) == Owner::POOL).then_some(buffer)
        };
        let pinned = freed.iter().take_while(|buffer| buffer.get() < pins.end).count();
        for run in freed[pinned..].chunk_by(|a, b| a.get() + 1 == b.get()) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let before = (1..=near).map_while(|i| free(first.get().wrapping_sub(i))).last();
            let after = (1..=near).map_while(|i| free(last.get() + i)).last();
            let end = self.offset(after.unwrap_or(last)) + self.stride() as usize;
            self.decommit(self.offset(before.unwrap_or(first))..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::RegionLayout;

    #[test]
    fn what_the_kernel_has_stays_until_it_gives_it_back() {
        let layout = RegionLayout::new(PAGE, 4096, 20).expect("legal");
        let (region, _) = Region::create_shared("test", layout).expect("memory");
        let own = region.take(Owner::at(PAGE), 16);
        let fill = || own.iter().for_each(|b| region.memory().write(region.offset(*b), 7u32));
        let kept = || {
            let sevens = own.iter().map(|b| region.memory().read::<u32>(region.offset(*b)) == 7);
            sevens.filter(|is_there| *is_there).count()
        };
        assert_eq!((own.len(), region.owners().end()), (16, 18));
        fill();
        region.pin(10);
        region.pin(6);
        region.free(Owner::at(PAGE));
        assert_eq!((kept(), region.owners().end()), (8, 0), "those below the tenth");
        region.unpin();
        assert_eq!((kept(), region.take(Owner::at(2 * PAGE), 1)), (8, vec![own[0]]));
        region.unpin();
        assert_eq!(kept(), 1, "what a member has got meanwhile");
    }
}
