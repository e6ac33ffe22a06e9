//! A driver for both kinds of queues, which can be told to lie.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use proptest::prelude::*;
use ring::guest::{Extent, GuestMapping, Reader, Writer};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::features::{EVENT_IDX, INDIRECT_DESC, RING_PACKED};
use super::*;

mod bounds;
mod recovery;

const PAGE: u64 = 4096;
const SIZE: u16 = 8;
/// The guest's pages: the queue in the first three, tables in the fourth, data behind.
const PAGES: u64 = 8;
const TABLES: u64 = 3 * PAGE;
const DATA: u64 = 4 * PAGE;
/// Where they are in the process that lends them.
const USER: u64 = 1 << 40;

/// One piece of a buffer: address and length.
type Piece = (u64, u32);

struct Guest {
    memory: GuestMemory,
    whole: Window,
    features: u64,
    /// What the driver has made available and taken back so far, in descriptors.
    made: u32,
    seen: u32,
    /// The number that each buffer bears, and how many descriptors it takes up.
    slots: VecDeque<(u16, u32)>,
    file: OwnedFd,
}

impl Guest {
    fn new(features: u64) -> Self {
        Self::new_at(0, features)
    }

    /// One whose memory begins at a guest address of choice.
    fn new_at(base: u64, features: u64) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, PAGES * PAGE).expect("ours");
        let size = usize::try_from(PAGES * PAGE).expect("small");
        let lent = GuestMapping::map(&file, 0, size).expect("memory");
        let extent = Extent { guest: base, user: USER, size: PAGES * PAGE, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, size, 1).expect("all of it");
        let slots = VecDeque::new();
        Self { memory, whole, features, made: 0, seen: 0, slots, file }
    }

    fn queue(&self, direction: Direction) -> Queue {
        self.queue_at(direction, SIZE, if self.is_packed() { 0x8000_8000 } else { 0 })
    }

    /// A queue of this size that begins at an index.
    fn queue_at(&self, direction: Direction, size: u16, base: u32) -> Queue {
        let places = Places { descriptors: USER, driver: USER + PAGE, device: USER + 2 * PAGE };
        Queue::new(&self.memory, places, direction, size.into(), base, self.features)
            .expect("a good queue")
    }

    fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    fn at(offset: u64) -> usize {
        usize::try_from(offset).expect("small")
    }

    /// Writes a descriptor in the order of a split table.
    fn describe(&self, place: u64, piece: Piece, flags: u16, next: u16) {
        let [low, high] = if self.is_packed() { [next, flags] } else { [flags, next] };
        self.whole.u64(Self::at(place)).store(piece.0, Relaxed);
        let rest = u64::from(piece.1) | u64::from(low) << 32 | u64::from(high) << 48;
        self.whole.u64(Self::at(place + 8)).store(rest, Release);
    }

    /// Writes pieces as a table, all entries chained.
    fn table(&self, pieces: &[Piece], write: u16) -> Piece {
        for (i, piece) in (0u16..).zip(pieces) {
            let more = if usize::from(i) + 1 < pieces.len() { flag::NEXT } else { 0 };
            self.describe(TABLES + 16 * u64::from(i), *piece, more | write, i + 1);
        }
        (TABLES, 16 * u32::try_from(pieces.len()).expect("few"))
    }

    /// Makes a buffer available; all of them have at most as many pieces as the queue has room.
    fn make(&mut self, pieces: &[Piece], direction: Direction) {
        let write = if direction == Direction::Write { flag::WRITE } else { 0 };
        let count = u32::try_from(pieces.len()).expect("few");
        let entry = |i: u32| u16::try_from(i % u32::from(SIZE)).expect("small");
        let first = entry(self.made);
        for (i, piece) in (0..count).zip(pieces).rev() {
            let more = if i + 1 < count { flag::NEXT } else { 0 };
            let slot = entry(self.made + i);
            let (flags, next) = if self.is_packed() {
                let wrap = ((self.made + i) / u32::from(SIZE)).is_multiple_of(2);
                // The ID is in the last descriptor (2.8.6).
                let id = if more == 0 { first } else { !first };
                (more | write | if wrap { 1 << 7 } else { 1 << 15 }, id)
            } else {
                (more | write, entry(self.made + i + 1))
            };
            self.describe(16 * u64::from(slot), *piece, flags, next);
        }
        if self.is_packed() {
            self.made += count;
        } else {
            // One buffer at a time in the tests with chains: descriptors follow the index.
            let index = self.avail().load(Relaxed);
            let ring = PAGE + 4 + 2 * u64::from(index % SIZE);
            self.whole.u16(Self::at(ring)).store(first, Relaxed);
            self.avail().store(index.wrapping_add(1), Release);
            self.made += count;
        }
        self.slots.push_back((first, count));
    }

    /// A position in a packed queue, this many descriptors further.
    fn after((slot, wrap): (u16, bool), slots: u16) -> (u16, bool) {
        ((slot + slots) % SIZE, wrap != (slot + slots >= SIZE))
    }

    fn avail(&self) -> &std::sync::atomic::AtomicU16 {
        self.whole.u16(Self::at(PAGE + 2))
    }

    /// Takes a buffer back, in the order in which they were made (2.7.13, 2.8.13): how much the
    /// device says it wrote.
    fn take_back(&mut self) -> Option<u32> {
        if self.is_packed() {
            let slot = u64::from(self.seen % u32::from(SIZE));
            let wrap = (self.seen / u32::from(SIZE)).is_multiple_of(2);
            let flags = self.whole.u16(Self::at(16 * slot + 14)).load(Acquire);
            let both = flags & 0x8080;
            if both != if wrap { 0x8080 } else { 0 } {
                return None;
            }
            let id = self.whole.u16(Self::at(16 * slot + 12)).load(Relaxed);
            let (made, slots) = self.slots.pop_front().expect("it was made");
            assert_eq!(id, made, "the next in order");
            self.seen += slots;
            return Some(self.whole.u32(Self::at(16 * slot + 8)).load(Relaxed));
        }
        let used = self.whole.u16(Self::at(2 * PAGE + 2)).load(Acquire);
        if u32::from(used) == self.seen % 65536 {
            return None;
        }
        let place = 2 * PAGE + 4 + 8 * u64::from(self.seen % u32::from(SIZE));
        self.seen += 1;
        let id = self.whole.u32(Self::at(place)).load(Relaxed);
        let (made, _) = self.slots.pop_front().expect("it was made");
        assert_eq!(id, u32::from(made), "the next in order");
        Some(self.whole.u32(Self::at(place + 4)).load(Relaxed))
    }

    fn take(&self, queue: &mut Queue) -> Result<Option<(Taken, Vec<u8>)>, Broken> {
        let mut buffers = Buffers::default();
        let Some(taken) = queue.next(&self.memory, &mut buffers)? else { return Ok(None) };
        assert_eq!(taken.bytes, buffers.bytes());
        let mut bytes = vec![0; Self::at(taken.bytes)];
        Reader::new(&self.memory, buffers.slices()).read(&mut bytes);
        Ok(Some((taken, bytes)))
    }
}

