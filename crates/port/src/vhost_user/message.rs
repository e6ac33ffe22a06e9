//! Messages of the vhost-user protocol, as a frontend sends them and as we answer.
//!
//! A message is a header of three words (request, flags, size), then its payload; descriptors come
//! beside it. Words are in the machine's order. [`Message::parse`] knows every request that we
//! serve and reads nothing that is not there; what is left over of a payload is an error too.

use std::os::fd::OwnedFd;

use device::virtqueue::Places;

use crate::sys::vhost::FDS_MAX;

/// The length of a header.
pub const HEADER: usize = 12;
/// The longest payload; a table of eight regions has 264 bytes.
pub const PAYLOAD_MAX: usize = 512;

/// Flags of a header.
mod flag {
    pub const VERSION_MASK: u32 = 3;
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = 4;
    pub const NEED_REPLY: u32 = 8;
}

/// Numbers of requests.
mod number {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's number.
    pub request: u32,
    /// The sender waits for a reply in any case.
    pub need_reply: bool,
    /// The length of the payload.
    pub size: usize,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(bytes: [u8; HEADER]) -> Result<Self, Malformed> {
        let mut fields = Fields(&bytes);
        let (request, flags, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if flags & flag::VERSION_MASK != flag::VERSION || flags & flag::REPLY != 0 {
            return Err(Malformed::Flags(flags));
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= PAYLOAD_MAX);
        let size = size.ok_or(Malformed::Long(request))?;
        Ok(Self { request, need_reply: flags & flag::NEED_REPLY != 0, size })
    }
}

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The version is unknown, or the message is a reply.
    #[error("a message with flags {0:#x}")]
    Flags(u32),
    /// The payload is longer than any message's.
    #[error("a request that is too long: {0}")]
    Long(u32),
    /// The payload's length does not fit the request.
    #[error("a payload of the wrong size")]
    Size,
    /// The number of descriptors does not fit the request.
    #[error("the wrong number of file descriptors")]
    Descriptors,
    /// The backend does not know the request.
    #[error("a request that is unknown: {0}")]
    Unknown(u32),
}

/// A region of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first guest address.
    pub guest: u64,
    /// The number of bytes.
    pub size: u64,
    /// The first address in the frontend's process.
    pub user: u64,
    /// The offset in the region's file.
    pub offset: u64,
}

/// A part of a file that the frontend lends.
#[derive(Debug)]
pub struct Area {
    /// The number of bytes.
    pub size: u64,
    /// The offset in the file.
    pub offset: u64,
    /// The file of the memory.
    pub fd: OwnedFd,
}

/// The queues of an in-flight area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of queues.
    pub queues: u16,
    /// The buffers of each queue.
    pub size: u16,
}

/// One of a queue's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// The driver notifies the device.
    Kick,
    /// The device interrupts the driver.
    Call,
    /// The device reports an error of the queue.
    Err,
}

/// A request and its parameters.
#[derive(Debug)]
pub enum Message {
    /// Asks for the device's features.
    GetFeatures,
    /// Sets the features that the driver chose.
    SetFeatures(u64),
    /// Asks for the protocol features.
    GetProtocolFeatures,
    /// Sets the protocol features that the frontend chose.
    SetProtocolFeatures(u64),
    /// Takes ownership of the session; without effect.
    SetOwner,
    /// Gives up ownership of the session; without effect.
    ResetOwner,
    /// Resets the device.
    ResetDevice,
    /// Asks for the number of pairs of queues.
    GetQueueNum,
    /// Asks for the most memory regions.
    GetMaxMemSlots,
    /// Replaces all memory regions.
    SetMemTable(Vec<(Region, OwnedFd)>),
    /// Adds a memory region.
    AddMemReg(Region, OwnedFd),
    /// Removes a memory region.
    RemMemReg(Region),
    /// Sets the log of dirty pages.
    SetLogBase(Area),
    /// Sets the eventfd that signals changes of the log.
    SetLogFd(OwnedFd),
    /// Asks for a new in-flight area.
    GetInflight(Shape),
    /// Sets an in-flight area that the frontend got earlier.
    SetInflight(Shape, Area),
    /// Sets the size of a queue.
    SetVringNum(u32, u32),
    /// Sets the addresses of a queue, and the guest address under which writes to its device area
    /// are logged.
    SetVringAddr(u32, Places, Option<u64>),
    /// Sets the index at which a queue begins.
    SetVringBase(u32, u32),
    /// Stops a queue and asks for its index.
    GetVringBase(u32),
    /// Sets a descriptor of a queue; without one, the queue is polled.
    SetBell(Bell, u32, Option<OwnedFd>),
    /// Enables or disables a queue.
    SetVringEnable(u32, bool),
    /// Asks the backend to announce a MAC address.
    SendRarp([u8; 6]),
    /// Tells the MTU that the driver was given.
    SetMtu(u64),
    /// Sets the device status that the driver wrote.
    SetStatus(u8),
    /// Asks for the device status.
    GetStatus,
}

