//! The daemon: where its socket is, one request over a connection of its own, and its errors as
//! netmap's.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use client::control::{Connection, ControlError};
use protocol::{ErrorCode, Reply, Request};
use rustix::io::Errno;

/// The daemon's socket, as it is found when first asked for.
pub fn socket_path() -> &'static Path {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| protocol::paths::client_socket(None))
}

/// Asks the daemon over a connection that lives for this one request.
///
/// # Errors
/// The errno of the refusal, or of the lack of a daemon.
pub fn call(request: Request) -> Result<Reply, Errno> {
    let connection = Connection::connect(socket_path()).map_err(|error| errno_of(&error))?;
    connection.call(request).map_err(|error| errno_of(&error))
}

/// netmap's errno for a daemon's answer.
#[must_use]
pub fn errno_of(error: &ControlError) -> Errno {
    match error {
        ControlError::NoDaemon(_) | ControlError::Lost(_) => Errno::NXIO,
        ControlError::Permission(_) | ControlError::Untrusted { .. } => Errno::PERM,
        ControlError::Timeout(_) => Errno::TIMEDOUT,
        ControlError::Protocol(_) => Errno::PROTO,
        ControlError::NoDescriptors => Errno::MFILE,
        ControlError::Io { error, .. } => *error,
        ControlError::Refused(failure) => match failure.code {
            ErrorCode::BadName | ErrorCode::BadRequest => Errno::INVAL,
            ErrorCode::NotFound => Errno::NXIO,
            ErrorCode::Exists => Errno::EXIST,
            ErrorCode::InUse => Errno::BUSY,
            ErrorCode::Permission => Errno::PERM,
            ErrorCode::Quota | ErrorCode::NoMemory => Errno::NOMEM,
            ErrorCode::Unsupported => Errno::OPNOTSUPP,
            ErrorCode::Internal | ErrorCode::NotKept => Errno::IO,
        },
    }
}
