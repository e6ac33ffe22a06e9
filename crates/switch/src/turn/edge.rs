//! The edge: where unfinished frames become finished ones, for a destination that wants them so.
//!
//! ```text
//!   list ──┬─ accepted, or finished ───────────────► sent as they are
//!          └─ others ──► bytes ──► segments in an intake, a batch of their own ──► sent
//! ```
//!
//! A list is sent in stretches of the one and the other kind, so that its order is kept. Frames are
//! finished for one destination and one list at a time; a run that has more segments than there is
//! room for goes on in the same place when these have been sent.

use std::io;

use packet::PortId;
use packet::offload::Segmenter;
use ring::frame::FRAME_MAX;
use ring::intake::{FRAMES, Intake, USUAL};

use super::{TurnOf, frames};
use crate::decide::bridge::TagAction;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery};
use crate::turn::stage::Part;

/// Room to finish frames in.
pub(super) struct Edge {
    /// The frame that is being finished.
    bytes: Vec<u8>,
    finishing: Option<Segmenter>,
    /// What is said of it inside a chain of functions, and of all that comes of it.
    mark: u64,
    /// What has come of it and others.
    intake: Intake,
    pub batch: Batch,
    pub list: Vec<Delivery>,
}

impl Edge {
    pub fn new() -> io::Result<Self> {
        let frames = FRAMES as usize;
        Ok(Self {
            bytes: Vec::with_capacity(FRAME_MAX as usize),
            finishing: None,
            mark: 0,
            intake: Intake::new(FRAMES, USUAL)?,
            batch: Batch::new(frames),
            list: Vec::with_capacity(frames),
        })
    }

    /// Takes a frame to be finished; [`Edge::fill`] gives it out.
    fn begin(&mut self, batch: &Batch, delivery: Delivery) -> Result<(), DropReason> {
        self.bytes.clear();
        self.mark = batch.frames()[usize::from(delivery.frame)].mark;
        batch.append(delivery, &mut self.bytes);
        let left = batch.left(delivery).ok_or(DropReason::Offload)?;
        let finishing = Segmenter::new(left, &mut self.bytes).map_err(|_| DropReason::Offload)?;
        // With a tag it may have become longer than a frame can be.
        if finishing.longest(&self.bytes) > FRAME_MAX as usize {
            return Err(DropReason::TooLong);
        }
        self.finishing = Some(finishing);
        Ok(())
    }

    /// Gives out what was begun, as far as there is room. `false`: it is not done.
    fn fill(&mut self) -> bool {
        let Some(mut rest) = self.finishing.take() else { return true };
        let longest = rest.longest(&self.bytes);
        while self.batch.has_room() && self.intake.fits(longest) {
            let Some(pieces) = rest.next(&mut self.bytes) else { return true };
            let first = self.batch.frags().len();
            self.intake.push(&pieces, self.batch.frags());
            let bytes = frames(pieces[0].len() + pieces[1].len());
            let frame = u16::try_from(self.batch.frames().len()).expect("a batch is small");
            self.batch.push_received(first, bytes);
            self.batch.set_mark(frame.into(), self.mark);
            self.list.push(Delivery { frame, tag: TagAction::Keep });
        }
        self.finishing = Some(rest);
        false
    }

    fn clear(&mut self) {
        self.intake.clear();
        self.batch.restart(self.intake.region());
        self.list.clear();
    }
}

impl TurnOf<'_> {
    /// Sends the list, of which some frames may be unfinished, to one port.
    #[inline(never)]
    pub(super) fn send_over_edge(&mut self, dst: PortId) {
        let Some(entry) = self.switch.entry_mut(dst) else { return };
        let (accepts, count) = (entry.plug.accepts(), self.scratch.list.len());
        let mut at = 0;
        while at < count {
            let is_accepted = |&delivery: &Delivery| {
                let left = self.scratch.batch.left(delivery);
                left.is_none_or(|left| accepts.contain(left.left()))
            };
            let rest = &self.scratch.list[at..];
            let as_they_are = rest.iter().take_while(|&frame| is_accepted(frame)).count();
            let others = rest[as_they_are..].iter().take_while(|&frame| !is_accepted(frame));
            let end = at + as_they_are + others.count();
            if as_they_are > 0 {
                self.send_part(dst, Part::Taken(at..at + as_they_are), false, false);
            }
            self.send_finished(dst, at + as_they_are, end);
            at = end;
        }
    }

    /// Sends finished ones in the place of frames of the list.
    fn send_finished(&mut self, dst: PortId, begin: usize, end: usize) {
        self.scratch.edge.clear();
        for at in begin..end {
            let Self { scratch, .. } = self;
            if let Err(why) = scratch.edge.begin(&scratch.batch, scratch.list[at]) {
                self.count_drop(dst, why, 1);
                continue;
            }
            while !self.scratch.edge.fill() {
                self.send_part(dst, Part::Finished, false, false);
                self.scratch.edge.clear();
            }
        }
        if begin < end {
            self.send_part(dst, Part::Finished, false, false);
        }
    }
}
