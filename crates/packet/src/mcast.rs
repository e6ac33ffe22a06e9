//! Membership of multicast groups: IGMP (RFC 1112, 2236, 3376), MLD (RFC 2710, 3810), and the hello
//! by which a router with PIM shows itself (RFC 7761, 4.9.2).
//!
//! ```text
//!  IGMP   type:1  code:1  checksum:2  group:4        v3 query: … S and QRV:1 QQIC:1 sources:2
//!  MLD    type:1  code:1  checksum:2  delay:2  0:2  group:16               v2 query: the same
//!  v3/v2 report: … records:2, each  type:1  aux:1  sources:2  group:4|16  sources … aux …
//! ```
//!
//! A switch that snoops reads what hosts and routers tell each other. So a message is read as they
//! read it: what they ignore, because a field or the checksum is wrong, is [`Malformed`] here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::build::{be16, ethernet};
use crate::bytes::{ipv4_at, ipv6_at, mac_at, u16_at};
use crate::checksum::{Sum, checksum};
use crate::error::ParseError;
use crate::ethernet::{EtherType, network_header};
use crate::icmpv6::{self, ICMPV6, IPV6_HEADER};
use crate::ipv4::IPV4_HEADER;
use crate::mac::MacAddr;

/// Protocols behind IP.
const IGMP: u8 = 2;
const PIM: u8 = 103;
const HOP_BY_HOP: u8 = 0;

/// Destinations of messages.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// How soon hosts answer a query that a switch sends itself, and how often it asks.
pub const RESPONSE_MS: u32 = 10_000;
/// How soon hosts answer one about a group that a host has left.
pub const LAST_MEMBER_MS: u32 = 1_000;
/// Seconds between queries: less than 128, so that one byte holds them as they are.
pub const QUERY_INTERVAL_S: u8 = 125;
/// How often a host says something that it wants to be heard (the robustness variable).
const ROBUSTNESS: u8 = 2;
/// Records of a report that are read. What a host has to say beyond its MTU is in another report
/// (RFC 3376, 4.2.16; RFC 3810, 5.2.15): one of 9,000 bytes has 1,121 at most.
pub const RECORDS_MAX: u16 = 1_200;
/// The shortest frame on a wire, without its check sequence.
const FRAME_MIN: usize = 60;

/// What a frame says of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A router, or a switch in its place, asks for members.
    Query(Query),
    /// A host is a member of a group (IGMPv1 and 2, MLDv1). Other members keep silent if they hear
    /// it.
    Report(IpAddr),
    /// A host leaves a group (IGMPv2, MLDv1).
    Leave(IpAddr),
    /// A host says of which groups it is a member (IGMPv3, MLDv2).
    Records(Records<'a>),
    /// A router with PIM is there.
    Hello,
}

/// A query for members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The querier; of a switch it may be 0.0.0.0.
    pub source: IpAddr,
    /// The group that it asks for, or all.
    pub group: Option<IpAddr>,
    /// How soon members answer.
    pub response_ms: u32,
    /// Whether a group without an answer has no member any more: the query is about any source, and
    /// not to be ignored (the flag S).
    pub is_last: bool,
}

/// The records of a report of IGMPv3 or MLDv2: the first [`RECORDS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    bytes: &'a [u8],
    left: u16,
    /// Bytes of an address.
    address: usize,
}

impl<'a> Records<'a> {
    /// The records of a report of either protocol, whose addresses have so many bytes.
    fn of(report: &'a [u8], address: usize) -> Self {
        let left = u16_at(report, 6).min(RECORDS_MAX);
        Self { bytes: &report[8..], left, address }
    }
}

/// A record: a host is a member of the group for some sources, or for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The group.
    pub group: IpAddr,
    /// Whether the host wants to hear any source.
    pub is_member: bool,
}

/// A group as an operator names it: by its IP address, or by the MAC address of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub enum GroupAddr {
    /// An IP address.
    Ip(IpAddr),
    /// A MAC address, for groups of any protocol.
    Mac(MacAddr),
}

