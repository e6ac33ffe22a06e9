//! Routes of BGP EVPN as bytes: RFC 7432 (NLRI of types 2 and 3, MAC mobility), RFC 8365 (VXLAN),
//! RFC 4271 and 4760 (path attributes), RFC 4360 (extended communities), RFC 6514 (PMSI tunnel),
//! RFC 9047 (ARP/ND extended community).
//!
//! What is read comes from any BGP speaker that the operator's own one trusts: every length is
//! checked. What a route must be in order to count is in [`Import::route`].

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use packet::MacAddr;
use packet::neigh::{Neighbour, is_unicast};

/// Address family: AFI 25 (L2VPN), SAFI 70 (EVPN).
pub const AFI: u16 = 25;
/// See [`AFI`].
pub const SAFI: u8 = 70;

const MAC_ROUTE: u8 = 2;
const MULTICAST_ROUTE: u8 = 3;

const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const MP_REACH: u8 = 14;
const EXTENDED_COMMUNITIES: u8 = 16;
const PMSI_TUNNEL: u8 = 22;

const TRANSITIVE: u8 = 0x40;
const OPTIONAL: u8 = 0x80;
const EXTENDED_LENGTH: u8 = 0x10;

const TARGET_AS2: [u8; 2] = [0x00, 0x02];
const TARGET_AS4: [u8; 2] = [0x02, 0x02];
const ENCAPSULATION: [u8; 2] = [0x03, 0x0c];
const MOBILITY: [u8; 2] = [0x06, 0x00];
const STICKY: u8 = 1;
const ARP_ND: [u8; 2] = [0x06, 0x08];
const ROUTER: u8 = 1;
const OVERRIDE: u8 = 2;
const VXLAN: u16 = 8;
const INGRESS_REPLICATION: u8 = 6;

/// Bytes that are no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed route")]
pub struct Malformed;

/// A route distinguisher: makes the routes of a host and network its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Distinguisher(pub [u8; 8]);

/// A route target: which networks a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(pub [u8; 8]);

impl Distinguisher {
    /// The one of a BGP speaker, and a VNI of which 16 bits count.
    #[must_use]
    pub fn of(router: [u8; 4], vni: u32) -> Self {
        let [_, _, high, low] = vni.to_be_bytes();
        let [a, b, c, d] = router;
        Self([0, 1, a, b, c, d, high, low])
    }
}

impl Target {
    /// The one of an autonomous system and a VNI, as other implementations derive it.
    #[must_use]
    pub fn of(asn: u32, vni: u32) -> Self {
        let [_, _, high, low] = asn.to_be_bytes();
        let [a, b, c, d] = vni.to_be_bytes();
        Self([TARGET_AS2[0], TARGET_AS2[1], high, low, a, b, c, d])
    }

    /// Whether it was derived of this VNI, in any autonomous system. The top byte of the number may
    /// say how (RFC 8365, 5.1.2.1).
    fn is_of(self, vni: u32) -> bool {
        let [kind, subkind, _, _, _, number @ ..] = self.0;
        [kind, subkind] == TARGET_AS2 && vni.to_be_bytes()[1..] == number
    }
}

/// `65001:100` or, where the first number has more than 16 bits, `4200000000:100`.
impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once(':').and_then(|(asn, number)| {
            Some((asn.parse::<u32>().ok()?, number.parse::<u32>().ok()?))
        });
        let wrong = || format!("{} is no route target; write it as 65001:100", text.escape_debug());
        let (asn, number) = pair.ok_or_else(wrong)?;
        if u16::try_from(asn).is_ok() {
            return Ok(Self::of(asn, number));
        }
        let number = u16::try_from(number).map_err(|_| wrong())?.to_be_bytes();
        let [a, b, c, d] = asn.to_be_bytes();
        Ok(Self([TARGET_AS4[0], TARGET_AS4[1], a, b, c, d, number[0], number[1]]))
    }
}