impl Message {
    /// Parses a request.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(request: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Malformed> {
        let (mut fields, mut fds) = (Fields(payload), Fds(fds));
        let message = Self::parse_fields(request, &mut fields, &mut fds)?;
        if !fields.0.is_empty() {
            return Err(Malformed::Size);
        }
        if fds.0.is_empty() { Ok(message) } else { Err(Malformed::Descriptors) }
    }

    fn parse_fields(
        request: u32,
        fields: &mut Fields<'_>,
        fds: &mut Fds,
    ) -> Result<Self, Malformed> {
        Ok(match request {
            number::GET_FEATURES => Self::GetFeatures,
            number::SET_FEATURES => Self::SetFeatures(fields.u64()?),
            number::GET_PROTOCOL_FEATURES => Self::GetProtocolFeatures,
            number::SET_PROTOCOL_FEATURES => Self::SetProtocolFeatures(fields.u64()?),
            number::SET_OWNER => Self::SetOwner,
            number::RESET_OWNER => Self::ResetOwner,
            number::RESET_DEVICE => Self::ResetDevice,
            number::GET_QUEUE_NUM => Self::GetQueueNum,
            number::GET_MAX_MEM_SLOTS => Self::GetMaxMemSlots,
            number::SET_MEM_TABLE => Self::SetMemTable(parse_table(fields, fds)?),
            number::ADD_MEM_REG => Self::AddMemReg(parse_slot(fields)?, fds.one()?),
            number::REM_MEM_REG => {
                // Some frontends pass the descriptor along, which is not needed.
                fds.0.truncate(0);
                Self::RemMemReg(parse_slot(fields)?)
            }
            number::SET_LOG_BASE => {
                let (size, offset) = (fields.u64()?, fields.u64()?);
                Self::SetLogBase(Area { size, offset, fd: fds.one()? })
            }
            number::SET_LOG_FD => {
                // Some frontends send a number along, which means nothing.
                fields.0 = &[];
                Self::SetLogFd(fds.one()?)
            }
            number::GET_INFLIGHT_FD => Self::GetInflight(parse_inflight(fields)?.2),
            number::SET_INFLIGHT_FD => {
                let (size, offset, shape) = parse_inflight(fields)?;
                Self::SetInflight(shape, Area { size, offset, fd: fds.one()? })
            }
            number::SET_VRING_NUM => Self::SetVringNum(fields.u32()?, fields.u32()?),
            number::SET_VRING_ADDR => parse_places(fields)?,
            number::SET_VRING_BASE => Self::SetVringBase(fields.u32()?, fields.u32()?),
            number::GET_VRING_BASE => {
                let queue = fields.u32()?;
                fields.u32()?;
                Self::GetVringBase(queue)
            }
            number::SET_VRING_KICK => parse_bell(Bell::Kick, fields, fds)?,
            number::SET_VRING_CALL => parse_bell(Bell::Call, fields, fds)?,
            number::SET_VRING_ERR => parse_bell(Bell::Err, fields, fds)?,
            number::SET_VRING_ENABLE => Self::SetVringEnable(fields.u32()?, fields.u32()? != 0),
            number::SEND_RARP => {
                let [a, b, c, d, e, f, ..] = fields.u64()?.to_le_bytes();
                Self::SendRarp([a, b, c, d, e, f])
            }
            number::NET_SET_MTU => Self::SetMtu(fields.u64()?),
            number::SET_STATUS => {
                let [status, ..] = fields.u64()?.to_le_bytes();
                Self::SetStatus(status)
            }
            number::GET_STATUS => Self::GetStatus,
            _ => return Err(Malformed::Unknown(request)),
        })
    }
}

