//! The reason is what a netmap program binds: rings, regions and monitors.

use protocol::ErrorCode;
use protocol::name::PortName;
use thiserror::Error;

use crate::control::refusal::quota::mib;

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
    /// A monitor holds slots back in rings that all workers fill.
    #[error(
        "all workers run the switch of {0}; only ports of a switch of one worker have monitors"
    )]
    MonitorOfAllWorkers(PortName),
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
    /// The region of bound ports is full.
    #[error(
        "memory region {mem_id} has no room for this in its {}: close other ports, pipes or \
         monitors in it; a region has more if its first port asks for more extra buffers",
        mib(*.has)
    )]
    RegionFull {
        /// Number of the region.
        mem_id: u16,
        /// Bytes of the region.
        has: u64,
    },
    /// No region is as large as the ports that are made together.
    #[error("this takes more than 4 GiB, the limit; ask for fewer rings, slots or buffers")]
    TooLarge,
    /// The program's own memory would not hold the port.
    #[error("{} are too little for this port, which takes {}", mib(*.has), mib(*.least))]
    RoomTooSmall {
        /// Bytes that the region may have.
        has: u64,
        /// Bytes that the port takes.
        least: u64,
    },
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
            Self::RegionFull { .. } | Self::RoomTooSmall { .. } => ErrorCode::NoMemory,
            Self::HasHeader(_) | Self::NotMonitorable(_) | Self::MonitorOfAllWorkers(_) => {
                ErrorCode::Unsupported
            }
            Self::NotOpen(_)
            | Self::NullWithoutRegion
            | Self::TooLarge
            | Self::NoRegion(_)
            | Self::OtherRegion { .. } => ErrorCode::BadRequest,
        }
    }
}
