//! Requests as netmap reads them, and answers as it writes them.
//!
//! A program asks in one of two forms: `NIOCCTRL` with a header, a body by type and a list of
//! options ([`control`]), or the legacy calls with one flat structure ([`legacy`]). Both become a
//! [`Request`]. A [`Server`] writes the answer into it, and it goes back in the form that the
//! question had. Nothing here knows of daemons: a malformed request gets netmap's errno, and
//! nothing has happened.

mod control;
mod legacy;
mod options;

pub use control::control;
pub use legacy::{LegacyCall, legacy};
pub use options::Options;

use rustix::io::Errno;

use crate::abi::{
    KloopStart, Name, PoolsInfo, PortHdr, PortInfo, Register, ValeAttach, ValeDetach, ValeList,
    ValeNewif, ValePolling, bytes_of, bytes_of_mut, reqtype,
};

/// One request, in whatever form it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The port's name; always zero-terminated.
    pub name: Name,
    /// The kind of the request, and its numbers.
    pub body: Body,
    /// Options that go with it.
    pub options: Options,
}

/// What to do, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bind the descriptor to a port.
    Register(Register),
    /// Ask for the rings and the region of a port.
    PortInfoGet(PortInfo),
    /// Put a port into a switch.
    ValeAttach(ValeAttach),
    /// Take a port out of its switch.
    ValeDetach(ValeDetach),
    /// List the ports of switches.
    ValeList(ValeList),
    /// Set the length of the virtio-net header.
    PortHdrSet(PortHdr),
    /// Get the length of the virtio-net header.
    PortHdrGet(PortHdr),
    /// Make a persistent port.
    ValeNewif(ValeNewif),
    /// Delete a persistent port.
    ValeDelif,
    /// Poll a hardware port.
    PollingEnable(ValePolling),
    /// Stop polling a hardware port.
    PollingDisable(ValePolling),
    /// Ask for the pools of a region.
    PoolsInfoGet(PoolsInfo),
    /// Run the sync loop.
    KloopStart(KloopStart),
    /// End the sync loop.
    KloopStop,
    /// Exchange indexes through the program's memory.
    CsbEnable,
    /// A number that is no request.
    Unknown,
}

impl Body {
    /// An empty body of the type.
    fn empty(reqtype: u16) -> Self {
        match reqtype {
            reqtype::REGISTER => Self::Register(Register::default()),
            reqtype::PORT_INFO_GET => Self::PortInfoGet(PortInfo::default()),
            reqtype::VALE_ATTACH => Self::ValeAttach(ValeAttach::default()),
            reqtype::VALE_DETACH => Self::ValeDetach(ValeDetach::default()),
            reqtype::VALE_LIST => Self::ValeList(ValeList::default()),
            reqtype::PORT_HDR_SET => Self::PortHdrSet(PortHdr::default()),
            reqtype::PORT_HDR_GET => Self::PortHdrGet(PortHdr::default()),
            reqtype::VALE_NEWIF => Self::ValeNewif(ValeNewif::default()),
            reqtype::VALE_DELIF => Self::ValeDelif,
            reqtype::VALE_POLLING_ENABLE => Self::PollingEnable(ValePolling::default()),
            reqtype::VALE_POLLING_DISABLE => Self::PollingDisable(ValePolling::default()),
            reqtype::POOLS_INFO_GET => Self::PoolsInfoGet(PoolsInfo::default()),
            reqtype::SYNC_KLOOP_START => Self::KloopStart(KloopStart::default()),
            reqtype::SYNC_KLOOP_STOP => Self::KloopStop,
            reqtype::CSB_ENABLE => Self::CsbEnable,
            _ => Self::Unknown,
        }
    }

    /// The bytes of the body; none where the request has no body.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Register(body) => bytes_of(body),
            Self::PortInfoGet(body) => bytes_of(body),
            Self::ValeAttach(body) => bytes_of(body),
            Self::ValeDetach(body) => bytes_of(body),
            Self::ValeList(body) => bytes_of(body),
            Self::PortHdrSet(body) | Self::PortHdrGet(body) => bytes_of(body),
            Self::ValeNewif(body) => bytes_of(body),
            Self::PollingEnable(body) | Self::PollingDisable(body) => bytes_of(body),
            Self::PoolsInfoGet(body) => bytes_of(body),
            Self::KloopStart(body) => bytes_of(body),
            Self::ValeDelif | Self::KloopStop | Self::CsbEnable | Self::Unknown => &[],
        }
    }

    /// The bytes of the body, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Register(body) => bytes_of_mut(body),
            Self::PortInfoGet(body) => bytes_of_mut(body),
            Self::ValeAttach(body) => bytes_of_mut(body),
            Self::ValeDetach(body) => bytes_of_mut(body),
            Self::ValeList(body) => bytes_of_mut(body),
            Self::PortHdrSet(body) | Self::PortHdrGet(body) => bytes_of_mut(body),
            Self::ValeNewif(body) => bytes_of_mut(body),
            Self::PollingEnable(body) | Self::PollingDisable(body) => bytes_of_mut(body),
            Self::PoolsInfoGet(body) => bytes_of_mut(body),
            Self::KloopStart(body) => bytes_of_mut(body),
            Self::ValeDelif | Self::KloopStop | Self::CsbEnable | Self::Unknown => &mut [],
        }
    }
}

/// Carries requests out.
pub trait Server {
    /// Carries a request out and writes the answer into it.
    fn serve(&mut self, request: &mut Request) -> Result<(), Errno>;
}

impl<F: FnMut(&mut Request) -> Result<(), Errno>> Server for F {
    fn serve(&mut self, request: &mut Request) -> Result<(), Errno> {
        self(request)
    }
}

#[cfg(test)]
mod tests;
