//! The switch's half of a ring.
//!
//! A kring (netmap's word for the kernel's private state of a ring) keeps the truth about its ring
//! outside of the region: where the switch has got to, and how far the client allowed it to go.
//! What the client wrote is read once, bounded, and only then used:
//!
//! - an index out of range *re-synchronises* the ring: it is treated as if the client had
//!   published nothing, and counted in [`CsbKtoa::resyncs`]; other ports notice nothing;
//! - a slot with a buffer or a length out of range is passed over and reported to the caller.
//!
//! ```text
//!  TxKring    [next .. head)   frames the client has published and the switch has not taken
//!  RxKring    [head .. tail)   frames the client has not returned yet
//!             [tail .. head-1) room
//! ```

#![allow(unsafe_code)] // UNSAFETY: slots are read and written through raw pointers.

#[cfg(all(test, not(miri)))] // Millions of combinations.
mod bounds;
pub mod exchange;
pub mod krings;
pub mod metadata;
mod mirror;
mod offsets;
mod put;
mod recovery;
pub mod run;
mod take;
mod vnet;

pub use take::{Single, Taken};
pub use vnet::VnetHeader;

use std::sync::Arc;

use core::sync::atomic::Ordering;

use crate::format::abi::{CsbAtok, CsbKtoa, FIRST_BUFFER, NetmapRing, Slot, slot_flag, sync_flag};
use crate::format::cursor::{Index, RingSize};
use crate::format::doorbell::{Ringer, Sleeper};
use crate::format::layout::{BufferIndex, PortLayout};
use crate::format::slot::SlotWord;
use crate::frame::{Frag, VNET_HEADER_MAX};
use crate::group::owners::Owner;
use crate::memory::copy;
use crate::region::Region;

/// Shortest frame: two addresses and a type.
pub const FRAME_MIN: u16 = 14;
/// Shortest first piece of a chain: the header with a tag, so that it is never cut in two.
pub const CHAIN_HEAD_MIN: u16 = 18;

/// Why a slot cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSlot {
    /// The buffer index is not one of the region's.
    Buffer,
    /// The length exceeds the buffer, or the whole frame the limit.
    TooLong,
    /// The frame is shorter than an Ethernet header.
    TooShort,
    /// The slot has a flag that the switch cannot honour.
    Flags,
    /// The chain of fragments is too long, or its end was not published with it.
    Chain,
}

/// Addresses and sizes of a ring and its buffers, copied out once for a loop: so the compiler knows
/// that no write to a buffer changes them.
#[derive(Clone, Copy)]
pub(crate) struct RingView {
    slots: *mut Slot,
    pool: *mut u8,
    stride: u32,
    usable: u32,
    pub(crate) span: RingSize,
}

/// A single frame, in one slot, that passed every check.
#[derive(Clone, Copy)]
pub(crate) struct SlotFrame {
    pub(crate) data: *mut u8,
    pub(crate) buffer: u32,
    pub(crate) len: u16,
}

impl RingView {
    /// Reads a slot, once.
    #[inline(always)]
    pub(crate) fn read(&self, i: Index) -> SlotWord {
        // SAFETY: an index is below `span`, and that many slots are mapped.
        SlotWord(unsafe { self.slots.add(i.at()).cast::<u64>().read_volatile() })
    }

    #[inline(always)]
    pub(crate) fn write(&self, i: Index, word: SlotWord) {
        // SAFETY: as in `read`; no reference to a slot exists.
        unsafe { self.slots.add(i.at()).cast::<u64>().write_volatile(word.0) }
    }

    /// Address of the buffer that a peer named, aligned to a line; `None` if there is none.
    #[inline(always)]
    pub(crate) fn buffer(&self, raw: u32) -> Option<*mut u8> {
        // One comparison: indexes below the first wrap to huge numbers.
        if raw.wrapping_sub(FIRST_BUFFER) >= self.usable {
            return None;
        }
        // SAFETY: a usable buffer lies in the pool, which is mapped.
        Some(unsafe { self.pool.add(raw as usize * self.stride as usize) })
    }

