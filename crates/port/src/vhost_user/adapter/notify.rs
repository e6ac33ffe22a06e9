//! What the worker waits for at a machine, and what a machine is owed.

use std::any::Any;

use switch::Notify;

use super::Machine;
use crate::sys::{PortBell, said};

impl Notify for Machine {
    fn owes_wake(&self) -> bool {
        !self.owing.is_empty()
    }

    /// The worker has passed fences since.
    fn wake_if_due(&mut self) {
        if self.is_evicted() {
            self.owing.clear();
        }
        for _ in 0..self.owing.len() {
            let at = self.owing.swap_remove(0);
            self.remind(at);
        }
    }

    fn want_room(&mut self) {
        self.receives_mut().for_each(|ring| ring.queue.want_kicks());
    }

    fn found_room(&mut self) {
        self.receives_mut().for_each(|ring| ring.queue.want_none());
    }

    fn arm(&mut self) {
        if !self.is_evicted() {
            self.look_for_loss();
        }
        self.transmits_mut().for_each(|ring| ring.queue.want_kicks());
    }

    fn disarm(&mut self) {
        self.transmits_mut().for_each(|ring| ring.queue.want_none());
    }

    fn pending(&mut self) -> bool {
        self.orders.signal.is_set()
            || self.announcement.is_some()
            || self.transmits().any(|ring| ring.trouble.is_none() && ring.queue.pending())
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        let bell = PortBell::of(bell);
        let rings = said(bell.watch_edges(self.orders.signal.event()));
        self.kicks.set(rings.then(|| bell.clone()));
        rings
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch(self.orders.signal.event());
        self.kicks.set(None);
    }
}
