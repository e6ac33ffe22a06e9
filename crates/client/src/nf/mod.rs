//! Functions of a chain: a callback for each frame, in place.
//!
//! ```no_run
//! use client::nf::{self, Action, Frame, Made};
//!
//! let mut port = client::Options::new().group("nf").open("vale0:fw")?;
//! let mut drop_arp = |frame: &mut Frame<'_>, _: &mut Made| match frame.bytes() {
//!     bytes if bytes.get(12..14) == Some(&[8, 6]) => Action::Drop,
//!     _ => Action::Next,
//! };
//! loop {
//!     nf::step(&mut port, &mut drop_arp, None)?; // sleeps while there is nothing to do
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), client::Error>(())
//! ```
//!
//! The port is an instance of a service (`uvala port add vale0:fw --service firewall`). Frames lie
//! in the memory of its trust group: what passes is passed on by exchanging buffers. What the
//! switch says of a frame, and is told, stands in its slot ([`Meta`]);
//! `docs/spec/frame-metadata.md` has the bits. A frame that is passed on keeps its place among the
//! others. Several cores: [`Threads`].

mod cores;
pub(crate) mod hops;
mod made;
mod meta;
mod names;
mod numbers;
mod service;
mod threads;

use std::time::Duration;

use ring::abi::{Slot, slot_flag};

use crate::api::{ErrorCode, Failure};
use crate::control::ControlError;
use crate::{Error, Port, Rx, Tx};
pub use cores::{CoreError, Cores};
use hops::Ways;
pub use made::{Held, Made, send};
pub use meta::Meta;
pub use names::{chain_number, port_number, service_number};
pub use numbers::{Number, Numbers, Shown};
pub use threads::{Failed, Instance, Threads, until_stopped};

/// Frames of a batch.
const BATCH: u32 = 128;
/// Bytes at the end of each buffer that are the functions' own.
pub const OWN_BYTES: usize = 16;

/// What is to become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next function of its chain, or its end.
    Next,
    /// Nothing; counted as `function`.
    Drop,
    /// To the service of this number.
    Service(u8),
    /// Out by the port of this number, or to that instance.
    Port(u16),
    /// Nothing yet: the function has a copy ([`Frame::to_held`]), which it sends later
    /// ([`Made::send_on`]).
    Hold,
}

/// Highest number of a port.
const PORT_MAX: u16 = 0xfff;

impl Action {
    /// What is no action: the switch drops the frame, and counts it as `bad_action`. So it does
    /// with what names a port or a service beyond those that there can be.
    pub const NONE: Self = Self::Service(u8::MAX);

    /// As it can be told to the switch.
    #[inline]
    fn told(self) -> Self {
        match self {
            Self::Port(port) if port > PORT_MAX => Self::NONE,
            action => action,
        }
    }
}

/// A frame, where it lies.
#[derive(Debug)]
pub struct Frame<'a> {
    buffer: &'a mut [u8],
    len: usize,
    is_whole: bool,
    /// What the switch says of it, and is told.
    pub meta: Meta,
}

impl<'a> Frame<'a> {
    /// A frame that fills this, for tests of functions: it is in no chain.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        let len = buffer.len();
        Self { buffer, len, is_whole: true, meta: Meta::default() }
    }

    /// The frame; of one that lies in several buffers, the beginning.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The same, to be changed.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }

    /// Does it lie in one buffer, as nearly all do?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How long it can become.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_whole { self.buffer.len().min(usize::from(u16::MAX)) } else { self.len }
    }

    /// Makes it longer or shorter; what is new are bytes of old frames. `false`: there is no room,
    /// or it lies in several buffers.
    pub fn resize(&mut self, len: usize) -> bool {
        let fits = self.is_whole && len <= self.room();
        if fits {
            self.len = len;
        }
        fits
    }

    /// The functions' own bytes, which travel with the buffer inside of the trust group; what is in
    /// them at first is anything. `None`: the frame reaches into them.
    #[must_use]
    pub fn own(&mut self) -> Option<&mut [u8; OWN_BYTES]> {
        let at = self.own_at()?;
        self.buffer[at..].first_chunk_mut()
    }

    fn own_at(&self) -> Option<usize> {
        self.buffer.len().checked_sub(OWN_BYTES).filter(|&at| self.len <= at)
    }

    /// A copy, to be sent on later; the functions' own bytes go with it. Of a frame that lies in
    /// several buffers it is the beginning alone.
    #[must_use]
    pub fn to_held(&self) -> Held {
        let at = self.own_at().filter(|_| self.is_whole);
        let own = at.and_then(|at| self.buffer[at..].first_chunk().copied());
        Held { bytes: self.bytes().to_vec(), meta: self.meta, own }
    }
}