    /// The frame in a slot, if it is a single one: no flag that needs care, all numbers in range.
    #[inline(always)]
    pub(crate) fn single(&self, word: SlotWord) -> Option<SlotFrame> {
        const PLAIN: u16 = slot_flag::BUF_CHANGED | slot_flag::REPORT;
        let len = word.len();
        let fits = u32::from(len.wrapping_sub(FRAME_MIN)) <= self.stride - u32::from(FRAME_MIN);
        if !fits || word.flags() & !PLAIN != 0 {
            return None;
        }
        debug_assert!(len >= FRAME_MIN && u32::from(len) <= self.stride);
        Some(SlotFrame { data: self.buffer(word.buffer())?, buffer: word.buffer(), len })
    }

    /// Whether a frame fits one slot.
    #[inline(always)]
    pub(crate) fn holds(&self, len: u16) -> bool {
        u32::from(len) <= self.stride
    }
}

/// What both directions have in common.
#[derive(Debug)]
pub(crate) struct Kring {
    pub(crate) region: Arc<Region>,
    pub(crate) owner: Owner,
    slots: *mut Slot,
    pub(crate) span: RingSize,
    atok: *const CsbAtok,
    ktoa: *const CsbKtoa,
    ringer: Ringer,
    bad_index: Option<u32>,
    resyncs: u32,
    /// Bits of `Slot::ptr` that say where frames begin; 0: at the start of their buffers. Rings
    /// that have some are staged frame by frame, and cost others nothing.
    offset_mask: u64,
    /// No frame begins behind this place in its buffer, as the client promises.
    offset_max: u32,
    /// Bytes of the virtio-net header in front of each frame, likewise.
    vnet_header_len: u8,
}

// SAFETY: the pointers go into `region`, which is kept alive and may be used from any thread.
unsafe impl Send for Kring {}

impl Kring {
    fn new(region: &Arc<Region>, port: &PortLayout, ring: usize, span: RingSize) -> Self {
        let memory = region.memory();
        let slots = port.ring(ring) + size_of::<NetmapRing>();
        let bytes = span.slots() as usize * size_of::<Slot>();
        Self {
            slots: memory.range(slots, bytes).cast(),
            span,
            atok: memory.at(port.atok(ring)),
            ktoa: memory.at(port.ktoa(ring)),
            ringer: Ringer::default(),
            bad_index: None,
            resyncs: 0,
            offset_mask: 0,
            offset_max: 0,
            vnet_header_len: 0,
            owner: Owner::of(port),
            region: region.clone(),
        }
    }

    #[inline(always)]
    fn view(&self) -> RingView {
        let layout = self.region.layout();
        RingView {
            slots: self.slots,
            pool: self.region.pool(),
            stride: layout.stride,
            usable: layout.buffers - FIRST_BUFFER,
            span: self.span,
        }
    }

    #[inline(always)]
    fn atok(&self) -> &CsbAtok {
        // SAFETY: a CSB line of `region`; atomics may be shared with the client.
        unsafe { &*self.atok }
    }

    #[inline(always)]
    fn ktoa(&self) -> &CsbKtoa {
        // SAFETY: a CSB line of `region`; atomics may be shared with the client.
        unsafe { &*self.ktoa }
    }

    #[inline(always)]
    pub(crate) fn read(&self, i: Index) -> SlotWord {
        self.view().read(i)
    }

    #[inline(always)]
    pub(crate) fn write(&self, i: Index, word: SlotWord) {
        self.view().write(i, word);
    }

    /// Whether frames begin elsewhere than at the start of their buffers.
    #[inline(always)]
    fn is_staged(&self) -> bool {
        self.offset_mask | u64::from(self.vnet_header_len) != 0
    }

    /// Looks whether the client says where frames begin.
    #[inline(always)]
    fn look_for_offsets(&mut self) {
        // Relaxed: on the line of `head`, which was loaded with Acquire just before.
        let flags = self.atok().sync_flags.load(Ordering::Relaxed);
        if (flags & sync_flag::OFFSETS != 0) != (self.offset_mask != 0) {
            self.change_offsets(flags);
        }
    }

    #[inline]
    fn is_light(&self) -> bool {
        // Acquire: pairs with `Publisher::calm`.
        self.atok().sync_flags.load(Ordering::Acquire) & sync_flag::LIGHT != 0
    }

