//! Values that are text in messages and on the command line: permissions, and rules for new ports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Permission bits, in JSON as the octal text `"660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mode(u16);

impl Mode {
    /// From bits like `0o660`; `None` for bits outside `0o777`.
    #[must_use]
    pub fn new(bits: u16) -> Option<Self> {
        (bits <= 0o777).then_some(Self(bits))
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }
}

/// Which users may create a port of a switch by opening a new name, in JSON `"any"` or `"owner"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NewPorts {
    /// Every user that may attach to the switch.
    #[default]
    Any,
    /// The owner of the switch; others attach to the ports that they were given.
    Owner,
}

/// A value that is written as text and could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    /// Not an octal mode.
    #[error("bad mode '{0}': write it in octal as for a file, like 660")]
    Mode(String),
    /// Not a rule for new ports.
    #[error("bad new-ports '{0}': write any or owner")]
    NewPorts(String),
    /// Not an IP address with a prefix.
    #[error("bad address '{0}': write it with the length of its prefix, like 10.0.0.1/24")]
    Address(String),
    /// The part before the prefix is no IP address.
    #[error("bad address '{0}': not an IP address; write one such as 10.0.0.1/24 or fd00::1/64")]
    NotIp(String),
    /// The prefix is too long for the address, or no number.
    #[error("bad prefix length '{0}': write 0 to 32 for IPv4, 0 to 128 for IPv6")]
    Prefix(String),
    /// Not an address that a host has.
    #[error("bad address '{0}': no host can have it; write one such as 10.0.0.1/24")]
    NoHost(String),
    /// Not a filter.
    #[error(
        "bad filter '{0}': write mac=ADDRESS, vlan=1 to 4094 and type=0x0600 to 0xffff, up to 64 \
         of each, with commas between them"
    )]
    Filter(String),
    /// Queues of an interface.
    #[error("bad queues '{0}': write how many, or which, such as 0-3,6 or 2-2; up to 64")]
    Queues(String),
    /// Not a VLAN with a virtual network.
    #[error("bad vlan_vni '{0}': write VLAN:VNI, such as 10:1010; VNIs have 24 bits")]
    VlanVni(String),
    /// Not a remote of a routing daemon.
    #[error("bad extern_remote '{0}': write REMOTE or VLAN=REMOTE, such as 10=10.0.0.2")]
    ExternRemote(String),
    /// Not a station behind a remote.
    #[error("bad fdb '{0}': write MAC=REMOTE, such as 02:00:00:00:00:01=10.0.0.2")]
    VxlanStation(String),
}

impl FromStr for Mode {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let octal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let bits = u16::from_str_radix(digits, 8).ok().filter(|_| octal);
        bits.and_then(Self::new).ok_or_else(|| ValueError::Mode(text.escape_debug().to_string()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl FromStr for NewPorts {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "any" => Ok(Self::Any),
            "owner" => Ok(Self::Owner),
            _ => Err(ValueError::NewPorts(text.escape_debug().to_string())),
        }
    }
}

impl fmt::Display for NewPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Owner => "owner",
        })
    }
}

packet::text_form!(Mode, NewPorts);
