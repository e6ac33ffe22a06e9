//! The socket that VMMs connect to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// Access to the socket, for the VMM's user.
const MODE: u32 = 0o660;

/// A listening socket. Its file goes with it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
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
        rustix::fs::fchmod(&socket, Mode::from(MODE)).with_context(named)?;
        match bind(&socket, &address) {
            Err(Errno::NOENT | Errno::NOTDIR) => {
                bail!("no directory for {}; make it with mkdir -p", named())
            }
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                bail!("no permission to make {}; choose another --socket", named())
            }
            bound => bound.with_context(named)?,
        }
        let found = std::fs::symlink_metadata(&path).with_context(named)?;
        let listener = Self { socket, path, file: (found.dev(), found.ino()) };
        listen(&listener.socket, 1).with_context(named)?;
        Ok(listener)
    }

    /// The directory of the socket.
    pub fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
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

impl Drop for Listener {
    /// Removes the file, if it is still the one that was made.
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_what_is_in_use_or_no_socket_is_not() {
        let dir = tempfile::tempdir().expect("room");
        let path = dir.path().join("s");
        let first = Listener::bind(&path).expect("room");
        let why = Listener::bind(&path).expect_err("in use");
        assert!(format!("{why:#}").contains("another program listens"), "{why:#}");
        assert!(first.next().expect("none").is_some(), "the question whether it listens");
        assert!(first.next().expect("none").is_none());
        drop(first);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("room"));
        drop(Listener::bind(&path).expect("nothing listens there"));
        std::fs::write(&path, "text").expect("room");
        let why = format!("{:#}", Listener::bind(&path).expect_err("a file"));
        assert!(why.contains("is not a socket"), "{why}");
        assert!(path.exists());
        let why = format!("{:#}", Listener::bind(&dir.path().join("no/s")).expect_err("no dir"));
        assert!(why.contains("mkdir -p"), "{why}");
    }
}
