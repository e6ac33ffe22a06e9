//! Ports as the switch sees them: rings that it serves itself, or an adapter.
//!
//! # Theory of operation
//!
//! ```text
//!              ┌─ Rings:   netmap rings in shared memory; the switch copies or swaps, slot by slot
//!   Plug ──────┤
//!              └─ Adapter: a TAP device, a socket, a guest's virtqueues; batches go in and out
//! ```
//!
//! An adapter has two sides. [`Adapter`] moves frames, and the switch calls it during a turn.
//! [`Notify`] is the handshake that lets a worker sleep: arm, look once more, sleep, disarm. The
//! switch calls neither a clock nor the kernel; an adapter may do both. A call through either trait
//! is dynamic dispatch, at most a few times in a batch and never for each frame.
//!
//! The switch owns its plugs, and the worker that runs it is the only thread that calls them. A
//! switch of all workers has a replica in each: a replica has the plugs of its worker's ports, and
//! of all other ports the half that delivers ([`Plug::for_delivery`]), which workers take turns to
//! call ([`ring::shared`]).

use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use packet::PortId;
use packet::offload::Offloads;
use ring::exchange::Giver;
use ring::krings::Krings;
use ring::shared::Shared;

use crate::model::heartbeat::Stage;
use crate::model::stats::{Counters, DropReason, Drops};
use crate::receive::batch::{Batch, Delivery};

/// What is plugged into a port of the switch.
pub enum Plug {
    /// Netmap rings. The switch moves frames from ring to ring itself, without a call per frame.
    Rings(Krings, Arc<dyn Wake>),
    /// Queues of another kind, which an adapter turns into batches.
    Adapter(Shared<Box<dyn Adapter>>),
}

/// Wakes the client of a port with rings.
pub trait Wake: Send + Sync {
    /// Rings the client's doorbell. This never blocks.
    fn wake(&self);

    /// Rings if the client may be woken now, and says before in which step. `false`: the switch
    /// owes it the wake-up, for its user's other wake-ups have had their share of the worker's
    /// time.
    fn try_wake(&self, begin: &mut dyn FnMut(Stage)) -> bool {
        begin(Stage::Wake);
        self.wake();
        true
    }
}

/// The datapath of a port without rings.
pub trait Adapter: Notify {
    /// Moves frames that have arrived into `batch`, as many as it has room for. The adapter counts
    /// in `drops` the frames that it could not take.
    fn recv(&mut self, _batch: &mut Batch, _drops: &mut Drops) {}

    /// Says that the switch has delivered the batch, and returns it. Where frames went [by
    /// exchange](Batch::set_exchange), the batch holds the buffers that the adapter gets for them.
    fn take_back(&mut self, _batch: &Batch) {}

    /// Says that the switch has delivered the batch and reads its memory no more. `true`: the peer
    /// may wait for that, and the switch [flushes](Adapter::flush) the adapter.
    fn delivered(&mut self) -> bool {
        false
    }

    /// Sends the listed frames in order. The adapter drops and counts what does not fit. A frame
    /// with [work left to the device](Batch::offload) comes here only if the adapter
    /// [accepts](Adapter::accepts) that work.
    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent;

    /// Sends frames that no other port gets. The adapter may keep their buffers and give others.
    fn send_owned(&mut self, batch: &mut Batch, list: &[Delivery], _from: Giver<'_>) -> Sent {
        self.send(batch, list)
    }

    /// Sends the listed frames in order, up to the first that may find room later. Returns how many
    /// of them it has sent or dropped.
    fn send_until_full(&mut self, batch: &Batch, list: &[Delivery]) -> (Sent, usize) {
        (self.send(batch, list), list.len())
    }

    /// The offloads that the adapter accepts in frames that the switch sends to it.
    fn accepts(&self) -> Offloads {
        Offloads::NONE
    }

    /// Ends a turn: the adapter writes out what it was sent and wakes its peer.
    fn flush(&mut self) {}

    /// Whether frames that are not taken can wait in the peer's queue without waking the worker.
    fn can_wait(&self) -> bool {
        false
    }

    /// How many frames are sure to fit now. The switch asks where `on_full = wait`.
    fn room(&mut self) -> u32 {
        u32::MAX
    }