/// A page in which queues can note how far they are.
fn page() -> (GuestMemory, OwnedFd) {
    let file = memfd_create("inflight", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, PAGE).expect("ours");
    let lent = GuestMapping::map(&file, 0, Guest::at(PAGE)).expect("memory");
    let extent = Extent { guest: 0, user: 0, size: PAGE, offset: 0, lent };
    (GuestMemory::new(vec![extent]).expect("one"), file)
}

/// A device dies at any step; its successor gives back what it did not, each buffer once.
#[test]
fn a_successor_takes_again_what_a_dead_device_did_not_give_back() {
    let steps = ["took", "gave back", "about to publish", "published"];
    for (features, (step, what)) in
        kinds().flat_map(|features| steps.iter().enumerate().map(move |step| (features, step)))
    {
        let mut guest = Guest::new(features);
        let (memory, file) = page();
        let area = || Inflight::new(memory.window(0, area_len(SIZE), 64).expect("room"));
        let mut queue = guest.queue(Direction::Write);
        queue.track(area(), features).expect("room");
        for round in 0..9 {
            // Three that are done, so that each round begins elsewhere; then three of two pieces,
            // or of one where the test cannot make more of those than one.
            let pieces = if guest.is_packed() { 2 } else { 1 };
            for done in [true, false] {
                let count = if done { 1 } else { 3 };
                (0..count)
                    .for_each(|_| guest.make(&[(DATA, 7), (DATA, 7)][..pieces], Direction::Write));
                let mut taken = Vec::new();
                let mut buffers = Buffers::default();
                while let Some(one) = queue.next(&guest.memory, &mut buffers).expect("good") {
                    taken.push(one);
                }
                assert_eq!(taken.len(), count, "round {round} of {features:x}, {what}");
                if step > 0 || done {
                    taken.into_iter().for_each(|one| queue.give_back(one, 5));
                }
                if step == 2 && !done && guest.is_packed() {
                    let place = area().place();
                    let used = Guest::after(place.old, 6);
                    area().set_where(inflight::Where { used, ..place });
                }
                if step == 3 || done {
                    queue.publish();
                }
            }
            // The frontend knows nothing.
            queue = guest.queue_at(Direction::Write, SIZE, 0);
            queue.track(area(), features).expect("room");
            let mut buffers = Buffers::default();
            while let Some(one) = queue.next(&guest.memory, &mut buffers).expect("good") {
                queue.give_back(one, 5);
            }
            queue.publish();
            for _ in 0..4 {
                assert_eq!(guest.take_back(), Some(5), "round {round} of {features:x}, {what}");
            }
            assert_eq!(guest.take_back(), None);
        }
        area().clear();
        let base = queue.base();
        let mut next = guest.queue(Direction::Write);
        next.track(area(), features).expect("room");
        assert_ne!(next.base(), base, "it begins where it is told to");
        ftruncate(&file, 0).expect("ours");
        next.track(area(), features).expect("room");
        assert!(next.has_lost_track());
    }
}

