//! The static map: the operator's entries say where stations are, and nothing is learned. Group
//! destinations are flooded; unknown unicast is dropped, or flooded as well where so configured.

use super::{FloodClass, Ingress, Verdict, refused};
use crate::decide::fdb::Fdb;
use crate::model::stats::DropReason;

#[inline]
pub(crate) fn decide(fdb: &Fdb, frame: Ingress, unknown: Verdict) -> Verdict {
    if let Some(reason) = refused(&frame) {
        return Verdict::Drop(reason);
    }
    // The bridge forgets what was learned before it comes to this function: what is found here is
    // static.
    match FloodClass::of(frame.header.dst()) {
        FloodClass::Unicast => {
            fdb.lookup(frame.vlan, frame.header.dst(), frame.now).map_or(unknown, Verdict::To)
        }
        class => Verdict::Flood(class),
    }
}

/// What becomes of unknown unicast where it is dropped.
pub(crate) const DROP_UNKNOWN: Verdict = Verdict::Drop(DropReason::Unknown);
/// What becomes of unknown unicast where it is flooded.
pub(crate) const FLOOD_UNKNOWN: Verdict = Verdict::Flood(FloodClass::Unicast);
