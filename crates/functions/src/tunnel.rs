//! `tunnel`: frames of one place in packets to another: VXLAN (RFC 7348).
//!
//! ```toml
//! inside = "wrap"                  # the chain whose frames are put into packets
//! vni = 42
//! local = "192.0.2.1"
//! remote = "192.0.2.2"             # or by a router: next_hop = "192.0.2.254"
//! ```
//!
//! Two chains lead to it. What comes by the one that is named `inside` goes into UDP packets to the
//! remote end; what comes by any other is taken out of its packets, if the remote sent it to us
//! under our number, and goes on by its inner address:
//!
//! ```text
//!  inside ── chain wrap ──► tunnel ──► Ethernet │ IPv4 │ UDP 4789 │ VXLAN │ frame ──► outside
//!         ◄── frame ─────── tunnel ◄── chain unwrap ── outside
//! ```
//!
//! Everything from inside goes to the remote: a tunnel is a switch of its own with one port inside.
//! It answers ARP for its address outside, and asks for the remote's. Which frames may do what is
//! told by the chain, which the switch writes: no host inside can speak for the outside. A frame
//! that would make a packet longer than `mtu` is dropped and counted: stations inside have an MTU
//! of 50 less.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use client::nf::{Action, Frame, Generated, Handler, Metadata};
use serde::{Deserialize, Deserializer, de::Error};
use toml::Spanned;

use super::text::{Host, Name, key_of, parse, wrong};
use super::{Counts, Names, named};
use packet::arp::Arp;
use packet::build::{arp, ethernet};
use packet::bytes::{mac_at, u16_at};
use packet::checksum::checksum;
use packet::ethernet::ETHERNET_HEADER;
use packet::ipv4::{Fragment, IPV4_HEADER, Packet, Side};
use packet::mac::MacAddr;
use packet::vxlan::{self, UDP_PORT, Vni};

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    inside: Spanned<String>,
    #[serde(deserialize_with = "vni")]
    vni: Vni,
    local: Host,
    remote: Spanned<Host>,
    /// The router to ask for its MAC address, where the remote is further away.
    next_hop: Option<Host>,
    #[serde(default = "own_mac")]
    mac: MacAddr,
    #[serde(default = "mtu", deserialize_with = "a_mtu")]
    mtu: u16,
}

fn own_mac() -> MacAddr {
    MacAddr::new([0x02, 0x75, 0x76, 0x61, 0x6c, 0x02])
}

fn mtu() -> u16 {
    1500
}

fn vni<'de, D: Deserializer<'de>>(from: D) -> Result<Vni, D::Error> {
    let number = u32::deserialize(from)?;
    Vni::new(number).ok_or_else(|| D::Error::custom(format!("{number} has more than 24 bits")))
}

fn a_mtu<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    match u16::deserialize(from)? {
        number @ 576.. => Ok(number),
        number => Err(D::Error::custom(format!("{number} is below 576, the least of IPv4"))),
    }
}

const UDP: usize = 8;
/// What is put in front of a frame.
const HEADERS: usize = ETHERNET_HEADER + IPV4_HEADER + UDP + vxlan::HEADER;
/// Between two questions for the remote's Ethernet address, and how long an answer is fresh.
const PATIENCE: Duration = Duration::from_millis(500);
const FRESH: Duration = Duration::from_secs(300);

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// Goes out in a packet.
    Wrapped,
    /// Came in one.
    Unwrapped,
    /// Was ARP, and is answered or learnt from.
    Arp,
    /// Is dropped, as what follows: its packet would be too long.
    TooLong,
    /// The MAC address of the remote is not yet known.
    NoRemote,
    /// Comes from outside, and is not from the remote for us.
    Foreign,
}

const BECAME: [&str; 6] = ["wrapped", "unwrapped", "arp", "too_long", "no_remote", "foreign"];

/// The function.
pub struct Tunnel {
    config: Config,
    remote: Ipv4Addr,
    /// The chain from inside, and its number.
    chain: Name,
    inside: Option<u8>,
    neighbour: Option<(MacAddr, Instant)>,
    asked: Option<Instant>,
    now: Instant,
    became: [u64; BECAME.len()],
}

