//! What the peer of a `stream` or `dgram` port may write, and how little it may read.
//!
//! ```text
//!   input ──► peer ──── written ───► adapter ───► frames of a turn
//!             peer ◄──── taken ───── adapter ◄─── frames that the switch sends
//! ```
//!
//! The adapter is the one that a worker calls, and a socket pair of the kernel is between the two.
//! A [`Record`] of each direction holds all bytes that were sent, and takes the frames out of them
//! in the plainest way: these have to come at the other end.

mod peer;
mod record;

use std::rc::Rc;

use packet::VlanId;
use port::netdev::harness::{Harness, open_dgram, open_stream};
use port::netdev::{End, WAITING};
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::Intake;
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Sent, TagAction};

use crate::Input;
use peer::{Peer, connect};
use record::{LENGTH, Next, Record, length_of};

const FRAME: usize = FRAME_MAX as usize;
/// Steps of an input. More of them only take longer.
const STEPS: usize = 200;
/// About the most bytes of a step.
const STEP_BYTES: usize = 128 << 10;
/// The most bytes that a port keeps of what it has received: the longest frame, and 128 KiB.
const INBOX: usize = LENGTH + FRAME + (128 << 10);
/// Lengths of frames: around the shortest, a buffer of the daemon (2112 bytes), and the longest.
const LENGTHS: [usize; 16] =
    [0, 13, 14, 15, 18, 60, 60, 64, 590, 1514, 1518, 2113, 9000, FRAME, FRAME, FRAME + 1];
/// Lengths of what the peer writes in one call.
const PIECES: [usize; 8] = [1, 3, LENGTH, 5, 61, 4096, usize::MAX, usize::MAX];
/// Bytes of both addresses, and a tag behind them.
const ADDRESSES: usize = 12;
const TAG: [u8; 4] = [0x81, 0, 0, 7];

/// Whatever the peer of a `stream` port writes, the port delivers the frames that are in it, in
/// order, up to the first length that is too long, and disconnects there. A `dgram` port delivers
/// the datagrams that are frames. What a port has taken for its peer comes whole and in order, and
/// what waits for either is bounded.
pub fn stream_port(data: &[u8]) {
    run(data, STEPS);
}

/// Returns how many frames the port has delivered, and how many bytes the peer has read.
fn run(data: &[u8], steps: usize) -> [usize; 2] {
    let mut input = Input(data);
    let mut world = World::new(input.below(4) < 3);
    for _ in 0..steps {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check_bounds();
    }
    world.finish()
}

struct World {
    is_stream: bool,
    adapter: Box<dyn Adapter>,
    harness: Harness,
    /// The port has a peer, or will find one.
    is_up: bool,
    peer: Peer,
    /// What the peer has written, and the port has delivered of it.
    written: Record,
    /// What the port has taken for the peer, and the peer has read of it.
    taken: Record,
    /// More bytes than the kernel keeps in one direction.
    kernel: usize,
    received: Batch,
    sending: Batch,
    /// The frame that the switch sends.
    intake: Intake,
    buffer: Vec<u8>,
    /// The first byte of frames, so that each differs from the one before.
    number: u8,
    counts: [usize; 2],
}

impl World {
    fn new(is_stream: bool) -> Self {
        let (adapter, harness, writes) = if is_stream {
            let (adapter, harness) = open_stream().expect("descriptors");
            (adapter, harness, None)
        } else {
            let (ours, theirs) = connect(is_stream);
            let (adapter, harness) = open_dgram(ours).expect("descriptors");
            (adapter, harness, Some(Rc::new(theirs)))
        };
        let mut this = Self {
            is_stream,
            adapter,
            harness,
            is_up: false,
            peer: Peer { writes, ..Peer::default() },
            written: Record::new(is_stream),
            taken: Record::new(is_stream),
            kernel: 0,
            received: Batch::new(256),
            sending: Batch::new(1),
            intake: Intake::new(1, FRAME_MAX).expect("memory"),
            buffer: vec![0; FRAME + 1],
            number: 0,
            counts: [0; 2],
        };
        this.connect();
        this
    }

