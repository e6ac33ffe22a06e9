//! The sync loop: a thread that syncs, so that the program need not call anybody.
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

use super::{Exchanged, SyncRing, SyncRings, must_ring};
use crate::abi::{CsbAtok, CsbKtoa};
use crate::cursor::Index;
use crate::doorbell::store_load_fence;

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

/// Who rings for what.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopMode {
    /// The program can ring: the loop may sleep.
    pub rung: bool,
    /// It rings for everything that it sends.
    pub direct_tx: bool,
    /// It rings for everything that it gives back.
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
        let (mut pass, mut sent) = (Pass::default(), false);
        for (i, entry) in self.entries.iter_mut().enumerate() {
            let turn = entry.turn();
            pass.busy |= turn.moved | turn.told;
            sent |= turn.moved && entry.is_tx;
            pass.kick |= turn.moved && !entry.is_tx && entry.ring.is_room_waited_for();
            if turn.told && entry.wants_notice() {
                notify(i);
            }
        }
        if sent {
            store_load_fence();
            // SAFETY: a line of the region; an atomic may be shared with the switch.
            pass.kick |= must_ring(&self.rings.rung, unsafe { &(*self.rings.bell).need_kick });
        }
        pass
    }

    /// Asks the switch for a kick as soon as there is something that the program does not know.
    /// `false`: there is already.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.entries.iter().for_each(|entry| entry.ring.arm(entry.told.get()));
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

    /// Would the loop do something if the program moved `head` now?
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
        let Ok(Exchanged { hwtail, moved, .. }) = self.ring.exchange(|| self.said(), resolve)
        else {
            return false;
        };
        let (_, published) = self.ring.published();
        let taken = self.ring.span.check(self.ring.ktoa().hwcur.load(Ordering::Relaxed));
        let hwcur = taken.filter(|_| self.is_tx).unwrap_or(published);
        self.tell(hwcur, hwtail);
        turn.moved |= moved;
        turn.told |= std::mem::replace(&mut self.told, hwtail) != hwtail;
        true
    }

    /// After the program has been told of slots: does it sleep?
    fn wants_notice(&self) -> bool {
        // Pairs with the program's, between asking and looking at `hwtail` once more.
        store_load_fence();
        self.atok().appl_need_kick.load(Ordering::Relaxed) != 0
    }
}
