//! A queue in front of a guest's ring, for guests whose rings are too short for bursts.
//!
//! # Theory of operation
//!
//! ```text
//!   while none waits:   switch ───────────────────────► ring
//!   else:               switch ──► filling ⇄ draining ──► ring, when the guest has made room
//! ```
//!
//! A frame that finds no room in the ring is copied into the queue, with its pending offload, and
//! those behind it follow it there. Each turn of the port takes up where the ring was full; while
//! frames wait, the port asks the guest for a kick when it makes room, and looks once more behind
//! the fence of its sender's turn ([`Adapter::flush`]), so that no room is missed.
//!
//! *Memory.* The queue has it from the beginning, in two halves: one is drained while the other is
//! filled. Each half has room for all frames that may wait, of [`DEFAULT_STRIDE`] bytes; a longer
//! one takes the room of several.
//!
//! *Counters.* A frame counts as delivered when it enters the queue. When the guest goes, the
//! frames that wait are lost, and counted as `link_down`, too; when the port is deleted, they are
//! lost without a count.
//!
//! A frame that is larger than a ring can have room for is dropped as without a queue:
//! [`Adapter::send_until_full`] tells the two apart.

use std::any::Any;
use std::io;

use packet::offload::{Offloads, PendingOffload};
use protocol::QUEUE_FRAMES_MAX;
use ring::frame::FRAME_MAX;
use ring::intake::{Intake, STANDARD_FRAME};
use ring::layout::DEFAULT_STRIDE;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent, TagAction};

/// Slots of the usual length that the longest frame takes.
const LONGEST: u32 = FRAME_MAX.div_ceil(DEFAULT_STRIDE);

/// A port with a queue in front of it.
pub struct Queue {
    inner: Box<dyn Adapter>,
    memory: QueueMemory,
    /// Frames that wait.
    waiting: u32,
    /// Senders wait for room here, too.
    others_wait: bool,
    /// The guest has got frames that waited, and may have to be told.
    has_drained: bool,
    /// What became of frames that waited, to be counted in the next turn.
    lost: Drops,
    /// A frame on its way into the queue.
    bytes: Vec<u8>,
}

/// The memory of a queue.
pub struct QueueMemory {
    frames: u32,
    draining: Half,
    filling: Half,
}

/// One half of it: frames that are put behind each other, and taken from the first on.
struct Half {
    intake: Intake,
    batch: Batch,
    list: Vec<Delivery>,
    /// The first that was not taken.
    next: usize,
}

impl QueueMemory {
    /// Memory for so many frames, at most [`QUEUE_FRAMES_MAX`]; 0 for a queue that takes none.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files.
    pub fn new(frames: u32) -> io::Result<Self> {
        assert!(frames <= QUEUE_FRAMES_MAX, "a queue is bounded");
        Ok(Self { frames, draining: Half::new(frames)?, filling: Half::new(frames)? })
    }

    /// The bytes that it takes.
    #[must_use]
    pub fn bytes(frames: u32) -> u64 {
        if frames == 0 { 0 } else { 2 * u64::from(frames + LONGEST) * u64::from(DEFAULT_STRIDE) }
    }
}

impl Half {
    fn new(frames: u32) -> io::Result<Self> {
        let frames = frames.max(1);
        let capacity = usize::try_from(frames).expect("a queue is bounded");
        let intake = Intake::new(frames, STANDARD_FRAME)?;
        let list = Vec::with_capacity(capacity);
        let mut half = Self { intake, batch: Batch::new(capacity), list, next: 0 };
        half.clear();
        Ok(half)
    }

    fn clear(&mut self) {
        self.intake.clear();
        self.batch.restart(self.intake.region());
        self.list.clear();
        self.next = 0;
    }

    fn rest(&self) -> &[Delivery] {
        &self.list[self.next..]
    }

