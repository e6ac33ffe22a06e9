//! What a frame says that rules can ask for, and the flow that it belongs to.
//!
//! A frame's first bytes, copied out once, become seven words: addresses, types, the 5-tuple, VLAN
//! and port. Rules compare words under masks, the flow cache compares all of them.
//!
//! Pieces of a packet (IP fragments) have no ports here, the first one neither: all of them go the
//! same way.

use std::net::IpAddr;

use crate::ethernet::{EtherType, network_header};
use crate::hash::folded_multiply;
use crate::port::PortId;
use crate::vlan::VlanId;

/// How many bytes of a frame are enough to read its flow key: Ethernet with two tags, IPv6, and
/// the L4 ports behind the longest IPv4 header.
pub const PREFIX: usize = 96;
/// The number of words in a flow key.
pub const WORDS: usize = 7;

/// Where fields lie in the words.
pub(crate) mod layout {
    /// Destination address, and above it the type.
    pub const DST_MAC: usize = 0;
    /// Source address, and above it the VLAN.
    pub const SRC_MAC: usize = 1;
    /// IP source, two words; IPv4 in the second.
    pub const SRC_IP: usize = 2;
    /// IP destination, likewise.
    pub const DST_IP: usize = 4;
    /// The rest.
    pub const REST: usize = 6;
    /// Type or VLAN, above an address.
    pub const ABOVE_MAC: u32 = 48;
    /// Source port (16 bits at 0), destination port, IP protocol, port of the switch.
    pub const DST_PORT: u32 = 16;
    /// IP protocol, 8 bits.
    pub const PROTOCOL: u32 = 32;
    /// Port of the switch, 12 bits.
    pub const IN_PORT: u32 = 40;
    /// The L4 ports are there.
    pub const HAS_PORTS: u64 = 1 << 52;
    /// IPv4.
    pub const V4: u64 = 1 << 53;
    /// IPv6.
    pub const V6: u64 = 1 << 54;
    /// One of both.
    pub const IP: u64 = 1 << 55;
}

/// The fields of a frame that rules and the flow cache compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey(pub(crate) [u64; WORDS]);

impl From<[u64; WORDS]> for FlowKey {
    #[inline]
    fn from(words: [u64; WORDS]) -> Self {
        Self(words)
    }
}

/// The addresses, the protocol and the ports of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// The source address.
    pub src: IpAddr,
    /// The destination address.
    pub dst: IpAddr,
    /// The number of the protocol that the packet carries.
    pub protocol: u8,
    /// Source and destination port; 0 where the packet has none, or is a fragment.
    pub ports: [u16; 2],
}

/// Words in which the ports of an IPv4 packet end that has neither tags nor options.
pub const COMMON: usize = 5;

/// The beginning of a frame.
#[derive(Clone, Copy)]
pub struct Prefix<'a>(&'a [u8]);

impl<'a> Prefix<'a> {
    /// The first `len` of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8; PREFIX], len: usize) -> Self {
        Self(&bytes[..len.min(PREFIX)])
    }

    /// The beginning of a frame that is read in place. Members of a trust group promise not to
    /// change frames that a function reads.
    #[inline]
    #[must_use]
    pub fn of(frame: &'a [u8]) -> Self {
        Self(&frame[..frame.len().min(PREFIX)])
    }

    #[inline]
    fn get<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    #[inline]
    fn word(self, at: usize) -> Option<u16> {
        self.get(at).map(u16::from_be_bytes)
    }
}

/// The fields of an IP packet, as far as the frame has them.
#[derive(Default)]
struct Packet {
    src: u128,
    dst: u128,
    /// Protocol, ports and what is known.
    rest: u64,
    /// The offset of the transport header; `None` for a fragment.
    payload: Option<usize>,
}

impl FlowKey {
    /// The words, for tables that compare and hash whole keys.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// Reads a frame that came in by a port, in a VLAN.
    #[inline]
    #[must_use]
    pub fn read(frame: Prefix<'_>, vlan: VlanId, port: PortId) -> Self {
        Self::read_with_payload(frame, vlan, port).0
    }

