//! Captures: copies of the frames that pass a port, with the time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use protocol::name::{PortName, SwitchName};
use protocol::{Bind, BindKind, CaptureOf, DropsOf, Reply, Request, SessionRequest};
use ring::abi::slot_flag;

use crate::control::{Connection, ControlError, unexpected};
use crate::link::Link;
use crate::port::halves;
use crate::ptnet::DeviceError;
use crate::{Error, Frame, Options, Receiver, Rx, Stop, WaitPolicy};

/// Slots that go back to the switch at once: it may fill them while the caller has the next ones.
const PIECE: u32 = 256;

/// A running capture, of a port or of what a switch drops. No port waits for it: what finds no room
/// is [missed](Self::missed). Of a permanent port the capture goes on with the port's next client;
/// else it ends with the port ([`Error::CaptureEnded`]).
#[derive(Debug)]
pub struct Capture {
    receiver: Receiver,
    link: Arc<Link>,
    /// For a capture of drops.
    switch: Option<SwitchName>,
}

/// A frame that passed the port.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The frame where it lies in the ring.
    pub frame: Frame<'a>,
    /// Time at which the switch saw it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it entered the switch by the port; else it left by it.
    pub is_entering: bool,
}

impl Capture {
    /// Begins to capture frames of a port, in a ring of this many slots. `stop` ends waits.
    pub fn open(
        dir: Option<&Path>,
        port: PortName,
        of: CaptureOf,
        slots: u32,
        stop: &Stop,
    ) -> Result<Self, Error> {
        Self::begin(dir, port, BindKind::Capture(of), slots, stop)
    }

    /// Begins to capture the frames that a switch drops, likewise. Each stands behind a
    /// [`packet::dropped::Dropped`].
    ///
    /// # Panics
    /// Never: a name is made of the name of a switch.
    pub fn of_drops(
        dir: Option<&Path>,
        switch: &SwitchName,
        of: DropsOf,
        slots: u32,
        stop: &Stop,
    ) -> Result<Self, Error> {
        let label = format!("{switch}:d").parse().expect("a name of a port");
        let capture = Self::begin(dir, label, BindKind::Drops(of), slots, stop)?;
        Ok(Self { switch: Some(switch.clone()), ..capture })
    }

    fn begin(
        dir: Option<&Path>,
        port: PortName,
        kind: BindKind,
        slots: u32,
        stop: &Stop,
    ) -> Result<Self, Error> {
        if let Some(address) = port.pci_address() {
            return Err(DeviceError::Unsupported(address.to_owned(), "copies of its frames").into());
        }
        let connection = Connection::open(dir)?;
        connection.hello(&Options::new().introduction())?;
        let bind = Bind { kind, rx_slots: Some(slots), ..Bind::new(port) };
        let (bound, fds) = connection.bind(bind)?;
        let (policy, stop) = (WaitPolicy::default(), Some(stop.clone()));
        let (_, receiver) = halves(&bound.attached, fds, Some(connection), policy, stop)?;
        let link = receiver.link.clone();
        Ok(Self { receiver, link, switch: None })
    }

    /// Calls `each` for all frames that have arrived, as long as it says `true`. Returns the number
    /// of frames.
    pub fn take(&mut self, mut each: impl FnMut(Captured<'_>) -> bool) -> Result<u64, Error> {
        let rx = self.receiver.rx(0);
        let (mut frames, mut goes_on) = (0, rx.available() > 0);
        while goes_on {
            let piece = look(rx, &mut each);
            frames += piece.frames;
            // Behind the last frame there may be slots that the switch passed over.
            let slots = if piece.slots == 0 { rx.owned() } else { piece.slots };
            rx.release(slots)?;
            goes_on = piece.goes_on && rx.owned() > 0;
        }
        Ok(frames)
    }

    /// Waits for a frame. `false`: `timeout` is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.receiver.wait(timeout).map_err(|error| match (error, &self.switch) {
            (Error::Deleted(_), Some(switch)) => Error::DropsEnded(switch.clone()),
            (Error::Deleted(port), None) => Error::CaptureEnded(port),
            (error, _) => error,
        })
    }

    /// How many frames found no room in the ring.
    pub fn missed(&self) -> Result<u64, ControlError> {
        match self.link.call(Request::Session(SessionRequest::Missed))? {
            (Reply::Missed(frames), _) => Ok(frames),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// Frames that were looked at before their slots go back.
struct Piece {
    frames: u64,
    slots: u32,
    /// Whether more are wanted.
    goes_on: bool,
}

/// Calls `each` for the first [`PIECE`] slots of frames.
fn look(rx: &Rx, mut each: impl FnMut(Captured<'_>) -> bool) -> Piece {
    let mut piece = Piece { frames: 0, slots: 0, goes_on: true };
    for frame in rx.frames() {
        piece.frames += 1;
        piece.slots = frame.first_slot() + frame.slots();
        piece.goes_on = each(captured(rx, frame));
        if !piece.goes_on || piece.slots >= PIECE {
            break;
        }
    }
    piece
}

fn captured<'a>(rx: &'a Rx, frame: Frame<'a>) -> Captured<'a> {
    let first = frame.first_slot();
    let is_entering = rx.flags(first) & slot_flag::TXMON != 0;
    Captured { frame, time_ns: rx.mark(first), is_entering }
}
