//! One turn: at most one batch from one port, through the switch.
//!
//! # Theory of operation
//!
//! ```text
//!  receive          decide          deliver
//!  ┌─► next header ─► verdict ─┬─ to one port with rings, tag kept ─► run: copy or swap ─┐
//!  │                           ├─ dropped ─────────────────────────► run: drop           │
//!  │                           └─ anything else ───────────────────► staged              │
//!  └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! *Runs.* Consecutive frames with the same addresses, type and tag get one verdict, and the port
//! format moves them in a single loop. Where destinations interleave, runs are short, and a loop
//! for each costs more than it saves. So after one short run the switch stages the rest of the
//! batch.
//!
//! *Staging.* The switch takes the batch as a whole, asks for a verdict once for each run, and
//! links the frames into one list for each destination. Then every destination gets its list in one
//! call. Before a flood the switch flushes the lists, so that frames between two ports keep their
//! order.
//!
//! *Offloads.* A port without rings may give frames with a partial checksum, or frames to be
//! segmented (GSO). A destination that [accepts](crate::Adapter::accepts) them gets them as they
//! are. For all others the switch completes them in software when it sends the list.
//!
//! The switch publishes ring indexes once for each run or list. It rings the doorbells at the end
//! of the turn, after one fence for all of them.
//!
//! *Long frames.* A turn takes about 96 KiB, so that ports with short frames need not wait for one
//! that sends long ones. The switch goes by the frames of the port's last turn.
//!
//! *Floods.* A flooded frame costs a copy, or one for each of its segments, for each port that gets
//! it. The turn of its sender pays for them: it ends after 32,768 copies, and the frames behind
//! wait in their ring. In a switch with many ports batches are short, because an adapter gives
//! frames before the switch knows where they go. A run of segments that alone would take twice as
//! many copies is dropped.
//!
//! *Backpressure.* A frame for a full receive ring stays in its transmit ring, and blocks the
//! frames behind it: with `on_full = wait` until there is room, else briefly, while the client
//! reads (`model::patience`). The switch cuts a batch at such a frame (`deliver::room`). The worker
//! tries again in its next turn, and asks for a kick before it sleeps ([`Switch::want_room`]).
//! Floods wait briefly at most. A guest's frames are taken before the switch knows where they go,
//! so a guest waits for the port that its last frames went to; frames of interfaces wait for no
//! port.
//!
//! *Chains.* A switch whose forwarding function is `chain` has a loop of its own (`chain::steer`):
//! frames between functions go where the metadata in their slots says. Chains have no backpressure.

use packet::port::{MAX_PORTS, PortId};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};

use crate::chain::classified::Classified;
use crate::deliver::groups::Groups;
use crate::deliver::into_ring::Unsent;
use crate::deliver::software_offload::SoftwareOffload;
use crate::model::config::COPIES;
use crate::model::heartbeat::{Heartbeat, Stage};
use crate::model::now::Now;
use crate::model::port::{Full, Plug};
use crate::receive::batch::{Batch, Delivery};
use crate::switch::Switch;

/// Working memory of one worker, allocated to its full capacity at the start.
pub struct Scratch {
    pub(crate) batch: Batch,
    pub(crate) groups: Groups,
    pub(crate) list: Vec<Delivery>,
    /// Flows and verdicts of a batch that enters chains.
    pub(crate) classified: Classified,
    pub(crate) software: SoftwareOffload,
    pub(crate) targets: Vec<PortId>,
    /// Slots that are reserved for the list.
    pub(crate) reserved: u32,
    /// Metadata of frames that a function has sent without owning their buffers.
    pub(crate) foreign: Vec<u64>,
    /// Frames of the list that the ring did not get.
    pub(crate) refused: Vec<Unsent>,
    /// A message about multicast groups.
    pub(crate) message: Vec<u8>,
    pub(crate) rung: Vec<PortId>,
    pub(crate) woken: Vec<PortId>,
    pub(crate) owed_wakes: Vec<PortId>,
    pub(crate) crowded: bool,
    work: u32,
    pub(crate) heartbeat: Heartbeat,
    frames_max: u32,
}

