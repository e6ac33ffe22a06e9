//! Two holders of a ring sync it at the same time; the switch takes what is published.

use super::*;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// Slots of the ring, one of which is always empty.
const SLOTS: u32 = 2;

/// The words of a transmit ring and of its CSB.
#[derive(Default)]
struct Ring {
    turn: AtomicU32,
    /// The program's `head`; `cur` is the same.
    head: AtomicU32,
    /// `head` in the CSB.
    published: AtomicU32,
    hwtail: AtomicU32,
    /// Each holds the number of its frame, from 1.
    slots: [AtomicU32; 2],
}

/// Starts a thread that acts on the ring.
fn beside(ring: &Arc<Ring>, act: impl FnOnce(&Ring) + Send + 'static) -> JoinHandle<()> {
    let ring = ring.clone();
    thread::spawn(move || act(&ring))
}

fn distance(from: u32, to: u32) -> u32 {
    (to + SLOTS - from) % SLOTS
}

/// A sync, as `user::sync` does it; returns the new `tail`.
fn sync(ring: &Ring) -> u32 {
    let turn = SyncTurn::take(&ring.turn);
    let published = ring.published.load(Ordering::Relaxed);
    let hwtail = ring.hwtail.load(Ordering::Acquire);
    let head = ring.head.load(Ordering::Acquire);
    let is_in_order = distance(published, head) <= distance(published, hwtail);
    assert!(is_in_order, "an honest program");
    if head != published {
        assert!(turn.is_held());
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        assert!(ring.published.compare_exchange(published, head, order, failed).is_ok());
    }
    ring.hwtail.load(Ordering::Acquire)
}

/// Writes a frame and moves `head`; returns the `tail` of a sync.
fn send(ring: &Ring, frame: u32) -> u32 {
    let slot = (frame - 1) % SLOTS;
    ring.slots[slot as usize].store(frame, Ordering::Relaxed);
    ring.head.store((slot + 1) % SLOTS, Ordering::Release);
    sync(ring)
}

/// Looks twice for a frame; each must have been written when it is published.
fn take(ring: &Ring) {
    let mut taken = 0;
    for _ in 0..2 {
        let next = taken % SLOTS;
        if ring.published.load(Ordering::Acquire) != next {
            taken += 1;
            assert_eq!(ring.slots[next as usize].load(Ordering::Relaxed), taken);
            ring.hwtail.store(next, Ordering::Release);
        }
    }
}

/// Without turns, a sync that began before a frame was published and taken finds an honest program
/// out of order.
#[test]
fn syncs_at_once_find_an_honest_program_in_order() {
    // Every interleaving with at most this many preemptions; the others take minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = Arc::new(Ring::default());
        ring.hwtail.store(SLOTS - 1, Ordering::Relaxed);
        let switch = beside(&ring, take);
        let other = beside(&ring, |ring| {
            sync(ring);
        });
        if send(&ring, 1) == 0 {
            send(&ring, 2);
        }
        switch.join().unwrap();
        other.join().unwrap();
    });
}