    /// Reads a frame that is what most are: TCP or UDP in IPv4, without tags, options and pieces.
    /// `None`: it is another. Of constant places, which are words by now, nothing is bounded.
    #[inline(always)]
    #[must_use]
    pub fn read_common(words: [u64; COMMON], vlan: VlanId, port: PortId) -> Option<Self> {
        // Bytes 12 to 14, the type, version and length; 20 and 21, more to come and offset; 23.
        let head = words[1] >> 32 & 0xff_ffff;
        let piece = words[2] & 0xff3f << 32;
        let protocol = words[2] >> 56;
        if head != 0x45_0008 || piece != 0 || protocol != 6 && protocol != 17 {
            return None;
        }
        let ip = |le: u64| (le << 32).swap_bytes();
        let l4 = |le: u64| (le << 48).swap_bytes();
        let mac = |le: u64| le & 0xffff_ffff_ffff;
        let known = layout::IP | layout::V4 | layout::HAS_PORTS;
        let ports = l4(words[4] >> 16) | l4(words[4] >> 32) << layout::DST_PORT;
        let port = u64::from(port.number()) << layout::IN_PORT;
        Some(Self([
            mac(words[0]) | 0x0800 << layout::ABOVE_MAC,
            mac(words[0] >> 48 | words[1] << 16) | u64::from(vlan.get()) << layout::ABOVE_MAC,
            0,
            ip(words[3] >> 16),
            0,
            ip(words[3] >> 48 | words[4] << 16),
            ports | protocol << layout::PROTOCOL | known | port,
        ]))
    }

    /// Reads the key and, for an IP packet that is no fragment, the offset of its payload behind
    /// the frame's type.
    #[inline]
    #[must_use]
    pub fn read_with_payload(
        frame: Prefix<'_>,
        vlan: VlanId,
        port: PortId,
    ) -> (Self, Option<(u16, usize)>) {
        let mac = |at| {
            let [a, b, c, d, e, f] = frame.get(at).unwrap_or_default();
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
        };
        let (EtherType(ethertype), at) = network_header(frame.0);
        let packet = match ethertype {
            0x0800 => ipv4(frame, at).unwrap_or_default(),
            0x86dd => ipv6(frame, at).unwrap_or_default(),
            _ => Packet::default(),
        };
        let [src, dst] = [packet.src, packet.dst].map(halves);
        let port = u64::from(port.number()) << layout::IN_PORT;
        let key = Self([
            mac(0) | u64::from(ethertype) << layout::ABOVE_MAC,
            mac(6) | u64::from(vlan.get()) << layout::ABOVE_MAC,
            src[0],
            src[1],
            dst[0],
            dst[1],
            packet.rest | port,
        ]);
        (key, packet.payload.map(|at| (ethertype, at)))
    }

    /// What an IP packet says of its way; `None`: it is none.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // reason: takes words apart.
    pub fn five_tuple(&self) -> Option<FiveTuple> {
        let [.., s0, s1, d0, d1, rest] = self.0;
        let ip = |high: u64, low: u64| match rest & layout::V4 {
            0 => IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into()),
            _ => IpAddr::V4((low as u32).into()),
        };
        let ports = [rest as u16, (rest >> layout::DST_PORT) as u16];
        let protocol = (rest >> layout::PROTOCOL) as u8;
        let tuple = FiveTuple { src: ip(s0, s1), dst: ip(d0, d1), protocol, ports };
        (rest & layout::IP != 0).then_some(tuple)
    }

    /// The two ends and the protocol, the same in both directions; `None`: it is no IP packet.
    #[inline]
    #[must_use]
    pub fn conversation(&self) -> Option<[u64; WORDS]> {
        let [src, dst] = self.ends();
        let [a, b] = if self.is_from_first() { [src, dst] } else { [dst, src] };
        let rest = self.0[layout::REST];
        let protocol = rest >> layout::PROTOCOL & 0xff;
        (rest & layout::IP != 0).then_some([a[0], a[1], a[2], b[0], b[1], b[2], protocol])
    }

    /// Whether the frame comes from the end that [`conversation`](Self::conversation) names first.
    #[inline]
    #[must_use]
    pub fn is_from_first(&self) -> bool {
        let [src, dst] = self.ends();
        src <= dst
    }

    #[inline]
    fn ends(&self) -> [[u64; 3]; 2] {
        let [.., s0, s1, d0, d1, rest] = self.0;
        [[s0, s1, rest & 0xffff], [d0, d1, rest >> layout::DST_PORT & 0xffff]]
    }

    /// A hash that both directions of a flow share; never 0.
    #[inline]
    #[must_use]
    pub fn hash(&self, seed: u64) -> u32 {
        let [dst_mac, src_mac, s0, s1, d0, d1, rest] = self.0;
        let addresses = if rest & layout::IP == 0 {
            side(src_mac << 16, 0, 0, seed).wrapping_add(side(dst_mac << 16, 0, 0, seed))
        } else {
            let (sport, dport) = (rest & 0xffff, rest >> layout::DST_PORT & 0xffff);
            side(s0, s1, sport, seed).wrapping_add(side(d0, d1, dport, seed))
        };
        let mixed = folded_multiply(addresses ^ (rest >> layout::PROTOCOL & 0xff) ^ seed, MIX[2]);
        ((mixed >> 32) as u32).max(1)
    }
}

