//! The client's half of a ring.
//!
//! A client trusts the daemon and the members of its own region, not more: indexes and buffer
//! numbers are still bounded, so that a broken neighbour costs wrong frames and never wrong
//! memory. Between publications the client owns its slots and their buffers alone; that is why it
//! may see them as slices.
//!
//! ```text
//!  TxRing   [head .. tail)  slots to fill     fill, then `submit`
//!  RxRing   [head .. tail)  frames to read    read, then `release`
//! ```
//!
//! A pipe has no switch: its sending end ([`TxRing::pipe`]) fills the *other end's receive ring*
//! itself. It plays the switch's part in that ring's CSB, with the words of the two sides
//! exchanged; everything else is the same code. A slot's buffer stays with the slot, so nothing
//! need be swapped.

#![allow(unsafe_code)] // UNSAFETY: slots and buffers the client owns become slices.

pub mod extra;
pub mod lent;
pub mod sync;

use std::sync::Arc;

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::format::abi::{Bell, CsbAtok, CsbKtoa, NetmapRing, Slot, slot_flag, sync_flag};
use crate::format::cursor::{Index, RingSize};
use crate::format::doorbell::{Publisher, Sleeper, store_load_fence};
use crate::format::layout::PortLayout;
use crate::format::slot::SlotWord;
use crate::memory::Memory;
use crate::region::Region;
use crate::user::extra::Buffer;

/// The words through which the two sides of a ring talk.
#[derive(Debug)]
struct Words {
    /// Index that this side publishes.
    mine: *const AtomicU32,
    /// This side's wake-up point.
    cur: *const AtomicU32,
    /// Index that the other side publishes.
    theirs: *const AtomicU32,
    /// This side's need-kick word.
    my_need: *const AtomicU32,
    /// The other side's need-kick word.
    their_need: *const AtomicU32,
    /// This side's flags of the handshake.
    flags: *const AtomicU32,
    /// Times the switch re-synchronised the ring.
    resyncs: *const AtomicU32,
    /// Two counters of a function's calls: [`CsbAtok::called`] and the one behind it.
    calls: *const AtomicU64,
}

impl Words {
    /// The words of a client: `need_kick` is the offset of the switch's need-kick word.
    fn of_client(memory: &Memory, atok: usize, ktoa: usize, need_kick: usize) -> Self {
        Self {
            mine: memory.at(atok + offset_of!(CsbAtok, head)),
            cur: memory.at(atok + offset_of!(CsbAtok, cur)),
            theirs: memory.at(ktoa + offset_of!(CsbKtoa, hwtail)),
            my_need: memory.at(atok + offset_of!(CsbAtok, appl_need_kick)),
            their_need: memory.at(need_kick),
            flags: memory.at(atok + offset_of!(CsbAtok, sync_flags)),
            resyncs: memory.at(ktoa + offset_of!(CsbKtoa, resyncs)),
            calls: memory.at(atok + offset_of!(CsbAtok, called)),
        }
    }

    /// The words of a sender that fills a receive ring itself.
    fn of_pipe(memory: &Memory, atok: usize, ktoa: usize) -> Self {
        Self {
            mine: memory.at(ktoa + offset_of!(CsbKtoa, hwtail)),
            cur: memory.at(ktoa + offset_of!(CsbKtoa, hwcur)),
            theirs: memory.at(atok + offset_of!(CsbAtok, head)),
            my_need: memory.at(ktoa + offset_of!(CsbKtoa, kern_need_kick)),
            their_need: memory.at(atok + offset_of!(CsbAtok, appl_need_kick)),
            flags: memory.at(ktoa + offset_of!(CsbKtoa, resyncs)),
            resyncs: memory.at(ktoa + offset_of!(CsbKtoa, resyncs)),
            calls: memory.at(atok + offset_of!(CsbAtok, called)),
        }
    }
}

/// A word of shared memory.
///
/// # Safety
/// The region that `p` points into outlives `'a`.
#[inline(always)]
unsafe fn word<'a>(p: *const AtomicU32) -> &'a AtomicU32 {
    // SAFETY: mapped and aligned as checked when the pointer was made; atomics may be shared.
    unsafe { &*p }
}