    /// The adapter itself, for orders that only the control thread and this kind of port know.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// The sleep and wake handshake of a port without rings.
///
/// A worker that has nothing to do arms every port, issues a full fence, and looks at
/// [`pending`](Notify::pending) once more. If no port has work, it sleeps on what the ports are
/// [watched](Notify::watch) by. When it wakes, it disarms them.
pub trait Notify: Send {
    /// Asks the peer for a notification when it has something to send.
    fn arm(&mut self) {}

    /// Withdraws the request of [`arm`](Notify::arm).
    fn disarm(&mut self) {}

    /// Whether there is anything to receive. A port that is [watched](Notify::watch) may leave
    /// that to the watcher and say no.
    fn pending(&mut self) -> bool {
        false
    }

    /// Has `bell` wake the worker whenever there is something to receive, until
    /// [`unwatch`](Notify::unwatch); `false`: nothing of this port rings. The switch does not know
    /// the type of the bell.
    fn watch(&mut self, _bell: &dyn Any) -> bool {
        false
    }

    /// Takes the bell away again.
    fn unwatch(&mut self, _bell: &dyn Any) {}

    /// Whether the peer is gone for good. Its descriptor stays readable, so the worker stops
    /// watching it. The adapter closes the descriptor when the control thread drops the adapter,
    /// because a close may take the kernel longer than a worker has time for.
    fn is_over(&self) -> bool {
        false
    }

    /// Asks the peer for a notification when it makes room. The worker issues a full fence and asks
    /// for the [room](Adapter::room) before it sleeps.
    fn want_room(&mut self) {}

    /// Withdraws the request of [`want_room`](Notify::want_room).
    fn found_room(&mut self) {}

    /// Whether a flush has put off waking the peer, to send fewer interrupts. The worker then calls
    /// [`wake_if_due`](Notify::wake_if_due) until the wake-up is done.
    fn owes_wake(&self) -> bool {
        false
    }

    /// Wakes the peer if its interrupt moderation timer has expired.
    fn wake_if_due(&mut self) {}

    /// Whether the adapter itself has frames to receive that answer what it was sent. The worker
    /// then gives the port a turn, without a notification.
    fn has_answers(&self) -> bool {
        false
    }

    /// Whether the adapter reads and writes a socket of the kernel.
    ///
    /// The process at the other end may need the worker's core to read what the switch has sent,
    /// and nothing shows that it falls behind. So the worker yields its core after a turn that has
    /// sent something to a socket. In the other direction a sender pays for each wake-up as long as
    /// the socket is watched. So the worker does not watch a busy socket; it polls.
    fn is_socket(&self) -> bool {
        false
    }
}

impl Plug {
    /// A port with rings.
    #[must_use]
    pub fn rings_with(krings: Krings, wake: impl Wake + 'static) -> Self {
        Self::Rings(krings, Arc::new(wake))
    }

    /// A port without rings.
    #[must_use]
    pub fn adapter(adapter: Box<dyn Adapter>) -> Self {
        Self::Adapter(Shared::sole(adapter))
    }

    /// Lets several workers deliver frames to the port.
    #[must_use]
    pub fn into_common(self) -> Self {
        match self {
            Self::Rings(krings, wake) => Self::Rings(krings.into_common(), wake),
            Self::Adapter(adapter) => Self::Adapter(adapter.into_common()),
        }
    }

    /// What another worker needs to deliver frames to the port. It receives nothing by that.
    ///
    /// # Panics
    /// If one worker has the port for itself: see [`Plug::into_common`].
    #[must_use]
    pub fn for_delivery(&self) -> Self {
        match self {
            Self::Rings(krings, wake) => Self::Rings(krings.for_delivery(), wake.clone()),
            Self::Adapter(adapter) => Self::Adapter(adapter.handle()),
        }
    }

    /// Asks the peer to ring the worker's doorbell when it has something to send. The worker issues
    /// a full fence and looks at [`Plug::pending`] before it sleeps.
    pub fn arm(&mut self) {
        match self {
            Self::Rings(krings, _) => krings.arm(),
            Self::Adapter(adapter) => adapter.lock().arm(),
        }
    }

    /// Withdraws the request of [`arm`](Plug::arm).
    pub fn disarm(&mut self) {
        match self {
            Self::Rings(krings, _) => krings.disarm(),
            Self::Adapter(adapter) => adapter.lock().disarm(),
        }
    }

