//! The receiving half of a turn: frames leave the source's rings or its adapter.
//!
//! A port with several transmit rings shares the frames of a turn among them. Frames of a ring stay
//! there until a run moves them or a batch takes them; an adapter gives a batch at once.

use ring::kring::{BadSlot, Taken, TxKring};
use ring::shared::Shared;

use crate::decide::bridge::TagAction;
use crate::decide::egress::Egress;
use crate::deliver::room::adapter_room;
use crate::deliver::run::queue_of;
use crate::mirror::MirrorPoint;
use crate::model::heartbeat::Stage;
use crate::model::port::Full;
use crate::model::port::Plug;
use crate::model::stats::DropReason;
use crate::receive::batch::{Delivery, FRAGS_MAX, to_u16, to_u32};
use crate::switch::Switch;
use crate::turn::{Moved, Scratch, Turn};

/// How many frames ahead the switch fetches the first bytes of frames that it will classify.
const AHEAD: u32 = 32;

impl Turn<'_> {
    /// Releases the batch that an adapter has given, and tells the adapter so.
    pub(crate) fn return_batch(&mut self) {
        self.scratch.heartbeat.beat(Stage::Receive, self.src);
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Plug::Adapter(adapter) = &mut entry.plug
        {
            adapter.lock().take_back(&self.scratch.batch);
        }
        self.scratch.batch.clear();
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Plug::Adapter(adapter) = &mut entry.plug
            && adapter.lock().delivered()
            && !std::mem::replace(&mut entry.rung, true)
        {
            self.scratch.rung.push(self.src);
        }
    }

    /// How many frames a port without rings may take, and the full port if it may take none. The
    /// switch learns where frames go only when it takes them, so it assumes that the next frames go
    /// where the last ones went.
    pub(crate) fn room_ahead(&mut self) -> (Option<Full>, usize) {
        let any = (None, usize::MAX);
        // In a chain nothing says so.
        if self.switch.steering.is_some() {
            return any;
        }
        let generation = self.switch.bridge.generation();
        let Some(entry) = self.switch.entry_mut(self.src) else { return any };
        let (Plug::Adapter(from), Some(Egress::To(dst, _))) = (&entry.plug, entry.cache.egress)
        else {
            return any;
        };
        // While nothing is taken nothing is decided: they may go elsewhere by now.
        if !from.with(|from| from.can_wait()) || entry.cache.generation != generation {
            return any;
        }
        let Some(to) = self.switch.entry_mut(dst) else { return any };
        self.scratch.heartbeat.between(self.src, dst);
        let (queue, room) = match &mut to.plug {
            Plug::Adapter(adapter) => (0, adapter_room(&mut **adapter.lock(), to.on_full, 0)),
            Plug::Rings(rings, _) => {
                let queue = queue_of(self.queue, rings);
                let mut rx = rings.rx[queue].lock();
                (queue, if rx.room() > 0 { rx.room() } else { rx.sync() })
            }
        };
        if room > 0 {
            return (None, usize::try_from(room).unwrap_or(usize::MAX));
        }
        let full = to.full(dst, queue, 1);
        self.wait(full, 0, 0).map_or(any, |full| (Some(full), 0))
    }

    /// Takes frames from all transmit rings of the source, which are synchronised: at most `most`
    /// together, but one from each.
    pub(crate) fn take_rings(&mut self, most: u16) -> Moved {
        let Some(entry) = self.switch.entry_mut(self.src) else { return Moved::default() };
        let (turn_frames, is_mirrored) = (entry.turn_frames, entry.mirrors.is_some());
        let queues = entry.plug.rings().map_or(0, |rings| rings.tx.len());
        self.frames_max = self.frames_max.min(turn_frames);
        if most < u16::MAX {
            let each = u32::from(most) / u32::try_from(queues).unwrap_or(1).max(1);
            self.frames_max = self.frames_max.min(each.max(1));
        }
        if is_mirrored {
            self.mirror_returned();
        }
        let mut moved = Moved::default();
        for queue in 0..queues {
            self.queue = queue;
            let one = self.take_ring();
            moved = Moved { slots: moved.slots + one.slots, ..one };
            if moved.blocked_on.is_some() {
                // Back-pressure stops the port as a whole: it waits for one ring at a time.
                break;
            }
        }
        moved
    }

    /// Takes at most `most` frames from a port without rings.
    pub(crate) fn take_from_adapter(&mut self, most: u16) -> Moved {
        let (ahead, room) = self.room_ahead();
        let Some(entry) = self.switch.ports.get_mut(self.src.index()).and_then(Option::as_mut)
        else {
            return Moved::default();
        };
        let Plug::Adapter(adapter) = &mut entry.plug else { return Moved::default() };
        let Scratch { batch, heartbeat, .. } = &mut *self.scratch;
        heartbeat.beat(Stage::Receive, self.src);
        batch.clear();
        batch.restrict(room.min(most.into()).min(self.switch.staged_max));
        adapter.lock().recv(batch, &mut entry.stats.drops);
        if entry.mirrors.is_some() {
            self.mirror_batch();
        }
        // A batch does not wait: the adapter gave none if there was no room ahead.
        if self.switch.steering.is_some() {
            // The rings of functions are looked at.
            self.scratch.heartbeat.beat(Stage::Forward, self.src);
            self.switch.refresh_instances();
            self.steer_batch();
        } else {
            self.deliver_batch();
        }
        let slots = to_u32(self.scratch.batch.frames().len());
        self.return_batch();
        Moved { slots, blocked_on: ahead }
    }

    /// Takes frames from one transmit ring: in runs, and staged if runs are short.
    pub(crate) fn take_ring(&mut self) -> Moved {
        let budget = self.tx().ready().min(self.frames_max);
        self.mirror_sent();
        if budget > 0 {
            self.switch.refresh_instances();
        }
        let mut moved = Moved::default();
        while moved.slots < budget
            && moved.blocked_on.is_none()
            && self.copies_left > 0
            && !self.switch.bridge.has_spent_turn()
        {
            let mut step = if self.switch.steering.is_some() {
                self.steer(budget - moved.slots)
            } else {
                self.step(budget - moved.slots)
            };
            if step == Moved::default() && self.switch.steering.is_none() {
                // The frame has changed under our eyes: whatever it is now, it is taken.
                step = self.stage(budget - moved.slots);
            }
            if step == Moved::default() {
                break;
            }
            moved = Moved { slots: moved.slots + step.slots, ..step };
        }
        if moved.slots > 0 {
            self.tx().publish();
        }
        moved
    }

    /// Mirrors the frames that the client has sent, before the switch takes them.
    #[inline]
    pub(crate) fn mirror_sent(&mut self) {
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        if let Some(Some(entry)) = ports.get_mut(self.src.index())
            && let Some(port_mirrors) = &mut entry.mirrors
            && let Some(rings) = entry.plug.rings()
        {
            let (tx, heartbeat) = (&rings.tx[self.queue], &mut self.scratch.heartbeat);
            port_mirrors.mirror_sent(self.queue, tx, mirrors, heartbeat);
        }
    }

    /// Mirrors the frames that a port without rings has received.
    #[cold]
    pub(crate) fn mirror_batch(&mut self) {
        let Scratch { batch, list, software, heartbeat, .. } = &mut *self.scratch;
        list.clear();
        let all = 0..batch.frames().len();
        list.extend(all.map(|frame| Delivery { frame: to_u16(frame), tag: TagAction::Keep }));
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        if let Some(Some(entry)) = ports.get_mut(self.src.index())
            && let Some(port_mirrors) = &entry.mirrors
        {
            let (point, frames) = (MirrorPoint::Sent, (batch, &list[..]));
            port_mirrors.mirror_list(point, frames, self.src, Some(software), mirrors, heartbeat);
        }
        list.clear();
    }

    /// Mirrors the slots that the client has read and returned.
    #[cold]
    pub(crate) fn mirror_returned(&mut self) {
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        if let Some(Some(entry)) = ports.get_mut(self.src.index())
            && let Some(port_mirrors) = &mut entry.mirrors
            && let Some(rings) = entry.plug.rings()
        {
            let all = rings.rx.iter_mut().map(Shared::lock).enumerate();
            for (queue, mut rx) in all.filter(|(_, rx)| rx.is_mirrored()) {
                rx.sync();
                port_mirrors.mirror_returned(queue, &mut rx, mirrors);
            }
        }
    }

    /// The transmit ring that frames are taken from.
    #[inline]
    pub(crate) fn tx(&mut self) -> &mut TxKring {
        let (entry, queue) = (self.switch.entry_mut(self.src), self.queue);
        let rings = entry.and_then(|entry| entry.plug.rings());
        &mut rings.expect("the source of a turn has rings").tx[queue]
    }

    /// Moves up to `budget` slots' worth of frames of any shape from the ring into the batch.
    pub(crate) fn take_batch(&mut self, budget: u32) -> u32 {
        let (queue, steered) = (self.queue, self.is_function(self.src));
        let is_steered = self.switch.steering.is_some();
        let is_seen = !steered && is_steered;
        let staged_max = self.switch.staged_max;
        let Some(entry) = self.switch.entry_mut(self.src) else { return 0 };
        let Some(rings) = entry.plug.rings() else { return 0 };
        let (tx, batch) = (&mut rings.tx[queue], &mut self.scratch.batch);
        let before = tx.ready();
        batch.restrict(staged_max);
        batch.restart(tx.region());
        if is_seen {
            (0..AHEAD).for_each(|slots| tx.fetch_ahead(slots));
        }
        while before - tx.ready() < budget && batch.has_room() {
            if is_seen {
                tx.fetch_ahead(AHEAD);
            }
            let (first, at) = (batch.frags().len(), tx.next_index());
            let taken = tx.take(batch.frags(), FRAGS_MAX);
            // A bad frame is counted and stays taken, so none in front of it may be given back.
            let may_give_back = !batch.frames().is_empty() && !is_steered;
            if matches!(taken, Some(Taken::Bad(_))) && may_give_back {
                tx.untake(at);
                break;
            }
            // Also of what is dropped, and of all its slots: the next frame there is another.
            let mark = if steered { tx.take_metadata(at) } else { 0 };
            match taken {
                None => break,
                Some(Taken::Bad(why)) => entry.stats.drops.add(bad_slot(why), 1),
                Some(Taken::Frame { bytes, slot, flags }) => {
                    batch.push(first, bytes, slot, flags);
                    batch.set_metadata(batch.frames().len() - 1, mark);
                    if tx.vnet_header_len() != 0 {
                        batch.push_vnet_header(tx.vnet_header(), tx.vnet_header_len());
                    }
                }
            }
        }
        debug_assert!(tx.ready() <= before, "frames leave a ring, and none come");
        before - tx.ready()
    }
}

/// The reason to drop a frame whose slots make no sense.
fn bad_slot(why: BadSlot) -> DropReason {
    match why {
        BadSlot::Buffer => DropReason::BadIndex,
        BadSlot::TooLong | BadSlot::Flags => DropReason::BadSlot,
        BadSlot::TooShort => DropReason::TooShort,
        BadSlot::Chain => DropReason::BadFragments,
    }
}
