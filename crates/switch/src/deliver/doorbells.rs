//! The end of a turn: doorbells and flushes, once for each port that got something.
//!
//! Whether a client wants to be woken stands in its memory, so to ask is a step for that port.

use packet::PortId;
use ring::doorbell::store_load_fence;
use ring::kring::TxKring;

use crate::model::heartbeat::Stage;
use crate::model::port::Plug;
use crate::switch::Entry;
use crate::turn::Turn;

impl Turn<'_> {
    /// Wakes the clients that sleep: destinations that got something, and the sender that has room
    /// again.
    pub(crate) fn ring_doorbells(&mut self) {
        store_load_fence();
        while let Some(dst) = self.scratch.rung.pop() {
            let Some(entry) = self.switch.entry_mut(dst) else { continue };
            entry.rung = false;
            match &mut entry.plug {
                Plug::Adapter(adapter) => {
                    self.scratch.heartbeat.beat(Stage::Send, dst);
                    let mut adapter = adapter.lock();
                    adapter.flush();
                    self.scratch.crowded |= adapter.is_socket();
                    if adapter.owes_wake() {
                        self.scratch.owed_wakes.push(dst);
                    }
                    if adapter.has_answers() {
                        self.scratch.woken.push(dst);
                    }
                }
                Plug::Rings(rings, wake) => {
                    self.scratch.heartbeat.beat(Stage::Forward, dst);
                    if any(rings.rx.iter_mut().map(|rx| rx.lock().wants_kick())) {
                        self.scratch.heartbeat.beat(wake.stage(), dst);
                        wake.wake();
                        entry.stats.wakes += 1;
                        self.scratch.woken.push(dst);
                    }
                }
            }
        }
        self.scratch.heartbeat.beat(Stage::Forward, self.src);
        if let Some(Entry { plug: Plug::Rings(rings, wake), stats, .. }) =
            self.switch.entry_mut(self.src)
            && any(rings.tx.iter_mut().map(TxKring::wants_kick))
        {
            self.scratch.heartbeat.beat(wake.stage(), self.src);
            wake.wake();
            stats.wakes += 1;
        }
    }

    /// Notes a destination whose doorbell may have to be rung.
    pub(crate) fn note_rung(&mut self, dst: PortId) {
        if let Some(entry) = self.switch.entry_mut(dst)
            && !entry.rung
        {
            entry.rung = true;
            self.scratch.rung.push(dst);
        }
    }
}

/// Whether any flag is set. All of them are evaluated.
#[inline]
fn any(flags: impl Iterator<Item = bool>) -> bool {
    flags.fold(false, |any, flag| any | flag)
}
