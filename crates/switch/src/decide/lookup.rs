//! The deciding half of a turn: a verdict for each run of frames, from the cache or the bridge.

use packet::ethernet::Header;

use crate::decide::egress::{Egress, VerdictCache};
use crate::receive::slot_flags::SlotFlags;
use crate::turn::Turn;

impl Turn<'_> {
    /// What happens to frames with this header. The bridge is asked once for each run.
    #[inline]
    pub(crate) fn decide(&mut self, header: Header) -> Egress {
        let generation = self.switch.bridge.generation();
        let now_ms = self.now.as_ms();
        if let Some(entry) = self.switch.entry_mut(self.src)
            && let Some(egress) = entry.cache.get(header.key(), generation, now_ms)
        {
            return egress;
        }
        self.decide_other(header, generation)
    }

    /// Decides likewise, for a header that is not that of the frame before.
    #[inline(never)]
    fn decide_other(&mut self, header: Header, generation: u64) -> Egress {
        let now_ms = self.now.as_ms();
        if let Some(entry) = self.switch.entry_mut(self.src) {
            let known = entry.verdicts.place(header);
            if let Some(egress) = known.get(header.key(), generation, now_ms) {
                entry.cache = *known;
                return egress;
            }
        }
        self.decide_uncached(header, generation)
    }

    /// What happens to a frame of the batch.
    #[inline]
    pub(crate) fn decide_taken(&mut self, header: Header, flags: SlotFlags) -> Egress {
        if flags == SlotFlags::NONE && !self.switch.bridge.looks_into_packets() {
            self.decide(header)
        } else {
            // No other frame has this verdict: it is not kept.
            self.decide_flagged(header, flags)
        }
    }

    /// Asks the bridge and keeps the verdict for the frames that follow. The generation was read
    /// before: another worker may change an entry right after the look at it.
    fn decide_uncached(&mut self, header: Header, mut generation: u64) -> Egress {
        let mut egress = self.decide_flagged(header, SlotFlags::NONE);
        let now_is = self.switch.bridge.generation();
        if now_is != generation {
            if self.switch.bridge.asks_program() {
                // The program would do again what it does. Its verdict is that of a known source.
                generation = generation.max(self.switch.bridge.asked_at());
            } else {
                // The source was new, and asked again the bridge changes nothing more; or another
                // worker has changed an entry.
                generation = now_is;
                egress = self.decide_flagged(header, SlotFlags::NONE);
            }
        }
        let is_fleeting = self.switch.bridge.is_fleeting();
        if let Some(entry) = self.switch.entry_mut(self.src) {
            let (key, now_ms) = (header.key(), self.now.as_ms());
            entry.cache =
                VerdictCache { key, generation, now_ms, egress: Some(egress), is_fleeting };
            if !is_fleeting {
                *entry.verdicts.place(header) = entry.cache;
            }
        }
        egress
    }

    /// Asks the bridge for a frame that carries flags. No other frame shares this verdict, so
    /// it is not kept.
    pub(crate) fn decide_flagged(&mut self, header: Header, flags: SlotFlags) -> Egress {
        let verdict = self.switch.bridge.decide_with_flags(self.src, header, flags, self.now);
        Egress::of(&self.switch.bridge, self.src, verdict)
    }
}
