//! IPv4 packets in frames: where things are, and sums over them.
//!
//! Everything here is read from the frame of another host: what lies behind its end reads as
//! zeros or not at all, and is never written.

use std::net::{Ipv4Addr, SocketAddrV4};

use client::nf::Frame;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Length of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Length of an ARP packet.
pub const ARP: usize = 28;

/// A station's address.
pub type Mac = [u8; 6];

/// The type of a frame without tags.
#[must_use]
pub fn ethertype(frame: &[u8]) -> u16 {
    word(frame, 12)
}

/// The type behind up to two tags, and where what follows begins.
#[inline]
pub fn behind_tags(frame: &[u8]) -> (u16, usize) {
    let mut at = 12;
    while at < 20 && matches!(word(frame, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    (word(frame, at), at + 2)
}

/// A number of 16 bits; 0 behind the end.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// An address; 0.0.0.0 behind the end.
#[must_use]
pub fn ip(bytes: &[u8], at: usize) -> Ipv4Addr {
    let octets = bytes.get(at..at + 4).and_then(<[u8]>::first_chunk::<4>);
    octets.copied().unwrap_or_default().into()
}

/// An address of a station; zeros behind the end.
#[must_use]
pub fn mac(bytes: &[u8], at: usize) -> Mac {
    bytes.get(at..at + 6).and_then(<[u8]>::first_chunk::<6>).copied().unwrap_or_default()
}

/// The Internet checksum.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Two words at a time, whose carries are folded at the end (RFC 1071, 2).
    let sum: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum = sum + u64::from(u32::from_be_bytes(last));
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    !folded(u32::try_from(sum).unwrap_or(u32::MAX))
}

/// Protocols that know which of a host's programs a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Echo requests and their replies, by their identifier.
    Icmp,
    /// By ports.
    Tcp,
    /// By ports.
    Udp,
}

impl Protocol {
    /// The one of a header's protocol field.
    #[inline]
    pub fn new(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Icmp),
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// Which of the three.
    #[inline]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Length of its shortest header.
    fn header(self) -> usize {
        if self == Self::Tcp { 20 } else { 8 }
    }

    /// Where its checksum is.
    fn checksum(self) -> usize {
        match self {
            Self::Icmp => 2,
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

/// Flags of TCP, in the byte at 13.
pub mod flag {
    /// Says its last.
    pub const FIN: u8 = 1;
    /// Begins.
    pub const SYN: u8 = 2;
    /// Breaks off.
    pub const RST: u8 = 4;
    /// Has heard something.
    pub const ACK: u8 = 16;
}

/// Types of ICMP messages.
pub mod icmp {
    /// The answer to [`ECHO`].
    pub const ECHO_REPLY: u8 = 0;
    /// An error: it did not arrive, or only a smaller packet would.
    pub const UNREACHABLE: u8 = 3;
    /// Asks for an answer.
    pub const ECHO: u8 = 8;
    /// An error: it went too far.
    pub const TIME_EXCEEDED: u8 = 11;
    /// An error: it makes no sense.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Does it quote a packet?
    pub fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// One end of what is said: an address, and a port or an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// The host.
    pub ip: Ipv4Addr,
    /// The program on it; 0 where there is none to be seen.
    pub port: u16,
}

impl End {
    /// A number of its own, with the protocol.
    #[inline]
    pub fn key(self, protocol: Protocol) -> u64 {
        let [port, ip] = [u64::from(self.port), u64::from(u32::from(self.ip))];
        u64::from(protocol.number()) << 48 | ip << 16 | port
    }
}

impl From<SocketAddrV4> for End {
    fn from(address: SocketAddrV4) -> Self {
        Self { ip: *address.ip(), port: address.port() }
    }
}

/// Which end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Whose it is.
    Src,
    /// Who it is for.
    Dst,
}

/// Why something is no packet to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The frame is of another type.
    Other,
    /// The packet is cut off, or its header is invalid.
    Broken,
}

/// Where the parts of an IPv4 packet are.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Where its header begins.
    pub l3: usize,
    /// Where that of its protocol does.
    pub l4: usize,
    /// Where it ends, or what there is of it.
    pub end: usize,
    /// What it is part of.
    pub piece: Piece,
}

