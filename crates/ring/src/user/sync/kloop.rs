//! The sync loop: a thread that syncs, so that the program makes no system calls.
//!
//! # Theory of operation
//!
//! In CSB mode the indexes that program and switch exchange do not stand in the `netmap_ring` but
//! in two arrays of the program's, one line for each ring, transmit rings first. The loop copies
//! them to and fro:
//!
//! ```text
//!   program's memory              sync loop                      region
//!   atok  head, cur     ────── in order? ── publish ─────────►  atok
//!   ktoa  hwcur, hwtail ◄───────────────────────────────────── ktoa
//!
//!   program rings (ioeventfd)  if ktoa.kern_need_kick           switch rings the doorbell
//!   loop rings (irqfd)         if atok.appl_need_kick
//! ```
//!
//! netmap's handshakes: the loop takes `kern_need_kick` back, works until `head` stands still, asks
//! for a kick, and looks once more behind a fence. Slots that come back to a receive ring are worth
//! a kick only where it is full. The program does the same with `appl_need_kick` and `hwtail`.
//!
//! Without kicks (`rung` false) `kern_need_kick` stays 0, and the loop comes round by itself. In a
//! *direct* ring it stays 1: the program rings for everything.
//!
//! The arrays are the program's: it may write anything, and harms itself. A ring whose indexes are
//! not in order stands still until they are.

#![allow(unsafe_code)] // UNSAFETY: status blocks in the program's memory.

use core::sync::atomic::Ordering;

use super::{Exchanged, SyncRing, SyncRings};
use crate::format::abi::{CsbAtok, CsbKtoa};
use crate::format::cursor::Index;
use crate::format::doorbell::store_load_fence;

/// Looks for more from the program before others have their turn.
const LOOKS: u32 = 8;

/// A program's arrays of status blocks.
#[derive(Clone, Copy, Debug)]
pub struct ProgramCsb {
    atok: *const CsbAtok,
    ktoa: *const CsbKtoa,
}

impl ProgramCsb {
    /// Arrays at these addresses.
    ///
    /// # Safety
    /// For as long as this or a [`SyncLoop`] of it is used, both are aligned to a line and writable
    /// for as many lines as the [`SyncRings`] that it is used with have rings.
    #[must_use]
    pub unsafe fn new(atok: usize, ktoa: usize) -> Self {
        Self {
            atok: std::ptr::with_exposed_provenance(atok),
            ktoa: std::ptr::with_exposed_provenance(ktoa),
        }
    }
}

/// Which side rings for what.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopMode {
    /// The program can ring: the loop may sleep.
    pub rung: bool,
    /// The program rings for everything that it sends.
    pub direct_tx: bool,
    /// The program rings for everything that it gives back.
    pub direct_rx: bool,
}

/// What one pass over all rings came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Pass {
    /// Something moved, in one direction or the other.
    pub busy: bool,
    /// The switch sleeps: ring the doorbell.
    pub kick: bool,
}

/// A sync loop over the rings of a descriptor.
#[derive(Debug)]
pub struct SyncLoop<'a> {
    rings: &'a SyncRings,
    entries: Vec<Entry<'a>>,
}

/// One ring of it.
#[derive(Debug)]
struct Entry<'a> {
    ring: &'a SyncRing,
    is_tx: bool,
    direct: bool,
    rung: bool,
    atok: *const CsbAtok,
    ktoa: *const CsbKtoa,
    /// The `hwtail` that the program knows.
    told: Index,
}

/// What a ring's turn came to.
#[derive(Default)]
struct Turn {
    /// Slots were published.
    moved: bool,
    /// The program has been told of slots.
    told: bool,
}

