//! Putting frames into a receive ring: by a swap of buffers, by a copy, or behind a header.

use std::sync::Arc;

use ring::exchange::Giver;
use ring::kring::{Refused, RxKring};
use ring::metadata::Functions;

use crate::decide::bridge::TagAction;
use crate::mirror::{Mirrors, PortMirrors};
use crate::model::heartbeat::Heartbeat;
use crate::model::port::Sent;
use crate::model::stats::DropReason;
use crate::receive::batch::{Batch, Delivery, prologue};

/// The port that frames come from, where their buffers may be exchanged.
pub(crate) struct Source<'a> {
    pub(crate) giver: Giver<'a>,
    /// Where the client is a function of a chain: the metadata of frames whose buffers it does not
    /// own.
    pub(crate) foreign: Option<&'a mut Vec<u64>>,
}

/// The mirrors of the port that a ring belongs to.
pub(crate) struct Taps<'a> {
    /// The number of the ring.
    pub(crate) queue: usize,
    /// The mirrors of the port.
    pub(crate) its: &'a mut PortMirrors,
    /// The mirrors of the switch.
    pub(crate) mirrors: &'a mut Mirrors,
    pub(crate) heartbeat: &'a mut Heartbeat,
}

/// A frame of the list that a ring did not get.
#[derive(Clone, Copy)]
pub(crate) struct Unsent {
    /// The number of the frame in its batch.
    pub(crate) frame: u16,
    /// The reason that the destination counts; `None`: the sender does not own the buffer.
    pub(crate) reason: Option<DropReason>,
}

/// Why a frame was not sent.
enum Fault {
    Refused(Refused),
    /// The sender does not own the buffer.
    Foreign,
}

/// Delivers a list into a receive ring. Where the frames come from the same region, buffers are
/// exchanged with the port that gives them. `marks`: a function reads the metadata in the slots.
/// What the ring does not get is added to `refused`.
pub(crate) fn send_to_ring(
    rx: &mut RxKring,
    marks: bool,
    batch: &mut Batch,
    list: &[Delivery],
    from: Option<Source<'_>>,
    taps: &mut Option<Taps<'_>>,
    refused: &mut Vec<Unsent>,
) -> Sent {
    let mut sent = Sent::default();
    // The client's index is on a line that another core writes: it is read where it must be, and
    // where it says how much a function has read.
    if marks || taps.is_some() || !has_room(rx, batch, list) {
        rx.sync();
    }
    if let Some(Taps { queue, its, mirrors, .. }) = taps {
        its.mirror_returned(*queue, rx, mirrors);
    }
    let before = rx.tail();
    let shared = Arc::ptr_eq(batch.region(), rx.region());
    // A header that was taken off may have had a slot of its own: not the frame's, then.
    let behind = |giver: &Giver<'_>| matches!(giver, Giver::Ring(tx) if tx.vnet_header_len() != 0);
    let from = from.filter(|from| shared && !behind(&from.giver));
    let (giver, mut foreign) = from.map_or((None, None), |from| (Some(from.giver), from.foreign));
    let functions = Functions { sender: foreign.is_some(), receiver: marks };
    let mut rest = list;
    while let Some((delivery, others)) = rest.split_first() {
        if let Some(Giver::Ring(tx)) = giver {
            let singles = rest.iter().map_while(|&delivery| batch.single(delivery));
            let (frames, bytes) = rx.swap_taken(tx, functions, singles);
            if frames > 0 {
                sent.delivered.add(frames.into(), bytes);
                rest = &rest[frames as usize..];
                continue;
            }
        }
        rest = others;
        if marks {
            // Also none, where a rule or a static address leads past the chains: what the slot said
            // was of another frame.
            rx.set_next_metadata(batch.frames()[usize::from(delivery.frame)].metadata);
        }
        match put(rx, batch, *delivery, giver, functions) {
            Ok(bytes) => sent.delivered.add(1, u64::from(bytes)),
            Err(Fault::Refused(why)) => {
                sent.drops.add(refusal(why), 1);
                refused.push(Unsent { frame: delivery.frame, reason: Some(refusal(why)) });
            }
            Err(Fault::Foreign) => {
                refused.push(Unsent { frame: delivery.frame, reason: None });
                let mark = batch.frames()[usize::from(delivery.frame)].metadata;
                foreign.iter_mut().for_each(|marks| marks.push(mark));
            }
        }
    }
    if let Some(Taps { queue, its, mirrors, heartbeat }) = taps {
        its.mirror_received(*queue, before, rx, mirrors, heartbeat);
    }
    rx.publish();
    debug_assert!(sent.delivered.frames + sent.drops.total() <= list.len() as u64);
    sent
}

/// Puts one frame into the ring in the cheapest way that fits.
#[inline]
fn put(
    rx: &mut RxKring,
    batch: &mut Batch,
    delivery: Delivery,
    from: Option<Giver<'_>>,
    functions: Functions,
) -> Result<u32, Fault> {
    let entry = &batch.frames()[usize::from(delivery.frame)];
    if rx.vnet_header_len() != 0 {
        let head = prologue(entry, delivery.tag);
        let len = rx.vnet_header_len();
        let vnet_header = &batch.vnet_header(delivery, len)[..usize::from(len)];
        return rx.put_behind(vnet_header, batch.frame(entry), head).map_err(Fault::Refused);
    }
    if let (TagAction::Keep, &[piece]) = (delivery.tag, batch.pieces(entry)) {
        match (from.filter(|_| rx.can_swap(piece)), entry.slot()) {
            (Some(Giver::Ring(tx)), Some(slot)) => {
                if functions.sender && !tx.owns(piece) {
                    return Err(Fault::Foreign);
                }
                let sent = rx.put_swapped(tx, slot, piece, functions.receiver);
                return sent.map_err(Fault::Refused);
            }
            (Some(Giver::Port(trader)), _) => {
                if let Some(spare) = rx.put_exchanged(piece, trader).map_err(Fault::Refused)? {
                    batch.replace_buffer(delivery.frame, spare);
                    return Ok(u32::from(piece.len()));
                }
            }
            _ => {}
        }
        if rx.fits(piece) {
            let header = u128::from_le_bytes(entry.header.bytes());
            return rx.put_single(batch.region(), piece, header).map_err(Fault::Refused);
        }
    }
    let head = prologue(entry, delivery.tag);
    rx.put(batch.frame(entry), head).map_err(Fault::Refused)
}

/// Whether the frames of a list are sure to fit into a ring, as of its last look at the client.
#[inline]
fn has_room(rx: &RxKring, batch: &Batch, list: &[Delivery]) -> bool {
    let bytes = |delivery: &Delivery| batch.frames()[usize::from(delivery.frame)].bytes;
    list.iter().map(|delivery| rx.slots_for(bytes(delivery))).sum::<u32>() <= rx.room()
}

/// The reason to drop a frame that a ring has refused.
fn refusal(why: Refused) -> DropReason {
    match why {
        Refused::NoRoom => DropReason::NoRoom,
        Refused::BadSlot => DropReason::BadIndex,
        Refused::TooLong => DropReason::TooLong,
    }
}
