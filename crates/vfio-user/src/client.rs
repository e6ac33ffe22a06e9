//! A VMM that is connected, for an event loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::connection::{Connection, Ended, Received};
use crate::device::{Description, Device};
use crate::message::Request;
use crate::refused::Refused;
use crate::session::Session;

/// How far [`Client::serve`] has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of requests served.
    pub requests: usize,
    /// The last request that was refused, and why.
    pub refused: Option<Refused>,
}

/// A VMM: its connection and its session.
#[derive(Debug)]
pub struct Client<'a> {
    connection: Connection,
    session: Session<'a>,
}

impl<'a> Client<'a> {
    /// A VMM that has just connected.
    #[must_use]
    pub fn new(socket: OwnedFd, description: &'a Description) -> Self {
        Self { connection: Connection::new(socket), session: Session::new(description) }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session<'a> {
        &self.session
    }

    /// The session, to interrupt the guest.
    pub fn session_mut(&mut self) -> &mut Session<'a> {
        &mut self.session
    }

    /// Whether the connection is to be watched for room, too: a reply waits for it.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.connection.wants_room()
    }

    /// Serves the requests that have come, at most `budget` of them. Each reply is sent before the
    /// next request is read, and before the caller does what the request has caused.
    ///
    /// # Errors
    /// [`Ended`]: the VMM has gone, or lost its connection.
    pub fn serve(&mut self, device: &mut impl Device, budget: usize) -> Result<Progress, Ended> {
        let mut progress = Progress::default();
        while progress.requests < budget {
            let Some(Received { header, body, fds }) = self.connection.receive()? else { break };
            progress.requests += 1;
            let request = Request::parse(header.command, &body, fds)?;
            match self.session.handle(device, request)? {
                Ok(_) if header.no_reply => {}
                Ok((body, fd)) => self.connection.send(&header.reply(&body), fd)?,
                Err(refused) => {
                    if !header.no_reply {
                        self.connection.send(&header.error(refused.errno), None)?;
                    }
                    progress.refused = Some(refused);
                }
            }
        }
        Ok(progress)
    }
}

impl AsFd for Client<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
