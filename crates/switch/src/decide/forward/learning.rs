//! The learning bridge (802.1D): a frame teaches where its source is, and goes where its
//! destination was learned to be. Unknown and group destinations are flooded.

use super::{FloodClass, Ingress, Verdict, refused};
use crate::decide::fdb::{Fdb, Learned};

#[inline]
pub(crate) fn decide(fdb: &mut Fdb, frame: Ingress) -> Verdict {
    if let Some(reason) = refused(&frame) {
        return Verdict::Drop(reason);
    }
    learn(fdb, frame);
    forward(fdb, frame)
}

/// Learns the source of a frame, if its port lets it.
#[inline]
pub(crate) fn learn(fdb: &mut Fdb, frame: Ingress) {
    if learns(&frame) {
        fdb.learn(frame.vlan, frame.header.src(), frame.src, frame.now);
    }
}

/// What [`decide`] would say. It learns nothing.
pub(crate) fn peek(fdb: &Fdb, frame: Ingress) -> Verdict {
    match refused(&frame) {
        Some(reason) => Verdict::Drop(reason),
        // Learned first, it would be found at once.
        None if frame.header.dst() == frame.header.src() && would_be_here(fdb, frame) => {
            Verdict::To(frame.src)
        }
        None => forward(fdb, frame),
    }
}

/// What the database would learn of a frame; none: it does not look at the source.
pub(crate) fn would_learn(fdb: &Fdb, frame: Ingress) -> Option<Learned> {
    learns(&frame).then(|| fdb.would_learn(frame.vlan, frame.header.src(), frame.src, frame.now))
}

fn would_be_here(fdb: &Fdb, frame: Ingress) -> bool {
    let learned = would_learn(fdb, frame);
    matches!(learned, Some(Learned::New | Learned::Refreshed | Learned::Moved { .. }))
}

/// Whether the source of a frame is learned. Programs that fill in no source send zeros or ones
/// from everywhere.
#[inline]
fn learns(frame: &Ingress) -> bool {
    frame.learning && frame.header.src().is_station()
}

/// Where a frame goes, of which nothing is learned.
#[inline]
pub(crate) fn forward(fdb: &Fdb, frame: Ingress) -> Verdict {
    let class = FloodClass::of(frame.header.dst());
    match class {
        FloodClass::Unicast => fdb
            .lookup(frame.vlan, frame.header.dst(), frame.now)
            .map_or(Verdict::Flood(class), Verdict::To),
        FloodClass::Multicast | FloodClass::Broadcast => Verdict::Flood(class),
    }
}
