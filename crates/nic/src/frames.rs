//! Frames between the device's rings and those of its port.
//!
//! ```text
//!   guest memory ──► model ──► Outbox ──► slots of the port ──► switch
//!   guest memory ◄── model ◄───────────── slots of the port ◄── switch
//! ```
//!
//! A frame is copied once in each direction. What the guest left to its card, checksums and
//! segments, is done here, for the port's frames are finished ones.
//!
//! *Full.* Without room in the port, a frame stays in the device's ring, and its driver finds fewer
//! descriptors back. Without buffers in the device, frames stay in the port, and the switch drops
//! what comes behind them.

use client::{Lost, Port, Rx, Tx};
use device::e1000::{E1000, Sent, TxFrame};
use packet::offload::{PendingOffload, Segmenter};
use ring::guest::GuestMemory;

/// Descriptors and frames of one turn.
const BUDGET: u32 = 256;
/// Nothing is left to do to a frame.
const FINISHED: [u8; packet::offload::VNET_LEN] = [0; packet::offload::VNET_LEN];

/// Frames that leave the device.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Slots that are filled, and not handed over yet.
    filled: u32,
    /// The frame that is being made into others.
    frame: Vec<u8>,
    segmenter: Option<Segmenter>,
    /// The slots of the frame that found no room in this turn.
    wanted: u32,
    /// Frames that were dropped: too short, too long, or nonsense.
    pub dropped: u64,
}

impl Outbox {
    /// Takes frames of the device.
    pub fn transmit(
        &mut self,
        model: &mut E1000,
        memory: &GuestMemory,
        now_ns: u64,
        port: &mut Port,
    ) -> Result<Turn, Lost> {
        let tx = port.tx(0);
        tx.space();
        let mut turn = Turn::default();
        self.wanted = 0;
        self.go_on(tx);
        if self.segmenter.is_none() {
            let send = |frame: TxFrame<'_>| self.send(tx, frame);
            let progress = model.transmit(memory, now_ns, BUDGET, send);
            turn.more = progress.more;
            turn.moved = progress.descriptors > 0;
        }
        turn.blocked = self.wanted > 0;
        turn.moved |= self.filled > 0;
        let filled = std::mem::take(&mut self.filled);
        if filled > 0 {
            tx.submit(filled)?;
        }
        Ok(turn)
    }

    /// Takes a frame of the device, if there is room.
    fn send(&mut self, tx: &mut Tx, frame: TxFrame<'_>) -> Sent {
        if self.segmenter.is_some() || tx.owned() == self.filled {
            self.wanted = self.wanted.max(1);
            return Sent::Later;
        }
        if frame.left != FINISHED {
            self.begin(frame);
            self.go_on(tx);
            return Sent::Taken;
        }
        if fits(tx, frame.bytes) {
            let TxFrame { head, mut rest, bytes, .. } = frame;
            let len = u16::try_from(bytes).expect("a slot is shorter");
            let (first, last) = tx.frame(self.filled, len).split_at_mut(head.len());
            first.copy_from_slice(head);
            rest.read(last);
            self.filled += 1;
            return Sent::Taken;
        }
        self.gather(frame);
        match tx.put(self.filled, &self.frame) {
            Ok(Some(slots)) => self.filled += slots,
            Ok(None) => {
                self.wanted = tx.slots_for(self.frame.len()).unwrap_or(1);
                return Sent::Later;
            }
            Err(_) => self.dropped += 1,
        }
        Sent::Taken
    }

    /// Begins with a frame to which something is left to do.
    fn begin(&mut self, frame: TxFrame<'_>) {
        let (left, bytes) = (frame.left, frame.bytes);
        self.gather(frame);
        let pending = PendingOffload::read(left, bytes).ok().flatten();
        self.segmenter = pending.and_then(|it| Segmenter::new(it, &mut self.frame).ok());
        if self.segmenter.is_none() {
            self.dropped += 1;
        }
    }

    /// Copies a frame out of the guest's memory.
    fn gather(&mut self, frame: TxFrame<'_>) {
        let TxFrame { head, mut rest, bytes, .. } = frame;
        self.frame.clear();
        self.frame.extend_from_slice(head);
        self.frame.resize(bytes, 0);
        rest.read(&mut self.frame[head.len()..]);
    }