/// What both directions have in common.
#[derive(Debug)]
struct UserRing {
    region: Arc<Region>,
    slots: *mut Slot,
    span: RingSize,
    words: Words,
    /// First slot this side owns.
    head: Index,
    /// First slot the other side owns, as last seen.
    tail: Index,
    /// Slots from `head` to `tail`.
    owned: u32,
    /// The other side publishes the first slot it still reads: the one before it stays empty.
    keeps_gap: bool,
    publisher: Publisher,
    /// Whether this process may publish without fences: see [`crate::format::doorbell`].
    may_be_light: bool,
    sleeper: Sleeper,
}

// SAFETY: the pointers go into `region`, which is kept alive and may be used from any thread.
unsafe impl Send for UserRing {}

impl UserRing {
    /// Takes the ring at `ring` over where `words` stand.
    fn new(
        region: &Arc<Region>,
        ring: usize,
        span: RingSize,
        words: Words,
        keeps_gap: bool,
    ) -> Self {
        let slots = ring + size_of::<NetmapRing>();
        let bytes = span.slots() as usize * size_of::<Slot>();
        let mut ring = Self {
            slots: region.memory().range(slots, bytes).cast(),
            span,
            words,
            head: Index::ZERO,
            tail: Index::ZERO,
            owned: 0,
            keeps_gap,
            publisher: Publisher::default(),
            may_be_light: false,
            sleeper: Sleeper::starting_at(random()),
            region: region.clone(),
        };
        // SAFETY: the words lie in `region`, which is alive.
        let head = unsafe { word(ring.words.mine) }.load(Ordering::Acquire);
        ring.head = span.check(head).unwrap_or(Index::ZERO);
        ring.refresh();
        ring
    }

    /// Looks how far the other side has got.
    #[inline(always)]
    fn refresh(&mut self) -> u32 {
        // SAFETY: the words lie in `region`, which is alive.
        let theirs = unsafe { word(self.words.theirs) };
        // Acquire: pairs with the other side's Release, after it is done with the slots.
        if let Some(tail) = self.span.check(theirs.load(Ordering::Acquire)) {
            self.tail = if self.keeps_gap { self.span.prev(tail) } else { tail };
            self.owned = self.span.distance(self.head, self.tail);
        }
        self.owned
    }

    #[inline(always)]
    fn owned(&self) -> u32 {
        self.owned
    }

    /// The `i`-th slot that the client owns.
    #[inline(always)]
    fn slot(&self, i: u32) -> *mut u64 {
        assert!(i < self.owned, "slot {i} is not the client's");
        // SAFETY: an index of this ring; that many slots are mapped.
        unsafe { self.slots.add(self.span.add(self.head, i).at()).cast() }
    }

    #[inline(always)]
    fn word(&self, i: u32) -> SlotWord {
        // SAFETY: a slot of this ring.
        SlotWord(unsafe { self.slot(i).read_volatile() })
    }

    /// The `i`-th slot, read once.
    #[inline(always)]
    fn read(&self, i: u32) -> Slot {
        let slot = self.slot(i);
        // SAFETY: a slot of this ring.
        let (word, metadata) = unsafe {
            (
                SlotWord(slot.read_volatile()),
                crate::format::slot::metadata_word(slot.cast()).read_volatile(),
            )
        };
        Slot { buf_idx: word.buffer(), len: word.len(), flags: word.flags(), ptr: metadata }
    }

    #[inline(always)]
    fn write(&mut self, i: u32, word: SlotWord) {
        // SAFETY: a slot of this ring that the client owns.
        unsafe { self.slot(i).write_volatile(word.0) };
    }

    /// Changes what a slot says; returns what it said.
    #[inline(always)]
    fn change(&mut self, i: u32, change: impl FnOnce(SlotWord) -> SlotWord) -> SlotWord {
        let slot = self.slot(i);
        // SAFETY: a slot of this ring that the client owns.
        unsafe {
            let before = SlotWord(slot.read_volatile());
            slot.write_volatile(change(before).0);
            before
        }
    }

