//! Frames between the guest's rings and a port with another region.
//!
//! A VMM maps a BAR once, when it connects. A switch that comes back has a new region for the port,
//! and the guest keeps the old one. From then on this process is the switch's side of the old rings
//! and the client of the new ones:
//!
//! ```text
//!   guest ──► TxKring ──► frame ──► Tx ──► switch
//!   guest ◄── RxKring ◄── intake ◄─ Rx ◄── switch
//!    old region                      new region
//! ```
//!
//! That costs a copy each way, until the VMM is started anew. The old rings are formatted when the
//! driver starts them; what it does to them from then on is bounded as the switch bounds it, for
//! the code is the same ([`ring::kring`]).

use std::io;

use client::{Interest, Lost, Port, PortMemory};
use ring::doorbell::store_load_fence;
use ring::frame::{Frag, Frame, Pieces, Prologue, SLOTS_MAX};
use ring::intake::{Intake, STANDARD_FRAME};
use ring::kring::{Refused, RxKring, Taken, TxKring};
use ring::krings::Krings;

/// Frames of one turn in each ring and direction.
const BUDGET: u32 = 256;
/// Free slots of the port that a frame waits for.
const ROOM: u32 = 64;

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// Frames moved, or were dropped.
    pub moved: bool,
    /// A transmit ring of the port without room for the guest's next frame.
    waits_for_port: Option<usize>,
    /// A receive ring of the guest without room for the port's next frame, and the slots wanted.
    waits_for_guest: Option<(usize, u32)>,
}

/// The switch's side of rings whose switch is gone.
#[derive(Debug)]
pub struct Relay {
    krings: Krings,
    intake: Intake,
    frags: Vec<Frag>,
    frame: Vec<u8>,
}

impl Relay {
    /// Formats the rings. The driver leaves them alone meanwhile, or harms itself.
    pub fn new(memory: &PortMemory) -> io::Result<Self> {
        let (region, port) = (memory.region(), memory.layout());
        region.format_port("ptnet", port, region.buffers(), true)?;
        let (krings, intake) = (Krings::new(region, port), Intake::new(1, STANDARD_FRAME)?);
        Ok(Self { krings, intake, frags: Vec::new(), frame: Vec::new() })
    }

    /// Moves what there is, and calls `interrupt` for each ring whose driver sleeps. Without a
    /// port, frames of the guest are lost, as on a wire.
    pub fn turn(
        &mut self,
        mut port: Option<&mut Port>,
        mut interrupt: impl FnMut(u16),
    ) -> Result<Turn, Lost> {
        let mut turn = Turn::default();
        for ring in 0..self.krings.tx.len() {
            let port = port.as_deref_mut().filter(|port| ring < port.tx_rings());
            self.transmit(ring, port, &mut turn)?;
        }
        if let Some(port) = port {
            for ring in 0..self.krings.rx.len().min(port.rx_rings()) {
                self.receive(ring, port, &mut turn)?;
            }
        }
        // Partner: the driver's between its need-kick word and its look at `hwtail`.
        store_load_fence();
        for (vector, ring) in (0..).zip(&mut self.krings.tx) {
            if ring.wants_kick() {
                interrupt(vector);
            }
        }
        let first = u16::try_from(self.krings.tx.len()).expect("few rings");
        for (vector, ring) in (first..).zip(&mut self.krings.rx) {
            if ring.lock().wants_kick() {
                interrupt(vector);
            }
        }
        Ok(turn)
    }