impl GroupAddr {
    /// The destination of the group's frames.
    #[must_use]
    pub fn mac(self) -> MacAddr {
        match self {
            Self::Ip(address) => group_mac(address).expect("checked when it was read"),
            Self::Mac(mac) => mac,
        }
    }

    /// The IP address, where it is known.
    #[must_use]
    pub const fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Mac(_) => None,
        }
    }
}

impl FromStr for GroupAddr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let group = match text.parse() {
            Ok(address) => group_mac(address).map(|mac| (Self::Ip(address), mac)),
            Err(_) => MacAddr::from_short_text(text).ok().map(|mac| (Self::Mac(mac), mac)),
        };
        let may_be_one = |mac: MacAddr| mac.is_multicast() && !mac.is_broadcast();
        let is_restricted = |mac: MacAddr| !is_for_all(mac) && mac.reserved_group().is_none();
        match group {
            Some((group, mac)) if may_be_one(mac) && is_restricted(mac) => Ok(group),
            _ => Err(ParseError::new(
                "a group such as 239.1.1.1, ff15::7 or 01:00:5e:01:01:01, whose frames do not \
                 reach every host anyway (as those of 224.0.0.0/24, of others that share its MAC \
                 addresses, such as 239.0.0.0/24, and of ff02::1)",
                text,
            )),
        }
    }
}

impl fmt::Display for GroupAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
        }
    }
}

crate::text_form!(GroupAddr);

/// A message that hosts and routers ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads a frame; `None`: it says nothing of groups.
///
/// # Errors
/// The message is malformed.
pub fn read(frame: &[u8]) -> Result<Option<Message<'_>>, Malformed> {
    let (ethertype, l3) = network_header(frame);
    let packet = frame.get(l3..).unwrap_or_default();
    let (read, dst): (_, IpAddr) = match ethertype {
        EtherType::IPV4 => (read_ipv4(packet)?, ipv4_at(packet, 16).into()),
        EtherType::IPV6 => (read_ipv6(packet)?, ipv6_at(packet, 24).into()),
        _ => return Ok(None),
    };
    // Else hosts and switches would take the frame for one of different groups.
    match group_mac(dst) == Some(mac_at(frame, 0)) {
        true => Ok(read),
        false => read.map_or(Ok(None), |_| Err(Malformed)),
    }
}

/// Whether a frame may say something of groups, by its first bytes.
#[must_use]
pub fn is_control(head: &[u8]) -> bool {
    let (ethertype, l3) = network_header(head);
    let byte = |at: usize| head.get(l3 + at).copied();
    match ethertype {
        EtherType::IPV4 => matches!(byte(9), Some(IGMP | PIM)),
        EtherType::IPV6 => match byte(6) {
            Some(HOP_BY_HOP) => byte(IPV6_HEADER) == Some(ICMPV6),
            next => next == Some(PIM),
        },
        _ => false,
    }
}

/// The MAC address of a group; `None`: the address is no group's.
#[must_use]
pub fn group_mac(group: IpAddr) -> Option<MacAddr> {
    if !group.is_multicast() {
        return None;
    }
    Some(match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            MacAddr::new([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            MacAddr::new([0x33, 0x33, a, b, c, d])
        }
    })
}

/// Whether frames for a group reach every host, whatever hosts say of it: 224.0.0.0/24, and ff02::1
/// (RFC 4541, 2.1.2 and 3).
#[must_use]
pub const fn is_for_all(group: MacAddr) -> bool {
    matches!(group.octets(), [0x01, 0x00, 0x5e, 0, 0, _] | [0x33, 0x33, 0, 0, 0, 1])
}