/// Without an area, a packed ring itself says where the device was that died.
#[test]
fn section_2_8_a_successor_finds_in_the_ring_where_a_dead_device_was() {
    let steps = ["took", "gave back", "published"];
    for (pieces, behind, (step, what)) in (1..=3).flat_map(|pieces| {
        let steps = steps.iter().enumerate();
        steps.flat_map(move |step| [0, 2].map(|behind| (pieces, behind, step)))
    }) {
        let mut guest = Guest::new(RING_PACKED);
        let successor = |guest: &Guest| {
            let mut queue = guest.queue(Direction::Write);
            assert!(queue.resume(None), "it is not in doubt");
            queue
        };
        let mut queue = successor(&guest);
        for round in 0..20 {
            let case = format!("round {round}, {pieces} pieces, {behind} behind, {what}");
            // The driver has seen one, and not yet `behind` of the others.
            (0..2).for_each(|_| guest.make(&[(DATA, 7); 3][..pieces], Direction::Write));
            let mut buffers = Buffers::default();
            let mut taken = Vec::new();
            while let Some(one) = queue.next(&guest.memory, &mut buffers).expect("good") {
                taken.push(one);
            }
            assert_eq!(taken.len(), 2, "{case}");
            if step > 0 {
                taken.into_iter().for_each(|one| queue.give_back(one, 5));
            }
            if step == 2 {
                queue.publish();
            }
            let published = if step == 2 { 2 } else { 0 };
            let seen = published - behind.min(published);
            for _ in 0..seen {
                assert_eq!(guest.take_back(), Some(5), "{case}");
            }
            queue = successor(&guest);
            let mut again = 0;
            while let Some(one) = queue.next(&guest.memory, &mut buffers).expect("good") {
                queue.give_back(one, 5);
                again += 1;
            }
            queue.publish();
            assert_eq!(again, if step == 0 { 2 } else { 0 }, "{case}");
            for _ in seen..2 {
                let written = if step == 1 { 0 } else { 5 };
                assert_eq!(guest.take_back(), Some(written), "{case}");
            }
            assert_eq!(guest.take_back(), None, "{case}");
        }
    }
}