    pub(crate) fn frag(&self, at: Index, word: SlotWord) -> Result<Frag, BadSlot> {
        let region = &self.region;
        let buffer = region.check(word.buffer()).ok_or(BadSlot::Buffer)?;
        let offset = self.offset(at).ok_or(BadSlot::TooLong)?;
        if u32::from(word.len()) > region.stride() - u32::from(offset) {
            return Err(BadSlot::TooLong);
        }
        if word.flags() & slot_flag::INDIRECT != 0 {
            return Err(BadSlot::Flags);
        }
        Ok(Frag { buffer, len: word.len(), offset })
    }

    /// Counts a bad index once for each value, so that a stuck client is not counted for ever.
    #[cold]
    fn resync(&mut self, raw: u32) {
        if self.bad_index != Some(raw) {
            self.bad_index = Some(raw);
            self.count_resync();
        }
    }

    fn count_resync(&mut self) {
        self.resyncs = self.resyncs.wrapping_add(1);
        self.ktoa().resyncs.store(self.resyncs, Ordering::Relaxed);
    }
}

/// A transmit ring seen from the switch: frames come out of it.
#[derive(Debug)]
pub struct TxKring {
    pub(crate) ring: Kring,
    pub(crate) next: Index,
    pub(crate) head: Index,
    /// The header that was in front of the last frame.
    vnet_header: VnetHeader,
}

impl TxKring {
    /// Transmit ring `ring` of a freshly formatted port.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout, ring: u16) -> Self {
        let span = port.counts().tx_slots;
        let ring = Kring::new(region, port, usize::from(ring), span);
        Self { ring, next: Index::ZERO, head: Index::ZERO, vnet_header: [0; VNET_HEADER_MAX] }
    }

    /// The region that its buffers are in.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.ring.region
    }

    /// The port that gets the buffers which are put into its slots.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Owner {
        self.ring.owner
    }

    /// Looks how far the client has published; returns the number of slots to take.
    #[inline]
    pub fn sync(&mut self) -> u32 {
        // Acquire: pairs with the client's Release of `head`, after its slots.
        let raw = self.ring.atok().head.load(Ordering::Acquire);
        match self.ring.span.check(raw) {
            Some(head) => self.head = head,
            None => self.ring.resync(raw),
        }
        self.ring.look_for_offsets();
        self.ready()
    }

    /// Slots published and not taken, as of the last [`TxKring::sync`].
    #[inline]
    #[must_use]
    pub fn ready(&self) -> u32 {
        self.ring.span.distance(self.next, self.head)
    }

    /// Header of the next frame, if that is a single one.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<u128> {
        if self.ready() == 0 || self.ring.is_staged() {
            return None;
        }
        let view = self.ring.view();
        let frame = view.single(view.read(self.next))?;
        // SAFETY: `plain` hands out aligned buffers of at least one line.
        Some(copy::number(unsafe { copy::header(frame.data) }))
    }

    #[inline(always)]
    pub(crate) fn view(&self) -> RingView {
        self.ring.view()
    }

    /// The next slot to be taken.
    #[inline(always)]
    #[must_use]
    pub fn next_index(&self) -> Index {
        self.next
    }

    #[inline(always)]
    pub(crate) fn set_next(&mut self, next: Index) {
        debug_assert!(self.is_ready(next), "what is taken was published");
        self.next = next;
    }

    /// Puts another buffer into slot `i`, which becomes the client's. The length stays, as where
    /// the frame was copied.
    #[inline(always)]
    pub(crate) fn replace(&self, i: Index, buffer: u32) {
        self.ring.region.owners().give(buffer, self.ring.owner);
        let len = self.ring.read(i).len();
        self.ring.write(i, SlotWord::new(buffer, len, slot_flag::BUF_CHANGED));
    }

    /// Publishes how far the switch has taken slots: they are the client's again.
    #[inline]
    pub fn publish(&mut self) {
        let ktoa = self.ring.ktoa();
        ktoa.hwcur.store(self.next.get(), Ordering::Relaxed);
        // Release: pairs with the client's Acquire of `hwtail`, before it reuses the slots.
        ktoa.hwtail.store(self.ring.span.prev(self.next).get(), Ordering::Release);
    }

    /// Whether the client waits for room, and there is as much as it asked for. Call after a
    /// store-load fence that follows [`TxKring::publish`].
    #[inline]
    pub fn wants_kick(&mut self) -> bool {
        let need = self.ring.atok().appl_need_kick.load(Ordering::Relaxed);
        need != 0 && self.enough_room() && self.must_ring()
    }

    #[inline]
    fn must_ring(&mut self) -> bool {
        // SAFETY: a CSB line of the region, which `self.ring` keeps alive.
        let atok = unsafe { &*self.ring.atok };
        self.ring.ringer.must_ring(&atok.appl_need_kick)
    }

    /// Whether `hwtail` has passed the client's wake-up point.
    fn enough_room(&self) -> bool {
        let (span, tail) = (self.ring.span, self.ring.span.prev(self.next));
        let cur = self.ring.atok().cur.load(Ordering::Relaxed);
        let room = span.distance(self.head, tail);
        span.check(cur).is_none_or(|cur| span.distance(self.head, cur) < room.max(1))
    }

    /// Whether the client publishes without fences.
    #[inline]
    #[must_use]
    pub fn is_light(&self) -> bool {
        self.ring.is_light()
    }

    /// How often this ring was re-synchronised.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        self.ring.resyncs
    }
}