impl SyncRings {
    /// Rings of both directions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tx.len() + self.rx.len()
    }

    /// Tells the program where its rings stand, and asks it for kicks.
    pub fn enter_csb(&self, csb: ProgramCsb) {
        for entry in self.sync_loop(csb, LoopMode::default()).entries {
            let (_, published) = entry.ring.published();
            let (atok, ktoa) = (entry.atok(), entry.ktoa());
            atok.head.store(published.get(), Ordering::Relaxed);
            atok.cur.store(published.get(), Ordering::Relaxed);
            atok.appl_need_kick.store(1, Ordering::Relaxed);
            atok.sync_flags.store(1, Ordering::Relaxed);
            ktoa.kern_need_kick.store(1, Ordering::Relaxed);
            entry.tell(published, entry.ring.hwtail(published));
        }
    }

    /// A loop over all rings.
    #[must_use]
    pub fn sync_loop(&self, csb: ProgramCsb, mode: LoopMode) -> SyncLoop<'_> {
        let rings = self.tx.iter().map(|ring| (ring, true));
        let rings = rings.chain(self.rx.iter().map(|ring| (ring, false))).enumerate();
        let entries = rings.map(|(i, (ring, is_tx))| Entry {
            ring,
            is_tx,
            direct: if is_tx { mode.direct_tx } else { mode.direct_rx },
            rung: mode.rung,
            atok: csb.atok.wrapping_add(i),
            ktoa: csb.ktoa.wrapping_add(i),
            told: Index::ZERO,
        });
        SyncLoop { rings: self, entries: entries.collect() }
    }
}

impl SyncLoop<'_> {
    /// One turn for each ring. `notify` gets the numbers of those whose program asks to be told.
    pub fn pass(&mut self, mut notify: impl FnMut(usize)) -> Pass {
        let (mut pass, mut sent) = (Pass::default(), 0);
        for (i, entry) in self.entries.iter_mut().enumerate() {
            let turn = entry.turn();
            pass.busy |= turn.moved | turn.told;
            sent |= u32::from(turn.moved && entry.is_tx) << entry.ring.side;
            pass.kick |= turn.moved && !entry.is_tx && entry.ring.is_room_waited_for();
            if turn.told && entry.wants_notice() {
                notify(i);
            }
        }
        pass.kick |= sent != 0 && self.rings.must_ring(sent);
        pass
    }

    /// Asks the switch for a kick as soon as there is something that the program does not know.
    /// `false`: there is already.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.entries.iter().for_each(|entry| entry.ring.arm(|| entry.told.get()));
        store_load_fence();
        self.entries.iter().all(|entry| entry.ring.hwtail(entry.told) == entry.told)
    }
}