fn log_of(bytes: usize) -> (Arc<DirtyLog>, OwnedFd) {
    let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, bytes as u64).expect("ours");
    let lent = GuestMapping::map(&file, 0, bytes).expect("memory");
    (Arc::new(DirtyLog::new(lent, 0, bytes).expect("it is there")), file)
}

/// Half of a queue of eight lies in one page, half in the next.
#[test]
fn each_page_that_a_queue_writes_is_noted_in_the_log() {
    const BASE: u64 = PAGE - 64;
    for features in kinds() {
        let mut guest = Guest::new_at(BASE, features);
        let (log, file) = log_of(8);
        let read = |file: &OwnedFd| {
            let mut bytes = vec![0; Guest::at(PAGES * PAGE)];
            let read = rustix::io::pread(file, &mut bytes, 0).expect("a file");
            bytes.truncate(read);
            bytes
        };
        let mut queue = guest.queue(Direction::Write);
        queue.log_to(log, None);
        for _ in 0..30 {
            guest.make(&[(BASE + DATA, 9)], Direction::Write);
            let before = read(&guest.file);
            queue.want_none();
            let mut buffers = Buffers::default();
            let taken = queue.next(&guest.memory, &mut buffers).expect("good").expect("one");
            queue.give_back(taken, 9);
            queue.publish();
            queue.want_kicks();
            let noted = u16::from_le_bytes(*read(&file).first_chunk().expect("eight bytes"));
            rustix::io::pwrite(&file, &[0; 8], 0).expect("a file");
            for (at, (old, new)) in (BASE..).zip(before.iter().zip(read(&guest.file))) {
                let is_noted = noted >> (at / PAGE) & 1 == 1;
                assert!(*old == new || is_noted, "{at} of {features:x}: {noted:b}");
            }
            assert_eq!(noted >> ((BASE + DATA) / PAGE), 0, "each write there is logged");
            guest.take_back().expect("it was given back");
        }
    }
}

/// Every kind of queue that can be negotiated.
fn kinds() -> impl Iterator<Item = u64> {
    let choose = |mask: u64, bit: u32| if mask & (1 << bit) == 0 { 0 } else { u64::MAX };
    (0..8).map(move |mask| {
        choose(mask, 0) & RING_PACKED
            | choose(mask, 1) & EVENT_IDX
            | choose(mask, 2) & INDIRECT_DESC
    })
}

#[test]
fn sections_2_7_13_and_2_8_21_buffers_go_round_in_order() {
    for features in kinds() {
        let mut guest = Guest::new(features);
        let mut queue = guest.queue(Direction::Read);
        for round in 0..100u8 {
            assert!(!queue.pending());
            let place = DATA + u64::from(round);
            guest.whole.u16(Guest::at(place & !1)).store(u16::from_le_bytes([round; 2]), Relaxed);
            guest.make(&[(place & !1, 1), ((place & !1) + 1, 1)], Direction::Read);
            assert!(queue.pending());
            let (taken, bytes) = guest.take(&mut queue).expect("good").expect("there is one");
            assert_eq!(bytes, [round; 2]);
            queue.give_back(taken, 0);
            assert_eq!(guest.take_back(), None, "not published yet");
            queue.publish();
            assert_eq!(guest.take_back(), Some(0));
        }
    }
}