    /// Connects a peer to a port that has none.
    fn connect(&mut self) {
        let (ours, theirs) = connect(self.is_stream);
        self.kernel = 2 * sockopt::socket_send_buffer_size(&ours).expect("a socket");
        let theirs = Rc::new(theirs);
        self.peer.reads = Some(theirs.clone());
        self.peer.is_deaf = false;
        if self.is_stream {
            self.peer.writes = Some(theirs);
        }
        self.harness.give(ours);
        self.is_up = true;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0 | 1 if !self.is_up => self.connect(),
            0 => self.close(input),
            1 => self.write_beside(input),
            2 => {
                let (count, bytes) = (input.below(17), input.bytes::<16>());
                self.write(&bytes[..count]);
                self.write_piece(input);
            }
            3..=6 => self.write_frames(input),
            7 => self.write_piece(input),
            8..=10 => self.turn(),
            11..=13 => self.send(input),
            _ => {
                let most = [1, 60, 4096, usize::MAX][input.below(4)];
                self.read(most);
            }
        }
    }

    /// The peer goes, or closes one direction; not often, because little can follow.
    fn close(&mut self, input: &mut Input<'_>) {
        let how = match input.below(8) {
            0 => Shutdown::Both,
            1 => Shutdown::Write,
            2 => Shutdown::Read,
            _ => return,
        };
        if self.is_stream {
            self.peer.close(how);
        } else {
            self.peer.stop_reading();
        }
    }

    /// The peer sends a descriptor beside a frame, which it should not.
    fn write_beside(&mut self, input: &mut Input<'_>) {
        if !input.u8().is_multiple_of(4) {
            return;
        }
        let frame = pattern(60);
        if !self.is_stream {
            if self.peer.write_beside(&frame).is_some() {
                self.written.add_frame(&frame);
            }
        } else if let Some(count) = self.peer.write_beside(&frame) {
            self.written.cut_here();
            self.written.add(&frame[..count]);
        }
    }

    /// The peer sends frames: a datagram for each, or all of them in a row that is cut anywhere.
    fn write_frames(&mut self, input: &mut Input<'_>) {
        let length = LENGTHS[input.below(LENGTHS.len())];
        let (count, tags) = (count(input, length), input.below(3));
        let mut frame = pattern(length);
        for at in [ADDRESSES, ADDRESSES + 4].into_iter().take(tags) {
            if let Some(tag) = frame.get_mut(at..at + 2) {
                tag.copy_from_slice(&TAG[..2]);
            }
        }
        for _ in 0..count {
            self.stamp(&mut frame);
            if self.is_stream {
                self.peer.unwritten.extend(length_of(&frame));
            }
            self.write(&frame);
        }
        self.write_piece(input);
    }

    /// The peer sends a datagram, or appends to the bytes that it will write.
    fn write(&mut self, bytes: &[u8]) {
        if self.is_stream {
            self.peer.unwritten.extend_from_slice(bytes);
        } else if self.peer.write(bytes).is_some() {
            self.written.add_frame(bytes);
        }
    }

    /// The peer writes a piece of those bytes.
    fn write_piece(&mut self, input: &mut Input<'_>) {
        let most = PIECES[input.below(PIECES.len())];
        let piece = &self.peer.unwritten[..most.min(self.peer.unwritten.len())];
        if piece.is_empty() {
            return;
        }
        if let Some(count) = self.peer.write(piece) {
            self.written.add(&piece[..count]);
            self.peer.unwritten.drain(..count);
        }
    }

    /// The switch lets the port receive.
    fn turn(&mut self) {
        let was_due = self.is_due();
        let mut drops = Drops::default();
        self.adapter.recv(&mut self.received, &mut drops);
        let has_moved = self.check_received(&drops);
        let has_ended = self.check_end();
        assert!(has_moved || has_ended || !was_due, "a turn took nothing");
        assert!(!self.adapter.pending() || self.written.is_ready(), "nothing is pending");
    }

    /// Whether the port's next turn delivers or drops a frame, or disconnects the peer.
    fn is_due(&self) -> bool {
        self.written.is_ready() || self.written.is_cut()
    }

    /// Compares what a turn has delivered and dropped with the reference; returns whether it has
    /// done any of that.
    fn check_received(&mut self, drops: &Drops) -> bool {
        let mut wanted = Drops::default();
        let frames = self.received.frames().len();
        for frame in 0..frames {
            wanted += &self.written.pass_dropped(u64::MAX);
            let delivery = Delivery { frame: number_of(frame), tag: TagAction::Keep };
            let mut bytes = Vec::new();
            self.received.append(delivery, &mut bytes);
            assert!((ETHERNET..=FRAME).contains(&bytes.len()), "{} bytes", bytes.len());
            self.written.pass_frame(&bytes);
        }
        // Those behind the last frame. Others may follow that the turn has not reached.
        let behind = drops.total().saturating_sub(wanted.total());
        wanted += &self.written.pass_dropped(behind);
        assert_eq!(*drops, wanted);
        self.counts[0] += frames;
        frames > 0 || drops.total() > 0
    }

    /// The switch sends frames, and ends its turn.
    fn send(&mut self, input: &mut Input<'_>) {
        let length = LENGTHS[input.below(LENGTHS.len())].clamp(ETHERNET, FRAME);
        let count = count(input, length);
        let tag = match input.below(4) {
            0 => TagAction::Insert(VlanId::new(7).expect("one of them")),
            _ => TagAction::Keep,
        };
        let mut frame = pattern(length);
        for _ in 0..count {
            self.stamp(&mut frame);
            self.send_frame(&frame, tag);
        }
        self.adapter.flush();
        self.check_end();
    }

    fn send_frame(&mut self, frame: &[u8], tag: TagAction) {
        self.intake.clear();
        self.sending.restart(self.intake.region());
        self.intake.push(&[frame], self.sending.frags());
        self.sending.push_received(0, u32::try_from(frame.len()).expect("short"));
        let sent = self.adapter.send(&self.sending, &[Delivery { frame: 0, tag }]);
        if tag == TagAction::Keep {
            self.check_sent(&sent, frame);
        } else {
            let (addresses, rest) = frame.split_at(ADDRESSES);
            self.check_sent(&sent, &[addresses, &TAG, rest].concat());
        }
    }

    /// Notes a frame that the port has taken for the peer, or checks why it was dropped.
    fn check_sent(&mut self, sent: &Sent, wanted: &[u8]) {
        self.check_end();
        let dropped = |reason| sent.drops.get(reason) == 1;
        assert_eq!(sent.delivered.frames + sent.drops.total(), 1);
        if !self.is_up {
            assert!(dropped(DropReason::LinkDown), "no peer is there");
        } else if sent.delivered.frames == 1 {
            assert!(wanted.len() <= FRAME && sent.delivered.bytes == wanted.len() as u64);
            self.taken.add_frame(wanted);
        } else if wanted.len() <= FRAME || !dropped(DropReason::TooLong) {
            assert!(dropped(DropReason::NoRoom) && !self.taken.rest().is_empty());
        }
    }

    /// The peer reads once: up to `most` bytes of a stream, or a datagram. Returns whether there
    /// were any.
    fn read(&mut self, most: usize) -> bool {
        let whole = self.buffer.len();
        let most = if self.is_stream { most.min(whole) } else { whole };
        let Ok(count) = self.peer.read(&mut self.buffer[..most]) else { return false };
        self.check_read(count);
        count > 0
    }

    fn check_read(&mut self, count: usize) {
        let bytes = &self.buffer[..count];
        if self.is_stream {
            self.taken.pass_bytes(bytes);
        } else {
            self.taken.pass_frame(bytes);
        }
        self.counts[1] += count;
    }

    /// Checks why the port has disconnected its peer, if it has; returns whether it has.
    fn check_end(&mut self) -> bool {
        let Some(end) = self.harness.end() else { return false };
        assert!(self.is_up, "there was no peer, and {end}");
        match end {
            End::TooLong(length) => assert!(self.written.peek() == Next::Long(length), "{end}"),
            End::Descriptors => assert!(self.written.is_cut(), "{end}"),
            End::Gone => self.check_gone(),
            end => panic!("{end}"),
        }
        self.is_up = false;
        if self.is_stream {
            self.read_to_end();
            self.peer = Peer::default();
            self.written = Record::new(true);
        } else {
            self.peer.reads = None;
        }
        self.taken = Record::new(self.is_stream);
        true
    }

    /// The port finds a stream's end behind its last frame, or earlier if it cannot send.
    fn check_gone(&self) {
        assert!(self.peer.has_left(), "the peer is there");
        let cannot_send = self.peer.is_deaf && !self.taken.rest().is_empty();
        assert!(!self.is_stream || !self.is_due() || cannot_send, "frames are lost");
    }

    /// The peer of a stream reads what the port had sent when it disconnected.
    fn read_to_end(&mut self) {
        while self.peer.reads.is_some() {
            match self.peer.read(&mut self.buffer) {
                Ok(0) | Err(Errno::CONNRESET) => return,
                Ok(count) => self.check_read(count),
                Err(errno) => panic!("the port has not closed the connection: {errno}"),
            }
        }
    }

    /// What waits in the port and in the kernel is bounded.
    fn check_bounds(&self) {
        let [written, taken] = [&self.written, &self.taken].map(|record| record.rest().len());
        assert!(written <= INBOX + self.kernel, "{written} bytes wait for the port");
        assert!(taken <= WAITING + LENGTH + FRAME + self.kernel, "{taken} wait for the peer");
    }

    /// With turns enough, the port has delivered all frames, a peer that reads has got all of its
    /// own, and the port has found the end of a stream that is closed.
    fn finish(mut self) -> [usize; 2] {
        while self.is_due() {
            self.turn();
        }
        while self.is_up && !self.peer.is_deaf && !self.taken.rest().is_empty() {
            let before = self.taken.rest().len();
            self.turn();
            while self.read(usize::MAX) {}
            assert!(self.taken.rest().len() < before, "frames stay in the port");
        }
        if self.peer.writes.is_none() {
            // The first of them may receive a part of a frame.
            self.turn();
            self.turn();
            assert!(!self.is_up, "the port has not found the end");
        }
        self.counts
    }

    /// Makes a frame another one than the last.
    fn stamp(&mut self, frame: &mut [u8]) {
        self.number = self.number.wrapping_add(1);
        if let Some(first) = frame.first_mut() {
            *first = self.number;
        }
    }
}

/// One frame or many, but not too many bytes.
fn count(input: &mut Input<'_>, length: usize) -> usize {
    [1, 1, 8, 100][input.below(4)].min(1 + STEP_BYTES / (LENGTH + length))
}

/// An untagged frame whose bytes show where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8)).to_le_bytes()[0]).collect()
}

fn number_of(frame: usize) -> u16 {
    u16::try_from(frame).expect("few")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The target is worth nothing if no frame ever gets through.
    #[test]
    fn frames_come_through_in_both_directions() {
        for kind in [0, 3] {
            let input = [&[kind][..], &crate::noise()[..10_000]].concat();
            let [received, read] = run(&input, usize::MAX);
            assert!(received > 100 && read > 10_000, "{received} frames, {read} bytes");
        }
    }
}
