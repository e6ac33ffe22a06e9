//! Runs of TCP segments whose headers are not filled in.
//!
//! A driver that leaves segmentation to its card writes one header for all segments, without what
//! differs from one to the next: the lengths of IP, the checksums, and in the pseudo-header the
//! length of the segment. A virtio-net header promises more: a header that is right for the whole
//! run, but for the checksum of TCP, which is begun.

use super::{
    CWR, IPV4_MIN, IPV6, Ip, OffloadError, PendingOffload, TCP_CHECKSUM, TCP_MIN, network, put,
    tcp_len, vnet,
};
use crate::checksum::{Sum, checksum};

const TCP: u8 = 6;
/// The byte of the TCP header with the flags.
const FLAGS: usize = 13;

/// A run, as its sender says: where its headers begin and end, and the payload of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRun {
    /// Where the IP header begins.
    pub l3: usize,
    /// Where the TCP header begins.
    pub l4: usize,
    /// Where the payload begins.
    pub payload: usize,
    /// Bytes of payload in each segment.
    pub size: usize,
}

impl TcpRun {
    /// Fills in the headers in `head`, the first bytes of a frame of `bytes` bytes; returns what is
    /// left to do. If all of it fits one segment, that is the checksum alone.
    ///
    /// # Errors
    /// [`OffloadError`]: the headers are not where the sender says, or lie outside of `head`.
    pub fn fill_in(self, head: &mut [u8], bytes: usize) -> Result<PendingOffload, OffloadError> {
        let ip = self.ip(head, bytes).ok_or(OffloadError)?;
        let Self { l3, l4, payload, size } = self;
        let len = |from: usize| u16::try_from(bytes - from).map_err(|_| OffloadError);
        let (l3_len, l4_len) = (len(l3)?, len(l4)?);
        let addresses = match ip {
            Ip::V4 => {
                put(head, l3 + 2, l3_len.into());
                put(head, l3 + 10, 0);
                let sum = checksum(&head[l3..l4]);
                put(head, l3 + 10, sum.into());
                l3 + 12..l3 + 20
            }
            Ip::V6 => {
                put(head, l3 + 4, usize::from(l3_len) - IPV6);
                l3 + 8..l3 + 40
            }
        };
        let pseudo = Sum::pseudo_header(&head[addresses], TCP, l4_len);
        put(head, l4 + TCP_CHECKSUM, pseudo.fold().into());
        let mut left = PendingOffload::partial(l4, TCP_CHECKSUM, bytes)?;
        if bytes - payload > size {
            let kind = if ip == Ip::V4 { vnet::GSO_TCPV4 } else { vnet::GSO_TCPV6 };
            let mark = if head[l4 + FLAGS] & CWR == 0 { 0 } else { vnet::GSO_ECN };
            left.0[vnet::GSO_TYPE] = kind | mark;
            left.set(vnet::HDR_LEN, payload);
            left.set(vnet::GSO_SIZE, size);
        }
        PendingOffload::read(left.0, bytes)?.ok_or(OffloadError)
    }

