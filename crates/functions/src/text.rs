//! Values in the files of functions: what is wrong is said with its line, by the TOML reader.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::time::Duration;

use client::nf::Frame;
use ipnet::Ipv4Net;
use packet::fields::{Fields, Matcher, Network};
use packet::flow::{FlowKey, Prefix, has_ports};
use packet::text::{ethertype, network, no_network, protocol, range};
use packet::{EtherType, PortId, VlanId};
use protocol::toml_error;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use toml::Spanned;

use packet::ipv4::Protocol;

/// A network, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Net(pub Ipv4Net);

impl TryFrom<String> for Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let one = || text.parse::<Ipv4Addr>().map(Ipv4Net::from);
        let net = text.parse::<Ipv4Net>().or_else(|_| one());
        match net {
            Ok(net) if net == net.trunc() => Ok(Self(net)),
            Ok(net) => Err(no_network(&text, &net.trunc().to_string())),
            Err(_) => Err(format!("{text:?} is no IPv4 network; write one like 10.0.1.0/24")),
        }
    }
}

/// What a file says.
pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error| {
        let (at, why) = toml_error::describe(error.message(), error.span());
        anyhow::anyhow!("line {}: {why}", toml_error::line(text, at))
    })
}

/// What is wrong in a file that can be read, and where.
pub fn wrong<T>(text: &str, what: &Spanned<T>, why: impl fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("line {}: {why}", toml_error::line(text, what.span().start))
}

/// What the values of a list are, each of which has its line.
pub fn each<V: TryFrom<String, Error = String>>(
    text: &str,
    key: &str,
    values: &[Spanned<String>],
) -> anyhow::Result<Vec<V>> {
    let value = |value: &Spanned<String>| {
        let refuse = |why| wrong(text, value, format_args!("{key}: {why}"));
        V::try_from(value.get_ref().clone()).map_err(refuse)
    };
    values.iter().map(value).collect()
}

/// The address of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Host(pub Ipv4Addr);

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text.parse::<Ipv4Addr>();
        address.map_err(|_| format!("{text:?} is none like 10.0.1.1"))?.try_into()
    }
}

impl TryFrom<Ipv4Addr> for Host {
    type Error = String;

    fn try_from(address: Ipv4Addr) -> Result<Self, String> {
        let what = match address.octets()[0] {
            0 => "lies in 0.0.0.0/8, where no host is",
            127 => "lies in 127.0.0.0/8, where every host finds itself",
            224..=239 => "is a group's (multicast)",
            _ if address.is_broadcast() => "is the broadcast address",
            _ => return Ok(Self(address)),
        };
        Err(format!("{address} {what}; name the address of one host"))
    }
}

/// An address of a host with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoint(pub SocketAddrV4);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text.parse::<SocketAddrV4>();
        let address = address.map_err(|_| format!("{text:?} is none like 10.0.1.1:80"))?;
        Host::try_from(*address.ip())?;
        check_port(address.port()).map(|()| Self(address))
    }
}

/// Whether packets can be sent to a port.
pub fn check_port(port: u16) -> Result<(), String> {
    let why = "port 0 is none; name one from 1 to 65535";
    if port == 0 { Err(why.to_owned()) } else { Ok(()) }
}

/// The message for a rule that an earlier one hides.
pub fn hidden(what: &str, number: usize, before: usize) -> String {
    format!(
        "{what} {number} would never be reached: {what} {before} comes first and takes all its \
         packets; put {number} before it, or delete one"
    )
}

/// A name that stands in a file and is looked for later.
pub struct Name {
    name: String,
    line: usize,
}

impl Name {
    /// As a file has it.
    pub fn new(text: &str, name: &Spanned<String>) -> Self {
        Self { line: toml_error::line(text, name.span().start), name: name.get_ref().clone() }
    }

    /// The number that it has among those that there are; else `how` makes one.
    pub fn find(&self, what: &str, all: &[(String, u8)], how: &str) -> anyhow::Result<u8> {
        let Self { name, line } = self;
        let found = all.iter().find(|(known, _)| known == name);
        found.map(|(_, number)| *number).ok_or_else(|| {
            let how = how.replace("NAME", name);
            anyhow::anyhow!("line {line}: the switch has no {what} {name:?}; make it: {how}")
        })
    }
}

/// Ports from one to another; `"80"` is one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ports(pub RangeInclusive<u16>);

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        range(&text).map(Self)
    }
}

/// What packets something is for: `{ proto = "udp", dport = "53" }`, all of which has to be so.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "MatchText")]
pub struct Match {
    all: Matcher,
    /// Matchers without the ports, and without the protocol.
    beside_ports: Matcher,
    beside_protocol: Matcher,
}

impl From<&Fields> for Match {
    fn from(fields: &Fields) -> Self {
        let beside_ports = Fields { src_ports: None, dst_ports: None, ..fields.clone() };
        let beside_protocol = Fields { protocol: None, ..beside_ports.clone() };
        let [all, beside_ports, beside_protocol] =
            [fields, &beside_ports, &beside_protocol].map(Matcher::from);
        Self { all, beside_ports, beside_protocol }
    }
}

impl Match {
    /// Whether this covers all packets that `other` covers, if no header is hidden.
    pub fn covers(&self, other: &Self) -> bool {
        self.all.covers(&other.all)
    }

