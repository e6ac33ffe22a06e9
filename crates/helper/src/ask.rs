//! The daemon's side: starts the helper, or connects to one that the system starts.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair,
    sockopt,
};

use crate::wire::{Ask, Told, hear_told, tell};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the helper at `path`, a program or a socket, open something.
///
/// # Errors
/// It cannot be asked, or does not answer.
pub fn ask(path: &Path, ask: &Ask) -> io::Result<(Told, Vec<OwnedFd>)> {
    if std::fs::metadata(path)?.file_type().is_socket() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // Also for a place in the line of those who wait to be served.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        return converse(&socket, ask);
    }
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut helper = command.spawn()?;
    // So that the only copy of its end is its own, and its death is noticed.
    drop(command);
    let answer = converse(&ours, ask);
    drop(ours);
    // It may have ended by itself; it is not waited for longer than an answer.
    if answer.is_err() {
        let _ = helper.kill();
    }
    helper.wait()?;
    answer
}

fn converse(socket: &OwnedFd, ask: &Ask) -> io::Result<(Told, Vec<OwnedFd>)> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    tell(socket, ask, &[])?;
    Ok(hear_told(socket)?)
}
