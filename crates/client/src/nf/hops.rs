//! Direct hops: frames that go from one function to the next without the switch.
//!
//! # Theory of operation
//!
//! A hop is a pipe in the region of the trust group: its sender fills the receive ring that its
//! receiver empties, and their buffers change places as they do inside of a port. Which frames go
//! by it the daemon says: those of a chain at a position ([`Ways`]). It raises a word of the
//! port ([`News`]) whenever that changes, and wakes the function, which asks. Frames of a chain
//! that has been changed meanwhile go by the switch.
//!
//! ```text
//!             ┌── frames of (chain, position) ──► hop ──┐
//!  function a ┤                                         ├──► function b
//!             └── all others ──► switch ────────────────┘
//! ```
//!
//! *Order.* When frames that went one way are to go the other, none may overtake another. The
//! sender first waits until nothing of its own is on the way: the switch has taken what it sent,
//! and the receivers have given back what went by hops, which they do when they have sent it on.
//! What the switch has taken may still wait in the ring of the receiver's port. So the sender
//! begins with an empty slot, the *mark of a beginning*; whoever finds it first reads what stands
//! in its port's rings at that moment. The word that published the slot was stored after the
//! switch had published those frames, so they are seen.
//!
//! *Room.* A frame that has none in its hop waits there and everything behind it too: load is shed
//! in front of the first function. Hops make no circles, the daemon sees to that, so somebody can
//! always go on.
//!
//! *In one thread.* Where both ends are functions of one thread ([`super::step_all`]), a frame is
//! handed on by a call, and only the mark of a beginning goes through the ring. As long as that
//! stands there, nothing is handed on, and what is behind it in front of the first function waits:
//! so calls begin when the second function has read what came by the switch before. A function of
//! the thread never waits for room in such a hop, for nobody else would make any.
//!
//! *The end.* A hop that is no longer wanted is emptied by its receiver, and let go of by both.
//! When one of them dies, the other is told so: a receiver reads what there is before anything
//! else, a sender goes on by the switch.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{HopCall, HopEnd, HopRef, HopState, PortRef, Reply, Request};
use ring::abi::{Slot, slot_flag};
use ring::cursor::RingSize;
use ring::extra::ExtraBufs;
use ring::layout::{PAGE, PortLayout, RingCounts};
use ring::user::{RxRing, TxRing};
use ring::{Region, RegionId};

use super::{Action, Meta, sleep};
use crate::control::ControlError;
use crate::link::Link;
use crate::wait::WaitPolicy;
use crate::{Error, Port, Receiver, Rx, Tx};

/// Chains, and positions in them.
const CHAINS: usize = 256;
const POSITIONS: usize = 8;
/// The way by the switch.
const BY_SWITCH: u8 = u8::MAX;

/// The hops of a function.
#[derive(Debug, Default)]
pub(crate) struct Hops {
    ins: Vec<In>,
    pub(super) ways: Ways,
    /// The doorbells of all of them.
    pub(super) links: Vec<Arc<Link>>,
    /// The daemon knows nothing of hops.
    deaf: bool,
    /// It is asked about them.
    asks: bool,
    /// It is to be asked again: what was to be done could not be yet.
    again: bool,
    /// When the function was last told of frames, or that there are none, if it shares a thread.
    pub(super) told: Option<Instant>,
}

/// A hop that ends here.
#[derive(Debug)]
pub(super) struct In {
    hop: u32,
    rx: Rx,
    link: Arc<Link>,
    /// What is to be read of the port's rings before the next frame.
    behind: Option<Vec<u32>>,
    ended: bool,
}

/// Where frames go.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    outs: Vec<Out>,
    /// Which hop, by its number, has the frames of which chain and order at which position.
    routes: Vec<Route>,
    /// The same for looking up, by chains.
    table: Option<Box<[Row; CHAINS]>>,
    /// Functions of the same thread are called.
    calls: bool,
}

type Route = (u8, u8, u8, u32);

/// Ways of the frames of a chain.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// They are for frames of this order.
    order: Option<u8>,
    /// By position: a place among those that begin here.
    outs: [u8; POSITIONS],
}

/// A hop that begins here.
#[derive(Debug)]
pub(super) struct Out {
    hop: u32,
    tx: Tx,
    link: Arc<Link>,
    /// Slots, and frames, of this batch.
    filled: u32,
    frames: u32,
    ended: bool,
    next: Next,
}

/// How frames get to the other end of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Not yet.
    Held,
    /// Through its ring.
    Ring,
    /// By a call of the function at this place of the thread.
    Call(usize),
}

impl Out {
    /// Passes a slot on.
    #[inline]
    pub(super) fn pass(&mut self, rx: &mut Rx, i: u32, sent: Slot) {
        if rx.pass_as(i, &mut self.tx, self.filled, sent) {
            self.filled += 1;
            self.frames += u32::from(sent.flags & slot_flag::MOREFRAG == 0);
        }
    }
}

