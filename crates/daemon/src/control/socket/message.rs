//! Messages on the socket: a call from its text, and the text of a reply, with its descriptors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::{
    CallMessage, ErrorCode, Failure, MAX_FDS, MAX_MESSAGE, Outcome, PROTOCOL_VERSION, ReplyMessage,
    Request,
};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::malformed;
use crate::control::refusal::{MessageRefusal, Refusal};

/// The refusal of a message that is longer than the buffer.
pub fn too_long() -> Result<Request, Refusal> {
    Err(MessageRefusal::Malformed(format!("more than {MAX_MESSAGE} bytes")).into())
}

/// The call of a message.
pub fn parse(text: &[u8]) -> Result<Request, Refusal> {
    match serde_json::from_slice(text) {
        Ok(CallMessage { v: PROTOCOL_VERSION, call }) => Ok(call),
        Ok(CallMessage { v, .. }) => Err(MessageRefusal::Version(v).into()),
        Err(error) => Err(malformed::explain(text, &error)),
    }
}

/// Sends a reply at once, or not at all.
pub fn send(socket: BorrowedFd<'_>, result: Outcome, fds: &[OwnedFd]) -> Result<(), Errno> {
    let text = encode(result);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
        assert!(fits, "no reply has more than {MAX_FDS} descriptors");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, flags).map(drop)
}

fn encode(result: Outcome) -> Vec<u8> {
    let encode = |result| serde_json::to_vec(&ReplyMessage { v: PROTOCOL_VERSION, result });
    let text = encode(result).expect("replies are plain data");
    if text.len() <= MAX_MESSAGE {
        return text;
    }
    tracing::error!(bytes = text.len(), "a reply does not fit its message; please report this");
    let failure = Failure::new(ErrorCode::Internal, "the reply is too long for a message");
    encode(Outcome::Err(failure)).expect("replies are plain data")
}
