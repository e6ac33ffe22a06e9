//! An e1000 under a driver that writes anything: registers, descriptors, indexes, its block of
//! shared memory, while its memory is mapped in other ways, and time passes.
//!
//! Whatever it does, the device does not panic, keeps within its budget and the guest's memory,
//! offers frames that the switch can take, and spaces its interrupts. And a driver that sets it up
//! properly afterwards finds a device that works.

use std::os::fd::OwnedFd;

use device::e1000::{Config, E1000, Effects, Progress, Received, Sent, TxFrame};
use packet::offload::PendingOffload;
use ring::guest::{Extent, GuestMapping, GuestMemory, Writer};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 4096;
/// Two extents of this many pages, at 0 and at `FAR`; in the file they lie between pages that are
/// not the guest's.
const PAGES: u64 = 8;
const FAR: u64 = 1 << 32;
const FILE_PAGES: u64 = 2 * PAGES + 3;
const NEAR_AT: u64 = 1;
const FAR_AT: u64 = PAGES + 2;
const CANARY: u8 = 0xc5;

const STEPS: u32 = 150_000;
const GAP_USECS: u16 = 20;
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 7];

/// Registers that do something (13.4), and CSBAL and CSBAH; others are written by chance.
const OFFSETS: [u32; 34] = [
    0x0000, 0x0008, 0x0010, 0x0014, 0x0018, 0x0020, 0x0038, 0x00c0, 0x00c4, 0x00c8, 0x00d0, 0x00d8,
    0x0100, 0x0400, 0x1000, 0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x282c, 0x2830, 0x2834,
    0x3800, 0x3804, 0x3808, 0x3810, 0x3818, 0x3820, 0x382c, 0x5000, 0x5200, 0x5404,
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).expect("below 32 bits")
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A word: any, a small one, a few bits, or many.
    fn word(&mut self) -> u32 {
        let [any, shift] = [self.next(), self.below(32)];
        let any = u32::try_from(any >> 32).expect("the upper half");
        match self.below(4) {
            0 => any,
            1 => any >> shift,
            2 => 1 << shift,
            _ => any | 1 << 1 | 1 << shift,
        }
    }

    /// A guest address: most lie in an extent, some at an end, some nowhere.
    fn address(&mut self) -> u64 {
        let base = if self.one_in(2) { 0 } else { FAR };
        match self.below(16) {
            0 => self.next(),
            1 => base + PAGES * PAGE - self.below(300),
            2 => u64::MAX - self.below(300),
            _ => base + self.below(PAGES * PAGE),
        }
    }
}

