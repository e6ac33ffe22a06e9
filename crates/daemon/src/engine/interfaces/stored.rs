//! TAPs whose descriptors are kept for the next daemon ([`crate::kept`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hostif::tap::Ending;
use port::host::TapQueues;
use port::sys::Closer;
use protocol::name::PortName;
use protocol::{HostIf, PortKind};

use super::{HostPlace, HostPorts};
use crate::control::datapath::interfaces::Copies;
use crate::engine::Workers;
use crate::engine::reclaimer::Reclaimer;
use crate::kept::{FdStore, Kept, Queues, name_of};
use crate::model::keys::PortKey;

/// How long the deletion of a port waits for the service manager to close what it keeps.
const PATIENCE: Duration = Duration::from_secs(1);

/// Descriptors of an interface that are open already.
#[derive(Debug)]
pub(in crate::engine) enum Given {
    /// The client passed them with the call, to this daemon or the one before.
    ByClient(TapQueues),
    /// The daemon before this one left them, under this name.
    Kept(String, Vec<OwnedFd>),
}

impl Default for Given {
    fn default() -> Self {
        Self::ByClient(TapQueues::new(Vec::new(), &Closer::in_place()))
    }
}

impl Given {
    pub fn fds(&self) -> &[OwnedFd] {
        match self {
            Self::ByClient(queues) => queues.get(),
            Self::Kept(_, fds) => fds,
        }
    }
}

/// The TAP of a port, and its name at the service manager.
#[derive(Debug)]
pub(in crate::engine) struct Stored {
    fd_store: FdStore,
    name: String,
    queues: Queues,
    /// The daemon alone has it, and so does the service manager.
    is_own: bool,
}

impl Stored {
    /// Deletes the TAP, unless it was there before: `close` closes the descriptors of the port.
    pub fn delete(self, close: impl FnOnce()) {
        let queues = self.queues.upgrade().filter(|_| self.is_own);
        let ending = queues.as_ref().and_then(|queues| Ending::of(queues.get()));
        drop(queues);
        close();
        // A next port may want its name at once.
        if self.fd_store.remove(&self.name, &self.queues)
            && let Some(ending) = ending
        {
            ending.wait(PATIENCE);
        }
    }
}

/// Closes descriptors that the daemon before this one left and no port has.
pub(in crate::engine) fn discard(fd_store: &FdStore, name: String, queues: Vec<OwnedFd>) {
    let queues = TapQueues::new(queues, &Closer::in_place());
    let (queues, fd_store) = (Arc::new(queues), fd_store.clone());
    let stored = Stored { fd_store, name, queues: Arc::downgrade(&queues), is_own: true };
    stored.delete(|| drop(queues));
}

impl HostPorts {
    /// The TAP of a port, if there is a service manager to keep it.
    pub fn stored(&self, port: PortKey) -> Option<Stored> {
        let place = self.ports.get(&port).filter(|_| self.fd_store.is_there())?;
        let queues = place.link.as_ref()?.queues()?.clone();
        let (name, is_own) = (name_of(&place.name, &place.wanted), place.wanted.fds == 0);
        Some(Stored { fd_store: self.fd_store.clone(), name, queues, is_own })
    }

    /// Has the TAP of a port, which has been opened, kept.
    pub fn keep(&self, port: PortKey, reclaimer: &Reclaimer) {
        if let Some(Stored { fd_store, name, queues, .. }) = self.stored(port) {
            reclaimer.run(move || fd_store.store(&name, &queues));
        }
    }

    /// What the daemon before this one left for a port is of no use: it is kept no more.
    pub fn give_up_inherited(&mut self, port: PortKey, reclaimer: &Reclaimer) {
        let Some(place) = self.ports.get_mut(&port) else { return };
        if std::mem::take(&mut place.inherited) {
            let (fd_store, name) = (self.fd_store.clone(), name_of(&place.name, &place.wanted));
            reclaimer.run(move || {
                fd_store.remove(&name, &Queues::new());
            });
        }
    }

    /// What the daemon before this one left for a port. What a client had given to that one is
    /// left to `closer`.
    pub fn inherited(&mut self, port: PortKey, closer: &Closer) -> Given {
        let tap = self.ports.get_mut(&port).filter(|place| place.kind == PortKind::Tap);
        let Some(place) = tap else { return Given::default() };
        let name = name_of(&place.name, &place.wanted);
        let kept = self.kept.take(&name);
        place.inherited = kept.is_some();
        match kept {
            None => Given::default(),
            Some(fds) if place.wanted.fds > 0 => Given::ByClient(TapQueues::new(fds, closer)),
            Some(fds) => Given::Kept(name, fds),
        }
    }

    /// Whether the daemon before this one left the interface of a port.
    pub fn inherits(&self, port: &PortName, kind: PortKind, wanted: &HostIf) -> bool {
        kind == PortKind::Tap && self.kept.has(&name_of(port, wanted))
    }

    /// Copies of the descriptors of the first TAP from this port on.
    pub fn copies(&self, from: PortKey) -> io::Result<Option<(PortKey, Copies)>> {
        let open = |place: &HostPlace| place.link.as_ref()?.queues()?.upgrade();
        let mut ports = self.ports.range(from..);
        let Some((key, place, queues)) =
            ports.find_map(|(key, place)| Some((*key, place, open(place)?)))
        else {
            return Ok(None);
        };
        let copies = queues.get().iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Some((key, (name_of(&place.name, &place.wanted), copies))))
    }

    /// Closes what no port has taken: all ports are made. A client of this user may have it, too.
    pub fn discard_rest(&mut self, user: u32, reclaimer: &Reclaimer) {
        for (name, queues) in self.kept.take_rest() {
            tracing::info!("{name}: closed: no port is to have this interface any more");
            let fd_store = self.fd_store.clone();
            reclaimer.run_for(user, move || discard(&fd_store, name, queues));
        }
    }
}

impl Workers {
    /// Sets what the daemon before this one left, and the service manager that is to keep what
    /// this one makes.
    pub fn set_kept(&mut self, kept: Kept, fd_store: FdStore) {
        (self.host.kept, self.host.fd_store) = (kept, fd_store);
    }
}
