//! Network interfaces of the host, as ports.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::values::{Mac, ValueError};

/// The interface of a port of kind [`Tap`](super::PortKind::Tap),
/// [`Packet`](super::PortKind::Packet) or [`Stack`](super::PortKind::Stack). What is `None` is left
/// as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostIf {
    /// Its name; by default, the port's part of the port's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// Its MTU, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its Ethernet address, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The namespace it is in: one of `ip netns`, the number of a process, or a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// An IP address for the host on it, for a TAP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// For a packet port: the host's stack is cut off from the interface.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// An interface as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostIfInfo {
    /// Its name.
    pub ifname: String,
    /// The namespace, as it was named; `None` for the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Whether it carries frames.
    pub state: LinkState,
    /// Its MTU.
    pub mtu: u32,
    /// Its Ethernet address, as it was when the port was made.
    pub mac: Mac,
}

/// Whether an interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It does.
    Up,
    /// It is there and does not.
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

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let (ip, prefix) = text.split_once('/')?;
            let (ip, prefix) = (ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
            let most = if ip.is_ipv4() { 32 } else { 128 };
            (prefix <= most).then_some(Self { ip, prefix })
        };
        parse().ok_or_else(|| ValueError::Address(text.escape_debug().to_string()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl TryFrom<String> for Address {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_addresses_roundtrip_and_bad_ones_name_themselves() {
        for good in ["10.0.0.1/24", "fd00::1/64", "0.0.0.0/0"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for bad in ["10.0.0.1", "10.0.0.1/33", "10.0.0.1/-1", "x/24", "fd00::1/129", ""] {
            let error = bad.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
