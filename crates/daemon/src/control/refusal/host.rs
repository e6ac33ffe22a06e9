//! The error codes of network interfaces, and of the sockets of virtual machines and tunnels.

use std::io;

use ::port::machine::SocketError;
use ::port::vxlan::VxlanError;
use hostif::HostError;
use protocol::ErrorCode as Code;

/// The error code of an interface that could not be opened.
pub(super) fn code_of_host(error: &HostError) -> Code {
    match error {
        HostError::Name(_)
        | HostError::Mtu(..)
        | HostError::Queues(..)
        | HostError::OneQueue(_)
        | HostError::TapQueues(_)
        | HostError::NotGivenTap
        | HostError::GivenTaps
        | HostError::GivenOtherwise(_)
        | HostError::NotGiven(_) => Code::BadRequest,
        HostError::Missing(_)
        | HostError::NotResumed(..)
        | HostError::NoNamespace(_)
        | HostError::NoProcess(_)
        | HostError::NoNamespaceAt(_)
        | HostError::NoTun => Code::NotFound,
        HostError::NotTap(_) | HostError::IsTun(_) | HostError::Taken(..) => Code::Exists,
        HostError::Busy(_)
        | HostError::ProgramTaken(_)
        | HostError::QueueTaken(..)
        | HostError::Duplicate(..)
        | HostError::Beside(..) => Code::InUse,
        HostError::NotEthernet(_)
        | HostError::CannotCut(_)
        | HostError::NoXdp(_)
        | HostError::NoIpv6(_) => Code::Unsupported,
        HostError::MayNotTap(..)
        | HostError::MayNotTun
        | HostError::MayNotPacket
        | HostError::MayNotXdp(_)
        | HostError::MayNotCut(_)
        | HostError::MayNotChange(..)
        | HostError::MayNotEnter(_)
        | HostError::AcceptsRoutes(..) => Code::Permission,
        HostError::Helper(_) => Code::Permission,
        HostError::Locked(_) | HostError::GroupLocked(..) | HostError::PutBack(_) => Code::NoMemory,
        HostError::System { error, .. } => code_of_system(error),
    }
}

/// The error code of a failed system call, which at least says whose fault it is.
fn code_of_system(error: &io::Error) -> Code {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::PermissionDenied => Code::Permission,
        Kind::NotFound => Code::NotFound,
        Kind::ResourceBusy => Code::InUse,
        Kind::AlreadyExists => Code::Exists,
        Kind::InvalidInput | Kind::AddrNotAvailable => Code::BadRequest,
        Kind::Unsupported => Code::Unsupported,
        _ => Code::NoMemory,
    }
}

/// The error code of a tunnel whose sockets could not be opened.
pub(super) fn code_of_vxlan(error: &VxlanError) -> Code {
    match error {
        VxlanError::NoAddress(_) => Code::BadRequest,
        VxlanError::InUse(_) => Code::InUse,
        VxlanError::LowPort(_) | VxlanError::NoInternet => Code::Permission,
        VxlanError::System { error, .. } => code_of_system(error),
    }
}

/// The error code of a socket that could not be made.
pub(super) fn code_of_socket(error: &SocketError) -> Code {
    match error {
        SocketError::Long(_) => Code::BadRequest,
        SocketError::Exists(_) => Code::Exists,
        SocketError::InUse(_) => Code::InUse,
        SocketError::NoDirectory(_) => Code::NotFound,
        SocketError::Permission { .. }
        | SocketError::MayNotGive { .. }
        | SocketError::Exchanged(_) => Code::Permission,
        SocketError::QuotaExceeded(_) => Code::Quota,
        SocketError::System { .. } => Code::NoMemory,
    }
}
