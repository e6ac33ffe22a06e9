//! A switch whose forwarding function is a program: what the bridge asks it, and keeps of it.

use packet::PortId;
use packet::ethernet::Header;
use program::Program;

use super::Bridge;
use crate::decide::forward::user::UserFunction;
use crate::decide::forward::{Ingress, Verdict, learning, refused};
use crate::model::config::Forwarding;
use crate::model::now::Now;
use crate::model::stats::DropReason;
use crate::receive::slot_flags::SlotFlags;

impl Bridge {
    /// Replaces the program. The new one takes over the maps that both declare alike; the old one
    /// is returned, to be freed elsewhere.
    ///
    /// In a switch of several workers, the first gets a function whose maps are
    /// [common](Program::into_common), then each other one a [handle](UserFunction::handle) of it.
    #[must_use]
    pub fn set_function(
        &mut self,
        mut function: Option<Box<UserFunction>>,
    ) -> Option<Box<UserFunction>> {
        let before = self.map_changes();
        if let (Some(new), Some(old)) = (&mut function, &mut self.function) {
            new.program_mut().adopt(old.program_mut());
        }
        let old = std::mem::replace(&mut self.function, function);
        // The generation only grows, also without the maps.
        self.changes += 1 + before.saturating_sub(self.map_changes());
        old
    }

    /// The program, if there is one.
    pub fn function(&self) -> Option<&UserFunction> {
        self.function.as_deref()
    }

    /// The program, to change its maps.
    pub fn program_mut(&mut self) -> Option<&mut Program> {
        self.function.as_mut().map(|function| function.program_mut())
    }

    /// Changes of the program's maps, by all workers.
    #[inline]
    pub(super) fn map_changes(&self) -> u64 {
        self.function.as_ref().map_or(0, |function| function.program().map_changes())
    }

    /// The generation that the last verdict of the program is for: that of the maps as it has left
    /// them, and with the source of its frame learned.
    #[inline]
    pub(crate) fn asked_at(&self) -> u64 {
        self.asked_at
    }

    /// Whether a program decides.
    #[inline]
    pub(crate) fn asks_program(&self) -> bool {
        self.config.forwarding == Forwarding::Program
    }

    /// From here on, the steps of the program are those of another turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.function.iter_mut().for_each(|function| function.begin_turn());
    }

    /// Whether the program has taken the time that a turn has for it.
    #[inline]
    #[must_use]
    pub fn has_spent_turn(&self) -> bool {
        self.function.as_ref().is_some_and(|function| function.has_spent_turn())
    }

    /// Whether the verdict that was given last would be another one if it were asked for again,
    /// because the program has changed a map.
    pub(crate) fn is_fleeting(&self) -> bool {
        let changed = || self.function.as_ref().is_some_and(|it| it.program().has_changed_maps());
        self.asks_program() && changed()
    }

    /// Whether decisions depend on more of a frame than its key.
    #[inline]
    pub(crate) fn looks_into_packets(&self) -> bool {
        self.asks_program() && self.function.as_ref().is_some_and(|it| it.looks_into_packets())
    }

    /// Shows the program the first bytes of the frame that is decided about next.
    pub(crate) fn show_packet(&mut self, bytes: &[u8]) {
        if let Some(function) = &mut self.function {
            function.show_packet(bytes);
        }
    }

    #[inline(never)]
    pub(super) fn ask_program(&mut self, frame: Ingress) -> Verdict {
        if let Some(reason) = refused(&frame) {
            return Verdict::Drop(reason);
        }
        let Some(function) = &mut self.function else {
            return Verdict::Drop(DropReason::ProgramFault);
        };
        let (verdict, is_new) = function.decide(&frame);
        debug_assert!(!matches!(verdict, Some(Verdict::To(to)) if to.index() >= packet::MAX_PORTS));
        let maps = function.program().map_changes_seen();
        self.changes += u64::from(is_new);
        if !matches!(verdict, Some(Verdict::Drop(_))) {
            learning::learn(&mut self.fdb, frame);
        }
        self.asked_at = self.changes + self.fdb.generation() + maps;
        verdict.unwrap_or_else(|| learning::forward(&self.fdb, frame))
    }

    /// What the program would say, and the ports of its set.
    pub(super) fn peek_program(&self, frame: Ingress) -> Option<(Verdict, Vec<PortId>)> {
        let (verdict, set) = self.function.as_ref()?.peek(&frame);
        Some((verdict.unwrap_or_else(|| learning::peek(&self.fdb, frame)), set))
    }

    /// The ports of the set that the program would choose for a frame.
    pub(crate) fn peek_set(&self, src: PortId, header: Header, now: Now) -> Vec<PortId> {
        let entered = self.ingress(src, header, SlotFlags::NONE, now).ok();
        match entered.and_then(|(frame, _)| self.peek_program(frame)) {
            Some((Verdict::Set(..), mut set)) => {
                set.retain(|&port| self.port(port).is_some());
                set
            }
            _ => Vec::new(),
        }
    }
}
