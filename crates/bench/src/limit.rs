//! What this machine allows for the same work: the ceiling, or floor, of a result.
//!
//! - Sender and receiver on two cores, a pipe, a trust group: one ring between the same two cores,
//!   one producer and one consumer, the same batch; descriptors only, or the payload written and
//!   read once. No switch, no copy.
//! - Everything on one core: a loop in one thread; write a batch, copy it, read the copy.
//! - A chain of functions: threads on two cores, and a bare ring from each to the next ([`chain`]).
//! - Round trip, spinning: the cache-line round trip, as often as a party must be told.
//! - Round trip, asleep: processes that wake each other through pipes on one core; two wake-ups for
//!   a pair, four with a process between them.
//!
//! Rings have 1024 slots of 16 bytes and buffers at a stride of 2112, as the product's. The first
//! quarter of the time is for the start and does not count.

mod chain;
pub mod wake_up;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::machine;
use crate::payload::{self, Pool};
use crate::scenario::Limit;
use crate::work::{Payload, Work};

const SLOTS: usize = 1024;

/// Bytes that one slot's buffer holds.
const LONGEST: usize = payload::STRIDE * 8;

/// Measures a limit once; `None` where there is none or it cannot be measured here.
pub fn measure(limit: Limit, work: &Work, time: Duration) -> anyhow::Result<Option<f64>> {
    match limit {
        // A frame of several slots has no counterpart in a plain ring.
        Limit::Exchange | Limit::OneCore | Limit::Chain
            if usize::from(work.frame_len) > LONGEST =>
        {
            Ok(None)
        }
        Limit::Exchange => Ok(Some(exchange(work, time))),
        Limit::OneCore => Ok(Some(one_core(work, time))),
        Limit::Chain => Ok(Some(chain::measure(work, time))),
        Limit::LineTrips(trips) => {
            Ok(crate::probe::round_trip_ns(0, 1).map(|ns| ns * f64::from(trips) / 1e3))
        }
        Limit::WakeUps(wake_ups) => wake_up::micros(wake_ups, time).map(Some),
        Limit::None => Ok(None),
    }
}

/// The 16-byte descriptor of a frame.
#[derive(Default)]
struct Slot {
    buffer_and_length: AtomicU64,
    pointer: AtomicU64,
}

/// An index alone in two cache lines: the second keeps the adjacent-line prefetcher away.
#[repr(align(128))]
#[derive(Default)]
struct Index(AtomicUsize);

/// The ring between the two threads. `head` is written by the producer, `tail` by the consumer;
/// both count up without wrapping at the ring's size.
struct Ring {
    head: Index,
    tail: Index,
    over: AtomicBool,
    slots: Vec<Slot>,
    buffers: Pool,
    /// Bytes written and read of each frame; nothing when only descriptors cross.
    length: Option<usize>,
}

fn exchange(work: &Work, time: Duration) -> f64 {
    let ring = Ring {
        head: Index::default(),
        tail: Index::default(),
        over: AtomicBool::new(false),
        slots: (0..SLOTS).map(|_| Slot::default()).collect(),
        buffers: Pool::new(SLOTS),
        length: (work.payload == Payload::Touched).then_some(usize::from(work.frame_len)),
    };
    let batch = usize::from(work.batch.sender).clamp(1, SLOTS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine::pin(1);
            ring.consume();
        });
        let rate = scope.spawn(|| {
            machine::pin(0);
            ring.produce(batch, time)
        });
        rate.join().expect("the producer does not panic")
    })
}

impl Ring {
    /// Fills the ring for the given time. Returns million frames a second after the warm-up.
    fn produce(&self, batch: usize, time: Duration) -> f64 {
        let begin = Instant::now();
        let mut start = None;
        let (mut head, mut tail, mut turns) = (0, 0, 0_u32);
        loop {
            turns += 1;
            if turns.is_multiple_of(64) {
                let now = Instant::now();
                if now - begin >= time {
                    break;
                }
                if start.is_none() && now - begin >= time / 4 {
                    start = Some((now, head));
                }
            }
            if SLOTS - (head - tail) < batch {
                // Acquire, pairs with the Release in `consume`: the buffers are ours again.
                tail = self.tail.0.load(Ordering::Acquire);
                std::hint::spin_loop();
                continue;
            }
            self.fill(head, batch);
            head += batch;
            // Release, pairs with the Acquire in `consume`: it sees slots and payload.
            self.head.0.store(head, Ordering::Release);
        }
        self.over.store(true, Ordering::Relaxed);
        let (since, head_then) = start.unwrap_or((begin, 0));
        mpps(head - head_then, since.elapsed())
    }

    fn fill(&self, head: usize, batch: usize) {
        let first = head % SLOTS;
        for at in head..head + batch {
            let slot = &self.slots[at % SLOTS];
            slot.buffer_and_length.store(((at % SLOTS) as u64) << 32 | 60, Ordering::Relaxed);
            slot.pointer.store(0, Ordering::Relaxed);
        }
        if let Some(length) = self.length {
            self.write(first, batch, length, head as u64);
        }
    }