/// `10.0.0.1:100`.
impl FromStr for Distinguisher {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once(':').and_then(|(router, number)| {
            let router = router.parse::<std::net::Ipv4Addr>().ok()?;
            Some((router, number.parse::<u16>().ok()?))
        });
        let wrong = "is no route distinguisher; write it as 10.0.0.1:100";
        let (router, number) = pair.ok_or_else(|| format!("{} {wrong}", text.escape_debug()))?;
        Ok(Self::of(router.octets(), number.into()))
    }
}

/// How often a station has moved, and whether it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mobility {
    /// Grows by one with each move.
    pub sequence: u32,
    /// The station stays where it is.
    pub is_sticky: bool,
}

/// What a route is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A station (type 2).
    Station(MacAddr, Mobility),
    /// A station and an IP address of it (type 2).
    Neighbour(Neighbour, Mobility),
    /// The host gets floods (type 3).
    Floods,
}

/// A route of the virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// What it says.
    pub subject: Subject,
    /// The host that it leads to.
    pub host: IpAddr,
}

/// A route to announce, or to withdraw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The route's key.
    pub nlri: Vec<u8>,
    /// The rest of it.
    pub attributes: Vec<Vec<u8>>,
}

/// What this host says of itself in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// The virtual network.
    pub vni: u32,
    /// The address that others send to.
    pub local: IpAddr,
    /// The distinguisher of this host's routes.
    pub distinguisher: Distinguisher,
    /// The target of the network.
    pub target: Target,
}

impl Export {
    /// The bytes of a route to this host. A mobility that says nothing is left out.
    #[must_use]
    pub fn encode(&self, subject: Subject) -> Encoded {
        let nlri = match subject {
            Subject::Station(mac, _) => self.station(mac, &[]),
            Subject::Neighbour(Neighbour { mac, ip, .. }, _) => self.station(mac, &octets(ip)),
            Subject::Floods => self.floods(),
        };
        let mut communities = [self.target.0, encapsulation()].concat();
        let mut attributes = vec![
            attribute(TRANSITIVE, ORIGIN, &[0]),
            attribute(TRANSITIVE, AS_PATH, &[]),
            self.reach(&nlri),
        ];
        match subject {
            Subject::Station(_, mobility) | Subject::Neighbour(_, mobility) => {
                let is_said = mobility != Mobility::default();
                communities.extend(is_said.then(|| mobility_community(mobility)).iter().flatten());
            }
            Subject::Floods => attributes.push(self.tunnel()),
        }
        if matches!(subject, Subject::Neighbour(Neighbour { is_router: true, .. }, _)) {
            communities.extend([ARP_ND[0], ARP_ND[1], ROUTER | OVERRIDE, 0, 0, 0, 0, 0]);
        }
        attributes.push(attribute(OPTIONAL | TRANSITIVE, EXTENDED_COMMUNITIES, &communities));
        Encoded { nlri, attributes }
    }

    fn station(&self, mac: MacAddr, ip: &[u8]) -> Vec<u8> {
        let segment_and_tag = [0; 10 + 4];
        let [_, label @ ..] = self.vni.to_be_bytes();
        let ip_bits = u8::try_from(ip.len() * 8).expect("0, 32 or 128");
        let (rd, mac) = (&self.distinguisher.0, mac.octets());
        let parts: [&[u8]; 7] = [rd, &segment_and_tag, &[48], &mac, &[ip_bits], ip, &label];
        nlri(MAC_ROUTE, &parts.concat())
    }

    fn floods(&self) -> Vec<u8> {
        let local = octets(self.local);
        let bits = u8::try_from(local.len() * 8).expect("32 or 128");
        let parts: [&[u8]; 4] = [&self.distinguisher.0, &[0; 4], &[bits], &local];
        nlri(MULTICAST_ROUTE, &parts.concat())
    }

    fn reach(&self, nlri: &[u8]) -> Vec<u8> {
        let [high, low] = AFI.to_be_bytes();
        let local = octets(self.local);
        let length = u8::try_from(local.len()).expect("4 or 16");
        let parts: [&[u8]; 4] = [&[high, low, SAFI, length], &local, &[0], nlri];
        attribute(OPTIONAL, MP_REACH, &parts.concat())
    }