/// A receive ring seen from the switch: frames go into it.
#[derive(Debug)]
pub struct RxKring {
    pub(crate) ring: Kring,
    tail: Index,
    /// Slots before it are free.
    pub(crate) head: Index,
    /// How far the client has returned slots. Beyond `head` only while a monitor mirrors the ring
    /// and gets them before they are free ([`mirror`]).
    pub(crate) returned: Index,
    pub(crate) mirrored: bool,
    /// Free slots that no worker has reserved.
    room: u32,
    /// Free slots that workers have reserved.
    reserved: u32,
    /// Slots filled so far.
    filled: u64,
    waiter: Sleeper,
}

/// Why a frame was not put into a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring is full.
    NoRoom,
    /// The client left a buffer index in the slot that is not the region's; the slot is skipped.
    BadSlot,
    /// The frame needs more slots than the ring has.
    TooLong,
}

impl RxKring {
    /// Receive ring `ring` of a freshly formatted port.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout, ring: u16) -> Self {
        let counts = port.counts();
        let at = usize::from(counts.tx_rings) + usize::from(ring);
        let ring = Kring::new(region, port, at, counts.rx_slots);
        let waiter = Sleeper::default();
        let zero = Index::ZERO;
        let (tail, head, returned) = (zero, zero, zero);
        Self {
            ring,
            tail,
            head,
            returned,
            mirrored: false,
            room: 0,
            reserved: 0,
            filled: 0,
            waiter,
        }
    }

    /// The region that its buffers are in.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.ring.region
    }

    /// The port that gets the buffers which are put into its slots.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Owner {
        self.ring.owner
    }

    /// Looks which slots the client has returned; returns the number of slots that are free, or
    /// will be once a monitor has got them. Reserved ones do not count.
    #[inline]
    pub fn sync(&mut self) -> u32 {
        // Acquire: pairs with the client's Release of `head`: it has read the slots before it.
        let raw = self.ring.atok().head.load(Ordering::Acquire);
        let span = self.ring.span;
        match span.check(raw).filter(|&head| span.contains(self.returned, self.tail, head)) {
            Some(head) => self.returned = head,
            None => self.ring.resync(raw),
        }
        if !self.mirrored {
            self.head = self.returned;
        }
        self.count_room();
        self.ring.look_for_offsets();
        (span.slots() - 1 - span.distance(self.returned, self.tail)).saturating_sub(self.reserved)
    }

    #[inline(always)]
    pub(crate) fn count_room(&mut self) {
        let span = self.ring.span;
        let free = span.slots() - 1 - span.distance(self.head, self.tail);
        // A client that takes `head` back has less room than it had.
        self.room = free.saturating_sub(self.reserved);
    }

    /// Keeps so many of the free slots for frames that are staged, whatever is delivered before
    /// them from the same batch or by other workers. [`RxKring::release`] gives the slots back just
    /// before these frames are put in.
    #[inline]
    pub fn reserve(&mut self, slots: u32) {
        // Slots that a monitor will free may be reserved, too.
        self.room = self.room.saturating_sub(slots);
        self.reserved += slots;
        debug_assert!(self.reserved <= self.capacity(), "a ring has no more slots than it has");
    }

    /// Takes back what [`RxKring::reserve`] did.
    #[inline]
    pub fn release(&mut self, slots: u32) {
        debug_assert!(slots <= self.reserved, "slots that are reserved are released");
        self.reserved -= slots;
        self.count_room();
    }

    /// Slots with frames that the client has not returned, as of the last [`RxKring::sync`].
    #[must_use]
    pub fn unread(&self) -> u32 {
        self.ring.span.distance(self.returned, self.tail)
    }

    /// Free slots that are not reserved. The client may have returned more since the last
    /// [`RxKring::sync`].
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Free slots of a ring that is empty.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.span.slots() - 1
    }

    /// The next free slot's buffer; `Err` if the client spoilt it, and the slot is passed over.
    #[inline(always)]
    pub(crate) fn free_buffer(&mut self) -> Result<BufferIndex, Refused> {
        debug_assert!(self.room > 0);
        let raw = self.ring.read(self.tail).buffer();
        let found = self.ring.region.check(raw);
        if found.is_none() {
            self.pass_over();
        }
        found.ok_or(Refused::BadSlot)
    }

    /// Passes over the next free slot, which is spoilt: the client gets it back with no frame in
    /// it, and finds the ring re-synchronised.
    #[cold]
    pub(crate) fn pass_over(&mut self) {
        let raw = self.ring.read(self.tail).buffer();
        self.ring.count_resync();
        self.fill(SlotWord::new(raw, 0, 0));
    }

    /// Fills the next free slot.
    #[inline(always)]
    pub(crate) fn fill(&mut self, word: SlotWord) {
        debug_assert!(self.room > 0, "a full ring takes no frame");
        self.ring.write(self.tail, word);
        self.filled(self.ring.span.next(self.tail), 1);
    }

    /// Publishes the slots that have been filled: they are the client's.
    #[inline]
    pub fn publish(&mut self) {
        let ktoa = self.ring.ktoa();
        ktoa.hwcur.store(self.head.get(), Ordering::Relaxed);
        // Release: pairs with the client's Acquire of `hwtail`, before it reads the slots.
        ktoa.hwtail.store(self.tail.get(), Ordering::Release);
    }

    /// Whether the client is asleep. Call after a store-load fence that follows
    /// [`RxKring::publish`].
    #[inline]
    pub fn wants_kick(&mut self) -> bool {
        // SAFETY: a CSB line of the region, which `self.ring` keeps alive.
        let atok = unsafe { &*self.ring.atok };
        self.ring.ringer.must_ring(&atok.appl_need_kick)
    }

    /// Asks the client to kick when it returns slots. The caller fences, and looks once more.
    pub fn want_room(&mut self) {
        // SAFETY: a CSB line of the region, which `self.ring` keeps alive.
        let ktoa = unsafe { &*self.ring.ktoa };
        self.waiter.arm(&ktoa.kern_need_kick);
    }

    /// Takes the request back, unless a monitor waits for returned slots.
    pub fn found_room(&self) {
        if !self.mirrored {
            self.waiter.disarm(&self.ring.ktoa().kern_need_kick);
        }
    }

    /// Whether the client publishes without fences.
    #[must_use]
    pub fn is_light(&self) -> bool {
        self.ring.is_light()
    }

    /// How often this ring was re-synchronised.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        self.ring.resyncs
    }

    #[inline(always)]
    pub(crate) fn view(&self) -> RingView {
        self.ring.view()
    }

    /// The first slot that is not filled.
    #[inline(always)]
    #[must_use]
    pub fn tail(&self) -> Index {
        self.tail
    }

    /// Notes that the next `count` free slots have been filled; `tail` comes after them.
    #[inline(always)]
    pub(crate) fn filled(&mut self, tail: Index, count: u32) {
        debug_assert!(count <= self.room, "no more slots are filled than are free");
        self.room -= count;
        self.filled += u64::from(count);
        self.tail = tail;
    }

    /// Slots that the switch has filled so far, whichever worker did.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.filled
    }

    /// Number of slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.ring.span.slots()
    }

    /// Whether the buffer of the `i`-th free slot is one of the region's.
    pub(crate) fn is_free_slot_good(&self, i: u32) -> bool {
        let word = self.ring.read(self.ring.span.add(self.tail, i));
        self.ring.region.check(word.buffer()).is_some()
    }
}
