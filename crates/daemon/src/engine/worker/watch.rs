//! The descriptors of ports that the doorbell watches: of interfaces, cables and machines.
//!
//! The doorbell does not watch a socket while frames come all the time, nor a descriptor at its
//! end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use port::sys::Doorbell;
use switch::Plug;

use super::Worker;

impl Worker {
    /// Stops watching a busy socket.
    #[cold]
    pub(super) fn unwatch(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        if let Some(plug) = plug.filter(|plug| plug.is_socket())
            && let Some(fd) = descriptor(plug)
        {
            doorbell.unwatch(Some(fd));
            port.unwatched = true;
        }
    }

    /// Stops watching a descriptor at its end, which would be readable for ever.
    #[cold]
    pub(super) fn look_away(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        if std::mem::take(&mut port.watched) && !std::mem::take(&mut port.unwatched) {
            doorbell.unwatch(plug.as_deref().and_then(descriptor));
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
        port.watched = plug.is_some_and(|plug| watch(doorbell, number, plug));
    }
}

/// The descriptor that becomes readable when the plug has something to receive.
pub(super) fn descriptor(plug: &Plug) -> Option<BorrowedFd<'_>> {
    let fd = plug.watched()?.downcast_ref::<OwnedFd>();
    Some(fd.expect("adapters are watched by descriptors").as_fd())
}

/// Has the doorbell watch the plug's descriptor, if it has one.
pub(super) fn watch(doorbell: &Doorbell, number: u32, plug: &Plug) -> bool {
    let Some(fd) = descriptor(plug) else { return false };
    match doorbell.watch(fd, number) {
        Ok(()) => true,
        Err(error) => {
            tracing::error!("cannot watch an interface, so its port receives nothing: {error}");
            false
        }
    }
}
