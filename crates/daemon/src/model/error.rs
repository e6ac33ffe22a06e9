//! Why `engine` could not make something.

use std::io;

use hostif::HostError;
use port::machine::SocketError;
use port::vxlan::VxlanError;
use thiserror::Error;

/// A value that a client or an operator gave is not valid. The text says what is.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BadValue(pub String);

/// The system or a table of fixed size had no room.
#[derive(Debug, Error)]
pub enum DatapathError {
    /// Memory or descriptors ran out, or a system call failed for want of them.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// A table of fixed size is full.
    #[error("no room for more {0}")]
    Full(&'static str),
}

/// Why the port of a virtual machine could not be made.
#[derive(Debug, Error)]
pub enum MakeMachineError {
    /// The socket could not be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// There was no room for the port.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
}

/// Why the port of a tunnel could not be made.
#[derive(Debug, Error)]
pub enum MakeVxlanError {
    /// The sockets could not be opened.
    #[error(transparent)]
    Sockets(#[from] VxlanError),
    /// There was no room for the port.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
}

/// Why a port with a network interface could not be made.
#[derive(Debug, Error)]
pub enum MakeHostError {
    /// The interface could not be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// There was no room for the port.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
}

impl From<io::Error> for MakeHostError {
    fn from(error: io::Error) -> Self {
        Self::Datapath(error.into())
    }
}