impl Ways {
    /// The hop that a frame goes by, if it does not go by the switch.
    #[inline]
    pub(super) fn of(&mut self, action: Action, meta: Meta) -> Option<&mut Out> {
        let table = self.table.as_ref()?;
        let is_next = action == Action::Next && meta.is_valid() && meta.may_hop();
        if !is_next {
            return None;
        }
        let row = &table[usize::from(meta.chain())];
        let out = row.outs[usize::from(meta.position())];
        let is_its = row.order == Some(meta.order());
        self.outs.get_mut(usize::from(out)).filter(|out| is_its && !out.ended)
    }

    /// The place of the function of this thread that gets the frame now, if one does.
    #[inline]
    pub(super) fn call(&mut self, action: Action, meta: Meta) -> Option<usize> {
        if !self.calls {
            return None;
        }
        match self.of(action, meta)? {
            Out { next: Next::Call(place), frames, .. } => {
                *frames += 1;
                Some(*place)
            }
            _ => None,
        }
    }

    /// Has every hop so many free slots?
    #[inline]
    pub(super) fn have_room(&mut self, count: u32) -> bool {
        self.rings().all(|tx| has_room(tx, count))
    }

    /// The rings of hops to other threads.
    pub(super) fn rings(&mut self) -> impl Iterator<Item = &mut Tx> {
        let others = self.outs.iter_mut().filter(|out| !out.ended && out.next == Next::Ring);
        others.map(|out| &mut out.tx)
    }

    /// It is not known yet how to get to the other end of one.
    fn is_held(&self) -> bool {
        self.outs.iter().any(|out| out.next == Next::Held)
    }

    /// Bits of the places that are called.
    fn called(&self) -> u8 {
        self.outs.iter().fold(0, |bits, out| match out.next {
            Next::Call(place) if !out.ended => bits | 1 << place,
            _ => bits,
        })
    }

    /// Hands over what was filled.
    pub(super) fn submit(&mut self) {
        for out in self.outs.iter_mut().filter(|out| out.frames > 0 || out.filled > 0) {
            out.tx.count(out.frames);
            if out.filled > 0 {
                // That the other end has gone control says.
                let _ = out.tx.submit(out.filled);
            }
            (out.filled, out.frames) = (0, 0);
        }
    }

    fn install(&mut self, routes: Vec<Route>) {
        for out in &mut self.outs {
            let begins = |all: &[Route]| all.iter().any(|&(.., hop)| hop == out.hop);
            let grows = routes.iter().any(|way| way.3 == out.hop && !self.routes.contains(way));
            if grows && begins(&routes) && out.tx.space() > 0 {
                // The mark of a beginning.
                out.tx.set(0, 0, 0);
                let _ = out.tx.submit(1);
            }
        }
        self.routes = routes;
        self.index();
    }

    fn index(&mut self) {
        self.table = None;
        for &(chain, order, position, hop) in &self.routes {
            let Some(out) = self.outs.iter().position(|out| out.hop == hop) else { continue };
            let fresh = || Box::new([Row { order: None, outs: [BY_SWITCH; POSITIONS] }; CHAINS]);
            let table = self.table.get_or_insert_with(fresh);
            let row = &mut table[usize::from(chain)];
            row.order = Some(order);
            row.outs[usize::from(position) % POSITIONS] = u8::try_from(out).unwrap_or(BY_SWITCH);
        }
    }
}

fn has_room(tx: &mut Tx, count: u32) -> bool {
    tx.owned() >= count || tx.space() >= count
}

impl Hops {
    /// Has something to be done that could not be yet?
    pub(super) fn awaits(&self) -> bool {
        self.again
    }

    /// How many hops end here.
    pub(super) fn ins(&self) -> usize {
        self.ins.len()
    }

    /// How many slots of a hop that ends here may be handled now.
    pub(super) fn ready(&mut self, at: usize, receiver: &mut Receiver) -> u32 {
        self.ins[at].ready(receiver)
    }

    /// The ring of a hop that ends here, with the ways on.
    pub(super) fn rings(&mut self, at: usize) -> (&mut Rx, &mut Ways) {
        (&mut self.ins[at].rx, &mut self.ways)
    }

    /// The doorbells of all of them, and those that end here.
    pub(super) fn sleepers(&mut self) -> (&[Arc<Link>], &mut [In]) {
        (&self.links, &mut self.ins)
    }

    /// Is there nothing in a hop that ends here?
    fn is_empty(&mut self, hop: u32) -> bool {
        self.ins.iter_mut().all(|it| it.hop != hop || it.rx.available() == 0)
    }

    /// Does this hop, of this region, end here?
    fn ends_here(&self, hop: u32, region: RegionId) -> bool {
        self.ins.iter().any(|it| it.hop == hop && it.rx.region() == region && !it.ended)
    }

