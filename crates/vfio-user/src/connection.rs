//! The socket of a VMM: messages in, replies out, and no call that blocks.
//!
//! A message's descriptors come with its first bytes. So the header is read alone, and then the
//! body: a longer read could return descriptors of a message whose header it does not show.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::{FDS_MAX, HEADER, Header, Malformed};

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The VMM has closed the connection.
    #[error("the VMM has gone")]
    Closed,
    /// The VMM sent bytes that are no message.
    #[error("the VMM sent {0}")]
    Malformed(#[from] Malformed),
    /// The VMM speaks another protocol.
    #[error("the VMM speaks version {0} of vfio-user, and this is version 0")]
    Version(u16),
    /// The VMM sent messages in the wrong order.
    #[error("the VMM sent {0}")]
    Order(&'static str),
    /// A system call failed.
    #[error("the VMM's connection: {0}")]
    System(#[from] io::Error),
}

/// A request as it came.
#[derive(Debug)]
pub struct Received {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: Vec<u8>,
    /// The descriptors beside it.
    pub fds: Vec<OwnedFd>,
}

/// A connection to a VMM.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    header: [u8; HEADER],
    parsed: Option<Header>,
    /// Bytes of the header, and then of the body, that have come.
    have: usize,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The rest of a reply for which the socket had no room.
    unsent: Vec<u8>,
}

impl Connection {
    /// A connection over a stream socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        let (body, fds, unsent) = (Vec::new(), Vec::new(), Vec::new());
        Self { socket, header: [0; HEADER], parsed: None, have: 0, body, fds, unsent }
    }

    /// Whether a reply waits for room in the socket. Until it is sent there are no requests.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next request, if it has come as a whole.
    ///
    /// # Errors
    /// [`Ended`]
    pub fn receive(&mut self) -> Result<Option<Received>, Ended> {
        if !self.flush()? {
            return Ok(None);
        }
        let header = match self.parsed {
            Some(header) => header,
            None => {
                if !fill(&self.socket, &mut self.header, &mut self.have, &mut self.fds)? {
                    return Ok(None);
                }
                let header = Header::parse(self.header)?;
                self.body.resize(header.body, 0);
                (self.parsed, self.have) = (Some(header), 0);
                header
            }
        };
        if !fill(&self.socket, &mut self.body, &mut self.have, &mut self.fds)? {
            return Ok(None);
        }
        (self.parsed, self.have) = (None, 0);
        let (body, fds) = (std::mem::take(&mut self.body), std::mem::take(&mut self.fds));
        Ok(Some(Received { header, body, fds }))
    }

    /// Sends a reply, or keeps the rest of it.
    ///
    /// # Errors
    /// [`Ended`]
    pub fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Ended> {
        debug_assert!(!self.wants_room(), "one reply at a time");
        let sent = send_some(&self.socket, bytes, fd)?;
        if sent == 0 && fd.is_some() {
            // The descriptor would be lost with the first bytes. A reply with one is short, and
            // comes when a VMM starts: this one does not read its replies.
            return Err(Errno::NOBUFS.into_ended());
        }
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends the rest of a reply. `false`: there is no room yet.
    fn flush(&mut self) -> Result<bool, Ended> {
        if self.wants_room() {
            let sent = send_some(&self.socket, &self.unsent, None)?;
            self.unsent.drain(..sent);
        }
        Ok(!self.wants_room())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An error number of a socket, as the end of a session.
trait IntoEnded {
    fn into_ended(self) -> Ended;
}

impl IntoEnded for Errno {
    fn into_ended(self) -> Ended {
        match self {
            Self::CONNRESET | Self::PIPE => Ended::Closed,
            errno => Ended::System(errno.into()),
        }
    }
}

/// Reads until `to` is full. `false`: not all has come yet.
fn fill(
    socket: &OwnedFd,
    to: &mut [u8],
    have: &mut usize,
    fds: &mut Vec<OwnedFd>,
) -> Result<bool, Ended> {
    while *have < to.len() {
        match receive(socket, &mut to[*have..], fds)? {
            None => return Ok(false),
            Some(0) => return Err(Ended::Closed),
            Some(bytes) => *have += bytes,
        }
    }
    Ok(true)
}

/// Receives bytes and the descriptors beside them; `None`: there are none now.
fn receive(
    socket: &OwnedFd,
    to: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Ended> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(to)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            received => break received.map_err(IntoEnded::into_ended)?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_MAX {
        return Err(Ended::Order(
            "more file descriptors than a message may have, or than this process has room for",
        ));
    }
    Ok(Some(received.bytes))
}

/// Sends as many bytes as there is room for, and the descriptor with the first of them.
fn send_some(socket: &OwnedFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize, Ended> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            sent => return sent.map_err(IntoEnded::into_ended),
        }
    }
}