#[test]
fn section_2_6_8_a_successor_goes_on_where_the_queue_was() {
    for features in kinds() {
        let mut guest = Guest::new(features);
        let mut queue = guest.queue(Direction::Write);
        for written in 0..50 {
            guest.make(&[(DATA, 100); 3], Direction::Write);
            let mut buffers = Buffers::default();
            let mark = queue.mark();
            queue.next(&guest.memory, &mut buffers).expect("good").expect("one");
            queue.rewind(mark);
            buffers.clear();
            let taken = queue.next(&guest.memory, &mut buffers).expect("good").expect("again");
            Writer::new(&guest.memory, buffers.slices()).write(&[1; 300]);
            queue.give_back(taken, written);
            queue.publish();
            assert_eq!(guest.take_back(), Some(written));
            queue = guest.queue_at(Direction::Write, SIZE, queue.base());
        }
    }
}

#[test]
fn sections_2_7_10_and_2_8_14_the_driver_is_told_when_it_asks() {
    for features in kinds() {
        let mut guest = Guest::new(features);
        let mut queue = guest.queue(Direction::Read);
        let serve = |guest: &mut Guest, queue: &mut Queue| {
            guest.make(&[(DATA, 1)], Direction::Read);
            let (taken, _) = guest.take(queue).expect("good").expect("one");
            queue.give_back(taken, 0);
            queue.publish();
            let told = queue.must_tell();
            assert!(!queue.must_tell(), "told once");
            guest.take_back().expect("given back");
            told
        };
        assert!(serve(&mut guest, &mut queue), "the first time in any case");
        if guest.is_packed() {
            guest.whole.u16(Guest::at(PAGE + 2)).store(1, Relaxed);
            assert!(!serve(&mut guest, &mut queue), "disabled");
            guest.whole.u16(Guest::at(PAGE + 2)).store(2, Relaxed);
        } else {
            guest.whole.u16(Guest::at(PAGE)).store(1, Relaxed);
            let told = serve(&mut guest, &mut queue);
            assert!(!told, "disabled, or not at this index");
        }
        if features & EVENT_IDX == 0 {
            continue;
        }
        // Two are given back; the driver asks for the third after those, four times round.
        for _ in 0..11 {
            let at = u16::try_from(guest.seen + 2).expect("few");
            if guest.is_packed() {
                let wrap = if (at / SIZE).is_multiple_of(2) { 1 << 15 } else { 0 };
                guest.whole.u16(Guest::at(PAGE)).store((at % SIZE) | wrap, Relaxed);
            } else {
                let event = PAGE + 4 + 2 * u64::from(SIZE);
                guest.whole.u16(Guest::at(event)).store(at, Relaxed);
            }
            let told: Vec<bool> = (0..3).map(|_| serve(&mut guest, &mut queue)).collect();
            assert_eq!(told, [false, false, true], "at {at} of {features:x}");
        }
    }
}

#[test]
fn sections_2_7_5_3_and_2_8_7_tables_are_followed() {
    for features in kinds() {
        let mut guest = Guest::new(features);
        let mut queue = guest.queue(Direction::Read);
        guest.whole.u32(Guest::at(DATA)).store(u32::from_le_bytes(*b"abcd"), Relaxed);
        let table = guest.table(&[(DATA + 2, 2), (DATA, 1), (DATA + 1, 1)], 0);
        guest.make(&[table], Direction::Read);
        // It is no flag that `make` writes.
        let place = if guest.is_packed() { 14 } else { 12 };
        guest.whole.u16(place).fetch_or(flag::INDIRECT, Relaxed);
        let taken = guest.take(&mut queue);
        if features & INDIRECT_DESC == 0 {
            assert_eq!(taken.expect_err("not negotiated"), Broken::Table);
        } else {
            assert_eq!(taken.expect("good").expect("one").1, b"cdab");
        }
    }
}

