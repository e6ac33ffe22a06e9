//! Which frames of a switch are for passt, and the network that passt makes for stations.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::bytes::{ipv4_at, mac_at, u16_at};
use packet::ethernet::{ETHERNET_HEADER, EtherType};
use packet::hash::fnv1a;
use packet::{MacAddr, ParseError};

/// The router of the stations, by IPv6.
pub const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The numbers of the router and of the name server, and the first number of a station.
const GATEWAY: u8 = 2;
const NAMES: u8 = 3;
const FIRST: u8 = 16;
/// How many stations have a number.
const STATIONS: u8 = 224;

/// The network of the stations. As text it is its IPv4 network, `10.0.2.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network([u8; 3]);

impl std::str::FromStr for Network {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = || ParseError::new("a network with 24 bits, such as 10.0.2.0/24", text);
        let address: Ipv4Addr =
            text.strip_suffix("/24").and_then(|ip| ip.parse().ok()).ok_or_else(bad)?;
        match address.octets() {
            [a, b, c, 0] if !address.is_multicast() => Ok(Self([a, b, c])),
            _ => Err(bad()),
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/24", self.ip(0))
    }
}

impl Network {
    fn ip(self, number: u8) -> Ipv4Addr {
        let Self([a, b, c]) = self;
        Ipv4Addr::new(a, b, c, number)
    }

    /// The stations' router.
    pub fn gateway(self) -> Ipv4Addr {
        self.ip(GATEWAY)
    }

    /// The address for which passt asks the host's name server.
    pub fn names(self) -> Ipv4Addr {
        self.ip(NAMES)
    }

    /// The address of a station: the same after each start, unless another station has it.
    pub fn address(self, mac: MacAddr, is_taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let start = fnv1a(mac.octets()) % u64::from(STATIONS);
        let numbers = (0..u64::from(STATIONS)).map(|step| (start + step) % u64::from(STATIONS));
        let mut ips = numbers.map(|n| self.ip(FIRST + u8::try_from(n).expect("below 224")));
        ips.find(|ip| !is_taken(*ip))
    }

    /// The IPv6 address that goes with an address of this network.
    pub fn v6(self, address: Ipv4Addr) -> Ipv6Addr {
        let [a, b, c, d] = address.octets().map(u16::from);
        Ipv6Addr::new(0xfd75, 0x7661, a << 8 | b, c << 8, 0, 0, 0, d)
    }
}

/// The station that sent a frame, if the frame is for passt with the address `ours`.
///
/// passt answers as if its station were alone with it: it claims every address that is asked for.
/// So of what is sent to all, it gets only questions to a router.
pub fn for_passt(frame: &[u8], ours: MacAddr, network: Network) -> Option<MacAddr> {
    let (to, from) = (mac_at(frame, 0), mac_at(frame, 6));
    let kind = EtherType(u16_at(frame, 12));
    let body = frame.get(ETHERNET_HEADER..)?;
    let is_ours = match kind {
        _ if !from.is_station() || kind.is_tag() => false,
        _ if to == ours => true,
        _ if !to.is_multicast() => false,
        EtherType::ARP => is_arp_for_router(body, network),
        EtherType::IPV4 => is_dhcp(body),
        EtherType::IPV6 => is_router_query(body),
        _ => false,
    };
    is_ours.then_some(from)
}

fn is_arp_for_router(body: &[u8], network: Network) -> bool {
    const REQUEST: u16 = 1;
    let target = ipv4_at(body, 24);
    u16_at(body, 6) == REQUEST && [network.gateway(), network.names()].contains(&target)
}

fn is_dhcp(body: &[u8]) -> bool {
    const SERVER: u16 = 67;
    let header = usize::from(body.first().map_or(0, |byte| byte & 15)) * 4;
    body.get(9) == Some(&UDP) && u16_at(body, header + 2) == SERVER
}

const UDP: u8 = 17;