    /// The kind of IP, if the headers are where they should be, and whole in `head`.
    fn ip(&self, head: &[u8], bytes: usize) -> Option<Ip> {
        let Self { l3, l4, payload, .. } = *self;
        let (ip, at) = network(head)?;
        let room = payload <= head.len() && payload <= bytes && l4 + TCP_MIN <= payload;
        if at != l3 || !room || l4 + tcp_len(head, l4) != payload {
            return None;
        }
        let is_whole = match ip {
            Ip::V4 => {
                let header = usize::from(head.get(l3)? & 0xf) * 4;
                header >= IPV4_MIN && l3 + header == l4
            }
            // Extensions lie between the two.
            Ip::V6 => l3 + IPV6 <= l4,
        };
        is_whole.then_some(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{Offloads, Segmenter};

    /// Headers of IPv4 or IPv6 behind this many tags, and of TCP, and a payload.
    fn frame(ip: Ip, tags: usize, payload: usize) -> (Vec<u8>, TcpRun) {
        let mut bytes = vec![2; 12];
        bytes.extend([0x81, 0, 0, 5].repeat(tags));
        let l3 = bytes.len() + 2;
        if ip == Ip::V4 {
            bytes.extend([8, 0, 0x45, 0, 0xee, 0xee, 0, 1, 0x40, 0, 64, 6, 0xee, 0xee]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0xee, 0xee, 6, 64]);
            bytes.extend([[0xfd; 16], [0xfe; 16]].concat());
        }
        let l4 = bytes.len();
        bytes.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 9, 0x50, 0x18, 1, 1, 0xee, 0xee, 0, 0]);
        let run = TcpRun { l3, l4, payload: bytes.len(), size: 1000 };
        bytes.resize(bytes.len() + payload, 0x5a);
        (bytes, run)
    }

    fn is_right(ip: Ip, run: TcpRun, bytes: &[u8]) -> bool {
        let (l3, l4) = (run.l3, run.l4);
        let addresses = if ip == Ip::V4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
        let len = u16::try_from(bytes.len() - l4).unwrap();
        let pseudo = Sum::pseudo_header(&bytes[addresses], TCP, len);
        let header = ip == Ip::V6 || checksum(&bytes[l3..l4]) == 0;
        header && pseudo.and(Sum::of(&bytes[l4..])).fold() == 0xffff
    }

    #[test]
    fn a_run_that_is_filled_in_becomes_right_segments() {
        for (ip, tags, payload) in
            [(Ip::V4, 0, 2500), (Ip::V4, 2, 2500), (Ip::V6, 1, 60_000), (Ip::V6, 0, 1000)]
        {
            let (mut bytes, run) = frame(ip, tags, payload);
            let (len, head) = (bytes.len(), run.payload);
            let left = run.fill_in(&mut bytes[..head], len).unwrap();
            let tso = if ip == Ip::V4 { Offloads::TSO4 } else { Offloads::TSO6 };
            assert_eq!(left.left().contain(tso), payload > 1000);
            assert!(left.is_behind(&bytes));
            let mut segmenter = Segmenter::new(left, &mut bytes).unwrap();
            let mut count = 0;
            while let Some(pieces) = segmenter.next(&mut bytes) {
                assert!(is_right(ip, run, &pieces.concat()));
                count += 1;
            }
            assert_eq!(count, payload.div_ceil(1000));
        }
    }

    #[test]
    fn a_mark_of_congestion_is_told() {
        let (mut bytes, run) = frame(Ip::V4, 0, 2500);
        bytes[run.l4 + FLAGS] |= CWR;
        let len = bytes.len();
        assert!(run.fill_in(&mut bytes, len).unwrap().left().contain(Offloads::ECN));
    }

    #[test]
    fn headers_that_are_elsewhere_are_refused() {
        for ip in [Ip::V4, Ip::V6] {
            let (bytes, run) = frame(ip, 0, 2500);
            let changes: [fn(&mut TcpRun); 9] = [
                |run| run.l3 = 18,
                |run| run.l3 = usize::MAX / 2,
                |run| run.l4 -= 4,
                |run| run.l4 = 0,
                |run| run.l4 = 10_000,
                |run| run.payload += 4,
                |run| run.payload = run.l4 + 16,
                |run| run.payload = 10_000,
                |run| run.size = 0,
            ];
            for (number, change) in changes.into_iter().enumerate() {
                let (mut bytes, mut run) = (bytes.clone(), run);
                change(&mut run);
                let len = bytes.len();
                assert_eq!(run.fill_in(&mut bytes, len), Err(OffloadError), "{number}");
            }
            // The head is shorter than the headers, or the run longer than IP can say.
            for (head, len) in [(run.payload - 1, bytes.len()), (run.payload, 70_000)] {
                let mut bytes = bytes.clone();
                assert_eq!(run.fill_in(&mut bytes[..head], len), Err(OffloadError));
            }
        }
    }
}
