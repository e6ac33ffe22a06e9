//! The reason is a port.

use std::net::SocketAddr;

use protocol::name::PortName;
use protocol::users;
use protocol::{ErrorCode, VNIS_MAX};
use thiserror::Error;

use crate::model::policy::shown_process;

/// What is wrong with the port.
#[derive(Debug, Error)]
pub enum PortRefusal {
    /// No port has this name.
    #[error("no port {0}; see: uvala port list")]
    Missing(PortName),
    /// Another port has this name.
    #[error("port {0} exists already; change it with: uvala port set {0}")]
    Exists(PortName),
    /// The port that exists is not the one that was asked for.
    #[error(
        "port {0} exists, but {1}; uvala port set {0} changes its settings; to change what else \
         it is, delete it and add it again"
    )]
    Differs(PortName, Box<str>),
    /// The port carries no frames.
    #[error("port {0} carries no frames: no client has it; attach one, then try again")]
    Idle(PortName),
    /// The connection detaches a port that it does not hold.
    #[error("port {0} is not attached by this connection")]
    NotHeld(PortName),
    /// Another process holds the port.
    #[error("port {port} is taken by {}; choose another name", shown_process(*.pid, *.uid))]
    InUse {
        /// The port.
        port: PortName,
        /// PID of the process.
        pid: u32,
        /// User of the process.
        uid: u32,
    },
    /// Another process tells the stations of a tunnel.
    #[error(
        "{} tells the stations of {port} (uvala-evpn); end it first",
        shown_process(*.pid, *.uid)
    )]
    Routed {
        /// The port.
        port: PortName,
        /// PID of the process.
        pid: u32,
        /// User of the process.
        uid: u32,
    },
    /// Another port gets the datagrams of a virtual network.
    #[error(
        "port {port} has VNI {vni} at the same local address and UDP port; choose another vni, \
         local or dst_port"
    )]
    VniTaken {
        /// The number of the network.
        vni: u32,
        /// The other port.
        port: PortName,
    },
    /// An address has too many virtual networks.
    #[error(
        "the ports at UDP port {} of {} would have more than {VNIS_MAX} VNIs, the limit; choose \
         another local or dst_port",
        .0.port(), .0.ip()
    )]
    VnisFull(SocketAddr),
    /// A port of the user was taken away, because it stalled its switch.
    #[error(
        "a port of {} stalled its switch; its programs can attach ports again in {left_s} s",
        users::user_name(*.uid)
    )]
    Stalled {
        /// The user.
        uid: u32,
        /// Seconds until then.
        left_s: u64,
    },
    /// An operator deleted the port before its client had it.
    #[error("port {0} was deleted while the daemon created it; attach again")]
    Deleted(PortName),
    /// The daemon serves ports of this kind itself.
    #[error(
        "the daemon serves port {0} itself: programs attach to ports of kind shm only; use one"
    )]
    NotAttachable(PortName),
    /// The end of a pipe cannot be a persistent port.
    #[error("{0} is the end of a pipe; only a program can create it, by opening it")]
    PipePersistent(PortName),
    /// The end of a pipe has no settings.
    #[error(
        "{0} is the end of a pipe, which has no settings; connect two ports of a switch instead"
    )]
    PipeSettings(PortName),
    /// The frames of a pipe pass no switch.
    #[error(
        "{0} is the end of a pipe, whose frames pass no switch: they are neither captured nor \
         traced; connect two ports of a switch instead"
    )]
    PipeFrames(PortName),
    /// The end of a pipe cannot be in a trust group.
    #[error("{0} is the end of a pipe, whose two ends share a region: name no trust group for it")]
    PipeGroup(PortName),
    /// The port has no owner of its own: it goes with its client.
    #[error(
        "port {0} is deleted with its client: only permanent ports have an owner; see: uvala port \
         add"
    )]
    GrantTransient(PortName),
    /// The port has no owner of its own: programs do not attach to it.
    #[error("the daemon serves port {0} itself: name no --owner, --group or --mode for it")]
    GrantServed(PortName),
    /// The socket exists, and its owner with it.
    #[error(
        "the socket of {0} keeps the owner, group and mode it was added with: delete the port \
         and add it again"
    )]
    GrantSocket(PortName),
    /// No worker takes its frames, or it shares a region with others.
    #[error("{0} stays where it is: ends of pipes, and ports of netmap programs, do not move")]
    Stays(PortName),
    /// The name is one of a device.
    #[error(
        "{0} is a PCI device of a virtual machine, and only a program in there can use this name; \
         outside it is the port that uvala-device has, such as vale0:vm3"
    )]
    OfDevice(String),
    /// A region cannot hold the port.
    #[error("{0} takes more than 4 GiB, the limit; ask for fewer rings, slots or buffers")]
    TooLarge(PortName),
}

impl PortRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::Missing(_) | Self::NotHeld(_) | Self::Deleted(_) | Self::Idle(_) => {
                ErrorCode::NotFound
            }
            Self::Exists(_) | Self::Differs(..) => ErrorCode::Exists,
            Self::InUse { .. }
            | Self::Routed { .. }
            | Self::VniTaken { .. }
            | Self::VnisFull(_) => ErrorCode::InUse,
            Self::Stalled { .. } => ErrorCode::Permission,
            Self::NotAttachable(_)
            | Self::PipePersistent(_)
            | Self::PipeSettings(_)
            | Self::PipeFrames(_)
            | Self::PipeGroup(_)
            | Self::GrantTransient(_)
            | Self::GrantServed(_)
            | Self::GrantSocket(_)
            | Self::OfDevice(_)
            | Self::Stays(_) => ErrorCode::Unsupported,
            Self::TooLarge(_) => ErrorCode::BadRequest,
        }
    }
}
