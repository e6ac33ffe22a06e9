//! Values of the command line: ranges of addresses.

use std::net::Ipv4Addr;
use std::str::FromStr;

use packet::MacAddr;

/// A port for UDP where none is said.
const UDP_PORT: u16 = 1234;

/// Some values in a row, taken in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    first: u64,
    /// At least 1.
    count: u64,
}

impl Span {
    /// From a first to a last value; `None` where that is no range.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        let count = last.checked_sub(first)?.checked_add(1)?;
        Some(Self { first, count })
    }

    /// The value of the `n`-th turn.
    #[inline]
    pub fn at(self, n: u64) -> u64 {
        self.first + n % self.count
    }

    /// Whether every frame gets the same value.
    pub fn is_one(self) -> bool {
        self.count == 1
    }
}

/// Ethernet addresses: `02:00:00:00:00:01` or `02:00:00:00:00:01-02:00:00:00:00:ff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacRange(pub Span);

impl MacRange {
    /// A single address.
    pub fn one(mac: MacAddr) -> Self {
        Self(Span { first: mac_number(mac), count: 1 })
    }

    /// The address of the `n`-th turn.
    #[inline]
    pub fn at(self, n: u64) -> MacAddr {
        let [_, _, octets @ ..] = self.0.at(n).to_be_bytes();
        MacAddr::new(octets)
    }
}

impl FromStr for MacRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse().map(mac_number).map_err(|e| format!("{e}"));
        let span = Span::new(number(first)?, number(last)?);
        span.map(Self).ok_or_else(|| "the last address lies before the first".to_owned())
    }
}

fn mac_number(mac: MacAddr) -> u64 {
    mac.octets().iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// IPv4 addresses and UDP ports: `10.0.0.1`, `10.0.0.1:2000`, `10.0.0.1:2000-10.0.0.9:2010`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Addresses.
    pub ip: Span,
    /// Ports.
    pub port: Span,
}

impl Endpoints {
    /// The address of the `n`-th turn.
    #[inline]
    pub fn ip_at(self, n: u64) -> Ipv4Addr {
        let [.., a, b, c, d] = self.ip.at(n).to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    }

    /// The port of the `n`-th turn.
    #[inline]
    pub fn port_at(self, n: u64) -> u16 {
        let [.., high, low] = self.port.at(n).to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (ip0, port0) = endpoint(first, UDP_PORT)?;
        let (ip1, port1) = endpoint(last, port0)?;
        let ip = Span::new(u32::from(ip0).into(), u32::from(ip1).into());
        let ip = ip.ok_or("the last address lies before the first")?;
        let port = Span::new(port0.into(), port1.into());
        Ok(Self { ip, port: port.ok_or("the last UDP port lies before the first")? })
    }
}

fn endpoint(text: &str, port: u16) -> Result<(Ipv4Addr, u16), String> {
    if text.matches(':').count() > 1 {
        return Err(format!("'{text}' is no IPv4 address like 10.0.0.1; frames are IPv4 only"));
    }
    let (ip, port) = match text.split_once(':') {
        Some((ip, port)) => (ip, port.parse().map_err(|_| format!("'{port}' is no UDP port"))?),
        None => (text, port),
    };
    let ip = ip.parse().map_err(|_| format!("'{ip}' is no IPv4 address like 10.0.0.1"))?;
    Ok((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mac_range_counts_and_wraps() {
        let one: MacRange = "02:00:00:00:00:07".parse().unwrap();
        assert!(one.0.is_one());
        let range: MacRange = "02:00:00:00:00:fe-02:00:00:00:01:00".parse().unwrap();
        let seen: Vec<_> = (0..4).map(|n| range.0.at(n) & 0xffff).collect();
        assert_eq!(seen, [0xfe, 0xff, 0x100, 0xfe]);
        for bad in ["", "02:00", "02:00:00:00:00:02-02:00:00:00:00:01", "02:00:00:00:00:02-"] {
            assert!(bad.parse::<MacRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn test_endpoints_have_the_forms_of_pkt_gen() {
        let plain: Endpoints = "10.0.0.1".parse().unwrap();
        assert!(plain.ip.is_one() && plain.port.at(0) == u64::from(UDP_PORT));
        let range: Endpoints = "10.0.0.1:2000-10.0.0.3:2001".parse().unwrap();
        assert_eq!((range.ip.at(2), range.port.at(2)), (0x0a00_0003, 2000));
        let ips: Endpoints = "10.0.0.1:9-10.0.0.3".parse().unwrap();
        assert!(ips.port.is_one());
        assert!("::1".parse::<Endpoints>().unwrap_err().starts_with("'::1' is no IPv4 address"));
        for bad in ["", "10.0.0", "10.0.0.1:70000", "10.0.0.2-10.0.0.1", "10.0.0.1:2-10.0.0.1:1"] {
            assert!(bad.parse::<Endpoints>().is_err(), "{bad}");
        }
    }
}
