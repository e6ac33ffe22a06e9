//! Hostile memory against the switch's half of the rings.
//!
//! ```text
//!   region 1: port 0   hostile        region 2: ports 1, 2   a hostile trust group
//!   region 3: port 3   an honest client
//! ```
//!
//! Between the steps of the switch, bytes of the hostile regions' structures are overwritten at
//! will. The switch may drop what it likes; it may not panic, and the honest client sees frames of
//! legal length and a ring in order.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ring::abi::{CsbAtok, NetmapRing, Slot, sync_flag};
use ring::cursor::Index;
use ring::frame::{FRAME_MAX, Frag, Frame, Pieces, Prologue};
use ring::kring::{RxKring, TxKring};
use ring::krings::Krings;
use ring::layout::{FIRST_BLOCK, PortLayout};
use ring::run::{Key, copy_run, drop_run, swap_run};
use ring::shared::Guard;
use ring::user::RxRing;

use crate::Input;
use crate::rings::{SLOTS, STRIDE, Small, block, block_size};

const HONEST: usize = 3;

/// A client that writes any bytes at any time into its memory loses its own frames, and no other
/// port's.
pub fn ring_slots(data: &[u8]) {
    run(data);
}

/// Returns how many frames the honest client received.
fn run(data: &[u8]) -> u32 {
    let mut world = World::new();
    let mut input = Input(data);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.check_honest()
}

struct World {
    ports: Vec<Krings>,
    /// The memory of regions 1 and 2, and how much of each holds structures.
    hostile: [(File, usize); 2],
    honest: RxRing,
    received: u32,
}

impl World {
    fn new() -> Self {
        let [mut one, two, honest] = [1, 2, 1].map(Small::new);
        one.ports.extend(two.ports);
        one.ports.extend(honest.ports);
        let hostile = [(one.file, block_size()), (two.file, 2 * block_size())];
        let honest = RxRing::new(&honest.client, &block(0), 0);
        Self { ports: one.ports, hostile, honest, received: 0 }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let (op, from, to) = (input.below(19), input.below(HONEST), input.below(HONEST + 1));
        match op {
            0 if input.u8().is_multiple_of(4) => self.begin_offsets(from, input),
            0 => self.scribble(input),
            1..=3 => self.fill_slot(from, input),
            4..=6 => self.hand_over(from, input),
            7 | 8 => {
                self.ports[from].sync_tx();
                self.ports[to].rx[0].lock().sync();
            }
            9..=11 => self.put(from, to, input),
            12 | 13 => self.run(from, to, input),
            14 => self.publish(from, to),
            15 => self.mirror(from, to),
            16 => self.show_returned(from, to, input),
            _ => self.read_honest(),
        }
    }

