//! The transmitter: descriptors become frames (3.3, 3.4).
//!
//! ```text
//!            data              EOP               taken, or dropped
//!   Empty ─────────► Open ──────────► Ready ────────────────────────► Empty
//!     ▲               │
//!     │      EOP      ▼ too many bytes or pieces
//!     └───────────── Skipping
//! ```
//!
//! Descriptors are read from `next` up to TDT, each once. A frame's descriptors are written back
//! when it has been taken, and TDH moves behind them then; until then the driver must not change
//! the buffers. So the state between two calls is at most one frame: guest addresses and lengths,
//! which are looked up when the frame is offered, because the guest's memory may be another by
//! then.
//!
//! A driver can write any descriptor. What does not fit is dropped and counted ([`Counts`]), its
//! descriptors are written back like those of a frame, and the transmitter goes on.

use packet::ethernet::{ETHERNET_HEADER, field};
use packet::offload::VNET_LEN;
use ring::frame::FRAME_MAX;
use ring::guest::{GuestMemory, GuestSlice, Reader};

use super::Counts;
use super::descriptors::{Descriptor, Ring};
use super::offload::{Context, Insert, Task, header};
use super::registers::{CTRL, Registers, STATUS, TCTL, TDBAL, TDH, TDT, VET, ctrl, status, tctl};
use super::statistics::{Cast, segmented, transmitted};

/// The bytes of a frame that are copied out, at most; all headers must lie in them if the device is
/// to change any. HDRLEN, IPCSS and the like have eight bits.
const HEAD_MAX: usize = 256;
/// The length of a VLAN tag.
const TAG: usize = 4;
/// The longest frame without segmentation: as long as the receiver's with LPE.
const LONGEST: u32 = 16384;
/// The most pieces of a frame, and the most descriptors of a frame that are to be written back.
/// Drivers use up to about 50.
const PIECES_MAX: usize = 256;
/// The most slices, as pieces may lie across borders in the guest's memory.
const SLICES_MAX: usize = 2 * PIECES_MAX;

/// The command bits of a descriptor (3.3.3.1, 3.3.6.1, 3.3.7.1).
mod command {
    pub const EOP: u8 = 1 << 0;
    /// Insert checksum, in a legacy descriptor.
    pub const IC: u8 = 1 << 2;
    /// Segmentation, in the others.
    pub const TSE: u8 = 1 << 2;
    /// Report status. RPS is 82544's, and asks for no less.
    pub const RS: u8 = 1 << 3;
    pub const RPS: u8 = 1 << 4;
    /// Not a legacy descriptor.
    pub const DEXT: u8 = 1 << 5;
    /// Insert a VLAN tag.
    pub const VLE: u8 = 1 << 6;
    /// The interrupt may be delayed.
    pub const IDE: u8 = 1 << 7;
}
/// The types of descriptors that are not legacy ones (3.3.6, 3.3.7).
mod dtyp {
    pub const CONTEXT: u64 = 0;
    pub const DATA: u64 = 1;
}
/// Packet options (3.3.7.3).
mod popts {
    pub const IXSM: u8 = 1 << 0;
    pub const TXSM: u8 = 1 << 1;
}
/// The status bits of a descriptor in its second word: all, and that it is done (3.3.3.2).
const STATUS_BITS: u64 = 0xf << 32;
const DD: u64 = 1 << 32;

/// A frame that the guest sends.
#[derive(Debug)]
pub struct TxFrame<'a> {
    /// The first bytes, copied out, with the changes that the driver asked for.
    pub head: &'a [u8],
    /// The bytes behind them.
    pub rest: Reader<'a>,
    /// The number of bytes of both.
    pub bytes: usize,
    /// What is left to do, as a virtio-net header has it ([`packet::offload`]).
    pub left: [u8; VNET_LEN],
}

/// What has become of a frame that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The frame was copied.
    Taken,
    /// There is no room for it now: it is to be offered again.
    Later,
}

