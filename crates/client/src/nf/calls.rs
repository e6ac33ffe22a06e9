//! Calls between functions of one thread.
//!
//! # Theory of operation
//!
//! Functions of one thread ([`super::step_all`]) can follow each other in a chain. The first then
//! hands a frame to the second by a call, and the last of them sends it by the ring of the first,
//! with the position of the last one in its mark. The switch goes on from there: it sees the frame
//! once, and no buffer leaves the port that it came to.
//!
//! ```text
//!   switch ──► port of a ─► a ──call──► b ─┐
//!   switch ◄── port of a ◄─────────────────┘
//! ```
//!
//! Which function follows, the daemon says: for each chain, order of services and position the port
//! of the next one ([`NextFunction`]). It raises a word of the port ([`ring::user::News`]) and wakes
//! the function when the answer changes. Frames of a chain that has changed meanwhile go by the
//! switch, because their order is another.
//!
//! *Order of frames.* A call must not overtake frames that went by the switch before:
//!
//! ```text
//!   Taken ── nothing is left in the transmit rings of a, and of those that call a ──►
//!   Read  ── b has read what its receive rings held at that moment ──►
//!   Sent  ── nothing is left in the transmit ring of b ──► Called
//! ```
//!
//! Until the end, neither a nor those that call it take frames; in the last step b takes none. The
//! switch publishes a frame before it gives the slot back that it came from, so what a has sent
//! stands in a ring of b, or is lost, when a's ring is empty. To end a call needs no such care: the
//! ring of a keeps frames in order.
//!
//! *No circles.* A call that would lead back to its caller is not made: that frame goes by the
//! switch.

use std::time::Instant;

use protocol::name::PortName;
use protocol::{ErrorCode, FunctionRequest, NextFunction, PortRef, Reply, Request};

use super::{Action, Metadata};
use crate::Port;
use crate::control::ControlError;

/// Chains, and positions in them.
const CHAINS: usize = 256;
const POSITIONS: usize = 8;
/// No function of this thread follows.
const BY_SWITCH: u8 = u8::MAX;

/// The functions that a function calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    followers: Vec<Follower>,
    routes: Vec<NextFunction>,
    /// The routes by chains; there is a table only while a function is called.
    table: Option<Box<[Row; CHAINS]>>,
    /// The daemon does not know the question.
    is_deaf: bool,
    was_asked: bool,
    /// Slots that were given back, by receive rings.
    read: Vec<u64>,
    /// The function takes no frames until its transmit ring is empty.
    is_paused: bool,
    /// When the function was last told of frames, or that there are none, if it shares a thread.
    pub(super) told: Option<Instant>,
}

/// The way of the frames of a chain.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The row is for frames of this order.
    order: Option<u8>,
    /// Place in the thread of the function that follows, by position.
    places: [u8; POSITIONS],
}

/// A function that follows.
#[derive(Clone, Debug)]
struct Follower {
    port: PortName,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It is no function of this thread, or calling it would lead back here.
    Elsewhere,
    /// It is at this place of the thread; frames that went by the switch are still on their way.
    Starting(usize, Start),
    /// It is at this place, and gets frames by calls.
    Called(usize),
}

/// What has to happen before the next step, see the module's drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    Taken,
    /// So many slots of each receive ring have to be given back, all in all.
    Read(Vec<u64>),
    Sent,
}

impl Calls {
    /// Place in the thread of the function that gets the frame by a call, if one does.
    #[inline]
    pub(super) fn next(&self, action: Action, meta: Metadata) -> Option<usize> {
        let table = self.table.as_ref()?;
        let goes_on = action == Action::Next && meta.is_valid() && meta.may_hop();
        if !goes_on {
            return None;
        }
        let row = &table[meta.chain()];
        let place = row.places[meta.position()];
        (row.order == Some(meta.order()) && place != BY_SWITCH).then_some(place.into())
    }

    /// So many slots of a receive ring were given back.
    pub(super) fn note_read(&mut self, ring: usize, count: u32) {
        self.read.resize(self.read.len().max(ring + 1), 0);
        self.read[ring] += u64::from(count);
    }

    /// Takes over an answer of the daemon. A call goes on where its frames are the same, or fewer.
    fn set(&mut self, routes: Vec<NextFunction>) {
        let mut followers: Vec<Follower> = Vec::new();
        for NextFunction { port, .. } in &routes {
            if followers.iter().any(|follower| follower.port == *port) {
                continue;
            }
            let is_new = |next: &NextFunction| next.port == *port && !self.routes.contains(next);
            let old = self.followers.iter().find(|old| old.port == *port);
            let old = old.filter(|_| !routes.iter().any(is_new));
            let state = old.map_or(State::Elsewhere, |old| old.state.clone());
            followers.push(Follower { port: port.clone(), state });
        }
        (self.routes, self.followers) = (routes, followers);
        self.index();
    }

    fn index(&mut self) {
        self.table = None;
        for next in &self.routes {
            let follower = self.followers.iter().find(|follower| follower.port == next.port);
            let Some(&Follower { state: State::Called(place), .. }) = follower else { continue };
            let fresh = || Box::new([Row { order: None, places: [BY_SWITCH; POSITIONS] }; CHAINS]);
            let row = &mut self.table.get_or_insert_with(fresh)[usize::from(next.chain)];
            row.order = Some(next.order);
            let place = u8::try_from(place).expect("a thread has few functions");
            row.places[usize::from(next.position) % POSITIONS] = place;
        }
    }

    /// Bits of the places that are called, or will be.
    fn places(&self) -> u8 {
        let bit = |follower: &Follower| match follower.state {
            State::Elsewhere => 0,
            State::Starting(place, _) | State::Called(place) => 1 << place,
        };
        self.followers.iter().map(bit).fold(0, |bits, bit| bits | bit)
    }

    fn is_starting(&self) -> bool {
        self.followers.iter().any(|follower| matches!(follower.state, State::Starting(..)))
    }
}

/// Bits of the place itself and of those that are called from it, directly or not.
fn reached(ports: &[Port], at: usize) -> u8 {
    let (mut all, mut seen) = (1u8 << at, 0u8);
    while all != seen {
        let place = (all & !seen).trailing_zeros() as usize;
        seen |= 1 << place;
        all |= ports[place].calls.places();
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
        // It is of another version. What is refused later was overtaken by something.
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

/// Has the switch taken everything that functions of this port have sent?
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

/// Does a receive ring of the port hold a frame?
fn holds_frames(port: &mut Port) -> bool {
    let (_, receiver, _) = port.parts();
    (0..receiver.rings()).any(|ring| receiver.rx(ring).available() > 0)
}