    /// So many slots of a ring of the port were given back.
    pub(super) fn note_read(&mut self, ring: usize, count: u32) {
        for behind in self.ins.iter_mut().filter_map(|hop| hop.behind.as_mut()) {
            if let Some(left) = behind.get_mut(ring) {
                *left = left.saturating_sub(count);
            }
        }
    }

    fn knows(&self, hop: u32) -> bool {
        self.ins.iter().any(|it| it.hop == hop) || self.ways.outs.iter().any(|it| it.hop == hop)
    }

    fn collect_links(&mut self) {
        let ins = self.ins.iter().map(|hop| &hop.link);
        self.links = ins.chain(self.ways.outs.iter().map(|hop| &hop.link)).cloned().collect();
    }

    /// Takes over what the daemon says of hops that are open.
    fn note_states(&mut self, list: &[HopEnd]) {
        let of = |hop| list.iter().find(|end| end.hop == hop);
        // One that the daemon does not know is no more.
        let is_over = |hop| of(hop).is_none_or(|end| end.state == HopState::Ended);
        self.ins.iter_mut().for_each(|it| it.ended = is_over(it.hop));
        self.ways.outs.iter_mut().for_each(|it| it.ended = is_over(it.hop));
    }

    /// Lets go of hops that are over; returns them.
    fn drop_over(&mut self, list: &[HopEnd]) -> Vec<u32> {
        let closes = |hop| {
            let end = list.iter().find(|end| end.hop == hop);
            end.is_none_or(|end| end.state != HopState::Open)
        };
        let over: Vec<u32> =
            self.ways.outs.iter().map(|out| out.hop).filter(|&hop| closes(hop)).collect();
        self.ways.outs.retain(|out| !over.contains(&out.hop));
        self.ways.index();
        self.collect_links();
        over
    }

    /// A hop whose sender has gone and that is empty.
    fn emptied(&mut self) -> Option<u32> {
        let at = self.ins.iter_mut().position(|it| it.ended && it.rx.available() == 0)?;
        let hop = self.ins.remove(at).hop;
        self.collect_links();
        Some(hop)
    }
}

impl In {
    /// Its ring.
    pub(super) fn ring(&mut self) -> &mut Rx {
        &mut self.rx
    }

    /// How many slots may be handled: those before the mark of a beginning, and those behind it
    /// when what came by the switch before has been read.
    fn ready(&mut self, receiver: &mut Receiver) -> u32 {
        let count = self.rx.available();
        if count == 0 || !self.rx.frame(0).is_empty() {
            // No further than a batch goes: behind that there is no mark within a frame.
            let end = count.min(super::BATCH);
            return (1..end).find(|&i| self.rx.frame(i).is_empty()).unwrap_or(count);
        }
        let rings = 0..receiver.rings();
        let look = || rings.map(|ring| receiver.rx(ring).available()).collect();
        let behind = self.behind.get_or_insert_with(look);
        if behind.iter().any(|&left| left > 0) {
            return 0;
        }
        self.behind = None;
        let _ = self.rx.release(1);
        self.ready(receiver)
    }
}

/// A hop with frames of one who has gone. They are older than all that comes another way: who comes
/// in his place does so after this end was told.
pub(super) fn left_behind(port: &mut Port) -> Option<usize> {
    let (_, receiver, hops) = port.parts();
    hops.ins.iter_mut().position(|hop| hop.ended && hop.ready(receiver) > 0)
}

/// Finds out which hops join functions of this thread.
pub(super) fn join(ports: &mut [Port]) {
    for at in 0..ports.len() {
        for out in 0..ports[at].hops.ways.outs.len() {
            let Out { hop, ref tx, .. } = ports[at].hops.ways.outs[out];
            let region = tx.region();
            let ends_at = |&to: &usize| to != at && ports[to].hops.ends_here(hop, region);
            let to = (0..ports.len()).find(ends_at);
            // As its reader sees it, who is asked each time: what others write there passes.
            let is_empty = to.is_some_and(|to| ports[to].hops.is_empty(hop));
            let out = &mut ports[at].hops.ways.outs[out];
            out.next = match to {
                None => Next::Ring,
                Some(to) if is_empty => Next::Call(to),
                Some(_) => Next::Held,
            };
        }
        let ways = &mut ports[at].hops.ways;
        ways.calls = ways.called() != 0;
    }
}

/// Bits of the places of those that the one at a place calls, and these in turn. `None`: one of
/// them must not be called yet.
pub(super) fn called(ports: &[Port], at: usize) -> Option<u8> {
    let (mut all, mut asked) = (1u8 << at, 0u8);
    while all != asked {
        let place = (all & !asked).trailing_zeros() as usize;
        let hops = &ports[place].hops;
        if hops.ways.is_held() || hops.awaits() {
            return None;
        }
        asked |= 1 << place;
        all |= hops.ways.called();
    }
    Some(all & !(1 << at))
}