    /// Puts a frame behind the others.
    fn put(&mut self, bytes: &[u8], left: Option<PendingOffload>) -> Result<(), DropReason> {
        if !self.batch.has_room() || !self.intake.fits(bytes.len()) {
            return Err(DropReason::NoRoom);
        }
        let (first, frame) = (self.batch.frags().len(), self.batch.frames().len());
        let len = u32::try_from(bytes.len()).map_err(|_| DropReason::TooLong)?;
        self.intake.push(&[bytes], self.batch.frags());
        self.batch.push_received(first, len);
        left.map_or(Ok(()), |left| self.batch.push_offload(left))
            .map_err(|_| DropReason::Offload)?;
        let frame = u16::try_from(frame).expect("a batch is small");
        self.list.push(Delivery { frame, tag: TagAction::Keep });
        Ok(())
    }
}

impl Queue {
    /// A queue in front of a port.
    #[must_use]
    pub fn before(inner: Box<dyn Adapter>, memory: QueueMemory) -> Self {
        Self {
            inner,
            memory,
            waiting: 0,
            others_wait: false,
            has_drained: false,
            lost: Drops::default(),
            bytes: Vec::with_capacity(FRAME_MAX as usize),
        }
    }

    /// Replaces the memory by another one, which gets the frames that wait, as far as they have
    /// room there. Returns the old one.
    pub fn resize(&mut self, memory: QueueMemory) -> QueueMemory {
        let old = std::mem::replace(&mut self.memory, memory);
        self.waiting = 0;
        for half in [&old.draining, &old.filling] {
            for &delivery in half.rest() {
                if let Err(why) = self.enqueue(&half.batch, delivery) {
                    self.lost.add(why, 1);
                }
            }
        }
        old
    }

    /// Puts a frame into the queue; returns its length.
    fn enqueue(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        if self.waiting >= self.memory.frames {
            return Err(DropReason::NoRoom);
        }
        self.bytes.clear();
        batch.append(delivery, &mut self.bytes);
        self.memory.filling.put(&self.bytes, batch.offload(delivery))?;
        self.waiting += 1;
        Ok(self.bytes.len())
    }

    /// Sends frames that wait, as far as the ring has room.
    fn drain(&mut self) {
        while self.waiting > 0 {
            let QueueMemory { draining, filling, .. } = &mut self.memory;
            if draining.rest().is_empty() {
                std::mem::swap(draining, filling);
                filling.clear();
            }
            let (sent, done) = self.inner.send_until_full(&draining.batch, draining.rest());
            debug_assert!(done <= draining.rest().len(), "it has dealt with what there is");
            draining.next += done;
            self.waiting -= u32::try_from(done).expect("a queue is bounded");
            self.has_drained |= done > 0;
            self.lost += &sent.drops;
            if !draining.rest().is_empty() {
                return;
            }
        }
        if !self.others_wait {
            self.inner.found_room();
        }
    }
}

impl Adapter for Queue {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        // First, because the guest may be gone by now.
        self.inner.recv(batch, drops);
        if self.waiting > 0 {
            self.drain();
        }
        *drops += &std::mem::take(&mut self.lost);
    }

    fn take_back(&mut self, batch: &Batch) {
        self.inner.take_back(batch);
    }

    fn delivered(&mut self) -> bool {
        self.inner.delivered() | std::mem::take(&mut self.has_drained)
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        if self.waiting > 0 {
            self.drain();
        }
        let (mut sent, done) = match self.waiting {
            0 => self.inner.send_until_full(batch, list),
            _ => (Sent::default(), 0),
        };
        for &delivery in &list[done..] {
            match self.enqueue(batch, delivery) {
                Ok(bytes) => sent.delivered.add(1, bytes as u64),
                Err(why) => sent.drops.add(why, 1),
            }
        }
        if self.waiting > 0 {
            self.inner.want_room();
        }
        sent
    }

    fn accepts(&self) -> Offloads {
        self.inner.accepts()
    }

    /// The request for room was made before the fence that precedes this.
    fn flush(&mut self) {
        if self.waiting > 0 {
            self.drain();
        }
        self.has_drained = false;
        self.inner.flush();
    }

    fn can_wait(&self) -> bool {
        self.inner.can_wait()
    }

    /// With segmentation offload, each frame may be as long as the longest.
    fn room(&mut self) -> u32 {
        let free = self.memory.frames - self.waiting;
        let free = if self.inner.accepts() == Offloads::NONE { free } else { free / LONGEST };
        if self.waiting > 0 { free } else { self.inner.room().saturating_add(free) }
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}