fn parse_region(fields: &mut Fields<'_>) -> Result<Region, Malformed> {
    let (guest, size) = (fields.u64()?, fields.u64()?);
    Ok(Region { guest, size, user: fields.u64()?, offset: fields.u64()? })
}

fn parse_slot(fields: &mut Fields<'_>) -> Result<Region, Malformed> {
    fields.u64()?;
    parse_region(fields)
}

fn parse_table(
    fields: &mut Fields<'_>,
    fds: &mut Fds,
) -> Result<Vec<(Region, OwnedFd)>, Malformed> {
    let count = fields.u32()? as usize;
    fields.u32()?;
    if count != fds.0.len() || count > FDS_MAX {
        return Err(Malformed::Descriptors);
    }
    let regions = fds.0.drain(..).map(|fd| Ok((parse_region(fields)?, fd)));
    let table = regions.collect();
    // The frontend may send its whole table, used or not.
    fields.0 = &[];
    table
}

fn parse_inflight(fields: &mut Fields<'_>) -> Result<(u64, u64, Shape), Malformed> {
    let (size, offset) = (fields.u64()?, fields.u64()?);
    let shape = Shape { queues: fields.u16()?, size: fields.u16()? };
    // Most frontends send the padding of their structure along.
    fields.0 = &fields.0[if fields.0.len() == 4 { 4 } else { 0 }..];
    Ok((size, offset, shape))
}

fn parse_places(fields: &mut Fields<'_>) -> Result<Message, Malformed> {
    const LOGGED: u32 = 1;
    let (queue, flags) = (fields.u32()?, fields.u32()?);
    let (descriptors, device, driver) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let log = Some(fields.u64()?).filter(|_| flags & LOGGED != 0);
    Ok(Message::SetVringAddr(queue, Places { descriptors, driver, device }, log))
}

fn parse_bell(bell: Bell, fields: &mut Fields<'_>, fds: &mut Fds) -> Result<Message, Malformed> {
    const QUEUE: u64 = 0xff;
    const NO_DESCRIPTOR: u64 = 0x100;
    let word = fields.u64()?;
    let queue = u32::try_from(word & QUEUE).expect("a byte");
    let fd = if word & NO_DESCRIPTOR == 0 { Some(fds.one()?) } else { None };
    Ok(Message::SetBell(bell, queue, fd))
}

/// A reply to a request.
#[derive(Debug)]
pub enum Answer {
    /// A number.
    U64(u64),
    /// The index of a queue.
    Vring(u32, u32),
    /// A new in-flight area.
    Inflight(Shape, Area),
}

impl Answer {
    /// Encodes the reply to a request whose payload had `asked` bytes; returns its bytes, and the
    /// descriptor to pass.
    ///
    /// # Panics
    /// Never: payloads are short.
    #[must_use]
    pub fn encode(self, request: u32, asked: usize) -> (Vec<u8>, Option<OwnedFd>) {
        let (mut payload, fd) = match self {
            Self::U64(value) => (value.to_ne_bytes().to_vec(), None),
            Self::Vring(queue, base) => {
                (queue.to_ne_bytes().into_iter().chain(base.to_ne_bytes()).collect(), None)
            }
            Self::Inflight(shape, Area { size, offset, fd }) => {
                let long = size.to_ne_bytes().into_iter().chain(offset.to_ne_bytes());
                let short = shape.queues.to_ne_bytes().into_iter().chain(shape.size.to_ne_bytes());
                (long.chain(short).collect(), Some(fd))
            }
        };
        if fd.is_some() {
            // The reply is as long as the request, with padding or without.
            payload.resize(asked, 0);
        }
        let size = u32::try_from(payload.len()).expect("short");
        let words = [request, flag::VERSION | flag::REPLY, size];
        (words.into_iter().flat_map(u32::to_ne_bytes).chain(payload).collect(), fd)
    }
}

/// The rest of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (now, later) = self.0.split_first_chunk().ok_or(Malformed::Size)?;
        self.0 = later;
        Ok(*now)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// The rest of the descriptors.
struct Fds(Vec<OwnedFd>);

