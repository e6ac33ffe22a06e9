//! Offloads in software: completed checksums and segments, for a destination that accepts no GSO.
//!
//! ```text
//!   list ──┬─ accepted, or plain ─────────────────► sent as they are
//!          └─ others ──► bytes ──► segments in an intake, a batch of their own ──► sent
//! ```
//!
//! The switch sends a list in stretches of the one and of the other kind, so that frames keep their
//! order. It works on one frame of one list at a time. A frame that has more segments than the
//! intake holds goes on in the same place when the switch has sent the first of them.

use packet::offload::Segmenter;
use ring::frame::FRAME_MAX;
use ring::intake::{FRAMES, Intake};

use crate::decide::bridge::TagAction;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, to_u32};

/// The frame that the switch completes in software, and the segments that it has made.
pub(crate) struct SoftwareOffload {
    /// The frame under work.
    bytes: Vec<u8>,
    segmenter: Option<Segmenter>,
    /// The metadata of the frame inside a chain of functions. All segments get it.
    metadata: u64,
    /// Memory of the segments.
    intake: Intake,
    pub batch: Batch,
    pub list: Vec<Delivery>,
}

impl SoftwareOffload {
    pub fn new(intake: Intake) -> Self {
        assert!(intake.fits(FRAME_MAX as usize), "the intake holds the longest frame");
        let frames = FRAMES as usize;
        Self {
            bytes: Vec::with_capacity(FRAME_MAX as usize),
            segmenter: None,
            metadata: 0,
            intake,
            batch: Batch::new(frames),
            list: Vec::with_capacity(frames),
        }
    }

    /// Starts with a frame. [`fill`](Self::fill) makes its segments.
    pub fn begin(&mut self, batch: &Batch, delivery: Delivery) -> Result<(), DropReason> {
        debug_assert!(self.segmenter.is_none(), "one frame at a time");
        self.bytes.clear();
        self.metadata = batch.frames()[usize::from(delivery.frame)].metadata;
        batch.append(delivery, &mut self.bytes);
        let left = batch.offload(delivery).ok_or(DropReason::Offload)?;
        let segmenter = Segmenter::new(left, &mut self.bytes).map_err(|_| DropReason::Offload)?;
        // With a tag it may have become longer than a frame can be.
        if segmenter.longest(&self.bytes) > FRAME_MAX as usize {
            return Err(DropReason::TooLong);
        }
        self.segmenter = Some(segmenter);
        Ok(())
    }

    /// Makes segments of the frame as far as there is room. `false`: there are more.
    pub fn fill(&mut self) -> bool {
        let Some(mut rest) = self.segmenter.take() else { return true };
        let longest = rest.longest(&self.bytes);
        while self.batch.has_room() && self.intake.fits(longest) {
            let Some(pieces) = rest.next(&mut self.bytes) else { return true };
            let first = self.batch.frags().len();
            self.intake.push(&pieces, self.batch.frags());
            let bytes = to_u32(pieces[0].len() + pieces[1].len());
            let frame = u16::try_from(self.batch.frames().len()).expect("a batch is small");
            self.batch.push_received(first, bytes);
            self.batch.set_metadata(frame.into(), self.metadata);
            self.list.push(Delivery { frame, tag: TagAction::Keep });
        }
        self.segmenter = Some(rest);
        false
    }

    /// Puts one frame of the switch's own in the place of segments, with this change of its tag.
    pub fn put(&mut self, frame: &[u8], tag: TagAction) {
        self.clear();
        self.intake.push(&[frame], self.batch.frags());
        self.batch.push_received(0, to_u32(frame.len()));
        self.list.push(Delivery { frame: 0, tag });
    }

    /// Forgets the segments.
    pub fn clear(&mut self) {
        self.intake.clear();
        self.batch.restart(self.intake.region());
        self.list.clear();
    }
}