impl Scratch {
    /// Memory for batches of at most `frames_max` frames. `intake` holds the segments that the
    /// switch makes in software.
    #[must_use]
    pub fn new(frames_max: u16, intake: Intake) -> Self {
        assert!(frames_max > 0, "a batch holds a frame at least");
        let capacity = usize::from(frames_max);
        Self {
            batch: Batch::new(capacity),
            groups: Groups::new(capacity),
            list: Vec::with_capacity(capacity),
            classified: Classified::new(capacity),
            software: SoftwareOffload::new(intake),
            targets: Vec::with_capacity(MAX_PORTS),
            reserved: 0,
            foreign: Vec::with_capacity(capacity),
            refused: Vec::with_capacity(capacity.max(FRAMES as usize)),
            message: Vec::with_capacity(STANDARD_FRAME as usize),
            rung: Vec::with_capacity(MAX_PORTS),
            woken: Vec::with_capacity(MAX_PORTS),
            owed_wakes: Vec::with_capacity(MAX_PORTS),
            crowded: false,
            work: 0,
            heartbeat: Heartbeat::default(),
            frames_max: u32::from(frames_max),
        }
    }

    /// Begins the turn of a port.
    #[inline]
    fn begin(&mut self, src: PortId) {
        self.woken.clear();
        self.owed_wakes.clear();
        self.crowded = false;
        self.work = 0;
        self.heartbeat.beat(Stage::Forward, src);
    }

    /// Where the worker that owns this memory says what it does.
    #[inline]
    pub fn heartbeat(&mut self) -> &mut Heartbeat {
        &mut self.heartbeat
    }

    /// Releases the last batch and its region, because the port that it came from may be gone.
    pub fn release(&mut self) {
        self.batch.release();
    }

    /// Ports whose sleeping clients the last turn has woken. They will probably answer.
    #[must_use]
    pub fn woken(&self) -> &[PortId] {
        &self.woken
    }

    /// Ports whose peers the last turn came to owe a wake-up ([`Switch::wake_if_due`]); none that
    /// was named before and is owed it still.
    #[must_use]
    pub fn owed_wakes(&self) -> &[PortId] {
        &self.owed_wakes
    }

    /// Whether frames of the last turn wait briefly for a client, or were dropped though it reads
    /// its ring. Such a client may need the core that the switch runs on.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    /// The work of the last turn, in frames of 60 bytes: about what its frames, their length and
    /// their copies have cost.
    #[inline]
    #[must_use]
    pub fn work(&self) -> u32 {
        self.work
    }
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slots taken from the port.
    pub slots: u32,
    /// The ring without room that the next frame waits for.
    pub blocked_on: Option<Full>,
}

impl Moved {
    pub(crate) fn slots(slots: u32) -> Self {
        Self { slots, blocked_on: None }
    }
}

/// A turn of one port, under way.
pub(crate) struct Turn<'a> {
    pub(crate) switch: &'a mut Switch,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) src: PortId,
    pub(crate) queue: usize,
    /// Most frames to take from each ring.
    pub(crate) frames_max: u32,
    /// Copies that floods may still make.
    pub(crate) copies_left: u32,
    /// Bytes taken so far.
    pub(crate) bytes: u64,
    /// The generation of the bridge when the turn began.
    pub(crate) generation: u64,
    pub(crate) now: Now,
}

impl Switch {
    /// Takes at most one batch from `src` and delivers it.
    #[inline]
    pub fn turn(&mut self, src: PortId, now: Now, scratch: &mut Scratch) -> Moved {
        scratch.begin(src);
        if self.sync_and_rest(src) {
            return Moved::default();
        }
        let mut turn = Turn::idle(self, scratch, src, now);
        match turn.switch.mirrors.has_ports() {
            false => turn.run(),
            true => turn.run_mirrored(),
        }
    }

    /// Synchronises the transmit rings of a port, for the rest of its turn, too. Returns whether
    /// there is nothing to do for it: where clients publish frame by frame, most turns end here.
    #[inline]
    fn sync_and_rest(&mut self, src: PortId) -> bool {
        let is_steered = self.steering.is_some();
        let Some(entry) = self.entry_mut(src) else { return true };
        let Plug::Rings(rings, _) = &mut entry.plug else { return false };
        rings.sync_tx() == 0 && entry.waits.is_none() && entry.mirrors.is_none() && !is_steered
    }
}

