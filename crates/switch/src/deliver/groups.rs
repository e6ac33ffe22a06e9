//! One list of frames for each destination of a batch.
//!
//! Lists are links between the frames of the batch, so that nothing is allocated and a port that
//! gets nothing costs nothing: only the destinations that occur are remembered.

use std::ops::Range;

use packet::{MAX_PORTS, PortId};

use crate::decide::bridge::TagAction;
use crate::receive::batch::Delivery;

const NONE: u16 = u16::MAX;

/// The list of one port.
#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
    /// Slots that are reserved for the list.
    reserved: u32,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE, reserved: 0 };
}

/// The lists of one batch.
pub struct Groups {
    /// The list of each port.
    lists: Box<[List]>,
    /// The frame after each one in its list, and what happens to its tag.
    links: Box<[(u16, TagAction)]>,
    /// Destinations that have a list.
    used: Vec<PortId>,
}

impl Groups {
    /// Lists for batches of at most `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        assert!(frames < usize::from(NONE), "a frame number is none of a link's special values");
        Self {
            lists: vec![List::EMPTY; MAX_PORTS].into_boxed_slice(),
            links: vec![(NONE, TagAction::Keep); frames].into_boxed_slice(),
            used: Vec::with_capacity(frames),
        }
    }

    /// Appends a range of frames to the list of `dst`.
    pub fn link(&mut self, dst: PortId, tag: TagAction, frames: Range<usize>) {
        for frame in frames {
            let number = u16::try_from(frame).expect("a batch is small");
            debug_assert!(frame < self.links.len(), "a batch is no longer than its lists");
            self.links[frame] = (NONE, tag);
            let List { first, last, .. } = &mut self.lists[dst.index()];
            if *first == NONE {
                *first = number;
                self.used.push(dst);
            } else {
                self.links[usize::from(*last)].0 = number;
            }
            *last = number;
        }
    }

    /// Destinations that have a list.
    #[must_use]
    pub fn used(&self) -> &[PortId] {
        &self.used
    }

    /// Notes that so many slots are reserved for frames that are about to be linked.
    #[inline]
    pub fn reserve(&mut self, dst: PortId, slots: u32) {
        self.lists[dst.index()].reserved += slots;
    }

    /// The slots that are reserved for the list of `dst`; frames, where a port has no rings.
    #[inline]
    #[must_use]
    pub fn reserved(&self, dst: PortId) -> u32 {
        self.lists[dst.index()].reserved
    }

    /// Moves one destination's list into `list`, and says how many slots are reserved for it;
    /// `None` when all have been handed out.
    pub fn next(&mut self, list: &mut Vec<Delivery>) -> Option<(PortId, u32)> {
        let dst = self.used.pop()?;
        list.clear();
        let List { first: mut at, reserved, .. } =
            std::mem::replace(&mut self.lists[dst.index()], List::EMPTY);
        debug_assert!(at != NONE, "a used destination has a list");
        while at != NONE {
            let (next, tag) = self.links[usize::from(at)];
            list.push(Delivery { frame: at, tag });
            at = next;
        }
        Some((dst, reserved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_the_order_and_empty_themselves() {
        let (mut groups, mut list) = (Groups::new(8), Vec::new());
        let port = |i| PortId::new(i).expect("small");
        groups.link(port(1), TagAction::Keep, 0..2);
        groups.link(port(2), TagAction::Strip, 2..3);
        groups.link(port(1), TagAction::Keep, 3..4);
        let frames = |list: &[Delivery]| list.iter().map(|d| d.frame).collect::<Vec<_>>();
        assert_eq!(groups.next(&mut list), Some((port(2), 0)));
        assert_eq!(list, [Delivery { frame: 2, tag: TagAction::Strip }]);
        assert_eq!(groups.next(&mut list), Some((port(1), 0)));
        assert_eq!(frames(&list), [0, 1, 3]);
        assert_eq!(groups.next(&mut list), None);
        groups.link(port(1), TagAction::Keep, 0..1);
        assert_eq!(groups.next(&mut list), Some((port(1), 0)));
        assert_eq!(frames(&list), [0]);
    }

    #[test]
    fn slots_are_reserved_until_the_list_is_handed_out() {
        let (mut groups, mut list) = (Groups::new(8), Vec::new());
        let port = |i| PortId::new(i).expect("small");
        for frame in [0..1, 1..2] {
            groups.reserve(port(1), 3);
            groups.link(port(1), TagAction::Keep, frame);
        }
        assert_eq!([1, 2].map(|i| groups.reserved(port(i))), [6, 0]);
        assert_eq!(groups.used(), [port(1)]);
        assert_eq!(groups.next(&mut list), Some((port(1), 6)));
        assert_eq!(groups.reserved(port(1)), 0);
    }
}
