//! Showing dropped frames to the mirrors that get drops.
//!
//! # Theory of operation
//!
//! ```text
//!  in a ring     taken, counted, copied from its slots, which are published later
//!  in a batch    decided, counted, copied from the batch
//!  in a list     sent as ever; a ring names what it refuses, an adapter says how many
//! ```
//!
//! Only where frames are dropped does the switch ask whether there is such a mirror: all other
//! frames go as if there were none. Each copy stands behind a [`Dropped`] with the reason and the
//! ports; it is the frame as it came, without a virtio-net header. A sender can change a frame in
//! its ring after the switch has decided: the mirror then gets the changed frame with the reason
//! for the first one.
//!
//! Of a list that an adapter refuses in part, the frames are counted as missed.
//!
//! Drops without a frame are counted only: slots that make no sense, and frames that an adapter
//! does not take in.

use std::ops::Range;

use packet::PortId;
use packet::dropped::Dropped;
use ring::cursor::Index;
use ring::frame::Prologue;

use crate::deliver::staged::Part;
use crate::mirror::{DropMirrors, DropReasons};
use crate::model::port::Sent;
use crate::model::stats::DropReason;
use crate::receive::batch::to_u32;
use crate::switch::Switch;
use crate::turn::{Scratch, Turn};

/// Where dropped frames are.
enum Frames {
    /// In the ring of the turn, from this slot on to the next one to take.
    Taken(Index),
    /// In the batch.
    Batch(Range<usize>),
    /// Among the segments that were made in software.
    Segment(usize),
}

impl Switch {
    /// Lets a mirror get the frames that are dropped for these reasons.
    pub fn mirror_drops(&mut self, mirror: usize, reasons: DropReasons) {
        let new = || DropMirrors::new().into();
        self.drop_mirrors.get_or_insert_with(new).add(mirror, reasons);
    }
}

impl Turn<'_> {
    /// Counts frames of the batch as dropped at a port.
    pub(crate) fn drop_batch(&mut self, port: PortId, reason: DropReason, run: Range<usize>) {
        self.count_drop(port, reason, to_u32(run.len()));
        self.show_batch(port, reason, run);
    }

    /// Shows frames of the batch that are dropped, and counted at a port.
    pub(crate) fn show_batch(&mut self, port: PortId, reason: DropReason, run: Range<usize>) {
        if self.switch.drop_mirrors.is_some() && !run.is_empty() {
            self.show(port, reason, &Frames::Batch(run));
        }
    }

    /// Shows frames that were taken from the ring, from slot `from` on, and are dropped.
    pub(crate) fn show_taken(&mut self, port: PortId, reason: DropReason, from: Index) {
        if self.switch.drop_mirrors.is_some() {
            self.show(port, reason, &Frames::Taken(from));
        }
    }

    /// Shows a part of the list that is dropped as a whole.
    #[cold]
    pub(crate) fn show_list(&mut self, port: PortId, reason: DropReason, part: &Part) {
        if self.switch.drop_mirrors.is_none() {
            return;
        }
        let count = match part {
            Part::Batch(part) => part.len(),
            Part::Segments => self.scratch.software.list.len(),
        };
        for at in 0..count {
            let delivery = match part {
                Part::Batch(part) => self.scratch.list[part.start + at],
                Part::Segments => self.scratch.software.list[at],
            };
            self.show(port, reason, &frames_of(part, delivery.frame));
        }
    }

    /// Shows the frames of a list that did not arrive. An adapter says how many it refused and not
    /// which: these are shown if it refused all for one reason, else missed.
    #[cold]
    pub(crate) fn show_unsent(&mut self, dst: PortId, part: &Part, sent: &Sent) {
        let mut refused = std::mem::take(&mut self.scratch.refused);
        if self.switch.drop_mirrors.is_some() {
            for unsent in &refused {
                let frames = frames_of(part, unsent.frame);
                match unsent.reason {
                    Some(reason) => self.show(dst, reason, &frames),
                    None => self.show(self.src, DropReason::BadIndex, &frames),
                }
            }
            if refused.is_empty() {
                self.show_refused_by_adapter(dst, part, sent);
            }
        }
        refused.clear();
        debug_assert!(self.scratch.refused.is_empty(), "nothing is sent meanwhile");
        self.scratch.refused = refused;
    }

    fn show_refused_by_adapter(&mut self, dst: PortId, part: &Part, sent: &Sent) {
        let mut reasons = sent.drops.iter().filter(|(_, frames)| *frames > 0);
        if let (Some((reason, _)), None, 0) =
            (reasons.next(), reasons.next(), sent.delivered.frames)
        {
            return self.show_list(dst, reason, part);
        }
        let Switch { mirrors, drop_mirrors: Some(drops), .. } = &mut *self.switch else { return };
        for (reason, frames) in sent.drops.iter().filter(|(_, frames)| *frames > 0) {
            drops.miss(mirrors, reason, frames);
        }
    }

    /// Copies dropped frames into all mirrors that get such drops.
    #[cold]
    fn show(&mut self, port: PortId, reason: DropReason, frames: &Frames) {
        let head = Dropped { reason: reason.name(), at: port, from: self.src }.write();
        let Switch { ports, mirrors, drop_mirrors: Some(drops), .. } = &mut *self.switch else {
            return;
        };
        let Scratch { batch, software, .. } = &*self.scratch;
        let (batch, range) = match frames {
            Frames::Batch(run) => (batch, run.clone()),
            Frames::Segment(at) => (&software.batch, *at..at + 1),
            Frames::Taken(from) => {
                let entry = ports.get_mut(self.src.index()).and_then(Option::as_mut);
                let Some(rings) = entry.and_then(|entry| entry.plug.rings()) else { return };
                let tx = &rings.tx[self.queue];
                let copy = |to: &mut _, room: &mut _| tx.mirror_taken(*from, &head, to, room);
                return drops.fill(mirrors, reason, copy);
            }
        };
        debug_assert!(range.end <= batch.frames().len(), "a frame of its batch");
        drops.fill(mirrors, reason, |to, _| {
            let mut put = |entry| to.put_behind(&head, batch.frame(entry), Prologue::NONE);
            batch.frames()[range.clone()].iter().map(|entry| u64::from(put(entry).is_err())).sum()
        });
    }
}

/// Where a frame of a part of the list is.
fn frames_of(part: &Part, frame: u16) -> Frames {
    let at = usize::from(frame);
    match part {
        Part::Batch(_) => Frames::Batch(at..at + 1),
        Part::Segments => Frames::Segment(at),
    }
}
