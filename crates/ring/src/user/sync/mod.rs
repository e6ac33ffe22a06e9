//! netmap's synchronisation: a client's half of a ring for programs that know netmap's rules.
//!
//! # Theory of operation
//!
//! Such a program moves `head` and `cur` in the `netmap_ring` itself and makes a system call when
//! it wants them to be known: a *sync*. It finds there what its slots are: `tail` moves in a sync
//! and at no other time.
//!
//! ```text
//!    netmap_ring                     sync                        CSB
//!    head, cur  ──── in order? ──── no ──► start over, report
//!                        │ yes
//!                        └──► publish  ──── compare, exchange ──► atok.head
//!    tail       ◄──────────────────────── compare, exchange ───── ktoa.hwtail
//! ```
//!
//! | ring | in order | ready, once |
//! |---|---|---|
//! | transmit | published ≤ `head` ≤ `cur` ≤ hwtail | `cur` ≠ `tail` |
//! | receive | published ≤ `head` ≤ `cur` ≤ hwtail | `cur` ≠ `tail` |
//!
//! all of it modulo the number of slots. A ring that is not in order starts over: `head` and `cur`
//! at what was published last, `tail` at hwtail. Nothing else of it is touched.
//!
//! *Several holders.* Processes that share a netmap descriptor, or that bound the same rings, use
//! one ring at the same time, each with threads; the program says which of them moves `head`. So
//! nothing is remembered here that the ring or its CSB could contradict:
//!
//! - syncs of a ring take *turns* (`format::turn`). Otherwise what one loads would not belong
//!   together: to an older hwtail, a newer `head` is out of order. A process may die in its turn:
//!   the next sync then waits some 30 ms, and takes it.
//! - `atok.head` and `tail` move by compare-and-exchange from the value that the sync began with.
//!   A sync that has lost its turn, because it was stopped, changes nothing: others have done it.
//! - need-kick words count upward and are never taken back, so the next sleeper asks for a new
//!   kick, and all holders have a doorbell that rings for it.
//!
//! *What is believed.* Nothing: every word may have been written by the program or by a neighbour.
//! Indexes are bounded before use; the worst is a ring with wrong frames in it.

#![allow(unsafe_code)] // UNSAFETY: words and slots of shared memory, by raw pointers.

pub mod kloop;
pub mod offsets;
mod pipe;

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::Arc;

use crate::format::abi::{Bell, CsbAtok, CsbKtoa, NetmapRing, Slot, slot_flag};
use crate::format::cursor::{Index, RingSize};
use crate::format::doorbell::{Ringer, store_load_fence};
use crate::format::layout::PortLayout;
use crate::format::slot::SlotWord;
use crate::format::turn::SyncTurn;
use crate::region::Region;

use pipe::Receiver;

/// The time of a sync: seconds and microseconds.
pub type Timestamp = [i64; 2];

/// What a sync found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Synced {
    /// There are slots at `cur`: the program need not wait.
    pub ready: bool,
    /// The switch sleeps: ring the doorbell.
    pub kick: bool,
    /// A ring was not in order and has started over.
    pub bad: bool,
}

impl Synced {
    fn and(self, other: Self) -> Self {
        Self {
            ready: self.ready | other.ready,
            kick: self.kick | other.kick,
            bad: self.bad | other.bad,
        }
    }
}

/// The rings that one netmap descriptor has bound, of one port or of both sides of an interface.
/// Threads may share it.
#[derive(Debug)]
pub struct SyncRings {
    tx: Vec<SyncRing>,
    rx: Vec<SyncRing>,
    /// One for each port.
    bells: Vec<PortBell>,
    /// Number of the first of `tx` in the port.
    first_tx: u16,
    /// Slots that were published since the program last found no room. Threads may step on each
    /// other's counts.
    unwaited: AtomicU32,
    region: Arc<Region>,
}

/// What the switch says of a port's doorbell: whether the port has to ring it.
#[derive(Debug)]
struct PortBell {
    bell: *const Bell,
    /// The last number that the doorbell was rung for.
    rung: AtomicU32,
}

