//! Packed queues after a device that stopped, moved away, or died between any two stores.

use super::super::packed::recovery::meanwhile;
use super::super::store::death::outlives;
use super::features::IN_ORDER;
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
        Self::with(RING_PACKED, start, is_tracked)
    }

    fn with(features: u64, start: u16, is_tracked: bool) -> Self {
        let bench = Self { guest: Guest::new(features), area: page().0, is_tracked };
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
        self.undoubted(base).expect("it is not in doubt")
    }

    /// [`Self::successor`], unless the queue is in doubt.
    fn undoubted(&self, base: u32) -> Option<Queue> {
        let mut queue = self.guest.queue_at(Direction::Write, SIZE, base);
        let before = self.ring();
        if !queue.resume(self.record().as_ref()) {
            assert_eq!(self.ring(), before, "nothing is touched");
            return None;
        }
        if let Some(record) = self.record() {
            queue.track(record, self.guest.features).expect("room");
        }
        Some(queue)
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

    /// Makes a buffer with an ID of choice: drivers reuse them.
    fn make_as(&mut self, id: u16, pieces: usize) {
        self.make(pieces);
        let last = (self.guest.made - 1) % u32::from(SIZE);
        self.guest.whole.u16(Guest::at(16 * u64::from(last) + 12)).store(id, Relaxed);
        self.guest.slots.back_mut().expect("it was made").0 = id;
    }

    /// Asks for a kick there, as a device does that waits.
    fn ask_for_kick(&self, at: (u16, bool)) {
        let word = |at| self.guest.whole.u16(Guest::at(2 * PAGE) + at);
        word(0).store(at.0 | if at.1 { 1 << 15 } else { 0 }, Relaxed);
        word(2).store(2, Relaxed);
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

/// Other devices mark the first descriptor of a chain only; then the frontend's word counts, where
/// the device area or the ring supports it.
#[test]
fn section_2_8_a_base_is_believed_after_a_device_that_marks_no_rest_of_a_chain() {
    let cases = (0..40usize).flat_map(|seed| (0..3).map(move |ahead| (seed, ahead)));
    for ((seed, ahead), waits) in cases.flat_map(|case| [false, true].map(|waits| (case, waits))) {
        let mut bench = Bench::with(RING_PACKED | EVENT_IDX, 0, false);
        let mut at = (0, true);
        for round in 0..40 {
            let pieces = if waits { 1 + (seed + 7 * round + round * round) % 3 } else { 2 };
            bench.make(pieces);
            bench.return_first_only(at);
            at = Guest::after(at, u16::try_from(pieces).expect("few"));
            if waits {
                bench.ask_for_kick(at);
            }
            // Now and then the driver has not yet seen it, and has made more available.
            let ahead = if waits { ahead } else { 0 };
            (0..ahead).for_each(|_| bench.make(1));
            assert!(bench.guest.take_back().is_some());
            if !waits && round < 2 {
                assert!(bench.undoubted(base(at)).is_none(), "round {round}: too few chains");
                continue;
            }
            let before = bench.ring();
            let mut queue = bench.successor(base(at));
            assert_eq!(queue.base(), base(at), "round {round} of {seed}, {ahead} ahead");
            assert_eq!(bench.ring(), before, "nothing is given back twice");
            bench.take_all(&mut queue).into_iter().for_each(|one| queue.give_back(one, FIRST));
            queue.publish();
            (0..ahead).for_each(|_| assert_eq!(bench.guest.take_back(), Some(FIRST)));
            assert_eq!(bench.guest.take_back(), None, "round {round} of {seed}, {ahead} ahead");
            at = Guest::after(at, ahead);
        }
    }
}

/// Whatever chains such a device has given back, and though it polled, its successor begins where
/// it was, or does not begin.
#[test]
fn section_2_8_a_base_without_support_is_right_or_in_doubt() {
    for (seed, ahead) in (0..40usize).flat_map(|seed| (0..3u16).map(move |ahead| (seed, ahead))) {
        let mut bench = Bench::with(RING_PACKED | EVENT_IDX, 0, false);
        let mut at = (0, true);
        for round in 0..40 {
            let pieces = 1 + (seed + 7 * round + round * round) % 3;
            bench.make(pieces);
            bench.return_first_only(at);
            assert!(bench.guest.take_back().is_some());
            at = Guest::after(at, u16::try_from(pieces).expect("few"));
            (0..ahead).for_each(|_| bench.make(1));
            let found = bench.undoubted(base(at)).map(|queue| queue.base());
            let is_right = found.is_none_or(|found| found == base(at));
            assert!(is_right, "{found:x?}, round {round} of {seed}, {ahead} ahead");
            for _ in 0..ahead {
                bench.return_first_only(at);
                assert!(bench.guest.take_back().is_some());
                at = Guest::after(at, 1);
            }
        }
    }
}

/// The driver has written over the descriptor that said which chain it was.
#[test]
fn section_2_8_a_base_is_believed_behind_a_chain_whose_beginning_is_gone() {
    for start in 0..2 * SIZE {
        let mut bench = Bench::with(RING_PACKED | EVENT_IDX, start, false);
        bench.make(3);
        let first = (start % SIZE, start < SIZE);
        bench.return_first_only(first);
        assert!(bench.guest.take_back().is_some());
        let stop = Guest::after(first, 3);
        bench.ask_for_kick(stop);
        (0..6).for_each(|_| bench.make(1));
        assert_eq!(bench.successor(base(stop)).base(), base(stop), "{start}");
    }
}

/// A driver that frees a buffer before it adds one uses the same ID for each. The frontend names an
/// old position, which may be behind a buffer that nothing has given back. Where the device area
/// does not say so, that is in doubt.
#[test]
fn section_2_8_an_old_base_leaves_no_buffer_behind_where_the_driver_reuses_ids() {
    let cases = (0..2 * SIZE).flat_map(|start| (1..=3u16).map(move |ahead| (start, ahead)));
    for (start, ahead) in cases {
        for (features, waited, pieces) in [
            (RING_PACKED, true, 1),
            (RING_PACKED | EVENT_IDX, true, 1),
            (RING_PACKED | EVENT_IDX, true, 2),
            (RING_PACKED | EVENT_IDX, false, 1),
            (RING_PACKED | EVENT_IDX | IN_ORDER, true, 1),
        ] {
            let mut bench = Bench::with(features, start, false);
            let mut queue = bench.successor(BEGIN);
            queue.want_kicks();
            queue.want_none();
            bench.make_as(0, pieces);
            bench.serve(&mut queue, FIRST);
            bench.guest.take_back().expect("it is back");
            if waited {
                queue.want_kicks();
            }
            (0..ahead).for_each(|id| bench.make_as(id, pieces));
            let place = queue.base();
            let is_awaited = waited && features & EVENT_IDX != 0;
            let behind_one = base(Guest::after((start % SIZE, start < SIZE), 2));
            for old in (0..2 * SIZE).map(|old| base((old % SIZE, old < SIZE))) {
                let found = bench.undoubted(old).map(|queue| queue.base());
                let expected = (is_awaited || old != behind_one).then_some(place);
                assert_eq!(found, expected, "{old:x}, {start}, {ahead} ahead, {features:x}");
            }
            let mut queue = bench.successor(place);
            bench.serve(&mut queue, SECOND);
            (0..ahead).for_each(|_| assert_eq!(bench.guest.take_back(), Some(SECOND)));
        }
    }
}

/// Several buffers that nothing has given back are no chain, though the last one has the ID.
#[test]
fn section_2_8_a_base_is_not_believed_behind_several_buffers() {
    for start in 0..2 * SIZE {
        for (features, is_base) in [(EVENT_IDX, false), (EVENT_IDX | IN_ORDER, true)] {
            let mut bench = Bench::with(RING_PACKED | features, start, false);
            let mut queue = bench.successor(BEGIN);
            bench.make_as(3, 1);
            bench.serve(&mut queue, FIRST);
            bench.guest.take_back().expect("it is back");
            let place = Guest::after((start % SIZE, start < SIZE), 1);
            assert_eq!(queue.base(), base(place));
            [0, 1, 3, 4].into_iter().for_each(|id| bench.make_as(id, 1));
            // With IN_ORDER, a device may have given all three back by one descriptor.
            let stop = Guest::after(place, 3);
            bench.ask_for_kick(stop);
            let found = bench.successor(base(stop)).base();
            assert_eq!(found, base(if is_base { stop } else { place }), "{start}, {features:x}");
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
fn section_2_8_a_chain_that_its_driver_is_writing_does_not_mislead() {
    let places = (0..2 * SIZE).flat_map(|start| (0..=2).map(move |ahead| (start, ahead)));
    for (start, ahead) in places {
        for pieces in 2..=usize::from(SIZE - ahead) {
            let mut bench = Bench::new(start, false);
            (0..ahead).for_each(|_| bench.make(1));
            let place = base((start % SIZE, start < SIZE));
            let slot = u16::try_from(bench.guest.made % u32::from(SIZE)).expect("small");
            let before = bench.flags(slot);
            bench.make(pieces);
            let flags = bench.flags(slot);
            let word = bench.guest.whole.u16(Guest::at(16 * u64::from(slot) + 14));
            word.store(before, Relaxed);
            let Some(mut queue) = bench.undoubted(BEGIN) else {
                // The chain may have been written over the first descriptor of another one.
                assert_eq!((start, usize::from(ahead) + pieces), (15, 8), "{ahead} before it");
                continue;
            };
            assert_eq!(queue.base(), place, "{start}, {ahead} before one of {pieces}");
            word.store(flags, Release);
            bench.serve(&mut queue, SECOND);
            for _ in 0..=ahead {
                assert_eq!(bench.guest.take_back(), Some(SECOND));
            }
        }
    }
}

/// Whatever position the frontend names, and however far the driver is in writing a chain: where a
/// device stopped that marks all descriptors, its successor begins, or it does not begin.
#[test]
fn section_2_8_no_position_misleads_behind_a_device_that_marks_all() {
    let (mut cases, mut doubts) = (0, 0);
    let stops = (0..2 * SIZE).flat_map(|start| (0..=SIZE).map(move |ahead| (start, ahead)));
    let chains =
        |ahead: u16| (0..=SIZE - ahead).flat_map(|all| (0..all.max(1)).map(move |i| (all, i)));
    for (start, ahead) in stops {
        for (pieces, written) in chains(ahead) {
            let mut bench = Bench::new(start, false);
            (0..ahead).for_each(|_| bench.make(1));
            let before = bench.ring();
            if pieces > 0 {
                bench.make(pieces.into());
            }
            for i in (0..pieces).filter(|i| *i == 0 || *i > written) {
                let slot = usize::from((start + ahead + i) % SIZE);
                for at in [2 * slot, 2 * slot + 1] {
                    bench.guest.whole.u64(8 * at).store(before[at], Relaxed);
                }
            }
            let place = base((start % SIZE, start < SIZE));
            for named in (0..2 * SIZE).map(|named| base((named % SIZE, named < SIZE))) {
                let found = bench.undoubted(named).map(|queue| queue.base());
                let case = format!("{named:x}, {start}, {ahead} before {written} of {pieces}");
                assert!(found.is_none_or(|found| found == place), "{found:x?}: {case}");
                (cases, doubts) = (cases + 1, doubts + u32::from(found.is_none()));
            }
        }
    }
    assert!(50 * doubts < cases, "{doubts} of {cases}");
}

/// A device that is delayed between two looks at the ring sees what the driver did meanwhile.
#[test]
fn section_2_8_a_driver_that_goes_on_meanwhile_does_not_mislead() {
    let cases = (0..2 * SIZE).flat_map(|start| (0..SIZE).map(move |looks| (start, looks)));
    for (start, looks) in cases {
        for (ahead, more) in [(0, 3), (2, 1), (2, 4), (0, 8)] {
            let mut bench = Bench::new(start, false);
            (0..ahead).for_each(|_| bench.make(1));
            let place = bench.successor(BEGIN).base();
            let old = bench.ring();
            (0..more).for_each(|_| bench.make(1));
            let new = bench.ring();
            let window = bench.guest.memory.window(USER, Guest::at(PAGE), 1).expect("the ring");
            let write = move |words: &[u64]| {
                (0..).zip(words).for_each(|(at, word)| window.u64(8 * at).store(*word, Release));
            };
            write(&old);
            meanwhile::act_after(looks.into(), move || write(&new));
            let mut queue = bench.successor(base((7, false)));
            assert_eq!(queue.base(), place, "{start}, {more} after {looks} looks");
            bench.serve(&mut queue, SECOND);
            for _ in 0..ahead + more {
                assert_eq!(bench.guest.take_back(), Some(SECOND));
            }
        }
    }
}

/// A device followed one that marks no rest of a chain, and died in the same round of the ring.
#[test]
fn section_2_8_rests_of_old_chains_are_not_taken_for_what_a_dead_device_left() {
    for (start, pieces) in (0..2 * SIZE).flat_map(|start| [1, 2].map(|pieces| (start, pieces))) {
        for stores in 0.. {
            let mut bench = Bench::with(RING_PACKED | EVENT_IDX, start, false);
            let mut at = (start % SIZE, start < SIZE);
            for _ in 0..2 {
                bench.make(2);
                bench.return_first_only(at);
                at = Guest::after(at, 2);
                bench.guest.take_back().expect("it is back");
            }
            bench.ask_for_kick(at);
            let mut queue = bench.successor(base(at));
            queue.want_none();
            (0..2).for_each(|_| bench.make(pieces));
            let is_done = outlives(stores, || bench.serve(&mut queue, FIRST));
            let Some(mut queue) = bench.undoubted(BEGIN) else {
                // The device had given nothing back, and has asked for no kick where it began.
                assert_eq!((start, stores), (12, 0), "one of {pieces}");
                continue;
            };
            bench.serve(&mut queue, SECOND);
            for _ in 0..2 {
                let written = bench.guest.take_back();
                assert!(written.is_some(), "{start}: one of {pieces} hangs after {stores}");
            }
            assert_eq!(bench.guest.take_back(), None);
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn an_area_that_is_too_small_leaves_the_queue_as_it_was() {
    let mut bench = Bench::new(3, false);
    bench.make(1);
    let before = bench.ring();
    let mut queue = bench.guest.queue_at(Direction::Write, SIZE, BEGIN);
    let small = || Inflight::new(bench.area.window(0, 64, 64).expect("room"));
    assert!(queue.resume(Some(&small())));
    assert_eq!(queue.base(), BEGIN, "nothing was looked up in vain");
    assert_eq!(bench.ring(), before);
    assert!(matches!(queue.track(small(), bench.guest.features), Err(BadQueue::Inflight(_))));
}
