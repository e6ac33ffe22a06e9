//! Why the daemon refuses a request: one enum for each subject, with an error code for programs and
//! a line that tells a person what to do next.
//!
//! | subject | enum |
//! |---|---|
//! | permissions | [`AccessRefusal`] |
//! | switches and their forwarding databases | [`SwitchRefusal`] |
//! | ports | [`PortRefusal`] |
//! | interfaces: ports with a name of their own | [`InterfaceRefusal`] |
//! | mirror ports | [`MirrorRefusal`] |
//! | netmap programs: rings, regions, monitors | [`NetmapRefusal`] |
//! | services, chains and rules | [`ChainRefusal`] |
//! | forwarding programs | [`ProgramRefusal`] |
//! | trust groups | [`GroupRefusal`] |
//! | quotas | [`QuotaRefusal`] |
//! | messages | [`MessageRefusal`] |

mod access;
mod host;
mod message;
pub(super) mod quota;

use hostif::HostError;
use port::machine::SocketError;
use port::vxlan::VxlanError;
use protocol::name::NameError;
use protocol::{ErrorCode, Failure};
use thiserror::Error;

use super::chains::refusal::ChainRefusal;
use super::groups::refusal::GroupRefusal;
use super::interfaces::refusal::InterfaceRefusal;
use super::mirrors::refusal::MirrorRefusal;
use super::netmap::refusal::NetmapRefusal;
use super::ports::refusal::PortRefusal;
use super::programs::refusal::ProgramRefusal;
use super::switches::refusal::SwitchRefusal;
use crate::log::cut;
use crate::model::error::{
    BadValue, DatapathError, MakeHostError, MakeMachineError, MakeVxlanError,
};
use crate::store::writer::NotWritten;
pub use access::AccessRefusal;
pub use message::MessageRefusal;
pub use quota::QuotaRefusal;

/// Why the daemon refuses a request. A refused request has changed nothing, with one exception:
/// [`Refusal::NotSaved`].
#[derive(Debug, Error)]
pub enum Refusal {
    /// The caller lacks a permission.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The reason is a switch or its forwarding database.
    #[error(transparent)]
    Switch(#[from] SwitchRefusal),
    /// The reason is a port.
    #[error(transparent)]
    Port(#[from] PortRefusal),
    /// The reason is an interface.
    #[error(transparent)]
    Interface(#[from] InterfaceRefusal),
    /// The reason is a mirror port.
    #[error(transparent)]
    Mirror(#[from] MirrorRefusal),
    /// The reason is what a netmap program binds.
    #[error(transparent)]
    Netmap(#[from] NetmapRefusal),
    /// The reason is a service, a chain or a rule.
    #[error(transparent)]
    Chain(#[from] ChainRefusal),
    /// The reason is a forwarding program.
    #[error(transparent)]
    Program(#[from] ProgramRefusal),
    /// The reason is a trust group.
    #[error(transparent)]
    Group(#[from] GroupRefusal),
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] QuotaRefusal),
    /// The message is not one of this protocol.
    #[error(transparent)]
    Message(#[from] MessageRefusal),
    /// A value in the request is not valid.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// No port or switch can have this name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The socket of a virtual machine could not be made.
    #[error(transparent)]
    Socket(SocketError),
    /// A network interface could not be opened.
    #[error(transparent)]
    Host(HostError),
    /// The sockets of a tunnel could not be opened.
    #[error(transparent)]
    Vxlan(VxlanError),
    /// The daemon made the change, but could not store it.
    #[error(
        "done, but not saved: a restart of the daemon undoes it; free disk space or repair {0}; \
         the daemon tries again every few seconds"
    )]
    NotSaved(NotWritten),
    /// The next daemon would not have what this one could not store.
    #[error(
        "it has changes that it could not save, and the next daemon would not have them; free \
         disk space or repair {0}; the daemon tries again every few seconds"
    )]
    Unsaved(NotWritten),
    /// The workers had no room.
    #[error("{0}; close other ports, or raise the daemon's limits")]
    Datapath(#[from] DatapathError),
}

impl Refusal {
    /// A value of the request is not valid; the text says what is.
    pub fn bad_value(text: impl Into<String>) -> Self {
        Self::Value(BadValue(text.into()))
    }

    /// The error code for programs.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Access(_) => ErrorCode::Permission,
            Self::Switch(refusal) => refusal.code(),
            Self::Port(refusal) => refusal.code(),
            Self::Interface(refusal) => refusal.code(),
            Self::Mirror(refusal) => refusal.code(),
            Self::Netmap(refusal) => refusal.code(),
            Self::Chain(refusal) => refusal.code(),
            Self::Program(refusal) => refusal.code(),
            Self::Group(refusal) => refusal.code(),
            Self::Quota(_) => ErrorCode::Quota,
            Self::Message(_) | Self::Value(_) => ErrorCode::BadRequest,
            Self::Name(_) => ErrorCode::BadName,
            Self::Socket(error) => host::code_of_socket(error),
            Self::Host(error) => host::code_of_host(error),
            Self::Vxlan(error) => host::code_of_vxlan(error),
            Self::NotSaved(_) => ErrorCode::NotKept,
            Self::Unsaved(_) => ErrorCode::InUse,
            Self::Datapath(_) => ErrorCode::NoMemory,
        }
    }
}

impl From<MakeMachineError> for Refusal {
    fn from(error: MakeMachineError) -> Self {
        match error {
            MakeMachineError::Socket(error) => Self::Socket(error),
            MakeMachineError::Datapath(error) => Self::Datapath(error),
        }
    }
}

impl From<MakeVxlanError> for Refusal {
    fn from(error: MakeVxlanError) -> Self {
        match error {
            MakeVxlanError::Sockets(error) => Self::Vxlan(error),
            MakeVxlanError::Datapath(error) => Self::Datapath(error),
        }
    }
}

impl From<MakeHostError> for Refusal {
    fn from(error: MakeHostError) -> Self {
        match error {
            MakeHostError::Host(error) => Self::Host(error),
            MakeHostError::Datapath(error) => Self::Datapath(error),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        // The text may quote what a client sent, which may be as long as a message.
        Self::new(refusal.code(), cut(refusal.to_string()))
    }
}