/// How far the transmitter got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Descriptors that were read.
    pub descriptors: u32,
    /// There are more: the budget is used up, or a frame waits for room.
    pub more: bool,
}

/// What the driver is to be told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Descriptors were written back.
    pub reported: bool,
    /// One of them did not allow a delay.
    pub at_once: bool,
    /// The last descriptor was one of those that were done.
    pub emptied: bool,
}

/// How much of a frame has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing: the last one ended.
    #[default]
    Empty,
    /// A data descriptor came.
    Open,
    /// The descriptor with EOP came.
    Ready,
    /// Too much came: the rest is passed over, up to EOP.
    Skipping,
}

/// A frame that is being read.
#[derive(Debug, Default)]
struct Packet {
    stage: Stage,
    pieces: Vec<(u64, u32)>,
    bytes: u32,
    task: Task,
    /// The tag to insert.
    tci: Option<u16>,
    /// Descriptors to be written back.
    reports: Vec<Descriptor>,
}

impl Packet {
    fn clear(&mut self) {
        self.pieces.clear();
        self.reports.clear();
        (self.stage, self.bytes, self.task, self.tci) = (Stage::Empty, 0, Task::None, None);
    }

    fn is_segmented(&self) -> bool {
        matches!(self.task, Task::Segments(_))
    }

    /// Adds a piece; `false`: the frame is too long.
    fn push(&mut self, address: u64, len: u64) -> bool {
        let longest = if self.is_segmented() { FRAME_MAX } else { LONGEST };
        let len = u32::try_from(len).expect("20 bits");
        if self.pieces.len() == PIECES_MAX || len > longest - self.bytes {
            return false;
        }
        if len > 0 {
            self.pieces.push((address, len));
            self.bytes += len;
        }
        true
    }
}

/// The transmitter's state, beside its registers.
#[derive(Debug)]
pub(super) struct Transmitter {
    /// The next descriptor to read. TDH is the first that was not written back.
    next: u32,
    /// The context for checksums, and the one for segments (3.3.5).
    contexts: [Context; 2],
    packet: Packet,
    /// What one call needs.
    slices: Vec<GuestSlice>,
    head: [u8; TAG + HEAD_MAX],
}

impl Transmitter {
    pub fn new() -> Self {
        Self {
            next: 0,
            contexts: [Context::default(); 2],
            packet: Packet::default(),
            slices: Vec::with_capacity(SLICES_MAX),
            head: [0; TAG + HEAD_MAX],
        }
    }

    pub fn reset(&mut self) {
        self.contexts = [Context::default(); 2];
        self.rewind(0);
    }

    /// The driver has written TDH.
    pub fn rewind(&mut self, head: u32) {
        self.next = head;
        self.packet.clear();
    }

    /// Whether there is a descriptor to read or a frame to send. A ring that is not in the guest's
    /// memory has none, however often its owner looks.
    pub fn pending(&self, memory: &GuestMemory, registers: &Registers) -> bool {
        let there = || Ring::new(registers, TDBAL).read(memory, self.next).is_some();
        let ready = self.packet.stage == Stage::Ready;
        is_on(registers) && (ready || self.available(registers) > 0 && there())
    }

    fn available(&self, registers: &Registers) -> u32 {
        Ring::new(registers, TDBAL).between(self.next, registers.get(TDT))
    }

