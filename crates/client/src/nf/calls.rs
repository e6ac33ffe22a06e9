//! Calls between functions of one thread.
//!
//! # Theory of operation
//!
//! Functions of one thread ([`super::step_all`]) can follow each other in a chain. The first then
//! passes a frame to the second by a call, and the frame leaves by the ring of the first, with the
//! position of the last function in its metadata. The switch goes on from there: it sees the frame
//! once, and no buffer leaves the port at which it arrived.
//!
//! ```text
//!   switch ──► port of a ─► a ──call──► b ─┐
//!   switch ◄── port of a ◄─────────────────┘
//! ```
//!
//! The daemon says which function follows: for each chain, order of services and position, the
//! port of the next one ([`NextFunction`]). It raises a word of the port ([`ring::user::News`]) and
//! wakes the function when the answer changes. Frames of a chain that has changed meanwhile go
//! through the switch, because their order number is another.
//!
//! *Order of frames.* A call must not overtake frames that went through the switch before:
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
//! *No circles.* A call that would lead back to its caller is not made: that frame goes through
//! the switch.

use std::time::Instant;

use protocol::NextFunction;
use protocol::name::PortName;

use super::{Action, Metadata};

/// Chains, and positions in them.
const CHAINS: usize = 256;
const POSITIONS: usize = 8;
/// No function of this thread follows.
const BY_SWITCH: u8 = u8::MAX;

/// The functions that a function calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(super) followers: Vec<Follower>,
    routes: Vec<NextFunction>,
    /// The routes by chains; there is a table only while a function is called.
    table: Option<Box<[Row; CHAINS]>>,
    /// The daemon does not know the call.
    pub(super) is_deaf: bool,
    pub(super) was_asked: bool,
    /// The number of returned slots, by receive ring.
    pub(super) read: Vec<u64>,
    /// The function takes no frames until its transmit ring is empty.
    pub(super) is_paused: bool,
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
pub(super) struct Follower {
    pub(super) port: PortName,
    pub(super) state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The follower is no function of this thread, or calling it would lead back here.
    Elsewhere,
    /// The follower is at this place of the thread; frames that the switch forwards to it are
    /// still on their way.
    Starting(usize, Start),
    /// The follower is at this place, and gets frames by calls.
    Called(usize),
}

/// What has to happen before the next step, see the module's drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Taken,
    /// Each receive ring must have returned this many slots in total.
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

    /// Notes that the function has returned this many slots of a receive ring.
    pub(super) fn note_read(&mut self, ring: usize, count: u32) {
        self.read.resize(self.read.len().max(ring + 1), 0);
        self.read[ring] += u64::from(count);
    }

    /// Takes over an answer of the daemon. A call goes on where its frames are the same, or fewer.
    pub(super) fn set(&mut self, routes: Vec<NextFunction>) {
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

    pub(super) fn index(&mut self) {
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
    pub(super) fn places(&self) -> u8 {
        let bit = |follower: &Follower| match follower.state {
            State::Elsewhere => 0,
            State::Starting(place, _) | State::Called(place) => 1 << place,
        };
        self.followers.iter().map(bit).fold(0, |bits, bit| bits | bit)
    }

    pub(super) fn is_starting(&self) -> bool {
        self.followers.iter().any(|follower| matches!(follower.state, State::Starting(..)))
    }
}
