//! Partial checksums that no header announces.
//!
//! A stack that leaves a checksum to its card writes the sum of the pseudo-header into the field,
//! and notes beside the frame that the rest is missing. By AF_XDP a frame comes without the note.
//! It can be told by the field: where that is the sum of the pseudo-header, the checksum is
//! completed. A finished frame whose checksum happens to be that number comes out as it was, for
//! the completed sum of a right frame is the one that it has.

use super::{ETHERNET, IPV4_MIN, IPV6, Ip, TCP_CHECKSUM, UDP_CHECKSUM, big, network};
use crate::checksum::Sum;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// More fragments, and the offset of this one.
const FRAGMENT: u16 = 0x3fff;

/// A frame with a partial checksum: given its pieces, in order, it says how that ends.
#[derive(Clone, Copy, Debug)]
pub struct PartialChecksum {
    /// Where the field is.
    at: usize,
    /// What is summed.
    start: usize,
    end: usize,
    /// How far the frame has been seen, and its sum.
    seen: usize,
    sum: Sum,
}

impl PartialChecksum {
    /// Looks at the headers, in the first piece of a frame.
    #[must_use]
    pub fn find(head: &[u8]) -> Option<Self> {
        let (ip, l3) = network(head)?;
        let (start, len, protocol, addresses) = match ip {
            Ip::V4 => {
                let header = head.get(l3..l3 + IPV4_MIN)?;
                let own = usize::from(header[0] & 0xf) * 4;
                let whole = big(&header[6..8]) & FRAGMENT == 0 && own >= IPV4_MIN;
                let len = usize::from(big(&header[2..4])).checked_sub(own).filter(|_| whole)?;
                (l3 + own, len, header[9], &header[12..20])
            }
            Ip::V6 => {
                let header = head.get(l3..l3 + IPV6)?;
                (l3 + IPV6, usize::from(big(&header[4..6])), header[6], &header[8..40])
            }
        };
        let at = match protocol {
            TCP => start + TCP_CHECKSUM,
            UDP => start + UDP_CHECKSUM,
            _ => return None,
        };
        let field = head.get(at..at + 2).filter(|_| at + 2 <= start + len)?;
        let pseudo = Sum::pseudo_header(addresses, protocol, u16::try_from(len).ok()?);
        debug_assert!(start >= ETHERNET);
        let partial = Self { at, start, end: start + len, seen: 0, sum: Sum::default() };
        (big(field) == pseudo.fold()).then_some(partial)
    }

    /// The next piece of the frame.
    pub fn add(&mut self, piece: &[u8]) {
        let (from, to) = (self.seen, self.seen + piece.len());
        let (first, last) = (self.start.clamp(from, to), self.end.clamp(from, to));
        let sum = Sum::of(&piece[first - from..last - from]);
        // A piece that begins inside of a word has its bytes the other way round.
        let is_odd = first > self.start && !(first - self.start).is_multiple_of(2);
        self.sum = self.sum.and(if is_odd { sum.at_odd() } else { sum });
        self.seen = to;
    }

    /// The checksum and where it belongs, in the first piece; none if the frame ends before its
    /// packet does.
    #[must_use]
    pub fn checksum(&self) -> Option<(usize, [u8; 2])> {
        let whole = self.seen >= self.end;
        whole.then(|| (self.at, self.sum.nonzero_checksum().to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram whose checksum is partial.
    fn datagram(v6: bool, payload: &[u8]) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        let len = u16::try_from(8 + payload.len()).unwrap();
        let mut pseudo = vec![0, UDP];
        pseudo.extend(len.to_be_bytes());
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([UDP, 64]);
            frame.extend([[0xfd; 16], [0xfe; 16]].concat());
            pseudo.extend([[0xfd; 16], [0xfe; 16]].concat());
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((len + 20).to_be_bytes());
            frame.extend([0, 1, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            pseudo.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let l4 = frame.len();
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        frame.extend(len.to_be_bytes());
        frame.extend(Sum::of(&pseudo).fold().to_be_bytes());
        frame.extend(payload);
        (frame, l4)
    }

    fn completed(frame: &[u8], pieces: usize) -> Option<Vec<u8>> {
        let mut frame = frame.to_vec();
        let mut partial = PartialChecksum::find(&frame[..frame.len().min(pieces.max(80))])?;
        frame.chunks(pieces).for_each(|piece| partial.add(piece));
        let (at, sum) = partial.checksum()?;
        frame[at..at + 2].copy_from_slice(&sum);
        Some(frame)
    }

    /// The sum over the pseudo-header and the datagram is all ones.
    fn is_right(frame: &[u8], l4: usize, v6: bool) -> bool {
        let addresses = if v6 { l4 - 32..l4 } else { l4 - 8..l4 };
        let len = u16::try_from(frame.len() - l4).unwrap();
        let pseudo = Sum::pseudo_header(&frame[addresses], UDP, len);
        pseudo.and(Sum::of(&frame[l4..])).fold() == 0xffff
    }

    #[test]
    fn what_was_begun_is_completed_in_pieces_of_any_length_and_only_once() {
        for (v6, len) in [(false, 0), (false, 1), (true, 7), (true, 1000), (false, 1471)] {
            let payload: Vec<u8> = (0..len).map(|i: u32| i.to_le_bytes()[0] ^ 0xa5).collect();
            let (frame, l4) = datagram(v6, &payload);
            assert!(!is_right(&frame, l4, v6));
            for pieces in [usize::MAX, 80, 81, 101, 256] {
                let whole = completed(&frame, pieces.min(frame.len())).unwrap();
                assert!(is_right(&whole, l4, v6), "{v6} {len} {pieces}");
            }
            let once = completed(&frame, frame.len()).unwrap();
            let twice = completed(&once, once.len()).unwrap_or_else(|| once.clone());
            assert_eq!(once, twice);
        }
    }

    #[test]
    fn a_right_frame_that_looks_begun_stays_as_it_is() {
        let found = (0..=u16::MAX).find_map(|number| {
            let (frame, _) = datagram(false, &number.to_be_bytes());
            completed(&frame, frame.len()).filter(|done| *done == frame)
        });
        assert!(found.is_some(), "one of them has the sum of its pseudo-header");
    }

    #[test]
    fn other_frames_are_left_alone() {
        let (frame, l4) = datagram(false, &[7; 100]);
        for cut in 0..frame.len() {
            assert!(completed(&frame[..cut], cut.max(1)).is_none(), "{cut}");
        }
        let fragment = [&frame[..20], &[0x20], &frame[21..]].concat();
        assert!(PartialChecksum::find(&fragment).is_none());
        let icmp = [&frame[..23], &[1], &frame[24..]].concat();
        assert!(PartialChecksum::find(&icmp).is_none());
        let none = [&frame[..l4 + 6], &[0, 0], &frame[l4 + 8..]].concat();
        assert!(PartialChecksum::find(&none).is_none(), "UDP without a checksum");
        assert!(PartialChecksum::find(&[]).is_none());
    }
}