    /// Puts the finished frames into slots, as far as there are any.
    fn go_on(&mut self, tx: &mut Tx) {
        let Some(segmenter) = &mut self.segmenter else { return };
        let longest = segmenter.longest(&self.frame);
        let Ok(slots) = tx.slots_for(longest) else {
            (self.segmenter, self.dropped) = (None, self.dropped + 1);
            return;
        };
        while tx.owned() - self.filled >= slots {
            let Some(pieces) = segmenter.next(&mut self.frame) else {
                self.segmenter = None;
                return;
            };
            match put(tx, self.filled, pieces) {
                Some(slots) => self.filled += slots,
                None => self.dropped += 1,
            }
        }
        self.wanted = slots;
    }

    /// Free slots of the port that the next frame waits for.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Takes frames of the device that go nowhere.
    pub fn lose(&mut self, model: &mut E1000, memory: &GuestMemory, now_ns: u64) -> Turn {
        self.segmenter = None;
        let progress = model.transmit(memory, now_ns, BUDGET, |_| {
            self.dropped += 1;
            Sent::Taken
        });
        let (moved, more) = (progress.descriptors > 0, progress.more);
        Turn { moved, more, ..Turn::default() }
    }

    /// Forgets frames of a port or a guest that is gone.
    pub fn clear(&mut self) {
        (self.filled, self.segmenter) = (0, None);
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// Frames moved.
    pub moved: bool,
    /// There is more to move.
    pub more: bool,
    /// Nothing moves until the other side has room.
    pub blocked: bool,
    /// The length of the frame for the guest that waits for it.
    pub bytes: usize,
}

/// Whether a frame lies in one slot.
fn fits(tx: &Tx, bytes: usize) -> bool {
    bytes <= tx.stride() && bytes >= usize::from(client::FRAME_MIN)
}

/// Puts a frame in two pieces into the slots from the `at`-th on; returns their number.
fn put(tx: &mut Tx, at: u32, [head, payload]: [&[u8]; 2]) -> Option<u32> {
    let bytes = head.len() + payload.len();
    if fits(tx, bytes) {
        let (first, last) = tx.frame(at, u16::try_from(bytes).ok()?).split_at_mut(head.len());
        first.copy_from_slice(head);
        last.copy_from_slice(payload);
        return Some(1);
    }
    tx.put(at, &[head, payload].concat()).ok().flatten()
}

/// Gives frames of the port to the device, as long as it has buffers.
pub fn receive(
    model: &mut E1000,
    memory: &GuestMemory,
    now_ns: u64,
    rx: &mut Rx,
    joined: &mut Vec<u8>,
) -> Result<Turn, Lost> {
    if !model.is_receiving() {
        return discard(rx);
    }
    let (count, mut done, mut turn) = (rx.available(), 0, Turn::default());
    for frame in rx.frames() {
        turn.blocked = !model.has_room(memory, frame.len());
        turn.bytes = frame.len();
        turn.more = done >= BUDGET;
        if turn.blocked || turn.more {
            break;
        }
        let bytes = match frame.as_slice() {
            Some(bytes) => bytes,
            None => {
                joined.clear();
                frame.parts().for_each(|part| joined.extend_from_slice(part));
                joined.as_slice()
            }
        };
        // The model counts what it drops. The guest checks the checksums.
        let _ = model.receive(memory, now_ns, bytes, false);
        done = frame.first_slot() + frame.slots();
    }
    // Slots that the switch passed over hold no frame.
    let all = if turn.blocked || turn.more { done } else { count };
    turn.moved = all > 0;
    if all > 0 {
        rx.release(all)?;
    }
    Ok(turn)
}

/// Drops what has come for a device that takes no frames.
pub fn discard(rx: &mut Rx) -> Result<Turn, Lost> {
    let count = rx.available();
    if count > 0 {
        rx.release(count)?;
    }
    Ok(Turn { moved: count > 0, ..Turn::default() })
}
