//! The reason is a mirror port.

use protocol::ErrorCode;
use protocol::name::PortName;
use thiserror::Error;

/// Most mirror ports that get copies of one port.
pub const MIRRORS_MAX: usize = 8;

/// Why a port is no mirror port, or cannot be something else because it is one.
#[derive(Debug, Error)]
pub enum MirrorRefusal {
    /// The setting would go with the client.
    #[error(
        "port {0} is deleted with its client, and a mirror port is permanent; see: uvala port add"
    )]
    Transient(PortName),
    /// The frames of an interface that is in no switch pass none.
    #[error("{0} is in no switch: name a port of one, such as vale0:ids")]
    NoSwitch(PortName),
    /// No copy of a mirror's copies.
    #[error(
        "{0} is a mirror port, whose frames do not enter the switch: mirror the ports that it \
         mirrors; see: uvala mirror list"
    )]
    OfMirror(PortName),
    /// The port is mirrored, so it is no mirror port.
    #[error("{port} is mirrored to {to}: leave it out there first; see: uvala mirror list")]
    Mirrored {
        /// The port.
        port: PortName,
        /// A mirror port that mirrors it.
        to: Box<PortName>,
    },
    /// Each copy costs the turn of its sender.
    #[error("{0} is mirrored to {MIRRORS_MAX} ports, the limit; see: uvala mirror list")]
    TooMany(PortName),
    /// A mirror port has no other use.
    #[error(
        "{0} is a mirror port, which gets copies only; for an ordinary port: uvala mirror del {0}"
    )]
    CopiesOnly(PortName),
    /// The port has frames of its own.
    #[error(
        "a mirror port gets copies only, and {0} has a service, a chain or static addresses: \
         choose another port; see: uvala port show {0}"
    )]
    Busy(PortName),
}

impl MirrorRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::NoSwitch(_) | Self::Transient(_) => ErrorCode::Unsupported,
            Self::OfMirror(_)
            | Self::Mirrored { .. }
            | Self::TooMany(_)
            | Self::CopiesOnly(_)
            | Self::Busy(_) => ErrorCode::InUse,
        }
    }
}
