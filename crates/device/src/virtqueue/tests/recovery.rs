//! Packed queues after a device that stopped, moved away, or died between any two stores.

use super::super::store::death::outlives;
use super::*;

/// What a device that returned a buffer before says it wrote, and what its successor says.
const FIRST: u32 = 7;
const SECOND: u32 = 5;
/// Where a frontend begins that knows nothing.
const BEGIN: u32 = 0x8000_8000;

/// A driver of a packed queue, and the page in which its devices leave records.
struct Bench {
    guest: Guest,
    area: GuestMemory,
    is_tracked: bool,
}

impl Bench {
    /// One whose queue is empty, this many descriptors after its beginning.
    fn new(start: u16, is_tracked: bool) -> Self {
        let bench = Self { guest: Guest::new(RING_PACKED), area: page().0, is_tracked };
        let mut queue = bench.successor(BEGIN);
        let mut bench = bench;
        for _ in 0..start {
            bench.guest.make(&[(DATA, 9)], Direction::Write);
            bench.serve(&mut queue, FIRST);
            assert_eq!(bench.guest.take_back(), Some(FIRST));
        }
        bench
    }

    fn record(&self) -> Option<Inflight> {
        let window = || self.area.window(0, area_len(SIZE), 64).expect("room");
        self.is_tracked.then(|| Inflight::new(window()))
    }

    /// A device that is told to begin at `base`, as a session makes it.
    fn successor(&self, base: u32) -> Queue {
        let places = Places { descriptors: USER, driver: USER + PAGE, device: USER + 2 * PAGE };
        let features = self.guest.features;
        let made =
            Queue::new(&self.guest.memory, places, Direction::Write, SIZE.into(), base, features);
        let mut queue = made.expect("a good queue");
        queue.resume(self.record().as_ref());
        if let Some(record) = self.record() {
            queue.track(record, features).expect("room");
        }
        queue
    }

    fn take_all(&self, queue: &mut Queue) -> Vec<Taken> {
        let mut buffers = Buffers::default();
        let mut take = || queue.next(&self.guest.memory, &mut buffers).expect("a good queue");
        std::iter::from_fn(&mut take).collect()
    }

    fn serve(&self, queue: &mut Queue, written: u32) {
        let taken = self.take_all(queue);
        taken.into_iter().for_each(|one| queue.give_back(one, written));
        queue.publish();
    }

    fn make(&mut self, pieces: usize) {
        self.guest.make(&[(DATA, 9); 8][..pieces], Direction::Write);
    }

    fn flags(&self, slot: u16) -> u16 {
        self.guest.whole.u16(Guest::at(16 * u64::from(slot) + 14)).load(Relaxed)
    }

    /// Gives a chain back as other devices do: its first descriptor only.
    fn return_first_only(&self, (slot, wrap): (u16, bool)) {
        let place = Guest::at(16 * u64::from(slot));
        let (id, _) = self.guest.slots[0];
        self.guest.whole.u16(place + 12).store(id, Relaxed);
        self.guest.whole.u16(place + 14).store(if wrap { 0x8082 } else { 2 }, Release);
    }

    fn ring(&self) -> Vec<u64> {
        (0..2 * usize::from(SIZE)).map(|at| self.guest.whole.u64(8 * at).load(Relaxed)).collect()
    }
}

fn base((slot, wrap): (u16, bool)) -> u32 {
    let half = u32::from(slot) | if wrap { 1 << 15 } else { 0 };
    half | half << 16
}

/// `count` buffers of `pieces` descriptors; their device dies after `lives[0]` stores, each
/// successor after as many as its own; the one behind them stays. How many died.
fn give_back_with_deaths(
    bench: &mut Bench,
    (pieces, count): (usize, usize),
    lives: &[usize],
) -> usize {
    let case = format!("{count} of {pieces}, {lives:?}");
    let base = bench.successor(BEGIN).base();
    (0..count).for_each(|_| bench.make(pieces));
    let mut queue = bench.successor(base);
    let mut died = 0;
    for (at, stores) in lives.iter().enumerate() {
        let written = if at == 0 { FIRST } else { SECOND };
        if at > 0 && !outlives(*stores, || queue = bench.successor(BEGIN)) {
            died += 1;
            continue;
        }
        if outlives(*stores, || bench.serve(&mut queue, written)) {
            break;
        }
        died += 1;
    }
    queue = bench.successor(BEGIN);
    bench.serve(&mut queue, SECOND);
    for _ in 0..count {
        let written = bench.guest.take_back().unwrap_or_else(|| panic!("a buffer hangs: {case}"));
        let lost: &[u32] = if bench.is_tracked { &[] } else { &[0] };
        assert!([FIRST, SECOND].contains(&written) || lost.contains(&written), "{case}: {written}");
    }
    assert_eq!(bench.guest.take_back(), None, "{case}");
    // The next buffer is where the driver expects it.
    bench.make(pieces);
    bench.serve(&mut queue, SECOND);
    assert_eq!(bench.guest.take_back(), Some(SECOND), "{case}");
    died
}

