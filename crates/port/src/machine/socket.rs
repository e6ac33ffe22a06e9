//! Sockets of VM ports: one that VMMs connect to, or one of a VMM that the port connects to.
//!
//! No call here blocks on a peer. Ownership and mode are changed by descriptor and never by name,
//! because others may be able to write to the directory of the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, listen, socket_with,
};

use crate::machine::quota::QuotaExceeded;
use crate::machine::{RETRY_MS, Spec};
use crate::sys::descriptors::refuse;

/// The access rights of a socket: user, group and mode. `None` leaves the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The owner.
    pub owner: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// The mode.
    pub mode: Option<u32>,
}

/// The default mode of a socket.
const MODE: u32 = 0o660;

/// Why a socket cannot be made. Each message tells an operator what to do.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("socket {} has more than 107 bytes; choose a shorter --socket", .0.display())]
    Long(PathBuf),
    /// A file that is not a socket has the path.
    #[error("{} exists and is not a socket; choose another --socket, or remove it", .0.display())]
    Exists(PathBuf),
    /// Another program listens on the socket.
    #[error("another program listens on {}; choose another --socket, or end it", .0.display())]
    InUse(PathBuf),
    /// The directory does not exist.
    #[error("no directory for socket {}; make it: mkdir -p {}", .0.display(), parent(.0))]
    NoDirectory(PathBuf),
    /// The daemon may not create the socket.
    #[error(
        "no permission to make socket {}; let user {user} write to {}{}",
        .path.display(), parent(.path), listed()
    )]
    Permission {
        /// The path of the socket.
        path: PathBuf,
        /// The user that the daemon runs as.
        user: u32,
    },
    /// The daemon may not change the owner or the group.
    #[error(
        "no permission to give socket {} to {to}; run the daemon as root, or add its user to that \
         group",
        .path.display()
    )]
    MayNotGive {
        /// The path of the socket.
        path: PathBuf,
        /// The user and the group that were to own it.
        to: String,
    },
    /// The file at the path is not the socket that was made.
    #[error(
        "another program replaced socket {} while it was made; choose a --socket in a directory \
         that other users cannot write to",
        .0.display()
    )]
    Exchanged(PathBuf),
    /// The user's quota of descriptors is used up.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// A system call failed for another reason.
    #[error("socket {}: {error}", .path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
}

fn parent(path: &Path) -> String {
    path.parent().map_or_else(|| ".".to_owned(), |parent| parent.display().to_string())
}

/// A confined daemon writes where its configuration lets it.
fn listed() -> &'static str {
    match confine::mode() {
        confine::Mode::On => ", and list that in vm_sockets of the daemon's configuration",
        _ => "",
    }
}

pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> SocketError {
    let path = path.to_owned();
    move |error| SocketError::System { path: path.clone(), error }
}

/// What is at the path of a socket that the port made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The port's own socket.
    Ours {
        /// The owner.
        owner: u32,
        /// The group.
        group: u32,
        /// The mode.
        mode: u32,
    },
    /// No file: the socket was removed.
    Empty,
    /// Another file, so no VMM can reach the port.
    Other,
}

/// What a peer may send beside bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Descriptors.
    Descriptors,
    /// Nothing. Before Linux 6.16 descriptors come all the same.
    Nothing,
}

/// The origin of a port's connections.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The port's own socket, its path, and the device and inode numbers of its file.
    Bound(OwnedFd, PathBuf, (u64, u64)),
    /// The path of a VMM's socket, to which the port connects.
    Remote(PathBuf, Beside),
}

impl Listener {
    /// The origin of a port's connections. `beside`: what their peers may send beside bytes.
    pub(crate) fn of(spec: &Spec, beside: Beside) -> Result<Self, SocketError> {
        match spec.connects {
            true => Ok(Self::Remote(spec.path.clone(), beside)),
            false => bind(&spec.path, spec.access, beside),
        }
    }

