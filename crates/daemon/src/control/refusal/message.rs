//! The message is not one of this protocol.

use protocol::PROTOCOL_VERSION;
use thiserror::Error;

/// What is wrong with the message.
#[derive(Debug, Error)]
pub enum MessageRefusal {
    /// The client speaks another version of the protocol.
    #[error(
        "this daemon speaks protocol {ours}, not {0}; use the same version of uvala for the daemon \
         and its clients",
        ours = PROTOCOL_VERSION
    )]
    Version(u32),
    /// The call is unknown, perhaps one of another release. The connection stays open, so the
    /// program can do without the call.
    #[error("not a call of this protocol: {0}")]
    Unknown(String),
    /// The message has no meaning in this protocol.
    #[error("not a call of this protocol: {0}")]
    Malformed(String),
}
