//! The descriptors of ports that the doorbell watches: of interfaces, cables and machines.
//!
//! The doorbell does not watch a socket while frames come all the time, nor a descriptor at its
//! end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use port::sys::{Doorbell, PortSet};
use switch::Plug;

use super::Worker;

impl Worker {
    /// Stops watching a busy socket.
    #[cold]
    pub(super) fn unwatch(&mut self, number: u32) {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return };
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        if let Some(plug) = plug.filter(|plug| plug.is_socket()) {
            port.unwatched = unwatch(doorbell, plug);
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
            unwatch(doorbell, plug);
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

/// Calls `with` with the descriptor that becomes readable when the plug has something to receive.
fn with_descriptor<R>(plug: &Plug, with: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
    plug.with_watched(|watched| {
        let set = watched.downcast_ref::<Arc<OwnedFd>>().map(AsFd::as_fd);
        let fd = set.or_else(|| watched.downcast_ref::<OwnedFd>().map(AsFd::as_fd));
        with(fd.expect("adapters are watched by descriptors"))
    })
}

/// The epoll set that the plug is watched by, if it is one.
pub(super) fn watched_set(plug: &Plug) -> Option<PortSet> {
    plug.with_watched(|watched| watched.downcast_ref().cloned().map(PortSet)).flatten()
}

/// Has the doorbell watch the plug's descriptor, if it has one.
pub(super) fn watch(doorbell: &Doorbell, number: u32, plug: &Plug) -> bool {
    match with_descriptor(plug, |fd| doorbell.watch(fd, number)) {
        None => false,
        Some(Ok(())) => true,
        Some(Err(error)) => {
            tracing::error!("cannot watch an interface, so its port receives nothing: {error}");
            false
        }
    }
}

/// Has the doorbell watch the plug's descriptor no more; `false` if it has none.
pub(super) fn unwatch(doorbell: &Doorbell, plug: &Plug) -> bool {
    with_descriptor(plug, |fd| doorbell.unwatch(fd)).is_some()
}
