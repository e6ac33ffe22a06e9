//! What a verdict means at the destination, and the last ones of each port.

use packet::PortId;
use packet::ethernet::Header;

use crate::decide::bridge::{Bridge, TagAction, VlanVerdict};
use crate::decide::forward::Verdict;
use crate::model::stats::DropReason;

/// What the switch does with a frame.
#[derive(Clone, Copy)]
pub(crate) enum Egress {
    /// Sends it to this port, with this change of the tag.
    To(PortId, TagAction),
    /// Sends it to several ports.
    Flood(VlanVerdict),
    /// Drops it.
    Drop(DropReason),
}

impl Egress {
    /// Whether the frame goes to one port, as it is.
    #[inline]
    pub(crate) fn keeps_frame(self) -> bool {
        matches!(self, Self::To(_, TagAction::Keep))
    }

    /// What a verdict about a frame from `src` means.
    pub(crate) fn of(bridge: &Bridge, src: PortId, verdict: VlanVerdict) -> Self {
        match verdict.forward {
            Verdict::Drop(reason) => Self::Drop(reason),
            Verdict::Flood(_) | Verdict::Set(..) | Verdict::Members => Self::Flood(verdict),
            Verdict::To(dst) => match bridge.egress(src, dst, &verdict) {
                Ok(tag) => Self::To(dst, tag),
                Err(reason) => Self::Drop(reason),
            },
        }
    }
}

/// How long a verdict may keep an address from being refreshed, in milliseconds.
const HOLDS_MS: u64 = 100;

/// A verdict for frames of one port.
///
/// The entry holds for one header key, for one generation of the bridge, and for a short time, so
/// that the source address is refreshed.
#[derive(Clone, Copy, Default)]
pub(crate) struct VerdictCache {
    pub(crate) key: u128,
    pub(crate) generation: u64,
    pub(crate) now_ms: u64,
    pub(crate) egress: Option<Egress>,
    /// The verdict ends with the turn.
    pub(crate) is_fleeting: bool,
}

impl VerdictCache {
    /// The verdict for this key, if the entry holds.
    #[inline]
    pub(crate) fn get(&self, key: u128, generation: u64, now_ms: u64) -> Option<Egress> {
        let holds = self.key == key
            && self.generation == generation
            && now_ms.wrapping_sub(self.now_ms) < HOLDS_MS;
        self.egress.filter(|_| holds)
    }
}

/// Verdicts for the last headers of a port, each at the place that its addresses name.
pub(crate) struct Verdicts(Box<[VerdictCache; VERDICTS]>);

/// Places for verdicts of a port.
const VERDICTS: usize = 64;

impl Verdicts {
    pub(crate) fn new() -> Self {
        Self(Box::new([VerdictCache::default(); VERDICTS]))
    }

    /// The place for the verdict about a header. Stations that follow each other in number have
    /// places of their own: the lowest bits of a source change the highest of the place.
    #[inline]
    pub(crate) fn place(&mut self, header: Header) -> &mut VerdictCache {
        let [.., dst, _, _, _, _, _, src, _, _, _, vlan] = header.key().to_le_bytes();
        &mut self.0[usize::from(dst ^ src.reverse_bits() >> 2 ^ vlan) % VERDICTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_stations_in_a_row_have_places_of_their_own() {
        let mut verdicts = Verdicts::new();
        for (field, tag) in [(5, 0), (11, 0), (15, 0x81)] {
            let mut bytes = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, tag, 0, 0, 0];
            for number in 0..64 {
                bytes[field] = number;
                let place = verdicts.place(Header::new(bytes));
                assert_eq!(place.now_ms, 0, "{number} has the place of another");
                place.now_ms = 1;
            }
            verdicts = Verdicts::new();
        }
    }
}
