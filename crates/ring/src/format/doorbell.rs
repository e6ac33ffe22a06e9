//! The need-kick handshake: a side that sleeps is woken, and a side that polls is not disturbed.
//!
//! Either side may stop polling and sleep. Before it sleeps it *arms*: it stores a non-zero
//! number into its need-kick word and then looks at the other's index once more. The other side
//! *publishes* its index and then looks at the need-kick word. Each stores first and looks
//! second, so at least one of them sees the other (Dekker's pattern):
//!
//! ```text
//!   publisher                          sleeper
//!   STORE index (Release)              STORE need_kick = n
//!   fence SeqCst            ◄────────► fence SeqCst
//!   LOAD  need_kick                    LOAD  index (Acquire)
//!   n seen: ring the doorbell          moved: do not sleep
//! ```
//!
//! The number changes each time a side arms, and the publisher remembers the last one it rang
//! for: one kick for each sleep, however many publications fall into it.
//!
//! **Light publishers.** The fence costs a sender of single frames a third of its speed. A client
//! that publishes often without ever sleeping goes *light*: it says so in [`sync_flag::LIGHT`]
//! and leaves its fence out. A worker that arms reads the flag *after* its own fence; where it is
//! set, the worker runs a barrier in every thread of every registered process
//! (`membarrier(2)`, `GLOBAL_EXPEDITED`) before it looks at the index. The flag needs its own
//! argument:
//!
//! - going light: STORE flag, fence, then light publications. A worker that read the old flag had
//!   its need-kick word visible before that fence, so every light publication sees it.
//! - going back: STORE flag = 0 (Release) after the last light publication. A worker that loads
//!   0 (Acquire) also sees every index published before it.
//!
//! A client that lies about the flag, or has not registered, only delays its own wake-up.
//!
//! The models at the end of this file check both sides with loom.
//!
//! [`sync_flag::LIGHT`]: crate::format::abi::sync_flag::LIGHT

use crate::format::atomic::{AtomicU32, Ordering, fence};

/// The publisher's side: the last sleep for which it rang the doorbell.
#[derive(Debug, Default)]
pub struct Ringer {
    last: u32,
}

impl Ringer {
    /// Value of a need-kick word that asks for a kick at every publication: what netmap's own
    /// clients write.
    pub const ALWAYS: u32 = 1;

    /// Must the doorbell be rung? Call after the fence that follows the publication.
    #[inline(always)]
    pub fn must_ring(&mut self, need_kick: &AtomicU32) -> bool {
        let number = need_kick.load(Ordering::Relaxed);
        if number == 0 {
            return false;
        }
        self.first_time(number)
    }

    #[cold]
    fn first_time(&mut self, number: u32) -> bool {
        let first = number != self.last || number == Self::ALWAYS;
        self.last = number;
        first
    }
}

/// The sleeper's side: a number for each time it arms.
#[derive(Debug)]
pub struct Sleeper {
    number: u32,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self { number: Ringer::ALWAYS }
    }
}

impl Sleeper {
    /// Starts at the caller's number: for a side that may have had a predecessor, whose last number
    /// the other side remembers.
    #[must_use]
    pub fn starting_at(number: u32) -> Self {
        Self { number }
    }

    /// Stores the next number. The caller fences and looks at the other side's index afterwards.
    #[inline]
    pub fn arm(&mut self, need_kick: &AtomicU32) {
        self.number = self.number.wrapping_add(1).max(Ringer::ALWAYS + 1);
        need_kick.store(self.number, Ordering::Relaxed);
    }

    /// Takes the request for a kick back.
    #[inline]
    pub fn disarm(&self, need_kick: &AtomicU32) {
        need_kick.store(0, Ordering::Relaxed);
    }
}

/// The fence between the store of one's own word and the load of the other side's. Its partner is
/// the same fence on the other side, or the worker's process-wide barrier.
#[inline(always)]
pub fn store_load_fence() {
    fence(Ordering::SeqCst);
}

/// A client's publications, with a fence each or light.
#[derive(Debug, Default)]
pub struct Publisher {
    ringer: Ringer,
    streak: u32,
    light: bool,
}

impl Publisher {
    /// Publications in a row without a sleep, after which a client goes light.
    const LIGHT_AFTER: u32 = 64;