struct Storm {
    random: Random,
    device: E1000,
    /// The guest's memory whole, in part, and not at all; and which of these it is now.
    memories: [GuestMemory; 3],
    mapped: usize,
    file: OwnedFd,
    now_ns: u64,
    /// The line, and its last rise.
    line: bool,
    rose_ns: Option<u64>,
    sent: u64,
    runs: u64,
    stored: u64,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        let size = FILE_PAGES * PAGE;
        ftruncate(&file, size).expect("ours");
        let bytes = vec![CANARY; usize::try_from(size).expect("small")];
        rustix::io::pwrite(&file, &bytes, 0).expect("a file");
        let lent = GuestMapping::map(&file, 0, bytes.len()).expect("memory");
        let extent = |guest: u64, page: u64, pages: u64| Extent {
            guest,
            user: guest,
            size: pages * PAGE,
            offset: usize::try_from(page * PAGE).expect("small"),
            lent: lent.clone(),
        };
        let whole = vec![extent(0, NEAR_AT, PAGES), extent(FAR, FAR_AT, PAGES)];
        let part = vec![extent(0, NEAR_AT, 3)];
        let memories =
            [whole, part, vec![]].map(|extents| GuestMemory::new(extents).expect("apart"));
        let config = Config { mac: MAC, coalesce_usecs: GAP_USECS, csb: true };
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            device: E1000::new(&config),
            memories,
            mapped: 0,
            file,
            now_ns: 0,
            line: false,
            rose_ns: None,
            sent: 0,
            runs: 0,
            stored: 0,
        }
    }

    fn memory(&self) -> &GuestMemory {
        &self.memories[self.mapped]
    }

    /// Writes into the guest's memory, as far as it is there.
    fn put(&self, at: u64, bytes: &[u8]) {
        let (mut slices, len) = (Vec::new(), u32::try_from(bytes.len()).expect("short"));
        if self.memories[0].slices(at, len, &mut slices, 4) {
            Writer::new(&self.memories[0], &slices).write(bytes);
        }
    }

    fn write(&mut self, offset: u32, value: u32) -> Effects {
        self.device.write(offset, 4, value.into(), self.now_ns)
    }

    fn read(&mut self, offset: u32) -> u32 {
        u32::try_from(self.device.read(offset, 4, self.now_ns)).expect("a word")
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..5 => self.touch_register(),
            5 => self.touch_io(),
            6 => self.set_rings_up(),
            7..11 => self.fill_transmit_ring(),
            11 | 12 => self.fill_receive_ring(),
            13..16 => self.transmit(),
            16..19 => self.receive(),
            19 => self.touch_shared_page(),
            20 => self.pass_time(),
            21 => self.sleep_or_poll(),
            22 => self.change_surroundings(),
            _ => self.now_ns += self.random.below(2_000),
        }
        self.check_line();
    }

    fn touch_register(&mut self) {
        let offset = match self.random.below(3) {
            0 => self.random.small(0x2_0010),
            _ => OFFSETS[self.random.small(34) as usize],
        };
        let (width, value) = ([1, 2, 4, 4, 8][self.random.small(5) as usize], self.random.word());
        if self.random.one_in(2) {
            let read = self.device.read(offset, width, self.now_ns);
            assert!(width == 8 || read >> (8 * u32::from(width)) == 0);
        } else {
            let value = u64::from(value) | u64::from(self.random.word()) << 32;
            self.device.write(offset, width, value, self.now_ns);
        }
    }

    fn touch_io(&mut self) {
        let (offset, value) = (4 * self.random.small(3), self.random.word());
        let value = if offset == 0 { OFFSETS[value as usize % OFFSETS.len()] } else { value };
        self.device.write_io(offset, 4, value.into(), self.now_ns);
        self.device.read_io(offset, 4, self.now_ns);
    }

    /// Both rings as a driver would have them, more or less.
    fn set_rings_up(&mut self) {
        for first in [0x2800, 0x3800] {
            let address = if self.random.one_in(4) { self.random.address() } else { PAGE };
            let [low, high] = [address & 0xffff_ffff, address >> 32];
            self.write(first, u32::try_from(low).expect("masked"));
            self.write(first + 4, u32::try_from(high).expect("shifted"));
            let len = if self.random.one_in(4) { self.random.word() } else { 128 };
            self.write(first + 8, len);
            let head = if self.random.one_in(4) { self.random.word() } else { 0 };
            self.write(first + 0x10, head);
        }
        self.device.set_link(true, self.now_ns);
        let control = self.random.word();
        self.write(0x400, 2);
        self.write(0x100, control | 2);
        self.write(0x5404, 0x8000_0000);
        if self.random.one_in(2) {
            self.put_run();
        }
    }

    /// A run of TCP segments at the beginning of the ring, with one bit of its context turned over
    /// now and then.
    fn put_run(&mut self) {
        let mut frame = vec![0; 1054];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        (frame[23], frame[46]) = (6, 0x50);
        self.put(FAR + 100, &frame);
        let mut context = [
            14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40,
            1000 | 0x27 << 24 | 54 << 40 | (100 + self.random.below(1000)) << 48,
        ];
        if self.random.one_in(2) {
            context[self.random.small(2) as usize] ^= 1 << self.random.below(64);
        }
        let data = [FAR + 100, 1054 | 1 << 20 | 0x2d << 24 | 3 << 40];
        self.put_words(0x3800, 0, context);
        self.put_words(0x3800, 1, data);
        self.write(0x3818, 2);
        self.transmit();
    }

    fn descriptor(&mut self) -> [u64; 2] {
        let commands = [0x09, 0x29, 0x20, 0x2d, 0x0d, 0x69, 0xa9, 0x2c, 0x01, 0x00];
        let command = commands[self.random.small(10) as usize];
        let command = if self.random.one_in(8) { self.random.below(256) } else { command };
        let type_ =
            if self.random.one_in(16) { self.random.below(16) } else { self.random.below(2) };
        let len = match self.random.below(8) {
            0 => self.random.below(0x1_0000),
            1 => self.random.below(64),
            _ => 54 + self.random.below(3000),
        };
        let upper = match self.random.below(3) {
            0 => self.random.next() & 0xffff_fff0,
            // HDRLEN and MSS of a context, options of the others.
            1 => 54 << 8 | 1000 << 16,
            _ => 3 << 8,
        };
        let second = len | type_ << 20 | command << 24 | upper << 32;
        let first = match self.random.below(4) {
            0 => self.random.next(),
            // Where headers of IPv4 are.
            1 => 14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40,
            _ => self.random.address(),
        };
        [first, second]
    }

    /// Writes a descriptor of the ring whose registers begin there.
    fn put_words(&mut self, first_register: u32, index: u32, words: [u64; 2]) {
        let low = self.read(first_register);
        let base = u64::from(low) | u64::from(self.read(first_register + 4)) << 32;
        let bytes = [words[0].to_le_bytes(), words[1].to_le_bytes()].concat();
        self.put(base.wrapping_add(16 * u64::from(index)), &bytes);
    }

    fn fill_transmit_ring(&mut self) {
        for _ in 0..self.random.below(6) {
            let (index, words) = (self.random.small(9), self.descriptor());
            self.put_words(0x3800, index, words);
        }
        // A frame of IPv4 and TCP, where a descriptor may point.
        let mut frame = vec![0; 60];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        (frame[23], frame[46]) = (6, 0x50);
        let at = self.random.address();
        self.put(at, &frame);
        let tail = if self.random.one_in(8) { self.random.word() } else { self.random.small(9) };
        self.write(0x3818, tail);
    }

    fn fill_receive_ring(&mut self) {
        for _ in 0..self.random.below(9) {
            let buffer = if self.random.one_in(8) { 0 } else { self.random.address() };
            let (index, words) = (self.random.small(9), [buffer, self.random.next()]);
            self.put_words(0x2800, index, words);
        }
        let tail = if self.random.one_in(8) { self.random.word() } else { self.random.small(9) };
        self.write(0x2818, tail);
    }

    fn transmit(&mut self) {
        let (budget, later) = (self.random.small(40), self.random.one_in(8));
        let memory = &self.memories[self.mapped];
        let (sent, runs) = (&mut self.sent, &mut self.runs);
        let progress = self.device.transmit(memory, self.now_ns, budget, |frame| {
            let is_run = frame.left[1] != 0;
            check_frame(frame);
            if later {
                return Sent::Later;
            }
            *sent += 1;
            *runs += u64::from(is_run);
            Sent::Taken
        });
        assert!(progress.descriptors <= budget);
        assert_eq!(self.device.pending(&self.memories[self.mapped]), progress.more);
    }

    fn receive(&mut self) {
        let len = match self.random.below(4) {
            0 => self.random.below(20_000),
            1 => self.random.below(20),
            _ => 60 + self.random.below(1500),
        };
        let mut frame = vec![0x11; usize::try_from(len).expect("short")];
        if let Some(head) = frame.first_chunk_mut::<16>() {
            let to = [[0xff; 6], MAC, [1, 0, 0x5e, 0, 0, 1]][self.random.small(3) as usize];
            head[..6].copy_from_slice(&to);
            head[12..14].copy_from_slice([&[0x81, 0], &[8, 0]][self.random.small(2) as usize]);
        }
        let has_buffers = self.device.has_buffers(&self.memories[self.mapped]);
        let good = self.random.one_in(2);
        let memory = &self.memories[self.mapped];
        let received = self.device.receive(memory, self.now_ns, &frame, good);
        match received {
            Received::Stored => {
                assert!(has_buffers && (14..=16_384).contains(&frame.len()));
                self.stored += 1;
            }
            Received::Disabled => assert!(!self.device.is_receiving()),
            Received::Filtered | Received::NoBuffers => assert!(self.device.is_receiving()),
        }
    }

    fn touch_shared_page(&mut self) {
        let page = PAGE * (2 + self.random.below(3));
        if self.random.one_in(4) {
            let address = if self.random.one_in(4) { self.random.address() } else { page };
            self.write(0x2834, u32::try_from(address >> 32).expect("shifted"));
            self.write(0x2830, u32::try_from(address & 0xffff_ffff).expect("masked"));
        }
        let value = if self.random.one_in(2) { self.random.small(9) } else { self.random.word() };
        let word = page + 4 * self.random.below(26);
        self.put(word, &value.to_le_bytes());
    }

    fn pass_time(&mut self) {
        self.now_ns += self.random.below(100_000);
        if self.random.one_in(2) {
            // As its owner does: not before the deadline.
            let Some(deadline) = self.device.deadline() else { return };
            self.now_ns = self.now_ns.max(deadline);
        }
        self.device.expire(self.now_ns);
        assert!(self.device.deadline().is_none_or(|deadline| deadline > self.now_ns));
    }

    fn sleep_or_poll(&mut self) {
        let memory = &self.memories[self.mapped];
        if self.random.one_in(2) {
            self.device.want_kicks(memory, self.random.one_in(2));
        } else {
            self.device.want_none(memory);
        }
    }

    fn change_surroundings(&mut self) {
        match self.random.below(8) {
            0 => self.device.reset(),
            1 => self.device.set_link(self.random.one_in(2), self.now_ns),
            2 => self.mapped = self.random.small(3) as usize,
            _ => self.mapped = 0,
        }
    }

    /// The line is high only while an enabled cause is set, and its rises are apart.
    fn check_line(&mut self) {
        let line = self.device.interrupt();
        // ICS shows the causes and does not clear them.
        let (causes, mask) = (self.read(0xc8), self.read(0xd0));
        assert!(!line || causes & mask != 0, "an interrupt without a cause");
        assert!(line || causes & mask == 0 || self.device.deadline().is_some(), "lost");
        if line && !self.line {
            let gap = u64::from(GAP_USECS) * 1000;
            assert!(self.rose_ns.is_none_or(|rose| self.now_ns >= rose + gap), "too soon");
            self.rose_ns = Some(self.now_ns);
        }
        self.line = line;
    }

    /// Pages that are not the guest's are as they were.
    fn check_canaries(&self) {
        for page in [0, NEAR_AT + PAGES, FAR_AT + PAGES] {
            let mut bytes = vec![0; 4096];
            rustix::io::pread(&self.file, &mut bytes, page * PAGE).expect("a file");
            assert!(bytes.iter().all(|byte| *byte == CANARY), "page {page} was written");
        }
    }

    /// A driver that does it right sends and receives a frame.
    fn check_that_it_works(&mut self) {
        self.device.reset();
        self.mapped = 0;
        self.device.set_link(true, self.now_ns);
        for (offset, value) in [
            (0x3800, 0),
            (0x3808, 128),
            (0x400, 2),
            (0x2800, 0x1000),
            (0x2808, 128),
            (0x100, 0x0400_8002),
            (0xd0, 0x80),
        ] {
            self.write(offset, value);
        }
        let frame = [&[0xff; 6][..], &MAC, &[0x88, 0xb5], &[7; 50]].concat();
        self.put(FAR, &frame);
        self.put(0, &[FAR.to_le_bytes(), (64 | 0x0900_0000u64).to_le_bytes()].concat());
        self.put(0x1000, &[(FAR + PAGE).to_le_bytes(), [0; 8]].concat());
        assert!(self.write(0x3818, 1).transmit && self.write(0x2818, 1).receive);
        let mut sent = Vec::new();
        let progress = self.device.transmit(&self.memories[0], self.now_ns, 9, |frame| {
            sent.push(frame.head.to_vec());
            Sent::Taken
        });
        assert_eq!(
            (progress, sent),
            (Progress { descriptors: 1, more: false }, vec![frame.clone()])
        );
        let received = self.device.receive(&self.memories[0], self.now_ns, &frame, false);
        assert_eq!(received, Received::Stored);
        let word = self.memory().words(0x1000).expect("there")[1];
        assert_eq!(word & 0x3_0000_ffff, 64 | 3 << 32);
        self.now_ns = self.now_ns.max(self.device.deadline().unwrap_or(0));
        self.device.expire(self.now_ns);
        assert!(self.device.interrupt());
    }
}

