//! What the switch asks of a port.

use std::os::fd::BorrowedFd;

use ring::exchange::Giver;
use ring::krings::Krings;

use crate::model::stats::{Counters, DropReason, Drops};
use crate::offload::Offloads;
use crate::receive::batch::{Batch, Delivery};

/// What is plugged into a switch.
pub enum Plug {
    /// A port whose frames lie in netmap rings: the switch moves them itself, from ring to ring,
    /// without a call per frame.
    Rings(Krings, Box<dyn Wake>),
    /// A port with queues of its own, adapted to batches.
    Adapter(Box<dyn Adapter>),
}

/// Wakes the client of a port with rings.
pub trait Wake: Send {
    /// Rings the client's doorbell. Never blocks.
    fn wake(&self);
}

/// A port without rings. Dispatch through this trait is dynamic, once per batch.
pub trait Adapter: Send {
    /// Moves frames that have arrived into `batch`, as many as it has room for; counts in `drops`
    /// those that it could not take.
    fn recv(&mut self, _batch: &mut Batch, _drops: &mut Drops) {}

    /// What was received last has been delivered. Of frames that went [by
    /// exchange](Batch::trade_for) the batch has the buffers that came for theirs.
    fn take_back(&mut self, _batch: &Batch) {}

    /// What was received last has been delivered: nobody reads it any more. `true`: the peer may
    /// have to be woken for that, by a [flush](Adapter::flush).
    fn delivered(&mut self) -> bool {
        false
    }

    /// Sends the listed frames, in order. What does not fit is dropped and counted.
    /// Of [unfinished](Batch::left) ones it gets those that it [accepts](Adapter::accepts).
    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent;

    /// The same for frames that nobody else gets, and whose buffers the port may have for its own.
    fn take(&mut self, batch: &mut Batch, list: &[Delivery], _from: Giver<'_>) -> Sent {
        self.send(batch, list)
    }

    /// What may be left undone in frames that it is sent.
    fn accepts(&self) -> Offloads {
        Offloads::NONE
    }

    /// The turn is over: flushes what was sent, wakes the peer.
    fn flush(&mut self) {}

    /// Is it a socket of the kernel's, by which the host's interfaces are read and written? Who
    /// takes what is sent by it may need our core for it, and nothing says when they do not keep
    /// up: the worker gives it away after a turn that has sent something. And whoever sends what
    /// arrives there pays for waking us with each frame, as long as [`watched`](Adapter::watched)
    /// is: a busy one is not.
    fn is_socket(&self) -> bool {
        false
    }

    /// Has a flush left waking the peer for later? Then the worker [settles](Adapter::settle) that
    /// soon.
    fn owes(&self) -> bool {
        false
    }

    /// Wakes the peer if it is time. The worker stays awake until it is.
    fn settle(&mut self) {}

    /// Can frames that are not taken wait where they are, without waking the worker?
    fn can_wait(&self) -> bool {
        false
    }

    /// How many frames surely find room now, for a port that is waited for when it is full.
    fn room(&mut self) -> u32 {
        u32::MAX
    }

    /// Asks the peer to make [`watched`](Adapter::watched) readable when it makes room. The worker
    /// fences and asks [`room`](Adapter::room) before it sleeps.
    fn want_room(&mut self) {}

    /// Takes that request back.
    fn found_room(&mut self) {}

    /// Asks the peer to make [`watched`](Adapter::watched) readable when it has something, if that
    /// has to be asked for. The worker fences and looks at [`pending`](Adapter::pending) before it
    /// sleeps.
    fn arm(&mut self) {}

    /// Takes that request back.
    fn disarm(&mut self) {}

    /// Is there anything to receive? A port that is [watched](Adapter::watched) need not know.
    fn pending(&mut self) -> bool {
        false
    }

    /// What becomes readable when there is something to receive. It stays the same for the
    /// adapter's life; one that is closed early is watched no more.
    fn watched(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nothing will ever come again. What is watched is readable all the same, and is kept for whom
    /// the adapter is given to: to close it may take the kernel longer than a worker has time.
    fn is_over(&self) -> bool {
        false
    }
}

impl Plug {
    /// Asks the peer to ring the worker's doorbell when it has something. The worker fences and
    /// looks at [`Plug::pending`] before it sleeps.
    pub fn arm(&mut self) {
        match self {
            Self::Rings(host, _) => host.arm(),
            Self::Adapter(adapter) => adapter.arm(),
        }
    }

    /// From now on, wakes the client like this.
    pub fn set_wake(&mut self, wake: Box<dyn Wake>) {
        if let Self::Rings(_, old) = self {
            *old = wake;
        }
    }

    /// From now on, its frames have so many bytes in front. Ports without rings have none.
    pub fn set_front(&mut self, len: u8) {
        if let Self::Rings(host, _) = self {
            host.set_vnet_header_len(len);
        }
    }

    /// Takes that request back.
    pub fn disarm(&mut self) {
        match self {
            Self::Rings(host, _) => host.disarm(),
            Self::Adapter(adapter) => adapter.disarm(),
        }
    }

    /// Is there anything to receive?
    pub fn pending(&mut self) -> bool {
        match self {
            Self::Rings(host, _) => host.sync_tx() > 0 || host.has_returned(),
            Self::Adapter(adapter) => adapter.pending(),
        }
    }

    /// What the worker watches for the port, beside its own doorbell.
    #[must_use]
    pub fn watched(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Rings(..) => None,
            Self::Adapter(adapter) => adapter.watched(),
        }
    }

    /// Will nothing ever come again? See [`Adapter::is_over`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Adapter(adapter) if adapter.is_over())
    }

    /// Is it a socket of the kernel's? See [`Adapter::is_socket`].
    #[must_use]
    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Adapter(adapter) if adapter.is_socket())
    }

    /// Must the worker run its process-wide barrier on this peer's behalf before it sleeps? See
    /// [`ring::doorbell`].
    #[must_use]
    pub fn is_light(&self) -> bool {
        matches!(self, Self::Rings(host, _) if host.is_light())
    }

    /// What may be left undone in frames that it is sent.
    pub(crate) fn accepts(&self) -> Offloads {
        match self {
            Self::Rings(..) => Offloads::NONE,
            Self::Adapter(adapter) => adapter.accepts(),
        }
    }

    /// How often the peer's rings had to be re-synchronised.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        match self {
            Self::Rings(host, _) => host.resyncs(),
            Self::Adapter(_) => 0,
        }
    }

    /// Queues in each direction: how many rows of counters the port needs.
    #[must_use]
    pub fn queues(&self) -> usize {
        match self {
            Self::Rings(host, _) => host.tx.len().max(host.rx.len()),
            Self::Adapter(_) => 1,
        }
    }

    /// The rings, where there are any.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut Krings> {
        match self {
            Self::Rings(host, _) => Some(host),
            Self::Adapter(_) => None,
        }
    }
}

/// What became of a list of frames.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Delivered.
    pub delivered: Counters,
    /// Not delivered.
    pub drops: Drops,
}

impl Sent {
    /// Of frames that are sent one by one: `send` says of each how many bytes it has delivered.
    pub fn each(
        list: &[Delivery],
        mut send: impl FnMut(Delivery) -> Result<usize, DropReason>,
    ) -> Self {
        let mut sent = Self::default();
        for &delivery in list {
            match send(delivery) {
                Ok(bytes) => sent.delivered.add(1, bytes as u64),
                Err(why) => sent.drops.add(why, 1),
            }
        }
        sent
    }
}
