//! Faults of a configuration file whose values are valid by themselves, and their places.

use crate::name::{NameError, PortName, SwitchName};
use serde_spanned::Spanned;
use thiserror::Error;

use crate::StaticAddress;

/// A value that is valid by itself and invalid here, and its place.
#[derive(Debug)]
pub struct InvalidValue {
    /// Offset in the file.
    pub at: usize,
    /// The fault.
    pub error: ValidationError,
}

/// Faults of values that are valid by themselves.
#[derive(Debug, Error)]
pub enum ValidationError {
    /// The name of a port is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The port is the end of a pipe.
    #[error("{0} is the end of a pipe; only a program can create it: remove it from the file")]
    Pipe(PortName),
    /// A service at a port of another kind than shm.
    #[error("{0}: only ports of kind shm run a service: remove `service`")]
    Service(PortName),
    /// The network interface of a port is invalid.
    #[error("{0}: {1}")]
    Host(Box<PortName>, String),
    /// The settings of a port are invalid.
    #[error("{0}: {1}")]
    Settings(PortName, String),
    /// The name of a trust group is invalid.
    #[error("[group.{0}]: the name has only letters, digits and '_', as in [group.nf]")]
    Group(String),
    /// The memory of a trust group is above its owner's quota.
    #[error(
        "memory of [group.{0}] exceeds quota.memory ({1} MiB), the limit of one user; lower it, or \
         raise the quota"
    )]
    Unpayable(String, u64),
    /// Chains or rules are invalid.
    #[error("{0}: {1}")]
    Steering(SwitchName, String),
    /// The switch cannot snoop.
    #[error("{0}: {1}")]
    Snooping(SwitchName, String),
    /// The forwarding program cannot be read, or is none.
    #[error("{0}: {1}")]
    Program(SwitchName, String),
    /// Two instances of a service have one number.
    #[error(
        "instance {1} of service {0} is port {2} already: choose another number, or leave it \
         out"
    )]
    Instance(String, u16, String),
    /// Two ports have one static address.
    #[error(
        "{0} is on {one} and on {other}; remove one of the two",
        one = .1[0],
        other = .1[1]
    )]
    TwoPorts(StaticAddress, Box<[PortName; 2]>),
    /// A mirror port mirrors itself or another one.
    #[error("mirror: {0} is a mirror port, whose frames do not enter the switch: remove it there")]
    MirrorOfMirror(String),
    /// A mirror port is something else, too.
    #[error("mirror: {0} gets copies only: remove its service, chain or static addresses")]
    MirrorOnly(String),
    /// The default rings are too large.
    #[error(
        "[rings]: a port with these rings takes more than 4 GiB, the limit; lower rings, slots, \
         extra_bufs or buffer_stride"
    )]
    Rings,
}

impl<E: Into<ValidationError>> From<(&Spanned<String>, E)> for InvalidValue {
    fn from((key, error): (&Spanned<String>, E)) -> Self {
        Self { at: key.span().start, error: error.into() }
    }
}
