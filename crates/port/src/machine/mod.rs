//! What ports of virtual machines have in common: a [socket](self) by which a machine's monitor is
//! reached, what is known of it ([`Status`]), and how much of it is said in the log.
//!
//! Each port has a thread that waits for monitors; the worker never does.

pub(crate) mod log;
pub mod quota;
pub(crate) mod rejected;
pub(crate) mod socket;
mod status;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

pub use device::moderation::Coalesce;

use crate::sys::vhost::Event;
use quota::Quota;
use socket::Listener;
pub use socket::{Access, Place, SocketError};
pub use status::{State, Status};

/// Between two monitors, and between two tries to get one, in milliseconds. Nobody who comes and
/// goes, and no lack of descriptors, keeps a processor busy.
pub(crate) const RETRY_MS: u32 = 50;

/// What a port is to be.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name, for the log.
    pub name: String,
    /// The socket.
    pub path: PathBuf,
    /// The monitor listens, and we connect.
    pub connects: bool,
    /// Pairs of queues, where there are queues.
    pub pairs: u16,
    /// How interrupts are spaced, unless that adapts itself.
    pub coalesce: Option<Coalesce>,
    /// The monitor's own socket, where each side has one.
    pub peer: Option<PathBuf>,
    /// Who may connect to a socket of ours.
    pub access: Access,
    /// What its machine may take.
    pub quota: Arc<Quota>,
}

/// The process at the other end of a connection, 0 if the system does not say.
pub(crate) fn process_of(peer: &OwnedFd) -> u32 {
    let process = rustix::net::sockopt::socket_peercred(peer);
    process.map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs())
}

/// A port's socket and its thread. Dropped, it takes the socket away at once and lets the thread
/// end, which nobody waits for: it may have gigabytes to unmap.
#[derive(Debug)]
pub struct MachinePort {
    pub(crate) listener: Arc<Listener>,
    pub(crate) stop: Arc<Event>,
    pub(crate) status: Arc<Status>,
}

impl MachinePort {
    /// What is known of it.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// What is at the path of its socket, if it has one of its own and we may look.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.listener.place()
    }
}

impl Drop for MachinePort {
    fn drop(&mut self) {
        self.listener.close();
        self.stop.set();
    }
}