/// What a switch relies on.
fn check_frame(mut frame: TxFrame<'_>) {
    assert!((14..=65_535 + 18).contains(&frame.bytes));
    assert!(frame.head.len() <= 260 && frame.head.len() + frame.rest.left() == frame.bytes);
    let mut bytes = frame.head.to_vec();
    bytes.resize(frame.bytes, 0);
    frame.rest.read(&mut bytes[frame.head.len()..]);
    let left = PendingOffload::read(frame.left, frame.bytes).expect("nothing that is refused");
    assert!(left.is_none_or(|left| left.bytes() == frame.left && left.is_behind(frame.head)));
}

fn storm(seed: u64) {
    eprintln!("seed {seed}");
    let mut storm = Storm::new(seed);
    for _ in 0..STEPS {
        storm.step();
    }
    storm.check_canaries();
    let made = [storm.sent, storm.runs, storm.stored];
    eprintln!("sent, runs, stored: {made:?}, {:?}", storm.device.counts());
    assert!(made.iter().all(|count| *count > 20), "the storm is a lull");
    storm.check_that_it_works();
    storm.check_canaries();
}

#[test]
fn a_driver_that_writes_anything_harms_itself_only() {
    let seed = std::env::var("UVALA_SEED").ok().and_then(|seed| seed.parse().ok());
    match seed {
        Some(seed) => storm(seed),
        None => (1..=4).for_each(storm),
    }
}
