//! The receiver: frames go into the driver's buffers (3.2).
//!
//! ```text
//!   frame ─► filter ─► strip the tag ─► enough buffers? ─► copy, write descriptors back, move RDH
//!              │                              │
//!              └─ not for this station        └─ missed: MPC, RNBC, RXO
//! ```
//!
//! A frame is stored whole or not at all: the buffers that it needs are found first. All buffers
//! have one size (RCTL.BSIZE, BSEX), and a long frame takes several. A buffer outside of the
//! guest's memory swallows its part of the frame, as a bus does that finds no memory there; that is
//! counted. The receiver keeps nothing between two frames but its registers.

use packet::bytes::u16_at;
use packet::ethernet::{ETHERNET_HEADER, field};
use ring::guest::{GuestMemory, GuestSlice, Writer};

use super::Counts;
use super::descriptors::{Descriptor, Ring};
use super::filter::{Verdict, filter, is_tagged, longest};
use super::registers::{
    CTRL, RCTL, RDBAL, RDH, RDT, RXCSUM, Registers, STATUS, cause, ctrl, rctl, rxcsum, status,
};
use super::statistics::{Cast, FCS, missed, oversized, received, undersized};

/// The shortest frame, without the FCS. Shorter ones are padded, as a sender has to.
const SHORTEST: usize = 60;
/// The most descriptors of a frame: one with the smallest buffers, and as many without a buffer.
const DESCRIPTORS_MAX: usize = 2 * 16384 / 256;
/// The most slices of a buffer.
const SLICES_MAX: usize = 16;

/// Status bits of a descriptor (3.2.3.1), in its second word.
mod rdesc {
    pub const DD: u64 = 1 << 32;
    pub const EOP: u64 = 1 << 33;
    /// The checksum bits say nothing.
    pub const IXSM: u64 = 1 << 34;
    /// A tag was stripped.
    pub const VP: u64 = 1 << 35;
    /// The checksum of TCP or UDP was checked; it was right, or TCPE would be set.
    pub const TCPCS: u64 = 1 << 37;
    /// Only the multicast table let the frame pass.
    pub const PIF: u64 = 1 << 39;
    pub const SPECIAL_SHIFT: u32 = 48;
}

/// What has become of a frame for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The guest has it.
    Stored,
    /// The frame is not for this station, or too long.
    Filtered,
    /// The guest gave no buffers for it.
    NoBuffers,
    /// The receiver is off, or there is no link.
    Disabled,
}

/// What one call needs.
#[derive(Debug)]
pub(super) struct Receiver {
    descriptors: Vec<Descriptor>,
    slices: Vec<GuestSlice>,
}

/// A frame as it is stored: two parts of the bytes that came, and zeros.
struct Stored<'a> {
    parts: [&'a [u8]; 2],
    padding: usize,
    /// The FCS, where it is stored.
    fcs: usize,
    /// The bits of the last descriptor's second word, beside DD and the length.
    bits: u64,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            descriptors: Vec::with_capacity(DESCRIPTORS_MAX),
            slices: Vec::with_capacity(SLICES_MAX),
        }
    }

    /// Stores a frame; also returns the causes of interrupts, beside that of the frame itself.
    pub fn store(
        &mut self,
        memory: &GuestMemory,
        registers: &mut Registers,
        counts: &mut Counts,
        frame: &[u8],
        checksum_good: bool,
    ) -> (Received, u32) {
        if !is_on(registers) {
            return (Received::Disabled, 0);
        }
        if frame.len() < ETHERNET_HEADER {
            undersized(registers);
            return (Received::Filtered, 0);
        }
        let cast = Cast::of(*frame.first_chunk().expect("a whole header"));
        let verdict = filter(registers, frame, cast);
        match verdict {
            Verdict::Exact | Verdict::Inexact => {}
            Verdict::Other => return (Received::Filtered, 0),
            Verdict::Oversized => {
                oversized(registers);
                return (Received::Filtered, 0);
            }
        }
        let stored = Stored::new(registers, frame, verdict, checksum_good);
        let bytes = u32::try_from(frame.len().max(SHORTEST)).expect("at most 16 KiB");
        let ring = Ring::new(registers, RDBAL);
        let before = available(registers, ring);
        if !self.find(memory, ring, registers, before, stored.len()) {
            missed(registers, bytes);
            return (Received::NoBuffers, cause::RXO);
        }
        self.write(memory, buffer_size(registers), counts, &stored);
        let used = u32::try_from(self.descriptors.len()).expect("few");
        registers.set(RDH, (registers.get(RDH) + used) % ring.len);
        received(registers, cast, bytes);
        // 3.2.7.3: the number of free descriptors has come down to the threshold.
        let threshold = ring.len >> ((registers.get(RCTL) >> rctl::RDMTS_SHIFT & 3) + 1);
        let low = before > threshold && before - used <= threshold;
        (Received::Stored, if low { cause::RXDMT0 } else { 0 })
    }

    /// Reads descriptors until their buffers have room for this many bytes; `false`: there are too
    /// few.
    fn find(
        &mut self,
        memory: &GuestMemory,
        ring: Ring,
        registers: &Registers,
        available: u32,
        bytes: usize,
    ) -> bool {
        self.descriptors.clear();
        let (size, mut room, mut index) = (buffer_size(registers), 0, registers.get(RDH));
        for _ in 0..available.min(u32::try_from(DESCRIPTORS_MAX).expect("few")) {
            let Some(descriptor) = ring.read(memory, index) else { return false };
            self.descriptors.push(descriptor);
            index = ring.next(index);
            if !is_null(&descriptor) {
                room += size;
            }
            if room >= bytes {
                return true;
            }
        }
        false
    }

    /// Writes the frame into the buffers that were found, and their descriptors back.
    fn write(
        &mut self,
        memory: &GuestMemory,
        size: usize,
        counts: &mut Counts,
        stored: &Stored<'_>,
    ) {
        let (mut from, end) = (0, stored.len());
        for descriptor in &self.descriptors {
            let [address, word] = descriptor.words;
            if is_null(descriptor) {
                // 3.2.5: nothing but DD changes.
                descriptor.write_back(memory, word | rdesc::DD);
                continue;
            }
            let to = end.min(from + size);
            let len = u32::try_from(to - from).expect("at most 16 KiB");
            self.slices.clear();
            if memory.slices(address, len, &mut self.slices, SLICES_MAX) {
                stored.write(from, to, &mut Writer::new(memory, &self.slices));
            } else {
                counts.outside += 1;
            }
            let last = if to == end { stored.bits | rdesc::EOP } else { 0 };
            descriptor.write_back(memory, u64::from(len) | rdesc::DD | last);
            from = to;
        }
    }
}

