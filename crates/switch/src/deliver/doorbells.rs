//! The end of a turn: doorbells and flushes, once for each port that got something.
//!
//! Whether a client wants to be woken stands in its memory, so to ask is a step for that port.

use packet::PortId;
use ring::doorbell::store_load_fence;
use ring::kring::TxKring;

use crate::model::heartbeat::Stage;
use crate::model::port::Plug;
use crate::turn::Turn;

impl Turn<'_> {
    /// Wakes the clients that sleep: destinations that got something, and the sender that has room
    /// again. A client that may not be woken now is owed it; to ask whether it sleeps gives one
    /// answer for each time that it does, so the port remembers it.
    #[inline(always)] // Where each turn is of one frame, a call costs a tenth of this.
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
                        note_owing(&mut entry.is_owing, dst, &mut self.scratch.owed_wakes);
                    }
                    if adapter.has_answers() {
                        self.scratch.woken.push(dst);
                    }
                }
                Plug::Rings(rings, _) => {
                    self.scratch.heartbeat.beat(Stage::Forward, dst);
                    if any(rings.rx.iter_mut().map(|rx| rx.lock().wants_kick())) {
                        match entry.wake_or_owe(&mut self.scratch.heartbeat, dst) {
                            true => self.scratch.woken.push(dst),
                            false => {
                                note_owing(&mut entry.is_owing, dst, &mut self.scratch.owed_wakes);
                            }
                        }
                    }
                }
            }
        }
        let (src, scratch) = (self.src, &mut *self.scratch);
        scratch.heartbeat.beat(Stage::Forward, src);
        let Some(entry) = self.switch.entry_mut(src) else { return };
        if let Plug::Rings(rings, _) = &mut entry.plug
            && any(rings.tx.iter_mut().map(TxKring::wants_kick))
            && !entry.wake_or_owe(&mut scratch.heartbeat, src)
        {
            note_owing(&mut entry.is_owing, src, &mut scratch.owed_wakes);
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

/// Tells the worker that a port's peer is owed a wake-up, unless it knows.
#[cold]
fn note_owing(is_owing: &mut bool, port: PortId, owed_wakes: &mut Vec<PortId>) {
    if !std::mem::replace(is_owing, true) {
        owed_wakes.push(port);
    }
}

/// Whether any flag is set. All of them are evaluated.
#[inline]
fn any(flags: impl Iterator<Item = bool>) -> bool {
    flags.fold(false, |any, flag| any | flag)
}