#[test]
fn what_no_driver_may_do_breaks_the_queue() {
    for features in kinds() {
        let cases: [(&[Piece], Direction, Broken); 5] = [
            (&[(DATA, 0)], Direction::Read, Broken::Empty),
            (&[(PAGES * PAGE - 1, 2)], Direction::Read, Broken::Address),
            (&[(u64::MAX, 2)], Direction::Read, Broken::Address),
            (&[(DATA, u32::MAX)], Direction::Read, Broken::Address),
            (&[(DATA, 1)], Direction::Write, Broken::Direction),
        ];
        for (pieces, direction, why) in cases {
            let mut guest = Guest::new(features);
            let mut queue = guest.queue(Direction::Read);
            guest.make(pieces, direction);
            assert_eq!(guest.take(&mut queue).expect_err("nonsense"), why);
        }
    }
}

#[test]
fn section_2_7_indexes_and_chains_that_lie_break_the_queue() {
    let guest = Guest::new(INDIRECT_DESC);
    let fresh = || guest.queue(Direction::Read);
    guest.avail().store(SIZE + 1, Relaxed);
    assert_eq!(guest.take(&mut fresh()).expect_err("too far"), Broken::Index);
    guest.avail().store(1, Relaxed);
    guest.whole.u16(Guest::at(PAGE + 4)).store(SIZE, Relaxed);
    assert_eq!(guest.take(&mut fresh()).expect_err("no such"), Broken::Descriptor);
    guest.whole.u16(Guest::at(PAGE + 4)).store(0, Relaxed);
    guest.describe(0, (DATA, 1), flag::NEXT, 0);
    assert_eq!(guest.take(&mut fresh()).expect_err("round"), Broken::Loop);
    for (table, flags) in [((TABLES, 15), 0), ((TABLES, 0), 0), ((TABLES, 16), flag::NEXT)] {
        guest.describe(0, table, flag::INDIRECT | flags, 0);
        assert_eq!(guest.take(&mut fresh()).expect_err("no table"), Broken::Table);
    }
    guest.describe(0, (TABLES, 32), flag::INDIRECT, 0);
    guest.describe(TABLES, (TABLES, 32), flag::INDIRECT, 0);
    assert_eq!(guest.take(&mut fresh()).expect_err("nested"), Broken::Table);
    guest.describe(TABLES, (DATA, 1), flag::NEXT, 2);
    assert_eq!(guest.take(&mut fresh()).expect_err("outside"), Broken::Descriptor);
    guest.describe(TABLES, (DATA, 1), flag::NEXT, 0);
    assert_eq!(guest.take(&mut fresh()).expect_err("round"), Broken::Loop);
    guest.describe(0, (u64::MAX - 15, 32), flag::INDIRECT, 0);
    assert_eq!(guest.take(&mut fresh()).expect_err("nowhere"), Broken::Address);
}

/// Descriptors that lie about how long chains are: seven of four, before any is given back.
#[test]
fn section_2_8_more_descriptors_than_there_are_break_the_queue() {
    const AVAIL: u16 = 1 << 7;
    const USED: u16 = 1 << 15;
    let guest = Guest::new(RING_PACKED);
    let (log, _) = log_of(8);
    let flags = [(3, AVAIL | flag::NEXT), (0, flag::NEXT), (1, AVAIL), (2, USED | flag::NEXT)];
    for (slot, flags) in flags {
        guest.describe(16 * slot, (DATA, 1), flags, 0);
    }
    let mut queue = guest.queue_at(Direction::Read, 4, 0x8003_8003);
    queue.log_to(log, None);
    let (first, _) = guest.take(&mut queue).expect("good").expect("one of three");
    assert_eq!(guest.take(&mut queue).expect_err("four more"), Broken::Loop);
    queue.give_back(first, 0);
    queue.publish();
}

