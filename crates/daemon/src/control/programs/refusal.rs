//! The reason is a forwarding program or one of its maps.

use program::MapError;
use protocol::ErrorCode;
use protocol::name::SwitchName;
use thiserror::Error;

/// What is wrong with the program or the map.
#[derive(Debug, Error)]
pub enum ProgramRefusal {
    /// The switch has no program.
    #[error("{0} has no program; load one: uvala switch set {0} --forwarding program:FILE")]
    None(SwitchName),
    /// The switch forwards in another way.
    #[error("a program is for --forwarding program, and {0} has another forwarding function")]
    NotForwarding(SwitchName),
    /// The map does not do it.
    #[error("{0}, map {1}: {2}")]
    Map(SwitchName, String, MapError),
}

impl ProgramRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::None(_) | Self::Map(_, _, MapError::Missing) => ErrorCode::NotFound,
            Self::Map(_, _, MapError::Exists) => ErrorCode::Exists,
            Self::Map(_, _, MapError::Full) => ErrorCode::NoMemory,
            Self::NotForwarding(_) | Self::Map(..) => ErrorCode::BadRequest,
        }
    }
}