/// A function.
pub trait Handler {
    /// What becomes of this frame?
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Made) -> Action;

    /// So many frames come now; of 0, nothing has come for a while.
    fn batch(&mut self, _frames: u32, _made: &mut Made) {}
}

impl<F: FnMut(&mut Frame<'_>, &mut Made) -> Action> Handler for F {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Made) -> Action {
        self(frame, made)
    }
}

/// Handles one batch of each receive ring, after waiting for it; returns the number of slots, 0
/// when `timeout` is over. Who never waits here has no direct hops: a doorbell of one's own event
/// loop is the port's alone. All goes out by the first transmit ring: one of each kind is enough.
///
/// # Errors
/// The daemon is gone. The port was no instance of a service when it was opened, or its switch had
/// no chains: frames would be flooded to functions there, and two send them round and round.
pub fn step(
    port: &mut Port,
    handler: &mut impl Handler,
    timeout: Option<Duration>,
) -> Result<u32, Error> {
    let mut made = Made::default();
    loop {
        check_port(port)?;
        hops::tend(port, timeout)?;
        let (mut ring, mut hop, mut taken) = (0, 0, 0);
        if let Some(hop) = hops::left_behind(port) {
            taken = batch(port, Source::Hop(hop), handler, &mut made)?;
            if taken > 0 {
                return send(port, made).map(|()| taken);
            }
        }
        // There may be fewer after a reconnect.
        while ring < port.rx_rings() {
            taken += batch(port, Source::Ring(ring), handler, &mut made)?;
            ring += 1;
        }
        while hop < port.hops.ins() {
            taken += batch(port, Source::Hop(hop), handler, &mut made)?;
            hop += 1;
        }
        let is_over = taken == 0 && !hops::wait_for_frames(port, timeout)?;
        if is_over {
            handler.batch(0, &mut made);
        }
        if is_over || taken > 0 {
            return send(port, made).map(|()| taken);
        }
    }
}

/// Is it a function's? It may have been opened again, after somebody took its service away.
#[inline]
fn check_port(port: &Port) -> Result<(), Error> {
    if port.receiver.is_function { Ok(()) } else { Err(no_function(port)) }
}

#[cold]
fn no_function(port: &Port) -> Error {
    let (name, switch) = (port.name(), port.name().switch());
    let why = format!(
        "port {name} is no instance of a service in a switch that has chains, and functions \
         elsewhere send frames round and round: uvala port set {name} --service NAME, uvala switch \
         set {switch} --forwarding chain; then open it again"
    );
    ControlError::Refused(Failure::new(ErrorCode::Unsupported, why)).into()
}

/// What can be done with the frames of a ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// So many slots of whole frames have room.
    Pass(u32),
    /// So many need room.
    Wait(u32),
    /// A frame of so many slots that never has room.
    TooLong(u32),
}

/// Looks at what has come, of which `max` slots count, and what is free.
pub(crate) fn look(tx: &mut Tx, rx: &Rx, ways: &mut Ways, max: u32) -> Look {
    let capacity = tx.capacity();
    // At most half of the ring: while the switch empties one, the other is filled.
    let count = whole_frames(rx, max.min(BATCH).min(capacity.div_ceil(2)).max(1));
    match tx.space() {
        _ if count > capacity => Look::TooLong(count),
        space if count > space => Look::Wait(count),
        _ if !ways.have_room(count) => Look::Wait(count),
        _ => Look::Pass(count),
    }
}

