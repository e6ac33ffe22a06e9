//! A chain of bare rings: what remains of functions when there are slots and frames alone.
//!
//! ```text
//!   source ──► function ──► … ──► sink
//!      ▲                            │
//!      └────── read, and free ──────┘
//! ```
//!
//! Each is a thread; the first half has one core, the others have the other, and an idle
//! thread yields it. There are as many buffers as a ring has slots, so a ring always has room, and
//! all of them see the buffers in one order. No member checks anything, knows whose a buffer is, or
//! keeps one apart from another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Index, SLOTS, Slot, mpps};
use crate::machine;
use crate::payload::Pool;
use crate::work::Chain;
use crate::work::{Path, Payload, Work};

/// A ring from one to the next: only `head` is needed, as no member ever waits for room.
struct Ring {
    head: Index,
    slots: Vec<Slot>,
}

struct Bare {
    /// Indexed by the thread that fills them.
    rings: Vec<Ring>,
    buffers: Pool,
    batch: usize,
    length: usize,
    /// Whether payload is written and read.
    touched: bool,
    /// Whether functions read all of the payload.
    reads: bool,
    over: AtomicBool,
}

/// Million frames a second through as many functions as the work has.
pub fn measure(work: &Work, time: Duration) -> f64 {
    let Path::Chain(chain) = work.path else { unreachable!("a chain's limit") };
    let members = usize::from(chain.functions()) + 2;
    let ring =
        |_| Ring { head: Index::default(), slots: (0..SLOTS).map(|_| Slot::default()).collect() };
    let bare = Bare {
        rings: (0..members).map(ring).collect(),
        buffers: Pool::new(SLOTS),
        batch: usize::from(work.batch.sender).clamp(1, SLOTS),
        length: usize::from(work.frame_len),
        touched: work.payload == Payload::Touched,
        reads: matches!(chain, Chain::Readers(_)),
        over: AtomicBool::new(false),
    };
    // All buffers are free at first.
    bare.rings[members - 1].head.0.store(SLOTS, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for at in 0..members - 1 {
            let bare = &bare;
            scope.spawn(move || {
                machine::pin(usize::from(at >= members / 2));
                bare.run(at, |_| false);
            });
        }
        let sink = scope.spawn(|| {
            machine::pin(1);
            bare.sink(members - 1, time)
        });
        sink.join().expect("the sink does not panic")
    })
}

impl Bare {
    /// Takes what comes, a batch at most each time, until it is over, or enough were taken.
    fn run(&self, at: usize, mut is_enough: impl FnMut(usize) -> bool) {
        let input = &self.rings[(at + self.rings.len() - 1) % self.rings.len()];
        let (output, mut done, mut sum) = (&self.rings[at], 0, 0);
        while !self.over.load(Ordering::Relaxed) && !is_enough(done) {
            // Acquire, pairs with the Release below of the member that fills it.
            let count = (input.head.0.load(Ordering::Acquire) - done).min(self.batch);
            if count == 0 {
                std::thread::yield_now();
                continue;
            }
            if self.touched {
                sum ^= self.touch(at, done % SLOTS, count);
            }
            let head = output.head.0.load(Ordering::Relaxed);
            for i in 0..count {
                let (from, to) =
                    (&input.slots[(done + i) % SLOTS], &output.slots[(head + i) % SLOTS]);
                let (buffer, pointer) = (&from.buffer_and_length, &from.pointer);
                to.buffer_and_length.store(buffer.load(Ordering::Relaxed), Ordering::Relaxed);
                to.pointer.store(pointer.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            // Release, pairs with the Acquire above: slots and payload are seen with it.
            output.head.0.store(head + count, Ordering::Release);
            done += count;
        }
        std::hint::black_box(sum);
    }

    /// The last one counts; the first quarter of the time does not.
    fn sink(&self, at: usize, time: Duration) -> f64 {
        let (begin, mut turns, mut start, mut rate) = (Instant::now(), 0u32, None, 0.0);
        self.run(at, |done| {
            turns += 1;
            if !turns.is_multiple_of(64) {
                return false;
            }
            let now = Instant::now();
            match start {
                Some((since, before)) => rate = mpps(done - before, now - since),
                None if now - begin >= time / 4 => start = Some((now, done)),
                None => {}
            }
            now - begin >= time
        });
        self.over.store(true, Ordering::Relaxed);
        rate
    }
}

mod owned {
    // UNSAFETY: who owns a buffer follows from the rings' indexes, which rustc cannot see.
    #![allow(unsafe_code)]

    impl super::Bare {
        /// What the member at this place does with frames that it has taken and not passed on.
        pub(super) fn touch(&self, at: usize, first: usize, many: usize) -> u64 {
            let last = self.rings.len() - 1;
            // SAFETY: these slots were handed to this member alone; the next one sees
            // them with its ring's `head`, behind this.
            unsafe {
                match at {
                    0 => {
                        self.buffers.write(first, many, self.length, first as u64);
                        0
                    }
                    at if at == last || self.reads => self.buffers.read(first, many, self.length),
                    _ => self.buffers.change(first, many),
                }
            }
        }
    }
}
