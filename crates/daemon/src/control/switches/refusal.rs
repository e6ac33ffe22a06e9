//! The reason is a switch or its forwarding database.

use packet::MacAddr;
use protocol::ErrorCode;
use protocol::name::{PortName, SwitchName};
use thiserror::Error;

/// What is wrong with the switch, or with an entry of its forwarding database.
#[derive(Debug, Error)]
pub enum SwitchRefusal {
    /// No switch has this name.
    #[error("no switch {0}; see: uvala switch list")]
    Missing(SwitchName),
    /// Another switch has this name.
    #[error("switch {0} exists already; change it with: uvala switch set {0}")]
    Exists(SwitchName),
    /// The switch that exists is not the one that was asked for.
    #[error("switch {0} exists, but {1}; change it with: uvala switch set {0}")]
    Differs(SwitchName, Box<str>),
    /// The forwarding database has no such entry.
    #[error("no entry {mac} in VLAN {vlan} of {switch}; see: uvala fdb list {switch}")]
    NoFdbEntry {
        /// The switch.
        switch: SwitchName,
        /// The address.
        mac: MacAddr,
        /// The VLAN.
        vlan: u16,
    },
    /// The port has no such static group.
    #[error("{0} has no static entry {1}; see: uvala mdb list")]
    NoMdbEntry(PortName, Box<str>),
    /// The forwarding database is full of static entries.
    #[error(
        "{switch} is full: it has {have} addresses, all static; for more: uvala switch set \
         {switch} --fdb-capacity N"
    )]
    FdbFull {
        /// The switch.
        switch: SwitchName,
        /// Capacity of the database.
        have: usize,
    },
    /// Chains need all ports at one worker.
    #[error(
        "chains run on one worker: uvala switch set {0} --workers one, or use another forwarding \
         function"
    )]
    ChainsOfAllWorkers(SwitchName),
    /// The ports of the switch are all at one worker.
    #[error(
        "{0} runs on one worker, and its ports stay there; to change that, delete its ports, then: \
         uvala switch set {0} --workers all"
    )]
    OneWorker(SwitchName),
    /// The ports of the switch are at their workers already.
    #[error(
        "{0} has ports; delete them first, or set --workers when you add the switch: uvala port \
         list {0}"
    )]
    WorkersWithPorts(SwitchName),
}

impl SwitchRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::Missing(_) | Self::NoFdbEntry { .. } | Self::NoMdbEntry(..) => {
                ErrorCode::NotFound
            }
            Self::Exists(_) | Self::Differs(..) => ErrorCode::Exists,
            Self::FdbFull { .. } => ErrorCode::NoMemory,
            Self::ChainsOfAllWorkers(_) | Self::WorkersWithPorts(_) => ErrorCode::BadRequest,
            Self::OneWorker(_) => ErrorCode::Unsupported,
        }
    }
}
