//! gRPC over [`http2`](crate::http2): calls with one request, and messages that answer it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use packet::shown::shown;

use crate::http2::{Connection, Event};

/// The longest message of a server.
const MESSAGE_MAX: usize = 4 << 20;
/// In front of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Most characters of the reason of a refusal that are shown.
const MESSAGE_SHOWN: usize = 200;

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection is of no more use.
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// The server refuses the call.
    #[error("refused: {message} (gRPC status {status})")]
    Refused {
        /// The number of the reason.
        status: u32,
        /// The reason.
        message: String,
    },
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client(Connection);

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// No server listens there.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        Connection::open(address).map(Self)
    }

    /// Makes a call and waits until it is over; gives each message of the answer to `each`.
    ///
    /// # Errors
    /// The server refuses the call, or the connection is lost.
    pub fn call(
        &mut self,
        method: &str,
        request: &[u8],
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), CallError> {
        let asked = self.0.request(method, &message(request))?;
        let mut buffer = Vec::new();
        loop {
            match self.0.event()? {
                Some(Event::Data { stream, bytes, ends }) if stream == asked => {
                    buffer.extend(bytes);
                    while let Some(message) = take(&mut buffer)? {
                        each(&message)?;
                    }
                    if ends {
                        return Err(malformed("an answer without a status").into());
                    }
                }
                Some(Event::Headers { stream, headers, ends: true }) if stream == asked => {
                    return outcome(&headers);
                }
                Some(Event::Reset { stream, code }) if stream == asked => {
                    return Err(malformed(&format!("the server reset the call ({code})")).into());
                }
                _ => {}
            }
        }
    }

    /// Makes a call whose answer has no end, see [`Client::read_event`].
    ///
    /// # Errors
    /// The connection is lost.
    pub fn follow(&mut self, method: &str, request: &[u8]) -> io::Result<()> {
        self.0.request(method, &message(request)).map(drop)
    }

    /// Reads a frame, of a connection that [follows](Client::follow) a call. Returns whether it has
    /// something of an answer; what, is not kept.
    ///
    /// # Errors
    /// The server has ended the call, or the connection is lost.
    pub fn read_event(&mut self) -> Result<bool, CallError> {
        self.0.begin();
        match self.0.event()? {
            Some(Event::Data { ends: false, .. }) => Ok(true),
            None | Some(Event::Headers { ends: false, .. }) => Ok(false),
            Some(Event::Headers { headers, .. }) => {
                outcome(&headers)?;
                Err(malformed("the server has ended the call").into())
            }
            Some(Event::Data { .. } | Event::Reset { .. }) => {
                Err(malformed("the server has ended the call").into())
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a request is short");
    [&[0], &length.to_be_bytes()[..], bytes].concat()
}

/// Takes the first message out of what has arrived, if it is complete.
fn take(buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let Some(&[compressed, ref length @ ..]) = buffer.first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if compressed != 0 || length > MESSAGE_MAX {
        return Err(malformed("a message is compressed, or too long"));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    Ok(Some(buffer.drain(..PREFIX + length).skip(PREFIX).collect()))
}

/// What the trailers of a call say.
fn outcome(headers: &[(String, String)]) -> Result<(), CallError> {
    let find = |name| headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str());
    let status = find("grpc-status").and_then(|status| status.parse().ok());
    let message = shown(find("grpc-message").unwrap_or("no reason given"), MESSAGE_SHOWN);
    match status {
        Some(0) => Ok(()),
        Some(status) => Err(CallError::Refused { status, message }),
        None => Err(malformed("an answer without a status").into()),
    }
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_where_they_end_and_refused_where_they_are_too_long() {
        let mut buffer = [message(b"one"), message(b""), message(b"three")].concat();
        let last = buffer.pop().unwrap();
        assert_eq!(take(&mut buffer).unwrap().unwrap(), b"one");
        assert_eq!(take(&mut buffer).unwrap().unwrap(), b"");
        assert_eq!(take(&mut buffer).unwrap(), None);
        buffer.push(last);
        assert_eq!(take(&mut buffer).unwrap().unwrap(), b"three");
        assert!(take(&mut vec![1, 0, 0, 0, 1, 0]).is_err(), "compressed");
        assert!(take(&mut vec![0, 0xff, 0, 0, 0]).is_err(), "too long");
    }

    #[test]
    fn a_status_that_is_not_zero_is_a_refusal_with_its_reason() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert!(outcome(&[header("grpc-status", "0")]).is_ok());
        let refused = [header("grpc-status", "2"), header("grpc-message", "nexthop not found")];
        let error = outcome(&refused).unwrap_err().to_string();
        assert_eq!(error, "refused: nexthop not found (gRPC status 2)");
        assert!(outcome(&[]).is_err());
    }
}
