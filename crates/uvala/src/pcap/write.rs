//! Writes pcapng: a section, its interfaces, their frames, and the counters of the first one at the
//! end.
//!
//! ```text
//!  block    type:4 length:4 │ fields │ options │ length:4        all multiples of 4 bytes
//!  option   code:2 length:2 value, padded
//! ```
//!
//! Times are in nanoseconds. Each frame has its direction: inbound entered the switch. One that was
//! dropped belongs to the interface of the port that counts it, and has a comment.

use std::io::{self, Write};

use super::Seen;
use super::read::{ETHERNET, block};

/// Codes of options.
mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const APPLICATION: u16 = 4;
    pub const INTERFACE_NAME: u16 = 2;
    pub const TIME_RESOLUTION: u16 = 9;
    pub const PACKET_FLAGS: u16 = 2;
    pub const RECEIVED: u16 = 4;
    pub const DROPPED: u16 = 5;
}

/// Directions in the flags of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// What stands in front of the frames.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name of the port, or of the switch whose drops these are.
    pub name: String,
    /// Most bytes of a frame that are written.
    pub snap: u32,
}

/// Writes the section and its first interface.
///
/// # Errors
/// The file cannot be written.
pub fn begin(to: &mut impl Write, interface: &Interface) -> io::Result<()> {
    let [order, version] = [block::BYTE_ORDER, 1].map(u32::to_le_bytes);
    let section = [&order[..], &version, &u64::MAX.to_le_bytes()].concat();
    let program = concat!("uvala ", env!("CARGO_PKG_VERSION"));
    write_block(to, block::SECTION, &section, &[(option::APPLICATION, program.as_bytes())])?;
    self::interface(to, &interface.name, interface.snap)
}

/// Writes an interface. Their numbers are in the order of the file.
///
/// # Errors
/// The file cannot be written.
pub fn interface(to: &mut impl Write, name: &str, snap: u32) -> io::Result<()> {
    let fields = [u32::from(ETHERNET), snap].map(u32::to_le_bytes).concat();
    let options = [(option::INTERFACE_NAME, name.as_bytes()), (option::TIME_RESOLUTION, &[9][..])];
    write_block(to, block::INTERFACE, &fields, &options)
}

/// Writes a frame of the interface with this number, at most `snap` bytes of it.
///
/// # Errors
/// The file cannot be written.
pub fn frame(to: &mut impl Write, interface: u32, snap: u32, seen: Seen<'_>) -> io::Result<()> {
    let snap = usize::try_from(snap).unwrap_or(usize::MAX);
    let kept = &seen.bytes[..seen.bytes.len().min(snap)];
    let [len, kept_len] =
        [seen.bytes, kept].map(|bytes| u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    let time = time(seen.time_ns);
    let head = [interface, time[0], time[1], kept_len, len].map(u32::to_le_bytes).concat();
    let mut fields = [&head[..], kept].concat();
    fields.resize(fields.len().next_multiple_of(4), 0);
    let direction = if seen.is_entering { INBOUND } else { OUTBOUND };
    let direction = direction.to_le_bytes();
    let comment = seen.lost.map(|lost| format!("dropped: {}, from {}", lost.reason, lost.from));
    let comment = comment.as_ref().map(|comment| (option::COMMENT, comment.as_bytes()));
    let flags = (option::PACKET_FLAGS, &direction[..]);
    let options: Vec<_> = comment.into_iter().chain([flags]).collect();
    write_block(to, block::PACKET, &fields, &options)
}

/// Writes the counters of the interface, at this time.
///
/// # Errors
/// The file cannot be written.
pub fn end(to: &mut impl Write, time_ns: u64, received: u64, dropped: u64) -> io::Result<()> {
    let time = time(time_ns);
    let fields = [0, time[0], time[1]].map(u32::to_le_bytes).concat();
    let [received, dropped] = [received, dropped].map(u64::to_le_bytes);
    let options = [(option::RECEIVED, &received[..]), (option::DROPPED, &dropped)];
    write_block(to, block::STATISTICS, &fields, &options)
}

/// A time, its upper half first.
fn time(time_ns: u64) -> [u32; 2] {
    let halves = [time_ns >> 32, time_ns & u64::from(u32::MAX)];
    halves.map(|half| u32::try_from(half).unwrap_or(u32::MAX))
}

fn write_block(
    to: &mut impl Write,
    kind: u32,
    fields: &[u8],
    options: &[(u16, &[u8])],
) -> io::Result<()> {
    let mut body = fields.to_vec();
    for (code, value) in options {
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        body.extend([code.to_le_bytes(), len.to_le_bytes()].concat());
        body.extend_from_slice(&value[..usize::from(len)]);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    body.extend([option::END.to_le_bytes(), [0; 2]].concat());
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?.to_le_bytes();
    to.write_all(&[&kind.to_le_bytes()[..], &length, &body, &length].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::read;

    #[test]
    fn test_what_is_written_is_read_again() {
        let interface = Interface { name: "vale0:a".to_owned(), snap: 100 };
        let mut file = Vec::new();
        begin(&mut file, &interface).unwrap();
        for len in [60, 61, 300] {
            let bytes = vec![7; len];
            let seen = Seen { bytes: &bytes, time_ns: 1 << 60, is_entering: true, lost: None };
            frame(&mut file, 0, interface.snap, seen).unwrap();
        }
        end(&mut file, 1 << 60, 3, 0).unwrap();
        let lens = [1, 2, 3].map(|number| read::frame(&file[..], number).unwrap().len());
        assert_eq!(lens, [60, 61, 100]);
        assert!(read::frame(&file[..], 4).is_err());
    }
}
