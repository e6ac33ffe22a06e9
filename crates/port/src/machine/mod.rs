//! Ports of virtual machines: the [socket](self) by which a VMM reaches a port, the port's
//! [`Status`], its rate-limited log and its quota.
//!
//! Each port has a thread that waits for VMMs; the worker never waits for one.

pub mod log;
pub mod quota;
pub(crate) mod rejected;
pub(crate) mod requests;
pub(crate) mod socket;
mod status;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use device::moderation::Coalesce;

use protocol::peer::Peer;
use quota::Quota;
use requests::Requests;
use socket::Listener;
pub use socket::{Access, Place, SocketError};
pub use status::{State, Status};

/// The pause between two VMMs, and between two attempts to reach one, in milliseconds. It bounds
/// the CPU time that a client can cost by reconnecting, and that a lack of descriptors can cost.
pub(crate) const RETRY_MS: u32 = 50;

/// The settings of a VM's port.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The port's name, for the log.
    pub name: String,
    /// The path of the socket.
    pub path: PathBuf,
    /// The VMM listens, and the port connects.
    pub connects: bool,
    /// The number of pairs of virtqueues; ignored by ports without virtqueues.
    pub pairs: u16,
    /// Interrupt coalescing; adaptive, if `None`.
    pub coalesce: Option<Coalesce>,
    /// The VMM's own socket, for datagram ports.
    pub peer: Option<PathBuf>,
    /// The access rights of the port's own socket.
    pub access: Access,
    /// The quota of the port's user.
    pub quota: Arc<Quota>,
}

/// The process ID of the peer of a connection, 0 if the kernel does not tell.
pub(crate) fn process_of(peer: &OwnedFd) -> u32 {
    Peer::of(peer).ok().and_then(|peer| peer.pid).unwrap_or(0)
}

/// A port's socket and its thread. Dropping this removes the socket at once and tells the thread to
/// end, but does not wait for that: the thread may have gigabytes to unmap.
#[derive(Debug)]
pub struct MachinePort {
    pub(crate) listener: Arc<Listener>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) status: Arc<Status>,
}

impl MachinePort {
    /// The port's status.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Disconnects the VMM, and admits none for so long. The [`Status`] says why. The worker stops
    /// serving the VMM in its next call of the adapter, even if the VMM blocks the port's thread.
    pub fn evict(&self, period: Duration, why: String) {
        self.requests.evict(period, why);
    }

    /// The file at the path of the port's own socket, if the daemon may look.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.listener.place()
    }
}

impl Drop for MachinePort {
    fn drop(&mut self) {
        self.listener.close();
        self.requests.end();
    }
}
