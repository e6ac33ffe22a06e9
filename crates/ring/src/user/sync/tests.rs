//! A program, or two, on one side of a ring; the switch on the other.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::format::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use crate::kring::krings::Krings;
use crate::kring::run::{Key, drop_run};

pub(super) const SLOTS: u32 = 8;
const NOW: Timestamp = [12, 34];

/// A port with one ring in each direction, and `N` processes that have mapped it.
pub(super) struct Setup<const N: usize> {
    pub(super) host: Krings,
    pub(super) ends: [SyncRings; N],
}

pub(super) fn setup<const N: usize>() -> Setup<N> {
    let span = RingSize::new(SLOTS).expect("legal");
    let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: span, rx_slots: span };
    let port = PortLayout::new(FIRST_BLOCK, counts);
    let blocks = port.end() - FIRST_BLOCK;
    let layout = RegionLayout::new(blocks, DEFAULT_STRIDE, counts.buffers()).expect("legal");
    let (region, fd) = Region::create_shared("test", layout).expect("memory");
    region.format_port("test", &port, region.buffers(), true).expect("memory");
    let ends = [(); N].map(|()| {
        let mapped = Region::attach(fd.as_fd(), layout).expect("sealed");
        SyncRings::new(&mapped, &port, 0..1, 0..1)
    });
    Setup { host: Krings::new(&region, &port), ends }
}

/// What a program writes, and what it finds.
impl SyncRing {
    fn set(&self, head: u32, cur: u32) {
        // `head` last and with release, so that the switch sees the slots.
        self.cur().store(cur, Ordering::Relaxed);
        self.head().store(head, Ordering::Release);
    }

    fn indexes(&self) -> [u32; 3] {
        // Acquire: the slots before `tail` are the program's, whichever sync has found them.
        [self.head(), self.cur(), self.tail()].map(|word| word.load(Ordering::Acquire))
    }

    pub(super) fn write(&self, at: u32, word: SlotWord, ptr: u64) {
        let at = self.span.check(at).expect("a slot");
        // SAFETY: a slot of this ring.
        unsafe {
            let slot = self.slots.add(at.at());
            slot.cast::<u64>().write_volatile(word.0);
            (&raw mut (*slot).ptr).write_volatile(ptr);
        }
    }

    fn slot(&self, at: u32) -> SlotWord {
        self.read(self.span.check(at).expect("a slot"))
    }
}

impl<const N: usize> Setup<N> {
    /// The switch takes everything.
    pub(super) fn take(&mut self) -> u32 {
        take(&mut self.host)
    }
}

fn take(host: &mut Krings) -> u32 {
    let tx = &mut host.tx[0];
    tx.sync();
    let mut frags = Vec::new();
    let before = tx.ready();
    while tx.take(&mut frags, 64).is_some() {}
    tx.publish();
    before
}

const READY: Synced = Synced { ready: true, kick: false, bad: false };
const WAITS: Synced = Synced { ready: false, kick: false, bad: false };

#[test]
fn the_time_of_a_ring_does_not_run_backwards_unless_the_clock_does() {
    let Setup { ends: [one, other], .. } = setup::<2>();
    let stamp = || -> Timestamp {
        // SAFETY: the ring is mapped.
        unsafe { (*one.rx[0].ring.cast::<NetmapRing>()).ts }
    };
    let sync = |ends: &SyncRings, now| {
        let _ = ends.rxsync(now);
        stamp()
    };
    assert_eq!(sync(&one, [100, 7]), [100, 7]);
    // Its time was taken before, and its turn came after.
    assert_eq!(sync(&other, [100, 6]), [100, 7]);
    assert_eq!(sync(&other, [99, 999_999]), [100, 7]);
    assert_eq!(sync(&other, [101, 0]), [101, 0]);
    assert_eq!(sync(&one, [50, 3]), [50, 3]);
}

#[test]
fn a_lap_is_told_once_and_begins_anew_where_the_program_waits() {
    let (mut setup, mut head) = (setup::<1>(), 0);
    let mut send = |setup: &mut Setup<1>, slots: u32| {
        head = (head + slots) % SLOTS;
        setup.ends[0].tx[0].set(head, head);
        let _ = setup.ends[0].txsync(false);
        let is_lap = setup.ends[0].take_lap();
        setup.take();
        is_lap
    };
    let laps = (0..3 * SLOTS).filter(|_| send(&mut setup, 1)).count();
    assert_eq!(laps, 3);
    let full = (0..10).filter(|_| send(&mut setup, SLOTS - 1)).count();
    assert_eq!(full, 0, "it waits for room after each");
}