// SAFETY: the pointer goes into the region of the rings beside it, which is kept alive and may be
// used from any thread.
unsafe impl Send for PortBell {}
// SAFETY: as above; everything is atomic.
unsafe impl Sync for PortBell {}

impl PortBell {
    /// After a publication and a fence.
    #[inline]
    fn must_ring(&self) -> bool {
        // SAFETY: a line of the region; an atomic may be shared with the switch.
        must_ring(&self.rung, unsafe { &(*self.bell).need_kick })
    }
}

impl SyncRings {
    /// The transmit rings `tx` and the receive rings `rx` of a port.
    ///
    /// # Panics
    /// If the port has no such rings.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout, tx: Range<u16>, rx: Range<u16>) -> Self {
        let (first_tx, region) = (tx.start, region.clone());
        let (unwaited, bells) = (AtomicU32::new(0), Vec::new());
        let none = Self { tx: Vec::new(), rx: Vec::new(), bells, first_tx, unwaited, region };
        none.beside(port, tx, rx)
    }

    /// Adds rings of one more port of the region, after the others.
    ///
    /// # Panics
    /// If that port has no such rings.
    #[must_use]
    pub fn beside(mut self, port: &PortLayout, tx: Range<u16>, rx: Range<u16>) -> Self {
        let (counts, side) = (port.counts(), self.bells.len());
        assert!(tx.end <= counts.tx_rings && rx.end <= counts.rx_rings);
        let ring = |at: u16, span| SyncRing::new(&self.region, port, usize::from(at), span, side);
        self.tx.extend(tx.map(|i| ring(i, counts.tx_slots)));
        self.rx.extend(rx.map(|i| ring(counts.tx_rings + i, counts.rx_slots)));
        let (bell, rung) = (self.region.memory().at(port.bell()), AtomicU32::new(0));
        self.bells.push(PortBell { bell, rung });
        self
    }

    /// Makes these the rings of one end of a pipe: `peer` is the other end, in the same region.
    #[must_use]
    pub fn facing(mut self, peer: &PortLayout) -> Self {
        let memory = self.region.memory();
        for (ring, number) in self.tx.iter_mut().zip(self.first_tx..) {
            ring.receiver = Receiver::new(memory, peer, number, ring.span);
        }
        self
    }

    /// The region that the rings are in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Syncs all transmit rings; ready if any is. With `only_new`, those in which the program has
    /// moved nothing are left alone and are not ready: for a poll that does not wait for room.
    #[inline]
    pub fn txsync(&self, only_new: bool) -> Synced {
        let (mut all, mut published, mut slots) = (Synced::default(), 0, 0);
        for ring in self.tx.iter().filter(|ring| !only_new || ring.has_new()) {
            let before = ring.published().1;
            let (synced, moved) = ring.sync(None, SyncRing::resolve);
            published |= u32::from(moved) << ring.side;
            slots += if moved { ring.span.distance(before, ring.published().1) } else { 0 };
            all = all.and(synced);
        }
        all.kick |= published != 0 && self.must_ring(published);
        let unwaited = self.unwaited.load(Ordering::Relaxed).saturating_add(slots);
        self.unwaited.store(if all.ready { unwaited } else { 0 }, Ordering::Relaxed);
        all
    }

    /// Whether a ring of slots was published since the program last found no room, or since this
    /// last was so. The thread then yields: a receiver on the same core runs only when the sender
    /// waits, and a switch that drops never lets it wait.
    #[inline]
    #[must_use]
    pub fn take_lap(&self) -> bool {
        let ring = self.tx.first().map_or(u32::MAX, |ring| ring.span.slots());
        let is_lap = self.unwaited.load(Ordering::Relaxed) >= ring;
        if is_lap {
            self.unwaited.store(0, Ordering::Relaxed);
        }
        is_lap
    }

    /// Whether any doorbell must be rung, of the ports that have a bit in `published`.
    #[inline]
    fn must_ring(&self, published: u32) -> bool {
        store_load_fence();
        let bells = self.bells.iter().enumerate();
        let asked = bells.filter(|(side, _)| published >> side & 1 != 0);
        asked.fold(false, |any, (_, bell)| bell.must_ring() | any)
    }

    /// Syncs all receive rings; ready if any is. `now` becomes their time of the last sync.
    #[inline]
    pub fn rxsync(&self, now: Timestamp) -> Synced {
        let rings = self.rx.iter();
        rings.fold(Synced::default(), |all, ring| all.and(ring.rxsync(now)))
    }

    /// Asks for a kick as soon as there are slots at `cur` of any transmit ring or receive ring,
    /// as asked. `false`: there are already; sync and do not sleep.
    #[must_use]
    pub fn arm(&self, tx: bool, rx: bool) -> bool {
        let rings = || self.directions(tx, rx);
        rings().for_each(|ring| ring.arm(|| ring.cur().load(Ordering::Relaxed)));
        store_load_fence();
        !rings().any(SyncRing::has_slots)
    }

    /// Asks for a kick for slots that no sync has found yet: the caller knows of the others, and
    /// sleeps on. `false`: there are some already.
    #[must_use]
    pub fn arm_beyond(&self, tx: bool, rx: bool) -> bool {
        let rings = || self.directions(tx, rx);
        rings().for_each(|ring| ring.arm(|| ring.tail().load(Ordering::Relaxed)));
        store_load_fence();
        !rings().any(SyncRing::would_show_more)
    }

    /// Whether any ring has slots at `cur`, as the last sync of any holder has found them.
    #[must_use]
    pub fn is_ready(&self, tx: bool, rx: bool) -> bool {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        self.directions(tx, rx).any(|ring| word(ring.cur()) != word(ring.tail()))
    }

    /// Takes the place of `old`, which are the same rings: editions go on from there.
    pub fn succeed(&self, old: &Self) {
        for (new, old) in self.directions(true, true).zip(old.directions(true, true)) {
            new.news.store(old.news.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// A number that changes when a sync of any holder has found more slots.
    #[must_use]
    pub fn edition(&self, tx: bool, rx: bool) -> u64 {
        let of = |ring: &SyncRing| {
            let news = u64::from(ring.news.load(Ordering::Relaxed));
            news << 32 | u64::from(ring.tail().load(Ordering::Relaxed))
        };
        self.directions(tx, rx).map(of).fold(0, u64::wrapping_add)
    }

    fn directions(&self, tx: bool, rx: bool) -> impl Iterator<Item = &SyncRing> + Clone {
        self.tx.iter().filter(move |_| tx).chain(self.rx.iter().filter(move |_| rx))
    }

    /// Whether the switch has taken every slot that was published.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.tx.iter().all(|ring| {
            let (_, published) = ring.published();
            ring.hwtail(published) == ring.span.prev(published)
        })
    }
}

