//! A turn of a thread that has functions.

use std::time::Duration;

use super::hops::{self, Ways};
use super::made::{Made, send_all};
use super::pass::{Look, Others, look, pass};
use super::{Handler, sleep};
use crate::api::{ErrorCode, Failure};
use crate::control::ControlError;
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
    let (mut made, patience) = (Made::default(), sleep::patience(ports.len()));
    loop {
        for port in &mut *ports {
            check_port(port)?;
            hops::tend(port, timeout, patience)?;
        }
        hops::join(ports);
        let mut taken = 0;
        for at in 0..ports.len() {
            taken += turn(ports, at, handlers, &mut made)?;
        }
        let is_over = taken == 0 && !sleep::for_frames(ports, timeout)?;
        for (at, handler) in handlers.iter_mut().enumerate().filter(|_| is_over) {
            made.by(at);
            handler.batch(0, &mut made);
        }
        if is_over || taken > 0 {
            return send_all(ports, made).map(|()| taken);
        }
    }
}

/// Handles a batch of each ring and hop of one of them.
fn turn<H: Handler>(
    ports: &mut [Port],
    at: usize,
    handlers: &mut [H],
    made: &mut Made,
) -> Result<u32, Error> {
    if let Some(hop) = hops::left_behind(&mut ports[at]) {
        let taken = batch(ports, (at, Source::Hop(hop)), handlers, made)?;
        if taken > 0 {
            return Ok(taken);
        }
    }
    let (mut ring, mut hop, mut taken) = (0, 0, 0);
    // There may be fewer after a reconnect.
    while ring < ports[at].rx_rings() {
        taken += batch(ports, (at, Source::Ring(ring)), handlers, made)?;
        ring += 1;
    }
    while hop < ports[at].hops.ins() {
        taken += batch(ports, (at, Source::Hop(hop)), handlers, made)?;
        hop += 1;
    }
    Ok(taken)
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

/// Handles what there is at a source of one of the ports; returns the number of slots, 0 too if it
/// has waited for room.
fn batch<H: Handler>(
    ports: &mut [Port],
    (at, source): (usize, Source),
    handlers: &mut [H],
    made: &mut Made,
) -> Result<u32, Error> {
    let patience = sleep::patience(ports.len());
    let wait = |port: &mut Port, count| sleep::for_room(port, count, patience).map(|_| 0);
    let count = match what_has_room(&mut ports[at], source) {
        None => return Ok(0),
        Some(Look::Wait(count)) => return wait(&mut ports[at], count),
        Some(Look::TooLong(count)) => {
            release(&mut ports[at], source, count);
            return Ok(count);
        }
        Some(Look::Pass(count)) => count,
    };
    match hops::called(ports, at, count) {
        hops::Called::Held => return Ok(0),
        hops::Called::TooLong => {
            release(&mut ports[at], source, count);
            return Ok(count);
        }
        hops::Called::Full(full) => return wait(&mut ports[full], count),
        hops::Called::Ready(called) => {
            for at in (0..ports.len()).filter(|other| *other == at || called & 1 << other != 0) {
                made.by(at);
                handlers[at].batch(count, made);
            }
        }
    }
    let (port, mut others) = Others::of(ports, at, handlers);
    let (sender, receiver, hops) = port.parts();
    let (rx, ways) = match source {
        Source::Ring(ring) => (receiver.rx(ring), &mut hops.ways),
        Source::Hop(hop) => hops.rings(hop),
    };
    let sent = pass((sender.tx(0), ways), rx, count, &mut others, made);
    // Sent first: a slot that was given back says that its frame has gone on. That the daemon is
    // gone is for the next wait to find, which reconnects.
    others.submit();
    submit(port, sent);
    release(port, source, count);
    Ok(count)
}

/// Hands over what was filled, in hops and for the switch.
pub(super) fn submit(port: &mut Port, filled: u32) {
    let (sender, _, hops) = port.parts();
    hops.ways.submit();
    let _ = sender.tx(0).submit(filled);
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

/// What can be done with what a source has, if it has anything.
fn what_has_room(port: &mut Port, source: Source) -> Option<Look> {
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
    (max > 0).then(|| look(sender.tx(0), rx, ways, max))
}