    /// The descriptor that is readable when a connection can be accepted.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Bound(listener, ..) => Some(listener.as_fd()),
            Self::Remote(..) => None,
        }
    }

    /// The next connection to a VMM, if there is one.
    ///
    /// # Errors
    /// A connection exists and cannot be accepted now; the listener stays readable.
    pub(crate) fn next(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Bound(listener, ..) => match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(monitor) => Ok(Some(monitor)),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
                Err(errno) => Err(errno.into()),
            },
            Self::Remote(path, beside) => Ok(connect(path, *beside).ok()),
        }
    }

    /// The file at the path of the port's own socket, if the daemon may look.
    pub(crate) fn place(&self) -> Option<Place> {
        let Self::Bound(_, path, file) = self else { return None };
        match std::fs::symlink_metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == *file => {
                let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o777);
                Some(Place::Ours { owner, group, mode })
            }
            Ok(_) => Some(Place::Other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Place::Empty),
            Err(_) => None,
        }
    }

    /// Waits until no other thread holds the listener. The last holder closes it, and with it the
    /// descriptors that peers have sent and no call has received, which takes as long as they like.
    pub(crate) fn outlast(self: &Arc<Self>) {
        while Arc::strong_count(self) > 1 {
            std::thread::sleep(Duration::from_millis(RETRY_MS.into()));
        }
    }

    /// Removes the port's own socket, if the file is still the one that was made.
    pub(crate) fn close(&self) {
        if let Self::Bound(_, path, file) = self
            && identity(path).is_some_and(|found| found == *file)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket also if the rest of its port cannot be made.
impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects at once or fails: a listener with a full backlog could block for ever.
fn connect(path: &Path, beside: Beside) -> rustix::io::Result<OwnedFd> {
    connect_as(path, SocketType::STREAM, beside)
}

fn connect_as(path: &Path, kind: SocketType, beside: Beside) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket(kind, beside)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// A socket that sends datagrams to the one at `path`, if there is one.
pub(crate) fn connect_datagrams(path: &Path) -> rustix::io::Result<OwnedFd> {
    connect_as(path, SocketType::DGRAM, Beside::Nothing)
}

fn new_socket(kind: SocketType, beside: Beside) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    if beside == Beside::Nothing {
        // An older kernel cannot; another thread than the worker then closes what comes.
        let _ = refuse(&socket);
    }
    Ok(socket)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Makes the listening socket of a port. It replaces a stale socket, on which no process listens.
fn bind(path: &Path, access: Access, beside: Beside) -> Result<Listener, SocketError> {
    let listener = bind_as(path, access, SocketType::STREAM, beside)?;
    if let Listener::Bound(socket, ..) = &listener {
        listen(socket, 4).map_err(|errno| failed(path)(errno.into()))?;
    }
    Ok(listener)
}

/// Makes a socket that receives datagrams.
pub(crate) fn bind_datagrams(path: &Path, access: Access) -> Result<Listener, SocketError> {
    bind_as(path, access, SocketType::DGRAM, Beside::Nothing)
}

fn bind_as(
    path: &Path,
    access: Access,
    kind: SocketType,
    beside: Beside,
) -> Result<Listener, SocketError> {
    let system = |errno: Errno| failed(path)(errno.into());
    let own = || path.to_owned();
    let address = SocketAddrUnix::new(path).map_err(|_| SocketError::Long(own()))?;
    clear(path)?;
    let socket = new_socket(kind, beside).map_err(system)?;
    // No other user may connect before the access rights are set.
    rustix::fs::fchmod(&socket, Mode::from(0o600)).map_err(system)?;
    rustix::net::bind(&socket, &address).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => SocketError::NoDirectory(own()),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let user = rustix::process::geteuid().as_raw();
            SocketError::Permission { path: own(), user }
        }
        Errno::ADDRINUSE => SocketError::InUse(own()),
        errno => system(errno),
    })?;
    let file = just_made(path)?;
    let found = rustix::fs::fstat(&file).map_err(system)?;
    let listener = Listener::Bound(socket, own(), (found.st_dev, found.st_ino));
    if let Err(error) = give(&file, path, access) {
        listener.close();
        return Err(error);
    }
    Ok(listener)
}

/// Removes the stale socket of an earlier daemon.
fn clear(path: &Path) -> Result<(), SocketError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::Exists(path.to_owned()));
    }
    match connect(path, Beside::Nothing) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed(path)),
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

/// The socket that was just made at `path`. The check of the owner detects another file in its
/// place: other users cannot make sockets that belong to the daemon.
fn just_made(path: &Path) -> Result<OwnedFd, SocketError> {
    let exchanged = || SocketError::Exchanged(path.to_owned());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| exchanged())?;
    let found = rustix::fs::fstat(&file).map_err(|errno| failed(path)(errno.into()))?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    let is_ours = found.st_uid == rustix::process::geteuid().as_raw();
    if is_socket && is_ours { Ok(file) } else { Err(exchanged()) }
}

