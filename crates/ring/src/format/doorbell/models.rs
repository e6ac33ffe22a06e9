//! A doorbell is a counter here; "asleep" means waiting for it to move.

use super::*;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// Starts a thread that acts on what it shares with this one.
fn beside<S: Send + Sync + 'static, R: 'static>(
    shared: &Arc<S>,
    act: impl FnOnce(&S) -> R + Send + 'static,
) -> JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || act(&shared))
}

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
        let publisher = beside(&shared, move |s| {
            let mut p = Publisher::default();
            if p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, false) {
                s.kicks.fetch_add(1, Ordering::Relaxed);
            }
        });
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
        let publisher = beside(&shared, move |s| {
            let mut p = Publisher { streak: Publisher::LIGHT_AFTER - 1, ..<_>::default() };
            let mut kicks = 0;
            for index in 1..=2 {
                let rung = p.publish((&s.index, index), (&s.flags, 1), &s.need_kick, true);
                kicks += u32::from(rung);
            }
            s.kicks.fetch_add(kicks, Ordering::Relaxed);
        });
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
        let publisher = beside(&shared, move |s| {
            let mut p = Publisher { light: true, ..<_>::default() };
            p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, true);
            p.calm(&s.flags);
        });
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
        let publisher = beside(&shared, move |s| {
            s.kicks.store(7, Ordering::Relaxed); // stands for the slot
            let mut p = Publisher::default();
            p.publish((&s.index, 1), (&s.flags, 1), &s.need_kick, false);
        });
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
        let client = beside(&shared, move |s| {
            let mut p = Publisher::default();
            for head in 1..=2 {
                if p.publish((&s.index, head), (&s.flags, 1), &s.need_kick, false) {
                    s.kicks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
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
        let publisher = beside(&shared, move |s| {
            let mut ringer = Ringer::default();
            s.index.store(1, Ordering::Release);
            store_load_fence(); // where the worker's barrier hits this thread
            if ringer.must_ring(&s.need_kick) {
                s.kicks.fetch_add(1, Ordering::Relaxed);
                s.flags.store(0, Ordering::Release);
            }
        });
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

/// What a publisher and the threads of a sleeping client share.
#[derive(Default)]
struct Bells {
    indexes: [AtomicU32; 2],
    needs: [AtomicU32; 2],
    mode: AtomicU32,
    /// The futex.
    wakes: AtomicU32,
    /// Bytes in the descriptor.
    bytes: AtomicU32,
}

impl Bells {
    fn words(&self) -> WakeWords<'_> {
        WakeWords { mode: &self.mode, wakes: &self.wakes }
    }

    fn publish(&self, ring: usize, publisher: &mut Publisher) {
        let flags = AtomicU32::new(0);
        let (index, need) = (&self.indexes[ring], &self.needs[ring]);
        if publisher.publish((index, 1), (&flags, 1), need, false)
            && self.words().ring() == WakeBy::Descriptor
        {
            self.bytes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Arms and looks. `true`: nothing has come.
    fn arm(&self, ring: usize, sleeper: &mut Sleeper) -> bool {
        sleeper.arm(&self.needs[ring]);
        store_load_fence();
        self.indexes[ring].load(Ordering::Acquire) == 0
    }
}

/// A sleep by futex whose time is over at once goes on by descriptor. The thread that then
/// sleeps without a limit is woken, whatever the publisher saw of the change.
#[test]
fn a_change_of_the_mode_of_sleep_loses_no_wake_up() {
    loom::model(|| {
        let shared = Arc::new(Bells::default());
        let publisher = beside(&shared, move |s| s.publish(0, &mut Publisher::default()));
        let mut sleeper = Sleeper::default();
        shared.words().sleep_by(WakeBy::Futex);
        let seen = shared.words().wakes();
        if shared.arm(0, &mut sleeper) && shared.words().wakes() == seen {
            shared.words().sleep_by(WakeBy::Descriptor);
            if shared.arm(0, &mut sleeper) {
                sleep(&shared.bytes, &mut 0);
            }
        }
        publisher.join().unwrap();
    });
}

/// A sleep by futex needs no end of its time where the mode has not changed.
#[test]
fn a_sleep_by_futex_is_ended_by_the_futex() {
    loom::model(|| {
        let shared = Arc::new(Bells::default());
        let publisher = beside(&shared, move |s| s.publish(0, &mut Publisher::default()));
        let mut sleeper = Sleeper::default();
        shared.words().sleep_by(WakeBy::Futex);
        let mut seen = shared.words().wakes();
        if shared.arm(0, &mut sleeper) {
            sleep(&shared.wakes, &mut seen);
        }
        publisher.join().unwrap();
    });
}

/// Two threads of a client sleep for a ring each. One of them sleeps by futex for both; when
/// its time is over, it changes the mode, and has the other one arm once more.
#[test]
fn a_change_of_the_mode_of_sleep_wakes_the_other_threads_of_the_port() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Bells::default());
        shared.mode.store(BY_FUTEX, Ordering::Relaxed);
        let publisher = beside(&shared, move |s| s.publish(1, &mut Publisher::default()));
        let (mut other, seen) = (Sleeper::default(), shared.words().wakes());
        let waits = shared.arm(1, &mut other);
        let changer = beside(&shared, move |s| s.words().sleep_by(WakeBy::Descriptor));
        changer.join().unwrap();
        if waits && shared.words().wakes() == seen && shared.arm(1, &mut other) {
            sleep(&shared.bytes, &mut 0);
        }
        publisher.join().unwrap();
    });
}