    fn consume(&self) {
        let (mut tail, mut sum) = (0, 0);
        while !self.over.load(Ordering::Relaxed) {
            // Acquire, pairs with the Release in `produce`.
            let ready = self.head.0.load(Ordering::Acquire) - tail;
            if ready == 0 {
                std::hint::spin_loop();
                continue;
            }
            for at in tail..tail + ready {
                sum ^= self.slots[at % SLOTS].buffer_and_length.load(Ordering::Relaxed);
            }
            if let Some(length) = self.length {
                sum ^= self.read(tail % SLOTS, ready, length);
            }
            tail += ready;
            // Release, pairs with the Acquire in `produce`: we are done reading.
            self.tail.0.store(tail, Ordering::Release);
        }
        std::hint::black_box(sum);
    }
}

/// The only places where the two threads touch payload.
mod owned {
    // UNSAFETY: who owns a buffer follows from the ring's indexes, which rustc cannot see.
    #![allow(unsafe_code)]

    impl super::Ring {
        /// Called with the slots in front of `head`, which the consumer has given back.
        pub(super) fn write(&self, first: usize, many: usize, length: usize, value: u64) {
            // SAFETY: `produce` checked that these slots are free; the consumer does not touch them
            // before it sees the new `head`.
            unsafe { self.buffers.write(first, many, length, value) }
        }

        /// Called with the slots between `tail` and `head`.
        pub(super) fn read(&self, first: usize, many: usize, length: usize) -> u64 {
            // SAFETY: the producer published these slots and does not touch them before it sees the
            // new `tail`.
            unsafe { self.buffers.read(first, many, length) }
        }
    }

    /// Writes, copies and reads one batch.
    pub(super) fn turn(
        pools: &(super::Pool, super::Pool),
        first: usize,
        many: usize,
        work: &super::Work,
    ) -> u64 {
        let length = usize::from(work.frame_len);
        let touched = work.payload == super::Payload::Touched;
        // SAFETY: both pools belong to this thread alone.
        unsafe {
            if touched {
                pools.0.write(first, many, length, first as u64);
            }
            pools.0.copy(&pools.1, first, many, length);
            if touched { pools.1.read(first, many, length) } else { 0 }
        }
    }
}

fn one_core(work: &Work, time: Duration) -> f64 {
    let batch = usize::from(work.batch.sender).clamp(1, SLOTS);
    let work = *work;
    let run = move || {
        machine::pin(0);
        let pools = (Pool::new(SLOTS), Pool::new(SLOTS));
        let (mut sum, mut done) = (0, 0_usize);
        let mut start = Instant::now();
        let mut warm = true;
        loop {
            sum ^= owned::turn(&pools, done % SLOTS, batch, &work);
            done += batch;
            if !done.is_multiple_of(64 * batch) {
                continue;
            }
            let elapsed = start.elapsed();
            if warm && elapsed >= time / 4 {
                (warm, done, start) = (false, 0, Instant::now());
            } else if !warm && elapsed >= time * 3 / 4 {
                std::hint::black_box(sum);
                return mpps(done, elapsed);
            }
        }
    };
    std::thread::spawn(run).join().expect("the loop does not panic")
}

fn mpps(frames: usize, time: Duration) -> f64 {
    // Frames of one second fit a float's 52 bits by far.
    #[allow(clippy::cast_precision_loss)]
    let frames = frames as f64;
    frames / time.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{self, of_round_trip};
    use crate::work::Wait;

    #[test]
    fn test_limits_are_numbers() {
        let work = scenario::find("copy-60").unwrap().work;
        let short = Duration::from_millis(40);
        // How fast is no matter here: two threads may have to share a core with others.
        for limit in [Limit::Exchange, Limit::OneCore] {
            let rate = measure(limit, &work, short).unwrap().unwrap();
            assert!((0.0..1e5).contains(&rate), "{limit:?}: {rate} Mpps");
        }
        for name in ["nf-3", "nf-3-1514", "nf-3-untouched"] {
            let work = scenario::find(name).unwrap().work;
            let rate = measure(Limit::Chain, &work, short).unwrap().unwrap();
            assert!((0.0..1e5).contains(&rate), "{name}: {rate} Mpps");
        }
        assert_eq!(measure(Limit::None, &work, short).unwrap(), None);
    }

    #[test]
    fn test_of_round_trip_counts_the_parties() {
        assert_eq!(of_round_trip(Wait::Asleep, true), Limit::WakeUps(4));
        assert_eq!(of_round_trip(Wait::Asleep, false), Limit::WakeUps(2));
        assert_eq!(of_round_trip(Wait::Spin, false), Limit::LineTrips(1));
    }
}
