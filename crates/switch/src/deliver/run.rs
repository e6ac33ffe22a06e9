//! Runs: frames that follow each other and go to one port with rings, moved in a single loop.

use packet::PortId;
use packet::ethernet::Header;
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;
use ring::run::{End, Key, Run, deliver_run, drop_run};

use crate::decide::bridge::TagAction;
use crate::decide::egress::Egress;
use crate::model::stats::DropReason;
use crate::switch::Switch;
use crate::turn::{Moved, Turn};

/// Runs shorter than this are not worth a loop of their own.
const SHORT_RUN: u32 = 8;

impl Turn<'_> {
    /// Moves one run, or one batch.
    #[inline]
    pub(crate) fn step(&mut self, budget: u32) -> Moved {
        let Some(header) = self.tx().peek() else { return self.stage(budget) };
        if self.switch.bridge.looks_into_packets() {
            return self.stage(budget);
        }
        let header = Header::new(header.to_le_bytes());
        let moved = match self.decide(header) {
            Egress::To(dst, TagAction::Keep) => self.run_to(dst, header, budget),
            Egress::Drop(reason) => Some(self.run_drop(header, budget, reason)),
            Egress::To(..) | Egress::Flood(_) => None,
        };
        let Some(moved) = moved else { return self.stage(budget) };
        let long = moved.slots >= SHORT_RUN.min(budget);
        if long || moved.blocked_on.is_some() {
            return moved;
        }
        let rest = self.stage(budget - moved.slots);
        Moved { slots: moved.slots + rest.slots, ..rest }
    }

    /// Moves a run to one port with rings. `None`: the frames have to be staged.
    pub(crate) fn run_to(&mut self, dst: PortId, header: Header, budget: u32) -> Option<Moved> {
        let key = key(header);
        let (run, queue) =
            self.run_between(dst, budget, |tx, rx| deliver_run(tx, rx, key, budget))?;
        match run.end {
            End::Full => Some(self.handle_full(dst, queue, header, run, budget)),
            End::BadSlot => Some(self.drop_rest(dst, DropReason::BadIndex, header, run, 1)),
            End::Complex if run.frames == 0 => None,
            _ => Some(Moved::slots(run.frames)),
        }
    }

    /// Lets `run` move frames from the ring to a ring of `dst`, publishes and counts them. Returns
    /// the number of that ring, too. `None`: one of the two ports has no rings.
    #[inline]
    pub(crate) fn run_between(
        &mut self,
        dst: PortId,
        budget: u32,
        run: impl FnOnce(&mut TxKring, &mut RxKring) -> Run,
    ) -> Option<(Run, usize)> {
        let queue = self.queue;
        let pair = [self.src.index(), dst.index()];
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        let [Some(from), Some(to)] = ports.get_disjoint_mut(pair).ok()? else { return None };
        let (tx, rings) = (&mut from.plug.rings()?.tx[queue], to.plug.rings()?);
        let rx_queue = queue_of(queue, rings);
        self.scratch.heartbeat.between(self.src, dst);
        let rx = &mut *rings.rx[rx_queue].lock();
        if rx.room() < budget {
            rx.sync();
            if let Some(port_mirrors) = &mut to.mirrors {
                port_mirrors.mirror_returned(rx_queue, rx, mirrors);
            }
        }
        let before = rx.tail();
        let run = run(tx, rx);
        debug_assert!(run.frames <= budget, "a run takes no more than its budget");
        if run.frames > 0 || run.end == End::BadSlot {
            if let Some(port_mirrors) = &mut to.mirrors {
                let heartbeat = &mut self.scratch.heartbeat;
                port_mirrors.mirror_received(rx_queue, before, rx, mirrors, heartbeat);
            }
            rx.publish();
            self.bytes += run.bytes;
            from.stats.queues[queue].tx.add(u64::from(run.frames), run.bytes);
            to.stats.queues[rx_queue].rx.add(u64::from(run.frames), run.bytes);
            if !std::mem::replace(&mut to.rung, true) {
                self.scratch.rung.push(dst);
            }
        }
        Some((run, rx_queue))
    }

    /// Handles a run that ended at a full ring: the sender waits, or the rest of the run is
    /// dropped.
    pub(crate) fn handle_full(
        &mut self,
        dst: PortId,
        queue: usize,
        header: Header,
        run: Run,
        budget: u32,
    ) -> Moved {
        let full = self.switch.entry_mut(dst).map(|to| to.full(dst, queue, 1));
        if let Some(full) = full.and_then(|full| self.wait(full, 0, 0)) {
            return Moved { slots: run.frames, blocked_on: Some(full) };
        }
        debug_assert!(run.frames <= budget, "a run takes no more than its budget");
        self.drop_rest(dst, DropReason::NoRoom, header, run, budget - run.frames)
    }

    /// Notes that the switch is about to drop frames for a ring without room: the client may need
    /// this core.
    pub(crate) fn note_crowded(&mut self, dst: PortId, queue: usize) {
        let now = self.now;
        let entry = self.switch.entry_mut(dst);
        self.scratch.crowded |= entry.is_some_and(|to| to.look_full(queue, 0, now));
    }

    /// Drops up to `max` more frames of a run, and counts them at the destination.
    pub(crate) fn drop_rest(
        &mut self,
        dst: PortId,
        reason: DropReason,
        header: Header,
        run: Run,
        max: u32,
    ) -> Moved {
        Moved::slots(run.frames + self.drop_frames(dst, reason, header, max))
    }

    /// Drops a run, and counts it at the source.
    pub(crate) fn run_drop(&mut self, header: Header, budget: u32, reason: DropReason) -> Moved {
        Moved::slots(self.drop_frames(self.src, reason, header, budget))
    }

    /// Takes a run that goes nowhere, and counts it at a port.
    fn drop_frames(&mut self, port: PortId, reason: DropReason, header: Header, max: u32) -> u32 {
        let from = self.tx().next_index();
        let run = drop_run(self.tx(), key(header), max);
        self.count_taken(run.frames, run.bytes);
        self.count_drop(port, reason, run.frames);
        self.show_taken(port, reason, from);
        run.frames
    }

    /// Counts frames that the switch has taken from the source.
    pub(crate) fn count_taken(&mut self, frames: u32, bytes: u64) {
        let queue = self.queue;
        self.bytes += bytes;
        if let Some(entry) = self.switch.entry_mut(self.src) {
            entry.stats.queues[queue].tx.add(u64::from(frames), bytes);
        }
    }

    /// Counts dropped frames at a port.
    pub(crate) fn count_drop(&mut self, port: PortId, reason: DropReason, frames: u32) {
        if let Some(entry) = self.switch.entry_mut(port) {
            entry.stats.drops.add(reason, u64::from(frames));
        }
    }
}

/// The receive ring for frames of transmit ring `queue`, as VALE pairs them.
#[inline]
pub(crate) fn queue_of(queue: usize, rings: &Krings) -> usize {
    let count = rings.rx.len();
    debug_assert!(count > 0, "a port with rings has a receive ring");
    if queue < count { queue } else { queue % count }
}

/// The bits that frames of one run have in common.
pub(crate) fn key(header: Header) -> Key {
    Key::new(u128::from_le_bytes(header.bytes()), header.key_mask())
}