#[test]
fn queues_of_absurd_size_or_place_are_refused() {
    let guest = Guest::new(0);
    let good = Places { descriptors: USER, driver: USER + PAGE, device: USER + 2 * PAGE };
    let make = |places, size, base, features| {
        Queue::new(&guest.memory, places, Direction::Read, size, base, features)
            .map(|_| ())
            .expect_err("refused")
    };
    for size in [0, 3, 65536, u32::MAX] {
        assert_eq!(make(good, size, 0, 0), BadQueue::Size(size));
    }
    for size in [0, 32769] {
        assert_eq!(make(good, size, 0, RING_PACKED), BadQueue::Size(size));
    }
    assert_eq!(make(good, 8, 65536, 0), BadQueue::Base(65536));
    assert_eq!(make(good, 8, 8, RING_PACKED), BadQueue::Base(8));
    let odd = Places { descriptors: USER + 8, ..good };
    assert_eq!(make(odd, 8, 0, 0), BadQueue::Place("descriptors"));
    let far = Places { device: USER + PAGES * PAGE - 8, ..good };
    assert_eq!(make(far, 8, 0, 0), BadQueue::Place("words of the device"));
    let none = Places { driver: 0, ..good };
    assert_eq!(make(none, 8, 0, 0), BadQueue::Place("words of the driver"));
}

proptest! {
    /// Section 2.6: whatever lies in the guest's memory, a queue takes what is in that memory,
    /// or breaks; it neither panics nor goes round for ever.
    #[test]
    fn section_2_6_any_memory_is_survived(
        words in prop::collection::vec((0..PAGES * PAGE / 8, any::<u64>()), 0..200),
        packed in any::<bool>(),
        read in any::<bool>(),
        noted in any::<bool>(),
        resumed in any::<bool>(),
        together in 1..=2 * SIZE,
    ) {
        let guest = Guest::new(INDIRECT_DESC | EVENT_IDX | if packed { RING_PACKED } else { 0 });
        let direction = if read { Direction::Read } else { Direction::Write };
        let mut queue = guest.queue(direction);
        if noted {
            queue.log_to(log_of(8).0, None);
            let area = page().0.window(0, area_len(SIZE), 64).expect("room");
            queue.track(Inflight::new(area), guest.features).expect("room");
        }
        for (at, word) in words {
            // Addresses and lengths that have a chance, half of the time.
            let word = if word & 1 == 0 { word } else { word % (PAGES * PAGE) };
            guest.whole.u64(Guest::at(8 * at)).store(word, Relaxed);
        }
        if resumed {
            queue.resume(None);
        }
        let mut buffers = Buffers::default();
        for _ in 0..3 * SIZE {
            let mut taken = Vec::new();
            for _ in 0..together {
                buffers.clear();
                queue.prefetch(&guest.memory);
                let Ok(Some(one)) = queue.next(&guest.memory, &mut buffers) else { break };
                prop_assert!(one.bytes > 0 && buffers.slices().len() <= PIECES_MAX);
                taken.push(one);
            }
            taken.into_iter().for_each(|one| queue.give_back(one, 1));
            queue.publish();
            queue.want_kicks();
            queue.must_tell();
        }
    }

    /// Section 2.7.4: a buffer's bytes are those of its pieces, in their order.
    #[test]
    fn section_2_7_4_chains_of_any_shape_hold_their_bytes(
        lens in prop::collection::vec(1..300u32, 1..8),
        packed in any::<bool>(),
    ) {
        let mut guest = Guest::new(if packed { RING_PACKED } else { 0 });
        let mut queue = guest.queue(Direction::Read);
        for word in 0..PAGE / 8 {
            let value = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            guest.whole.u64(Guest::at(DATA + 8 * word)).store(value, Relaxed);
        }
        let mut pieces = Vec::new();
        let mut end = DATA + PAGE;
        for len in &lens {
            end -= u64::from(*len);
            pieces.push((end, *len));
        }
        guest.make(&pieces, Direction::Read);
        let (_, bytes) = guest.take(&mut queue).expect("good").expect("one");
        let expected = pieces.iter().flat_map(|(at, len)| {
            (*at..at + u64::from(*len)).map(|at| {
                let word = guest.whole.u64(Guest::at(at & !7)).load(Relaxed);
                word.to_le_bytes()[Guest::at(at & 7)]
            })
        });
        prop_assert!(bytes.into_iter().eq(expected));
    }
}