    /// Exchanges the buffer of the `i`-th slot with one that stands in none.
    fn swap(&mut self, i: u32, buffer: &mut Buffer) -> bool {
        let stands = self.region.check(self.word(i).buffer());
        let Some(stands) = stands.filter(|_| self.region.id() == buffer.region().id()) else {
            return false;
        };
        let new = core::mem::replace(buffer.index_mut(), stands).get();
        self.change(i, |word| {
            SlotWord::new(new, word.len(), word.flags() | slot_flag::BUF_CHANGED)
        });
        true
    }

    /// Gives up the first `count` slots. `true`: the other side sleeps, ring its doorbell.
    #[inline(always)]
    fn publish(&mut self, count: u32) -> bool {
        assert!(count <= self.owned, "more slots than the client owns");
        self.owned -= count;
        self.head = self.span.add(self.head, count);
        // SAFETY: the words lie in `region`, which is alive.
        let [mine, cur, flags, their_need] = unsafe {
            let w = &self.words;
            [word(w.mine), word(w.cur), word(w.flags), word(w.their_need)]
        };
        cur.store(self.head.get(), Ordering::Relaxed);
        let index = (mine, self.head.get());
        let flags = (flags, sync_flag::LIGHT);
        self.publisher.publish(index, flags, their_need, self.may_be_light)
    }

    /// Asks for a kick once `wanted` slots are the client's. `false`: they are already, and the
    /// request is taken back.
    fn arm(&mut self, wanted: u32) -> bool {
        let wanted = wanted.min(self.span.slots() - 1);
        let at = self.span.add(self.head, wanted.saturating_sub(1));
        // SAFETY: the words lie in `region`, which is alive.
        let [cur, flags, my_need] = unsafe {
            let w = &self.words;
            [word(w.cur), word(w.flags), word(w.my_need)]
        };
        self.publisher.calm(flags);
        cur.store(at.get(), Ordering::Relaxed);
        self.sleeper.arm(my_need);
        store_load_fence();
        let enough = self.refresh() >= wanted;
        if enough {
            self.disarm();
        }
        !enough
    }

    fn raw(&self) -> RawRing {
        let layout = self.region.layout();
        RawRing {
            slots: self.slots,
            pool: self.region.memory().range(layout.pool, 0),
            num_slots: self.span.slots(),
            stride: layout.stride,
            buffers: layout.buffers,
            head: self.head.get(),
        }
    }

    fn disarm(&self) {
        // SAFETY: the words lie in `region`, which is alive.
        self.sleeper.disarm(unsafe { word(self.words.my_need) });
    }
}

/// Addresses and sizes of a ring; they hold as long as the ring lives, `head` until it moves.
#[derive(Clone, Copy, Debug)]
pub struct RawRing {
    /// The slots.
    pub slots: *mut Slot,
    /// Buffer 0.
    pub pool: *mut u8,
    /// Number of slots.
    pub num_slots: u32,
    /// Distance and size of the buffers, in bytes.
    pub stride: u32,
    /// Number of buffers, the two reserved ones included.
    pub buffers: u32,
    /// First slot that the client owns.
    pub head: u32,
}

/// A number that a predecessor at this end hardly stopped at.
fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Whether the daemon has news for a network function ([`Bell::news`]).
///
/// [`Bell::news`]: crate::format::abi::Bell
#[derive(Debug)]
pub struct News {
    _region: Arc<Region>,
    word: *const AtomicU32,
    seen: u32,
}

// SAFETY: the word lies in a region that is kept alive and may be used from any thread.
unsafe impl Send for News {}

impl News {
    /// The news for the port at `port`; there is some at first.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Self {
        let word = region.memory().at(port.bell() + offset_of!(Bell, news));
        let news = Self { _region: region.clone(), word, seen: 0 };
        Self { seen: news.now().wrapping_sub(1), ..news }
    }

    #[inline(always)]
    fn now(&self) -> u32 {
        // SAFETY: a word of the region, which is alive; an atomic may be shared.
        unsafe { word(self.word) }.load(Ordering::Relaxed)
    }

    /// Whether the ring has moved since this was last noted.
    #[inline(always)]
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.now() != self.seen
    }

    /// Notes the news of now: to be called before the daemon is asked for it.
    pub fn note(&mut self) {
        self.seen = self.now();
    }
}