/// Whether the doorbell must be rung for this number; remembers that it was.
#[inline]
fn must_ring(rung: &AtomicU32, need_kick: &AtomicU32) -> bool {
    let number = need_kick.load(Ordering::Relaxed);
    if number == 0 {
        return false;
    }
    rung.swap(number, Ordering::Relaxed) != number || number == Ringer::ALWAYS
}

/// What an exchange came to.
struct Exchanged {
    cur: Index,
    hwtail: Index,
    /// Slots were published.
    moved: bool,
}

/// Nothing was exchanged: where the ring stands.
struct OutOfOrder {
    published: Index,
    hwtail: Index,
}

/// One ring, of either direction.
#[derive(Debug)]
struct SyncRing {
    ring: *const AtomicU32,
    slots: *mut Slot,
    span: RingSize,
    stride: u32,
    /// Which of the ports it belongs to.
    side: usize,
    atok: *const CsbAtok,
    ktoa: *const CsbKtoa,
    /// The last number that the switch was woken for because of room in this ring.
    rung: AtomicU32,
    /// Syncs that have found more slots.
    news: AtomicU32,
    /// The ring at the other end, for a transmit ring of a pipe.
    receiver: Option<Receiver>,
    region: Arc<Region>,
}

// SAFETY: the pointers go into `region`, which is kept alive and may be used from any thread.
unsafe impl Send for SyncRing {}
// SAFETY: as above; words are atomic, slots are read and written volatile, one word each.
unsafe impl Sync for SyncRing {}