    fn tunnel(&self) -> Vec<u8> {
        let [_, a, b, c] = self.vni.to_be_bytes();
        let parts: [&[u8]; 2] = [&[0, INGRESS_REPLICATION, a, b, c], &octets(self.local)];
        attribute(OPTIONAL | TRANSITIVE, PMSI_TUNNEL, &parts.concat())
    }
}

fn nlri(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).expect("a route is short");
    [&[kind, length], body].concat()
}

fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    match u8::try_from(value.len()) {
        Ok(length) => [&[flags, kind, length], value].concat(),
        Err(_) => {
            let [high, low] = u16::try_from(value.len()).expect("a route is short").to_be_bytes();
            [&[flags | EXTENDED_LENGTH, kind, high, low], value].concat()
        }
    }
}

fn encapsulation() -> [u8; 8] {
    let [high, low] = VXLAN.to_be_bytes();
    [ENCAPSULATION[0], ENCAPSULATION[1], 0, 0, 0, 0, high, low]
}

fn mobility_community(mobility: Mobility) -> [u8; 8] {
    let [a, b, c, d] = mobility.sequence.to_be_bytes();
    [MOBILITY[0], MOBILITY[1], u8::from(mobility.is_sticky) * STICKY, 0, a, b, c, d]
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Which routes count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The virtual networks.
    pub vnis: BTreeSet<u32>,
    /// One of these is the route's; with none, one that was derived of its VNI.
    pub targets: Vec<Target>,
}

/// What attributes say.
#[derive(Default)]
struct Attributes {
    next_hop: Option<IpAddr>,
    targets: Vec<Target>,
    encapsulations: Vec<u16>,
    mobility: Mobility,
    is_router: bool,
    tunnel: Option<(u8, u32)>,
}

