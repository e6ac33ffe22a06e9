//! A driver, as far as it writes registers and descriptors, and what it sees of the device.

use ring::guest::{Extent, GuestMapping, Reader, Writer};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::registers::*;
use super::*;

mod access;
mod csb;
mod receive;
mod transmit;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// Where the driver has its rings and its buffers. Its memory is two extents that follow each
/// other, so that buffers can lie across the border.
const PAGE: u64 = 4096;
const TX_RING: u64 = PAGE;
const RX_RING: u64 = 2 * PAGE;
const CSB: u64 = 3 * PAGE;
const BUFFERS: u64 = 4 * PAGE;
const BORDER: u64 = 32 * PAGE;
const END: u64 = 64 * PAGE;
/// Descriptors of each ring.
const SLOTS: u32 = 16;

/// Bits of a descriptor's second word.
const EOP: u64 = 1 << 24;
const IC: u64 = 1 << 26;
const TSE: u64 = 1 << 26;
const RS: u64 = 1 << 27;
const DEXT: u64 = 1 << 29;
const VLE: u64 = 1 << 30;
const IDE: u64 = 1 << 31;
const DATA: u64 = DEXT | 1 << 20;
const DD: u64 = 1 << 32;

fn memory() -> GuestMemory {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, END).expect("ours");
    let lent = GuestMapping::map(&file, 0, usize::try_from(END).expect("small")).expect("memory");
    let extent = |guest: u64, size: u64, offset: u64| Extent {
        guest,
        user: guest,
        size,
        offset: usize::try_from(offset).expect("small"),
        lent: lent.clone(),
    };
    // The file holds the two parts the other way round.
    let extents = vec![extent(0, BORDER, END - BORDER), extent(BORDER, END - BORDER, 0)];
    GuestMemory::new(extents).expect("apart")
}

/// A frame that came out of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Out {
    bytes: Vec<u8>,
    left: [u8; 10],
}

impl Out {
    fn new(mut frame: TxFrame<'_>) -> Self {
        let mut bytes = frame.head.to_vec();
        bytes.resize(frame.bytes, 0);
        assert_eq!(frame.rest.left(), frame.bytes - frame.head.len());
        frame.rest.read(&mut bytes[frame.head.len()..]);
        Self { bytes, left: frame.left }
    }
}

struct Driver {
    memory: GuestMemory,
    device: E1000,
    now: u64,
    /// The next transmit descriptor.
    tail: u32,
}

impl Driver {
    /// With both rings set up, everything enabled, and no buffers for frames yet.
    fn new() -> Self {
        Self::with(&Config { mac: MAC, ..Config::default() })
    }

    fn with(config: &Config) -> Self {
        let mut this = Self { memory: memory(), device: E1000::new(config), now: 0, tail: 0 };
        this.device.set_link(true, 0);
        for (first, ring) in [(TDBAL, TX_RING), (RDBAL, RX_RING)] {
            this.set(first, u32::try_from(ring).expect("low"));
            this.set(first + 4, 0);
            this.set(first + 8, SLOTS * 16);
        }
        this.set(TCTL, tctl::EN);
        this.set(RCTL, rctl::EN | rctl::BAM);
        this.set(IMS, cause::ALL);
        this.get(ICR);
        this
    }

    fn get(&mut self, offset: u32) -> u32 {
        u32::try_from(self.device.read(offset, 4, self.now)).expect("a word")
    }

    fn set(&mut self, offset: u32, value: u32) -> Effects {
        self.device.write(offset, 4, value.into(), self.now)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let (mut slices, len) = (Vec::new(), u32::try_from(bytes.len()).expect("short"));
        assert!(self.memory.slices(at, len, &mut slices, 8));
        Writer::new(&self.memory, &slices).write(bytes);
    }

    fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let (mut slices, mut bytes) = (Vec::new(), vec![0; len]);
        assert!(self.memory.slices(at, u32::try_from(len).expect("short"), &mut slices, 8));
        Reader::new(&self.memory, &slices).read(&mut bytes);
        bytes
    }

    fn put_words(&self, at: u64, [first, second]: [u64; 2]) {
        self.put(at, &[first.to_le_bytes(), second.to_le_bytes()].concat());
    }

    /// The second word of a descriptor.
    fn word(&self, ring: u64, index: u32) -> u64 {
        self.memory.words(ring + 16 * u64::from(index)).expect("there")[1]
    }

    /// Gives transmit descriptors away.
    fn give(&mut self, descriptors: &[[u64; 2]]) {
        for words in descriptors {
            self.put_words(TX_RING + 16 * u64::from(self.tail), *words);
            self.tail = (self.tail + 1) % SLOTS;
        }
        assert!(self.set(TDT, self.tail).transmit);
    }

    /// What the device sends.
    fn run(&mut self) -> Vec<Out> {
        let mut frames = Vec::new();
        let Self { device, memory, now, .. } = self;
        let progress = device.transmit(memory, *now, 1000, |frame| {
            frames.push(Out::new(frame));
            Sent::Taken
        });
        assert!(!progress.more);
        frames
    }

    /// Sends a frame by one data descriptor with these bits and options.
    fn send(&mut self, frame: &[u8], bits: u64) -> Vec<Out> {
        self.put(BUFFERS, frame);
        self.give(&[[BUFFERS, frame.len() as u64 | DATA | EOP | bits]]);
        self.run()
    }

    /// Gives buffers of this many bytes to the receiver, up to this tail.
    fn give_buffers(&mut self, tail: u32, size: u64) {
        for index in 0..SLOTS {
            let buffer = BUFFERS + u64::from(index) * size;
            self.put_words(RX_RING + 16 * u64::from(index), [buffer, 0]);
        }
        assert!(self.set(RDT, tail).receive);
    }

    fn receive(&mut self, frame: &[u8]) -> Received {
        self.device.receive(&self.memory, self.now, frame, false)
    }
}

/// An Ethernet frame with this type and payload bytes that count up.
fn frame(to: [u8; 6], ethertype: u16, bytes: usize) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 1], &ethertype.to_be_bytes()].concat();
    let rest = (0..255).cycle().take(bytes.saturating_sub(frame.len()));
    frame.extend(rest);
    frame
}