/// Part of what a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// All.
    Whole,
    /// The beginning: it has the ports.
    First,
    /// Another.
    Later,
}

impl Packet {
    /// The one in a frame, behind up to two tags.
    // Always, because who gets it through memory waits until its parts are written.
    #[inline(always)]
    pub fn in_frame(frame: &Frame<'_>) -> Result<Self, Unread> {
        let bytes = frame.bytes();
        let packet = match behind_tags(bytes) {
            (0x0800, l3) => Self::at(bytes, l3)?,
            _ => return Err(Unread::Other),
        };
        let has_all = packet.l3 + packet.total(bytes) <= bytes.len();
        if frame.is_whole() && !has_all { Err(Unread::Broken) } else { Ok(packet) }
    }

    /// The one that begins here; it may be cut behind its header.
    #[inline]
    pub fn at(bytes: &[u8], l3: usize) -> Result<Self, Unread> {
        let first = bytes.get(l3).copied().unwrap_or(0);
        let header = usize::from(first & 0xf) * 4;
        let (l4, total) = (l3 + header, usize::from(word(bytes, l3 + 2)));
        if first >> 4 != 4 || header < IPV4 || total < header || l4 > bytes.len() {
            return Err(Unread::Broken);
        }
        let piece = match word(bytes, l3 + 6) & 0x3fff {
            0 => Piece::Whole,
            0x2000 => Piece::First,
            _ => Piece::Later,
        };
        Ok(Self { l3, l4, end: bytes.len().min(l3 + total), piece })
    }

    /// The packet that an ICMP error is about, with ports, if it is of a protocol that has such.
    pub fn quoted(&self, bytes: &[u8]) -> Result<(Self, Protocol), Unread> {
        let quoted = Self::at(bytes, self.l4 + 8)?;
        let protocol = Protocol::new(quoted.protocol(bytes)).ok_or(Unread::Other)?;
        let is_readable = quoted.piece != Piece::Later && quoted.l4 + 8 <= quoted.end;
        let is_echo = || matches!(bytes[quoted.l4], icmp::ECHO | icmp::ECHO_REPLY);
        if !is_readable || protocol == Protocol::Icmp && !is_echo() {
            return Err(Unread::Broken);
        }
        Ok((quoted, protocol))
    }

    /// The total length by the header.
    fn total(&self, bytes: &[u8]) -> usize {
        usize::from(word(bytes, self.l3 + 2))
    }

    /// Number of its protocol.
    #[inline]
    pub fn protocol(&self, bytes: &[u8]) -> u8 {
        bytes[self.l3 + 9]
    }

    /// An address of it.
    #[inline]
    pub fn ip(&self, bytes: &[u8], side: Side) -> Ipv4Addr {
        ip(bytes, self.l3 + 12 + 4 * side as usize)
    }

    /// What pieces of one packet share, beside addresses and protocol.
    pub fn identification(&self, bytes: &[u8]) -> u16 {
        word(bytes, self.l3 + 4)
    }

    /// Is its protocol's header there?
    #[inline]
    pub fn has_header(&self, protocol: Protocol) -> bool {
        self.l4 + protocol.header() <= self.end
    }

    /// Where its port of this side is; echo requests and replies have one identifier.
    fn port_at(&self, protocol: Protocol, side: Side) -> usize {
        self.l4 + if protocol == Protocol::Icmp { 4 } else { 2 * side as usize }
    }

    /// An end of it; a later piece has no ports.
    #[inline]
    pub fn end_of(&self, bytes: &[u8], protocol: Protocol, side: Side) -> End {
        End { ip: self.ip(bytes, side), port: word(bytes, self.port_at(protocol, side)) }
    }

    /// Gives it another address on one side, and keeps its header's sum.
    #[inline]
    pub fn set_ip(&self, bytes: &mut [u8], side: Side, ip: Ipv4Addr) -> Delta {
        let (mut delta, at) = (Delta::default(), self.l3 + 12 + 4 * side as usize);
        for (part, octets) in ip.octets().chunks(2).enumerate() {
            delta.put(bytes, at + 2 * part, word(octets, 0));
        }
        let sum = delta.apply(word(bytes, self.l3 + 10));
        bytes[self.l3 + 10..self.l3 + 12].copy_from_slice(&sum.to_be_bytes());
        delta
    }

