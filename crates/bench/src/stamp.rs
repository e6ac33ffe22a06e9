//! Frames that say what they are: written by the sender, checked by the receiver.
//!
//! ```text
//!  0          6        12    14  16                                 len
//!  | to       | from   | 88b5| 0 | sequence | sequence | … | tail     |
//! ```
//!
//! Every whole word behind the header is the sequence number and what is left at the end is its
//! first bytes, so that a byte of another frame, an old frame, or a piece that is missing cannot
//! pass. Loops over whole words keep a sender and a receiver at the speed of the memory.

use packet::build::ethernet_header;
use packet::ethernet::ETHERNET_HEADER;

/// The Ethernet type for local experiments (IEEE 802, 88B5).
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Bytes in front of the first word.
const HEADER: usize = 16;

/// The shortest frame that holds a sequence number.
pub const SHORTEST: usize = 24;

/// The header of frames between two of our addresses.
pub fn header(to: [u8; 6], from: [u8; 6]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let ethertype = u16::from_be_bytes(ETHERTYPE);
    header[..ETHERNET_HEADER].copy_from_slice(&ethernet_header(to, from, ethertype));
    header
}

/// The address of a port.
pub fn address(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, number]
}

/// The broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Writes every byte of a frame.
#[inline]
pub fn write(frame: &mut [u8], header: &[u8; HEADER], sequence: u64) {
    // The length as a constant makes the shortest frame's loop a handful of stores.
    match <&mut [u8; 60]>::try_from(&mut *frame) {
        Ok(short) => write_words(short, header, sequence),
        Err(_) => write_words(frame, header, sequence),
    }
}

#[inline(always)]
fn write_words(frame: &mut [u8], header: &[u8; HEADER], sequence: u64) {
    let (head, payload) = frame.split_at_mut(HEADER);
    head.copy_from_slice(header);
    let word = sequence.to_ne_bytes();
    let (words, tail) = payload.as_chunks_mut::<8>();
    for w in words {
        *w = word;
    }
    tail.copy_from_slice(&word[..tail.len()]);
}

/// Reads every byte of a frame. Returns its sequence number where all bytes are right.
#[inline]
pub fn read(frame: &[u8]) -> Option<u64> {
    match <&[u8; 60]>::try_from(frame) {
        Ok(short) => read_words(short),
        Err(_) => read_words(frame),
    }
}

#[inline(always)]
fn read_words(frame: &[u8]) -> Option<u64> {
    if frame.len() < SHORTEST || frame[12..14] != ETHERTYPE {
        return None;
    }
    let (words, tail) = frame[HEADER..].as_chunks::<8>();
    let sequence = u64::from_ne_bytes(words[0]);
    let wrong = words.iter().fold(0, |wrong, w| wrong | (u64::from_ne_bytes(*w) ^ sequence));
    let right = wrong == 0 && *tail == sequence.to_ne_bytes()[..tail.len()];
    right.then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_read_accepts_what_write_wrote() {
        for length in [24, 60, 61, 64, 1514, 9000] {
            let mut frame = vec![0xaa; length];
            write(&mut frame, &header(address(2), address(1)), 0x0102_0304_0506_0708);
            assert_eq!(read(&frame), Some(0x0102_0304_0506_0708), "{length}");
            assert_eq!(frame[..6], address(2));
        }
    }

    #[test]
    fn test_read_refuses_one_wrong_byte_anywhere() {
        let mut frame = vec![0; 67];
        write(&mut frame, &header(BROADCAST, address(1)), 77);
        for at in (HEADER..67).chain([12, 13]) {
            frame[at] ^= 0x40;
            assert_eq!(read(&frame), None, "byte {at}");
            frame[at] ^= 0x40;
        }
        assert_eq!(read(&frame), Some(77));
        assert_eq!(read(&frame[..20]), None);
    }
}