/// A query that a switch sends: by `mac` and `source`, for the members of a group or of all. A
/// group of another family than the source's counts as all.
#[must_use]
pub fn query(mac: MacAddr, source: IpAddr, group: Option<IpAddr>) -> Vec<u8> {
    let group = group.filter(|it| it.is_multicast() && it.is_ipv4() == source.is_ipv4());
    let response_ms = if group.is_some() { LAST_MEMBER_MS } else { RESPONSE_MS };
    let (dst, ethertype, packet) = match source {
        IpAddr::V4(source) => {
            (group.unwrap_or(ALL_HOSTS.into()), EtherType::IPV4, igmp(source, group, response_ms))
        }
        IpAddr::V6(source) => {
            (group.unwrap_or(ALL_NODES.into()), EtherType::IPV6, mld(source, group, response_ms))
        }
    };
    let dst = group_mac(dst).expect("a group");
    let mut frame = ethernet(dst, mac, ethertype.0, &packet);
    frame.resize(frame.len().max(FRAME_MIN), 0);
    frame
}

/// The packet of a query of IGMPv3: not to be forwarded, and with the option Router Alert.
fn igmp(source: Ipv4Addr, group: Option<IpAddr>, response_ms: u32) -> Vec<u8> {
    let tenths = u8::try_from(response_ms / 100).expect("seconds").to_be_bytes();
    let group = group.map_or([0; 4], octets4);
    let mut message =
        [&[0x11][..], &tenths, &[0, 0], &group, &[ROBUSTNESS, QUERY_INTERVAL_S, 0, 0]].concat();
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let dst = if group == [0; 4] { ALL_HOSTS.octets() } else { group };
    let [high, low] = be16(IPV4_HEADER + 4 + message.len());
    let head = [0x46, 0xc0, high, low, 0, 0, 0x40, 0, 1, IGMP, 0, 0];
    let mut header = [&head[..], &source.octets(), &dst, &[0x94, 4, 0, 0]].concat();
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [header, message].concat()
}

/// The packet of a query of MLDv2, likewise.
fn mld(source: Ipv6Addr, group: Option<IpAddr>, response_ms: u32) -> Vec<u8> {
    let delay = u16::try_from(response_ms).expect("seconds").to_be_bytes();
    let group = match group {
        Some(IpAddr::V6(group)) => group,
        _ => Ipv6Addr::UNSPECIFIED,
    };
    let dst = if group.is_unspecified() { ALL_NODES } else { group };
    let head = [&[130, 0, 0, 0][..], &delay, &[0, 0]].concat();
    let mut message = [&head[..], &group.octets(), &[ROBUSTNESS, QUERY_INTERVAL_S, 0, 0]].concat();
    icmpv6::fill_checksum((source, dst), &mut message);
    let options = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    let length = options.len() + message.len();
    let header = icmpv6::header((source, dst), [HOP_BY_HOP, 1], length);
    [&header[..], &options, &message].concat()
}

fn octets4(group: IpAddr) -> [u8; 4] {
    match group {
        IpAddr::V4(group) => group.octets(),
        IpAddr::V6(_) => [0; 4],
    }
}

fn read_ipv4(packet: &[u8]) -> Result<Option<Message<'_>>, Malformed> {
    let protocol = packet.get(9).copied();
    if !matches!(protocol, Some(IGMP | PIM)) {
        return Ok(None);
    }
    let header = usize::from(packet[0] & 0xf) * 4;
    let length = usize::from(u16_at(packet, 2));
    let is_whole = packet[0] >> 4 == 4 && u16_at(packet, 6) & 0x3fff == 0;
    if !is_whole || header < IPV4_HEADER || length < header {
        return Err(Malformed);
    }
    let message = packet.get(header..length).ok_or(Malformed)?;
    if checksum(&packet[..header]) != 0 || checksum(message) != 0 {
        return Err(Malformed);
    }
    let (source, dst) = (ipv4_at(packet, 12), ipv4_at(packet, 16));
    match protocol {
        Some(PIM) => Ok(hello(message)),
        _ => read_igmp(message, source, dst),
    }
}

/// A hello of PIM version 2, if this is one.
fn hello(message: &[u8]) -> Option<Message<'_>> {
    (message.len() >= 4 && message[0] == 0x20).then_some(Message::Hello)
}

