//! The hub: every frame to every other port, and nothing is learned. What a sniffer wants.

use super::{FloodClass, Ingress, Verdict, refused};

#[inline]
pub(crate) fn decide(frame: Ingress) -> Verdict {
    match refused(&frame) {
        Some(reason) => Verdict::Drop(reason),
        None => Verdict::Flood(FloodClass::of(frame.header.dst())),
    }
}