/// A transmit ring seen from its client.
#[derive(Debug)]
pub struct TxRing(UserRing);

/// A receive ring seen from its client.
#[derive(Debug)]
pub struct RxRing(UserRing);

macro_rules! both_directions {
    ($ring:ident) => {
        impl $ring {
            /// Number of slots the client owns now, after looking how far the switch has got.
            #[inline(always)]
            pub fn refresh(&mut self) -> u32 {
                self.0.refresh()
            }

            /// Number of slots the client owns, as of the last look.
            #[inline(always)]
            #[must_use]
            pub fn owned(&self) -> u32 {
                self.0.owned()
            }

            /// Number of slots of the ring; one of them is always empty.
            #[inline]
            #[must_use]
            pub fn slots(&self) -> u32 {
                self.0.span.slots()
            }

            /// Buffer index of the `i`-th owned slot, for programs that swap buffers.
            #[inline]
            #[must_use]
            pub fn buffer_index(&self, i: u32) -> u32 {
                self.0.word(i).buffer()
            }

            /// Puts another buffer into the `i`-th owned slot: forwarding inside a region.
            pub fn set_buffer_index(&mut self, i: u32, buffer: u32) {
                self.0.change(i, |word| {
                    let flags = word.flags() | slot_flag::BUF_CHANGED;
                    SlotWord::new(buffer, word.len(), flags)
                });
            }

            /// Exchanges the buffer of the `i`-th owned slot with an extra one; length and flags
            /// of the slot stay. `false`: they are not in the same memory, or a broken neighbour
            /// has spoilt the slot.
            ///
            /// # Panics
            /// If the client does not own that slot.
            #[inline]
            #[must_use]
            pub fn swap(&mut self, i: u32, buffer: &mut Buffer) -> bool {
                self.0.swap(i, buffer)
            }

            /// The whole buffer of the `i`-th owned slot; a received frame is its beginning.
            ///
            /// # Panics
            /// If the client does not own that slot.
            #[inline(always)]
            #[must_use]
            pub fn buffer(&mut self, i: u32) -> &mut [u8] {
                buffer_mut(&self.0, self.0.word(i).buffer())
            }

            /// The `i`-th owned slot, read once, so that its fields belong together. The buffer
            /// that it names is checked where it is used.
            ///
            /// # Panics
            /// If the client does not own that slot.
            #[inline(always)]
            #[must_use]
            pub fn slot(&self, i: u32) -> Slot {
                self.0.read(i)
            }

            /// The whole buffer that a slot of this ring named when it was read; empty where there
            /// is no such buffer.
            #[inline(always)]
            #[must_use]
            pub fn buffer_of(&mut self, slot: &Slot) -> &mut [u8] {
                buffer_mut(&self.0, slot.buf_idx)
            }

            /// Flags of the `i`-th owned slot.
            #[inline]
            #[must_use]
            pub fn flags(&self, i: u32) -> u16 {
                self.0.word(i).flags()
            }

            /// The [metadata](crate::kring::metadata) of the `i`-th owned slot.
            ///
            /// # Panics
            /// If the client does not own that slot.
            #[inline(always)]
            #[must_use]
            pub fn metadata(&self, i: u32) -> u64 {
                // SAFETY: a slot of this ring, which is mapped.
                unsafe { crate::format::slot::metadata_word(self.0.slot(i).cast()).read_volatile() }
            }

            /// Asks for a kick once `wanted` slots are owned. `false`: they are already, do not
            /// sleep. Call [`Self::disarm`] after waking up.
            #[must_use]
            pub fn arm(&mut self, wanted: u32) -> bool {
                self.0.arm(wanted)
            }

            /// Takes the request for a kick back.
            pub fn disarm(&self) {
                self.0.disarm();
            }

            /// How often the switch re-synchronised this ring because of an index out of range.
            #[must_use]
            pub fn resyncs(&self) -> u32 {
                // SAFETY: the words lie in the ring's region, which is alive.
                unsafe { word(self.0.words.resyncs) }.load(Ordering::Relaxed)
            }

            /// Allows publications without fences: this process is registered for the worker's
            /// barrier (`membarrier(2)`, `REGISTER_GLOBAL_EXPEDITED`).
            pub fn allow_light(&mut self) {
                self.0.may_be_light = !self.0.keeps_gap;
            }

            /// Where slots and buffers lie, for programs that cannot use slices: the C ABI.
            #[must_use]
            pub fn raw(&self) -> RawRing {
                self.0.raw()
            }

            /// The region that the buffers are in.
            #[must_use]
            pub fn region(&self) -> &Arc<Region> {
                &self.0.region
            }
        }
    };
}
both_directions!(TxRing);
both_directions!(RxRing);