/// netmap's own rule, walked slot by slot.
fn is_legal(published: u32, hwtail: u32, head: u32, cur: u32) -> bool {
    let (mut at, mut stage) = (published, 0);
    for _ in 0..SLOTS {
        if stage == 0 && at == head {
            stage = 1;
        }
        if stage == 1 && at == cur {
            return true;
        }
        if at == hwtail {
            return false;
        }
        at = (at + 1) % SLOTS;
    }
    false
}

#[test]
#[cfg_attr(miri, ignore = "15,000 combinations take Miri minutes")]
fn every_combination_of_indexes_is_judged_as_netmap_judges_it() {
    let setup = setup::<1>();
    for ring in [&setup.ends[0].tx[0], &setup.ends[0].rx[0]] {
        let strange = [SLOTS, SLOTS + 1, u32::MAX];
        let all = || (0..SLOTS).chain(strange);
        for published in 0..SLOTS {
            for hwtail in 0..SLOTS {
                for (head, cur) in all().flat_map(|head| all().map(move |cur| (head, cur))) {
                    ring.atok().head.store(published, Ordering::Relaxed);
                    ring.ktoa().hwtail.store(hwtail, Ordering::Relaxed);
                    ring.set(head, cur);
                    let legal = is_legal(published, hwtail, head, cur);
                    let (synced, moved) = ring.sync(None, |_, _, _| ());
                    let case = (published, hwtail, head, cur);
                    assert_eq!(synced.bad, !legal, "{case:?}");
                    let now = ring.atok().head.load(Ordering::Relaxed);
                    if legal {
                        assert_eq!(ring.indexes(), [head, cur, hwtail], "{case:?}");
                        assert_eq!((now, moved), (head, head != published), "{case:?}");
                        assert_eq!(synced.ready, cur != hwtail, "{case:?}");
                    } else {
                        assert_eq!(ring.indexes(), [published, published, hwtail], "{case:?}");
                        assert_eq!((now, moved), (published, false), "{case:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn frames_go_out_and_slots_come_back_around_the_ring() {
    let mut setup = setup::<1>();
    let mut head = 0;
    for round in 0..100 {
        let count = round % SLOTS;
        head = (head + count) % SLOTS;
        setup.ends[0].tx[0].set(head, head);
        let synced = setup.ends[0].txsync(false);
        assert_eq!(synced, if count == SLOTS - 1 { WAITS } else { READY });
        assert_eq!(setup.ends[0].is_drained(), count == 0);
        assert_eq!(setup.take(), count);
        let before = setup.ends[0].tx[0].indexes();
        assert_eq!(setup.ends[0].txsync(false), READY);
        assert_eq!(before[..2], [head, head], "the program's words are its own");
        assert_eq!(setup.ends[0].tx[0].indexes()[2], (head + SLOTS - 1) % SLOTS);
    }
}

#[test]
fn tail_moves_in_a_sync_only_and_is_repaired() {
    let mut setup = setup::<1>();
    setup.ends[0].tx[0].set(3, 3);
    assert_eq!(setup.ends[0].txsync(false), READY);
    assert_eq!(setup.take(), 3);
    assert_eq!(setup.ends[0].tx[0].indexes(), [3, 3, 7]);
    setup.ends[0].tx[0].tail().store(77, Ordering::Relaxed);
    assert_eq!(setup.ends[0].txsync(false), READY);
    assert_eq!(setup.ends[0].tx[0].indexes(), [3, 3, 2]);
}

#[test]
fn a_poll_that_waits_for_no_room_leaves_quiet_rings_alone() {
    let setup = setup::<1>();
    assert_eq!(setup.ends[0].txsync(true), WAITS);
    setup.ends[0].tx[0].set(1, 1);
    assert_eq!(setup.ends[0].txsync(true), READY);
}

#[test]
fn what_arrived_is_read_and_given_back() {
    let mut setup = setup::<2>();
    assert_eq!(setup.ends[0].rxsync(NOW), WAITS);
    setup.ends[1].tx[0].write(0, SlotWord::new(2, 60, 0), 0);
    setup.ends[1].tx[0].set(1, 1);
    let _ = setup.ends[1].txsync(false);
    let Krings { tx, rx, .. } = &mut setup.host;
    let _ = (tx[0].sync(), rx[0].sync());
    let run = crate::kring::run::deliver_run(&mut tx[0], &mut rx[0], Key::new(0, 0), 8);
    assert_eq!(run.frames, 1);
    rx[0].publish();
    assert_eq!(setup.ends[0].rx[0].indexes(), [0, 0, 0], "not before the sync");
    assert_eq!(setup.ends[0].rxsync(NOW), READY);
    assert_eq!(setup.ends[0].rx[0].indexes(), [0, 0, 1]);
    assert_eq!(setup.ends[0].rx[0].slot(0).len(), 60);
    // `cur` waits for more while the slot is kept.
    setup.ends[0].rx[0].set(0, 1);
    assert_eq!(setup.ends[0].rxsync(NOW), WAITS);
    assert!(setup.ends[0].arm(false, true));
    setup.ends[0].rx[0].set(1, 1);
    assert_eq!(setup.ends[0].rxsync(NOW), WAITS);
    assert_eq!(setup.host.rx[0].sync(), SLOTS - 1);
}

#[test]
fn a_sync_says_when_it_was() {
    let setup = setup::<1>();
    let _ = setup.ends[0].rxsync(NOW);
    let ring = &setup.ends[0].rx[0];
    let ts = offset_of!(NetmapRing, ts);
    // SAFETY: words of the mapped ring.
    let time = [0, 8].map(|i| unsafe { ring.ring.byte_add(ts + i).cast::<i64>().read_volatile() });
    assert_eq!(time, NOW);
}

#[test]
fn each_sleep_of_the_switch_gets_one_kick_and_each_of_ours_a_new_number() {
    let mut setup = setup::<2>();
    setup.host.arm();
    setup.ends[0].tx[0].set(1, 1);
    assert!(setup.ends[0].txsync(false).kick);
    setup.ends[0].tx[0].set(2, 2);
    assert!(!setup.ends[0].txsync(false).kick, "it has been rung for");
    setup.host.disarm();
    setup.host.arm();
    setup.ends[0].tx[0].set(3, 3);
    assert!(setup.ends[0].txsync(false).kick);
    let need = |setup: &Setup<2>| setup.ends[0].rx[0].atok().appl_need_kick.load(Ordering::Relaxed);
    let mut seen = vec![need(&setup)];
    for i in [0, 1, 0, 1] {
        assert!(setup.ends[i].arm(false, true));
        assert!(!seen.contains(&need(&setup)) && need(&setup) > 1);
        seen.push(need(&setup));
        assert!(setup.host.rx[0].wants_kick());
        assert!(!setup.host.rx[0].wants_kick());
    }
}

#[test]
fn who_waits_for_room_is_not_put_to_sleep_when_there_is_some() {
    let mut setup = setup::<1>();
    setup.ends[0].tx[0].set(7, 7);
    assert_eq!(setup.ends[0].txsync(false), WAITS);
    assert!(setup.ends[0].arm(true, true));
    assert!(!setup.host.tx[0].wants_kick(), "nothing has been taken yet");
    assert_eq!(setup.take(), 7);
    assert!(setup.host.tx[0].wants_kick());
    assert!(!setup.ends[0].arm(true, true));
    assert!(setup.ends[0].arm(false, true));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no process_vm_readv")]
fn data_elsewhere_is_fetched_and_a_wild_address_costs_the_frame() {
    let mut setup = setup::<1>();
    let data: Vec<u8> = (0..200).collect();
    let ring = &setup.ends[0].tx[0];
    let buffers = [0, 1, 2].map(|at| ring.slot(at).buffer());
    let flag = slot_flag::INDIRECT;
    ring.write(0, SlotWord::new(buffers[0], 200, flag), data.as_ptr().expose_provenance() as u64);
    ring.write(1, SlotWord::new(buffers[1], 60, flag), 8);
    ring.write(2, SlotWord::new(buffers[2], u16::MAX, flag), data.as_ptr() as u64);
    ring.set(3, 3);
    let _ = setup.ends[0].txsync(false);
    let slots = [0, 1, 2].map(|at| setup.ends[0].tx[0].slot(at));
    assert_eq!(slots.map(SlotWord::len), [200, 0, 0]);
    assert!(slots.iter().all(|slot| slot.flags() == 0));
    setup.host.tx[0].sync();
    let header = u128::from_le_bytes(data[..16].try_into().expect("sixteen"));
    assert_eq!(setup.host.tx[0].peek(), Some(header));
}

proptest! {
    /// Whatever stands in ring and CSB, a sync ends, and what it leaves is in order.
    #[test]
    fn nonsense_in_every_word_is_survived(words in proptest::collection::vec(any::<u32>(), 7)) {
        let setup = setup::<1>();
        for ring in [&setup.ends[0].tx[0], &setup.ends[0].rx[0]] {
            let small = |word: u32| if word.is_multiple_of(3) { word } else { word % SLOTS };
            let (atok, ktoa) = (ring.atok(), ring.ktoa());
            ring.set(small(words[0]), small(words[1]));
            let others = [
                ring.tail(), &atok.head, &atok.cur, &ktoa.hwcur, &ktoa.hwtail,
            ];
            for (word, value) in others.into_iter().zip(&words[2..]) {
                word.store(small(*value), Ordering::Relaxed);
            }
            let _ = ring.sync(None, SyncRing::resolve);
            prop_assert!(ring.indexes().iter().all(|index| *index < SLOTS));
            let (again, _) = ring.sync(None, SyncRing::resolve);
            prop_assert!(!again.bad);
        }
    }
}

/// Syncs inside of a sync: by the handler of a signal, or while a process is stopped there. The
/// ring goes round once meanwhile and stands where it stood.
#[test]
fn a_sync_that_has_lost_its_turn_publishes_nothing() {
    let Setup { mut host, ends: [ours, theirs] } = setup::<2>();
    let ring = &ours.tx[0];
    ring.set(1, 1);
    let (synced, moved) = theirs.tx[0].sync(None, |_, _, _| {
        for head in 1..=SLOTS {
            ring.set(head % SLOTS, head % SLOTS);
            let _ = ours.txsync(false);
            take(&mut host);
        }
    });
    assert!(!moved && !synced.bad);
    assert_eq!(ring.atok().head.load(Ordering::Relaxed), 0, "no further than the program");
    assert_eq!(ring.indexes()[..2], [0, 0], "the program's words are its own");
}

/// Two processes send through one ring as netmap programs do that share a descriptor: one moves
/// `head`, both sync. The switch sees every slot once, in order.
#[test]
fn syncs_of_two_processes_at_once_publish_every_slot_once() {
    let Setup { mut host, ends: [ours, theirs] } = setup::<2>();
    let frames = if cfg!(miri) { 40 } else { 20_000u32 };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(!theirs.txsync(false).bad && !theirs.rxsync(NOW).bad);
                let _ = theirs.arm(true, true);
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            let ring = &ours.tx[0];
            let mut sent = 0;
            while sent < frames {
                let [head, _, tail] = ring.indexes();
                if head == tail {
                    let _ = ours.txsync(false);
                    std::thread::yield_now();
                    continue;
                }
                let len = 64 + u16::try_from(sent % 1024).expect("small");
                ring.write(head, SlotWord::new(ring.slot(head).buffer(), len, 0), 0);
                let next = (head + 1) % SLOTS;
                ring.cur().store(next, Ordering::Relaxed);
                ring.head().store(next, Ordering::Release);
                assert!(!ours.txsync(false).bad);
                sent += 1;
            }
        });
        let mut taken = 0;
        while taken < frames {
            host.tx[0].sync();
            let mut frags = Vec::new();
            while host.tx[0].take(&mut frags, 64).is_some() {}
            for frag in frags {
                assert_eq!(u32::from(frag.len()), 64 + taken % 1024);
                taken += 1;
            }
            host.tx[0].publish();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    host.tx[0].sync();
    assert_eq!(drop_run(&mut host.tx[0], Key::new(0, 0), 8).frames, 0);
}