/// Learns what the daemon has to say of hops, and does it, as far as it can be done within
/// `patience`. Who does not wait waits elsewhere, where no hop would wake him: until he waits here,
/// the daemon does not hear of him.
pub(super) fn tend(
    port: &mut Port,
    timeout: Option<Duration>,
    patience: Option<Duration>,
) -> Result<(), Error> {
    let mut is_first = port.hops.again || !port.hops.asks && timeout != Some(Duration::ZERO);
    port.hops.asks |= is_first;
    if !port.hops.asks || port.hops.deaf {
        port.receiver.news.note();
        return Ok(());
    }
    while let Some(hop) = port.hops.emptied() {
        ask(port, |port| HopCall::Close(HopRef { port, hop }));
    }
    // One that is held is asked about again when it is not.
    while (is_first || port.receiver.news.is_new()) && !port.hops.deaf && !port.hops.ways.is_held()
    {
        (is_first, port.hops.again) = (false, false);
        port.receiver.news.note();
        // A daemon that is gone is for the next wait to find.
        let Some((Reply::Hops(list), _)) = ask(port, |port| HopCall::List(PortRef { port })) else {
            return Ok(());
        };
        port.hops.note_states(&list);
        list.iter().for_each(|end| open(port, end));
        port.hops.collect_links();
        let of = |end: &HopEnd| {
            let (routes, hop) = (end.routes.clone(), end.hop);
            routes.into_iter().map(move |(chain, order, position)| (chain, order, position, hop))
        };
        let routes: Vec<_> = list.iter().flat_map(of).collect();
        if routes != port.hops.ways.routes {
            if !sleep::for_room(port, u32::MAX, patience)? {
                port.hops.again = true;
                return Ok(());
            }
            if port.receiver.news.is_new() {
                continue;
            }
            port.hops.ways.install(routes);
        }
        for hop in port.hops.drop_over(&list) {
            ask(port, |port| HopCall::Close(HopRef { port, hop }));
        }
    }
    Ok(())
}

fn ask(port: &mut Port, call: impl FnOnce(protocol::name::PortName) -> HopCall) -> Option<Answer> {
    let call = call(port.name().clone());
    let is_list = matches!(call, HopCall::List(_));
    match port.sender.link().call(Request::Hop(call)) {
        Ok(answer) => Some(answer),
        Err(error) => {
            // Of another version. What is refused later was overtaken by something.
            let first = port.hops.links.is_empty() && is_list;
            port.hops.deaf |= first && matches!(error, ControlError::Refused(_));
            None
        }
    }
}

type Answer = (Reply, Vec<OwnedFd>);

/// Opens an end that is new; one that is over already is let go of at once.
fn open(port: &mut Port, end: &HopEnd) {
    if port.hops.knows(end.hop) {
        return;
    }
    let hop = end.hop;
    let region = port.receiver.memory().clone();
    let opened = match (end.state, layout(end, &region)) {
        (HopState::Open, Some(layout)) => ask(port, |port| HopCall::Open(HopRef { port, hop }))
            .and_then(|(_, fds)| <[OwnedFd; 2]>::try_from(fds).ok())
            .and_then(|[kick, wake]| {
                let extra = ExtraBufs::new(&region, &layout);
                Some((layout, Arc::new(Link::of_hop(kick, wake, port.name(), extra).ok()?)))
            }),
        _ => None,
    };
    let Some((layout, link)) = opened else {
        ask(port, |port| HopCall::Close(HopRef { port, hop }));
        return;
    };
    let (policy, own) = (WaitPolicy::default(), link.clone());
    if end.sends {
        let tx = Tx::new(TxRing::pipe(&region, &layout, 0), &link, policy);
        let (filled, frames, ended, next) = (0, 0, false, Next::Held);
        let out = Out { hop, tx, link: own, filled, frames, ended, next };
        port.hops.ways.outs.push(out);
    } else {
        let rx = Rx::new(RxRing::new(&region, &layout, 0), &link, policy);
        port.hops.ins.push(In { hop, rx, link: own, behind: None, ended: false });
    }
}

/// Where the hop lies, checked.
fn layout(end: &HopEnd, region: &Arc<Region>) -> Option<PortLayout> {
    let (tx_slots, rx_slots) = (RingSize::new(end.tx_slots)?, RingSize::new(end.rx_slots)?);
    let at = usize::try_from(end.block).ok().filter(|at| at.is_multiple_of(PAGE) && *at > 0)?;
    let layout = PortLayout::new(at, RingCounts { tx_rings: 1, rx_rings: 1, tx_slots, rx_slots });
    (layout.end() <= region.layout().pool).then_some(layout)
}
