//! The descriptors of ports that the doorbell watches: of interfaces, cables and machines.
//!
//! The doorbell does not watch a socket while frames come all the time, nor a descriptor at its
//! end.

use super::Worker;

impl Worker {
    /// Stops watching a busy socket.
    #[cold]
    pub(super) fn unwatch(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        if let Some(plug) = plug.filter(|plug| plug.is_socket()) {
            plug.unwatch(&doorbell.bell(number));
            port.unwatched = true;
        }
    }

    /// Stops watching a descriptor at its end, which would be readable for ever.
    #[cold]
    pub(super) fn look_away(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        let is_watched = std::mem::take(&mut port.watched) && !std::mem::take(&mut port.unwatched);
        if let Some(plug) = plug.filter(|_| is_watched) {
            plug.unwatch(&doorbell.bell(number));
        }
    }

    /// Watches the socket again, because the worker stops looking at it.
    pub(super) fn rewatch(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        port.busy = 0;
        if !std::mem::take(&mut port.unwatched) {
            return;
        }
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        port.watched = plug.is_some_and(|plug| plug.watch(&doorbell.bell(number)));
    }
}
