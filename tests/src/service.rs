//! A service manager as systemd is one for a daemon: it keeps descriptors (`FDSTORE=1`), and passes
//! them to the next daemon. It wants reports (`WATCHDOG=1`), and counts them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};

use crate::process::Scratch;

/// The socket to which a daemon speaks.
pub const NOTIFY: &str = "notify";
/// The time in which it wants a report (`WatchdogSec=`).
pub const WATCHDOG: Duration = Duration::from_secs(1);
/// The socket from which a process gets the descriptors with which it becomes a daemon.
const PASS: &str = "pass";
/// Descriptors of a message.
const FDS: usize = 64;

type Store = Vec<(String, OwnedFd)>;

/// A service manager; its threads end with the process.
#[derive(Debug)]
pub struct ServiceManager {
    place: Scratch,
    store: Arc<Mutex<Store>>,
    reports: Arc<AtomicU64>,
}

impl ServiceManager {
    /// One that keeps nothing yet.
    ///
    /// # Panics
    /// If there is no room for its sockets.
    #[must_use]
    pub fn start() -> Self {
        let place = Scratch::new("service");
        let notify = UnixDatagram::bind(place.path().join(NOTIFY)).expect("a socket");
        let pass = packets();
        bind(&pass, &address(place.path())).expect("a socket");
        listen(&pass, 16).expect("a socket");
        let store = Arc::<Mutex<Store>>::default();
        let (kept, passed) = (store.clone(), store.clone());
        let reports = Arc::<AtomicU64>::default();
        let counter = reports.clone();
        std::thread::spawn(move || {
            while let Some((text, fds)) = receive(&notify) {
                let is_report = text.lines().any(|line| line == "WATCHDOG=1");
                counter.fetch_add(is_report.into(), Ordering::Relaxed);
                note(&mut lock(&kept), &text, fds);
            }
        });
        std::thread::spawn(move || {
            while let Ok(next) = accept_with(&pass, SocketFlags::CLOEXEC) {
                lock(&passed).iter().for_each(|(name, fd)| give(&next, name, fd));
            }
        });
        Self { place, store, reports }
    }

    /// How often a daemon has reported that its threads go on.
    #[must_use]
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// The directory of its sockets.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    /// The names of the descriptors that it keeps.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        lock(&self.store).iter().map(|(name, _)| name.clone()).collect()
    }

    /// Puts what `other` makes in place of each descriptor.
    pub fn replace_all(&self, mut other: impl FnMut() -> OwnedFd) {
        lock(&self.store).iter_mut().for_each(|(_, fd)| *fd = other());
    }

    /// Keeps another descriptor.
    pub fn add(&self, name: &str, fd: OwnedFd) {
        lock(&self.store).push((name.to_owned(), fd));
    }

    /// Closes what it keeps, as when the service is stopped for good.
    pub fn clear(&self) {
        lock(&self.store).clear();
    }
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What systemd does with a message.
fn note(store: &mut Store, text: &str, fds: Vec<OwnedFd>) {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let name = field("FDNAME=").unwrap_or("stored");
    if field("FDSTOREREMOVE=") == Some("1") {
        store.retain(|(it, _)| it != name);
    } else if field("FDSTORE=") == Some("1") {
        store.extend(fds.into_iter().map(|fd| (name.to_owned(), fd)));
    }
}

/// What the service manager in this directory passes to the process that becomes a daemon.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn passed(dir: &Path) -> Vec<(String, OwnedFd)> {
    let socket = packets();
    connect(&socket, &address(dir)).expect("a service manager");
    let one = || receive(&socket).filter(|(name, _)| !name.is_empty());
    std::iter::from_fn(one)
        .map(|(name, fds)| (name, fds.into_iter().next().expect("one each")))
        .collect()
}

fn packets() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn address(dir: &Path) -> SocketAddrUnix {
    let path: PathBuf = dir.join(PASS);
    SocketAddrUnix::new(path).expect("a short path")
}

fn give(to: &OwnedFd, name: &str, fd: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let one = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&one)), "room for one");
    let text = [IoSlice::new(name.as_bytes())];
    sendmsg(to, &text, &mut control, SendFlags::NOSIGNAL).expect("a process that becomes a daemon");
}

fn receive(socket: impl AsFd) -> Option<(String, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4096];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let heard = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags).ok()?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    Some((String::from_utf8_lossy(&text[..heard.bytes]).into_owned(), fds))
}
