//! Network interfaces of the host, as ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use packet::MacAddr;
use serde::{Deserialize, Serialize};

use super::values::ValueError;

/// The interface of a port of kind [`Tap`](super::PortKind::Tap),
/// [`Packet`](super::PortKind::Packet), [`Xdp`](super::PortKind::Xdp) or
/// [`Stack`](super::PortKind::Stack). What is `None` is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HostIf {
    /// The interface's name; by default, the port's part of the port's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// The interface's MTU, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The interface's Ethernet address, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub mac: Option<MacAddr>,
    /// The namespace it is in: one of `ip netns`, the number of a process, or a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// An IP address for the host on it, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// For a packet port: the host's stack is cut off from the interface.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// For an xdp port: which of its queues are taken; by default, all. For a TAP: how many it has;
    /// by default, one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Queues>,
    /// For an xdp port: which frames are taken; what is not goes on to the host. By default, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// For an xdp port: the trust group in whose memory it receives; one of the caller's, a
    /// declared one, or `UID/NAME`. Frames between it and the group's members are exchanged, not
    /// copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_group: Option<String>,
    /// For a TAP: it is open already, and the call brings this many descriptors of it, one for
    /// each queue.
    #[serde(skip_serializing_if = "is_zero")]
    pub fds: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(fds: &u8) -> bool {
    *fds == 0
}

/// An interface as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HostIfInfo {
    /// The interface's name.
    pub ifname: String,
    /// The namespace, as it was named; `None` for the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Whether it carries frames.
    pub state: LinkState,
    /// The interface's MTU.
    pub mtu: u32,
    /// The interface's Ethernet address when the port was created.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: MacAddr,
    /// How its frames come and go, where there are several ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Why it carries nothing, and what helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// An interface that a daemon hands over to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedOver {
    /// The name by which the next daemon knows which port it is of. `None`: there are no more.
    pub name: Option<String>,
    /// Where to go on.
    pub next: Option<String>,
}

/// Whether an interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// The interface carries frames.
    Up,
    /// The interface exists and carries no frames.
    Down,
    /// There is none, or none any more. One of that name is taken as soon as it appears.
    Gone,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Gone => "gone",
        })
    }
}

/// An IP address with the length of its network's prefix, in JSON as the text `"10.0.0.1/24"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix.
    pub prefix: u8,
}

