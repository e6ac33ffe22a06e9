//! A turn of a thread that has functions.

use std::time::{Duration, Instant};

use protocol::{ErrorCode, Failure};

use super::generated::{Generated, send_all};
use super::pass::{Look, Others, look, pass};
use super::{Handler, TOGETHER_MAX, call_setup, sleep};
use crate::control::ControlError;
use crate::port::Limit;
use crate::{Error, Port};

/// Handles one batch of each receive ring, after waiting for it; returns the number of slots, 0
/// when `timeout` is over. All frames go out by the first transmit ring: one of each kind is
/// enough.
///
/// # Errors
/// The daemon is gone. The port was no instance of a service when it was opened, or its switch had
/// no chains: there, flooded frames would circle between two functions.
pub fn step(
    port: &mut Port,
    handler: &mut impl Handler,
    timeout: Option<Duration>,
) -> Result<u32, Error> {
    step_all(std::slice::from_mut(port), std::slice::from_mut(handler), timeout)
}

/// Handles batches as [`step`] does, for up to [`TOGETHER_MAX`] functions that share a thread, each
/// with the handler at its place. If two of one trust group follow each other in a chain, and each
/// is the only instance of its service, the first passes its frames to the second by a call, while
/// the frame's first line is in the cache, and without a slot in between.
///
/// # Errors
/// As [`step`].
///
/// # Panics
/// If there are not as many handlers as ports, or more than that.
pub fn step_all<H: Handler>(
    ports: &mut [Port],
    handlers: &mut [H],
    timeout: Option<Duration>,
) -> Result<u32, Error> {
    assert!(ports.len() == handlers.len() && ports.len() <= TOGETHER_MAX, "a handler for each");
    let mut thread = Thread { ports, handlers, made: Generated::default(), told: 0 };
    let done = thread.run(timeout);
    // Generated frames are sent also if another function failed.
    let sent = send_all(thread.ports, thread.made);
    done.and_then(|taken| sent.map(|()| taken))
}

/// The functions of a thread, during a turn.
struct Thread<'a, H> {
    ports: &'a mut [Port],
    handlers: &'a mut [H],
    made: Generated,
    /// The functions that were told of a batch, one bit each.
    told: u8,
}

impl<H: Handler> Thread<'_, H> {
    fn run(&mut self, timeout: Option<Duration>) -> Result<u32, Error> {
        let (is_single, patience) = (self.ports.len() == 1, sleep::patience(self.ports.len()));
        let limit = Limit::new(timeout.filter(|_| !is_single));
        loop {
            for port in &mut *self.ports {
                check_port(port)?;
                call_setup::ask(port, is_single);
            }
            if let Some(full) = call_setup::join(self.ports) {
                sleep::for_room(&mut self.ports[full], u32::MAX, patience)?;
                check_port(&self.ports[full])?;
                call_setup::join(self.ports);
            }
            let mut taken = 0;
            for at in 0..self.ports.len() {
                taken += self.turn(at)?;
            }
            let left = if is_single { timeout } else { limit.left() };
            let is_over = taken == 0 && !sleep::for_frames(self.ports, left)?;
            if is_over {
                (0..self.ports.len()).for_each(|at| self.tell(at, 0));
            } else if taken > 0 && !is_single {
                self.tick(timeout);
            }
            if is_over || taken > 0 {
                return Ok(taken);
            }
        }
    }

    /// Tells a function how many frames come.
    fn tell(&mut self, at: usize, frames: u32) {
        self.told |= 1 << at;
        self.made.by(at);
        self.handlers[at].batch(frames, &mut self.made);
    }

    /// Tells functions that nothing has come for a while, also if others are busy.
    fn tick(&mut self, tick: Option<Duration>) {
        let Some(tick) = tick else { return };
        let now = Instant::now();
        for at in 0..self.ports.len() {
            let told = self.ports[at].calls.told.get_or_insert(now);
            let is_due = now.saturating_duration_since(*told) >= tick;
            let was_told = self.told & 1 << at != 0;
            if was_told || is_due {
                *told = now;
            }
            if is_due && !was_told {
                self.tell(at, 0);
            }
        }
    }

    /// Handles a batch of each ring of one of them.
    fn turn(&mut self, at: usize) -> Result<u32, Error> {
        let (mut ring, mut taken) = (0, 0);
        // There may be fewer after a reconnect.
        while ring < self.ports[at].rx_rings() {
            taken += self.batch(at, ring)?;
            ring += 1;
        }
        Ok(taken)
    }

    /// Handles a batch of a ring of one of the ports; returns the number of slots, 0 also if it has
    /// waited for room.
    fn batch(&mut self, at: usize, ring: usize) -> Result<u32, Error> {
        let Some(called) = call_setup::called(self.ports, at) else { return Ok(0) };
        let (sender, receiver, _) = self.ports[at].parts();
        let (tx, rx) = (sender.tx(0), receiver.rx(ring));
        let available = rx.available();
        if available == 0 {
            return Ok(0);
        }
        let count = match look(tx, rx, available) {
            Look::Wait(count) => return self.wait_for_room(at, count),
            Look::TooLong(count) => {
                release(&mut self.ports[at], ring, count);
                return Ok(count);
            }
            Look::Pass(count) => count,
        };
        called.for_each(|place| self.tell(place, count));
        self.tell(at, count);
        let (port, mut others) = Others::of(self.ports, at, self.handlers);
        let (sender, receiver, calls) = port.parts();
        let (tx, rx) = (sender.tx(0), receiver.rx(ring));
        let sent = pass((tx, calls), rx, count, &mut others, &mut self.made);
        // Sent first: a returned slot means that its frame was sent on. If the daemon is gone, the
        // next wait finds that, and reconnects.
        if sent > 0 {
            let _ = tx.submit(sent);
        }
        others.count(port);
        release(port, ring, count);
        Ok(count)
    }

    /// Waits until a port has room, perhaps of another daemon.
    fn wait_for_room(&mut self, place: usize, count: u32) -> Result<u32, Error> {
        let patience = sleep::patience(self.ports.len());
        sleep::for_room(&mut self.ports[place], count, patience)?;
        check_port(&self.ports[place])?;
        call_setup::join(self.ports);
        Ok(0)
    }
}

/// Whether the port is a function's. It may have been opened again, after its service was taken
/// away.
#[inline]
fn check_port(port: &Port) -> Result<(), Error> {
    if port.receiver.is_function { Ok(()) } else { Err(no_function(port)) }
}

#[cold]
fn no_function(port: &Port) -> Error {
    let (name, switch) = (port.name(), port.name().switch());
    let (named, cure) = match name.pci_address() {
        None => (format!("{name} --service NAME, uvala switch set {switch}"), "open it again"),
        Some(_) => (
            "PORT --service NAME, uvala switch set SWITCH".to_owned(),
            "start uvala-device again, all that outside of this virtual machine",
        ),
    };
    let why = format!(
        "port {name} is not an instance of a service in a switch with chains, so a function there \
         would send frames in a loop: uvala port set {named} --forwarding chain; then {cure}"
    );
    ControlError::Refused(Failure::new(ErrorCode::Unsupported, why)).into()
}

/// Returns slots of a ring.
fn release(port: &mut Port, ring: usize, count: u32) {
    let (_, receiver, calls) = port.parts();
    let _ = receiver.rx(ring).release(count);
    calls.note_read(ring, count);
}
