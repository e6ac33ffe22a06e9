//! Workers that wait for room in a ring: the port's worker, which gets the client's kick, passes it
//! on to them.
//!
//! # Theory of operation
//!
//! ```text
//!   worker that waits          client             the port's worker
//!   add its bit
//!   lock: arm need_kick
//!   fence                      STORE head
//!   LOAD head: no room         fence
//!   sleep                      need_kick: kick ─► take all bits, tell those workers
//! ```
//!
//! A worker adds its bit before it arms, so the kick that answers the number which it has armed
//! finds the bit, unless an earlier kick took it: then the worker was told, and looks again.
//!
//! A worker that finds room after all takes its bit back, and takes the request back only if no
//! other bit is there. Both happen under the ring's lock, as arming does: a worker that has added
//! its bit since then arms afterwards.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | the bits | workers add and remove their own | the port's worker, which takes all | SeqCst |

use crate::format::atomic::{AtomicU64, Ordering};

/// Most workers of a daemon: each has a bit of a word.
pub const WORKERS_MAX: u32 = u64::BITS;

/// The workers that wait for room in a ring, a bit each.
#[derive(Debug)]
pub struct Waiters(AtomicU64);

impl Default for Waiters {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Waiters {
    /// Adds a worker that is about to ask the client for a kick.
    pub fn add(&self, worker: u32) {
        self.0.fetch_or(bit(worker), Ordering::SeqCst);
    }

    /// Removes a worker that has found room. Returns whether others wait, so that the request for
    /// a kick must stay. The caller has the lock under which workers arm.
    pub fn remove(&self, worker: u32) -> bool {
        let bit = bit(worker);
        self.0.fetch_and(!bit, Ordering::SeqCst) & !bit != 0
    }

    /// All that wait. From here on none does.
    pub fn take(&self) -> u64 {
        // A look first: workers seldom wait, and a write takes the line from them all.
        match self.0.load(Ordering::SeqCst) {
            0 => 0,
            _ => self.0.swap(0, Ordering::SeqCst),
        }
    }
}

fn bit(worker: u32) -> u64 {
    debug_assert!(worker < WORKERS_MAX, "each worker has a bit");
    1 << worker
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_stays_while_another_worker_waits() {
        let waiters = Waiters::default();
        waiters.add(3);
        waiters.add(63);
        assert!(waiters.remove(3));
        assert!(!waiters.remove(63));
        waiters.add(0);
        assert_eq!((waiters.take(), waiters.take()), (1, 0));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::doorbell::{Ringer, Sleeper, store_load_fence};
    use crate::format::atomic::AtomicU32;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    #[derive(Default)]
    struct Ring {
        head: AtomicU32,
        need_kick: AtomicU32,
        sleeper: Mutex<Sleeper>,
        waiters: Waiters,
    }

    impl Ring {
        /// A worker looks for room; returns whether it sleeps.
        fn wait(&self, worker: u32) -> bool {
            self.waiters.add(worker);
            self.sleeper.lock().unwrap().arm(&self.need_kick);
            store_load_fence();
            if self.head.load(Ordering::Acquire) == 0 {
                return true;
            }
            let sleeper = self.sleeper.lock().unwrap();
            if !self.waiters.remove(worker) {
                sleeper.disarm(&self.need_kick);
            }
            false
        }

        /// The client makes room; returns the workers that its kick makes the port's worker tell.
        fn make_room(&self) -> u64 {
            self.head.store(1, Ordering::Release);
            store_load_fence();
            match Ringer::default().must_ring(&self.need_kick) {
                true => self.waiters.take(),
                false => 0,
            }
        }
    }

    #[test]
    fn a_worker_that_sleeps_is_told_of_room_also_if_another_one_finds_it() {
        // Every interleaving with at most this many preemptions; the others take minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(4);
        model.check(|| {
            let ring = Arc::new(Ring::default());
            let start = |worker| {
                let ring = ring.clone();
                thread::spawn(move || ring.wait(worker))
            };
            let waits = [start(0), start(1)];
            let told = ring.make_room();
            for (worker, waits) in waits.into_iter().enumerate() {
                let sleeps = waits.join().unwrap();
                assert!(!sleeps || told >> worker & 1 == 1, "worker {worker} sleeps for ever");
            }
        });
    }
}
