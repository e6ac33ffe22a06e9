//! Frames of multicast groups: the ports that get them, and the queries that the switch sends.
//!
//! A run of multicast frames has one header, and may have reports among data. So the switch looks
//! at each of its frames once, and takes a report, a query or a leave alone: it is learned before
//! the frames behind it are delivered.

use std::ops::Range;

use packet::{PortId, mcast};

use crate::decide::bridge::{TagAction, VlanVerdict};
use crate::decide::forward::{FloodClass, Verdict};
use crate::decide::snooping::Kind;
use crate::deliver::into_ring::{Taps, send_to_ring};
use crate::mirror::MirrorPoint;
use crate::model::heartbeat::Stage;
use crate::model::now::Now;
use crate::model::port::Plug;
use crate::receive::batch::{Delivery, to_u16};
use crate::switch::Switch;
use crate::turn::{Scratch, Turn};

/// Copies that cost as much as a record of a report: to learn it takes a microsecond or more.
const RECORD_COPIES: u32 = 24;

impl Turn<'_> {
    /// Finds the ports that get a run of multicast frames in a switch that snoops. Returns the
    /// verdict about it there, and as much of the run as goes to them.
    #[inline(never)]
    pub(crate) fn find_members(
        &mut self,
        verdict: VlanVerdict,
        run: Range<usize>,
    ) -> (VlanVerdict, Range<usize>) {
        let header = self.scratch.batch.frames()[run.start].header;
        let (kind, run) = self.hear(&verdict, run);
        let (bridge, targets) = (&mut self.switch.bridge, &mut self.scratch.targets);
        let at = (self.src, verdict.vlan);
        if !bridge.group_targets(at, (header, kind), self.now, targets).is_flood() {
            return (VlanVerdict { forward: Verdict::Members, ..verdict }, run);
        }
        targets.extend(bridge.flood_targets(self.src, &verdict));
        (verdict, run)
    }

    /// What the first frame of a run is, and the frames that are the same.
    fn hear(&mut self, verdict: &VlanVerdict, run: Range<usize>) -> (Kind, Range<usize>) {
        let Scratch { batch, message, .. } = &mut *self.scratch;
        let is_control = |&frame: &usize| {
            let (head, count) = batch.packet(frame);
            batch.frames()[frame].is_of_one_vlan() && mcast::is_control(&head[..count])
        };
        debug_assert!(!run.is_empty(), "a run has a frame");
        if !is_control(&run.start) {
            let same = run.clone().take_while(|frame| !is_control(frame)).count();
            return (Kind::Data, run.start..run.start + same);
        }
        message.clear();
        batch.append(Delivery { frame: to_u16(run.start), tag: TagAction::Keep }, message);
        let (at, header) = ((self.src, verdict.vlan), batch.frames()[run.start].header);
        let (read, bridge) = (mcast::read(message), &mut self.switch.bridge);
        let kind = Kind::of(read);
        // A frame that the port's limit drops teaches nothing, nor does one behind so many records
        // that the turn is spent: hosts repeat what they say.
        let may_teach = bridge.could_flood(self.src, FloodClass::Multicast, self.now);
        if may_teach && self.copies_left > 0 {
            let records = bridge.hear(at, header, read, self.now);
            self.copies_left = self.copies_left.saturating_sub(records * RECORD_COPIES);
        }
        (kind, run.start..run.start + 1)
    }

    /// Sends a frame of the switch's own to one port.
    fn send_own(&mut self, dst: PortId, frame: &[u8], tag: TagAction) {
        let Scratch { software, refused, heartbeat, .. } = &mut *self.scratch;
        let Switch { ports, mirrors, .. } = &mut *self.switch;
        let Some(Some(to)) = ports.get_mut(dst.index()) else { return };
        software.put(frame, tag);
        let (batch, list) = (&mut software.batch, &software.list[..]);
        debug_assert!(list.len() == 1, "one frame at a time");
        heartbeat.beat(Stage::Send, dst);
        let sent = match &mut to.plug {
            Plug::Adapter(adapter) => {
                if let Some(its) = &to.mirrors {
                    let (point, frames) = (MirrorPoint::Received, (&mut *batch, list));
                    its.mirror_list(point, frames, dst, None, mirrors, heartbeat);
                }
                adapter.lock().send(batch, list)
            }
            Plug::Rings(rings, _) => {
                let its = to.mirrors.as_deref_mut();
                let mut taps = its.map(|its| Taps { queue: 0, its, mirrors, heartbeat });
                let rx = &mut *rings.rx[0].lock();
                send_to_ring(rx, false, batch, list, None, &mut taps, refused)
            }
        };
        refused.clear();
        to.stats.queues[0].rx += sent.delivered;
        to.stats.drops += &sent.drops;
        self.note_rung(dst);
    }
}

impl Switch {
    /// Sends the queries that are due. `true`: there were some, and as after a turn there may be
    /// ports that were [woken](Scratch::woken) or are [owed](Scratch::owed_wakes) it.
    pub fn send_queries(&mut self, now: Now, scratch: &mut Scratch) -> bool {
        if self.bridge.next_query().is_none_or(|next| now < next) {
            return false;
        }
        scratch.woken.clear();
        scratch.owed_wakes.clear();
        let due = self.bridge.take_due_queries(now);
        let is_some = !due.is_empty();
        for query in due {
            let (frame, ports) = self.bridge.own_query(query);
            // Each is its own source: a query comes from no port.
            for (dst, tag) in ports {
                self.send_to(dst, &frame, tag, now, scratch);
            }
        }
        is_some
    }

    /// When the switch has a query to send; `None`: it sends none.
    #[must_use]
    pub fn next_query(&self) -> Option<Now> {
        self.bridge.next_query()
    }

    fn send_to(
        &mut self,
        dst: PortId,
        frame: &[u8],
        tag: TagAction,
        now: Now,
        scratch: &mut Scratch,
    ) {
        let mut turn = Turn::idle(self, scratch, dst, now);
        let Switch { ports, mirrors, .. } = &mut *turn.switch;
        mirrors.borrow(ports, dst, now);
        turn.send_own(dst, frame, tag);
        let Switch { ports, mirrors, .. } = &mut *turn.switch;
        mirrors.give_back(ports, &mut turn.scratch.rung);
        turn.ring_doorbells();
    }
}
