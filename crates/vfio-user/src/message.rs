//! Messages of vfio-user (protocol 0.1), as a VMM sends them and as we answer.
//!
//! A message is a header of 16 bytes (number, command, size, flags, error), then its body;
//! descriptors come beside the header. Words are in the machine's order. [`Request::parse`] knows
//! every command that we serve and reads nothing that is not there.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::device::{Area, Region};

/// The length of a header.
pub const HEADER: usize = 16;
/// The most bytes that one access of a region carries.
pub const TRANSFER_MAX: u32 = 1 << 16;
/// The longest body: a write of that many bytes.
pub const BODY_MAX: usize = ACCESS + TRANSFER_MAX as usize;
/// The most descriptors beside one message.
pub const FDS_MAX: usize = 16;

/// The body of an access, in front of its data.
const ACCESS: usize = 16;
/// The size of `vfio_region_info`.
const REGION_INFO: u32 = 32;

/// The version of the protocol that is served.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// Flags of a header.
mod flag {
    pub const REPLY: u32 = 1;
    pub const NO_REPLY: u32 = 0x10;
    pub const ERROR: u32 = 0x20;
}

/// Numbers of commands.
pub mod command {
    #![allow(missing_docs, reason = "the names of the specification")]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

/// Commands whose bodies are structures of `linux/vfio.h`: later ones are longer.
const GROWING: [u16; 5] = [
    command::DMA_MAP,
    command::DMA_UNMAP,
    command::DEVICE_GET_INFO,
    command::DEVICE_GET_REGION_INFO,
    command::DEVICE_GET_IRQ_INFO,
];

/// Flags of a map and of an unmap.
mod dma {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const ALL: u32 = 2;
}

/// Flags of `DEVICE_SET_IRQS`.
mod irqs {
    pub const NONE: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const EVENTFD: u32 = 4;
    pub const MASK: u32 = 8;
    pub const UNMASK: u32 = 16;
    pub const TRIGGER: u32 = 32;
    pub const DATA: u32 = NONE | BOOL | EVENTFD;
    pub const ACTION: u32 = MASK | UNMASK | TRIGGER;
}

/// Flags of a region.
mod region {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const MMAP: u32 = 4;
    pub const CAPS: u32 = 8;
    /// The capability that lists the parts that may be mapped, and its version.
    pub const SPARSE_MMAP: u16 = 1;
    pub const SPARSE_MMAP_VERSION: u16 = 1;
}

/// Bytes that are no message. They cost the VMM its connection.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// A flag is unknown, or the message is a reply.
    #[error("a message with flags {0:#x}")]
    Flags(u32),
    /// The message is shorter than its header, or longer than any.
    #[error("a message of {0} bytes")]
    Size(u32),
    /// The body's length does not fit the command.
    #[error("a body of {bytes} bytes for command {command}")]
    Body {
        /// The command.
        command: u16,
        /// The length.
        bytes: usize,
    },
    /// The number of descriptors does not fit the command.
    #[error("{count} file descriptors beside command {command}")]
    Descriptors {
        /// The command.
        command: u16,
        /// The number.
        count: usize,
    },
    /// The capabilities cannot be read.
    #[error("capabilities that make no sense: {0}")]
    Capabilities(String),
}

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message's number, which its reply repeats.
    pub id: u16,
    /// The number of the command.
    pub command: u16,
    /// The length of the body.
    pub body: usize,
    /// The sender wants no reply: a posted write.
    pub no_reply: bool,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(bytes: [u8; HEADER]) -> Result<Self, Malformed> {
        let [a, b, c, d, rest @ ..] = bytes;
        let (id, command) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let mut fields = Fields(&rest);
        let (size, flags) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
        if flags & !flag::NO_REPLY != 0 {
            return Err(Malformed::Flags(flags));
        }
        let body = usize::try_from(size).ok().and_then(|size| size.checked_sub(HEADER));
        let body = body.filter(|body| *body <= BODY_MAX).ok_or(Malformed::Size(size))?;
        Ok(Self { id, command, body, no_reply: flags != 0 })
    }

    /// The bytes of the reply with this body.
    #[must_use]
    pub fn reply(&self, body: &[u8]) -> Vec<u8> {
        self.encode(flag::REPLY, 0, body)
    }

    /// The bytes of the reply that says why a request was not served.
    #[must_use]
    pub fn error(&self, errno: Errno) -> Vec<u8> {
        self.encode(flag::REPLY | flag::ERROR, errno.raw_os_error().unsigned_abs(), &[])
    }

    fn encode(&self, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
        let size = u32::try_from(HEADER + body.len()).expect("replies are bounded");
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        [self.id, self.command].iter().for_each(|half| bytes.extend(half.to_ne_bytes()));
        [size, flags, error].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend_from_slice(body);
        bytes
    }
}

