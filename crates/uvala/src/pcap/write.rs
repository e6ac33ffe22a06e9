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

use super::read::{ETHERNET, block};
use super::{Lost, Seen};

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

/// Writes a frame of the interface with this number, at most `snap` bytes of it. Only a comment
/// allocates: there may be a million frames in a second.
///
/// # Errors
/// The file cannot be written.
pub fn frame(to: &mut impl Write, interface: u32, snap: u32, seen: Seen<'_>) -> io::Result<()> {
    let snap = usize::try_from(snap).unwrap_or(usize::MAX);
    let kept = &seen.bytes[..seen.bytes.len().min(snap)];
    let padding = kept.len().next_multiple_of(4) - kept.len();
    let mut comment = Vec::new();
    if let Some(Lost { reason, from, .. }) = seen.lost {
        let text = format!("dropped: {reason}, from {from}");
        add_option(&mut comment, option::COMMENT, text.as_bytes());
    }
    let [time_high, time_low] = time(seen.time_ns);
    let length = len32(HEAD_BYTES + kept.len() + padding + comment.len() + TAIL_BYTES);
    let lens = [len32(kept.len()), len32(seen.bytes.len())];
    let head: [u32; HEAD_BYTES / 4] =
        [block::PACKET, length, interface, time_high, time_low, lens[0], lens[1]];
    let direction = if seen.is_entering { INBOUND } else { OUTBOUND };
    let flags = u32::from(option::PACKET_FLAGS) | 4 << 16;
    let tail: [u32; TAIL_BYTES / 4] = [flags, direction, option::END.into(), length];
    to.write_all(head.map(u32::to_le_bytes).as_flattened())?;
    to.write_all(kept)?;
    to.write_all(&[0; 3][..padding])?;
    to.write_all(&comment)?;
    to.write_all(tail.map(u32::to_le_bytes).as_flattened())
}

/// Bytes of a frame's block in front of the frame, and behind its comment.
const HEAD_BYTES: usize = 28;
const TAIL_BYTES: usize = 16;

fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
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
        add_option(&mut body, *code, value);
    }
    body.extend([option::END.to_le_bytes(), [0; 2]].concat());
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?.to_le_bytes();
    to.write_all(&[&kind.to_le_bytes()[..], &length, &body, &length].concat())
}

/// Adds an option to those in `to`, which end at a multiple of 4 bytes.
fn add_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    to.extend_from_slice(&code.to_le_bytes());
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(&value[..usize::from(len)]);
    to.resize(to.len().next_multiple_of(4), 0);
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

    #[test]
    fn test_a_block_has_the_frame_its_comment_and_its_length_at_both_ends() {
        let lost = Lost { reason: "vlan", at: "vale0:a", from: "vale0:b" };
        let bytes = [7; 61];
        for (lost, comment) in [(None, 0), (Some(lost), 4 + 28)] {
            let mut file = Vec::new();
            let seen = Seen { bytes: &bytes, time_ns: 1 << 60, is_entering: true, lost };
            frame(&mut file, 3, 50, seen).unwrap();
            assert_eq!(file.len(), 28 + 52 + comment + 16);
            let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            let length = u32::try_from(file.len()).unwrap();
            assert_eq!([0, 4, 8, file.len() - 4].map(word), [block::PACKET, length, 3, length]);
            assert_eq!([12, 16, 20, 24].map(word), [1 << 28, 0, 50, 61]);
            assert_eq!(file[28..80], [&[7; 50][..], &[0; 2]].concat());
            let text = b"\x01\0\x1b\0dropped: vlan, from vale0:b\0";
            assert_eq!(file[80..80 + comment], text[..comment]);
            let tail = [option::PACKET_FLAGS.into(), INBOUND, option::END.into()];
            let at = file.len() - 16;
            assert_eq!([at, at + 4, at + 8].map(word), [tail[0] | 4 << 16, tail[1], tail[2]]);
        }
    }
}