impl<'a> Stored<'a> {
    fn new(registers: &Registers, frame: &'a [u8], verdict: Verdict, checksum_good: bool) -> Self {
        let mut bits = 0;
        if verdict == Verdict::Inexact {
            bits |= rdesc::PIF;
        }
        // 3.2.9: the checksum of IP is the driver's to check; TCP's and UDP's may be known.
        bits |= match checksum_good && registers.has(RXCSUM, rxcsum::TUOFL) {
            true => rdesc::TCPCS,
            false => rdesc::IXSM,
        };
        // 9.2: the tag goes into the descriptor.
        let strip = registers.has(CTRL, ctrl::VME) && is_tagged(registers, frame);
        let (first, mut rest) = frame.split_at(field::SOURCE.end);
        if strip {
            bits |= rdesc::VP;
            bits |= u64::from(u16_at(frame, field::TCI.start)) << rdesc::SPECIAL_SHIFT;
            rest = &frame[field::TCI.end..];
        }
        let padding = SHORTEST.saturating_sub(frame.len());
        let fcs = if registers.has(RCTL, rctl::SECRC) { 0 } else { FCS as usize };
        Self { parts: [first, rest], padding, fcs, bits }
    }

    fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len() + self.padding + self.fcs
    }

    /// Writes the bytes from `from` to `to`. No station computes an FCS here, so the bytes of one
    /// are zeros, like padding.
    fn write(&self, from: usize, to: usize, writer: &mut Writer<'_>) {
        const ZEROS: [u8; SHORTEST + FCS as usize] = [0; SHORTEST + FCS as usize];
        let zeros = &ZEROS[..self.padding + self.fcs];
        let mut begin = 0;
        for part in [self.parts[0], self.parts[1], zeros] {
            let clip = |at: usize| at.clamp(begin, begin + part.len()) - begin;
            writer.write(&part[clip(from)..clip(to)]);
            begin += part.len();
        }
    }
}

/// Whether frames can be stored at all.
pub(super) fn is_on(registers: &Registers) -> bool {
    registers.has(RCTL, rctl::EN) && registers.has(STATUS, status::LU)
}

/// Whether there are buffers for a frame of this many bytes, or could never be. One that is too
/// long to be stored needs no more than the longest that is.
pub(super) fn has_room(memory: &GuestMemory, registers: &Registers, bytes: usize) -> bool {
    let ring = Ring::new(registers, RDBAL);
    let free = available(registers, ring);
    let stored = (bytes + FCS as usize).min(longest(registers));
    let needed = stored.div_ceil(buffer_size(registers));
    let most = (ring.len.saturating_sub(1) as usize).min(DESCRIPTORS_MAX);
    let enough = free as usize >= needed.min(most).max(1);
    is_on(registers) && enough && ring.read(memory, registers.get(RDH)).is_some()
}

fn available(registers: &Registers, ring: Ring) -> u32 {
    ring.between(registers.get(RDH), registers.get(RDT))
}

/// 3.2.5: a descriptor without a buffer is passed over.
fn is_null(descriptor: &Descriptor) -> bool {
    descriptor.words[0] == 0
}

/// 13.4.22: BSIZE, and BSEX for 16 times as much; 11 with 16 times is 4096, and 00 is reserved.
fn buffer_size(registers: &Registers) -> usize {
    let control = registers.get(RCTL);
    let size = 2048 >> (control >> rctl::BSIZE_SHIFT & 3);
    match control & rctl::BSEX {
        0 => size,
        _ => (16 * size).min(16384),
    }
}
