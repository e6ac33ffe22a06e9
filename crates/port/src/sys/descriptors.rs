//! Descriptors that come beside bytes, from peers that should not send any.
//!
//! Closing a descriptor takes as long as its sender likes: a TCP connection lingers for hours. The
//! kernel closes what the receiver has no room for in the receiver's own call, and what a socket
//! still holds in the call that closes the socket. Since Linux 6.16 a socket can refuse
//! descriptors, and the sender gets `EPERM` ([`refuse`]). Before, [`receive`] has room for as many
//! as one message can carry, and another thread closes them.
// UNSAFETY: SO_PASSRIGHTS is in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The most descriptors beside one message (`SCM_MAX_FD`).
const MOST: usize = 253;

/// Makes a socket refuse descriptors, and those that are accepted from it.
///
/// # Errors
/// The kernel is older than Linux 6.16.
pub fn refuse(socket: impl AsFd) -> Result<(), Errno> {
    pass(socket, false)
}

/// Makes a socket take descriptors again.
///
/// # Errors
/// The kernel is older than Linux 6.16.
pub fn accept(socket: impl AsFd) -> Result<(), Errno> {
    pass(socket, true)
}

fn pass(socket: impl AsFd, take: bool) -> Result<(), Errno> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value = libc::c_int::from(take);
    let size = libc::socklen_t::try_from(size_of_val(&value)).expect("a small number");
    let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads one `int`.
    let status = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, at, size) };
    if status == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Receives bytes without waiting, and every descriptor beside them.
///
/// # Errors
/// `EAGAIN` if there is nothing to receive.
pub fn receive(from: impl AsFd, to: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(from, &mut [IoSliceMut::new(to)], &mut beside, flags)?;
    let rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((received.bytes, rights.flatten().collect()))
}

/// What the tests of all ports send.
#[cfg(test)]
pub(crate) mod fixture {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// How long a [`lingering`] connection takes to close.
    pub(crate) const LINGER: Duration = Duration::from_secs(4);

    /// A TCP connection that takes [`LINGER`] to close, and its other end, which does not read.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (deaf, _) = listener.accept().expect("it comes");
        stream.set_nonblocking(true).expect("a socket");
        while std::io::Write::write(&mut &stream, &[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&stream, Some(LINGER)).expect("a socket");
        (stream, deaf)
    }

    /// Sends bytes and this many copies of a descriptor.
    pub(crate) fn send_beside(
        to: impl AsFd,
        bytes: &[u8],
        fd: impl AsFd,
        copies: usize,
    ) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let fds = vec![fd.as_fd(); copies];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(to, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)
    }

    /// Sends bytes and this many copies of a [`lingering`] connection, whose last descriptor here
    /// it closes; returns the other end.
    pub(crate) fn send_lingering(to: impl AsFd, bytes: &[u8], copies: usize) -> TcpStream {
        let (stream, deaf) = lingering();
        send_beside(to, bytes, &stream, copies).expect("it is not refused here");
        deaf
    }

    /// Checks that something does not wait for a lingering connection.
    pub(crate) fn at_once<T>(what: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = what();
        assert!(start.elapsed() < LINGER / 2, "it waited {:?}", start.elapsed());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::{at_once, send_beside, send_lingering};
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn every_descriptor_comes(ours: OwnedFd, theirs: OwnedFd) {
        let _deaf = send_lingering(&theirs, b"frame", MOST);
        let mut bytes = [0; 100];
        let (length, fds) = at_once(|| receive(&ours, &mut bytes)).expect("a message");
        assert_eq!((length, fds.len()), (5, MOST));
        assert_eq!(receive(&ours, &mut bytes).map(|(length, _)| length), Err(Errno::AGAIN));
    }

    #[test]
    fn lingering_connection_beside_bytes_is_not_closed_by_the_receiver() {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        every_descriptor_comes(ours.into(), theirs.into());
        let (ours, theirs) = UnixDatagram::pair().expect("descriptors");
        every_descriptor_comes(ours.into(), theirs.into());
    }

    #[test]
    fn socket_that_refuses_descriptors_gets_none() {
        let (ours, theirs) = UnixDatagram::pair().expect("descriptors");
        if refuse(&ours).is_err() {
            eprintln!("SKIPPED: the kernel is older than Linux 6.16");
            return;
        }
        assert_eq!(send_beside(&theirs, b"frame", &ours, 1), Err(Errno::PERM));
        assert_eq!(theirs.send(b"frame").expect("room"), 5);
        accept(&ours).expect("it refused them");
        assert_eq!(send_beside(&theirs, b"frame", &theirs, 1), Ok(5));
    }
}