/// What each side can do, as far as the other has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Capabilities {
    /// The most descriptors beside a message to this side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_msg_fds: Option<u64>,
    /// The most bytes of an access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_data_xfer_size: Option<u64>,
    /// The most maps of guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dma_maps: Option<u64>,
}

/// Version data: capabilities under their name. What else a VMM says there is of no interest.
#[derive(Debug, Default, Deserialize, Serialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

/// Memory of the guest's that the device may use.
#[derive(Debug)]
pub struct DmaMap {
    /// The device may read it.
    pub readable: bool,
    /// The device may write to it.
    pub writable: bool,
    /// Where the memory begins in its file.
    pub offset: u64,
    /// The first guest address.
    pub address: u64,
    /// The number of bytes.
    pub size: u64,
    /// The file; `None`: the memory can be reached by messages only.
    pub fd: Option<OwnedFd>,
}

/// What is done with interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The VMM holds them back.
    Mask,
    /// The VMM lets them through again.
    Unmask,
    /// The VMM says how they are signalled, or has them signalled.
    Trigger,
}

/// Which of a range of interrupts are meant.
#[derive(Debug)]
pub enum IrqData {
    /// All.
    All,
    /// The interrupts whose byte is true.
    Bools(Vec<bool>),
    /// All, with an eventfd for each, or without any.
    Eventfds(Vec<OwnedFd>),
}

/// A change of interrupts.
#[derive(Debug)]
pub struct SetIrqs {
    /// The kind of interrupts.
    pub index: u32,
    /// The first vector.
    pub start: u32,
    /// The number of vectors.
    pub count: u32,
    /// What is done.
    pub action: Action,
    /// To which of them.
    pub data: IrqData,
}

/// A request and its parameters.
#[derive(Debug)]
pub enum Request {
    /// Begins the session.
    Version {
        /// The protocol's version.
        major: u16,
        /// The version's minor number.
        minor: u16,
        /// What the VMM can do.
        capabilities: Capabilities,
    },
    /// Maps guest memory.
    DmaMap(DmaMap),
    /// Takes guest memory back.
    DmaUnmap {
        /// The first guest address.
        address: u64,
        /// The number of bytes.
        size: u64,
        /// All memory, whatever the range is.
        all: bool,
    },
    /// Asks for the number of regions and of kinds of interrupts.
    DeviceInfo,
    /// Asks for a region.
    RegionInfo {
        /// The bytes that the VMM has room for.
        room: u32,
        /// The region.
        index: u32,
    },
    /// Asks for a kind of interrupts.
    IrqInfo(u32),
    /// Changes interrupts.
    SetIrqs(SetIrqs),
    /// Reads a region.
    RegionRead {
        /// The region.
        region: u32,
        /// Where.
        offset: u64,
        /// The number of bytes.
        count: u32,
    },
    /// Writes to a region.
    RegionWrite {
        /// The region.
        region: u32,
        /// Where.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Resets the device.
    Reset,
    /// A command, or a variant of one, that is not served.
    Unknown,
}

impl Request {
    /// Parses the body of a message.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(command: u16, body: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Malformed> {
        let mut fds = Some(fds).filter(|fds| !fds.is_empty());
        let mut fields = Fields(body);
        let parsed = Self::parse_fields(command, &mut fields, &mut fds);
        let bytes = body.len();
        let request = parsed.map_err(|error| match error {
            Wrong::Body => Malformed::Body { command, bytes },
            Wrong::Capabilities(why) => Malformed::Capabilities(why),
            Wrong::Descriptors(count) => Malformed::Descriptors { command, count },
        })?;
        // Unknown commands have unknown bodies, and structures of Linux grow at their end.
        let is_known = !matches!(request, Self::Unknown);
        if is_known && !fields.0.is_empty() && !GROWING.contains(&command) {
            return Err(Malformed::Body { command, bytes });
        }
        match fds.filter(|_| is_known) {
            Some(fds) => Err(Malformed::Descriptors { command, count: fds.len() }),
            None => Ok(request),
        }
    }