    /// Overwrites up to eight bytes of a hostile region's structures, as its client could.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let (file, len) = &self.hostile[input.below(2)];
        let at = FIRST_BLOCK + usize::from(input.u16()) % (len - 8);
        let count = input.below(8) + 1;
        let bytes: [u8; 8] = input.bytes();
        file.write_all_at(&bytes[..count], at as u64).expect("a memfd");
    }

    /// Writes a slot that may well be legal; noise alone would hardly ever be.
    fn fill_slot(&mut self, port: usize, input: &mut Input<'_>) {
        let (ring, slot) = (input.below(2), input.below(SLOTS as usize));
        let flags: u16 = [0, 0, 0, 1, 0x20, 0x20, 0x8, 0xFF21][input.below(8)];
        let (buffer, len) = (u32::from(input.u8() % 40), u16::from(input.u8() % 136));
        let at = place(port).ring(ring) + size_of::<NetmapRing>() + slot * size_of::<Slot>();
        let word = u64::from(buffer) | u64::from(len) << 32 | u64::from(flags) << 48;
        self.write(port, at, &word.to_le_bytes());
        self.write(port, at + 8, &u64::from(input.u8()).to_le_bytes());
    }

    /// Says that frames of a ring begin where slots say, in some bits of theirs.
    fn begin_offsets(&mut self, port: usize, input: &mut Input<'_>) {
        let (ring, set) = (input.below(2), !input.u8().is_multiple_of(4));
        let flags = if set { sync_flag::OFFSETS } else { 0 };
        let mask: u64 = [0x7f, 0xff, 0xffff, u64::MAX][input.below(4)];
        let at = place(port).ring(ring) + offset_of!(NetmapRing, offset_mask);
        self.write(port, at, &mask.to_le_bytes());
        let at = place(port).atok(ring) + offset_of!(CsbAtok, sync_flags);
        self.write(port, at, &flags.to_le_bytes());
    }

    /// Moves the client's index of one ring, at times out of range.
    fn hand_over(&mut self, port: usize, input: &mut Input<'_>) {
        let (ring, head) = (input.below(2), u32::from(input.u8()) % (SLOTS + 2));
        self.write(port, place(port).atok(ring), &head.to_le_bytes());
    }

    fn write(&mut self, port: usize, at: usize, bytes: &[u8]) {
        let (file, _) = &self.hostile[usize::from(port != 0)];
        file.write_all_at(bytes, at as u64).expect("a memfd");
    }

    /// The staged path: one frame of any shape.
    fn put(&mut self, from: usize, to: usize, input: &mut Input<'_>) {
        let (source, mut destination) = pair(&mut self.ports, from, to);
        let mut frags = Vec::new();
        let taken = source.take(&mut frags, 4);
        let Some(ring::kring::Taken::Frame { bytes, .. }) = taken else {
            assert!(frags.is_empty(), "a frame that was refused leaves no pieces");
            return;
        };
        assert!(frags.iter().all(|frag| u32::from(frag.len()) <= STRIDE));
        assert_eq!(frags.iter().map(|frag| u32::from(frag.len())).sum::<u32>(), bytes);
        let region = source.region().clone();
        destination.sync();
        let head = prologue(&frags, input.u8());
        let frame = Frame { pieces: Pieces::Region(&region, &frags), bytes };
        if let Ok(delivered) = destination.put(frame, head) {
            assert_eq!(delivered, bytes - u32::from(head.skip) + u32::from(head.len));
            assert!(delivered <= FRAME_MAX);
        }
    }

    /// The fused path: a run with one header.
    fn run(&mut self, from: usize, to: usize, input: &mut Input<'_>) {
        let (max, mask) = (u32::from(input.u8()), u128::from_le_bytes(input.bytes()));
        let (source, mut destination) = pair(&mut self.ports, from, to);
        let Some(header) = source.peek() else { return };
        let (key, ready) = (Key::new(header, mask), source.ready());
        destination.sync();
        let run = match (Arc::ptr_eq(source.region(), destination.region()), max % 8) {
            (_, 0) => drop_run(source, key, max),
            (true, _) => swap_run(source, &mut destination, key, max),
            (false, _) => copy_run(source, &mut destination, key, max),
        };
        assert!(run.frames <= ready.min(max));
        assert!(run.bytes <= u64::from(run.frames) * u64::from(STRIDE));
        assert_eq!(source.ready(), ready - run.frames);
    }

    /// Mirrors the frames that one port sends and receives to another.
    fn mirror(&mut self, from: usize, to: usize) {
        let Ok([looked_at, eye]) = self.ports.get_disjoint_mut([from, to]) else { return };
        let (to, mut frags) = (&mut eye.rx[0].lock(), Vec::with_capacity(4));
        to.sync();
        let room = u64::from(to.room());
        let ready = looked_at.tx[0].ready();
        let missed = looked_at.tx[0].mirror(looked_at.tx[0].untaken(), to, &mut frags);
        assert!(missed <= u64::from(ready));
        looked_at.rx[0].lock().mirror(Index::ZERO, to, &mut frags);
        assert!(u64::from(to.room()) <= room);
    }

    /// Mirrors the slots that a port's client has returned to another.
    fn show_returned(&mut self, from: usize, to: usize, input: &mut Input<'_>) {
        let Ok([looked_at, eye]) = self.ports.get_disjoint_mut([from, to]) else { return };
        let (rx, to) = (&mut looked_at.rx[0].lock(), &mut eye.rx[0].lock());
        let what = input.u8();
        rx.set_mirrored(!what.is_multiple_of(4));
        rx.sync();
        to.sync();
        let near = Arc::ptr_eq(rx.region(), to.region());
        let missed = match what.is_multiple_of(2) && near {
            true => rx.move_returned(to, 0x40),
            false => rx.copy_returned(to, 0x40),
        };
        assert!(missed < u64::from(SLOTS));
        rx.free_returned();
    }

    fn publish(&mut self, from: usize, to: usize) {
        let (source, mut destination) = pair(&mut self.ports, from, to);
        source.publish();
        destination.publish();
        source.wants_kick();
        destination.wants_kick();
    }

    fn read_honest(&mut self) {
        self.ports[HONEST].rx[0].lock().publish();
        let frames = self.honest.refresh();
        assert!(frames < SLOTS);
        for i in 0..frames {
            let len = self.honest.frame(i).len();
            assert!(len > 0 && len <= STRIDE as usize, "{len} bytes");
        }
        let _ = self.honest.release(frames);
        self.received += frames;
    }

    fn check_honest(mut self) -> u32 {
        self.read_honest();
        self.ports[HONEST].rx[0].lock().sync();
        assert_eq!(self.ports[HONEST].rx[0].lock().room(), SLOTS - 1, "all slots came back");
        assert_eq!(self.honest.resyncs(), 0);
        self.received
    }
}

/// The layout of a hostile port in its region.
fn place(port: usize) -> PortLayout {
    block(port.saturating_sub(1))
}

/// The transmit ring of one port and the receive ring of another, or of the same.
fn pair(ports: &mut [Krings], from: usize, to: usize) -> (&mut TxKring, Guard<'_, RxKring>) {
    if from == to {
        let Krings { tx, rx, .. } = &mut ports[from];
        return (&mut tx[0], rx[0].lock());
    }
    let [source, destination] = ports.get_disjoint_mut([from, to]).expect("two ports");
    (&mut source.tx[0], destination.rx[0].lock())
}

/// Keeps the header, inserts a tag or strips one.
fn prologue(frags: &[Frag], choice: u8) -> Prologue {
    let first = frags.first().map_or(0, Frag::len);
    let (len, skip) = match choice % 3 {
        0 if first >= 16 => (12, 16),
        1 => (16, 12),
        _ => (14, 14),
    };
    Prologue { bytes: [0xAA; 16], len, skip }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The target is worth nothing if no frame ever gets through.
    #[test]
    fn the_honest_client_receives_frames() {
        let received = run(&crate::noise());
        assert!(received > 100, "{received} frames");
    }
}