    fn transmit(
        &mut self,
        ring: usize,
        port: Option<&mut Port>,
        turn: &mut Turn,
    ) -> Result<(), Lost> {
        let Self { krings, frags, frame, .. } = self;
        let from: &mut TxKring = &mut krings.tx[ring];
        if from.sync() == 0 {
            return Ok(());
        }
        let mut to = port.map(|port| port.tx(ring));
        if let Some(to) = &mut to {
            to.space();
        }
        let (mut filled, mut done) = (0, false);
        for _ in 0..BUDGET {
            frags.clear();
            let Some(taken) = from.take(frags, SLOTS_MAX as usize) else { break };
            let (Taken::Frame { bytes, slot, .. }, Some(to)) = (taken, &mut to) else {
                done = true;
                continue;
            };
            frame.clear();
            let pieces = Pieces::Region(from.region(), frags);
            Frame { pieces, bytes }.append_to(Prologue::NONE, frame);
            match to.put(filled, frame) {
                Ok(Some(slots)) => filled += slots,
                Ok(None) => {
                    from.untake(slot);
                    turn.waits_for_port = Some(ring);
                    break;
                }
                // Too long for the port: dropped.
                Err(_) => done = true,
            }
        }
        from.publish();
        turn.moved |= done || filled > 0;
        match to {
            Some(to) if filled > 0 => to.submit(filled),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, ring: usize, port: &mut Port, turn: &mut Turn) -> Result<(), Lost> {
        let Self { krings, intake, frags, frame: joined } = self;
        let from = port.rx(ring);
        let (count, mut done, mut is_full) = (from.available().min(BUDGET), 0, false);
        if count == 0 {
            return Ok(());
        }
        let mut to = krings.rx[ring].lock();
        to.sync();
        for frame in from.frames() {
            joined.clear();
            frame.parts().for_each(|part| joined.extend_from_slice(part));
            if done >= count {
                break;
            }
            if !put(&mut to, intake, frags, joined) {
                let bytes = u32::try_from(joined.len()).expect("a frame");
                let slots = to.slots_for(bytes).min(to.capacity());
                (turn.waits_for_guest, is_full) = (Some((ring, slots)), true);
                break;
            }
            done = frame.first_slot() + frame.slots();
        }
        to.publish();
        // Slots that the switch passed over hold no frame.
        let done = if is_full { done } else { done.max(count) };
        turn.moved |= done > 0;
        if done > 0 { from.release(done) } else { Ok(()) }
    }

    /// Asks both sides for kicks. `false`: there is something to do already.
    pub fn arm(&mut self, port: Option<&mut Port>, turn: Turn) -> bool {
        if turn.waits_for_port.is_none() {
            self.krings.arm();
        }
        if let Some((ring, _)) = turn.waits_for_guest {
            self.krings.rx[ring].lock().want_room();
        }
        // Partner: the driver's between `head` and its look at the need-kick words.
        store_load_fence();
        let has_room = turn.waits_for_guest.is_some_and(|(ring, wanted)| {
            let mut ring = self.krings.rx[ring].lock();
            ring.sync();
            ring.room() >= wanted
        });
        let is_idle = turn.waits_for_port.is_some() || self.krings.sync_tx() == 0;
        let Some(port) = port else { return is_idle };
        let has_no_more = turn.waits_for_guest.is_some() || port.arm(Interest::Rx);
        let is_full = turn.waits_for_port.is_none_or(|ring| port.tx(ring).arm(ROOM));
        is_idle && !has_room && has_no_more && is_full
    }

    /// Takes the guest's request for a kick back.
    pub fn disarm(&mut self) {
        self.krings.disarm();
        self.krings.rx.iter_mut().for_each(|ring| ring.lock().found_room());
    }
}

/// Copies a frame into the guest's ring. `false`: there is no room. A frame that meets a spoilt
/// slot, or is longer than the ring, is dropped.
fn put(to: &mut RxKring, intake: &mut Intake, frags: &mut Vec<Frag>, frame: &[u8]) -> bool {
    intake.clear();
    if frame.len() < usize::from(client::FRAME_MIN) || !intake.fits(frame.len()) {
        return true;
    }
    frags.clear();
    intake.push(&[frame], frags);
    let bytes = u32::try_from(frame.len()).expect("a frame");
    let pieces = Pieces::Region(intake.region(), frags);
    to.put(Frame { pieces, bytes }, Prologue::NONE) != Err(Refused::NoRoom)
}
