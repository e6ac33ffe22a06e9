//! The control socket without the client library: for messages that no client would send.

use std::os::fd::OwnedFd;
use std::path::Path;

use protocol::MAX_MESSAGE;
use protocol::paths::SOCKET_NAME;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect as join,
    recv, send, socket_with,
};

/// Connects to the daemon in `dir`.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn connect(dir: &Path) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors");
    let address = SocketAddrUnix::new(dir.join(SOCKET_NAME)).expect("a short path");
    join(&socket, &address).expect("a daemon");
    socket
}

/// Sends a message and waits for the answer; `None`: the daemon hung up.
#[must_use]
pub fn ask(socket: &OwnedFd, message: &[u8]) -> Option<Vec<u8>> {
    // A refusal may be on its way already.
    let _ = send(socket, message, SendFlags::NOSIGNAL);
    let mut answer = vec![0; MAX_MESSAGE];
    match recv(socket, &mut answer[..], RecvFlags::empty()) {
        Ok((_, length)) if length > 0 => Some(answer[..length].to_vec()),
        _ => None,
    }
}
