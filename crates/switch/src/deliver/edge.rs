//! Sending lists to destinations that accept no, or not all, offloads.

use packet::PortId;

use crate::deliver::staged::Part;
use crate::receive::batch::Delivery;
use crate::turn::Turn;

impl Turn<'_> {
    /// Sends the list to one port. Some of its frames carry offloads.
    #[inline(never)]
    pub(crate) fn send_with_offloads(&mut self, dst: PortId) {
        let Some(entry) = self.switch.entry_mut(dst) else { return };
        let (accepts, count) = (entry.plug.accepts(), self.scratch.list.len());
        let mut at = 0;
        while at < count {
            let is_accepted = |&delivery: &Delivery| {
                let offload = self.scratch.batch.offload(delivery);
                offload.is_none_or(|offload| accepts.contain(offload.left()))
            };
            let rest = &self.scratch.list[at..];
            let as_they_are = rest.iter().take_while(|&frame| is_accepted(frame)).count();
            let others = rest[as_they_are..].iter().take_while(|&frame| !is_accepted(frame));
            let end = at + as_they_are + others.count();
            if as_they_are > 0 {
                self.send_part(dst, Part::Batch(at..at + as_they_are), false);
            }
            self.send_segments(dst, at + as_they_are, end);
            at = end;
        }
    }

    /// Sends segments in the place of frames of the list.
    pub(crate) fn send_segments(&mut self, dst: PortId, begin: usize, end: usize) {
        self.scratch.software.clear();
        for at in begin..end {
            let Self { scratch, .. } = self;
            if let Err(why) = scratch.software.begin(&scratch.batch, scratch.list[at]) {
                let frame = usize::from(scratch.list[at].frame);
                self.drop_batch(dst, why, frame..frame + 1);
                continue;
            }
            while !self.scratch.software.fill() {
                self.send_part(dst, Part::Segments, false);
                self.scratch.software.clear();
            }
        }
        if begin < end {
            self.send_part(dst, Part::Segments, false);
        }
    }
}