impl Import {
    /// The route and its VNI, if it is one of types 2 and 3 of a network of these, by VXLAN: its
    /// label, and a route target, are the network's. `None`: it is another.
    ///
    /// # Errors
    /// The bytes are no route.
    pub fn route(
        &self,
        nlri: &[u8],
        attributes: &[&[u8]],
    ) -> Result<Option<(u32, Route)>, Malformed> {
        let mut nlri = Bytes(nlri);
        let [kind, length] = nlri.array()?;
        let mut body = Bytes(nlri.take(length.into())?);
        let of = read_attributes(attributes)?;
        let (subject, label) = match kind {
            MAC_ROUTE => {
                let (mac, ip, label) = station(&mut body)?;
                (subject(mac, ip, of.is_router, of.mobility), label)
            }
            MULTICAST_ROUTE => match of.tunnel {
                Some((INGRESS_REPLICATION, label)) => (Subject::Floods, label),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let is_vxlan = of.encapsulations.is_empty() || of.encapsulations.contains(&VXLAN);
        let is_target = of.targets.iter().any(|it| self.takes(*it, label));
        let is_in = is_target && is_vxlan && self.vnis.contains(&label);
        let host = of.next_hop.filter(|_| is_in);
        Ok(host.map(|host| (label, Route { subject, host })))
    }

    fn takes(&self, target: Target, vni: u32) -> bool {
        match self.targets.is_empty() {
            true => target.is_of(vni),
            false => self.targets.contains(&target),
        }
    }
}

fn read_attributes(attributes: &[&[u8]]) -> Result<Attributes, Malformed> {
    let mut all = Attributes::default();
    for attribute in attributes {
        let mut bytes = Bytes(attribute);
        let [flags, kind] = bytes.array()?;
        let length = match flags & EXTENDED_LENGTH {
            0 => bytes.array::<1>()?[0].into(),
            _ => usize::from(u16::from_be_bytes(bytes.array()?)),
        };
        let mut value = Bytes(bytes.take(length)?);
        match kind {
            MP_REACH => all.next_hop = next_hop(&mut value)?,
            EXTENDED_COMMUNITIES => all.read_communities(value.0),
            PMSI_TUNNEL => {
                let [_, kind, label @ ..] = value.array::<5>()?;
                all.tunnel = Some((kind, from_label(label)));
            }
            _ => {}
        }
    }
    Ok(all)
}

impl Attributes {
    /// Reads extended communities; those of other kinds may be route targets.
    fn read_communities(&mut self, value: &[u8]) {
        for community in value.as_chunks::<8>().0 {
            let [a, b, flags, _, c, d, e, f] = *community;
            match [a, b] {
                ENCAPSULATION => self.encapsulations.push(u16::from_be_bytes([e, f])),
                MOBILITY => {
                    let sequence = u32::from_be_bytes([c, d, e, f]);
                    self.mobility = Mobility { sequence, is_sticky: flags & STICKY != 0 };
                }
                ARP_ND => self.is_router = flags & ROUTER != 0,
                _ => self.targets.push(Target(*community)),
            }
        }
    }
}

/// The distinguisher of a route of type 2 or 3.
#[must_use]
pub fn distinguisher(nlri: &[u8]) -> Option<Distinguisher> {
    let mut nlri = Bytes(nlri);
    let [kind, _] = nlri.array().ok()?;
    let distinguisher = Distinguisher(nlri.array().ok()?);
    matches!(kind, MAC_ROUTE | MULTICAST_ROUTE).then_some(distinguisher)
}

/// The subject of a route of type 2. An address that no station can have is passed over.
fn subject(mac: MacAddr, ip: Option<IpAddr>, is_router: bool, mobility: Mobility) -> Subject {
    match ip.filter(|ip| is_unicast(*ip)) {
        Some(ip) => Subject::Neighbour(Neighbour { ip, mac, is_router }, mobility),
        None => Subject::Station(mac, mobility),
    }
}

/// The addresses and the first label of a route of type 2. An Ethernet tag would name one of
/// several networks in a VNI: that is not the port's.
fn station(body: &mut Bytes<'_>) -> Result<(MacAddr, Option<IpAddr>, u32), Malformed> {
    body.take(8 + 10)?;
    let tag = body.array::<4>()?;
    let [bits] = body.array()?;
    let mac = body.array::<6>()?;
    let [ip_bits] = body.array()?;
    if tag != [0; 4] || bits != 48 {
        return Err(Malformed);
    }
    let ip = match ip_bits {
        0 => None,
        32 => Some(IpAddr::from(body.array::<4>()?)),
        128 => Some(IpAddr::from(body.array::<16>()?)),
        _ => return Err(Malformed),
    };
    Ok((MacAddr::new(mac), ip, from_label(body.array()?)))
}

fn from_label([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The next hop of a route of this family.
fn next_hop(value: &mut Bytes<'_>) -> Result<Option<IpAddr>, Malformed> {
    let [high, low, safi, length] = value.array()?;
    let mut hop = Bytes(value.take(length.into())?);
    Ok(match length {
        _ if (u16::from_be_bytes([high, low]), safi) != (AFI, SAFI) => None,
        4 => Some(IpAddr::from(hop.array::<4>()?)),
        // A second one is link-local.
        16 | 32 => Some(IpAddr::from(hop.array::<16>()?).to_canonical()),
        _ => None,
    })
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }
}

impl fmt::Display for Distinguisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, high, low] = self.0;
        write!(f, "{}:{}", IpAddr::from([a, b, c, d]), u16::from_be_bytes([high, low]))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, _, a, b, c, d, e, g] = self.0;
        match kind {
            2 => {
                let (asn, number) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g]));
                write!(f, "{asn}:{number}")
            }
            _ => {
                let (asn, number) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, g]));
                write!(f, "{asn}:{number}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn export(local: &str) -> Export {
        Export {
            vni: 100,
            local: local.parse().unwrap(),
            distinguisher: "10.0.0.1:100".parse().unwrap(),
            target: Target::of(65_001, 100),
        }
    }

    fn import(vni: u32, targets: &[&str]) -> Import {
        let targets = targets.iter().map(|it| it.parse().unwrap()).collect();
        Import { vnis: [vni, 7000].into(), targets }
    }

    fn read(import: &Import, route: &Encoded) -> Result<Option<Route>, Malformed> {
        let attributes: Vec<&[u8]> = route.attributes.iter().map(Vec::as_slice).collect();
        let read = import.route(&route.nlri, &attributes)?;
        Ok(read.map(|(vni, route)| {
            assert!(import.vnis.contains(&vni));
            route
        }))
    }

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);

    fn neighbour(ip: &str, is_router: bool) -> Subject {
        let ip = ip.parse().unwrap();
        let mobility = Mobility { sequence: 3, is_sticky: false };
        Subject::Neighbour(Neighbour { ip, mac: MAC, is_router }, mobility)
    }

    #[test]
    fn routes_of_one_host_are_read_by_another() {
        let moved = Mobility { sequence: 7, is_sticky: true };
        for local in ["10.0.0.1", "fd00::1"] {
            for subject in [
                Subject::Floods,
                Subject::Station(MAC, Mobility::default()),
                Subject::Station(MAC, moved),
                neighbour("192.168.7.1", false),
                neighbour("fd00:7::1", true),
            ] {
                let route = export(local).encode(subject);
                let expected = Route { subject, host: local.parse().unwrap() };
                assert_eq!(read(&import(100, &[]), &route), Ok(Some(expected)));
                assert_eq!(distinguisher(&route.nlri), Some(export(local).distinguisher));
            }
        }
    }

    #[test]
    fn a_route_is_of_the_network_of_its_label_if_its_target_is() {
        let import = Import { vnis: [100, 200].into(), targets: Vec::new() };
        for (label, target, counts) in
            [(100, 100, true), (200, 200, true), (200, 100, false), (300, 300, false)]
        {
            let distinguisher = Distinguisher::of([10, 0, 0, 1], label);
            let target = Target::of(65_001, target);
            let export = Export { vni: label, distinguisher, target, ..export("10.0.0.1") };
            for subject in [Subject::Floods, Subject::Station(MAC, Mobility::default())] {
                let Encoded { nlri, attributes } = export.encode(subject);
                let attributes: Vec<&[u8]> = attributes.iter().map(Vec::as_slice).collect();
                let expected = (label, Route { subject, host: "10.0.0.1".parse().unwrap() });
                assert_eq!(import.route(&nlri, &attributes), Ok(counts.then_some(expected)));
            }
        }
    }

    /// Bytes as RFC 7432, 7.2 and RFC 8365 have them.
    #[test]
    fn a_station_is_written_as_the_standard_says() {
        let moved = Mobility { sequence: 1, is_sticky: false };
        let Encoded { nlri, attributes } = export("10.0.0.1").encode(Subject::Station(MAC, moved));
        let mut expected = vec![2, 33, 0, 1, 10, 0, 0, 1, 0, 100];
        expected.extend([0; 14]);
        expected.extend([48, 2, 0, 0, 0, 0, 1, 0, 0, 0, 100]);
        assert_eq!(nlri, expected);
        let communities = [
            [0xc0, 16, 24].as_slice(),
            &[0, 2, 0xfd, 0xe9, 0, 0, 0, 100],
            &[3, 12, 0, 0, 0, 0, 0, 8],
            &[6, 0, 0, 0, 0, 0, 0, 1],
        ];
        assert_eq!(attributes[3], communities.concat());
        assert_eq!(attributes[2][..13], [0x80, 14, 44, 0, 25, 70, 4, 10, 0, 0, 1, 0, 2]);
    }

    #[test]
    fn a_route_of_another_network_does_not_count() {
        for subject in [Subject::Floods, Subject::Station(MAC, Mobility::default())] {
            let route = export("10.0.0.1").encode(subject);
            for (import, counts) in [
                (import(101, &[]), false),
                (import(101, &["65001:100"]), false),
                (import(100, &["65001:101"]), false),
                (import(100, &["65002:7", "65001:100"]), true),
            ] {
                assert_eq!(read(&import, &route).unwrap().is_some(), counts, "{import:?}");
            }
            let mpls = Encoded {
                attributes: route
                    .attributes
                    .iter()
                    .map(|it| match it[1] {
                        EXTENDED_COMMUNITIES => {
                            let mut other = it.clone();
                            *other.last_mut().unwrap() = 10;
                            other
                        }
                        _ => it.clone(),
                    })
                    .collect(),
                ..route
            };
            assert_eq!(read(&import(100, &[]), &mpls), Ok(None));
        }
    }

    /// Bytes as RFC 9047 has them.
    #[test]
    fn a_router_is_written_as_the_standard_says() {
        let route = export("10.0.0.1").encode(neighbour("fd00:7::1", true));
        assert_eq!(route.attributes[3][27..], [6, 8, 3, 0, 0, 0, 0, 0]);
        let route = export("10.0.0.1").encode(neighbour("fd00:7::1", false));
        assert_eq!(route.attributes[3].len(), 27, "a host says nothing");
    }

    /// As FRR has it where the network has a router (RFC 9135, 3.2.1).
    #[test]
    fn a_second_label_is_passed_over() {
        let mut route = export("10.0.0.1").encode(neighbour("192.168.7.1", false));
        // The last byte of the MAC, then 32 bits.
        assert_eq!(route.nlri[30..36], [1, 32, 192, 168, 7, 1]);
        route.nlri[1] += 3;
        route.nlri.extend([0, 0, 9]);
        let read = read(&import(100, &[]), &route).unwrap().unwrap();
        assert_eq!(read.subject, neighbour("192.168.7.1", false));
    }

    #[test]
    fn an_address_that_no_station_can_have_is_passed_over() {
        for ip in ["224.0.0.1", "0.0.0.0", "127.0.0.1", "ff02::1"] {
            let route = export("10.0.0.1").encode(neighbour(ip, false));
            let read = read(&import(100, &[]), &route).unwrap().unwrap();
            assert!(matches!(read.subject, Subject::Station(MAC, _)), "{ip}");
        }
    }

    #[test]
    fn targets_and_distinguishers_are_written_as_they_are_read() {
        for text in ["65001:100", "1:16777215", "4200000000:9"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        let derived: Target = Target([0, 2, 0xff, 0xff, 0x10, 0, 0, 100]);
        assert!(derived.is_of(100) && !derived.is_of(101));
        assert_eq!("10.0.0.1:9".parse::<Distinguisher>().unwrap().to_string(), "10.0.0.1:9");
        for text in ["", "65001", "x:1", "1:x", "4200000000:70000", "1:5000000000"] {
            assert!(text.parse::<Target>().unwrap_err().contains("65001:100"));
            assert!(text.parse::<Distinguisher>().is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(nlri: Vec<u8>, attributes: Vec<Vec<u8>>) {
            let attributes: Vec<&[u8]> = attributes.iter().map(Vec::as_slice).collect();
            let _ = import(100, &[]).route(&nlri, &attributes);
            let _ = distinguisher(&nlri);
        }

        /// Cut or changed at one place.
        #[test]
        fn a_damaged_route_is_read_or_refused(at in 0usize..140, value: u8, cut: bool) {
            let route = export("10.0.0.1").encode(neighbour("fd00:7::1", true));
            let mut parts = [vec![route.nlri], route.attributes].concat();
            let (mut part, mut at) = (0, at);
            while part + 1 < parts.len() && at >= parts[part].len() {
                at -= parts[part].len();
                part += 1;
            }
            let at = at.min(parts[part].len() - 1);
            parts[part][at] = value;
            if cut {
                parts[part].truncate(at);
            }
            let attributes: Vec<&[u8]> = parts[1..].iter().map(Vec::as_slice).collect();
            let _ = import(100, &[]).route(&parts[0], &attributes);
        }
    }
}
