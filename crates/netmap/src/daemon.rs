//! The daemon: where its socket is, one request over a connection of its own, and its errors as
//! netmap's. What stands in its place in a guest is [`client::ptnet`].

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use client::control::{Connection, ControlError};
use client::{Error, ptnet};
use protocol::{ErrorCode, Reply, Request};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

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

/// Opens a connection to the daemon for a program. Without a daemon, in a machine that has a ptnet,
/// a socket that is connected to nothing: what is bound to that device needs no more.
///
/// # Errors
/// There is neither.
pub fn connect() -> Result<OwnedFd, ControlError> {
    match Connection::connect(socket_path()) {
        Err(ControlError::NoDaemon(_)) if !ptnet::devices().is_empty() => {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let path = socket_path().to_owned();
            socket.map_err(|error| ControlError::Io { socket: path, error })
        }
        connection => connection.map(Connection::into_fd),
    }
}

/// netmap's errno for a port that cannot be opened.
#[must_use]
pub fn errno_of_port(error: &Error) -> Errno {
    match error {
        Error::Device(error) => error.errno(),
        Error::Control(error) => errno_of(error),
        Error::Geometry(_) => Errno::PROTO,
        _ => Errno::NOMEM,
    }
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