impl Address {
    /// An address by itself.
    #[must_use]
    pub fn alone(ip: IpAddr) -> Self {
        Self { ip, prefix: if ip.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether its network is part of that of another one.
    #[must_use]
    pub fn is_within(self, network: Self) -> bool {
        let same_family = self.ip.is_ipv4() == network.ip.is_ipv4();
        // What is behind the prefix is shifted out; of the highest bits, both have the same.
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let differ = bits(self.ip) ^ bits(network.ip);
        same_family
            && self.prefix >= network.prefix
            && differ.leading_zeros() >= u32::from(network.prefix)
    }

    /// Whether a host can have the address: it is not multicast, broadcast or unspecified.
    ///
    /// # Errors
    /// [`ValueError::NoHost`].
    pub fn check_host(self) -> Result<(), ValueError> {
        let Self { ip, .. } = self;
        let broadcast = IpAddr::V4(Ipv4Addr::BROADCAST);
        match ip.is_multicast() || ip.is_unspecified() || ip == broadcast {
            true => Err(ValueError::NoHost(self.to_string())),
            false => Ok(()),
        }
    }
}

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let shown = |text: &str| text.escape_debug().to_string();
        let (ip, prefix) = text.split_once('/').ok_or_else(|| ValueError::Address(shown(text)))?;
        let ip: IpAddr = ip.parse().map_err(|_| ValueError::NotIp(shown(ip)))?;
        let whole = Self::alone(ip).prefix;
        let bits = prefix.parse().ok().filter(|bits| *bits <= whole);
        let prefix = bits.ok_or_else(|| ValueError::Prefix(shown(prefix)))?;
        Ok(Self { ip, prefix })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// Frames that match one value of each kind that is named, in JSON as the text
/// `"mac=02:00:00:00:00:01,vlan=10,type=0x0806"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Filter {
    /// Destination addresses.
    pub macs: Vec<MacAddr>,
    /// VLANs of tagged frames.
    pub vlans: Vec<u16>,
    /// EtherTypes.
    pub types: Vec<u16>,
}

impl Filter {
    /// Most values of a kind.
    pub const VALUES_MAX: usize = 64;
}

impl FromStr for Filter {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::Filter(text.escape_debug().to_string());
        let mut filter = Self::default();
        for term in text.split(',') {
            match term.split_once('=').ok_or_else(bad)? {
                ("mac", mac) => filter.macs.push(mac.parse().map_err(|_| bad())?),
                ("vlan", vlan) => filter.vlans.push(parse_vlan(vlan).ok_or_else(bad)?),
                ("type", kind) => filter.types.push(parse_type(kind).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        let most = filter.macs.len().max(filter.vlans.len()).max(filter.types.len());
        if most <= Self::VALUES_MAX { Ok(filter) } else { Err(bad()) }
    }
}

fn parse_vlan(text: &str) -> Option<u16> {
    text.parse().ok().filter(|vlan| (1..=4094).contains(vlan))
}

fn parse_type(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("0x").filter(|text| (1..=4).contains(&text.len()))?;
    let kind = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|value| kind && *value >= 0x0600)
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let macs = self.macs.iter().map(|mac| format!("mac={mac}"));
        let vlans = self.vlans.iter().map(|vlan| format!("vlan={vlan}"));
        let types = self.types.iter().map(|kind| format!("type={kind:#06x}"));
        f.write_str(&macs.chain(vlans).chain(types).collect::<Vec<_>>().join(","))
    }
}

/// Queues of an interface. In JSON a number N stands for the first N, and a text for a set:
/// `"0-3,6"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Queues {
    /// The first N queues.
    First(u16),
    /// The queues of a set.
    Set(QueueSet),
}

impl Queues {
    /// How many, where it is not said which.
    #[must_use]
    pub fn count(&self) -> Option<u16> {
        match self {
            Self::First(count) => Some(*count),
            Self::Set(_) => None,
        }
    }

    /// The queues' numbers, in ascending order.
    #[must_use]
    pub fn numbers(&self) -> Vec<u16> {
        match self {
            Self::First(count) => (0..*count).collect(),
            Self::Set(QueueSet(set)) => set.clone(),
        }
    }
}

impl FromStr for Queues {
    type Err = ValueError;

    /// A number, or a set: `2-2` is queue 2 alone.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse() {
            Ok(count) => Ok(Self::First(count)),
            Err(_) => text.parse().map(Self::Set),
        }
    }
}

/// Numbers of queues: at least one, each once, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueSet(Vec<u16>);

impl QueueSet {
    /// Most queues of a port.
    pub const QUEUES_MAX: usize = 64;
    /// Highest number of a queue.
    pub const NUMBER_MAX: u16 = 4095;
    /// Bytes of a text that says more than any set needs.
    const TEXT_MAX: usize = 1024;
}

impl FromStr for QueueSet {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // The text comes from any client: the parser reads no more of it than a set can have.
        let shown: String = text.chars().take(Self::TEXT_MAX).collect();
        let bad = || ValueError::Queues(shown.escape_debug().to_string());
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number: Option<u16> =
                text.parse().ok().filter(|number| *number <= Self::NUMBER_MAX);
            number.filter(|_| digits).ok_or_else(bad)
        };
        // A number alone would be how many.
        if text.len() > Self::TEXT_MAX || !text.contains(['-', ',']) {
            return Err(bad());
        }
        let mut set = std::collections::BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first)?..=number(last)?;
            if !(1..=Self::QUEUES_MAX).contains(&range.len()) {
                return Err(bad());
            }
            set.extend(range);
            if set.len() > Self::QUEUES_MAX {
                return Err(bad());
            }
        }
        Ok(Self(set.into_iter().collect()))
    }
}

