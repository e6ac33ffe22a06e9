//! Room at destinations: how many frames of a run fit, and what the next one waits for.
//!
//! The switch must deliver nothing before it knows that everything in front of it fits, or is
//! dropped. So it counts the slots that the frames of a batch take at each destination, and cuts
//! the batch at the first frame that has to wait: that frame and those behind it stay in their
//! ring.

use std::ops::Range;

use packet::PortId;
use ring::kring::RxKring;

use crate::decide::bridge::VlanVerdict;
use crate::deliver::run::queue_of;
use crate::model::config::OnFull;
use crate::model::patience::SENT;
use crate::model::port::{Adapter, Full, Plug};
use crate::receive::batch::{Batch, to_u32};
use crate::switch::Entry;
use crate::turn::{Scratch, Turn};

/// The beginning of a run that may be delivered now, and the full ring that the next frame waits
/// for.
pub(crate) type Fitting = (Range<usize>, Option<Full>);

impl Turn<'_> {
    /// What fits of a run to one port. Reserves room for these frames, which the caller links.
    pub(crate) fn fitting(&mut self, dst: PortId, run: Range<usize>) -> Fitting {
        let Some(entry) = self.switch.entry_mut(dst) else { return (run, None) };
        let Scratch { batch, groups, heartbeat, .. } = &mut *self.scratch;
        heartbeat.between(self.src, dst);
        let before = groups.reserved(dst);
        let (queue, room) = Room::at(entry, self.queue, batch, &run, Some(before));
        groups.reserve(dst, room.slots);
        if room.end == run.end {
            return (run, None);
        }
        let full = entry.full(dst, queue, room.wanted);
        match self.wait(full, before + room.slots, to_u32(room.end)) {
            None => (run, None),
            full => (run.start..room.end, full),
        }
    }

    /// What fits of a run that is to be flooded to the ports in `scratch.targets`. No flood waits
    /// without end.
    pub(crate) fn fitting_flood(&mut self, verdict: &VlanVerdict, run: Range<usize>) -> Fitting {
        let targets = std::mem::take(&mut self.scratch.targets);
        let (mut end, mut full) = (run.end, None);
        // Also those behind a full one: they are waited for at the same time.
        for &dst in &targets {
            let one = self.fitting_copy(dst, verdict, &run);
            if one.0 < end {
                (end, full) = one;
            }
        }
        self.scratch.targets = targets;
        (run.start..end, full)
    }

    /// Where a flood to one port ends, and the ring that its next frame waits for.
    fn fitting_copy(
        &mut self,
        dst: PortId,
        verdict: &VlanVerdict,
        run: &Range<usize>,
    ) -> (usize, Option<Full>) {
        let all = (run.end, None);
        let Some(entry) = self.switch.entry_mut(dst) else { return all };
        let Scratch { batch, heartbeat, .. } = &mut *self.scratch;
        heartbeat.between(self.src, dst);
        let (queue, room) = Room::at(entry, self.queue, batch, run, None);
        if room.end == run.end || self.switch.bridge.egress(self.src, dst, verdict).is_err() {
            return all;
        }
        let full = Full::new(dst, queue, room.wanted, true);
        let full = self.wait(full, room.slots, to_u32(room.end));
        full.map_or(all, |full| (room.end, Some(full)))
    }

    /// At a look at a port that is full, or will be with `pending` more slots: returns it if the
    /// next frame waits. `taken` frames of the source are not counted yet.
    pub(crate) fn wait(&mut self, full: Full, pending: u32, taken: u32) -> Option<Full> {
        if !full.is_brief() {
            return Some(full);
        }
        let now = self.now;
        let reads = self.switch.entry_mut(full.port())?.look_full(full.queue(), pending, now);
        self.scratch.crowded |= reads;
        let source = self.switch.entry_mut(self.src).filter(|_| reads)?;
        let sent = source.stats.total().tx.frames + u64::from(taken);
        source.own_patience.look(sent, SENT, now).then_some(full)
    }

    /// What the port's next frame still waits for, if it waited. The frame is not taken and decided
    /// anew, unless it waits without end and may go elsewhere by now.
    #[cold]
    pub(crate) fn still_waits(&mut self) -> Option<Full> {
        let generation = self.switch.bridge.generation();
        let entry = self.switch.entry_mut(self.src)?;
        let (full, then) = entry.waits.take()?;
        if entry.mirrors.is_some() || !full.is_brief() && then != generation {
            return None;
        }
        self.scratch.heartbeat.between(self.src, full.port());
        let full = Some(full).filter(|&full| self.switch.is_full(full))?;
        let full = self.wait(full, 0, 0)?;
        self.switch.entry_mut(self.src)?.waits = Some((full, then));
        Some(full)
    }
}

/// What a port has room for.
struct Room {
    /// The first frame that does not fit.
    end: usize,
    /// The slots that the frames before it take.
    slots: u32,
    /// The slots that it needs.
    wanted: u32,
}

impl Room {
    /// The room of a port for a run from transmit ring `queue`, and the number of its receive ring.
    /// `reserves`: reserves it; of a port without rings so many frames are reserved already.
    #[inline]
    fn at(
        entry: &mut Entry,
        queue: usize,
        batch: &Batch,
        run: &Range<usize>,
        reserves: Option<u32>,
    ) -> (usize, Self) {
        match &mut entry.plug {
            Plug::Adapter(adapter) => {
                let room =
                    adapter_room(&mut **adapter.lock(), entry.on_full, reserves.unwrap_or(0));
                let end = run.start + run.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                (0, Self { end, slots: to_u32(end - run.start), wanted: 1 })
            }
            Plug::Rings(rings, _) => {
                let queue = queue_of(queue, rings);
                let rx = &mut *rings.rx[queue].lock();
                let mut room = Self::of(rx, batch, run, rx.room());
                if room.end < run.end {
                    let slots = rx.sync();
                    room = Self::of(rx, batch, run, slots);
                }
                if reserves.is_some() {
                    rx.reserve(room.slots);
                }
                (queue, room)
            }
        }
    }

    /// As many frames of a run as `room` slots of a ring hold. A frame that needs more slots than
    /// the ring has takes none: it is dropped.
    fn of(rx: &RxKring, batch: &Batch, run: &Range<usize>, room: u32) -> Self {
        let (mut slots, mut wanted) = (0, 0);
        for (end, entry) in run.clone().zip(&batch.frames()[run.clone()]) {
            wanted = rx.slots_for(entry.bytes);
            let sum = if wanted > rx.capacity() { slots } else { slots + wanted };
            if sum > room {
                return Self { end, slots, wanted };
            }
            slots = sum;
        }
        Self { end: run.end, slots, wanted }
    }
}

/// How many more frames an adapter may get, after `reserved` ones.
pub(crate) fn adapter_room(adapter: &mut dyn Adapter, on_full: OnFull, reserved: u32) -> u32 {
    match on_full {
        OnFull::Wait => adapter.room().saturating_sub(reserved),
        // The adapter says how many are sure to fit. More may, and it drops what does not.
        OnFull::Drop if reserved > 0 || adapter.room() > 0 => u32::MAX,
        OnFull::Drop => 0,
    }
}