    fn parse_fields(
        command: u16,
        fields: &mut Fields<'_>,
        fds: &mut Option<Vec<OwnedFd>>,
    ) -> Result<Self, Wrong> {
        Ok(match command {
            command::VERSION => parse_version(fields)?,
            command::DMA_MAP => parse_map(fields, fds)?,
            command::DMA_UNMAP => parse_unmap(fields)?,
            command::DEVICE_GET_INFO => {
                fields.take::<16>()?;
                Self::DeviceInfo
            }
            command::DEVICE_GET_REGION_INFO => {
                let (room, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.take::<20>()?;
                Self::RegionInfo { room, index }
            }
            command::DEVICE_GET_IRQ_INFO => {
                let (_size, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.u32()?;
                Self::IrqInfo(index)
            }
            command::DEVICE_SET_IRQS => parse_irqs(fields, fds)?,
            command::REGION_READ => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                Self::RegionRead { region, offset, count }
            }
            command::REGION_WRITE => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let data = fields.rest();
                let whole = usize::try_from(count).is_ok_and(|count| count == data.len());
                if !whole {
                    return Err(Wrong::Body);
                }
                Self::RegionWrite { region, offset, data: data.to_vec() }
            }
            command::DEVICE_RESET => Self::Reset,
            _ => Self::Unknown,
        })
    }
}

/// What is wrong with a body.
enum Wrong {
    Body,
    Descriptors(usize),
    Capabilities(String),
}

fn parse_version(fields: &mut Fields<'_>) -> Result<Request, Wrong> {
    let [a, b, c, d] = fields.take()?;
    let (major, minor) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    let text = fields.rest();
    let capabilities = match text {
        [] => Capabilities::default(),
        [json @ .., 0] => {
            let data = serde_json::from_slice::<VersionData>(json);
            // The text has words of the VMM's in it.
            let shown = |error: serde_json::Error| error.to_string().chars().take(100).collect();
            data.map_err(|error| Wrong::Capabilities(shown(error)))?.capabilities
        }
        _ => return Err(Wrong::Capabilities("they do not end with a zero".to_owned())),
    };
    Ok(Request::Version { major, minor, capabilities })
}

