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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use device::virtqueue::{Broken, Queue};
use ring::guest::GuestMemory;

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
    /// May it carry frames? If not, what the driver sends is thrown away.
    pub enabled: bool,
    /// Bytes in front of each frame.
    pub header: usize,
    /// May a frame fill several buffers?
    pub mergeable: bool,
    /// Why it is not used any more.
    pub trouble: Option<Trouble>,
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
pub struct Hand {
    orders: Sender<Order>,
    mail: Arc<Mail>,
}

/// There is an order.
///
/// | word | writer | reader | ordering |
/// |---|---|---|---|
/// | `waiting` = true | protocol thread | worker | `SeqCst` after the order is sent / Relaxed |
/// | `waiting` = false | worker | worker | `SeqCst` before it looks for orders / Relaxed |
///
/// The word carries no data: the channel orders those. A worker clears it before it looks into the
/// channel, so an order that it finds nothing of is sent later, and sets the word again. One that
/// sleeps is woken by the event, which is set last.
#[derive(Debug)]
pub(super) struct Mail {
    waiting: AtomicBool,
    event: Event,
}

impl Mail {
    /// Is there? Asked by the worker in each turn.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

/// The worker's end.
pub(super) struct Inbox {
    orders: Receiver<Order>,
    pub(super) mail: Arc<Mail>,
}

impl Inbox {
    pub(super) fn next(&self) -> Option<Order> {
        // First: an order that comes after this is not overlooked.
        self.mail.waiting.store(false, Ordering::SeqCst);
        self.orders.try_recv().ok()
    }
}

/// Both ends.
pub(super) fn hands() -> std::io::Result<(Hand, Inbox)> {
    let (orders, inbox) = channel();
    let mail = Arc::new(Mail { waiting: AtomicBool::new(false), event: Event::new()? });
    Ok((Hand { orders, mail: mail.clone() }, Inbox { orders: inbox, mail }))
}

/// What a session does with its queues.
pub trait Queues {
    /// Puts a queue, or none, in the place of another, which it returns.
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>>;
    /// Tells the network where an address is now.
    fn announce(&mut self, address: [u8; 6]);
}

impl Hand {
    /// Gives an order and waits until it is followed: there is never more than one.
    fn call(&self, order: impl FnOnce(Sender<Option<Box<Ring>>>) -> Order) -> Option<Box<Ring>> {
        let (reply, answer) = channel();
        // A worker that is gone has let go of its queues.
        self.orders.send(order(reply)).ok()?;
        self.mail.waiting.store(true, Ordering::SeqCst);
        self.mail.event.set();
        answer.recv().ok()?
    }
}

impl Queues for &mut Hand {
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        self.call(|reply| Order::Swap(at, ring, reply))
    }

    fn announce(&mut self, address: [u8; 6]) {
        self.call(|reply| Order::Announce(address, reply));
    }
}
