//! The reason is an interface: a port with a name of its own, `netmap:v0`, or one of the system's.

use protocol::ErrorCode;
use protocol::name::PortName;
use thiserror::Error;

/// What is wrong with the interface.
#[derive(Debug, Error)]
pub enum InterfaceRefusal {
    /// Neither uvala nor the system has an interface of this name.
    #[error("no interface {0}; make one with: vale-ctl -n NAME")]
    Missing(PortName),
    /// The name is not one of an interface, or not one of a port in a switch.
    #[error("{0}: an interface is named netmap:v0, and vale0:v0 in a switch")]
    BadName(PortName),
    /// uvala or the system has an interface of this name.
    #[error("interface {0} exists already; choose another name")]
    Exists(PortName),
    /// `port add` makes no interfaces.
    #[error("{0} is an interface: make it with vale-ctl -n, and put it into a switch with -a")]
    NotByPortAdd(PortName),
    /// Only interfaces of the system are polled.
    #[error("{0} is no interface of the host, and only these are polled; name one: netmap:eth0")]
    NotPolled(PortName),
    /// Polling starts twice, or stops without a start; or a polled interface is to be detached.
    #[error("polling of {0} is in that state already; to stop polling: vale-ctl -P {0}")]
    PollState(PortName),
    /// The interface came with its pipes; no command made it.
    #[error("{0} exists only for its pipes, and is deleted with them: close the pipes")]
    CameWithPipes(PortName),
    /// The interface is in a switch.
    #[error("the interface is port {0}; take it out of the switch first: vale-ctl -d {0}")]
    AttachedTo(PortName),
    /// Only interfaces of the system have host rings.
    #[error("{0} has no host rings: only interfaces of the host have them, such as netmap:eth0^")]
    NoHostSide(PortName),
    /// An interface in two switches is a cable between them; programs cannot attach to it.
    #[error("the interface is in two switches, a cable between them; first: vale-ctl -d {0}")]
    InTwoSwitches(PortName),
    /// The interface is not in this switch.
    #[error("{0} is an interface of yours, which is not in this switch; first: vale-ctl -a {0}")]
    NotAttached(PortName),
    /// The switch has a port of that name.
    #[error("port {0} exists already; choose another switch, or delete it: uvala port del {0}")]
    PortTaken(PortName),
    /// Another port has opened the interface.
    #[error("this interface is port {0} already; delete that port first")]
    HostTaken(PortName),
}

impl InterfaceRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::Missing(_) => ErrorCode::NotFound,
            Self::Exists(_) => ErrorCode::Exists,
            Self::PollState(_)
            | Self::AttachedTo(_)
            | Self::InTwoSwitches(_)
            | Self::HostTaken(_)
            | Self::PortTaken(_) => ErrorCode::InUse,
            Self::NotPolled(_) | Self::NotByPortAdd(_) => ErrorCode::Unsupported,
            Self::BadName(_)
            | Self::CameWithPipes(_)
            | Self::NotAttached(_)
            | Self::NoHostSide(_) => ErrorCode::BadRequest,
        }
    }
}