impl Entry<'_> {
    fn atok(&self) -> &CsbAtok {
        // SAFETY: a line of the program's, by the promise of `ProgramCsb::new`; words are atomic.
        unsafe { &*self.atok }
    }

    fn ktoa(&self) -> &CsbKtoa {
        // SAFETY: as above.
        unsafe { &*self.ktoa }
    }

    /// The program's `head` and `cur`. It stores `cur` first.
    fn said(&self) -> (u32, u32) {
        // Acquire: pairs with the program's barrier between its slots and `head`.
        let head = self.atok().head.load(Ordering::Acquire);
        (head, self.atok().cur.load(Ordering::Relaxed))
    }

    fn tell(&self, hwcur: Index, hwtail: Index) {
        let ktoa = self.ktoa();
        ktoa.hwcur.store(hwcur.get(), Ordering::Relaxed);
        // Release: pairs with the program's barrier between `hwtail` and the slots before it.
        ktoa.hwtail.store(hwtail.get(), Ordering::Release);
    }

    fn ask_for_kicks(&self, ask: bool) {
        if !self.direct {
            self.ktoa().kern_need_kick.store(u32::from(ask), Ordering::Relaxed);
        }
    }

    fn turn(&mut self) -> Turn {
        self.ask_for_kicks(false);
        let mut turn = Turn::default();
        for _ in 0..LOOKS {
            let (head, _) = self.said();
            if !self.exchange(&mut turn) {
                // Not in order: the program hears nothing, and is heard when it rings.
                self.ask_for_kicks(self.rung);
                return turn;
            }
            if self.said().0 != head {
                continue;
            }
            if !self.rung || !self.is_kick_worth_it(head) {
                return turn;
            }
            self.ask_for_kicks(true);
            store_load_fence();
            if self.said().0 == head {
                return turn;
            }
            self.ask_for_kicks(false);
        }
        // Others want a turn too. It comes again at once: slots have moved.
        turn.moved = true;
        turn
    }

    /// Whether the loop would do something if the program moved `head` now.
    fn is_kick_worth_it(&self, head: u32) -> bool {
        let full = || self.ring.span.check(head).is_some_and(|head| self.is_full(head));
        self.is_tx || full()
    }

    fn is_full(&self, head: Index) -> bool {
        self.ring.hwtail(self.told) == self.ring.span.prev(head)
    }

    /// `false`: the program's indexes are not in order.
    fn exchange(&mut self, turn: &mut Turn) -> bool {
        let resolve = |ring: &SyncRing, from, to| {
            if self.is_tx {
                ring.resolve(from, to);
            }
        };
        let held = self.ring.turn();
        let exchanged = self.ring.exchange(&held, || self.said(), resolve);
        let Ok(Exchanged { hwtail, moved, .. }) = exchanged else { return false };
        let (_, published) = self.ring.published();
        let taken = self.ring.span.check(self.ring.ktoa().hwcur.load(Ordering::Relaxed));
        let hwcur = taken.filter(|_| self.is_tx).unwrap_or(published);
        self.tell(hwcur, hwtail);
        turn.moved |= moved;
        turn.told |= std::mem::replace(&mut self.told, hwtail) != hwtail;
        true
    }

    /// Whether the program sleeps, asked after it has been told of slots.
    fn wants_notice(&self) -> bool {
        // Pairs with the program's, between asking and looking at `hwtail` once more.
        store_load_fence();
        self.atok().appl_need_kick.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{SLOTS, Setup, setup};
    use super::*;
    use crate::format::slot::SlotWord;
    use crate::kring::krings::Krings;
    use crate::kring::run::{Key, deliver_run};

    const ASLEEP: LoopMode = LoopMode { rung: true, direct_tx: false, direct_rx: false };
    const QUIET: Pass = Pass { busy: false, kick: false };

    /// The program's arrays: a transmit and a receive ring.
    #[derive(Default)]
    struct Arrays {
        atok: [CsbAtok; 2],
        ktoa: [CsbKtoa; 2],
    }

    impl Arrays {
        fn csb(&self) -> ProgramCsb {
            let address = |it: *const u8| it.expose_provenance();
            let (atok, ktoa) = (self.atok.as_ptr().cast(), self.ktoa.as_ptr().cast());
            // SAFETY: two aligned lines each, which outlive what the tests do with them.
            unsafe { ProgramCsb::new(address(atok), address(ktoa)) }
        }

        fn say(&self, ring: usize, head: u32) {
            self.atok[ring].cur.store(head, Ordering::Relaxed);
            self.atok[ring].head.store(head, Ordering::Release);
        }

        fn told(&self, ring: usize) -> [u32; 3] {
            let ktoa = &self.ktoa[ring];
            [&ktoa.hwcur, &ktoa.hwtail, &ktoa.kern_need_kick].map(|it| it.load(Ordering::Relaxed))
        }
    }

    fn pass(sync: &mut SyncLoop<'_>) -> (Pass, Vec<usize>) {
        let mut notified = Vec::new();
        (sync.pass(|ring| notified.push(ring)), notified)
    }

    /// One frame from the port to itself.
    fn deliver(Krings { tx, rx, .. }: &mut Krings) {
        let _ = (tx[0].sync(), rx[0].sync());
        assert_eq!(deliver_run(&mut tx[0], &mut rx[0], Key::new(0, 0), 1).frames, 1);
        tx[0].publish();
        rx[0].publish();
    }

    #[test]
    fn a_program_enters_where_its_rings_stand() {
        let (setup, arrays) = (setup::<1>(), Arrays::default());
        setup.ends[0].enter_csb(arrays.csb());
        assert_eq!(arrays.told(0), [0, SLOTS - 1, 1]);
        assert_eq!(arrays.told(1), [0, 0, 1]);
        assert_eq!(arrays.atok[1].appl_need_kick.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_loop_carries_slots_to_and_fro_and_rings_for_who_asks() {
        let (mut setup, arrays) = (setup::<1>(), Arrays::default());
        let Setup { host, ends: [rings] } = &mut setup;
        rings.enter_csb(arrays.csb());
        let mut sync = rings.sync_loop(arrays.csb(), ASLEEP);
        let _ = pass(&mut sync);
        assert_eq!(pass(&mut sync), (QUIET, vec![]));
        assert!(sync.arm());
        rings.tx[0].write(0, SlotWord::new(2, 60, 0), 0);
        arrays.say(0, 1);
        assert!(pass(&mut sync).0.busy);
        assert_eq!(arrays.told(0), [0, SLOTS - 1, 1], "sent, and not taken yet");
        deliver(host);
        assert!(!sync.arm(), "the program does not know");
        assert_eq!(pass(&mut sync), (Pass { busy: true, kick: false }, vec![0, 1]));
        assert_eq!(arrays.told(0), [1, 0, 1]);
        assert_eq!(arrays.told(1), [0, 1, 0], "a ring with room needs no kick");
        // A loop that does not ask gets no kick.
        arrays.atok[1].appl_need_kick.store(0, Ordering::Relaxed);
        arrays.say(1, 1);
        rings.tx[0].write(1, SlotWord::new(2, 60, 0), 0);
        arrays.say(0, 2);
        assert!(pass(&mut sync).0.busy);
        deliver(host);
        assert_eq!(pass(&mut sync).1, [0]);
        assert_eq!(arrays.told(1), [1, 2, 0]);
    }

    #[test]
    fn the_switch_is_kicked_when_it_sleeps() {
        let (mut setup, arrays) = (setup::<1>(), Arrays::default());
        let mut sync = setup.ends[0].sync_loop(arrays.csb(), ASLEEP);
        let _ = sync.pass(|_| ());
        setup.host.arm();
        arrays.say(0, 3);
        assert!(sync.pass(|_| ()).kick);
        arrays.say(0, 4);
        assert!(!sync.pass(|_| ()).kick, "it has been rung for");
    }

    #[test]
    fn kicks_are_asked_for_where_the_loop_sleeps_and_not_taken_back_where_it_is_direct() {
        let (setup, arrays) = (setup::<1>(), Arrays::default());
        setup.ends[0].enter_csb(arrays.csb());
        let _ = setup.ends[0].sync_loop(arrays.csb(), LoopMode::default()).pass(|_| ());
        assert_eq!([arrays.told(0)[2], arrays.told(1)[2]], [0, 0]);
        setup.ends[0].enter_csb(arrays.csb());
        let direct = LoopMode { direct_rx: true, ..ASLEEP };
        let _ = setup.ends[0].sync_loop(arrays.csb(), direct).pass(|_| ());
        assert_eq!([arrays.told(0)[2], arrays.told(1)[2]], [1, 1]);
    }

    proptest! {
        /// Whatever the program writes, a pass ends, and the switch finds rings in order.
        #[test]
        fn nonsense_is_survived(words in proptest::collection::vec(any::<u32>(), 12)) {
            let (mut setup, arrays) = (setup::<1>(), Arrays::default());
            let small = |word: u32| if word.is_multiple_of(3) { word } else { word % SLOTS };
            for words in words.chunks(4) {
                for (i, pair) in words.chunks(2).enumerate() {
                    arrays.atok[i].cur.store(small(pair[0]), Ordering::Relaxed);
                    arrays.atok[i].head.store(small(pair[1]), Ordering::Relaxed);
                }
                let _ = setup.ends[0].sync_loop(arrays.csb(), ASLEEP).pass(|_| ());
                setup.host.sync_tx();
                setup.host.rx[0].sync();
                prop_assert_eq!(setup.host.resyncs(), 0);
                prop_assert!(arrays.told(0)[1] < SLOTS && arrays.told(1)[1] < SLOTS);
            }
        }
    }
}