impl TxRing {
    /// Transmit ring `ring` of a port.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout, ring: u16) -> Self {
        let at = usize::from(ring);
        let (atok, ktoa) = (port.atok(at), port.ktoa(at));
        let words = Words::of_client(region.memory(), atok, ktoa, port.bell());
        Self(UserRing::new(region, port.ring(at), port.counts().tx_slots, words, false))
    }

    /// The sending end of a pipe: fills receive ring `ring` of `peer`. It never goes light.
    #[must_use]
    pub fn pipe(region: &Arc<Region>, peer: &PortLayout, ring: u16) -> Self {
        let at = usize::from(peer.counts().tx_rings) + usize::from(ring);
        let words = Words::of_pipe(region.memory(), peer.atok(at), peer.ktoa(at));
        Self(UserRing::new(region, peer.ring(at), peer.counts().rx_slots, words, true))
    }

    /// Says what the `i`-th free slot holds.
    ///
    /// # Panics
    /// If the client does not own that slot.
    #[inline(always)]
    pub fn set(&mut self, i: u32, len: u16, flags: u16) {
        self.0.change(i, |word| SlotWord::new(word.buffer(), len, flags));
    }

    /// Gives the frame in the `i`-th free slot a [metadata](crate::kring::metadata).
    ///
    /// # Panics
    /// If the client does not own that slot.
    #[inline(always)]
    pub fn set_metadata(&mut self, i: u32, metadata: u64) {
        // SAFETY: a slot of this ring, which is mapped and the client's.
        unsafe {
            crate::format::slot::metadata_word(self.0.slot(i).cast()).write_volatile(metadata);
        };
    }

    /// The buffer of the `i`-th free slot, whose slot will say `len` and no flags.
    #[inline(always)]
    pub fn frame(&mut self, i: u32, len: u16) -> &mut [u8] {
        let word = self.0.change(i, |word| SlotWord::new(word.buffer(), len, 0));
        &mut buffer_mut(&self.0, word.buffer())[..usize::from(len)]
    }

    /// Hands the first `count` slots to the switch. `true`: it sleeps, ring its doorbell.
    #[inline(always)]
    #[must_use]
    pub fn submit(&mut self, count: u32) -> bool {
        self.0.publish(count)
    }

    /// Whether the switch has taken all submitted frames.
    #[must_use]
    pub fn is_drained(&mut self) -> bool {
        self.0.refresh() == self.0.span.slots() - 1
    }
}