impl Notify for Queue {
    fn arm(&mut self) {
        self.inner.arm();
        if self.waiting > 0 {
            self.inner.want_room();
        }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    /// Whether there is room now, only the ring itself can tell.
    fn pending(&mut self) -> bool {
        if self.waiting > 0 {
            self.drain();
        }
        self.has_drained || self.inner.pending()
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        self.inner.watch(bell)
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        self.inner.unwatch(bell);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn want_room(&mut self) {
        self.others_wait = true;
        self.inner.want_room();
    }

    fn found_room(&mut self) {
        self.others_wait = false;
        if self.waiting == 0 {
            self.inner.found_room();
        }
    }

    fn owes_wake(&self) -> bool {
        self.inner.owes_wake()
    }

    fn wake_if_due(&mut self) {
        self.inner.wake_if_due();
    }

    fn is_socket(&self) -> bool {
        self.inner.is_socket()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A guest's ring.
    #[derive(Debug, Default)]
    struct Ring {
        /// Buffers, or none if the guest is gone.
        room: Option<usize>,
        got: Vec<Vec<u8>>,
        wants_kick: bool,
        flushes: u32,
    }

    #[derive(Clone)]
    struct Guest(Arc<Mutex<Ring>>);

    impl Guest {
        fn new(room: usize) -> Self {
            Self(Arc::new(Mutex::new(Ring { room: Some(room), ..Ring::default() })))
        }

        fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
            self.0.lock().expect("no thread panics")
        }
    }

    impl Adapter for Guest {
        fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
            let (mut sent, done) = self.send_until_full(batch, list);
            sent.drops.add(DropReason::NoRoom, (list.len() - done) as u64);
            sent
        }

        fn send_until_full(&mut self, batch: &Batch, list: &[Delivery]) -> (Sent, usize) {
            let mut ring = self.ring();
            let Some(room) = ring.room else {
                let mut sent = Sent::default();
                sent.drops.add(DropReason::LinkDown, list.len() as u64);
                return (sent, list.len());
            };
            let done = room.min(list.len());
            ring.room = Some(room - done);
            let sent = Sent::each(&list[..done], |delivery| {
                let mut bytes = Vec::new();
                batch.append(delivery, &mut bytes);
                ring.got.push(bytes.clone());
                Ok(bytes.len())
            });
            (sent, done)
        }

        fn room(&mut self) -> u32 {
            self.ring().room.map_or(u32::MAX, |room| u32::try_from(room).expect("few"))
        }

        fn flush(&mut self) {
            self.ring().flushes += 1;
        }
    }

    impl Notify for Guest {
        fn want_room(&mut self) {
            self.ring().wants_kick = true;
        }

        fn found_room(&mut self) {
            self.ring().wants_kick = false;
        }
    }

    /// Sends so many frames, numbered from `first` on.
    fn send(queue: &mut Queue, first: u8, count: u8) -> Sent {
        let mut intake = Intake::new(256, STANDARD_FRAME).expect("memory");
        let mut batch = Batch::new(256);
        intake.clear();
        batch.restart(intake.region());
        let list: Vec<_> = (0..count)
            .map(|i| {
                let at = batch.frags().len();
                intake.push(&[&[first + i; 60]], batch.frags());
                batch.push_received(at, 60);
                Delivery { frame: i.into(), tag: TagAction::Keep }
            })
            .collect();
        queue.send(&batch, &list)
    }

    fn numbers(guest: &Guest) -> Vec<u8> {
        guest.ring().got.iter().map(|frame| frame[20]).collect()
    }

    /// A turn of the port; returns what it counts as dropped.
    fn turn(queue: &mut Queue) -> (Drops, bool) {
        let (mut batch, mut drops) = (Batch::new(8), Drops::default());
        queue.recv(&mut batch, &mut drops);
        (drops, queue.delivered())
    }

    fn queue(guest: &Guest, frames: u32) -> Queue {
        Queue::before(Box::new(guest.clone()), QueueMemory::new(frames).expect("memory"))
    }

    #[test]
    fn a_burst_waits_for_room_in_order_and_what_is_beyond_the_queue_is_dropped() {
        let guest = Guest::new(16);
        let mut queue = queue(&guest, 32);
        let sent = send(&mut queue, 0, 16);
        assert_eq!((sent.delivered.frames, guest.ring().wants_kick), (16, false));
        let sent = send(&mut queue, 16, 40);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (32, 8));
        assert_eq!((numbers(&guest).len(), guest.ring().wants_kick), (16, true));
        assert!(!queue.pending() && queue.room() == 0, "nothing to do before the guest reads");
        for made in [5, 0, 20] {
            guest.ring().room = Some(made);
            assert_eq!(queue.pending(), made > 0);
            assert_eq!(turn(&mut queue), (Drops::default(), made > 0));
        }
        // New ones stay behind those that wait.
        let sent = send(&mut queue, 100, 3);
        assert_eq!((sent.delivered.frames, numbers(&guest).len()), (3, 41));
        guest.ring().room = Some(100);
        queue.flush();
        let expected: Vec<u8> = (0..48).chain(100..103).collect();
        assert_eq!((numbers(&guest), guest.ring().flushes), (expected, 1));
        assert!(!guest.ring().wants_kick && !queue.pending());
    }

