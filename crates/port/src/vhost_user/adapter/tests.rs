//! The worker's side alone, with drivers that make what they like.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

use device::virtqueue::{Direction, Places, Queue};
use ring::guest::{Extent, GuestMemory, Lent, Window};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use switch::bridge::TagAction;

use super::super::hand::hands;
use super::*;

/// The guest's memory: 128 KiB for each queue, a buffer of zeros behind the four.
const BYTES: u64 = 1 << 20;
const USER: u64 = 1 << 40;
const QUEUE: u64 = 1 << 17;
const DRIVER: u64 = 1 << 15;
const DEVICE: u64 = 1 << 16;
const BUFFER: u64 = 4 * QUEUE;
const SIZE: u16 = 2048;
const WRITE: u16 = 2;
/// A frame of 60 bytes behind its header.
const USUAL_BUFFER: u32 = 72;

struct Guest {
    file: OwnedFd,
    memory: Arc<GuestMemory>,
    whole: Window,
}

fn at(address: u64) -> usize {
    usize::try_from(address).expect("small")
}

impl Guest {
    fn new() -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, BYTES).expect("ours");
        let lent = Lent::map(&file, 0, at(BYTES)).expect("memory");
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, at(BYTES), 1).expect("all of it");
        Self { file, memory: Arc::new(memory), whole }
    }

    /// A machine with two pairs of queues.
    fn machine(&self) -> Machine {
        let (_, inbox) = hands().expect("descriptors");
        let (ear, event) = (Ear::new().expect("descriptors"), Event::new().expect("descriptors"));
        let mut machine = Machine::new(4, inbox, &Arc::new(ear), &Arc::new(event)).expect("memory");
        for queue in 0..4 {
            machine.rings[queue] = Some(Box::new(self.ring(queue)));
        }
        machine
    }

    fn ring(&self, queue: usize) -> Ring {
        let base = USER + QUEUE * queue as u64;
        let places = Places { descriptors: base, driver: base + DRIVER, device: base + DEVICE };
        let direction = if queue.is_multiple_of(2) { Direction::Write } else { Direction::Read };
        let made = Queue::new(&self.memory, places, direction, SIZE.into(), 0, 0);
        Ring {
            queue: made.expect("a good queue"),
            memory: self.memory.clone(),
            call: None,
            enabled: true,
            header: HEADER_MAX,
            mergeable: true,
            trouble: None,
        }
    }

    /// A descriptor of so many bytes, and the one behind it.
    fn describe(&self, queue: u64, slot: u16, len: u32, flags: u16, next: u16) {
        let place = at(QUEUE * queue + 16 * u64::from(slot));
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.whole.u64(place).store(BUFFER, Relaxed);
        self.whole.u64(place + 8).store(rest, Relaxed);
    }

    /// Makes the first descriptor available as if it were so many.
    fn make(&self, queue: u64, count: u16) {
        self.whole.u16(at(QUEUE * queue + DRIVER + 2)).store(count, Release);
    }

    /// Does so with frames or room for them.
    fn load(&self, queue: u64, len: u32, count: u16) {
        let flags = if queue.is_multiple_of(2) { WRITE } else { 0 };
        self.describe(queue, 0, len, flags, 0);
        self.make(queue, count);
    }

    /// Buffers that were given back.
    fn used(&self, queue: u64) -> u16 {
        self.whole.u16(at(QUEUE * queue + DEVICE + 2)).load(Relaxed)
    }
}

fn turn(machine: &mut Machine) -> (Batch, Drops) {
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    machine.recv(&mut batch, &mut drops);
    (batch, drops)
}

#[test]
fn buffers_that_are_thrown_away_end_a_turn_too() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    guest.load(1, 13, SIZE);
    guest.load(3, 13, SIZE);
    for turns in 1..=20u16 {
        let (batch, drops) = turn(&mut machine);
        assert_eq!((batch.frames().len(), drops.get(DropReason::TooShort)), (0, 64));
        assert_eq!(guest.used(1) + guest.used(3), 64 * turns);
        assert!(machine.pending(), "the rest is not forgotten");
    }
}

#[test]
fn pieces_that_are_looked_at_end_a_turn() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    for slot in 0..1024 {
        let next = if slot < 1023 { 1 } else { 0 };
        guest.describe(1, slot, 256, next, slot + 1);
    }
    guest.make(1, SIZE);
    let (_, drops) = turn(&mut machine);
    assert_eq!((drops.get(DropReason::TooLong), machine.pending()), (1, true));
}

#[test]
fn no_transmit_queue_starves_another() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    // One pair alone fills a turn, or nearly so.
    for load in [64, 60] {
        let before = [1, 3].map(|queue| guest.used(queue));
        for turns in 1..=10 {
            guest.load(1, USUAL_BUFFER, (before[0] + load * turns).max(guest.used(1)));
            guest.load(3, USUAL_BUFFER, before[1] + 64 * turns);
            assert!(!turn(&mut machine).0.frames().is_empty());
        }
        let taken = [0, 1].map(|i| guest.used([1, 3][i]) - before[i]);
        assert!(taken.iter().all(|taken| *taken >= 250), "{taken:?} of {load}");
        // What was left over.
        while machine.pending() {
            turn(&mut machine);
        }
    }
}

#[test]
fn memory_that_was_taken_away_is_known_for_what_it_is() {
    for (frames, queue) in [(100, 1), (0, 0)] {
        let guest = Guest::new();
        let mut machine = guest.machine();
        guest.load(1, USUAL_BUFFER, frames);
        while machine.pending() {
            turn(&mut machine);
        }
        ftruncate(&guest.file, 0).expect("ours");
        turn(&mut machine);
        machine.arm();
        let trouble = machine.rings[queue].as_ref().and_then(|ring| ring.trouble);
        assert_eq!(trouble, Some(Trouble::Lost), "after {frames} frames");
    }
}

#[test]
fn a_queue_of_tiny_buffers_is_full_once_for_all_frames() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    guest.load(0, 1, SIZE);
    guest.load(2, 1, SIZE);
    let sender = Guest::new();
    let mut other = sender.machine();
    sender.load(1, 1500, 8);
    let (batch, _) = turn(&mut other);
    assert_eq!(batch.frames().len(), 8);
    let list: Vec<_> = (0..8).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect();
    let sent = machine.send(&batch, &list);
    assert_eq!(sent.drops.get(DropReason::NoRoom), 8);
    assert_eq!(machine.full, [0], "the other one has not been asked: same stations");
    // The same in one buffer, of a driver that knows no other.
    machine.rings[0] = Some(Box::new(Ring { mergeable: false, ..guest.ring(0) }));
    (0..1000).for_each(|slot| guest.describe(0, slot, 1, WRITE | u16::from(slot < 999), slot + 1));
    assert_eq!(machine.send(&batch, &list).drops.get(DropReason::NoRoom), 8);
    guest.load(0, 1499, SIZE);
    assert_eq!(machine.send(&batch, &list).drops.get(DropReason::TooLong), 8);
    machine.rings[0] = Some(Box::new(guest.ring(0)));
    // A few more bytes, and as many frames as it has buffers for.
    guest.load(0, 2, SIZE);
    assert_eq!(machine.send(&batch, &list).delivered.frames, 2);
    assert_eq!(guest.used(0), 2 * 750);
}
