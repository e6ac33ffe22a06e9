//! The socket that VMMs connect to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use terminal::remover::{self, File};

/// Access to the socket, for the VMM's user.
const MODE: u32 = 0o660;

/// A listening socket. Its file goes with it, and with the process.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// The other end removes the file when this is closed.
    _remover: ChildStdin,
}

impl Listener {
    /// Listens at `path`. A socket there on which no process listens is replaced.
    pub fn bind(path: &Path) -> Result<Self> {
        let named = || format!("socket {}", path.display());
        let path = std::path::absolute(path).with_context(named)?;
        let Ok(address) = SocketAddrUnix::new(&path) else {
            bail!("{} has more than 107 bytes; choose a shorter --socket", named());
        };
        clear(&path, &address).with_context(named)?;
        let socket = new_socket().with_context(named)?;
        // No other user may connect before the access rights are set.
        rustix::fs::fchmod(&socket, Mode::from(0o600)).with_context(named)?;
        match bind(&socket, &address) {
            Err(Errno::NOENT | Errno::NOTDIR) => {
                bail!("no directory for {}; make it with mkdir -p", named())
            }
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                bail!("no permission to make {}; choose another --socket", named())
            }
            bound => bound.with_context(named)?,
        }
        let remover = remover::start(&path, open_to_group(&path).with_context(named)?);
        let _remover = remover.context("cannot start the process that removes the socket")?;
        listen(&socket, 1).with_context(named)?;
        Ok(Self { socket, path, _remover })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next VMM, if one has connected.
    ///
    /// # Errors
    /// One has, and cannot be accepted.
    pub fn next(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the mode of a socket that was just made. It is opened once, so that another file in its
/// place is not changed.
fn open_to_group(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    // The mode of a file that is open with O_PATH can only be set by its name in /proc.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(name, std::fs::Permissions::from_mode(MODE))?;
    Ok((found.st_dev, found.st_ino))
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket of an earlier process.
fn clear(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        bail!("it exists and is not a socket; choose another --socket, or remove it");
    }
    match connect(new_socket()?, address) {
        Err(Errno::CONNREFUSED) => Ok(std::fs::remove_file(path)?),
        _ => bail!("another program listens on it; choose another --socket, or end it"),
    }
}