impl fmt::Display for QueueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        let run = |run: &[u16]| match (run.first(), run.last()) {
            (Some(first), Some(last)) => format!("{first}-{last}"),
            _ => String::new(),
        };
        f.write_str(&runs.map(run).collect::<Vec<_>>().join(","))
    }
}

packet::text_form!(Address, Filter, QueueSet);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_queues_are_a_number_or_a_set() {
        let queues = |text: &str| text.parse::<Queues>().unwrap();
        assert_eq!(queues("4"), Queues::First(4));
        assert_eq!(queues("4").numbers(), [0, 1, 2, 3]);
        assert_eq!(queues("2-2").numbers(), [2]);
        let set = queues("7,0-2,1");
        assert_eq!(set.numbers(), [0, 1, 2, 7]);
        let json = serde_json::to_string(&set).unwrap();
        assert_eq!(json, r#""0-2,7-7""#);
        assert_eq!(serde_json::from_str::<Queues>(&json).unwrap(), set);
        assert_eq!(serde_json::from_str::<Queues>("3").unwrap(), Queues::First(3));
        for bad in ["", "-1", "3-1", "a", "1,", "+1-2", "0-64", "4096-4096", "1-2-3"] {
            assert!(bad.parse::<Queues>().unwrap_err().to_string().contains("0-3"), "{bad}");
        }
    }

    #[test]
    fn test_a_set_is_refused_without_walking_what_it_names() {
        let long = ["0-1"; 16_000].join(",");
        let error = long.parse::<Queues>().unwrap_err().to_string();
        assert!(error.len() < 2000, "{}", error.len());
        let many: Vec<String> = (0..65).map(|number| (2 * number).to_string()).collect();
        for bad in ["0-4095,0-4095", "0-63,64", &many.join(",")] {
            assert!(bad.parse::<Queues>().is_err(), "{bad}");
        }
        assert_eq!(many[..64].join(",").parse::<Queues>().unwrap().numbers().len(), 64);
    }

    #[test]
    fn test_filters_roundtrip_and_bad_ones_name_themselves() {
        for good in ["mac=02:00:00:00:00:01,mac=ff:ff:ff:ff:ff:ff,vlan=10,type=0x0806", "vlan=1"] {
            assert_eq!(good.parse::<Filter>().unwrap().to_string(), good);
        }
        let many = vec!["vlan=1"; 65].join(",");
        let bads = ["", "mac", "mac=x", "vlan=0", "vlan=4095", "type=2054", "type=0x05ff", "ip=1"];
        for bad in bads.into_iter().chain(["type=0x+800", &many]) {
            let error = bad.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("mac="), "{error}");
        }
    }

    #[test]
    fn test_addresses_roundtrip_and_bad_ones_name_themselves() {
        for good in ["10.0.0.1/24", "fd00::1/64", "0.0.0.0/0"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for (bad, said) in [
            ("10.0.0.1", "'10.0.0.1': write it with the length of its prefix"),
            ("10.0.0.300/24", "'10.0.0.300': not an IP address"),
            ("x/33", "'x': not an IP address"),
            ("10.0.0.1/33", "prefix length '33': write 0 to 32"),
            ("10.0.0.1/-1", "prefix length '-1'"),
            ("fd00::1/129", "prefix length '129'"),
            ("", "''"),
        ] {
            let error = bad.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn test_an_address_is_within_its_network_and_some_are_no_hosts() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let network = address("10.0.0.7/24");
        assert!(Address::alone("10.0.0.255".parse().unwrap()).is_within(network));
        for other in ["10.0.1.1", "a00::1", "fd00::1"] {
            assert!(!Address::alone(other.parse().unwrap()).is_within(network), "{other}");
        }
        for good in ["10.0.0.1/24", "127.0.0.1/8", "fe80::1/64"] {
            assert!(address(good).check_host().is_ok(), "{good}");
        }
        for bad in ["224.0.0.1/24", "255.255.255.255/32", "0.0.0.0/0", "ff02::1/64", "::/0"] {
            let error = address(bad).check_host().unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