impl SyncRing {
    fn new(
        region: &Arc<Region>,
        port: &PortLayout,
        ring: usize,
        span: RingSize,
        side: usize,
    ) -> Self {
        let memory = region.memory();
        let at = port.ring(ring);
        let bytes = span.slots() as usize * size_of::<Slot>();
        Self {
            ring: memory.range(at, size_of::<NetmapRing>()).cast(),
            slots: memory.range(at + size_of::<NetmapRing>(), bytes).cast(),
            span,
            stride: region.stride(),
            side,
            atok: memory.at(port.atok(ring)),
            ktoa: memory.at(port.ktoa(ring)),
            rung: AtomicU32::new(0),
            news: AtomicU32::new(0),
            receiver: None,
            region: region.clone(),
        }
    }

    /// A word of the `netmap_ring`, by its offset.
    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= size_of::<NetmapRing>());
        // SAFETY: a word of the mapped ring; atomics may be shared with the program.
        unsafe { &*self.ring.byte_add(offset) }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU32 {
        self.word(offset_of!(NetmapRing, head))
    }

    #[inline(always)]
    fn cur(&self) -> &AtomicU32 {
        self.word(offset_of!(NetmapRing, cur))
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU32 {
        self.word(offset_of!(NetmapRing, tail))
    }

    /// The turn to sync this ring, once no other holder has it.
    #[inline(always)]
    fn turn(&self) -> SyncTurn<'_> {
        SyncTurn::take(self.word(offset_of!(NetmapRing, turn)))
    }

    #[inline(always)]
    fn atok(&self) -> &CsbAtok {
        // SAFETY: a CSB line of `region`; atomics may be shared.
        unsafe { &*self.atok }
    }

    #[inline(always)]
    fn ktoa(&self) -> &CsbKtoa {
        // SAFETY: a CSB line of `region`; atomics may be shared.
        unsafe { &*self.ktoa }
    }

    /// What was published last: as it stands there, and as an index. Where a neighbour has written
    /// nonsense, what the switch has taken counts.
    #[inline(always)]
    fn published(&self) -> (u32, Index) {
        let raw = self.atok().head.load(Ordering::Relaxed);
        let taken = || self.span.check(self.ktoa().hwcur.load(Ordering::Relaxed));
        (raw, self.span.check(raw).or_else(taken).unwrap_or(Index::ZERO))
    }

    /// How far the switch has got.
    #[inline(always)]
    fn hwtail(&self, published: Index) -> Index {
        // Acquire: pairs with the switch's Release of `hwtail`: it is done with the slots before.
        self.span.check(self.ktoa().hwtail.load(Ordering::Acquire)).unwrap_or(published)
    }

    /// Whether the program has moved `head`.
    #[inline(always)]
    fn has_new(&self) -> bool {
        self.head().load(Ordering::Relaxed) != self.atok().head.load(Ordering::Relaxed)
    }

    #[inline]
    fn rxsync(&self, now: Timestamp) -> Synced {
        let (mut synced, moved) = self.sync(Some(now), |_, _, _| ());
        synced.kick = moved && self.is_room_waited_for();
        synced
    }

    /// Whether the switch must be woken for slots of a receive ring that were given back.
    #[inline]
    fn is_room_waited_for(&self) -> bool {
        store_load_fence();
        must_ring(&self.rung, &self.ktoa().kern_need_kick)
    }

    /// Writes the time of a sync into the ring, in its turn. Of syncs at the same moment the latest
    /// stands; a clock that was set back counts again after a second.
    #[inline(always)]
    fn stamp(&self, now: Timestamp) {
        let word = |i: usize| {
            let offset = offset_of!(NetmapRing, ts) + i * size_of::<i64>();
            // SAFETY: an aligned word of the mapped ring; atomics may be shared.
            unsafe { &*self.ring.byte_add(offset).cast::<AtomicI64>() }
        };
        let seen = [0, 1].map(|i| word(i).load(Ordering::Relaxed));
        if now >= seen || now[0] < seen[0] - 1 {
            word(0).store(now[0], Ordering::Relaxed);
            word(1).store(now[1], Ordering::Relaxed);
        }
    }

    /// One sync, at the time `now` where the ring has one; says also whether slots were published.
    /// `prepare` gets those before they are.
    #[inline]
    fn sync(
        &self,
        now: Option<Timestamp>,
        prepare: impl FnOnce(&Self, Index, Index),
    ) -> (Synced, bool) {
        let turn = self.turn();
        if let Some(now) = now {
            self.stamp(now);
        }
        let seen = self.tail().load(Ordering::Relaxed);
        // Acquire: the program's slots come before its `head`, on whichever thread it moved it.
        let indexes = || (self.head().load(Ordering::Acquire), self.cur().load(Ordering::Relaxed));
        let Exchanged { cur, hwtail, moved } = match self.exchange(&turn, indexes, prepare) {
            Ok(exchanged) => exchanged,
            Err(OutOfOrder { published, hwtail }) => {
                // Without the turn, order says nothing of the program.
                let bad = turn.is_held();
                if bad {
                    self.start_over(published, hwtail);
                }
                return (Synced { bad, ..Synced::default() }, false);
            }
        };
        let tail = self.shown(seen, cur, hwtail).get();
        if seen != tail {
            self.news.fetch_add(1, Ordering::Relaxed);
            let order = (Ordering::Release, Ordering::Relaxed);
            // Where this fails, another sync has the turn, and has stored a later one.
            let _ = self.tail().compare_exchange(seen, tail, order.0, order.1);
        }
        (Synced { ready: cur != hwtail, ..Synced::default() }, moved)
    }

    /// Publishes the `head` and `cur` that the program says, if they are in order.
    #[inline(always)]
    fn exchange(
        &self,
        turn: &SyncTurn<'_>,
        indexes: impl FnOnce() -> (u32, u32),
        prepare: impl FnOnce(&Self, Index, Index),
    ) -> Result<Exchanged, OutOfOrder> {
        // Before the program's: another thread may move them meanwhile, as far as `tail`.
        let (raw, published) = self.published();
        let hwtail = self.hwtail(published);
        let Some((head, cur)) = self.in_order(indexes(), published, hwtail) else {
            return Err(OutOfOrder { published, hwtail });
        };
        let moved = head.get() != raw && {
            prepare(self, published, head);
            turn.is_held() && self.publish(raw, head, cur)
        };
        // Once more, after our own slots are out: the switch may have taken them already.
        Ok(Exchanged { cur, hwtail: self.hwtail(hwtail), moved })
    }

    /// Whether a sync would move `tail` now.
    fn would_show_more(&self) -> bool {
        let tail = self.tail().load(Ordering::Relaxed);
        let hwtail = self.hwtail(self.published().1);
        let cur = self.span.check(self.cur().load(Ordering::Relaxed)).unwrap_or(hwtail);
        self.shown(tail, cur, hwtail).get() != tail
    }

    /// What the program is shown as `tail` after `seen`.
    #[inline(always)]
    fn shown(&self, seen: u32, cur: Index, hwtail: Index) -> Index {
        match &self.receiver {
            None => hwtail,
            Some(receiver) => receiver.shown(seen, cur, hwtail),
        }
    }

    /// `head` and `cur`, if they are in order.
    #[inline(always)]
    fn in_order(
        &self,
        (head, cur): (u32, u32),
        published: Index,
        hwtail: Index,
    ) -> Option<(Index, Index)> {
        let (head, cur) = (self.span.check(head)?, self.span.check(cur)?);
        let from_start = |index| self.span.distance(published, index);
        let order = [head, cur, hwtail].map(from_start);
        order.is_sorted().then_some((head, cur))
    }

    #[cold]
    fn start_over(&self, published: Index, hwtail: Index) {
        self.head().store(published.get(), Ordering::Relaxed);
        self.cur().store(published.get(), Ordering::Relaxed);
        self.tail().store(hwtail.get(), Ordering::Release);
    }

    /// Publishes `head`. `false`: another holder has taken the turn and published meanwhile.
    #[inline(always)]
    fn publish(&self, raw: u32, head: Index, cur: Index) -> bool {
        let atok = self.atok();
        atok.cur.store(cur.get(), Ordering::Relaxed);
        // Release: pairs with the switch's Acquire of `head`, before it looks at the slots.
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        atok.head.compare_exchange(raw, head.get(), order, failed).is_ok()
    }

    /// Asks for a kick once the switch has got past `cur`; the caller fences, and looks once more.
    fn arm(&self, cur: impl FnOnce() -> u32) {
        // Loaded and stored in one turn: the switch takes a `cur` that other syncs have left behind
        // for one that is almost a lap ahead.
        let _turn = self.turn();
        let atok = self.atok();
        atok.cur.store(cur(), Ordering::Relaxed);
        // A number that no holder has used lately. 0 asks for nothing, 1 for every publication.
        while atok.appl_need_kick.fetch_add(1, Ordering::Relaxed).wrapping_add(1) <= Ringer::ALWAYS
        {
        }
    }

    /// Whether there are slots at `cur`, synced or not.
    fn has_slots(&self) -> bool {
        let (_, published) = self.published();
        self.hwtail(published).get() != self.cur().load(Ordering::Relaxed)
    }

    /// Fetches the data of slots that name an address of this process instead of holding it.
    #[inline]
    fn resolve(&self, from: Index, to: Index) {
        let (mut at, mut any) = (from, 0);
        while at != to {
            any |= self.read(at).flags();
            at = self.span.next(at);
        }
        if any & slot_flag::INDIRECT != 0 {
            self.fetch(from, to);
        }
    }

    #[cold]
    fn fetch(&self, from: Index, to: Index) {
        let mut at = from;
        while at != to {
            let word = self.read(at);
            if word.flags() & slot_flag::INDIRECT != 0 {
                // SAFETY: a slot of this ring.
                let address =
                    unsafe { (&raw const (*self.slots.add(at.at())).ptr).read_volatile() };
                let fetched = self.fetch_one(word, address);
                let len = if fetched { word.len() } else { 0 };
                let flags = word.flags() & !slot_flag::INDIRECT;
                // SAFETY: a slot of this ring.
                let slot = unsafe { self.slots.add(at.at()).cast::<u64>() };
                // SAFETY: mapped and aligned; the program has given it up.
                unsafe { slot.write_volatile(SlotWord::new(word.buffer(), len, flags).0) };
            }
            at = self.span.next(at);
        }
    }

    /// Copies from an address that the program says is its own. The kernel checks that it is.
    fn fetch_one(&self, word: SlotWord, address: u64) -> bool {
        let (len, buffer) = (usize::from(word.len()), self.region.check(word.buffer()));
        let Some(buffer) = buffer.filter(|_| u32::from(word.len()) <= self.stride) else {
            return false;
        };
        let Ok(address) = usize::try_from(address) else { return false };
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len };
        let local = libc::iovec { iov_base: self.region.buffer(buffer).cast(), iov_len: len };
        // SAFETY: the kernel writes at most `len` bytes into the buffer, which has room for them,
        // and reads nothing that is not mapped.
        let copied = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(copied) == Ok(len)
    }

    #[inline(always)]
    fn read(&self, at: Index) -> SlotWord {
        // SAFETY: an index of this ring; that many slots are mapped.
        SlotWord(unsafe { self.slots.add(at.at()).cast::<u64>().read_volatile() })
    }
}

#[cfg(test)]
mod tests;
