//! Queues on their way between the thread that speaks the protocol and the worker.
//!
//! ```text
//!   protocol thread ──── Order: put this in the place of queue n ────► worker, between two turns
//!                   ◄─── what was there, or the order itself ─────────
//! ```
//!
//! A queue is used by one side at a time, and goes from hand to hand as a whole, with the guest's
//! memory that it lies in. Whoever wants to change anything about it takes it out first. What it
//! leaves behind is dropped by the protocol thread: unmapping takes time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use device::pending::Pending;
use device::virtqueue::{Broken, Queue};
use packet::offload::Offloads;
use ring::guest::GuestMemory;
use ring::guest::log::DirtyLog;

use crate::sys::vhost::{Call, Event};

/// A queue in use.
#[derive(Debug)]
pub struct Ring {
    /// The queue.
    pub queue: Queue,
    /// What it lies in.
    pub memory: Arc<GuestMemory>,
    /// Whom to tell; nobody, if the driver polls.
    pub call: Option<Arc<Call>>,
    /// Where written pages are noted, while the machine moves.
    pub log: Option<Arc<DirtyLog>>,
    /// Whom to tell of that.
    pub log_call: Option<Arc<Call>>,
    /// May it carry frames? If not, what the driver sends is thrown away.
    pub enabled: bool,
    /// Bytes in front of each frame.
    pub header: usize,
    /// May a frame fill several buffers?
    pub mergeable: bool,
    /// What may be left undone in frames that the driver receives.
    pub accepts: Offloads,
    /// Why it is not used any more.
    pub trouble: Option<Trouble>,
}

impl Ring {
    /// Was any memory taken away that it uses?
    pub fn is_lost(&self) -> bool {
        let beside = self.log.as_ref().is_some_and(|log| log.is_lost());
        self.memory.is_lost() || beside || self.queue.has_lost_track()
    }

    /// May frames be put into it?
    pub(super) fn is_usable(&self) -> bool {
        self.enabled && self.trouble.is_none()
    }

    /// How many frames surely find room. One that its driver takes unfinished may fill as many
    /// buffers of a usual size as the longest has.
    pub(super) fn room(&self) -> u32 {
        const BUFFERS_MOST: u32 = 44;
        let buffers = u32::from(self.queue.available());
        if self.accepts == Offloads::NONE { buffers } else { buffers.div_ceil(BUFFERS_MOST) }
    }
}

/// What ends the use of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Its driver wrote nonsense.
    #[error("its driver broke the rules: {0}")]
    Broken(#[from] Broken),
    /// Its memory was taken away.
    #[error("the memory of its machine was truncated or taken away")]
    Lost,
}

/// Something for the worker to do.
pub(super) enum Order {
    /// Puts a queue in the place of another.
    Swap(usize, Option<Box<Ring>>, Sender<Option<Box<Ring>>>),
    /// Sends an announcement of this address.
    Announce([u8; 6], Sender<Option<Box<Ring>>>),
}

/// The protocol thread's end.
#[derive(Debug)]
pub struct Handoff {
    orders: Sender<Order>,
    signal: Arc<Signal>,
}

/// There is an order, as [`device::pending`] says it.
#[derive(Debug)]
pub(super) struct Signal {
    pending: Pending,
    event: Event,
}

impl Signal {
    /// Is there? Asked by the worker in each turn.
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
    orders: Receiver<Order>,
    pub(super) signal: Arc<Signal>,
}

impl Orders {
    pub(super) fn next(&self) -> Option<Order> {
        // First: an order that comes after this is not overlooked.
        self.signal.pending.clear();
        self.orders.try_recv().ok()
    }
}

/// Both ends.
pub(super) fn pair() -> std::io::Result<(Handoff, Orders)> {
    let (sender, orders) = channel();
    let signal = Arc::new(Signal { pending: Pending::default(), event: Event::new()? });
    Ok((Handoff { orders: sender, signal: signal.clone() }, Orders { orders, signal }))
}

/// What a session does with its queues.
pub trait Queues {
    /// Puts a queue, or none, in the place of another, which it returns.
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>>;
    /// Tells the network where an address is now.
    fn announce(&mut self, address: [u8; 6]);
}

impl Handoff {
    /// Gives an order and waits until it is followed: there is never more than one.
    fn call(&self, order: impl FnOnce(Sender<Option<Box<Ring>>>) -> Order) -> Option<Box<Ring>> {
        let (reply, answer) = channel();
        // A worker that is gone has let go of its queues.
        self.orders.send(order(reply)).ok()?;
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

    /// A worker that follows so many orders, asleep until it is woken.
    fn worker(orders: Orders, count: usize) -> Vec<Option<[u8; 6]>> {
        let mut followed = Vec::new();
        while followed.len() < count {
            wait([Some(orders.signal.event().as_fd())], None).expect("an event");
            orders.signal.event().clear();
            // Woken for orders that it has followed already, it finds none.
            while let Some(order) = orders.next() {
                let (address, reply) = match order {
                    Order::Swap(_, _, reply) => (None, reply),
                    Order::Announce(address, reply) => (Some(address), reply),
                };
                reply.send(None).expect("whoever asks waits");
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
        // One that goes with an order unread.
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