impl Fds {
    fn one(&mut self) -> Result<OwnedFd, Malformed> {
        self.0.pop().ok_or(Malformed::Descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn fd() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors")
    }

    fn payload(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn header(words: [u32; 3]) -> Result<Header, Malformed> {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        Header::parse(bytes.try_into().expect("three"))
    }

    #[test]
    fn headers_of_other_versions_answers_and_giants_are_refused() {
        let good = header([1, 1 | 8, 0]).expect("good");
        assert_eq!(good, Header { request: 1, need_reply: true, size: 0 });
        assert_eq!(header([1, 2, 0]), Err(Malformed::Flags(2)));
        assert_eq!(header([1, 5, 0]), Err(Malformed::Flags(5)));
        assert_eq!(header([9, 1, u32::MAX]), Err(Malformed::Long(9)));
    }

    #[test]
    fn payloads_and_descriptors_must_be_those_of_the_request() {
        let parse = |request, words: &[u64], fds: usize| {
            Message::parse(request, &payload(words), (0..fds).map(|_| fd()).collect())
        };
        assert!(matches!(parse(2, &[7], 0), Ok(Message::SetFeatures(7))));
        assert!(matches!(parse(2, &[], 0), Err(Malformed::Size)));
        assert!(matches!(parse(2, &[7, 7], 0), Err(Malformed::Size)));
        assert!(matches!(parse(2, &[7], 1), Err(Malformed::Descriptors)));
        assert!(matches!(parse(12, &[3], 1), Ok(Message::SetBell(Bell::Kick, 3, Some(_)))));
        assert!(matches!(parse(13, &[0x103], 0), Ok(Message::SetBell(Bell::Call, 3, None))));
        assert!(matches!(parse(12, &[3], 0), Err(Malformed::Descriptors)));
        assert!(matches!(parse(5, &[2, 0, 1, 0, 0], 1), Err(Malformed::Descriptors)));
        assert!(matches!(parse(5, &[1, 0, 1], 1), Err(Malformed::Size)));
        assert!(matches!(parse(99, &[], 0), Err(Malformed::Unknown(99))));
        let log = parse(6, &[4096, 8], 1);
        assert!(matches!(log, Ok(Message::SetLogBase(Area { size: 4096, offset: 8, .. }))));
        assert!(matches!(parse(6, &[4096], 0), Err(Malformed::Size)), "without LOG_SHMFD");
        assert!(matches!(parse(7, &[], 1), Ok(Message::SetLogFd(_))));
        let Ok(Message::SetMemTable(table)) = parse(5, &[1, 0, 4096, 8, 64], 1) else {
            panic!("a table of one region");
        };
        assert_eq!(table[0].0, Region { guest: 0, size: 4096, user: 8, offset: 64 });
    }

    #[test]
    fn the_places_of_a_queue_come_in_the_order_of_vhost() {
        let message = Message::parse(9, &payload(&[1, 10, 20, 30, 0]), Vec::new());
        let Ok(Message::SetVringAddr(1, places, None)) = message else { panic!("{message:?}") };
        assert_eq!(places, Places { descriptors: 10, device: 20, driver: 30 });
        let message = Message::parse(9, &payload(&[1 | 1 << 32, 1, 2, 3, 40]), Vec::new());
        assert!(matches!(message, Ok(Message::SetVringAddr(1, _, Some(40)))), "{message:?}");
    }

    #[test]
    fn answers_bear_the_number_of_their_request() {
        let (bytes, none) = Answer::Vring(1, 2).encode(11, 8);
        assert!(none.is_none());
        let words: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4"))).collect();
        assert_eq!(words, [11, 5, 8, 1, 2]);
        // 20 bytes, and four of padding if the request had them.
        for asked in [20, 24] {
            let mut payload = vec![0; asked];
            (payload[16], payload[18]) = (2, 64);
            let Ok(Message::GetInflight(shape)) = Message::parse(31, &payload, Vec::new()) else {
                panic!("a shape");
            };
            assert_eq!(shape, Shape { queues: 2, size: 64 });
            let area = Area { size: 4096, offset: 0, fd: fd() };
            let (bytes, fd) = Answer::Inflight(shape, area).encode(31, asked);
            assert!(bytes.len() == HEADER + asked && fd.is_some());
        }
    }
}