fn give(file: &OwnedFd, path: &Path, access: Access) -> Result<(), SocketError> {
    if access.owner.is_some() || access.group.is_some() {
        let (owner, group) = (access.owner.map(Uid::from_raw), access.group.map(Gid::from_raw));
        let given = rustix::fs::chownat(file, "", owner, group, AtFlags::EMPTY_PATH);
        given.map_err(|errno| match errno {
            Errno::PERM | Errno::ACCESS => {
                let user = access.owner.map(|owner| format!("user {owner}"));
                let group = access.group.map(|group| format!("group {group}"));
                let to = [user, group].into_iter().flatten().collect::<Vec<_>>();
                let to = to.join(", ");
                SocketError::MayNotGive { path: path.to_owned(), to }
            }
            errno => failed(path)(errno.into()),
        })?;
    }
    // The mode of a file that is open with O_PATH can only be set by its name in /proc.
    let mode = std::fs::Permissions::from_mode(access.mode.unwrap_or(MODE));
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(name, mode).map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use tempfile::tempdir;

    fn make(path: &Path) -> Result<Listener, SocketError> {
        bind(path, Access { mode: Some(0o606), ..Access::default() }, Beside::Descriptors)
    }

    #[test]
    fn a_listener_that_accepts_nobody_keeps_nobody_waiting() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let path = dir.join("vm.sock");
        let listener = new_socket(SocketType::STREAM, Beside::Descriptors).expect("descriptors");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("short")).expect("a place");
        listen(&listener, 0).expect("bound");
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path, Beside::Nothing).ok()).collect();
        assert_eq!(connect(&path, Beside::Nothing).expect_err("it is full"), Errno::AGAIN);
        let (done, is_done) = std::sync::mpsc::channel();
        let (ours, theirs) = (path.clone(), Listener::Remote(path, Beside::Nothing));
        std::thread::spawn(move || {
            let _ = done.send((theirs.next(), make(&ours)));
        });
        let (next, bound) = is_done.recv_timeout(Duration::from_secs(10)).expect("they return");
        assert!(next.expect("no error").is_none());
        assert!(matches!(bound, Err(SocketError::InUse(_))));
        drop(waiting);
    }

    #[test]
    fn a_socket_goes_with_its_door_and_another_in_its_place_stays() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let path = dir.join("vm.sock");
        drop(make(&path).expect("a place"));
        assert!(!path.exists());
        let listener = make(&path).expect("a place");
        let ours = listener.place();
        assert!(matches!(ours, Some(Place::Ours { mode: 0o606, .. })), "{ours:?}");
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(listener.place(), Some(Place::Empty));
        let other = make(&path).expect("a place");
        assert_eq!(listener.place(), Some(Place::Other));
        drop(listener);
        assert!(path.exists());
        drop(other);
        assert_eq!(std::fs::read_dir(dir).expect("ours").count(), 0, "nothing is left");
    }

    #[test]
    fn what_took_the_place_of_a_socket_is_not_given_away() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let [file, link] = ["file", "link"].map(|name| dir.join(name));
        std::fs::write(&file, "").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let mine = make(&dir.join("vm.sock")).expect("the path is free");
        let to_socket = dir.join("to-socket");
        std::os::unix::fs::symlink(dir.join("vm.sock"), &to_socket).expect("a link");
        for path in [&*file, &*link, &*to_socket, dir] {
            assert!(matches!(just_made(path), Err(SocketError::Exchanged(_))), "{path:?}");
        }
        assert!(just_made(&dir.join("vm.sock")).is_ok());
        mine.close();
    }

    #[test]
    fn sockets_are_made_replaced_and_taken_away() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let path = dir.join("vm.sock");
        let listener = make(&path).expect("the path is free");
        let mode = std::fs::metadata(&path).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o606);
        assert!(matches!(make(&path), Err(SocketError::InUse(_))));
        let frontend = UnixStream::connect(&path).expect("it listens");
        let came = std::iter::from_fn(|| listener.next().expect("descriptors")).count();
        assert_eq!(came, 2, "the other one checked whether a process listens");
        drop((listener, frontend));
        make(&path).expect("left behind").close();
        assert!(!path.exists());
        std::fs::write(&path, "").expect("a file");
        assert!(matches!(make(&path), Err(SocketError::Exists(_))));
        let error = make(&dir.join("x/vm.sock")).expect_err("no directory").to_string();
        assert!(error.contains("mkdir -p"), "{error}");
        let error = make(&dir.join("x".repeat(120))).expect_err("long").to_string();
        assert!(error.contains("--socket"), "{error}");
    }
}
