//! Offloads: checksums and segmentation that a sender left to its network card.
//!
//! A host's stack hands out frames that are not yet what will be on the wire. The checksum is
//! partial, or one frame is a whole run of TCP segments or UDP datagrams under one header (GSO).
//! The virtio-net header, 10 bytes in front of the frame, says which. Ports that understand that
//! header pass such frames on as they are, with what is left to do ([`PendingOffload`]). For a
//! destination that does not accept an [offload](Offloads), a [`Segmenter`] does it in software,
//! in place and one frame at a time:
//!
//! ```text
//!  pending │ Ethernet │ IP │ TCP │ payload payload payload │
//!             rewritten for each segment ─┐     │
//!  given   │ Ethernet │ IP │ TCP │        └─ payload │     [head, part of the payload]
//! ```
//!
//! The fields come from an untrusted sender, so every offset is bounded before it is used, and
//! what makes no sense is refused.

pub mod partial;
pub mod run;

use std::ops::Range;

use crate::bytes::u16_at;
use crate::checksum::{Sum, checksum};
use crate::ethernet::{EtherType, field, network_header};

/// Bytes of a virtio-net header without the number of buffers.
pub const VNET_LEN: usize = 10;

/// Fields of the virtio-net header (VirtIO 1.3, 5.1.6), in the machine's order as Linux gives it.
mod vnet {
    use std::ops::Range;

    pub const FLAGS: usize = 0;
    pub const NEEDS_CSUM: u8 = 1;
    /// Nothing is left: the sender's card has checked the checksum, and it was right.
    pub const DATA_VALID: u8 = 2;
    pub const GSO_TYPE: usize = 1;
    pub const GSO_NONE: u8 = 0;
    pub const GSO_TCPV4: u8 = 1;
    pub const GSO_TCPV6: u8 = 4;
    pub const GSO_UDP_L4: u8 = 5;
    /// The run carries a mark of congestion; it stays on the first segment.
    pub const GSO_ECN: u8 = 0x80;
    pub const HDR_LEN: Range<usize> = 2..4;
    pub const GSO_SIZE: Range<usize> = 4..6;
    pub const CSUM_START: Range<usize> = 6..8;
    pub const CSUM_OFFSET: Range<usize> = 8..10;
}

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV4_MIN: usize = 20;
const IPV6: usize = 40;
const TCP_MIN: usize = 20;
const UDP: usize = 8;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Flags that only the last segment of a run has, and only the first.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The frame is of a kind that we cannot finish, or nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadError;

