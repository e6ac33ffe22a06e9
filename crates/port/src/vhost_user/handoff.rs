//! Queue hand-off between the protocol thread and the worker.
//!
//! ```text
//!   protocol thread ──── Order: put this in the place of queue n ────► worker, between two turns
//!                   ◄─── what was there, or the order itself ─────────
//! ```
//!
//! One side at a time owns a queue, together with the guest memory that it is in. The protocol
//! thread takes a queue out before it changes anything about it, and drops what a queue leaves
//! behind: unmapping takes time.
//!
//! A request comes with the admission of its frontend. So the worker can follow the requests of an
//! evicted frontend, and give the queues back, without serving any of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use device::pending::Pending;
use device::virtqueue::{Broken, Queue};
use packet::offload::Offloads;
use ring::guest::GuestMemory;
use ring::guest::log::DirtyLog;

use crate::machine::requests::Admission;
use crate::sys::vhost::{Call, Event};

/// A queue in use.
#[derive(Debug)]
pub struct Ring {
    /// The virtqueue.
    pub queue: Queue,
    /// The guest memory that the queue is in.
    pub memory: Arc<GuestMemory>,
    /// The eventfd that interrupts the driver; `None` if the driver polls.
    pub call: Option<Arc<Call>>,
    /// The log of dirty pages, while the guest is migrated.
    pub log: Option<Arc<DirtyLog>>,
    /// The eventfd that signals changes of the log.
    pub log_call: Option<Arc<Call>>,
    /// The queue carries frames. Otherwise the port drops what the driver sends.
    pub enabled: bool,
    /// The length of the header in front of each frame.
    pub header: usize,
    /// A frame may fill several buffers.
    pub mergeable: bool,
    /// The offloads that the driver accepts in frames that it receives.
    pub accepts: Offloads,
    /// The most buffers that the driver has made available at a time, as far as a queue in front of
    /// this one has seen.
    pub most: u16,
    /// Why the worker has stopped the queue.
    pub trouble: Option<Trouble>,
}

impl Ring {
    /// Whether memory that the queue uses was truncated or punched.
    pub fn is_lost(&self) -> bool {
        let beside = self.log.as_ref().is_some_and(|log| log.is_lost());
        self.memory.is_lost() || beside || self.queue.has_lost_track()
    }

    /// The cause of an invalid queue: if memory was truncated, its zeros are.
    #[cold]
    pub(super) fn trouble_of(&self, why: Broken) -> Trouble {
        if self.is_lost() { Trouble::Lost } else { Trouble::Broken(why) }
    }

    /// Whether the switch can put frames into the queue.
    pub(super) fn is_usable(&self) -> bool {
        self.enabled && self.trouble.is_none()
    }

    /// How many frames fit in any case. With segmentation offload, a frame may fill as many buffers
    /// of the usual size as the longest frame needs.
    pub(super) fn room(&self) -> u32 {
        const BUFFERS_MOST: u32 = 44;
        let buffers = u32::from(self.queue.available());
        if self.accepts == Offloads::NONE { buffers } else { buffers.div_ceil(BUFFERS_MOST) }
    }
}

/// Why the worker stops a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The driver wrote an invalid descriptor or index.
    #[error("its driver violated the virtio specification: {0}")]
    Broken(#[from] Broken),
    /// The memory was truncated or punched.
    #[error("the memory of its machine was truncated or taken away")]
    Lost,
}

/// A request to the worker.
pub(super) enum Order {
    /// Replaces the queue of this number, and returns the old one.
    Swap(usize, Option<Box<Ring>>, Sender<Option<Box<Ring>>>),
    /// Sends an announcement (RARP) of this MAC address.
    Announce([u8; 6], Sender<Option<Box<Ring>>>),
}

/// The protocol thread's end.
#[derive(Debug)]
pub struct Handoff {
    orders: Sender<(Admission, Order)>,
    signal: Arc<Signal>,
    /// The admission of the frontend that has the port.
    admission: Admission,
}