/// Where frames come from.
#[derive(Clone, Copy)]
enum Source {
    /// A ring of the port.
    Ring(usize),
    /// A direct hop.
    Hop(usize),
}

/// Handles what there is on a ring; returns the number of slots, 0 too if it has waited for room.
fn batch(
    port: &mut Port,
    source: Source,
    handler: &mut impl Handler,
    made: &mut Made,
) -> Result<u32, Error> {
    let (sender, receiver, hops) = port.parts();
    let (tx, (rx, ways, max)) = match source {
        Source::Ring(ring) => {
            let rx = receiver.rx(ring);
            let max = rx.available();
            (sender.tx(0), (rx, &mut hops.ways, max))
        }
        Source::Hop(hop) => (sender.tx(0), hops.source(hop, receiver)),
    };
    if max == 0 {
        return Ok(0);
    }
    let (taken, sent) = match look(tx, rx, ways, max) {
        Look::Pass(count) => {
            handler.batch(count, made);
            (count, pass((tx, ways), rx, count, handler, made))
        }
        Look::TooLong(count) => (count, 0),
        Look::Wait(count) => return hops::wait_for_room(port, count).map(|()| 0),
    };
    // Sent first: a slot that was given back says that its frame has gone on. That the daemon is
    // gone is for the next wait to find, which reconnects.
    ways.submit();
    let _ = tx.submit(sent);
    let _ = rx.release(taken);
    if let Source::Ring(ring) = source {
        hops.note_read(ring, taken);
    }
    Ok(taken)
}

/// Slots of frames whose ends are there too, about `max`.
fn whole_frames(rx: &Rx, max: u32) -> u32 {
    let ends = |count: &u32| rx.flags(count - 1) & slot_flag::MOREFRAG == 0;
    let last = (1..=rx.owned().min(max)).rev().find(ends);
    last.or_else(|| (max..=rx.owned()).find(ends)).unwrap_or(rx.owned())
}

/// The bits of a slot's flags that name it.
#[inline]
fn service(action: Action) -> u16 {
    if let Action::Service(number) = action { u16::from(number) << 8 } else { 0 }
}

/// Asks for every frame of so many slots; returns the slots filled of those that go to the switch.
pub(crate) fn pass(
    (tx, ways): (&mut Tx, &mut Ways),
    rx: &mut Rx,
    count: u32,
    handler: &mut impl Handler,
    made: &mut Made,
) -> u32 {
    let (mut filled, mut going_on) = (0, None);
    for i in 0..count {
        // Read once and written once: what stands there may be another's by now.
        let slot = rx.slot(i);
        let more = slot.flags & slot_flag::MOREFRAG;
        let buffer = rx.buffer_of(&slot);
        let len = buffer.len().min(slot.len.into());
        if len == 0 {
            continue;
        }
        let (action, meta, len) = match going_on {
            // A piece goes where its frame goes.
            Some((action, meta)) => (action, meta, len),
            None => {
                let meta = Meta::new(slot.ptr);
                let mut frame = Frame { buffer, len, is_whole: more == 0, meta };
                let action = handler.frame(&mut frame, made).told();
                (action, frame.meta, frame.len)
            }
        };
        going_on = (more != 0).then_some((action, meta));
        let ends_here = action == Action::Drop && !meta.is_valid();
        if ends_here || action == Action::Hold {
            continue;
        }
        let sent = Slot { len: u16::try_from(len).unwrap_or(u16::MAX), ..slot };
        if let Some(hop) = ways.of(action, meta) {
            hop.pass(rx, i, Slot { flags: more, ptr: meta.at_next().mark(), ..sent });
            continue;
        }
        let (flags, ptr) = (more | service(action), meta.with(action).mark());
        if rx.pass_as(i, tx, filled, Slot { flags, ptr, ..sent }) {
            filled += 1;
        }
    }
    filled
}
