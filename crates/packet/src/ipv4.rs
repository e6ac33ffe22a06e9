//! Views of IPv4 packets in frames, with TCP, UDP and ICMP: where the fields are, and how to change
//! addresses and ports so that the checksums stay right.
//!
//! A frame may be cut, or say of itself what is not so. What lies behind its end reads as zeros or
//! not at all, and is never written.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::bytes::{ipv4_at, u16_at};
use crate::checksum::Delta;
use crate::ethernet::{EtherType, network_header};

/// The length of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;

/// A transport protocol with ports, or with the identifier of an ICMP echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// ICMP echo requests and replies, which have an identifier instead of ports.
    Icmp,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The protocol with this number in the IPv4 header, if it is one of the three.
    #[inline]
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Icmp),
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// An index: 0 to 2.
    #[inline]
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The length of the shortest header.
    fn header(self) -> usize {
        if self == Self::Tcp { 20 } else { 8 }
    }

    /// The offset of the checksum in the header.
    fn checksum(self) -> usize {
        match self {
            Self::Icmp => 2,
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

/// TCP flags, in byte 13 of the header.
pub mod tcp_flag {
    /// The sender has no more data.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 2;
    /// Resets the connection.
    pub const RST: u8 = 4;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
}

/// Types of ICMP messages.
pub mod icmp {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; also "fragmentation needed".
    pub const UNREACHABLE: u8 = 3;
    /// Echo request.
    pub const ECHO: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Whether a message of this type is an error, which quotes a packet.
    #[must_use]
    pub fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// One end of a flow: an address, and a port or an echo identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// The host's address.
    pub ip: Ipv4Addr,
    /// The port, or the identifier of an echo; 0 where the packet has none.
    pub port: u16,
}

impl End {
    /// A number that no other end with another protocol, address or port has.
    #[inline]
    #[must_use]
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

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// Why a frame holds no packet that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The frame is of another EtherType, or the packet of another protocol.
    Other,
    /// The packet is cut, or its header contradicts itself.
    Malformed,
}

/// An IPv4 packet in a frame: the offsets of its parts. The caller passes the same frame to each
/// method.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The offset of the IPv4 header.
    pub l3: usize,
    /// The offset of the transport header.
    pub l4: usize,
    /// The offset of the end of the packet, or of the end of the frame if that is cut.
    pub end: usize,
    /// Whether the packet is a fragment.
    pub fragment: Fragment,
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is no fragment.
    Whole,
    /// The first fragment, which has the ports.
    First,
    /// A later fragment.
    Later,
}

impl Packet {
    /// Reads the packet in a frame, behind up to two VLAN tags. `is_whole`: the bytes are the whole
    /// frame, so a packet that is longer than they are is malformed.
    ///
    /// # Errors
    /// [`ReadError`]: the frame holds no IPv4 packet, or a malformed one.
    // Always inlined: a caller that gets the result through memory waits for the stores.
    #[inline(always)]
    pub fn in_frame(bytes: &[u8], is_whole: bool) -> Result<Self, ReadError> {
        let packet = match network_header(bytes) {
            (EtherType::IPV4, l3) => Self::at(bytes, l3)?,
            _ => return Err(ReadError::Other),
        };
        let has_all = packet.l3 + packet.total(bytes) <= bytes.len();
        if is_whole && !has_all { Err(ReadError::Malformed) } else { Ok(packet) }
    }

    /// Reads the packet that begins at `l3`; it may be cut behind its header.
    ///
    /// # Errors
    /// [`ReadError::Malformed`].
    #[inline]
    pub fn at(bytes: &[u8], l3: usize) -> Result<Self, ReadError> {
        let first = bytes.get(l3).copied().unwrap_or(0);
        let header = usize::from(first & 0xf) * 4;
        let (l4, total) = (l3 + header, usize::from(u16_at(bytes, l3 + 2)));
        if first >> 4 != 4 || header < IPV4_HEADER || total < header || l4 > bytes.len() {
            return Err(ReadError::Malformed);
        }
        let fragment = match u16_at(bytes, l3 + 6) & 0x3fff {
            0 => Fragment::Whole,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        };
        Ok(Self { l3, l4, end: bytes.len().min(l3 + total), fragment })
    }

    /// Reads the packet that an ICMP error quotes, which must have ports or an echo identifier.
    ///
    /// # Errors
    /// [`ReadError`]: the quoted packet is of another protocol, or too little of it is quoted.
    pub fn quoted(&self, bytes: &[u8]) -> Result<(Self, Protocol), ReadError> {
        let quoted = Self::at(bytes, self.l4 + 8)?;
        let protocol = Protocol::new(quoted.protocol(bytes)).ok_or(ReadError::Other)?;
        let is_readable = quoted.fragment != Fragment::Later && quoted.l4 + 8 <= quoted.end;
        let is_echo = || matches!(bytes[quoted.l4], icmp::ECHO | icmp::ECHO_REPLY);
        if !is_readable || protocol == Protocol::Icmp && !is_echo() {
            return Err(ReadError::Malformed);
        }
        Ok((quoted, protocol))
    }

    /// The total length that the header gives.
    fn total(&self, bytes: &[u8]) -> usize {
        usize::from(u16_at(bytes, self.l3 + 2))
    }

    /// The number of the protocol that the packet carries.
    #[inline]
    #[must_use]
    pub fn protocol(&self, bytes: &[u8]) -> u8 {
        bytes[self.l3 + 9]
    }

    /// The source or destination address.
    #[inline]
    #[must_use]
    pub fn ip(&self, bytes: &[u8], side: Side) -> Ipv4Addr {
        ipv4_at(bytes, self.l3 + 12 + 4 * side as usize)
    }

    /// The identification, which the fragments of one datagram share.
    #[must_use]
    pub fn identification(&self, bytes: &[u8]) -> u16 {
        u16_at(bytes, self.l3 + 4)
    }

    /// Whether the packet holds the transport header.
    #[inline]
    #[must_use]
    pub fn has_header(&self, protocol: Protocol) -> bool {
        self.l4 + protocol.header() <= self.end
    }

    /// The offset of a port. An ICMP echo has one identifier for both sides.
    fn port_at(&self, protocol: Protocol, side: Side) -> usize {
        self.l4 + if protocol == Protocol::Icmp { 4 } else { 2 * side as usize }
    }

    /// The source or destination with its port. Do not ask a later fragment, which has no ports.
    #[inline]
    #[must_use]
    pub fn end_of(&self, bytes: &[u8], protocol: Protocol, side: Side) -> End {
        End { ip: self.ip(bytes, side), port: u16_at(bytes, self.port_at(protocol, side)) }
    }

    /// Changes an address and keeps the header checksum right. The result is the change, for the
    /// checksums that cover the address.
    #[inline]
    pub fn set_ip(&self, bytes: &mut [u8], side: Side, ip: Ipv4Addr) -> Delta {
        let (mut delta, at) = (Delta::default(), self.l3 + 12 + 4 * side as usize);
        for (part, octets) in ip.octets().chunks(2).enumerate() {
            delta.put(bytes, at + 2 * part, u16_at(octets, 0));
        }
        let sum = delta.apply(u16_at(bytes, self.l3 + 10));
        bytes[self.l3 + 10..self.l3 + 12].copy_from_slice(&sum.to_be_bytes());
        delta
    }

    /// Changes an address and a port and keeps both checksums right. The result is the change, for
    /// a checksum that covers the whole packet. The packet must have a transport header.
    pub fn set_end(&self, bytes: &mut [u8], protocol: Protocol, side: Side, to: End) -> Delta {
        let before = u16_at(bytes, self.l3 + 10);
        let addresses = self.set_ip(bytes, side, to.ip);
        let mut all = addresses;
        all.changed(before, u16_at(bytes, self.l3 + 10));
        let mut ports = Delta::default();
        ports.put(bytes, self.port_at(protocol, side), to.port);
        all = all.and(ports);
        // ICMP has no pseudo-header with the addresses.
        let covered = if protocol == Protocol::Icmp { ports } else { ports.and(addresses) };
        all.and(self.keep_sum(bytes, protocol, covered))
    }

    /// Updates the transport checksum after changes, unless there is none.
    pub fn keep_sum(&self, bytes: &mut [u8], protocol: Protocol, changes: Delta) -> Delta {
        let (mut delta, at) = (Delta::default(), self.l4 + protocol.checksum());
        let sum = u16_at(bytes, at);
        // A UDP checksum of 0 says that there is none (RFC 768); all ones is the same number.
        let is_udp = protocol == Protocol::Udp;
        if at + 2 <= self.end && !(is_udp && sum == 0) {
            let new = changes.apply(sum);
            delta.put(bytes, at, if is_udp && new == 0 { u16::MAX } else { new });
        }
        delta
    }
}
