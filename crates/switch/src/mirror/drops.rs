//! Which mirrors get the frames that a switch drops.

use packet::dropped::Dropped;
use ring::frame::Frag;
use ring::kring::RxKring;

use super::Mirrors;
use crate::model::stats::DropReason;
use crate::receive::batch::FRAGS_MAX;

/// A set of reasons for drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropReasons(u64);

const _: () = {
    assert!(DropReason::COUNT <= 64, "a bit for each reason");
    let mut at = 0;
    while at < DropReason::COUNT {
        assert!(DropReason::ALL[at].name().len() <= Dropped::NAME_MAX, "a name has room");
        at += 1;
    }
};

/// The mirrors of a switch that get drops.
pub(crate) struct DropMirrors {
    /// Places of mirrors, and the reasons that each is for.
    taps: Vec<(usize, DropReasons)>,
    /// Pieces of one frame.
    room: Vec<Frag>,
}

impl DropReasons {
    /// Every reason.
    pub const ALL: Self = Self(u64::MAX);

    /// One reason.
    #[must_use]
    pub fn only(reason: DropReason) -> Self {
        Self(1 << reason.index())
    }

    fn contain(self, reason: DropReason) -> bool {
        self.0 & Self::only(reason).0 != 0
    }
}

impl DropMirrors {
    /// No mirror yet.
    pub fn new() -> Self {
        Self { taps: Vec::new(), room: Vec::with_capacity(FRAGS_MAX) }
    }

    /// Lets a mirror get drops for these reasons.
    pub fn add(&mut self, mirror: usize, reasons: DropReasons) {
        debug_assert!(self.taps.iter().all(|(tap, _)| *tap != mirror), "a mirror has one tap");
        self.taps.push((mirror, reasons));
    }

    /// Removes a mirror. `false`: it was the last one.
    pub fn remove(&mut self, mirror: usize) -> bool {
        self.taps.retain(|(tap, _)| *tap != mirror);
        !self.taps.is_empty()
    }

    /// Counts frames that were dropped and cannot be shown as missed.
    pub fn miss(&self, mirrors: &mut Mirrors, reason: DropReason, frames: u64) {
        debug_assert!(frames > 0, "something was dropped");
        for (place, _) in self.taps.iter().filter(|(_, reasons)| reasons.contain(reason)) {
            if let Some(mirror) = mirrors.get_mut(*place) {
                mirror.missed += frames;
            }
        }
    }

    /// Lets `copy` put frames that were dropped for this reason into the ring of each mirror that
    /// gets such, and return how many found no room.
    pub fn fill(
        &mut self,
        mirrors: &mut Mirrors,
        reason: DropReason,
        mut copy: impl FnMut(&mut RxKring, &mut Vec<Frag>) -> u64,
    ) {
        for (place, _) in self.taps.iter().filter(|(_, reasons)| reasons.contain(reason)) {
            if let Some(mirror) = mirrors.get_mut(*place) {
                mirror.fill(0, |to| copy(to, &mut self.room));
            }
        }
    }
}
