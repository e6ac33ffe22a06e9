//! A turn of a thread that has functions.

use std::time::{Duration, Instant};

use protocol::{ErrorCode, Failure};

use super::hops::{self, Ways};
use super::made::{Made, send_all};
use super::pass::{Look, Others, look, pass, room};
use super::{Handler, sleep};
use crate::control::ControlError;
use crate::port::Limit;
use crate::{Error, Port};

/// Most functions of one thread, as many as a chain has services.
pub const TOGETHER_MAX: usize = 8;

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
    step_all(std::slice::from_mut(port), std::slice::from_mut(handler), timeout)
}

/// The same for functions that share a thread, each with the handler at its place, and up to
/// [`TOGETHER_MAX`] of them: where a direct hop joins two, what the first hands on the second gets
/// by a call, while its line is in the cache, and without a slot in between.
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
    let mut thread = Thread { ports, handlers, made: Made::default(), told: 0 };
    let done = thread.run(timeout);
    // What functions have made goes out, whatever has become of another.
    let sent = send_all(thread.ports, thread.made);
    done.and_then(|taken| sent.map(|()| taken))
}

/// Functions of a thread, in a turn of it.
struct Thread<'a, H> {
    ports: &'a mut [Port],
    handlers: &'a mut [H],
    made: Made,
    /// Bits of those that were told of a batch.
    told: u8,
}

impl<H: Handler> Thread<'_, H> {
    fn run(&mut self, timeout: Option<Duration>) -> Result<u32, Error> {
        let (is_single, patience) = (self.ports.len() == 1, sleep::patience(self.ports.len()));
        let limit = Limit::new(timeout.filter(|_| !is_single));
        loop {
            for port in &mut *self.ports {
                check_port(port)?;
                hops::tend(port, timeout, patience)?;
            }
            hops::join(self.ports);
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

    /// Tells a function that so many frames come.
    fn tell(&mut self, at: usize, frames: u32) {
        self.told |= 1 << at;
        self.made.by(at);
        self.handlers[at].batch(frames, &mut self.made);
    }

    /// Functions that were told of nothing for so long are told so, while others are busy.
    fn tick(&mut self, tick: Option<Duration>) {
        let Some(tick) = tick else { return };
        let now = Instant::now();
        for at in 0..self.ports.len() {
            let told = self.ports[at].hops.told.get_or_insert(now);
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

    /// Handles a batch of each ring and hop of one of them.
    fn turn(&mut self, at: usize) -> Result<u32, Error> {
        // What it sent has to be out before its frames go another way.
        if self.ports[at].hops.awaits() {
            return Ok(0);
        }
        if let Some(hop) = hops::left_behind(&mut self.ports[at]) {
            let taken = self.batch(at, Source::Hop(hop))?;
            if taken > 0 {
                return Ok(taken);
            }
        }
        let (mut ring, mut hop, mut taken) = (0, 0, 0);
        // There may be fewer after a reconnect.
        while ring < self.ports[at].rx_rings() {
            taken += self.batch(at, Source::Ring(ring))?;
            ring += 1;
        }
        while hop < self.ports[at].hops.ins() {
            taken += self.batch(at, Source::Hop(hop))?;
            hop += 1;
        }
        Ok(taken)
    }

    /// Handles what there is at a source of one of the ports; returns the number of slots, 0 too if
    /// it has waited for room.
    fn batch(&mut self, at: usize, source: Source) -> Result<u32, Error> {
        let Some(called) = hops::called(self.ports, at) else { return Ok(0) };
        let called = (0..self.ports.len()).filter(move |place| called & 1 << place != 0);
        let half = |place: usize| self.ports[place].parts().0.tx(0).capacity().div_ceil(2);
        let most = called.clone().map(half).min().unwrap_or(u32::MAX);
        let count = match what_has_room(&mut self.ports[at], source, most) {
            None => return Ok(0),
            Some(Look::Wait(count)) => return self.wait_for_room(at, count),
            Some(Look::TooLong(count)) => {
                release(&mut self.ports[at], source, count);
                return Ok(count);
            }
            Some(Look::Pass(count)) => count,
        };
        for place in called.clone() {
            let (sender, _, hops) = self.ports[place].parts();
            match room(sender.tx(0), &mut hops.ways, count) {
                Look::Pass(_) => self.tell(place, count),
                Look::Wait(_) => return self.wait_for_room(place, count),
                Look::TooLong(_) => {
                    release(&mut self.ports[at], source, count);
                    return Ok(count);
                }
            }
        }
        self.tell(at, count);
        let (port, mut others) = Others::of(self.ports, at, self.handlers);
        let (sender, receiver, hops) = port.parts();
        let (rx, ways) = match source {
            Source::Ring(ring) => (receiver.rx(ring), &mut hops.ways),
            Source::Hop(hop) => hops.rings(hop),
        };
        let sent = pass((sender.tx(0), ways), rx, count, &mut others, &mut self.made);
        // Sent first: a slot that was given back says that its frame has gone on. That the daemon
        // is gone is for the next wait to find, which reconnects.
        others.submit();
        submit(port, sent);
        release(port, source, count);
        Ok(count)
    }

    /// Waits until one of them has room. It may be another daemon's then.
    fn wait_for_room(&mut self, place: usize, count: u32) -> Result<u32, Error> {
        let patience = sleep::patience(self.ports.len());
        sleep::for_room(&mut self.ports[place], count, patience)?;
        check_port(&self.ports[place])?;
        hops::join(self.ports);
        Ok(0)
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

/// Where frames come from.
#[derive(Clone, Copy)]
enum Source {
    /// A ring of the port.
    Ring(usize),
    /// A direct hop.
    Hop(usize),
}

/// Hands over what was filled, in hops and for the switch.
pub(super) fn submit(port: &mut Port, filled: u32) {
    let (sender, _, hops) = port.parts();
    hops.ways.submit();
    if filled > 0 {
        let _ = sender.tx(0).submit(filled);
    }
}

/// Gives slots of a source back.
fn release(port: &mut Port, source: Source, count: u32) {
    let (_, receiver, hops) = port.parts();
    let _ = match source {
        Source::Ring(ring) => receiver.rx(ring).release(count),
        Source::Hop(hop) => hops.rings(hop).0.release(count),
    };
    if let Source::Ring(ring) = source {
        hops.note_read(ring, count);
    }
}

/// What can be done with what a source has, if it has anything: with about `most` slots of it.
fn what_has_room(port: &mut Port, source: Source, most: u32) -> Option<Look> {
    let (sender, receiver, hops) = port.parts();
    let (rx, ways, max): (_, &mut Ways, _) = match source {
        Source::Ring(ring) => {
            let rx = receiver.rx(ring);
            let max = rx.available();
            (rx, &mut hops.ways, max)
        }
        Source::Hop(hop) => {
            let max = hops.ready(hop, receiver);
            let (rx, ways) = hops.rings(hop);
            (rx, ways, max)
        }
    };
    (max > 0).then(|| look(sender.tx(0), rx, ways, max.min(most)))
}