impl<'a> Turn<'a> {
    /// A turn that has done nothing yet.
    #[inline]
    pub(crate) fn idle(
        switch: &'a mut Switch,
        scratch: &'a mut Scratch,
        src: PortId,
        now: Now,
    ) -> Self {
        let (frames_max, generation) = (scratch.frames_max, switch.bridge.generation());
        let (queue, copies_left, bytes) = (0, COPIES, 0);
        Self { switch, scratch, src, queue, frames_max, copies_left, bytes, generation, now }
    }
}

impl Turn<'_> {
    /// Does the turn of a switch that has mirror ports.
    #[cold]
    fn run_mirrored(&mut self) -> Moved {
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        mirrors.borrow(ports, self.src, self.now);
        let moved = self.run();
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        mirrors.give_back(ports, &mut self.scratch.rung);
        if !self.scratch.rung.is_empty() {
            self.ring_doorbells();
        }
        moved
    }

    /// Takes a batch and delivers it; rings the doorbells.
    fn run(&mut self) -> Moved {
        let src = self.src;
        if self.switch.is_shut(src, self.now) {
            return Moved::default();
        }
        self.switch.bridge.begin_turn();
        let Some(entry) = self.switch.entry_mut(src) else { return Moved::default() };
        if std::mem::take(&mut entry.cache.is_fleeting) {
            entry.cache.egress = None;
        }
        let (waits, has_rings) = (entry.waits.is_some(), matches!(entry.plug, Plug::Rings(..)));
        if waits && let Some(full) = self.still_waits() {
            return Moved { slots: 0, blocked_on: Some(full) };
        }
        let most = self.switch.steering.as_mut().map_or(u16::MAX, |steer| steer.begin_turn(src));
        let moved = match has_rings {
            true => self.take_rings(most),
            false => self.take_from_adapter(most),
        };
        if let Some(steering) = &mut self.switch.steering {
            steering.end_turn(src, moved.slots);
        }
        if moved.slots > 0 {
            self.scratch.work = work(moved.slots, COPIES - self.copies_left, self.bytes);
        }
        if moved.slots > 1 || moved.blocked_on.is_some() {
            self.note_end(moved);
        }
        debug_assert!(self.scratch.groups.used().is_empty(), "every list has been sent");
        debug_assert!(self.scratch.foreign.is_empty(), "every frame has been counted");
        if moved.slots > 0 || !self.scratch.rung.is_empty() {
            self.ring_doorbells();
        }
        moved
    }

    /// Notes what the source's next turn has to know.
    fn note_end(&mut self, moved: Moved) {
        let generation = self.generation;
        if let Some(entry) = self.switch.entry_mut(self.src) {
            entry.waits = moved.blocked_on.map(|full| (full, generation));
            if moved.slots > 1 {
                entry.turn_frames = turn_frames(self.bytes, moved.slots);
            }
        }
    }
}

/// How many frames the next turn of a port takes, if they are as long as those of its last one.
#[inline]
fn turn_frames(bytes: u64, frames: u32) -> u32 {
    /// 64 frames of 1514 bytes.
    const BYTES: u64 = 96 << 10;
    const FEWEST: u32 = 16;
    debug_assert!(frames > 0, "a turn without frames says nothing");
    let each = (bytes / u64::from(frames)).max(1);
    u32::try_from(BYTES / each).unwrap_or(u32::MAX).max(FEWEST)
}

/// The work of a turn. To copy 256 bytes takes about as long as a short frame.
#[inline]
fn work(slots: u32, copies: u32, bytes: u64) -> u32 {
    u32::try_from(bytes / 256).unwrap_or(u32::MAX).saturating_add(slots + copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_turns_of_long_frames_are_short() {
        assert_eq!(turn_frames(256 * 60, 256), 1638);
        assert_eq!(turn_frames(64 * 1514, 64), 64);
        assert_eq!(turn_frames(9000, 1), 16);
        assert_eq!(turn_frames(0, 5), 98_304);
    }
}
