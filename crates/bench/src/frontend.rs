//! The frontend's side of a vhost-user socket: requests with descriptors, and their answers.
//!
//! The drivers of machines without a processor speak through it: that of the benchmark, which is
//! fast, and that of the end-to-end tests, which also breaks rules.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Numbers of requests, by the names of the specification.
#[allow(missing_docs)] // reason: the specification describes them.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const ADD_MEM_REG: u32 = 37;
}

/// The version of every message.
pub const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// A connection to a backend.
#[derive(Debug)]
pub struct Frontend(pub UnixStream);

impl Frontend {
    /// Sends a message, which may break the rules.
    ///
    /// # Errors
    /// The backend has closed the socket.
    pub fn send(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let size = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let header = [request, flags, size].into_iter().flat_map(u32::to_ne_bytes);
        let bytes: Vec<u8> = header.chain(payload.iter().copied()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let is_full = !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(!is_full, "a message has 8 descriptors at most");
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends a request whose payload is numbers, and that has no answer.
    ///
    /// # Errors
    /// The backend has closed the socket.
    pub fn tell(&self, request: u32, values: &[u64], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(request, VERSION, &words(values), fds)
    }

    /// Asks for a number.
    ///
    /// # Errors
    /// The backend has closed the socket, or its answer is malformed.
    pub fn ask(&self, request: u32) -> io::Result<u64> {
        self.tell(request, &[], &[])?;
        self.answer(request)
    }

    /// Sends a request, and waits until the backend has done it.
    ///
    /// # Errors
    /// The backend has closed the socket, or refuses.
    pub fn order(&self, request: u32, values: &[u64], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(request, VERSION | NEED_REPLY, &words(values), fds)?;
        match self.answer(request)? {
            0 => Ok(()),
            _ => Err(io::Error::other(format!("request {request} is refused"))),
        }
    }

    /// Reads the answer to a request: one number.
    ///
    /// # Errors
    /// The backend has closed the socket, or its answer is malformed.
    pub fn answer(&self, request: u32) -> io::Result<u64> {
        let mut bytes = [0; 20];
        (&self.0).read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let header = [0, 1, 2].map(|at: usize| u32::from_ne_bytes(words[at]));
        if header != [request, VERSION | REPLY, 8] {
            return Err(io::Error::other(format!("request {request} is answered by {header:?}")));
        }
        Ok(pair(u32::from_ne_bytes(words[3]), u32::from_ne_bytes(words[4])))
    }
}

impl AsFd for Frontend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Two words of four bytes as one of eight, the first of which comes first in memory.
#[must_use]
pub fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}