    /// Whether this covers the packet, judged by the headers that can be read.
    pub fn is_for(&self, key: &FlowKey) -> bool {
        self.all.matches(key)
    }

    /// Whether this may cover the packet: a header that is hidden is taken to match.
    pub fn may_be_for(&self, key: &FlowKey) -> bool {
        match Hidden::by(key) {
            None => self.all.matches(key),
            Some(Hidden::Ports) => self.beside_ports.matches(key),
            Some(Hidden::Protocol) => self.beside_protocol.matches(key),
        }
    }
}

/// What a packet does not show: pieces have no ports, and headers that more follow could hide any
/// protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// Has a protocol with ports, and none to be seen (or ports 0, which no program has).
    Ports,
    /// Has headers beyond those that were read.
    Protocol,
}

impl Hidden {
    /// By this one.
    #[inline]
    pub fn by(key: &FlowKey) -> Option<Self> {
        let way = key.five_tuple()?;
        match way.protocol {
            protocol if has_ports(protocol) && way.ports == [0, 0] => Some(Self::Ports),
            // Hop-by-hop options, routing, fragment, AH, destination options.
            0 | 43 | 44 | 51 | 60 => Some(Self::Protocol),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchText {
    #[serde(default, deserialize_with = "a_type")]
    ethertype: Option<EtherType>,
    #[serde(default, deserialize_with = "a_network")]
    src: Option<Network>,
    #[serde(default, deserialize_with = "a_network")]
    dst: Option<Network>,
    #[serde(default, deserialize_with = "a_protocol")]
    proto: Option<u8>,
    sport: Option<Ports>,
    dport: Option<Ports>,
}

/// What a rule asks for, by the texts that people write.
fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    parse(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn a_type<'de, D: Deserializer<'de>>(from: D) -> Result<Option<EtherType>, D::Error> {
    parsed(from, ethertype)
}

/// A network of IPv4 or IPv6.
pub fn a_network<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Network>, D::Error> {
    parsed(from, network)
}

/// A protocol of IP.
pub fn a_protocol<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    parsed(from, protocol)
}

impl TryFrom<MatchText> for Match {
    type Error = String;

    fn try_from(text: MatchText) -> Result<Self, String> {
        let fields = Fields {
            ethertype: text.ethertype,
            src: text.src,
            dst: text.dst,
            protocol: text.proto,
            src_ports: text.sport.map(|ports| ports.0),
            dst_ports: text.dport.map(|ports| ports.0),
            ..Fields::default()
        };
        match fields.mistake() {
            Some(why) => Err(for_none(why)),
            None => Ok(Self::from(&fields)),
        }
    }
}

/// No packet is what is asked for.
pub fn for_none(why: &str) -> String {
    format!("it is for no packet: {why}; leave one of the two out")
}

/// What a frame says of itself.
pub fn key_of(frame: &Frame<'_>) -> FlowKey {
    read(frame.bytes()).0
}

/// What the bytes of a frame say of it, and [where](FlowKey::read_with_payload) what a packet
/// carries begins.
#[inline]
pub fn read(frame: &[u8]) -> (FlowKey, Option<(u16, usize)>) {
    let port = PortId::new(0).expect("there is a port 0");
    FlowKey::read_with_payload(Prefix::of(frame), VlanId::DEFAULT, port)
}

/// A protocol that has ports, of those that are translated.
pub fn tcp_or_udp<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
    match &*String::deserialize(from)? {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        other => Err(D::Error::custom(format!("proto {other:?} is neither \"tcp\" nor \"udp\""))),
    }
}

/// Whole seconds, of which there must be some.
pub fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    match u32::deserialize(from)? {
        0 => Err(D::Error::custom("0 seconds are too few; write 1 or more")),
        seconds => Ok(Duration::from_secs(seconds.into())),
    }
}

/// Most entries of a table: what they need is taken when the function starts.
pub fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    const MOST: u32 = 1 << 22;
    match u32::deserialize(from)? {
        number @ 1..=MOST => Ok(number),
        number => Err(D::Error::custom(format!("{number} is not between 1 and {MOST}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Values {
        net: Net,
        ports: Ports,
        #[serde(deserialize_with = "seconds")]
        time: Duration,
        #[serde(deserialize_with = "entries")]
        most: u32,
    }

    #[test]
    fn test_what_is_wrong_is_said_with_its_line() {
        let text = "net = \"10.0.1.0/24\"\nports = \"1-9\"\ntime = 3\nmost = 5\n";
        let values: Values = parse(text).unwrap();
        assert_eq!(values.net.0.to_string(), "10.0.1.0/24");
        assert_eq!((values.ports.0, values.time.as_secs(), values.most), (1..=9, 3, 5));
        for (line, from, to) in [
            (1, "10.0.1.0/24", "10.0.1"),
            (1, "10.0.1.0/24", "10.0.1.7/24"),
            (2, "1-9", "9-1"),
            (3, "time = 3", "time = 0"),
            (4, "most = 5", "most = 0"),
        ] {
            let error = parse::<Values>(&text.replace(from, to)).unwrap_err();
            assert!(error.to_string().starts_with(&format!("line {line}: ")), "{error}");
        }
    }
}