fn read_igmp(
    message: &[u8],
    source: Ipv4Addr,
    dst: Ipv4Addr,
) -> Result<Option<Message<'_>>, Malformed> {
    if message.len() < 8 {
        return Err(Malformed);
    }
    let group = ipv4_at(message, 4);
    Ok(Some(match message[0] {
        0x11 => Message::Query(igmp_query(message, source, group, dst)?),
        0x12 | 0x16 if group.is_multicast() && group == dst => Message::Report(group.into()),
        0x17 if group.is_multicast() => Message::Leave(group.into()),
        0x22 => Message::Records(Records::of(message, 4)),
        0x12 | 0x16 | 0x17 => return Err(Malformed),
        // Messages of multicast routing, such as DVMRP, are not of hosts.
        _ => return Ok(None),
    }))
}

fn igmp_query(
    message: &[u8],
    source: Ipv4Addr,
    group: Ipv4Addr,
    dst: Ipv4Addr,
) -> Result<Query, Malformed> {
    let (code, is_v3) = (u32::from(message[1]), message.len() >= 12);
    let is_general = group.is_unspecified() && dst == ALL_HOSTS;
    let is_about_dst = group.is_multicast() && group == dst;
    // A length in between is that of no version (RFC 3376, 7.1).
    if !(is_v3 || message.len() == 8) || !is_general && !is_about_dst {
        return Err(Malformed);
    }
    let tenths = match code {
        // A query of version 1 names no time.
        0 if !is_v3 => RESPONSE_MS / 100,
        code if is_v3 && code >= 128 => (code & 0xf | 0x10) << ((code >> 4 & 7) + 3),
        code => code,
    };
    let is_last = !is_v3 || message[8] & 8 == 0 && u16_at(message, 10) == 0;
    let group = (!is_general).then_some(group.into());
    Ok(Query { source: source.into(), group, response_ms: tenths * 100, is_last })
}

fn read_ipv6(packet: &[u8]) -> Result<Option<Message<'_>>, Malformed> {
    let Some(header) = packet.first_chunk::<IPV6_HEADER>() else { return Ok(None) };
    let next = header[6];
    let behind = packet.get(IPV6_HEADER..IPV6_HEADER + usize::from(u16_at(header, 4)));
    let (protocol, at) = match (next, behind) {
        (HOP_BY_HOP, Some(&[protocol, eights, ..])) => (protocol, (usize::from(eights) + 1) * 8),
        (PIM, _) => (PIM, 0),
        _ => return Ok(None),
    };
    if !matches!(protocol, ICMPV6 | PIM) {
        return Ok(None);
    }
    let message = behind.and_then(|bytes| bytes.get(at..)).ok_or(Malformed)?;
    let is_mld = protocol == ICMPV6 && matches!(message.first(), Some(130..=132 | 143));
    if protocol == ICMPV6 && !is_mld {
        return Ok(None);
    }
    let addresses = &header[8..];
    let length = u16::try_from(message.len()).map_err(|_| Malformed)?;
    let sum = Sum::pseudo_header(addresses, protocol, length).and(Sum::of(message));
    if header[0] >> 4 != 6 || sum.checksum() != 0 || is_mld && header[7] != 1 {
        return Err(Malformed);
    }
    match protocol {
        PIM => Ok(hello(message)),
        _ => read_mld(message, ipv6_at(addresses, 0), ipv6_at(addresses, 16)),
    }
}

fn read_mld(
    message: &[u8],
    source: Ipv6Addr,
    dst: Ipv6Addr,
) -> Result<Option<Message<'_>>, Malformed> {
    // A host without an address may report.
    let is_host = source.is_unicast_link_local() || source.is_unspecified();
    if message.len() < 8 || !is_host {
        return Err(Malformed);
    }
    if message[0] == 143 {
        return Ok(Some(Message::Records(Records::of(message, 16))));
    }
    if message.len() < 24 {
        return Err(Malformed);
    }
    let group = ipv6_at(message, 8);
    Ok(Some(match message[0] {
        130 => Message::Query(mld_query(message, source, group, dst)?),
        131 if group.is_multicast() && group == dst => Message::Report(group.into()),
        132 if group.is_multicast() => Message::Leave(group.into()),
        _ => return Err(Malformed),
    }))
}