impl RxRing {
    /// Receive ring `ring` of a port.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout, ring: u16) -> Self {
        let counts = port.counts();
        let at = usize::from(counts.tx_rings) + usize::from(ring);
        let (atok, ktoa) = (port.atok(at), port.ktoa(at));
        let need_kick = ktoa + offset_of!(CsbKtoa, kern_need_kick);
        let words = Words::of_client(region.memory(), atok, ktoa, need_kick);
        Self(UserRing::new(region, port.ring(at), counts.rx_slots, words, false))
    }

    /// The bytes of the `i`-th received slot; empty where the slot was passed over.
    ///
    /// # Panics
    /// If the client does not own that slot.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self, i: u32) -> &[u8] {
        let word = self.0.word(i);
        let buffer = buffer_mut(&self.0, word.buffer());
        &buffer[..usize::from(word.len()).min(buffer.len())]
    }

    /// A function of the same thread handed over this many frames by a call, and the one behind
    /// this port passed on this many of them.
    pub fn count_calls(&self, called: u32, passed: u32) {
        for (at, frames) in [called, passed].into_iter().enumerate() {
            // SAFETY: two words of the ring's region, which is alive; atomics may be shared.
            let counter = unsafe { &*self.0.words.calls.add(at) };
            let before = counter.load(Ordering::Relaxed);
            counter.store(before.wrapping_add(frames.into()), Ordering::Relaxed);
        }
    }

    /// Puts `sent` into the `j`-th free slot of `tx`, which is of the same region, and that one's
    /// buffer into the `i`-th received slot, whose buffer `sent` names: forwarding inside a region.
    ///
    /// # Panics
    /// If the client does not own one of the slots.
    #[inline(always)]
    pub fn exchange(&mut self, i: u32, tx: &mut TxRing, j: u32, sent: Slot) {
        let flags = sent.flags | slot_flag::BUF_CHANGED;
        let spare = tx.0.word(j).buffer();
        tx.0.write(j, SlotWord::new(sent.buf_idx, sent.len, flags));
        tx.set_metadata(j, sent.ptr);
        self.0.write(i, SlotWord::new(spare, sent.len, flags));
    }

    /// Returns the first `count` slots to the switch. `true`: it waits for room, ring its doorbell.
    #[inline(always)]
    #[must_use]
    pub fn release(&mut self, count: u32) -> bool {
        self.0.publish(count)
    }
}

/// The buffer that a slot names; an empty one where the number is not the region's.
#[inline(always)]
#[allow(clippy::mut_from_ref)] // reason: buffers lie in shared memory, not behind the reference.
fn buffer_mut(ring: &UserRing, number: u32) -> &mut [u8] {
    let Some(index) = ring.region.check(number) else {
        return &mut [];
    };
    let size = ring.region.stride() as usize;
    // SAFETY: a mapped buffer of that size. The client owns the slot: the switch does not touch
    // its buffer before the slot is given up, which needs the ring mutably. Members of one trust
    // group promise each other the same.
    unsafe { core::slice::from_raw_parts_mut(ring.region.buffer(index), size) }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::fixture::{BothHalves, ports};
    use crate::kring::metadata::{Functions, metadata_run};

    fn send(from: &mut BothHalves, to: &mut BothHalves) {
        from.tx.frame(0, 60).fill(1);
        let _ = from.tx.submit(1);
        from.host.sync_tx();
        to.host.rx[0].sync();
        let (tx, rx) = (&mut from.host.tx[0], &mut to.host.rx[0]);
        let run =
            metadata_run(tx, rx, None, Functions { sender: true, receiver: true }, 1, |_| Some(9));
        assert_eq!(run.frames, 1);
        to.host.rx[0].publish();
        assert_eq!(to.rx.refresh(), 1);
    }

    #[test]
    fn slots_are_exchanged_with_what_is_said_of_them() {
        let [mut a, mut b] = ports();
        send(&mut a, &mut b);
        let (spare, slot) = (b.tx.buffer_index(2), b.rx.slot(0));
        assert_eq!((slot.len, slot.ptr, b.rx.buffer_of(&slot)[59]), (60, 9, 1));
        let sent = Slot { len: 50, flags: 3 << 8, ptr: 7, ..slot };
        b.rx.exchange(0, &mut b.tx, 2, sent);
        assert_eq!((b.rx.buffer_index(0), b.rx.metadata(0)), (spare, 9));
        assert_eq!(b.tx.slot(2), Slot { flags: 3 << 8 | slot_flag::BUF_CHANGED, ..sent });
    }

    #[test]
    fn what_a_neighbour_writes_after_a_slot_was_read_is_not_used() {
        let [mut a, mut b] = ports();
        send(&mut a, &mut b);
        let slot = b.rx.slot(0);
        b.rx.set_buffer_index(0, u32::MAX);
        assert_eq!(b.rx.buffer_of(&slot)[59], 1);
        let spoilt = b.rx.slot(0);
        assert!(b.rx.buffer_of(&spoilt).is_empty(), "no such buffer");
        b.rx.exchange(0, &mut b.tx, 0, slot);
        assert_eq!(b.tx.slot(0).buf_idx, slot.buf_idx);
    }
}