/// The signal that a request is pending, as [`device::pending`] describes it.
#[derive(Debug)]
pub(super) struct Signal {
    pending: Pending,
    event: Event,
}

impl Signal {
    /// Whether a request is pending. The worker asks in each turn.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.pending.is_set()
    }

    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

/// The worker's end.
pub(super) struct Orders {
    orders: Receiver<(Admission, Order)>,
    pub(super) signal: Arc<Signal>,
}

impl Orders {
    /// The next request, with the admission of its frontend.
    pub(super) fn next(&self) -> Option<(Admission, Order)> {
        // Cleared first, so that a request that comes later is not missed.
        self.signal.pending.clear();
        self.orders.try_recv().ok()
    }
}

/// Both ends of a new hand-off.
pub(super) fn pair() -> std::io::Result<(Handoff, Orders)> {
    let (sender, orders) = channel();
    let signal = Arc::new(Signal { pending: Pending::default(), event: Event::new()? });
    let (theirs, admission) = (signal.clone(), Admission::default());
    Ok((Handoff { orders: sender, signal: theirs, admission }, Orders { orders, signal }))
}

/// What a session does with its queues.
pub trait Queues {
    /// Replaces the queue of number `at`, and returns the old one.
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>>;
    /// Announces a MAC address to the network.
    fn announce(&mut self, address: [u8; 6]);
}

impl Handoff {
    /// The requests from here on are those of another frontend. The worker has no queue of the last
    /// one.
    pub(super) fn begin(&mut self, admission: Admission) {
        self.admission = admission;
    }

    /// Sends a request and waits for the answer; there is never more than one.
    fn call(&self, order: impl FnOnce(Sender<Option<Box<Ring>>>) -> Order) -> Option<Box<Ring>> {
        let (reply, answer) = channel();
        // A worker that has ended has dropped its queues.
        self.orders.send((self.admission, order(reply))).ok()?;
        self.signal.pending.set();
        self.signal.event.set();
        answer.recv().ok()?
    }
}

impl Queues for &mut Handoff {
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        self.call(|reply| Order::Swap(at, ring, reply))
    }

    fn announce(&mut self, address: [u8; 6]) {
        self.call(|reply| Order::Announce(address, reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::vhost::wait;
    use std::os::fd::AsFd;

    /// A worker that handles this many requests, and sleeps between them.
    fn worker(orders: Orders, count: usize) -> Vec<Option<[u8; 6]>> {
        let mut followed = Vec::new();
        while followed.len() < count {
            wait([Some(orders.signal.event().as_fd())], None).expect("an event");
            orders.signal.event().clear();
            // A wake-up may come for a request that was handled already.
            while let Some((_, order)) = orders.next() {
                let (address, reply) = match order {
                    Order::Swap(_, _, reply) => (None, reply),
                    Order::Announce(address, reply) => (Some(address), reply),
                };
                reply.send(None).expect("the sender waits");
                followed.push(address);
            }
        }
        followed
    }

    #[test]
    fn orders_are_followed_by_a_worker_that_sleeps_and_waited_for() {
        let (mut handoff, orders) = pair().expect("descriptors");
        let mut handoff = &mut handoff;
        let worker = std::thread::spawn(move || worker(orders, 200));
        for number in 0..100 {
            assert!(handoff.swap(number, None).is_none());
            handoff.announce([number.try_into().expect("small"); 6]);
        }
        let followed = worker.join().expect("it does not panic");
        let announced: Vec<u8> = followed.iter().flatten().map(|address| address[0]).collect();
        assert_eq!(announced, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn nobody_waits_for_a_worker_that_is_gone() {
        let (mut handoff, orders) = pair().expect("descriptors");
        drop(orders);
        assert!((&mut handoff).swap(0, None).is_none());
        // A worker that ends before it reads a request.
        let (mut handoff, orders) = pair().expect("descriptors");
        let worker = std::thread::spawn(move || {
            while !orders.signal.is_set() {
                std::thread::yield_now();
            }
            drop(orders);
        });
        (&mut handoff).announce([1; 6]);
        worker.join().expect("it does not panic");
    }
}
