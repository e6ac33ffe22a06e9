//! The peer: its ends of the sockets, and calls that never wait.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, send, sendmsg, shutdown, socketpair,
};

const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The peer of a port. A stream is one socket in both directions. Datagrams have one for each: the
/// port receives by its own socket whether it has a peer or not.
#[derive(Default)]
pub struct Peer {
    /// The socket to write to, unless that direction is closed.
    pub writes: Option<Rc<OwnedFd>>,
    /// The socket to read from, unless it is closed.
    pub reads: Option<Rc<OwnedFd>>,
    /// Bytes for the stream that are not written yet.
    pub unwritten: Vec<u8>,
    /// The port can send nothing any more.
    pub is_deaf: bool,
}

impl Peer {
    /// Writes what the kernel takes; returns how many bytes that were, or `None` after an error.
    pub fn write(&self, bytes: &[u8]) -> Option<usize> {
        send(self.writes.as_ref()?, bytes, FLAGS).ok()
    }

    /// Writes bytes with a descriptor beside them.
    pub fn write_beside(&self, bytes: &[u8]) -> Option<usize> {
        let socket = self.writes.as_ref()?;
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors");
        let fds = [fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, FLAGS).ok()
    }

    /// Reads once; 0 bytes: the connection is closed.
    pub fn read(&self, to: &mut [u8]) -> Result<usize, Errno> {
        let socket = self.reads.as_ref().ok_or(Errno::AGAIN)?;
        recv(socket, to, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes)
    }

    /// Closes one direction of a stream, or its socket.
    pub fn close(&mut self, how: Shutdown) {
        if how == Shutdown::Both {
            self.reads = None;
        } else if let Some(socket) = &self.reads {
            shutdown(socket, how).expect("connected");
        }
        if how != Shutdown::Read {
            self.writes = None;
        }
        self.is_deaf |= how != Shutdown::Write;
    }

    /// Closes the socket that receives the port's datagrams.
    pub fn stop_reading(&mut self) {
        self.reads = None;
        self.is_deaf = true;
    }

    /// Whether the port may disconnect because the peer has gone.
    pub fn has_left(&self) -> bool {
        self.is_deaf || self.writes.is_none()
    }
}

/// A connection of this kind: the port's end, and the peer's.
pub fn connect(is_stream: bool) -> (OwnedFd, OwnedFd) {
    let kind = if is_stream { SocketType::STREAM } else { SocketType::DGRAM };
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("descriptors")
}
