//! Frames of a batch, from a ring to where their functions send them.

use ring::abi::{Slot, slot_flag};

use super::hops::Ways;
use super::{Action, BATCH, Frame, Handler, Made, Meta, step};
use crate::{Port, Rx, Tx};

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
    // At most half of the ring: while the switch empties one, the other is filled.
    let half = tx.capacity().div_ceil(2);
    room(tx, ways, whole_frames(rx, max.min(BATCH).min(half).max(1)))
}

/// Have a port and its hops room for so many slots?
pub(super) fn room(tx: &mut Tx, ways: &mut Ways, count: u32) -> Look {
    // Never in a ring that is shorter, however long a neighbour says that a frame is.
    if count > tx.capacity() || ways.rings().any(|tx| count > tx.capacity()) {
        return Look::TooLong(count);
    }
    let has_room = tx.space() >= count && ways.have_room(count);
    if has_room { Look::Pass(count) } else { Look::Wait(count) }
}

/// Slots of frames whose ends are there too, about `max`.
fn whole_frames(rx: &Rx, max: u32) -> u32 {
    let ends = |count: &u32| rx.flags(count - 1) & slot_flag::MOREFRAG == 0;
    let last = (1..=rx.owned().min(max)).rev().find(ends);
    last.or_else(|| (max..=rx.owned()).find(ends)).unwrap_or(rx.owned())
}

/// The handler of the port whose frames these are, and the functions that share its thread.
pub(crate) struct Others<'a, H> {
    own: &'a mut H,
    at: usize,
    before: (&'a mut [Port], &'a mut [H]),
    behind: (&'a mut [Port], &'a mut [H]),
    /// Slots filled of each one's ring, by its distance from the first.
    filled: [u32; step::TOGETHER_MAX],
}

impl<'a, H: Handler> Others<'a, H> {
    /// Of the port at this place, which is told apart.
    pub(super) fn of(
        ports: &'a mut [Port],
        at: usize,
        handlers: &'a mut [H],
    ) -> (&'a mut Port, Self) {
        let (before, rest) = ports.split_at_mut(at);
        let (port, behind) = rest.split_first_mut().expect("one of them");
        let (handlers_before, rest) = handlers.split_at_mut(at);
        let (own, handlers_behind) = rest.split_first_mut().expect("a handler for each");
        let (before, behind) = ((before, handlers_before), (behind, handlers_behind));
        (port, Self { own, at, before, behind, filled: [0; step::TOGETHER_MAX] })
    }

    /// Nobody but this one.
    #[cfg(test)]
    pub(crate) fn none(own: &'a mut H) -> Self {
        let (before, behind) = ((&mut [][..], &mut [][..]), (&mut [][..], &mut [][..]));
        Self { own, at: 0, before, behind, filled: [0; step::TOGETHER_MAX] }
    }

    fn get(&mut self, place: usize) -> (&mut Port, &mut H, &mut u32) {
        let (side, at) = match place.checked_sub(self.at + 1) {
            Some(behind) => (&mut self.behind, behind),
            None => (&mut self.before, place),
        };
        (&mut side.0[at], &mut side.1[at], &mut self.filled[place])
    }

    /// Hands over what they have filled.
    pub(super) fn submit(&mut self) {
        let (own, end) = (self.at, self.at + 1 + self.behind.0.len());
        for place in (0..own).chain(own + 1..end) {
            let (port, _, filled) = self.get(place);
            step::submit(port, *filled);
        }
    }
}

/// What a frame's pieces do, too.
#[derive(Clone, Copy)]
struct Going {
    /// The function that said so, if it is another than the batch's.
    whose: Option<usize>,
    action: Action,
    meta: Meta,
}

/// The bits of a slot's flags that name it.
#[inline]
pub(super) fn service(action: Action) -> u16 {
    if let Action::Service(number) = action { u16::from(number) << 8 } else { 0 }
}

/// Asks for every frame of so many slots; returns the slots filled of those that go to the switch.
pub(crate) fn pass<H: Handler>(
    (tx, ways): (&mut Tx, &mut Ways),
    rx: &mut Rx,
    count: u32,
    functions: &mut Others<'_, H>,
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
        let (going, len) = match going_on {
            // A piece goes where its frame goes.
            Some(going) => (going, len),
            None => {
                let meta = Meta::new(slot.ptr);
                let mut frame = Frame { buffer, len, is_whole: more == 0, meta };
                made.by(functions.at);
                let action = functions.own.frame(&mut frame, made).told();
                let first = Going { whose: None, action, meta: frame.meta };
                match ways.call(action, first.meta) {
                    None => (first, frame.len),
                    Some(next) => (call(functions, next, &mut frame, made), frame.len),
                }
            }
        };
        going_on = (more != 0).then_some(going);
        let Going { whose, action, meta } = going;
        let ends_here = action == Action::Drop && !meta.is_valid();
        if ends_here || action == Action::Hold {
            continue;
        }
        let sent = Slot { len: u16::try_from(len).unwrap_or(u16::MAX), ..slot };
        let sent = Slot { flags: more, ..sent };
        match whose {
            None => send_on((tx, ways, &mut filled), rx, i, sent, (action, meta)),
            Some(place) => {
                let (port, _, filled) = functions.get(place);
                let (sender, _, hops) = port.parts();
                let to = (sender.tx(0), &mut hops.ways, filled);
                send_on(to, rx, i, sent, (action, meta));
            }
        }
    }
    filled
}

/// Asks the function at a place of the thread, and those that it hands the frame on to.
fn call<H: Handler>(
    functions: &mut Others<'_, H>,
    mut place: usize,
    frame: &mut Frame<'_>,
    made: &mut Made,
) -> Going {
    loop {
        frame.meta = frame.meta.at_next();
        made.by(place);
        let (port, handler, _) = functions.get(place);
        let action = handler.frame(frame, made).told();
        match port.hops.ways.call(action, frame.meta) {
            Some(next) => place = next,
            None => return Going { whose: Some(place), action, meta: frame.meta },
        }
    }
}

/// Passes a slot on by a hop or to the switch.
#[inline(always)]
fn send_on(
    (tx, ways, filled): (&mut Tx, &mut Ways, &mut u32),
    rx: &mut Rx,
    i: u32,
    sent: Slot,
    (action, meta): (Action, Meta),
) {
    if let Some(hop) = ways.of(action, meta) {
        return hop.pass(rx, i, Slot { ptr: meta.at_next().mark(), ..sent });
    }
    let (flags, ptr) = (sent.flags | service(action), meta.with(action).mark());
    if rx.pass_as(i, tx, *filled, Slot { flags, ptr, ..sent }) {
        *filled += 1;
    }
}
