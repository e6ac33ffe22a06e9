//! The hub: every frame to every other port, and nothing is learned. What a sniffer wants.

use packet::ethernet::Header;

use super::{FloodClass, Verdict, refused};

#[inline]
pub(crate) fn decide(header: Header) -> Verdict {
    match refused(header) {
        Some(reason) => Verdict::Drop(reason),
        None => Verdict::Flood(FloodClass::of(header.dst())),
    }
}