    /// Publishes `index` and says whether the doorbell must be rung. `may_be_light`: this process
    /// is registered for the worker's barrier.
    #[inline(always)]
    pub fn publish(
        &mut self,
        index: (&AtomicU32, u32),
        flags: (&AtomicU32, u32),
        need_kick: &AtomicU32,
        may_be_light: bool,
    ) -> bool {
        index.0.store(index.1, Ordering::Release);
        if !self.light {
            store_load_fence();
            if may_be_light {
                self.count(flags);
            }
        }
        let ring = self.ringer.must_ring(need_kick);
        if ring {
            // The other side sleeps between our publications: this is no stream.
            self.calm(flags.0);
        }
        ring
    }

    #[inline]
    fn count(&mut self, flags: (&AtomicU32, u32)) {
        self.streak += 1;
        if self.streak == Self::LIGHT_AFTER {
            flags.0.store(flags.1, Ordering::Relaxed);
            store_load_fence();
            self.light = true;
        }
    }

    /// Goes back to fences: this client is about to sleep, so its peer will sleep too.
    #[inline]
    pub fn calm(&mut self, flags: &AtomicU32) {
        self.streak = 0;
        if self.light {
            self.light = false;
            flags.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn one_ring_for_each_sleep() {
        let (need, mut ringer, mut sleeper) =
            (AtomicU32::new(0), Ringer::default(), Sleeper::default());
        assert!(!ringer.must_ring(&need));
        for _ in 0..3 {
            sleeper.arm(&need);
            assert!(ringer.must_ring(&need));
            assert!(!ringer.must_ring(&need));
            sleeper.disarm(&need);
            assert!(!ringer.must_ring(&need));
        }
    }

    #[test]
    fn always_rings_at_every_publication() {
        let (need, mut ringer) = (AtomicU32::new(Ringer::ALWAYS), Ringer::default());
        assert!(ringer.must_ring(&need) && ringer.must_ring(&need));
    }

    #[test]
    fn numbers_never_wrap_to_the_reserved_ones() {
        let (need, mut sleeper) = (AtomicU32::new(0), Sleeper { number: u32::MAX - 1 });
        for _ in 0..4 {
            sleeper.arm(&need);
            assert!(need.load(Ordering::Relaxed) > Ringer::ALWAYS);
        }
    }

    #[test]
    fn a_busy_publisher_goes_light_and_calms_down() {
        let (head, flags, need) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let mut publisher = Publisher::default();
        for i in 0..Publisher::LIGHT_AFTER {
            assert_eq!(flags.load(Ordering::Relaxed), 0);
            publisher.publish((&head, i), (&flags, 1), &need, true);
        }
        assert_eq!(flags.load(Ordering::Relaxed), 1);
        publisher.calm(&flags);
        assert_eq!(flags.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_unregistered_publisher_never_goes_light() {
        let (head, flags, need) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let mut publisher = Publisher::default();
        for i in 0..1000 {
            publisher.publish((&head, i), (&flags, 1), &need, false);
        }
        assert_eq!(flags.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A doorbell is a counter here; "asleep" means waiting for it to move.

    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Shared {
        index: AtomicU32,
        need_kick: AtomicU32,
        flags: AtomicU32,
        kicks: AtomicU32,
    }

    /// The sleeper arms and looks; it may sleep only if the publisher is bound to ring.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let publisher = {
                let s = shared.clone();
                thread::spawn(move || {
                    let mut p = Publisher::default();
                    if p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, false) {
                        s.kicks.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            let mut sleeper = Sleeper::default();
            sleeper.arm(&shared.need_kick);
            store_load_fence();
            let sleeps = shared.index.load(Ordering::Acquire) == 0;
            publisher.join().unwrap();
            assert!(!sleeps || shared.kicks.load(Ordering::Relaxed) == 1);
        });
    }

    /// A publisher that goes light between two publications: the worker that skipped its barrier
    /// because it read the old flag is still woken. The light publication has no fence.
    #[test]
    fn going_light_loses_no_wake_up() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let publisher = {
                let s = shared.clone();
                thread::spawn(move || {
                    let mut p = Publisher { streak: Publisher::LIGHT_AFTER - 1, ..<_>::default() };
                    let mut kicks = 0;
                    for index in 1..=2 {
                        let rung = p.publish((&s.index, index), (&s.flags, 1), &s.need_kick, true);
                        kicks += u32::from(rung);
                    }
                    s.kicks.fetch_add(kicks, Ordering::Relaxed);
                })
            };
            let mut sleeper = Sleeper::default();
            sleeper.arm(&shared.need_kick);
            store_load_fence();
            let light = shared.flags.load(Ordering::Acquire) != 0;
            let index = shared.index.load(Ordering::Acquire);
            publisher.join().unwrap();
            // A worker that reads LIGHT runs the barrier, which this model has no word for.
            if !light && index < 2 {
                assert!(shared.kicks.load(Ordering::Relaxed) >= 1);
            }
        });
    }

    /// A worker that reads "not light" has seen every light publication before it.
    #[test]
    fn calming_down_publishes_what_was_light() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            shared.flags.store(1, Ordering::Relaxed);
            let publisher = {
                let s = shared.clone();
                thread::spawn(move || {
                    let mut p = Publisher { light: true, ..<_>::default() };
                    p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, true);
                    p.calm(&s.flags);
                })
            };
            let mut sleeper = Sleeper::default();
            sleeper.arm(&shared.need_kick);
            store_load_fence();
            if shared.flags.load(Ordering::Acquire) == 0 {
                assert_eq!(shared.index.load(Ordering::Acquire), 1);
            }
            publisher.join().unwrap();
        });
    }

    /// The payload of a published slot is visible with its index.
    #[test]
    fn a_published_slot_is_complete() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let publisher = {
                let s = shared.clone();
                thread::spawn(move || {
                    s.kicks.store(7, Ordering::Relaxed); // stands for the slot
                    let mut p = Publisher::default();
                    p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, false);
                })
            };
            if shared.index.load(Ordering::Acquire) == 1 {
                assert_eq!(shared.kicks.load(Ordering::Relaxed), 7);
            }
            publisher.join().unwrap();
        });
    }

    /// Stands for a thread that is asleep on its doorbell: it does nothing until a kick comes. If
    /// none ever does, loom gives up on the model, which fails the test.
    fn sleep(doorbell: &AtomicU32, seen: &mut u32) {
        loop {
            let kicks = doorbell.load(Ordering::Relaxed);
            if kicks != *seen {
                *seen = kicks;
                return;
            }
            thread::yield_now();
        }
    }

    /// A worker whose frame needs two slots asks for room (`kern_need_kick`) and sleeps; the
    /// client returns them one by one. The first kick is for too little, and the worker asks once
    /// more: with a new number, or the second return would ring no bell.
    #[test]
    fn a_request_for_room_is_answered_each_time() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let client = {
                let s = shared.clone();
                thread::spawn(move || {
                    let mut p = Publisher::default();
                    for head in 1..=2 {
                        if p.publish((&s.index, head), (&s.flags, 1), &s.need_kick, false) {
                            s.kicks.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            };
            let (mut waiter, mut seen) = (Sleeper::default(), 0);
            loop {
                waiter.arm(&shared.need_kick);
                store_load_fence();
                if shared.index.load(Ordering::Acquire) == 2 {
                    break;
                }
                sleep(&shared.kicks, &mut seen);
                waiter.disarm(&shared.need_kick);
            }
            client.join().unwrap();
        });
    }

    /// One end of a pipe, in the words of the CSB that both ends share. Each plays the switch for
    /// the other.
    struct End<'a> {
        mine: &'a AtomicU32,
        theirs: &'a AtomicU32,
        my_need: &'a AtomicU32,
        their_need: &'a AtomicU32,
        my_doorbell: &'a AtomicU32,
        their_doorbell: &'a AtomicU32,
        publisher: Publisher,
        sleeper: Sleeper,
        seen: u32,
    }

    impl End<'_> {
        /// Sleeps until the other end's index is `index`.
        fn wait_for(&mut self, index: u32) {
            loop {
                self.sleeper.arm(self.my_need);
                store_load_fence();
                let reached = self.theirs.load(Ordering::Acquire) == index;
                if !reached {
                    sleep(self.my_doorbell, &mut self.seen);
                }
                self.sleeper.disarm(self.my_need);
                if reached {
                    return;
                }
            }
        }

        /// Publishes and rings where that is asked for. A pipe never goes light.
        fn publish(&mut self, index: u32) {
            let flags = AtomicU32::new(0);
            if self.publisher.publish((self.mine, index), (&flags, 1), self.their_need, false) {
                self.their_doorbell.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[derive(Default)]
    struct Pipe {
        /// Stored by the sender.
        hwtail: AtomicU32,
        kern_need_kick: AtomicU32,
        /// Stored by the receiver.
        head: AtomicU32,
        appl_need_kick: AtomicU32,
        /// The two doorbells, and the one slot.
        wakes_sender: AtomicU32,
        wakes_receiver: AtomicU32,
        slot: AtomicU32,
    }

    /// Two ends of a pipe with room for one frame: the sender sleeps until the receiver has given
    /// the slot back, the receiver until there is a frame. Neither sleeps for ever, and the frame
    /// that is read is the one that was written.
    #[test]
    fn the_ends_of_a_pipe_wake_each_other() {
        const FRAMES: u32 = 2;
        // Every interleaving with at most this many preemptions; the others take minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(4);
        model.check(|| {
            let pipe = Arc::new(Pipe::default());
            let sender = {
                let pipe = pipe.clone();
                thread::spawn(move || {
                    let mut end = End {
                        mine: &pipe.hwtail,
                        theirs: &pipe.head,
                        my_need: &pipe.kern_need_kick,
                        their_need: &pipe.appl_need_kick,
                        my_doorbell: &pipe.wakes_sender,
                        their_doorbell: &pipe.wakes_receiver,
                        publisher: Publisher::default(),
                        sleeper: Sleeper::default(),
                        seen: 0,
                    };
                    for frame in 1..=FRAMES {
                        if frame > 1 {
                            end.wait_for(frame - 1);
                        }
                        pipe.slot.store(frame, Ordering::Relaxed);
                        end.publish(frame);
                    }
                })
            };
            let mut end = End {
                mine: &pipe.head,
                theirs: &pipe.hwtail,
                my_need: &pipe.appl_need_kick,
                their_need: &pipe.kern_need_kick,
                my_doorbell: &pipe.wakes_receiver,
                their_doorbell: &pipe.wakes_sender,
                publisher: Publisher::default(),
                sleeper: Sleeper::default(),
                seen: 0,
            };
            for frame in 1..=FRAMES {
                end.wait_for(frame);
                assert_eq!(pipe.slot.load(Ordering::Relaxed), frame);
                if frame < FRAMES {
                    end.publish(frame);
                }
            }
            sender.join().unwrap();
        });
    }

    /// A light publication, and a worker that runs its barrier because it reads LIGHT.
    ///
    /// The barrier makes the publisher's thread pass a full fence somewhere between the start and
    /// the end of the worker's call, which may fall anywhere in the publisher's program. The
    /// model has it between the publication and the look at the need-kick word, in the order of
    /// all such fences anywhere before or after the worker's own. That leaves the same outcomes:
    ///
    /// - passed before the publication: the worker had armed, so the look finds the number, as
    ///   where the model's fence comes after the worker's;
    /// - passed after the look: the worker, which returns later, finds the index, as where the
    ///   model's fence comes before the worker's;
    /// - passed in between: that is the model.
    ///
    /// A worker that does not read LIGHT runs no barrier; `going_light_loses_no_wake_up` and
    /// `calming_down_publishes_what_was_light` are about that one, without a fence.
    #[test]
    fn the_barrier_stands_in_for_the_fence_of_a_light_publisher() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            shared.flags.store(1, Ordering::Relaxed);
            let publisher = {
                let s = shared.clone();
                thread::spawn(move || {
                    let mut ringer = Ringer::default();
                    s.index.store(1, Ordering::Release);
                    store_load_fence(); // where the worker's barrier hits this thread
                    if ringer.must_ring(&s.need_kick) {
                        s.kicks.fetch_add(1, Ordering::Relaxed);
                        s.flags.store(0, Ordering::Release);
                    }
                })
            };
            let mut sleeper = Sleeper::default();
            sleeper.arm(&shared.need_kick);
            store_load_fence();
            let light = shared.flags.load(Ordering::Acquire) != 0;
            if light {
                store_load_fence(); // the caller of the barrier passes one too
            }
            let sleeps = shared.index.load(Ordering::Acquire) == 0;
            publisher.join().unwrap();
            if light && sleeps {
                assert_eq!(shared.kicks.load(Ordering::Relaxed), 1);
            }
        });
    }
}