/// A solicitation of routers, or of our router as a neighbour, or DHCPv6.
fn is_router_query(body: &[u8]) -> bool {
    const HEADER: usize = 40;
    const ICMPV6: u8 = 58;
    const DHCPV6_SERVER: u16 = 547;
    const ROUTER_SOLICITATION: u8 = 133;
    const NEIGHBOUR_SOLICITATION: u8 = 135;
    let (next, kind) = (body.get(6), body.get(HEADER));
    match (next, kind) {
        (Some(&UDP), _) => u16_at(body, HEADER + 2) == DHCPV6_SERVER,
        (Some(&ICMPV6), Some(&ROUTER_SOLICITATION)) => true,
        (Some(&ICMPV6), Some(&NEIGHBOUR_SOLICITATION)) => {
            body.get(HEADER + 8..HEADER + 24) == Some(&ROUTER.octets()[..])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::{arp, ethernet, ipv4, udp};

    const OURS: MacAddr = MacAddr::new([0x52, 0x54, 0, 1, 2, 3]);
    const STATION: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);

    fn network() -> Network {
        "10.0.2.0/24".parse().unwrap()
    }

    fn is_for_passt(frame: &[u8]) -> bool {
        let station = for_passt(frame, OURS, network());
        assert!(station.is_none_or(|station| station == STATION));
        station.is_some()
    }

    #[test]
    fn test_of_questions_to_all_passt_hears_those_to_a_router() {
        let to_all = |kind: EtherType, body: &[u8]| {
            is_for_passt(&ethernet(MacAddr::BROADCAST, STATION, kind.0, body))
        };
        let who_has = |ip: &str| {
            let target = (MacAddr::ZERO, ip.parse().unwrap());
            to_all(EtherType::ARP, &arp(1, (STATION, Ipv4Addr::UNSPECIFIED), target))
        };
        assert!(who_has("10.0.2.2") && who_has("10.0.2.3"));
        assert!(!who_has("10.0.2.16") && !who_has("192.168.0.1"), "a neighbour answers");
        let to_port = |port| {
            let (any, all) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
            to_all(EtherType::IPV4, &ipv4(UDP, any, all, &udp(68, port, b"x")))
        };
        assert!(to_port(67) && !to_port(137));
        let v6 = |next: u8, rest: &[u8]| {
            let mut body = [0; 40];
            (body[0], body[6]) = (0x60, next);
            to_all(EtherType::IPV6, &[&body, rest].concat())
        };
        let solicit = |target: Ipv6Addr| {
            v6(58, &[&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..]].concat())
        };
        assert!(v6(58, &[133, 0, 0, 0]) && !v6(58, &[134, 0, 0, 0]) && !v6(58, &[]));
        assert!(solicit(ROUTER) && !solicit("fe80::2".parse().unwrap()));
        assert!(v6(17, &udp(546, 547, b"")) && !v6(17, &udp(5353, 5353, b"")));
    }

    #[test]
    fn test_frames_to_others_odd_ones_and_cut_ones_are_not_for_passt() {
        let frame = |to, from| ethernet(to, from, EtherType::IPV4.0, &[0x45; 40]);
        assert!(is_for_passt(&frame(OURS, STATION)));
        assert!(!is_for_passt(&frame(STATION, STATION)) && !is_for_passt(&frame(OURS, OURS)[..13]));
        assert!(for_passt(&frame(OURS, MacAddr::BROADCAST), OURS, network()).is_none());
        assert!(!is_for_passt(&ethernet(OURS, STATION, EtherType::VLAN.0, &[0; 40])));
        let whole = frame(MacAddr::BROADCAST, STATION);
        for len in 0..whole.len() {
            assert!(!is_for_passt(&whole[..len]));
        }
    }

    #[test]
    fn test_a_station_keeps_its_address_where_no_other_has_it() {
        let mine = network().address(STATION, |_| false).unwrap();
        assert_eq!(network().address(STATION, |_| false), Some(mine));
        let next = network().address(STATION, |ip| ip == mine).unwrap();
        assert!(next != mine && next.octets()[3] >= FIRST && next.octets()[3] < 240, "{next}");
        assert_eq!(network().address(STATION, |_| true), None);
        assert_eq!(network().v6("10.0.2.16".parse().unwrap()).to_string(), "fd75:7661:a00:200::10");
        for bad in ["10.0.2.0/16", "10.0.2.1/24", "224.0.0.0/24", "10.0.2.0", "x"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert_eq!(network().to_string(), "10.0.2.0/24");
    }
}
