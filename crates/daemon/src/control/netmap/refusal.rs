//! The reason is what a netmap program binds: rings, regions and monitors.

use protocol::ErrorCode;
use protocol::name::PortName;
use thiserror::Error;

/// What the netmap program cannot bind.
#[derive(Debug, Error)]
pub enum NetmapRefusal {
    /// The program does not accept virtio-net headers.
    #[error("frames of {0} have a virtio-net header: uvala port set {0} --vnet-header 0")]
    HasHeader(PortName),
    /// A monitor needs an open port.
    #[error("port {0} is not open; open it first, then monitor it")]
    NotOpen(PortName),
    /// The port's frames pass no worker.
    #[error("frames of {0} do not pass the daemon; only ports of a switch can be monitored")]
    NotMonitorable(PortName),
    /// A null port names no region.
    #[error("a null port needs the number of a region to live in (nr_mem_id)")]
    NullWithoutRegion,
    /// The connection has bound another port.
    #[error("this connection has bound port {0} already; open another one for another port")]
    BoundAlready(PortName),
    /// The connection has no port to resume.
    #[error("this connection has bound no port")]
    NothingBound,
    /// No region has this number.
    #[error("there is no memory region {0}; a region goes when the last process closes its port")]
    NoRegion(u16),
    /// The port is in another region.
    #[error("port {port} lives in region {mem_id}; bind it without a region, or with that one")]
    OtherRegion {
        /// The port.
        port: PortName,
        /// Number of its region.
        mem_id: u16,
    },
}

impl NetmapRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::NothingBound => ErrorCode::NotFound,
            Self::BoundAlready(_) => ErrorCode::InUse,
            Self::HasHeader(_) | Self::NotMonitorable(_) => ErrorCode::Unsupported,
            Self::NotOpen(_)
            | Self::NullWithoutRegion
            | Self::NoRegion(_)
            | Self::OtherRegion { .. } => ErrorCode::BadRequest,
        }
    }
}