const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];

#[inline]
fn side(high: u64, low: u64, port: u64, seed: u64) -> u64 {
    folded_multiply(high ^ seed ^ port << 48, MIX[0])
        ^ folded_multiply(low ^ seed.rotate_left(32) ^ port, MIX[1])
}

#[allow(clippy::cast_possible_truncation)] // reason: takes a number apart.
pub(crate) fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

#[inline]
fn ipv4(frame: Prefix<'_>, at: usize) -> Option<Packet> {
    let [first] = frame.get(at)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    let [protocol] = frame.get(at + 9)?;
    let ip = |at| frame.get(at).map(|bytes| u128::from(u32::from_be_bytes(bytes)));
    let (src, dst) = (ip(at + 12)?, ip(at + 16)?);
    let is_piece = frame.word(at + 6)? & 0x3fff != 0;
    let ports = if is_piece { 0 } else { ports(frame, at + header, protocol) };
    let rest = u64::from(protocol) << layout::PROTOCOL | layout::IP | layout::V4 | ports;
    Some(Packet { src, dst, rest, payload: (!is_piece).then_some(at + header) })
}

fn ipv6(frame: Prefix<'_>, at: usize) -> Option<Packet> {
    let [first] = frame.get(at)?;
    if first >> 4 != 6 {
        return None;
    }
    let [mut protocol] = frame.get(at + 6)?;
    let (src, dst) = (frame.get(at + 8)?, frame.get(at + 24)?);
    let (mut next, mut is_piece) = (at + 40, false);
    // Hop-by-hop options, routing, destination options, fragment.
    while matches!(protocol, 0 | 43 | 60 | 44) {
        let Some([following, length]) = frame.get(next) else { break };
        is_piece |= protocol == 44;
        next += if protocol == 44 { 8 } else { (usize::from(length) + 1) * 8 };
        protocol = following;
    }
    let ports = if is_piece { 0 } else { ports(frame, next, protocol) };
    let rest = u64::from(protocol) << layout::PROTOCOL | layout::IP | layout::V6 | ports;
    let [src, dst] = [src, dst].map(u128::from_be_bytes);
    Some(Packet { src, dst, rest, payload: (!is_piece).then_some(next) })
}

/// Whether the protocol has ports: TCP, UDP, DCCP, SCTP and UDP-Lite do.
#[inline]
#[must_use]
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

#[inline]
fn ports(frame: Prefix<'_>, at: usize, protocol: u8) -> u64 {
    if !has_ports(protocol) {
        return 0;
    }
    let (Some(src), Some(dst)) = (frame.word(at), frame.word(at + 2)) else { return 0 };
    u64::from(src) | u64::from(dst) << layout::DST_PORT | layout::HAS_PORTS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::MAX_PORTS;

    /// One of these, or anything.
    fn byte(likely: [u8; 3]) -> impl Strategy<Value = u8> {
        prop_oneof![12 => prop::sample::select(likely.to_vec()), 1 => any::<u8>()]
    }

    proptest! {
        /// What is read at constant places is what the general way reads, of those frames for which
        /// that is so and of no others.
        #[test]
        fn prop_a_common_frame_says_the_same_read_either_way(
            mut bytes in prop::collection::vec(any::<u8>(), PREFIX),
            [high, low] in [byte([0x08, 0x08, 0x86]), byte([0, 0, 0xdd])],
            version in byte([0x45, 0x45, 0x46]),
            piece in [byte([0, 0x40, 0x20]), byte([0; 3])],
            protocol in byte([6, 17, 1]),
            vlan in 1..4095u16,
            port in 0..MAX_PORTS,
        ) {
            bytes[12..15].copy_from_slice(&[high, low, version]);
            bytes[20..22].copy_from_slice(&piece);
            bytes[23] = protocol;
            let (vlan, port) = (VlanId::new(vlan).unwrap(), PortId::new(port).unwrap());
            let words = std::array::from_fn(|at| {
                u64::from_le_bytes(bytes[8 * at..][..8].try_into().unwrap())
            });
            let common = FlowKey::read_common(words, vlan, port);
            let is_whole = [piece[0] & 0x3f, piece[1]] == [0, 0];
            let is_common = [high, low, version] == [8, 0, 0x45] && matches!(protocol, 6 | 17);
            prop_assert_eq!(common.is_some(), is_common && is_whole);
            let any = FlowKey::read(Prefix::of(&bytes), vlan, port);
            prop_assert_eq!(common.unwrap_or(any), any);
            let shortest = FlowKey::read(Prefix::of(&bytes[..8 * COMMON]), vlan, port);
            prop_assert_eq!(common.unwrap_or(shortest), shortest);
        }
    }
}
