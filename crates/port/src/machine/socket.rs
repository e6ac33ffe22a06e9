//! Where monitors come from: a socket of ours that they connect to, or one of theirs.
//!
//! Nothing here waits for who is at the other end, and nothing is given away by its name alone:
//! a socket may lie in a directory that others write to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, listen, socket_with,
};

use crate::machine::quota::QuotaExceeded;

/// Who may connect: numeric user and group, and a mode as of a file. None: as it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Owner of the socket.
    pub owner: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
    /// Its mode.
    pub mode: Option<u32>,
}

/// Mode of a socket of which nothing is said.
const MODE: u32 = 0o660;

/// Why there is no socket. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The name has no room in an address.
    #[error("socket {} has more than 107 letters; choose a shorter --socket", .0.display())]
    Long(PathBuf),
    /// There is something else.
    #[error("{} is there and is no socket; choose another --socket, or remove it", .0.display())]
    Exists(PathBuf),
    /// Somebody listens.
    #[error("another program listens on {}; choose another --socket, or end that", .0.display())]
    InUse(PathBuf),
    /// There is no directory.
    #[error("no directory for socket {}; make it: mkdir -p {}", .0.display(), parent(.0))]
    NoDirectory(PathBuf),
    /// No right to make it.
    #[error(
        "no permission to make socket {}; let user {user} write to {}",
        .path.display(), parent(.path)
    )]
    Permission {
        /// Where it was to be.
        path: PathBuf,
        /// Who we are.
        user: u32,
    },
    /// No right to give it away.
    #[error(
        "no permission to give socket {} to {whom}; run the daemon as root, or be in that group",
        .path.display()
    )]
    MayNotGive {
        /// Where it is.
        path: PathBuf,
        /// Who was to have it.
        whom: String,
    },
    /// It is another file than the one that was made.
    #[error(
        "somebody has exchanged socket {} while it was made; choose a --socket in a directory \
         that others cannot write to",
        .0.display()
    )]
    Exchanged(PathBuf),
    /// The user has no more descriptors.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// Something else.
    #[error("socket {}: {error}", .path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

fn parent(path: &Path) -> String {
    path.parent().map_or_else(|| ".".to_owned(), |parent| parent.display().to_string())
}

pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> SocketError {
    let path = path.to_owned();
    move |error| SocketError::System { path: path.clone(), error }
}

/// What is at the path of a socket that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// That socket, and whose it is.
    Ours {
        /// Its user.
        owner: u32,
        /// Its group.
        group: u32,
        /// Who may connect.
        mode: u32,
    },
    /// Nothing: somebody has removed it.
    Empty,
    /// Something else: nobody reaches us.
    Other,
}

/// Where monitors come from.
#[derive(Debug)]
pub(crate) enum Listener {
    /// Our socket, and which file it is.
    Bound(OwnedFd, PathBuf, (u64, u64)),
    /// A monitor listens here, now or later.
    Remote(PathBuf),
}

impl Listener {
    /// Readable when somebody is there.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Bound(listener, ..) => Some(listener.as_fd()),
            Self::Remote(_) => None,
        }
    }

    /// A monitor's connection, if one is there.
    ///
    /// # Errors
    /// There may be one, and it cannot be had now: the listener stays readable.
    pub(crate) fn next(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Bound(listener, ..) => match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(monitor) => Ok(Some(monitor)),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
                Err(errno) => Err(errno.into()),
            },
            Self::Remote(path) => Ok(connect(path).ok()),
        }
    }

    /// What is at the path of our socket, as far as we may look.
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

    /// Takes our socket away, if it still is ours.
    pub(crate) fn close(&self) {
        if let Self::Bound(_, path, file) = self
            && identity(path).is_some_and(|found| found == *file)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Also where the rest of its port cannot be made.
impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects at once or not at all: a listener that accepts nobody would keep us for ever.
fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    connect_as(path, SocketType::STREAM)
}

fn connect_as(path: &Path, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket(kind)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// A socket that sends datagrams to the one at `path`, if there is one.
pub(crate) fn connect_datagrams(path: &Path) -> rustix::io::Result<OwnedFd> {
    connect_as(path, SocketType::DGRAM)
}

fn new_socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Makes the socket of a port. One that nobody listens on any more is replaced.
pub(crate) fn bind(path: &Path, access: Access) -> Result<Listener, SocketError> {
    let listener = bind_as(path, access, SocketType::STREAM)?;
    if let Listener::Bound(socket, ..) = &listener {
        listen(socket, 4).map_err(|errno| failed(path)(errno.into()))?;
    }
    Ok(listener)
}

/// Makes one that datagrams are sent to.
pub(crate) fn bind_datagrams(path: &Path, access: Access) -> Result<Listener, SocketError> {
    bind_as(path, access, SocketType::DGRAM)
}

fn bind_as(path: &Path, access: Access, kind: SocketType) -> Result<Listener, SocketError> {
    let system = |errno: Errno| failed(path)(errno.into());
    let own = || path.to_owned();
    let address = SocketAddrUnix::new(path).map_err(|_| SocketError::Long(own()))?;
    clear(path)?;
    let socket = new_socket(kind).map_err(system)?;
    // Nobody else may connect before it is known who may.
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

/// Removes a socket that a daemon has left behind.
fn clear(path: &Path) -> Result<(), SocketError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::Exists(path.to_owned()));
    }
    match connect(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed(path)),
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

/// The socket that was made at `path` just now, and no other file that took its place: nobody else
/// makes sockets that belong to us.
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
                let whom = [user, group].into_iter().flatten().collect::<Vec<_>>();
                let whom = whom.join(", ");
                SocketError::MayNotGive { path: path.to_owned(), whom }
            }
            errno => failed(path)(errno.into()),
        })?;
    }
    // The mode of a file that is open as a place only is set by its name in /proc.
    let mode = std::fs::Permissions::from_mode(access.mode.unwrap_or(MODE));
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(name, mode).map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use tempfile::tempdir;

    fn make(path: &Path) -> Result<Listener, SocketError> {
        bind(path, Access { mode: Some(0o606), ..Access::default() })
    }

    #[test]
    fn a_listener_that_accepts_nobody_keeps_nobody_waiting() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let path = dir.join("vm.sock");
        let listener = new_socket(SocketType::STREAM).expect("descriptors");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("short")).expect("a place");
        listen(&listener, 0).expect("bound");
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert_eq!(connect(&path).expect_err("it is full"), Errno::AGAIN);
        let (done, is_done) = std::sync::mpsc::channel();
        let (ours, theirs) = (path.clone(), Listener::Remote(path));
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
        let mine = make(&dir.join("vm.sock")).expect("nobody is there");
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
        let listener = make(&path).expect("nobody is there");
        let mode = std::fs::metadata(&path).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o606);
        assert!(matches!(make(&path), Err(SocketError::InUse(_))));
        let frontend = UnixStream::connect(&path).expect("it listens");
        let came = std::iter::from_fn(|| listener.next().expect("descriptors")).count();
        assert_eq!(came, 2, "the other one looked whether somebody listens");
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