    /// Gives it another end, and keeps all sums; returns what the change does to a sum that goes
    /// over all of the packet. For what has its protocol's ports.
    pub fn set_end(&self, bytes: &mut [u8], protocol: Protocol, side: Side, to: End) -> Delta {
        let before = word(bytes, self.l3 + 10);
        let addresses = self.set_ip(bytes, side, to.ip);
        let mut all = addresses;
        all.changed(before, word(bytes, self.l3 + 10));
        let mut ports = Delta::default();
        ports.put(bytes, self.port_at(protocol, side), to.port);
        all = all.and(ports);
        // Over a pseudo-header with the addresses, but for ICMP.
        let covered = if protocol == Protocol::Icmp { ports } else { ports.and(addresses) };
        all.and(self.keep_sum(bytes, protocol, covered))
    }

    /// Keeps its protocol's checksum after changes, if it has one and it is there.
    pub fn keep_sum(&self, bytes: &mut [u8], protocol: Protocol, changes: Delta) -> Delta {
        let (mut delta, at) = (Delta::default(), self.l4 + protocol.checksum());
        let sum = word(bytes, at);
        // A UDP checksum of 0 says that there is none (RFC 768); all ones is the same number.
        let is_udp = protocol == Protocol::Udp;
        if at + 2 <= self.end && !(is_udp && sum == 0) {
            let new = changes.apply(sum);
            delta.put(bytes, at, if is_udp && new == 0 { u16::MAX } else { new });
        }
        delta
    }
}

/// What a change of words does to the checksums over them (RFC 1624, equation 3).
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u32);

impl Delta {
    /// Writes a word.
    #[inline]
    fn put(&mut self, bytes: &mut [u8], at: usize, new: u16) {
        self.changed(word(bytes, at), new);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
    }

    #[inline]
    fn changed(&mut self, old: u16, new: u16) {
        self.0 += u32::from(!old) + u32::from(new);
    }

    /// Both changes.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after it.
    #[inline]
    pub fn apply(self, sum: u16) -> u16 {
        !folded(u32::from(!sum) + self.0)
    }
}

/// A sum with its carries added to it.
#[inline]
fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(u16::MAX)
}

/// An Ethernet header and what follows.
#[must_use]
pub fn ethernet(dst: Mac, src: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&dst[..], &src[..], &ethertype.to_be_bytes()[..], payload].concat()
}

/// An ARP packet for IPv4: 1 asks, 2 answers.
#[must_use]
pub fn arp(operation: u8, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &from.0, &from.1.octets(), &to.0, &to.1.octets()].concat()
}

/// An IPv4 packet.
#[must_use]
pub fn ipv4(protocol: u8, src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(IPV4 + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut packet = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(src.octets().iter().chain(&dst.octets()));
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    packet
}

/// An ICMP message about a packet.
#[must_use]
pub fn icmp_error(kind: u8, code: u8, about: &[u8]) -> Vec<u8> {
    let quoted = &about[..about.len().min(IPV4 + 8)];
    let mut message = [&[kind, code, 0, 0, 0, 0, 0, 0][..], quoted].concat();
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_checksum_is_that_of_the_words_one_by_one() {
        let by_words = |bytes: &[u8]| {
            let words = bytes.chunks(2).map(|pair| {
                u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
            });
            !folded(words.sum())
        };
        let bytes: Vec<u8> = (0..64u8).map(|n| n.wrapping_mul(0x9d) ^ 0xc5).collect();
        for (from, to) in (0..8).flat_map(|from| (from..64).map(move |to| (from, to))) {
            assert_eq!(checksum(&bytes[from..to]), by_words(&bytes[from..to]), "{from}..{to}");
        }
        assert_eq!(
            [checksum(&[0; 20]), checksum(&[0xff; 1514]), checksum(&[])],
            [0xffff, 0, 0xffff]
        );
    }
}