fn mld_query(
    message: &[u8],
    source: Ipv6Addr,
    group: Ipv6Addr,
    dst: Ipv6Addr,
) -> Result<Query, Malformed> {
    let is_v2 = message.len() >= 28;
    let is_general = group.is_unspecified() && dst == ALL_NODES;
    let is_about_dst = group.is_multicast() && group == dst;
    let is_router = source.is_unicast_link_local();
    if !(is_v2 || message.len() == 24) || !is_router || !is_general && !is_about_dst {
        return Err(Malformed);
    }
    let code = u32::from(u16_at(message, 4));
    let response_ms = match code {
        code if is_v2 && code >= 32_768 => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
        code => code,
    };
    let is_last = !is_v2 || message[24] & 8 == 0 && u16_at(message, 26) == 0;
    let group = (!is_general).then_some(group.into());
    Ok(Query { source: source.into(), group, response_ms, is_last })
}

impl Iterator for Records<'_> {
    type Item = Record;

    /// The next record that says something of a membership.
    fn next(&mut self) -> Option<Record> {
        const BLOCK_OLD_SOURCES: u8 = 6;
        const MODE_IS_INCLUDE: u8 = 1;
        const CHANGE_TO_INCLUDE: u8 = 3;
        while self.left > 0 {
            let head = self.bytes.get(..4 + self.address)?;
            let (kind, aux, sources) =
                (head[0], usize::from(head[1]), usize::from(u16_at(head, 2)));
            let group: IpAddr = match self.address {
                4 => ipv4_at(head, 4).into(),
                _ => ipv6_at(head, 4).into(),
            };
            let length = head.len() + sources * self.address + aux * 4;
            self.bytes = self.bytes.get(length..)?;
            self.left -= 1;
            let includes = matches!(kind, MODE_IS_INCLUDE | CHANGE_TO_INCLUDE);
            // Sources that a member hears no more make no member, and end no membership.
            if group.is_multicast() && (1..BLOCK_OLD_SOURCES).contains(&kind) {
                return Some(Record { group, is_member: !includes || sources > 0 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// A frame with an IGMP message, whose checksum is made right.
    fn igmp_frame(dst: &str, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        let sum = checksum(&message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        let IpAddr::V4(dst) = ip(dst) else { panic!() };
        let packet = crate::build::ipv4(IGMP, HOST, dst, &message);
        ethernet(group_mac(dst.into()).unwrap(), MAC, 0x0800, &packet)
    }

    /// A frame with an MLD message from a link-local address.
    fn mld_frame(dst: &str, message: &[u8]) -> Vec<u8> {
        let IpAddr::V6(dst) = ip(dst) else { panic!() };
        let source: Ipv6Addr = "fe80::9".parse().unwrap();
        let addresses = [source.octets(), dst.octets()].concat();
        let mut message = message.to_vec();
        let length = u16::try_from(message.len()).unwrap();
        let sum = Sum::pseudo_header(&addresses, ICMPV6, length).and(Sum::of(&message));
        message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
        let [high, low] = (length + 8).to_be_bytes();
        let head = [0x60, 0, 0, 0, high, low, HOP_BY_HOP, 1];
        let options = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        let packet = [&head[..], &addresses, &options, &message].concat();
        ethernet(group_mac(dst.into()).unwrap(), MAC, 0x86dd, &packet)
    }

    fn mld(kind: u8, delay: u16, group: &str) -> Vec<u8> {
        let IpAddr::V6(group) = ip(group) else { panic!() };
        [&[kind, 0, 0, 0][..], &delay.to_be_bytes(), &[0, 0], &group.octets()].concat()
    }

    #[test]
    fn test_messages_of_igmp_are_read() {
        let group = ip("239.1.2.3");
        let report = igmp_frame("239.1.2.3", &[0x16, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(read(&report), Ok(Some(Message::Report(group))));
        let leave = igmp_frame("224.0.0.2", &[0x17, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(read(&leave), Ok(Some(Message::Leave(group))));
        let general = igmp_frame("224.0.0.1", &[0x11, 100, 0, 0, 0, 0, 0, 0]);
        let query = Query { source: HOST.into(), group: None, response_ms: 10_000, is_last: true };
        assert_eq!(read(&general), Ok(Some(Message::Query(query))));
        let specific = igmp_frame("239.1.2.3", &[0x11, 0x8f, 0, 0, 239, 1, 2, 3, 10, 125, 0, 0]);
        let query = Query { group: Some(group), response_ms: 24_800, is_last: false, ..query };
        assert_eq!(read(&specific), Ok(Some(Message::Query(query))), "a number with an exponent");
        let tagged = [&report[..12], &[0x81, 0, 0, 5], &report[12..]].concat();
        assert_eq!(read(&tagged), Ok(Some(Message::Report(group))));
    }

    #[test]
    fn test_records_name_members_and_leaves() {
        let record = |kind: u8, last: u8, sources: u8| {
            let head = [kind, 0, 0, sources, 239, 0, 0, last];
            [&head[..], &vec![10; usize::from(sources) * 4]].concat()
        };
        let records = [
            record(4, 1, 0), // to exclude none: joins
            record(3, 2, 0), // to include none: leaves
            record(1, 3, 1), // includes a source
            record(6, 4, 1), // blocks one
            record(5, 5, 2), // allows two
            record(9, 6, 0), // not known
            record(2, 7, 3), // excludes three
        ];
        let message = [&[0x22, 0, 0, 0, 0, 0, 0, 7][..], &records.concat()].concat();
        let frame = igmp_frame("224.0.0.22", &message);
        let Ok(Some(Message::Records(records))) = read(&frame) else { panic!() };
        let seen: Vec<_> = records.map(|it| (it.group, it.is_member)).collect();
        let of = |last: u8, is_member| (ip(&format!("239.0.0.{last}")), is_member);
        assert_eq!(seen, [of(1, true), of(2, false), of(3, true), of(5, true), of(7, true)]);
    }

    #[test]
    fn test_a_report_has_no_more_records_than_a_frame_has_room_for() {
        for (said, there, read_ones) in [(1_121, 1_121, 1_121), (8_000, 8_000, 1_200)] {
            let record = [4, 0, 0, 0, 239, 1, 2, 3];
            let [high, low] = u16::to_be_bytes(said);
            let message = [&[0x22, 0, 0, 0, 0, 0, high, low][..], &record.repeat(there)].concat();
            let frame = igmp_frame("224.0.0.22", &message);
            let Ok(Some(Message::Records(records))) = read(&frame) else { panic!("a report") };
            assert_eq!(records.count(), read_ones);
        }
    }

    #[test]
    fn test_messages_of_mld_are_read() {
        let group = ip("ff15::7");
        let report = mld_frame("ff15::7", &mld(131, 0, "ff15::7"));
        assert_eq!(read(&report), Ok(Some(Message::Report(group))));
        let done = mld_frame("ff02::2", &mld(132, 0, "ff15::7"));
        assert_eq!(read(&done), Ok(Some(Message::Leave(group))));
        let query = mld_frame("ff02::1", &mld(130, 1000, "::"));
        let Ok(Some(Message::Query(read_query))) = read(&query) else { panic!() };
        assert_eq!((read_query.group, read_query.response_ms), (None, 1000));
        let head = [143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
        let IpAddr::V6(octets) = group else { panic!() };
        let v2 = mld_frame("ff02::16", &[&head[..], &octets.octets()].concat());
        let Ok(Some(Message::Records(mut records))) = read(&v2) else { panic!() };
        assert_eq!(records.next(), Some(Record { group, is_member: true }));
    }

    #[test]
    fn test_own_queries_are_read_as_such() {
        for (source, group) in [
            ("0.0.0.0", None),
            ("0.0.0.0", Some("239.1.1.1")),
            ("fe80::1", None),
            ("fe80::1", Some("ff15::7")),
        ] {
            let (source, group) = (ip(source), group.map(ip));
            let frame = query(MAC, source, group);
            let response_ms = if group.is_some() { LAST_MEMBER_MS } else { RESPONSE_MS };
            let expected = Query { source, group, response_ms, is_last: true };
            assert_eq!(read(&frame), Ok(Some(Message::Query(expected))));
            assert!(is_control(&frame) && frame.len() >= FRAME_MIN);
        }
    }

    #[test]
    fn test_what_hosts_ignore_is_malformed() {
        let report = igmp_frame("239.1.2.3", &[0x16, 0, 0, 0, 239, 1, 2, 3]);
        let with = |frame: &[u8], at: usize, byte: u8| {
            let mut frame = frame.to_vec();
            frame[at] = byte;
            frame
        };
        let mld = mld_frame("ff15::7", &mld(131, 0, "ff15::7"));
        for (what, frame) in [
            ("a wrong checksum", with(&report, 36, 1)),
            ("a wrong header checksum", with(&report, 24, 7)),
            ("cut", report[..38].to_vec()),
            ("for another group", igmp_frame("239.1.2.4", &[0x16, 0, 0, 0, 239, 1, 2, 3])),
            ("of a host", igmp_frame("239.1.2.3", &[0x16, 0, 0, 0, 10, 1, 2, 3])),
            ("all hosts, elsewhere", igmp_frame("239.1.2.3", &[0x11, 1, 0, 0, 0, 0, 0, 0])),
            ("no version's length", igmp_frame("224.0.0.1", &[0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0])),
            ("forwarded by a router", with(&mld, 21, 64)),
            ("in a frame for another group", with(&report, 5, 9)),
            ("in a frame of IPv6", with(&report, 0, 0x33)),
            ("a wrong checksum of MLD", with(&mld, 70, 1)),
        ] {
            assert_eq!(read(&frame), Err(Malformed), "{what}");
        }
        let udp = crate::build::ipv4(17, HOST, Ipv4Addr::new(239, 1, 2, 3), &[0; 20]);
        let udp = ethernet(group_mac(ip("239.1.2.3")).unwrap(), MAC, 0x0800, &udp);
        assert_eq!((read(&udp), is_control(&udp)), (Ok(None), false));
    }

    #[test]
    fn test_groups_have_the_addresses_of_rfc_1112_and_2464() {
        let mac = |group: &str| group_mac(ip(group)).map(|mac| mac.to_string());
        assert_eq!(mac("224.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(mac("ff02::1:ff00:1").as_deref(), Some("33:33:ff:00:00:01"));
        assert_eq!(mac("10.0.0.1"), None);
    }

    #[test]
    fn test_groups_of_an_operator_are_those_that_can_be_restricted() {
        for text in ["239.1.1.1", "ff15::7", "01:00:5e:01:01:01", "09:00:07:00:00:00"] {
            assert_eq!(text.parse::<GroupAddr>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1", "224.0.0.5", "ff02::1", "02:00:00:00:00:01", "", "a"] {
            assert!(text.parse::<GroupAddr>().is_err(), "{text}");
        }
        for text in ["ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:00", "239.128.0.1"] {
            assert!(text.parse::<GroupAddr>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn prop_no_bytes_are_read_beyond_their_end(
            head in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100]),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let frame = [&[0; 12][..], &head.to_be_bytes(), &bytes].concat();
            if let Ok(Some(message)) = read(&frame) {
                prop_assert!(is_control(&frame));
                if let Message::Records(records) = message {
                    prop_assert!(records.count() <= frame.len() / 8);
                }
            }
        }

        #[test]
        fn prop_records_end_with_their_bytes(
            count: u16,
            records in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let head = [&[0x22, 0, 0, 0, 0, 0][..], &count.to_be_bytes()].concat();
            let frame = igmp_frame("224.0.0.22", &[head, records.clone()].concat());
            let Ok(Some(Message::Records(read))) = read(&frame) else { panic!("right") };
            let groups: Vec<_> = read.collect();
            prop_assert!(groups.len() <= records.len() / 8);
            prop_assert!(groups.iter().all(|it| it.group.is_multicast()));
        }
    }
}