    #[test]
    fn frames_that_wait_are_lost_with_the_guest_and_counted() {
        let guest = Guest::new(1);
        let mut queue = queue(&guest, 8);
        assert_eq!(send(&mut queue, 0, 7).delivered.frames, 7);
        guest.ring().room = None;
        assert!(queue.pending());
        let (drops, _) = turn(&mut queue);
        assert_eq!((drops.get(DropReason::LinkDown), drops.total()), (6, 6));
        assert_eq!(turn(&mut queue).0.total(), 0, "once");
        let sent = send(&mut queue, 0, 3);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::LinkDown)), (0, 3));
    }

    #[test]
    fn a_sender_that_waits_and_a_queue_share_the_request_for_a_kick() {
        let guest = Guest::new(0);
        let mut queue = queue(&guest, 8);
        send(&mut queue, 0, 3);
        queue.want_room();
        queue.found_room();
        assert!(guest.ring().wants_kick, "frames wait still");
        queue.want_room();
        guest.ring().room = Some(9);
        turn(&mut queue);
        assert!(guest.ring().wants_kick, "the sender waits still");
        queue.found_room();
        assert!(!guest.ring().wants_kick);
    }

    #[test]
    fn another_length_keeps_the_frames_that_have_room() {
        let guest = Guest::new(0);
        let mut queue = queue(&guest, 8);
        send(&mut queue, 0, 8);
        drop(queue.resize(QueueMemory::new(20).expect("memory")));
        assert_eq!(send(&mut queue, 8, 20).delivered.frames, 12);
        drop(queue.resize(QueueMemory::new(5).expect("memory")));
        guest.ring().room = Some(100);
        assert_eq!(turn(&mut queue).0.get(DropReason::NoRoom), 15);
        assert_eq!(numbers(&guest), [0, 1, 2, 3, 4]);
        drop(queue.resize(QueueMemory::new(0).expect("memory")));
        guest.ring().room = Some(2);
        let sent = send(&mut queue, 50, 4);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (2, 2));
    }

    #[test]
    fn memory_is_what_is_charged() {
        let half = |frames: u32| u64::from(frames + LONGEST) * u64::from(DEFAULT_STRIDE);
        for frames in [1, 64, QUEUE_FRAMES_MAX] {
            let intake = Intake::new(frames, STANDARD_FRAME).expect("memory");
            let buffers = u64::from(intake.region().layout().buffers);
            assert!(buffers * u64::from(DEFAULT_STRIDE) <= half(frames) + 8 * 2112);
            assert_eq!(QueueMemory::bytes(frames), 2 * half(frames));
        }
        assert_eq!(QueueMemory::bytes(0), 0);
    }
}
