//! Setting calls up: which functions of a thread follow which, step by step as [`super::calls`]
//! draws it.

use protocol::{ErrorCode, FunctionRequest, PortRef, Reply, Request};

use super::calls::{Calls, Follower, Start, State};
use crate::Port;
use crate::control::ControlError;

/// Bits of the place itself and of those that are called from it, directly or not.
fn reached(ports: &[Port], at: usize) -> u8 {
    let (mut all, mut seen) = (1u8 << at, 0u8);
    while all != seen {
        let place = (all & !seen).trailing_zeros() as usize;
        seen |= 1 << place;
        // A place of an earlier step with more ports is none of these.
        all |= ports.get(place).map_or(0, |port| port.calls.places());
    }
    all
}

fn bits(bits: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |place| bits & 1 << place != 0)
}

/// The places that a function calls, directly or not. `None`: it takes no frames now.
pub(super) fn called(ports: &[Port], at: usize) -> Option<impl Iterator<Item = usize> + use<>> {
    let all = reached(ports, at);
    let is_ready =
        !ports[at].calls.is_paused && !bits(all).any(|place| ports[place].calls.is_starting());
    is_ready.then(|| bits(all & !(1 << at)))
}

/// Asks the daemon which functions follow one, if there may be something new. A function that is
/// alone in its thread does not ask.
pub(super) fn ask(port: &mut Port, is_alone: bool) {
    let calls = &mut port.calls;
    calls.was_asked &= !port.receiver.news.is_new();
    port.receiver.news.note();
    if is_alone || calls.is_deaf || calls.was_asked {
        return;
    }
    calls.was_asked = true;
    let name = port.name().clone();
    match port.sender.link().call(Request::Function(FunctionRequest::Next(PortRef { port: name })))
    {
        Ok((Reply::NextFunctions(routes), _)) => port.calls.set(routes),
        // A daemon of another version. What is refused later was overtaken by a change.
        Err(ControlError::Refused(failure)) if failure.code != ErrorCode::NotFound => {
            port.calls.is_deaf = true;
        }
        // A daemon that is gone is for the next wait to find.
        Ok(_) | Err(_) => {}
    }
}

/// Finds out which functions that follow are in this thread, and begins to call them. Returns the
/// place of a port whose transmit ring has to be empty first, if there is one.
pub(super) fn join(ports: &mut [Port]) -> Option<usize> {
    for at in 0..ports.len() {
        for which in 0..ports[at].calls.followers.len() {
            let state = place(ports, at, which);
            let follower = &mut ports[at].calls.followers[which];
            if follower.state != state {
                follower.state = state;
                ports[at].calls.index();
            }
        }
    }
    ports.iter_mut().for_each(|port| port.calls.is_paused = false);
    let mut holds_up = None;
    for at in 0..ports.len() {
        for which in 0..ports[at].calls.followers.len() {
            holds_up = start(ports, at, which).or(holds_up);
        }
    }
    holds_up
}

/// Where a follower is now.
fn place(ports: &[Port], at: usize, which: usize) -> State {
    let Follower { port, state } = &ports[at].calls.followers[which];
    let known = match *state {
        State::Starting(place, _) | State::Called(place) => Some(place),
        State::Elsewhere => None,
    };
    let is_it = |place: &usize| ports.get(*place).is_some_and(|other| other.name() == port);
    if known.as_ref().is_some_and(is_it) {
        return state.clone();
    }
    match (0..ports.len()).find(is_it).filter(|to| reached(ports, *to) & 1 << at == 0) {
        Some(to) => State::Starting(to, Start::Taken),
        None => State::Elsewhere,
    }
}

/// Goes on with what comes before a call, as far as it can now. Returns the place of a port whose
/// transmit ring has to be empty first.
fn start(ports: &mut [Port], at: usize, which: usize) -> Option<usize> {
    loop {
        let state = ports[at].calls.followers[which].state.clone();
        let State::Starting(to, step) = state else { return None };
        let next = match step {
            Start::Taken => {
                let calls_it = |from: usize| reached(ports, from) & 1 << at != 0;
                let callers: Vec<_> = (0..ports.len()).filter(|from| calls_it(*from)).collect();
                let full = callers.into_iter().find(|from| !is_drained(&mut ports[*from]));
                if full.is_some() {
                    return full;
                }
                State::Starting(to, Start::Read(due(&mut ports[to])))
            }
            Start::Read(due) => {
                let read = &ports[to].calls.read;
                let mut due = due.iter().enumerate();
                let is_read = due.all(|(ring, due)| read.get(ring).unwrap_or(&0) >= due);
                if !is_read && holds_frames(&mut ports[to]) {
                    return None;
                }
                State::Starting(to, Start::Sent)
            }
            Start::Sent if !is_drained(&mut ports[to]) => {
                ports[to].calls.is_paused = true;
                return Some(to);
            }
            Start::Sent => State::Called(to),
        };
        ports[at].calls.followers[which].state = next;
        ports[at].calls.index();
    }
}

/// Whether the switch has taken all frames that functions of this port have sent.
fn is_drained(port: &mut Port) -> bool {
    port.sender.tx(0).ring().is_drained()
}

/// How many slots of each receive ring will have been given back when all of now are.
fn due(port: &mut Port) -> Vec<u64> {
    let read = |calls: &Calls, ring| calls.read.get(ring).copied().unwrap_or(0);
    let (_, receiver, calls) = port.parts();
    let rings = 0..receiver.rings();
    rings.map(|ring| read(calls, ring) + u64::from(receiver.rx(ring).available())).collect()
}

/// Whether a receive ring of the port holds a frame.
fn holds_frames(port: &mut Port) -> bool {
    let (_, receiver, _) = port.parts();
    (0..receiver.rings()).any(|ring| receiver.rx(ring).available() > 0)
}
