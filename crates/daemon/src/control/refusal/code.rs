//! The code of every refusal.

use std::io;

use hostif::HostError;
use port::machine::SocketError;
use protocol::ErrorCode as Code;

use super::Refusal;

impl Refusal {
    /// The code that goes with it.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NoSwitch(_)
            | Self::NoPort(_)
            | Self::NoChain(..)
            | Self::NoRule(..)
            | Self::NoHop(..)
            | Self::NoFdbEntry { .. }
            | Self::NotHeld(_)
            | Self::NoInterface(_)
            | Self::Deleted(_)
            | Self::NothingBound => Code::NotFound,
            Self::SwitchExists(_) | Self::PortExists(_) | Self::InterfaceExists(_) => Code::Exists,
            Self::InUse { .. }
            | Self::BoundAlready(_)
            | Self::PollState(_)
            | Self::AttachedTo(_)
            | Self::InTwoSwitches(_)
            | Self::FunctionRuns(_)
            | Self::Alone(_)
            | Self::NotAlone(_)
            | Self::NeedsChains(_)
            | Self::HostTaken(_)
            | Self::PortTaken(_) => Code::InUse,
            Self::NotAttachable(_)
            | Self::PipePersistent(_)
            | Self::PipeSettings(_)
            | Self::NotPolled(_)
            | Self::HasHeader(_)
            | Self::GivesTransient(_)
            | Self::GivesServed(_)
            | Self::GivesSocket(_)
            | Self::InterfaceAdded(_)
            | Self::PipeGroup(_)
            | Self::NotWatchable(_) => Code::Unsupported,
            Self::Denied { .. }
            | Self::NotGranted { .. }
            | Self::NoNewPorts { .. }
            | Self::GiveAway
            | Self::NotYours { .. }
            | Self::NotYoursToWatch { .. }
            | Self::HostPrivilege
            | Self::SocketPrivilege => Code::Permission,
            Self::Quota { .. }
            | Self::Addresses { .. }
            | Self::Memory { .. }
            | Self::MoreThanQuota { .. } => Code::Quota,
            Self::Group(refusal) => refusal.code(),
            Self::BadName(_) => Code::BadName,
            Self::TooLarge(_)
            | Self::Value(_)
            | Self::Steering(..)
            | Self::NotSteered(_)
            | Self::ServiceKind(_)
            | Self::NoInterfaceName(_)
            | Self::NotAdded(_)
            | Self::NotAttached(_)
            | Self::NoHostSide(_)
            | Self::NoRegion(_)
            | Self::NotOpen(_)
            | Self::NoMemory
            | Self::OtherRegion { .. }
            | Self::Version(_)
            | Self::BadMessage(_) => Code::BadRequest,
            Self::Socket(error) => code_of_socket(error),
            Self::Host(error) => code_of(error),
            Self::NotKept(_) => Code::NotKept,
            Self::AddressesFull { .. } | Self::Datapath(_) => Code::NoMemory,
        }
    }
}

fn code_of(error: &HostError) -> Code {
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

/// What nobody has thought of says at least whose fault it is.
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

fn code_of_socket(error: &SocketError) -> Code {
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
