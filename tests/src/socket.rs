//! The control socket without the client library: for messages that no client would send.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use protocol::MAX_MESSAGE;
use protocol::paths::SOCKET_NAME;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect as join, recv, send, sendmsg, socket_with, sockopt,
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

/// A TCP connection that takes so long to close, and its other end, which does not read. The end of
/// the other end ends the wait.
///
/// # Panics
/// Without a loopback interface.
#[must_use]
pub fn lingering(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (deaf, _) = listener.accept().expect("it connected");
    stream.set_nonblocking(true).expect("a socket");
    while stream.write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(time)).expect("a socket");
    (stream, deaf)
}

/// Sends bytes with descriptors beside them, without waiting.
///
/// # Errors
/// `EPERM` if the receiver refuses descriptors, or another error of the system call.
pub fn send_beside(to: impl AsFd, bytes: &[u8], fds: &[OwnedFd]) -> rustix::io::Result<usize> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &[IoSlice::new(bytes)], &mut beside, flags)
}