    /// Replaces the adapter of a port without rings, for all workers; returns the old one.
    ///
    /// # Panics
    /// If the port has rings.
    pub fn replace_adapter(&mut self, adapter: Box<dyn Adapter>) -> Box<dyn Adapter> {
        let Self::Adapter(place) = self else { panic!("a port with rings has no adapter") };
        std::mem::replace(&mut *place.lock(), adapter)
    }

    /// Puts another adapter around that of a port without rings, for all workers.
    pub fn wrap_adapter(&mut self, wrap: impl FnOnce(Box<dyn Adapter>) -> Box<dyn Adapter>) {
        let Self::Adapter(place) = self else { return };
        let mut place = place.lock();
        let inner = std::mem::replace(&mut *place, Box::new(Nothing));
        *place = wrap(inner);
    }

    /// Calls `with` with the port's adapter, if it is an `A`: see [`Adapter::as_any`].
    pub fn with_adapter<A: 'static, R>(&mut self, with: impl FnOnce(&mut A) -> R) -> Option<R> {
        let Self::Adapter(adapter) = self else { return None };
        adapter.lock().as_any()?.downcast_mut().map(with)
    }

    /// Replaces the doorbell of a client with rings.
    pub fn set_wake(&mut self, wake: Arc<dyn Wake>) {
        if let Self::Rings(_, old) = self {
            *old = wake;
        }
    }

    /// Sets the length of the virtio-net header in front of each frame in the rings. Adapters keep
    /// such headers to themselves.
    pub fn set_vnet_header(&mut self, len: u8) {
        assert!([0, 10, 12].contains(&len), "a virtio-net header has 10 or 12 bytes, not {len}");
        if let Self::Rings(krings, _) = self {
            krings.set_vnet_header_len(len);
        }
    }

    /// Whether there is anything to receive.
    pub fn pending(&mut self) -> bool {
        match self {
            Self::Rings(krings, _) => krings.sync_tx() > 0 || krings.has_returned(),
            Self::Adapter(adapter) => adapter.lock().pending(),
        }
    }

    /// Has `bell` wake the worker for this port: see [`Notify::watch`].
    pub fn watch(&mut self, bell: &dyn Any) -> bool {
        match self {
            Self::Rings(..) => false,
            Self::Adapter(adapter) => adapter.lock().watch(bell),
        }
    }

    /// Takes the bell away again: see [`Notify::unwatch`].
    pub fn unwatch(&mut self, bell: &dyn Any) {
        if let Self::Adapter(adapter) = self {
            adapter.lock().unwatch(bell);
        }
    }

    /// Whether the peer is gone for good: see [`Notify::is_over`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Adapter(adapter) if adapter.with(|it| it.is_over()))
    }

    /// Whether the port is a socket of the kernel: see [`Notify::is_socket`].
    #[must_use]
    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Adapter(adapter) if adapter.with(|it| it.is_socket()))
    }

    /// Whether the client publishes without fences, so that the worker must issue a process-wide
    /// barrier for it before it sleeps: see [`ring::doorbell`].
    #[must_use]
    pub fn is_light(&self) -> bool {
        matches!(self, Self::Rings(krings, _) if krings.is_light())
    }

    /// The offloads that the peer accepts in frames that it gets.
    pub(crate) fn accepts(&self) -> Offloads {
        match self {
            Self::Rings(..) => Offloads::NONE,
            Self::Adapter(adapter) => adapter.with(|adapter| adapter.accepts()),
        }
    }

    /// Slots with frames in the rings, which the client has not returned or the switch has not
    /// taken.
    pub fn in_rings(&mut self) -> u64 {
        let Some(rings) = self.rings() else { return 0 };
        let unread = rings.rx.iter_mut().map(|rx| {
            let mut rx = rx.lock();
            rx.sync();
            u64::from(rx.unread())
        });
        unread.sum::<u64>() + rings.tx.iter_mut().map(|tx| u64::from(tx.sync())).sum::<u64>()
    }

    /// Slots with frames in the receive rings, which the client has not returned, and how many
    /// there can be.
    pub fn rx_fill(&mut self) -> Option<[u32; 2]> {
        let rings = self.rings()?;
        let fill = rings.rx.iter_mut().map(|rx| {
            let mut rx = rx.lock();
            rx.sync();
            [rx.unread(), rx.capacity()]
        });
        Some(fill.fold([0; 2], |[slots, all], [more, capacity]| [slots + more, all + capacity]))
    }

    /// How often the switch had to set right the indexes that a client wrote.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        match self {
            Self::Rings(krings, _) => krings.resyncs(),
            Self::Adapter(_) => 0,
        }
    }

    /// The number of queue pairs, which is the number of rows of counters.
    #[must_use]
    pub fn queues(&self) -> usize {
        let queues = match self {
            Self::Rings(krings, _) => krings.tx.len().max(krings.rx.len()),
            Self::Adapter(_) => 1,
        };
        assert!(queues > 0, "a port has a queue at least");
        queues
    }

    /// The rings of a port that has some.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut Krings> {
        match self {
            Self::Rings(krings, _) => Some(krings),
            Self::Adapter(_) => None,
        }
    }
}

