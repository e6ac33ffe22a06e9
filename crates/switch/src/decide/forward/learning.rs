//! The learning bridge (802.1D): a frame teaches where its source is, and goes where its
//! destination was learned to be. Unknown and group destinations are flooded.

use super::{FloodClass, Ingress, Verdict, refused};
use crate::decide::fdb::Fdb;

#[inline]
pub(crate) fn decide(fdb: &mut Fdb, frame: Ingress) -> Verdict {
    if let Some(reason) = refused(&frame) {
        return Verdict::Drop(reason);
    }
    // Programs that fill in no source send zeros or ones from everywhere.
    if frame.learning && frame.header.src().is_station() {
        fdb.learn(frame.vlan, frame.header.src(), frame.src, frame.now);
    }
    let class = FloodClass::of(frame.header.dst());
    match class {
        FloodClass::Unicast => fdb
            .lookup(frame.vlan, frame.header.dst(), frame.now)
            .map_or(Verdict::Flood(class), Verdict::To),
        FloodClass::Multicast | FloodClass::Broadcast => Verdict::Flood(class),
    }
}
