//! One list of frames for each destination of a batch.
//!
//! Lists are links between the frames of the batch, so that nothing is allocated and a port that
//! gets nothing costs nothing: only the destinations that occur are remembered.

use std::ops::Range;

use packet::{MAX_PORTS, PortId};

use crate::decide::bridge::TagAction;
use crate::receive::batch::Delivery;

const NONE: u16 = u16::MAX;

/// The lists of one batch.
pub struct Groups {
    /// First and last frame for each port.
    ends: Box<[(u16, u16)]>,
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
            ends: vec![(NONE, NONE); MAX_PORTS].into_boxed_slice(),
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
            let (first, last) = &mut self.ends[dst.index()];
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

    /// The frames in the list of `dst`.
    pub fn frames_of(&self, dst: PortId) -> impl Iterator<Item = usize> + '_ {
        let at = |number: u16| (number != NONE).then_some(usize::from(number));
        let first = at(self.ends[dst.index()].0);
        std::iter::successors(first, move |&frame| at(self.links[frame].0))
    }

    /// Empties all lists.
    pub fn clear(&mut self) {
        for dst in self.used.drain(..) {
            self.ends[dst.index()] = (NONE, NONE);
        }
    }

    /// Moves one destination's list into `list`; `None` when all have been handed out.
    pub fn next(&mut self, list: &mut Vec<Delivery>) -> Option<PortId> {
        let dst = self.used.pop()?;
        list.clear();
        let (mut at, _) = std::mem::replace(&mut self.ends[dst.index()], (NONE, NONE));
        debug_assert!(at != NONE, "a used destination has a list");
        while at != NONE {
            let (next, tag) = self.links[usize::from(at)];
            list.push(Delivery { frame: at, tag });
            at = next;
        }
        Some(dst)
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
        assert_eq!(groups.next(&mut list), Some(port(2)));
        assert_eq!(list, [Delivery { frame: 2, tag: TagAction::Strip }]);
        assert_eq!(groups.next(&mut list), Some(port(1)));
        assert_eq!(frames(&list), [0, 1, 3]);
        assert_eq!(groups.next(&mut list), None);
        groups.link(port(1), TagAction::Keep, 0..1);
        assert_eq!(groups.next(&mut list), Some(port(1)));
        assert_eq!(frames(&list), [0]);
    }

    #[test]
    fn lists_can_be_looked_at_and_thrown_away() {
        let (mut groups, mut list) = (Groups::new(8), Vec::new());
        let port = |i| PortId::new(i).expect("small");
        groups.link(port(1), TagAction::Keep, 0..2);
        groups.link(port(2), TagAction::Keep, 2..3);
        groups.link(port(1), TagAction::Keep, 3..4);
        assert_eq!(groups.used(), [port(1), port(2)]);
        assert_eq!(groups.frames_of(port(1)).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(groups.frames_of(port(3)).count(), 0);
        groups.clear();
        assert_eq!(groups.next(&mut list), None);
        assert_eq!(groups.frames_of(port(1)).count(), 0);
    }
}