/// In the place of an adapter that is being wrapped.
struct Nothing;

impl Adapter for Nothing {
    fn send(&mut self, _: &Batch, _: &[Delivery]) -> Sent {
        Sent::default()
    }
}

impl Notify for Nothing {}

/// How the frames of a list fared at one destination.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Frames that the destination has got.
    pub delivered: Counters,
    /// Frames that were dropped there, by reason.
    pub drops: Drops,
}

impl Sent {
    /// Sends a list frame by frame. `send` returns how many bytes it has delivered of each.
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
        debug_assert_eq!(sent.delivered.frames + sent.drops.total(), list.len() as u64);
        sent
    }
}

/// A receive ring without room that a frame waits for.
///
/// One word, so that a turn hands it on in registers. As fields of several sizes it would be copied
/// by wider loads than the stores that wrote it, and each of these waits until the stores before it
/// have reached the cache: those to the rings and buffers, too, whose lines other cores have.
///
/// ```text
///  63 62      61 60         48 47       32 31        0
/// ┌──┬──────────┬─────────────┬───────────┬───────────┐
/// │1 │ is brief │ port        │ queue     │ slots     │
/// └──┴──────────┴─────────────┴───────────┴───────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full(NonZeroU64);

impl Full {
    const SET: u64 = 1 << 63;
    const BRIEF_SHIFT: u32 = 61;
    const PORT_SHIFT: u32 = 48;
    const QUEUE_SHIFT: u32 = 32;

    /// A ring of a port, by its number, and the free slots that the frame needs. A frame whose wait
    /// is brief waits for microseconds at most, and the worker keeps looking meanwhile.
    pub(crate) fn new(port: PortId, queue: usize, slots: u32, is_brief: bool) -> Self {
        debug_assert!(queue <= 0xffff, "a port has few rings");
        let place = u64::from(port.number()) << Self::PORT_SHIFT
            | (queue as u64 & 0xffff) << Self::QUEUE_SHIFT;
        let word = Self::SET | u64::from(is_brief) << Self::BRIEF_SHIFT | place | u64::from(slots);
        Self(NonZeroU64::new(word).expect("one bit is set"))
    }

    /// The port.
    #[must_use]
    pub fn port(self) -> PortId {
        PortId::from_low_bits(self.0.get() >> Self::PORT_SHIFT)
    }

    /// The number of the ring.
    #[must_use]
    pub fn queue(self) -> usize {
        usize::try_from(self.0.get() >> Self::QUEUE_SHIFT & 0xffff).unwrap_or(0)
    }

    /// Free slots that the frame needs.
    #[must_use]
    pub fn slots(self) -> u32 {
        u32::try_from(self.0.get() & 0xffff_ffff).unwrap_or(0)
    }

    /// Whether the frame waits for microseconds at most, and the worker keeps looking meanwhile.
    #[must_use]
    pub fn is_brief(self) -> bool {
        self.0.get() >> Self::BRIEF_SHIFT & 1 != 0
    }
}

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brief = if self.is_brief() { ", briefly" } else { "" };
        let (port, queue, slots) = (self.port(), self.queue(), self.slots());
        write!(f, "{port:?}, ring {queue}: {slots} slots{brief}")
    }
}