fn every_buffer_comes_back_once(is_tracked: bool) {
    let shapes = [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (8, 1), (4, 2)];
    for (start, shape) in [0, 3, 6, 7, 13].into_iter().flat_map(|at| shapes.map(|one| (at, one))) {
        for first in 0.. {
            let mut is_last = false;
            for second in 0.. {
                let mut bench = Bench::new(start, is_tracked);
                let died = give_back_with_deaths(&mut bench, shape, &[first, second]);
                is_last = died == 0;
                if died < 2 {
                    break;
                }
            }
            if is_last {
                break;
            }
        }
    }
}

#[test]
fn section_2_8_a_device_that_dies_between_any_two_stores_leaves_no_buffer_behind() {
    every_buffer_comes_back_once(false);
}

#[test]
fn section_2_8_with_a_record_a_device_that_dies_between_any_two_stores_loses_nothing() {
    every_buffer_comes_back_once(true);
}

/// Other devices mark the first descriptor of a chain only; then the frontend's word counts.
#[test]
fn section_2_8_a_base_is_believed_after_a_device_that_marks_no_rest_of_a_chain() {
    for (seed, ahead) in (0..40usize).flat_map(|seed| (0..3).map(move |ahead| (seed, ahead))) {
        let mut bench = Bench::new(0, false);
        let mut at = (0, true);
        for round in 0..40 {
            let pieces = 1 + (seed + 7 * round + round * round) % 3;
            bench.make(pieces);
            bench.return_first_only(at);
            at = Guest::after(at, u16::try_from(pieces).expect("few"));
            // Now and then the driver has not yet seen it, and has made more available.
            (0..ahead).for_each(|_| bench.make(1));
            let before = bench.ring();
            let mut queue = bench.successor(base(at));
            assert_eq!(queue.base(), base(at), "round {round} of {seed}, {ahead} ahead");
            assert_eq!(bench.ring(), before, "nothing is given back twice");
            assert!(bench.guest.take_back().is_some());
            bench.take_all(&mut queue).into_iter().for_each(|one| queue.give_back(one, FIRST));
            queue.publish();
            (0..ahead).for_each(|_| assert_eq!(bench.guest.take_back(), Some(FIRST)));
            assert_eq!(bench.guest.take_back(), None, "round {round} of {seed}, {ahead} ahead");
            at = Guest::after(at, ahead);
        }
    }
}

/// A frontend whose device died names a position of earlier.
#[test]
fn section_2_8_an_old_base_is_not_believed_wherever_it_is() {
    let places = (0..2 * SIZE).flat_map(|start| (0..=4).map(move |ahead| (start, ahead)));
    for (start, ahead) in places {
        for pieces in 1..=2 {
            let mut bench = Bench::new(start, false);
            let mut queue = bench.successor(BEGIN);
            (0..2).for_each(|_| bench.make(pieces));
            bench.serve(&mut queue, FIRST);
            bench.guest.take_back().expect("it is back");
            bench.guest.take_back().expect("it is back");
            (0..ahead).for_each(|_| bench.make(pieces));
            let place = queue.base();
            for old in (0..2 * SIZE).map(|old| base((old % SIZE, old < SIZE))) {
                let found = bench.successor(old).base();
                assert_eq!(found, place, "{old:x}, {start}, {ahead} of {pieces} ahead");
            }
        }
    }
}

/// A driver writes the first descriptor of a chain last; a device may look in between.
#[test]
fn section_2_8_a_chain_that_its_driver_is_writing_misleads_nobody() {
    let places = (0..2 * SIZE).flat_map(|start| (0..=2).map(move |ahead| (start, ahead)));
    for (start, ahead) in places {
        for pieces in 2..=4 {
            let mut bench = Bench::new(start, false);
            (0..ahead).for_each(|_| bench.make(1));
            let place = bench.successor(BEGIN).base();
            let slot = u16::try_from(bench.guest.made % u32::from(SIZE)).expect("small");
            let before = bench.flags(slot);
            bench.make(pieces);
            let flags = bench.flags(slot);
            let word = bench.guest.whole.u16(Guest::at(16 * u64::from(slot) + 14));
            word.store(before, Relaxed);
            let mut queue = bench.successor(BEGIN);
            assert_eq!(queue.base(), place, "{start}, {ahead} before one of {pieces}");
            word.store(flags, Release);
            bench.serve(&mut queue, SECOND);
            for _ in 0..=ahead {
                assert_eq!(bench.guest.take_back(), Some(SECOND));
            }
        }
    }
}
