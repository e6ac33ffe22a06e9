//! The service manager's store of descriptors: systemd's `FDSTORE=1` (`sd_notify(3)`).
//!
//! systemd closes what it has when the unit stops for good, and when an interface is deleted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hostif::tap::QUEUES_MAX;
use port::host::TapQueues;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How long a service manager may take for a message, and one that has taken longer before.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_LATER: Duration = Duration::from_millis(100);
/// Descriptors of one message.
const FDS_MAX: usize = QUEUES_MAX as usize;

/// The descriptors of an interface, while the daemon has it open.
pub type Queues = Weak<TapQueues>;

/// The store of the service manager, if the daemon has one. The calls may wait, so the control
/// thread makes none.
#[derive(Clone, Debug, Default)]
pub struct FdStore(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: OsString,
    /// Held while descriptors are stored or removed, so that none is stored after its removal.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the service manager has; `None`: what it passed at the start. A dead [`Weak`]: nothing
    /// here has it open, and the daemon before this one may have stored it.
    stored: BTreeMap<String, Option<Queues>>,
    /// The service manager has failed: nothing more is stored.
    failed: bool,
}

impl FdStore {
    /// The service manager that started this process, and passed descriptors of these names.
    #[must_use]
    pub fn of_environment(passed: Vec<String>) -> Self {
        Self(std::env::var_os("NOTIFY_SOCKET").map(|socket| Self::at(socket, passed)))
    }

    fn at(socket: OsString, passed: Vec<String>) -> Arc<Manager> {
        let stored = passed.into_iter().map(|name| (name, None)).collect();
        let state = Mutex::new(State { stored, failed: false });
        Arc::new(Manager { socket, state })
    }

    /// Whether there is a service manager that stores descriptors.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that the daemon before this one may have stored descriptors under these names.
    pub fn expect(&self, names: Vec<String>) {
        if let Some(manager) = &self.0 {
            let unsure = names.into_iter().map(|name| (name, Some(Queues::new())));
            manager.state().stored.extend(unsure);
        }
    }

    /// Stores these descriptors under a name, in place of others, unless they were passed under it
    /// at the start. What is closed already is not stored.
    pub fn store(&self, name: &str, queues: &Queues) {
        let Some(manager) = &self.0 else { return };
        let mut state = manager.state();
        let Some(fds) = queues.upgrade().filter(|_| !state.failed) else { return };
        let before = state.stored.insert(name.to_owned(), Some(queues.clone()));
        if matches!(before, Some(None)) {
            return;
        }
        if let Err(error) = manager.store(name, fds.get()) {
            state.failed = true;
            tracing::warn!(
                "the service manager takes no descriptors ({error}): {name} and interfaces that \
                 are made from now on end with the daemon"
            );
        }
    }

    /// Has the service manager close what is stored under this name, unless other descriptors are
    /// by now. To be called when the daemon itself has closed these. Returns whether the service
    /// manager knows.
    pub fn remove(&self, name: &str, queues: &Queues) -> bool {
        let Some(manager) = &self.0 else { return true };
        let mut state = manager.state();
        match state.stored.get(name) {
            None => return true,
            Some(Some(now)) if !now.ptr_eq(queues) && now.strong_count() > 0 => return true,
            Some(_) => {}
        }
        let patience = if state.failed { PATIENCE_LATER } else { PATIENCE };
        match manager.remove(name, patience) {
            Ok(()) => {
                state.stored.remove(name);
                true
            }
            Err(error) => {
                state.failed = true;
                tracing::warn!("{name}: the service manager does not close it: {error}");
                false
            }
        }
    }
}

impl Manager {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn store(&self, name: &str, fds: &[OwnedFd]) -> io::Result<()> {
        self.remove(name, PATIENCE)?;
        let text = format!("FDSTORE=1\nFDNAME={name}\n");
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        fds.chunks(FDS_MAX).try_for_each(|fds| self.send(&text, fds, PATIENCE))
    }

    fn remove(&self, name: &str, patience: Duration) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), &[], patience)
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>], patience: Duration) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(patience))?;
        socket.connect_addr(&match self.socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&self.socket)?,
        })?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors for a message"));
        }
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(&socket, &text, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use port::sys::Closer;

    use super::*;

    fn queues() -> Arc<TapQueues> {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        Arc::new(TapQueues::new(vec![file.into()], &Closer::in_place()))
    }

    /// A service manager with an abstract name, and the store.
    fn manager(passed: &[&str]) -> (UnixDatagram, FdStore) {
        let name = format!("uvala-store-{}-{}", std::process::id(), passed.concat());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let socket = UnixDatagram::bind_addr(&address).expect("a name of our own");
        let passed = passed.iter().map(|&name| name.to_owned()).collect();
        socket.set_nonblocking(true).expect("ours");
        (socket, FdStore(Some(FdStore::at(format!("@{name}").into(), passed))))
    }

    fn heard(socket: &UnixDatagram) -> Vec<String> {
        let mut text = [0; 200];
        let one = || socket.recv(&mut text).ok().map(|len| text[..len].to_vec());
        std::iter::from_fn(one).map(|text| String::from_utf8(text).expect("text")).collect()
    }

    #[test]
    fn what_was_passed_is_not_stored_again_and_what_was_replaced_is_not_removed() {
        let (socket, store) = manager(&["a"]);
        let (first, second) = (queues(), queues());
        let (one, other) = (Arc::downgrade(&first), Arc::downgrade(&second));
        store.store("a", &one);
        assert_eq!(heard(&socket), [""; 0]);
        store.store("a", &other);
        let replaced = ["FDSTOREREMOVE=1\nFDNAME=a\n", "FDSTORE=1\nFDNAME=a\n"];
        assert_eq!(heard(&socket), replaced);
        assert!(store.remove("a", &one) && store.remove("none", &one));
        assert_eq!(heard(&socket), [""; 0]);
        assert!(store.remove("a", &other));
        assert_eq!(heard(&socket), replaced[..1]);
        drop(first);
        store.store("b", &one);
        assert_eq!(heard(&socket), [""; 0], "it is closed");
    }

    #[test]
    fn what_the_daemon_before_has_stored_is_stored_again_or_removed() {
        let (socket, store) = manager(&[]);
        store.expect(vec!["a".to_owned(), "b".to_owned()]);
        let first = queues();
        store.store("a", &Arc::downgrade(&first));
        assert_eq!(heard(&socket), ["FDSTOREREMOVE=1\nFDNAME=a\n", "FDSTORE=1\nFDNAME=a\n"]);
        let second = queues();
        assert!(store.remove("b", &Arc::downgrade(&second)));
        assert_eq!(heard(&socket), ["FDSTOREREMOVE=1\nFDNAME=b\n"]);
    }

    #[test]
    fn a_service_manager_that_does_not_read_is_asked_to_store_nothing_more() {
        let (_socket, store) = manager(&["b"]);
        let all: Vec<_> = (0..2000).map(|_| queues()).collect();
        for (number, queues) in all.iter().enumerate() {
            store.store(&number.to_string(), &Arc::downgrade(queues));
        }
        let manager = store.0.as_ref().expect("there is one");
        assert!(manager.state().failed);
        assert!(!store.remove("0", &Arc::downgrade(&all[0])), "it cannot know");
    }
}