fn parse_map(fields: &mut Fields<'_>, fds: &mut Option<Vec<OwnedFd>>) -> Result<Request, Wrong> {
    let (_size, flags) = (fields.u32()?, fields.u32()?);
    let (offset, address, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let mut fds = fds.take().unwrap_or_default();
    let fd = fds.pop();
    if !fds.is_empty() {
        return Err(Wrong::Descriptors(fds.len() + 1));
    }
    let (readable, writable) = (flags & dma::READ != 0, flags & dma::WRITE != 0);
    let map = DmaMap { readable, writable, offset, address, size, fd };
    Ok(if flags & !(dma::READ | dma::WRITE) == 0 { Request::DmaMap(map) } else { Request::Unknown })
}

fn parse_unmap(fields: &mut Fields<'_>) -> Result<Request, Wrong> {
    let (_size, flags) = (fields.u32()?, fields.u32()?);
    let (address, size) = (fields.u64()?, fields.u64()?);
    if flags & !dma::ALL != 0 {
        return Ok(Request::Unknown);
    }
    Ok(Request::DmaUnmap { address, size, all: flags & dma::ALL != 0 })
}

fn parse_irqs(fields: &mut Fields<'_>, fds: &mut Option<Vec<OwnedFd>>) -> Result<Request, Wrong> {
    let (_size, flags) = (fields.u32()?, fields.u32()?);
    let (index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let action = match flags & irqs::ACTION {
        irqs::MASK => Some(Action::Mask),
        irqs::UNMASK => Some(Action::Unmask),
        irqs::TRIGGER => Some(Action::Trigger),
        _ => None,
    };
    let Some(action) = action.filter(|_| flags & !(irqs::ACTION | irqs::DATA) == 0) else {
        return Ok(Request::Unknown);
    };
    let data = match flags & irqs::DATA {
        irqs::NONE => IrqData::All,
        irqs::BOOL => {
            let bools = fields.rest();
            if usize::try_from(count) != Ok(bools.len()) {
                return Err(Wrong::Body);
            }
            IrqData::Bools(bools.iter().map(|byte| *byte != 0).collect())
        }
        irqs::EVENTFD => {
            let fds = fds.take().unwrap_or_default();
            if !fds.is_empty() && usize::try_from(count) != Ok(fds.len()) {
                return Err(Wrong::Descriptors(fds.len()));
            }
            IrqData::Eventfds(fds)
        }
        _ => return Ok(Request::Unknown),
    };
    Ok(Request::SetIrqs(SetIrqs { index, start, count, action, data }))
}

/// The body of the reply to a version: what is served of the capabilities that the VMM `proposed`;
/// `maps` is the most maps.
#[must_use]
pub fn version_reply(minor: u16, proposed: &Capabilities, maps: usize) -> Vec<u8> {
    let capabilities = Capabilities {
        max_msg_fds: proposed.max_msg_fds.map(|_| FDS_MAX as u64),
        max_data_xfer_size: proposed.max_data_xfer_size.map(|_| TRANSFER_MAX.into()),
        max_dma_maps: proposed.max_dma_maps.map(|_| maps as u64),
    };
    let json = serde_json::to_vec(&VersionData { capabilities }).expect("numbers");
    let mut body = Vec::with_capacity(json.len() + 5);
    [MAJOR, minor.min(MINOR)].iter().for_each(|half| body.extend(half.to_ne_bytes()));
    body.extend_from_slice(&json);
    body.push(0);
    body
}

/// Whether this major version of the protocol is served.
#[must_use]
pub fn is_served(major: u16) -> bool {
    major == MAJOR
}

/// The body of the reply that describes the device.
#[must_use]
pub fn device_reply(regions: usize, irqs: usize) -> Vec<u8> {
    const RESET: u32 = 1;
    const PCI: u32 = 2;
    let count = |count: usize| u32::try_from(count).expect("few");
    words(&[16, RESET | PCI, count(regions), count(irqs)])
}

/// The body of the reply that describes a region, and the descriptor beside it. A VMM with too
/// little room for the parts that may be mapped is told how much they need.
#[must_use]
pub fn region_reply(room: u32, index: u32, region: &Region) -> (Vec<u8>, Option<BorrowedFd<'_>>) {
    let access = if region.size > 0 { region::READ | region::WRITE } else { 0 };
    let Some(memory) = &region.mappable else {
        return (region_info(REGION_INFO, access, index, 0, region.size, 0), None);
    };
    let parts = sparse_areas(&memory.areas);
    let needed = REGION_INFO + u32::try_from(parts.len()).expect("few areas");
    let flags = access | region::MMAP | region::CAPS;
    let mut body = region_info(needed, flags, index, REGION_INFO, region.size, memory.offset);
    if room >= needed {
        body.extend(parts);
    }
    (body, Some(std::os::fd::AsFd::as_fd(&memory.fd)))
}

fn region_info(size: u32, flags: u32, index: u32, caps: u32, bytes: u64, at: u64) -> Vec<u8> {
    let mut body = words(&[size, flags, index, caps]);
    [bytes, at].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

/// The capability that lists areas.
fn sparse_areas(areas: &[Area]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + 16 * areas.len());
    let kind = [region::SPARSE_MMAP, region::SPARSE_MMAP_VERSION];
    kind.iter().for_each(|half| bytes.extend(half.to_ne_bytes()));
    bytes.extend(words(&[0, u32::try_from(areas.len()).expect("few areas"), 0]));
    let ends = areas.iter().flat_map(|area| [area.offset, area.size]);
    ends.for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

/// The body of the reply that describes a kind of interrupts.
#[must_use]
pub fn irq_reply(index: u32, count: u32, is_line: bool) -> Vec<u8> {
    const EVENTFD: u32 = 1;
    const MASKABLE: u32 = 2;
    const AUTOMASKED: u32 = 4;
    const NORESIZE: u32 = 8;
    let flags = match (count, is_line) {
        (0, _) => 0,
        (_, true) => EVENTFD | MASKABLE | AUTOMASKED,
        (_, false) => EVENTFD | NORESIZE,
    };
    words(&[16, flags, index, count])
}

/// The body of the reply to an access, in front of the data.
#[must_use]
pub fn access_reply(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend(words(&[region, count]));
    body
}

/// The body of the reply to an unmap.
#[must_use]
pub fn unmap_reply(address: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[24, 0]);
    [address, size].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The rest of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let (now, later) = self.0.split_first_chunk().ok_or(Wrong::Body)?;
        self.0 = later;
        Ok(*now)
    }

    fn u32(&mut self) -> Result<u32, Wrong> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Wrong> {
        self.take().map(u64::from_ne_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests;
