//! A flag for pending requests: how a worker learns that another thread wants something of it.
//!
//! Requests go through a channel. A worker looks in each turn, and a channel is expensive, so a
//! flag says that a request may be pending; an event wakes a worker that sleeps:
//!
//! ```text
//!   sender                          worker, in each turn
//!   send it                         LOAD  pending: anything?
//!   STORE pending = true            STORE pending = false
//!   set the event                   receive, until there is nothing; look again when woken
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `pending` = true | the sender | worker | `SeqCst` after the order is sent / Relaxed |
//! | `pending` = false | worker | worker | `SeqCst` before it looks for orders / Relaxed |
//!
//! The word carries no data: the channel orders those. A worker clears it before it looks into the
//! channel, so an order that it finds nothing of is sent later, and sets the word again. One that
//! sleeps is woken by the event, which is set last. The model at the end checks that with loom.

use crate::atomic::{AtomicBool, Ordering};

/// Whether a request is pending.
#[derive(Debug, Default)]
pub struct Pending(AtomicBool);

impl Pending {
    /// Marks that a request was sent. The sender sets the worker's event after this.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether a request is pending. The worker asks in each turn.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag. The worker reads the channel after this, so it does not miss a later
    /// request.
    pub fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// The event that wakes a sleeper; a sleeper does not miss one that was set before.
    #[derive(Default)]
    struct Event {
        is_set: Mutex<bool>,
        changed: Condvar,
    }

    impl Event {
        fn set(&self) {
            *self.is_set.lock().unwrap() = true;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut is_set = self.is_set.lock().unwrap();
            while !*is_set {
                is_set = self.changed.wait(is_set).unwrap();
            }
            *is_set = false;
        }
    }

    /// A channel with one request at most, because the sender waits for each.
    #[derive(Default)]
    struct Shared {
        order: Mutex<Option<u32>>,
        pending: Pending,
        wake: Event,
        followed: Event,
    }

    /// Sleeps while there is nothing to do; ends after `count` requests.
    fn worker(shared: &Shared, count: u32) {
        let mut followed = 0;
        while followed < count {
            if !shared.pending.is_set() {
                shared.wake.wait();
            }
            // As in a turn of the worker.
            if shared.pending.is_set() {
                loop {
                    shared.pending.clear();
                    let Some(number) = shared.order.lock().unwrap().take() else { break };
                    assert_eq!(number, followed);
                    followed += 1;
                    shared.followed.set();
                }
            }
        }
    }

    /// Checks that every request is handled. If one were missed, both threads would sleep, which
    /// loom finds.
    fn every_order_is_followed(count: u32) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let theirs = shared.clone();
            let worker = thread::spawn(move || worker(&theirs, count));
            for number in 0..count {
                *shared.order.lock().unwrap() = Some(number);
                shared.pending.set();
                shared.wake.set();
                shared.followed.wait();
            }
            worker.join().unwrap();
        });
    }

    #[test]
    fn an_order_is_followed() {
        every_order_is_followed(1);
    }

    #[test]
    fn orders_are_followed_one_after_the_other() {
        every_order_is_followed(2);
    }
}
