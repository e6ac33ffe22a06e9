//! Frames of a batch, from a ring to where their functions send them.

use ring::abi::{Slot, slot_flag};

use super::calls::Calls;
use super::{Action, BATCH, Frame, Generated, Handler, Metadata, TOGETHER_MAX};
use crate::{Port, Rx, Tx};

/// What can be done with the frames of a ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// There is room for this many slots of whole frames.
    Pass(u32),
    /// This many slots need room.
    Wait(u32),
    /// A frame of this many slots that never has room.
    TooLong(u32),
}

/// Looks at what has come, of which `max` slots count, and what is free.
pub(crate) fn look(tx: &mut Tx, rx: &Rx, max: u32) -> Look {
    // At most half of the ring: while the switch empties one, the other is filled.
    let half = tx.capacity().div_ceil(2);
    let count = whole_frames(rx, max.min(BATCH).min(half).max(1));
    // Never in a ring that is shorter, however long a neighbour says that a frame is.
    if count > tx.capacity() {
        return Look::TooLong(count);
    }
    if tx.space() >= count { Look::Pass(count) } else { Look::Wait(count) }
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
    counts: [Counts; TOGETHER_MAX],
}

/// What a function got by calls in a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    called: u32,
    /// Frames that it passed on without a ring of its own, or that another dropped behind it.
    passed: u32,
}

impl<'a, H: Handler> Others<'a, H> {
    /// The functions beside the port at this place, which is returned apart.
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
        (port, Self { own, at, before, behind, counts: Default::default() })
    }

    /// A function that is alone.
    #[cfg(test)]
    pub(crate) fn none(own: &'a mut H) -> Self {
        let (before, behind) = ((&mut [][..], &mut [][..]), (&mut [][..], &mut [][..]));
        Self { own, at: 0, before, behind, counts: Default::default() }
    }

    fn get(&mut self, place: usize) -> (&mut Port, &mut H, &mut Counts) {
        let (side, at) = match place.checked_sub(self.at + 1) {
            Some(behind) => (&mut self.behind, behind),
            None => (&mut self.before, place),
        };
        (&mut side.0[at], &mut side.1[at], &mut self.counts[place])
    }

    /// Adds what the functions got by calls to the counters of their ports, and of `port`, the one
    /// apart.
    pub(super) fn count(mut self, port: &Port) {
        for place in 0..self.counts.len() {
            let Counts { called, passed } = self.counts[place];
            if called + passed > 0 {
                let port = if place == self.at { port } else { self.get(place).0 };
                port.receiver.rings[0].count_calls(called, passed);
            }
        }
    }
}

/// What becomes of a frame's pieces, too.
#[derive(Clone, Copy)]
struct Going {
    action: Action,
    meta: Metadata,
}

/// Asks for every frame of this many slots; returns the slots filled of `tx`.
pub(crate) fn pass<H: Handler>(
    (tx, calls): (&mut Tx, &Calls),
    rx: &mut Rx,
    count: u32,
    functions: &mut Others<'_, H>,
    made: &mut Generated,
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
                let meta = Metadata::new(slot.ptr);
                let mut frame = Frame { buffer, len, is_whole: more == 0, meta };
                made.by(functions.at);
                let mut action = functions.own.frame(&mut frame, made).told();
                if let Some(next) = calls.next(action, frame.meta) {
                    action = call(functions, next, &mut frame, made);
                }
                (Going { action, meta: frame.meta }, frame.len)
            }
        };
        going_on = (more != 0).then_some(going);
        let Going { action, meta } = going;
        let ends_here = action == Action::Drop && !meta.is_valid();
        if ends_here || action == Action::Hold {
            continue;
        }
        let (flags, ptr) = (more | action.slot_flags(), action.write_to(meta).word());
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        if rx.pass_as(i, tx, filled, Slot { len, flags, ptr, ..slot }) {
            filled += 1;
        }
    }
    filled
}

/// Asks the function at a place of the thread, and those that it hands the frame on to.
fn call<H: Handler>(
    functions: &mut Others<'_, H>,
    mut place: usize,
    frame: &mut Frame<'_>,
    made: &mut Generated,
) -> Action {
    let first = functions.at;
    loop {
        frame.meta = frame.meta.moved(frame.meta.position() + 1);
        made.by(place);
        let (port, handler, counts) = functions.get(place);
        let action = handler.frame(frame, made).told();
        let next = port.calls.next(action, frame.meta);
        counts.called += 1;
        match (action, next) {
            // The frame does not come to the ring that shows what the first one has passed on.
            (Action::Hold, _) => {
                functions.counts[first].passed += 1;
                return action;
            }
            // The switch counts the drop at the port of that ring, whose function passed it on.
            (Action::Drop, _) => {
                functions.counts[first].passed += 1;
                return action;
            }
            (_, None) => {
                counts.passed += 1;
                return action;
            }
            (_, Some(next)) => {
                counts.passed += 1;
                place = next;
            }
        }
    }
}