/// A frame that is given out as it will be on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    segments: Option<Segments>,
    /// Where the payload goes on that is to be given out next; without segments: 0.
    at: usize,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segments {
    ip: Ip,
    transport: Transport,
    /// Where the network header begins, and the transport header.
    l3: usize,
    l4: usize,
    /// Where the payload begins.
    payload: usize,
    /// Payload of each segment but the last.
    size: usize,
    tcp_flags: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// Most segments of one run: 64 KiB, 32 bytes each. More are work out of proportion.
pub const SEGMENTS_MAX: usize = 2048;

/// What is left to do to a frame: the header of virtio-net, with nothing in it that lies outside
/// of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingOffload([u8; VNET_LEN]);

/// Things that may be left to a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads(u8);

impl Offloads {
    /// None: it gets finished frames.
    pub const NONE: Self = Self(0);
    /// Partial checksums.
    pub const CHECKSUM: Self = Self(1);
    /// Runs of TCP segments over IPv4.
    pub const TSO4: Self = Self(2);
    /// Runs of TCP segments over IPv6.
    pub const TSO6: Self = Self(4);
    /// Runs with marks of congestion.
    pub const ECN: Self = Self(8);
    /// Runs of UDP datagrams, over both.
    pub const USO: Self = Self(16);
    /// All.
    pub const ALL: Self = Self(31);

    /// The offloads of both sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// The offloads of this set that `others` lacks.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Whether all of `others` are among these.
    #[must_use]
    pub const fn contain(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Whether the header asks for a checksum or segmentation.
#[inline]
#[must_use]
pub fn needs_offload(header: &[u8; VNET_LEN]) -> bool {
    header[vnet::FLAGS] & vnet::NEEDS_CSUM != 0 || header[vnet::GSO_TYPE] != vnet::GSO_NONE
}

impl PendingOffload {
    /// What a header says of the frame of this many bytes behind it. `None`: nothing.
    ///
    /// # Errors
    /// [`OffloadError`]: nonsense, whatever the frame is; to be dropped.
    pub fn read(header: [u8; VNET_LEN], bytes: usize) -> Result<Option<Self>, OffloadError> {
        let flags = header[vnet::FLAGS] & (vnet::NEEDS_CSUM | vnet::DATA_VALID);
        let needs_checksum = flags & vnet::NEEDS_CSUM != 0;
        if !needs_offload(&header) {
            let mut valid = [0; VNET_LEN];
            valid[vnet::FLAGS] = flags;
            return Ok((flags != 0).then_some(Self(valid)));
        }
        let mut this = Self(header);
        this.0[vnet::FLAGS] = vnet::NEEDS_CSUM;
        let (start, offset) = (this.start(), this.number(vnet::CSUM_OFFSET));
        if !needs_checksum || start < ETHERNET || start + offset + 2 > bytes {
            return Err(OffloadError);
        }
        if this.kind() != vnet::GSO_NONE {
            let known = [vnet::GSO_TCPV4, vnet::GSO_TCPV6, vnet::GSO_UDP_L4].contains(&this.kind());
            if !known || this.size() == 0 || this.segments(bytes) > SEGMENTS_MAX {
                return Err(OffloadError);
            }
        } else {
            this.0[vnet::GSO_TYPE] = vnet::GSO_NONE;
        }
        let head = this.number(vnet::HDR_LEN).min(bytes);
        this.set(vnet::HDR_LEN, head);
        Ok(Some(this))
    }

    /// A checksum that is left, in a frame of this many bytes: from `start` on, to be written
    /// `offset` bytes behind that.
    ///
    /// # Errors
    /// [`OffloadError`]: it lies outside of the frame.
    pub fn partial(start: usize, offset: usize, bytes: usize) -> Result<Self, OffloadError> {
        let mut this = Self([0; VNET_LEN]);
        this.0[vnet::FLAGS] = vnet::NEEDS_CSUM;
        this.set(vnet::CSUM_START, start);
        this.set(vnet::CSUM_OFFSET, offset);
        Self::read(this.0, bytes)?.ok_or(OffloadError)
    }

    /// Whether the checksum lies behind the headers that `head`, the first bytes of the frame,
    /// shows: Ethernet, all tags, IP. A field in front of that would let the sender change a tag or
    /// an address that was decided by.
    #[must_use]
    pub fn is_behind(self, head: &[u8]) -> bool {
        !self.needs_checksum() || self.start() >= transport_min(head)
    }

    /// The header.
    #[must_use]
    pub fn bytes(self) -> [u8; VNET_LEN] {
        self.0
    }

    /// The header that one client gets from another, in front of a frame that began with `head` and
    /// gets this many bytes more in front of its network header. It is passed on as it is, but for
    /// where the checksum lies. Zeros replace a header that does not lie [behind](Self::is_behind)
    /// the others.
    #[must_use]
    pub fn pass_on(header: [u8; VNET_LEN], head: &[u8], bytes: isize) -> [u8; VNET_LEN] {
        let this = Self(header);
        if !this.is_behind(head) {
            return [0; VNET_LEN];
        }
        if bytes == 0 { header } else { this.moved(bytes).0 }
    }

    /// What the receiver of the frame, or the switch before it, has to do.
    #[must_use]
    pub fn left(self) -> Offloads {
        let checksum = if self.needs_checksum() { Offloads::CHECKSUM } else { Offloads::NONE };
        let mark = self.0[vnet::GSO_TYPE] & vnet::GSO_ECN != 0;
        let mark = if mark { Offloads::ECN } else { Offloads::NONE };
        let run = match self.kind() {
            vnet::GSO_TCPV4 => Offloads::TSO4,
            vnet::GSO_TCPV6 => Offloads::TSO6,
            vnet::GSO_UDP_L4 => Offloads::USO,
            _ => Offloads::NONE,
        };
        checksum.and(mark).and(run)
    }

    /// How many frames a run of this many bytes becomes, or fewer.
    #[must_use]
    pub fn segments(self, bytes: usize) -> usize {
        let payload = bytes.saturating_sub(self.start() + UDP);
        if self.kind() == vnet::GSO_NONE { 1 } else { payload.div_ceil(self.size()).max(1) }
    }

    /// Bytes of the longest of them, or fewer: what the destination's MTU has to allow.
    #[must_use]
    pub fn longest(self, bytes: usize) -> usize {
        let head = self.start() + if self.kind() == vnet::GSO_UDP_L4 { UDP } else { TCP_MIN };
        if self.kind() == vnet::GSO_NONE { bytes } else { bytes.min(head + self.size()) }
    }

    /// The offload of a frame that gets this many bytes more in front of its network header.
    #[must_use]
    pub fn moved(mut self, bytes: isize) -> Self {
        if self.needs_checksum() {
            let moved = |at: usize| at.saturating_add_signed(bytes).max(ETHERNET);
            let (start, head) = (moved(self.start()), moved(self.number(vnet::HDR_LEN)));
            self.set(vnet::CSUM_START, start);
            self.set(vnet::HDR_LEN, head);
        }
        self
    }

    fn needs_checksum(self) -> bool {
        self.0[vnet::FLAGS] & vnet::NEEDS_CSUM != 0
    }

    fn kind(self) -> u8 {
        self.0[vnet::GSO_TYPE] & !vnet::GSO_ECN
    }

    fn start(self) -> usize {
        self.number(vnet::CSUM_START)
    }

    fn size(self) -> usize {
        self.number(vnet::GSO_SIZE)
    }

    fn number(self, field: Range<usize>) -> usize {
        usize::from(native(&self.0[field]))
    }

    fn set(&mut self, field: Range<usize>, value: usize) {
        let value = u16::try_from(value).unwrap_or(u16::MAX);
        self.0[field].copy_from_slice(&value.to_ne_bytes());
    }
}

impl Segmenter {
    /// Begins with a frame and what is left to do to it; a checksum is completed at once.
    ///
    /// # Errors
    /// [`OffloadError`]: to be dropped.
    pub fn new(offload: PendingOffload, frame: &mut [u8]) -> Result<Self, OffloadError> {
        let whole = Self { segments: None, at: 0, done: false };
        if !offload.is_behind(frame) {
            return Err(OffloadError);
        }
        if offload.kind() == vnet::GSO_NONE {
            if offload.needs_checksum() {
                complete(frame, offload.start(), offload.number(vnet::CSUM_OFFSET))?;
            }
            return Ok(whole);
        }
        let segments = Segments::new(offload.kind(), frame, offload.start(), offload.size())?;
        Ok(Self { segments: Some(segments), at: segments.payload, done: false })
    }

    /// The next frame, in two pieces; `frame` is the one it was begun with, of which this changes
    /// the headers.
    pub fn next<'a>(&mut self, frame: &'a mut [u8]) -> Option<[&'a [u8]; 2]> {
        if std::mem::replace(&mut self.done, true) {
            return None;
        }
        let Some(segments) = &self.segments else { return Some([frame, &[]]) };
        let from = self.at;
        let end = (from + segments.size).min(frame.len());
        segments.write_head(frame, from, end);
        (self.at, self.done) = (end, end == frame.len());
        let (head, _) = frame.split_at(segments.payload);
        Some([head, &frame[from..end]])
    }

    /// The length of the longest frame that [`next`](Self::next) will give.
    #[must_use]
    pub fn longest(&self, frame: &[u8]) -> usize {
        self.segments.map_or(frame.len(), |s| frame.len().min(s.payload + s.size))
    }
}

impl Segments {
    fn new(kind: u8, frame: &[u8], l4: usize, size: usize) -> Result<Self, OffloadError> {
        let (ip, transport) = match kind {
            vnet::GSO_TCPV4 => (Ip::V4, Transport::Tcp),
            vnet::GSO_TCPV6 => (Ip::V6, Transport::Tcp),
            vnet::GSO_UDP_L4 => (network(frame).ok_or(OffloadError)?.0, Transport::Udp),
            _ => return Err(OffloadError),
        };
        let (found, l3) = network(frame).ok_or(OffloadError)?;
        let min = if ip == Ip::V4 { IPV4_MIN } else { IPV6 };
        if found != ip || size == 0 || l4 < l3 + min || frame.len() < l4 + TCP_MIN.max(UDP) {
            return Err(OffloadError);
        }
        // The checksum of the network header covers what its own length says.
        let header_len = usize::from(frame[l3] & 0xf) * 4;
        let header = if transport == Transport::Udp { UDP } else { tcp_len(frame, l4) };
        let payload = l4 + header;
        let whole = (ip == Ip::V6 || header_len == l4 - l3)
            && (transport == Transport::Udp || header >= TCP_MIN)
            && payload < frame.len();
        if !whole {
            return Err(OffloadError);
        }
        let tcp_flags = if transport == Transport::Tcp { frame[l4 + 13] } else { 0 };
        Ok(Self { ip, transport, l3, l4, payload, size, tcp_flags })
    }

    /// Makes the headers those of the segment with the payload `from..end`. They are those of the
    /// segment before, or of the whole run.
    fn write_head(&self, frame: &mut [u8], from: usize, end: usize) {
        let (first, last) = (from == self.payload, end == frame.len());
        let (l3, l4, l4_len) = (self.l3, self.l4, self.payload - self.l4 + (end - from));
        match self.ip {
            Ip::V4 => {
                put(frame, l3 + 2, l4 - l3 + l4_len);
                if !first {
                    let id = big(&frame[l3 + 4..l3 + 6]).wrapping_add(1);
                    put(frame, l3 + 4, usize::from(id));
                }
                put(frame, l3 + 10, 0);
                let sum = checksum(&frame[l3..l4]);
                put(frame, l3 + 10, usize::from(sum));
            }
            Ip::V6 => put(frame, l3 + 4, l4 - l3 - IPV6 + l4_len),
        }
        let at = match self.transport {
            Transport::Tcp => {
                if !first {
                    let size = u32::try_from(self.size).expect("16 bits");
                    let old = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().expect("4"));
                    frame[l4 + 4..l4 + 8].copy_from_slice(&old.wrapping_add(size).to_be_bytes());
                }
                let later = if first { 0 } else { CWR };
                let earlier = if last { 0 } else { FIN_PSH };
                frame[l4 + 13] = self.tcp_flags & !later & !earlier;
                l4 + TCP_CHECKSUM
            }
            Transport::Udp => {
                put(frame, l4 + 4, l4_len);
                l4 + UDP_CHECKSUM
            }
        };
        put(frame, at, 0);
        let header = self.pseudo(frame, l4_len).and(Sum::of(&frame[l4..self.payload]));
        // The header's length is even, so the payload begins a new word.
        let total = header.and(Sum::of(&frame[from..end])).nonzero_checksum();
        put(frame, at, usize::from(total));
    }

    /// The sum of the pseudo-header.
    fn pseudo(&self, frame: &[u8], l4_len: usize) -> Sum {
        let addresses = match self.ip {
            Ip::V4 => self.l3 + 12..self.l3 + 20,
            Ip::V6 => self.l3 + 8..self.l3 + 40,
        };
        let protocol = if self.transport == Transport::Tcp { 6 } else { 17 };
        let len = u16::try_from(l4_len).unwrap_or(u16::MAX);
        Sum::pseudo_header(&frame[addresses], protocol, len)
    }
}

/// Completes a partial checksum: the field holds the sum of the pseudo-header.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> Result<(), OffloadError> {
    let at = start + offset;
    debug_assert!(start >= ETHERNET, "the caller has looked");
    if at + 2 > frame.len() {
        return Err(OffloadError);
    }
    let total = Sum::of(&frame[start..]).nonzero_checksum();
    put(frame, at, usize::from(total));
    Ok(())
}

/// The least offset of a transport header in a frame that begins with `head`: behind all tags, and
/// behind the network header if that is one of IP. Of a header that `head` does not show whole,
/// the shortest one counts.
fn transport_min(head: &[u8]) -> usize {
    let mut at = field::ETHERTYPE.start;
    while EtherType(u16_at(head, at)).is_tag() {
        at += TAG;
    }
    let l3 = at + 2;
    match EtherType(u16_at(head, at)) {
        EtherType::IPV4 => {
            let own = head.get(l3).map_or(0, |first| usize::from(first & 0xf) * 4);
            l3 + own.max(IPV4_MIN)
        }
        EtherType::IPV6 => l3 + IPV6,
        _ => l3,
    }
}

/// The version of IP, and the offset of its header behind up to two tags.
fn network(frame: &[u8]) -> Option<(Ip, usize)> {
    match network_header(frame) {
        (EtherType::IPV4, at) => Some((Ip::V4, at)),
        (EtherType::IPV6, at) => Some((Ip::V6, at)),
        _ => None,
    }
}

fn tcp_len(frame: &[u8], l4: usize) -> usize {
    usize::from(frame[l4 + 12] >> 4) * 4
}

fn big(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn native(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}

fn put(frame: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests;