impl Tunnel {
    /// Reads its file. Nothing passes until [`Self::know`].
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let Host(remote) = *config.remote.get_ref();
        if config.local.0 == remote {
            return Err(wrong(text, &config.remote, "local and remote are one address"));
        }
        let chain = Name::new(text, &config.inside);
        let (now, became) = (Instant::now(), [0; BECAME.len()]);
        Ok(Self { config, remote, chain, inside: None, neighbour: None, asked: None, now, became })
    }

    /// Learns the number of its chain.
    pub fn know(&mut self, names: &Names) -> anyhow::Result<()> {
        self.inside = Some(names.chain(&self.chain)?);
        Ok(())
    }

    /// Is from now on what another file says.
    pub fn replace(&mut self, new: Self) {
        let became = self.became;
        *self = Self { became, ..new };
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        named(BECAME, self.became)
    }

    fn is_from_inside(&self, meta: Metadata) -> bool {
        meta.is_valid() && Some(meta.chain()) == self.inside.map(usize::from)
    }

    fn next_hop(&self) -> Ipv4Addr {
        self.config.next_hop.map_or(self.remote, |host| host.0)
    }

    fn wrap(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Became {
        let len = frame.bytes().len();
        let packet = len + HEADERS - ETHERNET_HEADER;
        let source = source_port(frame);
        if packet > usize::from(self.config.mtu) || !frame.resize(len + HEADERS) {
            return Became::TooLong;
        }
        let Some(neighbour) = self.neighbour(made) else { return Became::NoRemote };
        let bytes = frame.bytes_mut();
        bytes.copy_within(..len, HEADERS);
        self.write_headers(bytes, neighbour, source);
        Became::Wrapped
    }

    fn write_headers(&self, bytes: &mut [u8], neighbour: MacAddr, source: u16) {
        let (Config { local, vni, .. }, remote) = (&self.config, self.remote);
        let total = u16::try_from(bytes.len() - ETHERNET_HEADER).expect("within the MTU");
        let (outer, rest) = bytes.split_at_mut(ETHERNET_HEADER);
        outer[..6].copy_from_slice(&neighbour.octets());
        outer[6..12].copy_from_slice(&self.config.mac.octets());
        outer[12..].copy_from_slice(&[8, 0]);
        let (ipv4, rest) = rest.split_at_mut(IPV4_HEADER);
        let [high, low] = total.to_be_bytes();
        // Not to be cut in pieces (RFC 7348, 4.3).
        ipv4[..12].copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        ipv4[12..16].copy_from_slice(&local.0.octets());
        ipv4[16..].copy_from_slice(&remote.octets());
        let sum = checksum(ipv4).to_be_bytes();
        ipv4[10..12].copy_from_slice(&sum);
        let udp = [source, UDP_PORT, total - 20, 0].map(u16::to_be_bytes);
        rest[..UDP].copy_from_slice(udp.as_flattened());
        rest[UDP..UDP + vxlan::HEADER].copy_from_slice(&vxlan::header(*vni));
    }

    /// Where packets to the remote go first; asks where it is not known, or old.
    fn neighbour(&mut self, made: &mut Generated) -> Option<MacAddr> {
        let now = self.now;
        let is_fresh = self.neighbour.is_some_and(|(_, seen)| now.duration_since(seen) < FRESH);
        let may_ask = self.asked.is_none_or(|asked| now.duration_since(asked) >= PATIENCE);
        if !is_fresh && may_ask {
            let question = arp(
                Arp::REQUEST,
                (self.config.mac, self.config.local.0),
                (MacAddr::ZERO, self.next_hop()),
            );
            made.send(&padded(ethernet(MacAddr::BROADCAST, self.config.mac, 0x0806, &question)));
            self.asked = Some(now);
        }
        self.neighbour.map(|(mac, _)| mac)
    }

    fn unwrap(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Became {
        let bytes = frame.bytes();
        if u16_at(bytes, 12) == 0x0806 {
            return self.hear(&bytes[ETHERNET_HEADER..], made);
        }
        let Some(inner) = self.inner(frame) else { return Became::Foreign };
        let len = inner.len();
        frame.bytes_mut().copy_within(inner, 0);
        frame.resize(len);
        Became::Unwrapped
    }

    /// Where the frame is that the remote has sent us in this one.
    fn inner(&self, frame: &Frame<'_>) -> Option<std::ops::Range<usize>> {
        let (bytes, config) = (frame.bytes(), &self.config);
        let packet = Packet::in_frame(frame.bytes(), frame.is_whole()).ok()?;
        let begin = packet.l4 + UDP + vxlan::HEADER;
        let [src, dst] = [Side::Src, Side::Dst].map(|side| packet.ip(bytes, side));
        let is_ours = mac_at(bytes, 0) == config.mac
            && (src, dst, packet.protocol(bytes)) == (self.remote, config.local.0, 17)
            && packet.fragment == Fragment::Whole
            && frame.is_whole();
        let has_frame =
            begin + ETHERNET_HEADER <= packet.end && u16_at(bytes, packet.l4 + 2) == UDP_PORT;
        if !is_ours || !has_frame || checksum(&bytes[packet.l3..packet.l4]) != 0 {
            return None;
        }
        let header = vxlan::read(&bytes[packet.l4 + UDP..begin]);
        // What the datagram does not cover is no part of the frame.
        let is_all = packet.l4 + usize::from(u16_at(bytes, packet.l4 + 4)) == packet.end;
        let is_valid = is_all && header.is_some_and(|(vni, _)| vni == config.vni);
        is_valid.then_some(begin..packet.end)
    }

    fn hear(&mut self, packet: &[u8], made: &mut Generated) -> Became {
        let own = (self.config.mac, self.config.local.0);
        let packet = Arp::read(packet).filter(|packet| packet.target == own.1);
        let Some(Arp { operation, sender: from, .. }) = packet else { return Became::Foreign };
        if from.1 == self.next_hop() {
            self.neighbour = Some((from.0, self.now));
        }
        if operation == Arp::REQUEST {
            made.send(&padded(ethernet(from.0, own.0, 0x0806, &arp(Arp::REPLY, own, from))));
        }
        Became::Arp
    }
}

/// Different for different flows, so that what is between can spread them (RFC 7348, 5).
fn source_port(frame: &Frame<'_>) -> u16 {
    let hash = match frame.meta.hash() {
        0 => key_of(frame).hash(0),
        hash => hash,
    };
    0xc000 | u16::try_from(hash >> 18).expect("14 bits")
}

/// To the shortest frame of Ethernet.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}

impl Handler for Tunnel {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action {
        let became = if self.is_from_inside(frame.meta) {
            self.wrap(frame, made)
        } else {
            self.unwrap(frame, made)
        };
        self.became[became as usize] += 1;
        if became as usize <= Became::Unwrapped as usize { Action::Next } else { Action::Drop }
    }

    fn batch(&mut self, _: u32, _: &mut Generated) {
        self.now = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;
    use packet::build::ipv4;

    const CONFIG: &str = "inside = \"wrap\"\nvni = 42\nlocal = \"192.0.2.1\"\n\
        remote = \"192.0.2.2\"\nmtu = 600\n";
    const REMOTE: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);
    const INSIDE: u64 = 1 << 63 | 3 << 44;
    const OUTSIDE: u64 = 1 << 63 | 4 << 44;

    fn tunnel() -> Tunnel {
        let mut tunnel = Tunnel::new(CONFIG).unwrap();
        tunnel.know(&Names { services: vec![], chains: vec![("wrap".to_owned(), 3)] }).unwrap();
        tunnel
    }

    /// What passes, and what is sent beside it.
    fn see(tunnel: &mut Tunnel, mark: u64, bytes: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut buffer, mut made) = (bytes.to_vec(), Generated::default());
        buffer.resize(bytes.len() + HEADERS, 0xee);
        let mut frame = Frame::new(&mut buffer);
        frame.resize(bytes.len());
        frame.meta = Metadata::new(mark);
        let action = tunnel.frame(&mut frame, &mut made);
        ((action == Action::Next).then(|| frame.bytes().to_vec()), made.take())
    }

    fn introduced() -> Tunnel {
        let mut tunnel = tunnel();
        let local = (tunnel.config.mac, tunnel.config.local.0);
        let answer = arp(2, (REMOTE, tunnel.remote), local);
        let answer = ethernet(local.0, REMOTE, 0x0806, &answer);
        assert_eq!(see(&mut tunnel, OUTSIDE, &answer), (None, vec![]));
        tunnel
    }

    fn frame() -> Vec<u8> {
        let udp = [&[0, 7, 0, 9, 0, 8, 0, 0][..]].concat();
        ethernet(
            [2; 6],
            [4; 6],
            0x0800,
            &ipv4(17, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &udp),
        )
    }

    /// The frame as the remote would send it.
    fn packed(vni: u8, remote: [u8; 4], frame: &[u8]) -> Vec<u8> {
        let local = own_mac().octets();
        let outer =
            PacketBuilder::ethernet2(REMOTE.octets(), local).ipv4(remote, [192, 0, 2, 1], 64);
        let payload = [&[8, 0, 0, 0, 0, 0, vni, 0], frame].concat();
        let mut packet = Vec::new();
        outer.udp(50000, UDP_PORT).write(&mut packet, &payload).unwrap();
        packet
    }

    #[test]
    fn test_it_asks_for_the_remote_and_then_wraps() {
        let mut tunnel = tunnel();
        let (passed, made) = see(&mut tunnel, INSIDE, &frame());
        assert_eq!((passed, made.len(), &made[0][..6]), (None, 1, &[0xff; 6][..]));
        assert_eq!(see(&mut tunnel, INSIDE, &frame()).1.len(), 0, "and not at once again");
        let mut tunnel = introduced();
        let passed = see(&mut tunnel, INSIDE, &frame()).0.unwrap();
        assert_eq!((&passed[..6], &passed[HEADERS..]), (&REMOTE.octets()[..], &frame()[..]));
        let read = etherparse::SlicedPacket::from_ethernet(&passed).unwrap();
        let Some(etherparse::TransportSlice::Udp(udp)) = read.transport else { panic!() };
        assert_eq!(
            (udp.destination_port(), udp.payload().len()),
            (UDP_PORT, vxlan::HEADER + frame().len())
        );
        assert_eq!(udp.payload()[..8], [8, 0, 0, 0, 0, 0, 42, 0]);
        assert!(udp.source_port() >= 0xc000);
        assert_eq!(checksum(&passed[ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER]), 0);
    }

    #[test]
    fn test_what_the_remote_sends_comes_out_and_nothing_else() {
        let mut tunnel = introduced();
        let good = packed(42, [192, 0, 2, 2], &frame());
        assert_eq!(see(&mut tunnel, OUTSIDE, &good).0, Some(frame()));
        assert_eq!(
            see(&mut tunnel, INSIDE, &good).0.map(|frame| frame[HEADERS..].to_vec()),
            Some(good.clone())
        );
        let mut flagless = good.clone();
        flagless[42] = 0;
        let mut broken = good.clone();
        broken[ETHERNET_HEADER + 1] ^= 1;
        let others = [&[2; 6], &good[6..]].concat();
        let strangers =
            [packed(43, [192, 0, 2, 2], &frame()), packed(42, [192, 0, 2, 3], &frame())];
        let [mut longer, mut shorter] = [good.clone(), good.clone()];
        (longer[39], shorter[39]) = (good[39] + 1, 16);
        for bad in [longer, shorter] {
            assert_eq!(see(&mut tunnel, OUTSIDE, &bad), (None, vec![]), "UDP's length");
        }
        for bad in [flagless, broken, others, frame(), packed(42, [192, 0, 2, 2], &[0; 13])] {
            assert_eq!(see(&mut tunnel, OUTSIDE, &bad), (None, vec![]));
        }
        assert!(strangers.iter().all(|bad| see(&mut tunnel, OUTSIDE, bad).0.is_none()));
        assert_eq!(tunnel.became[Became::Foreign as usize], 9);
    }

    #[test]
    fn test_nobody_inside_can_say_where_the_remote_is() {
        let mut tunnel = introduced();
        let local = (tunnel.config.mac, tunnel.config.local.0);
        let lie = ethernet(
            local.0,
            [6; 6],
            0x0806,
            &arp(2, (MacAddr::new([6; 6]), tunnel.remote), local),
        );
        see(&mut tunnel, INSIDE, &lie);
        assert_eq!(see(&mut tunnel, INSIDE, &frame()).0.unwrap()[..6], REMOTE.octets());
        let question = arp(1, (REMOTE, tunnel.remote), (MacAddr::ZERO, local.1));
        let (_, made) = see(&mut tunnel, OUTSIDE, &ethernet([0xff; 6], REMOTE, 0x0806, &question));
        assert_eq!((&made[0][..6], mac_at(&made[0], 22)), (&REMOTE.octets()[..], local.0));
    }

    #[test]
    fn test_the_remote_is_at_no_groups_address() {
        let mut tunnel = introduced();
        let local = (tunnel.config.mac, tunnel.config.local.0);
        for group in [MacAddr::BROADCAST, MacAddr::new([1, 0, 0x5e, 0, 0, 1]), MacAddr::ZERO] {
            for operation in [1, 2] {
                let lie = arp(operation, (group, tunnel.remote), local);
                let lie = ethernet(local.0, REMOTE, 0x0806, &lie);
                assert_eq!(see(&mut tunnel, OUTSIDE, &lie), (None, vec![]), "{group}");
            }
        }
        assert_eq!(tunnel.became[Became::Foreign as usize], 6);
        assert_eq!(see(&mut tunnel, INSIDE, &frame()).0.unwrap()[..6], REMOTE.octets());
    }

    #[test]
    fn test_a_packet_is_never_longer_than_the_mtu() {
        let mut tunnel = introduced();
        let fits = ethernet([2; 6], [4; 6], 0x88b5, &[7; 550]);
        assert_eq!(see(&mut tunnel, INSIDE, &fits).0.unwrap().len(), ETHERNET_HEADER + 600);
        let long = ethernet([2; 6], [4; 6], 0x88b5, &[7; 551]);
        assert_eq!(see(&mut tunnel, INSIDE, &long).0, None);
        assert_eq!(tunnel.became[Became::TooLong as usize], 1);
        let mut buffer = fits;
        let mut frame = Frame::new(&mut buffer);
        frame.meta = Metadata::new(INSIDE);
        let action = tunnel.frame(&mut frame, &mut Generated::default());
        assert_eq!(action, Action::Drop, "a buffer without room");
    }

    #[test]
    fn test_nonsense_is_refused() {
        for (from, to, said) in [
            ("vni = 42", "vni = 16777216", "line 2"),
            ("mtu = 600", "mtu = 500", "line 5"),
            ("192.0.2.2", "192.0.2.1", "one address"),
            ("192.0.2.2", "192.0.2", "line 4"),
            ("vni", "vlan", "unknown key"),
        ] {
            let text = CONFIG.replace(from, to);
            let error = format!("{:#}", Tunnel::new(&text).err().expect(to));
            assert!(error.contains(said), "{error}");
        }
        let error = Tunnel::new(CONFIG).unwrap().know(&Names::default());
        assert!(error.unwrap_err().to_string().contains("chain add"));
    }

    proptest! {
        #[test]
        fn test_no_frame_is_too_strange(
            changes in prop::collection::vec((0usize..120, any::<u8>()), 0..4),
            cut in 0usize..150,
        ) {
            let mut tunnel = introduced();
            let mut bytes = packed(42, [192, 0, 2, 2], &frame());
            for (at, byte) in changes {
                bytes.get_mut(at).into_iter().for_each(|place| *place = byte);
            }
            bytes.truncate(cut);
            see(&mut tunnel, OUTSIDE, &bytes);
            see(&mut tunnel, INSIDE, &bytes);
        }
    }
}
