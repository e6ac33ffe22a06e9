//! An allocator for the space of a region.

/// The free pieces, each an offset and a size, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeSpace(Vec<(usize, usize)>);

impl FreeSpace {
    /// A range that is all free.
    pub fn new(start: usize, size: usize) -> Self {
        Self(vec![(start, size)])
    }

    /// The offset of the next piece of this size; `None` if there is no room.
    pub fn find(&self, size: usize) -> Option<usize> {
        self.hole(size).map(|hole| self.0[hole].0)
    }

    fn hole(&self, size: usize) -> Option<usize> {
        self.0.iter().position(|&(_, free)| free >= size)
    }

    /// Allocates the piece that [`FreeSpace::find`] found.
    pub fn take(&mut self, size: usize) {
        let hole = self.hole(size).expect("found before it is taken");
        self.0[hole] = (self.0[hole].0 + size, self.0[hole].1 - size);
    }

    /// Frees a piece.
    pub fn give_back(&mut self, at: usize, size: usize) {
        self.0.push((at, size));
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let adjacent = before.0 + before.1 == next.0;
            before.1 += if adjacent { next.1 } else { 0 };
            adjacent
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_in_any_order_and_are_one_again() {
        let (mut space, whole) = (FreeSpace::new(4096, 300), FreeSpace::new(4096, 300));
        for at in [4096, 4196, 4296] {
            assert_eq!(space.find(100), Some(at));
            space.take(100);
        }
        assert_eq!(space.find(1), None);
        space.give_back(4196, 100);
        assert_eq!((space.find(100), space.find(101)), (Some(4196), None));
        space.give_back(4296, 100);
        space.give_back(4096, 100);
        assert_eq!(space.find(300), whole.find(300));
    }
}
