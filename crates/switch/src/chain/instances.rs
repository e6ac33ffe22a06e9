//! Instances of services, as the switch reads them off their rings.

use packet::PortId;
use ring::krings::Krings;
use ring::shared::Shared;

use crate::chain::service::Instance;
use crate::model::now::Now;
use crate::model::port::Plug;
use crate::switch::{Entry, Switch};

impl Switch {
    /// Notes how much room functions have, before the switch takes frames from a ring: there may be
    /// thousands of them, and one run for each. Rings with much room are not read again, unless it
    /// matters which frames the instance has read.
    pub(crate) fn refresh_instances(&mut self) {
        let Self { ports, steering, .. } = self;
        let Some(steering) = steering else { return };
        for service in steering.services_mut() {
            let exact = service.is_moving();
            for instance in service.instances_mut() {
                look(ports, instance, exact);
            }
        }
    }

    /// Whether frames of this port have to wait until older ones have left a chain.
    #[inline]
    pub(crate) fn is_shut(&mut self, src: PortId, now: Now) -> bool {
        let shuts = |it: &Self| it.steering.as_ref().is_some_and(|it| it.shuts(src));
        shuts(self) && {
            self.refresh_gate(now);
            shuts(self)
        }
    }

    /// Opens the gate for ports whose older frames have left their chains.
    #[cold]
    pub(crate) fn refresh_gate(&mut self, now: Now) {
        let Self { ports, steering, .. } = self;
        if let Some(steering) = steering {
            steering.refresh_gate(now, |instance| look(ports, instance, true));
        }
    }

    /// Finds instances that have stalled.
    pub(crate) fn detect_stalls(&mut self, now: Now) {
        let Self { ports, steering, .. } = self;
        let Some(steering) = steering else { return };
        for service in steering.services_mut() {
            service.instances_mut().iter_mut().for_each(|instance| look(ports, instance, true));
            service.check_stalls(now.as_ms());
        }
    }
}

/// Reads the rings of an instance.
fn look(ports: &mut [Option<Box<Entry>>], instance: &mut Instance, exact: bool) {
    let Some(Some(entry)) = ports.get_mut(instance.port.index()) else { return };
    let Plug::Rings(Krings { tx, rx, .. }, _) = &mut entry.plug else { return };
    let (mut slots, mut room) = (0, 0);
    for mut rx in rx.iter_mut().map(Shared::lock) {
        slots += rx.capacity();
        if exact || rx.room() < rx.capacity() / 2 {
            rx.sync();
        }
        room += rx.room();
    }
    instance.room = room;
    instance.capacity = slots;
    instance.pending = slots.saturating_sub(room);
    instance.crowded = room < slots / 2;
    instance.drained = !exact || tx.iter_mut().all(|tx| tx.sync() == 0);
}