    /// Reads at most `budget` descriptors and offers their frames.
    pub fn run(
        &mut self,
        memory: &GuestMemory,
        registers: &mut Registers,
        counts: &mut Counts,
        budget: u32,
        send: &mut impl FnMut(TxFrame<'_>) -> Sent,
    ) -> (Progress, Done) {
        let (mut progress, mut done) = (Progress::default(), Done::default());
        let ring = Ring::new(registers, TDBAL);
        while is_on(registers) {
            if self.packet.stage == Stage::Ready {
                if self.offer(memory, registers, counts, send) == Sent::Later {
                    break;
                }
                self.finish(memory, registers, &mut done);
            }
            if progress.descriptors == budget || self.available(registers) == 0 {
                break;
            }
            let Some(descriptor) = ring.read(memory, self.next) else { break };
            progress.descriptors += 1;
            self.next = ring.next(self.next);
            self.take(descriptor, registers, counts);
            if matches!(self.packet.stage, Stage::Empty | Stage::Skipping) {
                self.finish(memory, registers, &mut done);
            }
        }
        progress.more = self.pending(memory, registers);
        done.emptied &= self.available(registers) == 0;
        (progress, done)
    }

    /// Writes back what was read, and moves TDH.
    fn finish(&mut self, memory: &GuestMemory, registers: &mut Registers, done: &mut Done) {
        for descriptor in self.packet.reports.drain(..) {
            let [_, word] = descriptor.words;
            descriptor.write_back(memory, word & !STATUS_BITS | DD);
            done.reported = true;
            done.at_once |= command_of(word) & command::IDE == 0;
        }
        registers.set(TDH, self.next);
        done.emptied = true;
        if self.packet.stage != Stage::Skipping {
            self.packet.clear();
        }
    }

    /// Takes a descriptor in.
    fn take(&mut self, descriptor: Descriptor, registers: &mut Registers, counts: &mut Counts) {
        let [address, word] = descriptor.words;
        let command = command_of(word);
        if command & (command::RS | command::RPS) != 0 {
            self.packet.reports.push(descriptor);
        }
        match (command & command::DEXT != 0, word >> 20 & 0xf) {
            (false, _) => self.add(address, word & 0xffff, word, registers, counts),
            (true, dtyp::DATA) => self.add(address, word & 0xf_ffff, word, registers, counts),
            (true, dtyp::CONTEXT) => {
                let which = usize::from(command & command::TSE != 0);
                self.contexts[which] = Context::new(descriptor.words);
            }
            // Reserved: without data.
            _ => {}
        }
        if self.packet.stage == Stage::Open && self.packet.reports.len() > PIECES_MAX {
            self.packet.stage = Stage::Skipping;
        }
    }

    /// Adds the data of a descriptor to the frame.
    fn add(
        &mut self,
        address: u64,
        len: u64,
        word: u64,
        registers: &mut Registers,
        counts: &mut Counts,
    ) {
        let command = command_of(word);
        let is_first = self.packet.stage == Stage::Empty;
        if is_first {
            self.packet.task = self.task(word);
            self.packet.stage = Stage::Open;
        }
        let is_last = command & command::EOP != 0;
        // 3.3.7.1: a run has its tag in the first descriptor, another frame in the last.
        let has_tag = if self.packet.is_segmented() { is_first } else { is_last };
        if has_tag && command & command::VLE != 0 && registers.has(CTRL, ctrl::VME) {
            self.packet.tci = Some(special_of(word));
        }
        if self.packet.stage == Stage::Open && !self.packet.push(address, len) {
            self.packet.stage = Stage::Skipping;
        }
        if is_last {
            if self.packet.task == Task::None {
                self.packet.task = legacy_task(word);
            }
            if self.packet.stage == Stage::Skipping {
                counts.too_long += 1;
                self.drop_run(registers);
                self.packet.stage = Stage::Empty;
            } else {
                self.packet.stage = Stage::Ready;
            }
        }
    }

    /// What the first descriptor of a frame asks for.
    fn task(&self, word: u64) -> Task {
        let (command, options) = (command_of(word), options_of(word));
        let [checksums, segments] = self.contexts;
        match (command & command::DEXT != 0, command & command::TSE != 0) {
            (false, _) => Task::None,
            (true, true) => Task::Segments(segments),
            (true, false) => Task::Checksums {
                context: checksums,
                ip: options & popts::IXSM != 0,
                transport: options & popts::TXSM != 0,
            },
        }
    }

    /// Offers the frame, or drops it.
    fn offer(
        &mut self,
        memory: &GuestMemory,
        registers: &mut Registers,
        counts: &mut Counts,
        send: &mut impl FnMut(TxFrame<'_>) -> Sent,
    ) -> Sent {
        self.slices.clear();
        let (slices, pieces) = (&mut self.slices, &self.packet.pieces);
        let there = pieces.iter().all(|(at, len)| memory.slices(*at, *len, slices, SLICES_MAX));
        let bytes = self.packet.bytes as usize;
        let (begin, more) = if self.packet.tci.is_some() { (0, TAG) } else { (TAG, 0) };
        let wrong = match bytes {
            _ if !there => Some(&mut counts.outside),
            ..ETHERNET_HEADER => Some(&mut counts.too_short),
            _ if bytes + more > FRAME_MAX as usize => Some(&mut counts.too_long),
            _ => None,
        };
        if let Some(count) = wrong {
            *count += 1;
            self.drop_run(registers);
            return Sent::Taken;
        }
        let mut rest = Reader::new(memory, &self.slices);
        let head = &mut self.head[TAG..][..bytes.min(HEAD_MAX)];
        rest.read(head);
        let task = self.packet.task;
        let Ok(left) = task.apply(head, bytes) else {
            counts.malformed += 1;
            self.drop_run(registers);
            return Sent::Taken;
        };
        let cast = Cast::of(*head.first_chunk().expect("a whole header"));
        let end = TAG + head.len();
        if let Some(tci) = self.packet.tci {
            insert_tag(&mut self.head, registers.get(VET), tci);
        }
        let left = if more > 0 { left.map(|left| left.moved(more.cast_signed())) } else { left };
        let frame =
            TxFrame { head: &self.head[begin..end], rest, bytes: bytes + more, left: header(left) };
        let sent = send(frame);
        if sent == Sent::Taken {
            count(registers, task, cast, self.packet.bytes, u32::from(more > 0) * 4);
        }
        sent
    }

    /// Counts a run of segments that is dropped.
    fn drop_run(&self, registers: &mut Registers) {
        if self.packet.is_segmented() {
            segmented(registers, false);
        }
    }
}

/// Whether the transmitter is enabled, and there is a link to send on.
fn is_on(registers: &Registers) -> bool {
    registers.has(TCTL, tctl::EN) && registers.has(STATUS, status::LU)
}

fn command_of(word: u64) -> u8 {
    let [_, _, _, command, ..] = word.to_le_bytes();
    command
}

fn options_of(word: u64) -> u8 {
    let [_, _, _, _, _, options, ..] = word.to_le_bytes();
    options
}

fn special_of(word: u64) -> u16 {
    let [.., low, high] = word.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// What the last legacy descriptor of a frame asks for (3.3.3): CSO and CSS.
fn legacy_task(word: u64) -> Task {
    let [_, _, at, command, _, start, ..] = word.to_le_bytes();
    if command & (command::IC | command::DEXT) != command::IC {
        return Task::None;
    }
    Task::Legacy(Insert { start: start.into(), at: at.into(), end: 0 })
}

/// Moves the addresses to the front and writes a tag behind them (9.2).
fn insert_tag(head: &mut [u8; TAG + HEAD_MAX], ethertype: u32, tci: u16) {
    let at = field::SOURCE.end;
    head.copy_within(TAG..TAG + at, 0);
    let [low, high, ..] = ethertype.to_le_bytes();
    let [first, second] = tci.to_be_bytes();
    head[at..at + TAG].copy_from_slice(&[high, low, first, second]);
}

/// Counts a frame that was taken, as the frames that it is on a wire.
fn count(registers: &mut Registers, task: Task, cast: Cast, bytes: u32, more: u32) {
    let Task::Segments(context) = task else {
        return transmitted(registers, cast, bytes + more, 1);
    };
    let (frames, first, last) = context.segments();
    transmitted(registers, cast, first + more, frames - 1);
    transmitted(registers, cast, last + more, 1);
    segmented(registers, true);
}
