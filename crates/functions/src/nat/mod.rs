//! `nat`: hosts inside share addresses outside.
//!
//! ```toml
//! inside = ["10.0.1.0/24"]
//! outside = ["10.0.2.1"]
//! from_inside = "out"              # the chain by which frames come from inside
//! [[forward]]                      # a host inside can be reached
//! proto = "tcp"
//! outside = "10.0.2.1:8080"
//! inside = "10.0.1.2:80"
//! ```
//!
//! NAT44 with ports: TCP, UDP, echo requests, and the errors about them with what they quote. It
//! stands between two others, changes packets where they lie, and leaves Ethernet addresses alone:
//! another host has to answer ARP for the addresses outside, best the router behind it. What is
//! neither from inside nor to an address outside passes as it is.
//!
//! Any host can write an address of a host inside into a packet, but not by which chain it comes:
//! that the switch says. What comes by another chain than `from_inside` with such a source is
//! dropped. Without `from_inside` addresses alone decide, and the function in front has to
//! filter.
//!
//! Bindings and the filter for outer hosts are endpoint-independent (RFC 4787, REQ-8): to filter by
//! sender is the firewall's work, which stands on the inner side. Ports are kept where they are
//! free. Hosts inside reach each other by their outer addresses (hairpinning, REQ-9), if what
//! follows sends the packet back. Later fragments go where their first went, which must have come
//! before (REQ-14). Nothing inside of packets is translated: protocols that send addresses, such as
//! FTP's active mode, need another way.

mod bindings;
mod ports;

use std::net::Ipv4Addr;
use std::time::Duration;

use client::nf::{Action, Frame, Generated, Handler, Metadata};
use serde::Deserialize;
use toml::Spanned;

use super::shares::{Entries, Shares};
use super::table::{Table, places};
use super::text::{
    Endpoint, Host, Name, Net, Ports, each, entries, parse, seconds, tcp_or_udp, wrong,
};
use super::time::Ms;
use super::{Counts, Names, named};
use bindings::{Bindings, Refused, Timeouts};
use packet::checksum::Delta;
use packet::ipv4::{End, Fragment, Packet, Protocol, ReadError, Side, icmp};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    inside: Spanned<Vec<Spanned<String>>>,
    outside: Spanned<Vec<Spanned<String>>>,
    from_inside: Option<Spanned<String>>,
    #[serde(default = "ports")]
    ports: Ports,
    #[serde(default = "bindings", deserialize_with = "entries")]
    bindings: u32,
    /// A quarter of them, if nothing is said: RFC 6888 asks for a limit (REQ-4).
    bindings_per_host: Option<Spanned<Entries>>,
    /// Five minutes: what RFC 4787 recommends (REQ-5).
    #[serde(default = "udp_s", deserialize_with = "seconds")]
    udp_s: Duration,
    /// Two hours and four minutes: the least of RFC 5382 (REQ-5).
    #[serde(default = "tcp_s", deserialize_with = "seconds")]
    tcp_s: Duration,
    /// Four minutes, likewise.
    #[serde(default = "tcp_transitory_s", deserialize_with = "seconds")]
    tcp_transitory_s: Duration,
    /// A minute: the least of RFC 5508 (REQ-2).
    #[serde(default = "icmp_s", deserialize_with = "seconds")]
    icmp_s: Duration,
    #[serde(default)]
    forward: Vec<Forward>,
}

impl Config {
    /// Networks inside and addresses outside. What is for an address that is both would go in
    /// circles: no host could say which one it is for.
    fn ends(&self, text: &str) -> anyhow::Result<(Vec<Net>, Vec<Ipv4Addr>)> {
        let (inside, outside) = (self.inside.get_ref(), self.outside.get_ref());
        if inside.is_empty() {
            return Err(wrong(text, &self.inside, "inside: name the networks of those inside"));
        }
        if outside.is_empty() {
            return Err(wrong(text, &self.outside, "outside: name an address that they share"));
        }
        let inside: Vec<Net> = each(text, "inside", inside)?;
        let mut all = Vec::new();
        for (address, Host(ip)) in outside.iter().zip(each(text, "outside", outside)?) {
            if let Some(Net(net)) = inside.iter().find(|net| net.0.contains(&ip)) {
                let why = format_args!(
                    "outside: {ip} lies in {net}, which is inside; take an address that is not, \
                     or a smaller network"
                );
                return Err(wrong(text, address, why));
            }
            if all.contains(&ip) {
                let why = format_args!("outside: {ip} stands there twice; delete one");
                return Err(wrong(text, address, why));
            }
            all.push(ip);
        }
        Ok((inside, all))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forward {
    #[serde(deserialize_with = "tcp_or_udp")]
    proto: Protocol,
    outside: Spanned<Endpoint>,
    inside: Spanned<Endpoint>,
}

fn ports() -> Ports {
    Ports(1024..=u16::MAX)
}

fn bindings() -> u32 {
    1 << 16
}

fn udp_s() -> Duration {
    Duration::from_secs(300)
}

fn tcp_s() -> Duration {
    Duration::from_secs(7440)
}

fn tcp_transitory_s() -> Duration {
    Duration::from_secs(240)
}

fn icmp_s() -> Duration {
    Duration::from_secs(60)
}

/// Packets in pieces that are on their way, and for how long.
const IN_PIECES: u32 = 1024;
const REASSEMBLY: Ms = Ms::from_secs(30);

/// A packet in pieces: both addresses, identification, protocol.
type Whole = (Ipv4Addr, Ipv4Addr, u16, u8);

/// Where the pieces go.
struct InPieces {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    began: Ms,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// Goes out under another address.
    Out,
    /// Comes in for a host inside.
    Back,
    /// From inside by way of outside.
    Hairpin,
    /// None of ours.
    Passed,
    /// Dropped, as what follows: it cannot be read.
    Broken,
    /// From outside, under the address of a host inside.
    Spoofed,
    /// A packet of a protocol without ports.
    Protocol,
    /// To an address outside, without a binding.
    Unbound,
    /// A piece before its first.
    Piece,
    /// There is no room for one more binding.
    Full,
    /// The host has its maximum number of bindings.
    HostFull,
    /// There is no port for one more.
    NoPort,
}

const BECAME: [&str; 12] = [
    "out",
    "in",
    "hairpin",
    "passed",
    "broken",
    "spoofed",
    "protocol",
    "for_nobody",
    "fragment",
    "table_full",
    "host_full",
    "no_port",
];

impl From<Refused> for Became {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full => Self::Full,
            Refused::Host => Self::HostFull,
            Refused::NoPort => Self::NoPort,
        }
    }
}

/// Where a packet is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    /// The packet comes from inside.
    out: bool,
    /// The packet is for an address outside.
    back: bool,
}

/// The chain from inside, and its number, once that is known.
struct Inside {
    chain: Name,
    number: Option<u8>,
}

/// The function.
pub struct Nat {
    inside: Vec<Net>,
    outside: Vec<Ipv4Addr>,
    from_inside: Option<Inside>,
    bindings: Bindings,
    in_pieces: Table<Whole, InPieces>,
    /// Packets in pieces that had to make room before all had passed, or their time was over.
    pieces_forgotten: u64,
    became: [u64; BECAME.len()],
}

impl Nat {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let (inside, outside) = config.ends(text)?;
        let timeouts = Timeouts {
            udp: config.udp_s.into(),
            tcp: config.tcp_s.into(),
            transitory: config.tcp_transitory_s.into(),
            icmp: config.icmp_s.into(),
        };
        let (most, keys) = (config.bindings, ["bindings_per_host", "bindings"]);
        let hosts = Shares::read(text, keys, config.bindings_per_host.as_ref(), most)?;
        let bindings = Bindings::new((most, hosts), &outside, &config.ports.0, timeouts);
        let mut nat = Self {
            inside,
            outside,
            from_inside: config
                .from_inside
                .map(|chain| Inside { chain: Name::new(text, &chain), number: None }),
            bindings,
            in_pieces: Table::new(IN_PIECES),
            pieces_forgotten: 0,
            became: [0; BECAME.len()],
        };
        for (number, one) in (1..).zip(&config.forward) {
            let refuse =
                |(at, why): (_, String)| wrong(text, at, format_args!("forward {number}: {why}"));
            nat.forward(one).map_err(refuse)?;
        }
        Ok(nat)
    }

    /// Refuses with what is wrong, and where.
    fn forward<'a>(&mut self, forward: &'a Forward) -> Result<(), (&'a Spanned<Endpoint>, String)> {
        let [inside, outside] =
            [&forward.inside, &forward.outside].map(|end| End::from(end.get_ref().0));
        if !self.is_inside(inside.ip) {
            let why = format!("{} is in no network of `inside`; add it there", inside.ip);
            return Err((&forward.inside, why));
        }
        if !self.outside.contains(&outside.ip) {
            let why = format!("{} is no address of `outside`; add it there", outside.ip);
            return Err((&forward.outside, why));
        }
        if !self.bindings.fix(forward.proto, inside, outside) {
            let why = "one of its ends has a forward already; delete one of both";
            return Err((&forward.outside, why.to_owned()));
        }
        Ok(())
    }

    /// Whether the function has to know the number of a chain.
    pub fn asks_for_chains(&self) -> bool {
        self.from_inside.is_some()
    }

    /// Learns the number of its chain. Until then no host is inside.
    pub fn know(&mut self, names: &Names) -> anyhow::Result<()> {
        if let Some(inside) = &mut self.from_inside {
            inside.number = Some(names.chain(&inside.chain)?);
        }
        Ok(())
    }

    /// Takes over the settings of another file; existing bindings stay.
    pub fn replace(&mut self, new: Self) {
        let old = std::mem::replace(&mut self.bindings, new.bindings);
        (self.inside, self.outside) = (new.inside, new.outside);
        self.from_inside = new.from_inside;
        self.bindings.adopt(old, |ip| contain(&self.inside, ip));
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let more = [self.bindings.len() as u64, self.pieces_forgotten];
        let more = named(["bindings", "fragmented_forgotten"], more);
        named(BECAME, self.became).into_iter().chain(more).collect()
    }

    fn is_inside(&self, ip: Ipv4Addr) -> bool {
        contain(&self.inside, ip)
    }

    /// Whether the frame may come from a host inside.
    fn may_be_inside(&self, meta: Metadata) -> bool {
        self.from_inside.as_ref().is_none_or(|inside| {
            meta.is_valid() && Some(meta.chain()) == inside.number.map(usize::from)
        })
    }

    fn way(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Way {
        let back = self.outside.contains(&dst);
        let is_for_many = dst.is_multicast() || dst.is_broadcast();
        let leaves = back || !is_for_many && !self.is_inside(dst);
        Way { out: leaves && self.is_inside(src), back }
    }

    fn handle(&mut self, frame: &mut Frame<'_>) -> Result<Became, Became> {
        let packet = match Packet::in_frame(frame.bytes(), frame.is_whole()) {
            Ok(packet) => packet,
            Err(ReadError::Other) => return Ok(Became::Passed),
            Err(ReadError::Malformed) => return Err(Became::Broken),
        };
        let src = packet.ip(frame.bytes(), Side::Src);
        if self.is_inside(src) && !self.may_be_inside(frame.meta) {
            return Err(Became::Spoofed);
        }
        self.translate(frame.bytes_mut(), &packet)
    }

    fn translate(&mut self, bytes: &mut [u8], packet: &Packet) -> Result<Became, Became> {
        let way = self.way(packet.ip(bytes, Side::Src), packet.ip(bytes, Side::Dst));
        let became = match way {
            Way { out: false, back: false } => return Ok(Became::Passed),
            Way { out: true, back: false } => Became::Out,
            Way { out: false, back: true } => Became::Back,
            Way { out: true, back: true } => Became::Hairpin,
        };
        match packet.fragment {
            Fragment::Whole => self.first(bytes, packet, way)?,
            Fragment::First => {
                let id = whole(bytes, packet);
                self.first(bytes, packet, way)?;
                let (src, dst) = (packet.ip(bytes, Side::Src), packet.ip(bytes, Side::Dst));
                self.remember(id, InPieces { src, dst, began: self.bindings.now });
            }
            Fragment::Later => self.later(bytes, packet, whole(bytes, packet))?,
        }
        Ok(became)
    }

    /// What has its protocol's header.
    fn first(&mut self, bytes: &mut [u8], packet: &Packet, way: Way) -> Result<(), Became> {
        let protocol = Protocol::new(packet.protocol(bytes)).ok_or(Became::Protocol)?;
        if !packet.has_header(protocol) {
            return Err(Became::Broken);
        }
        match (protocol, bytes[packet.l4]) {
            (Protocol::Tcp, _) => {
                let flags = bytes[packet.l4 + 13];
                self.both_ends(bytes, packet, (protocol, flags), way)
            }
            (Protocol::Udp, _) => self.both_ends(bytes, packet, (protocol, 0), way),
            // Requests go out and replies come back; the other way, an identifier says nothing.
            (Protocol::Icmp, icmp::ECHO) if !way.back => {
                self.both_ends(bytes, packet, (protocol, 0), way)
            }
            (Protocol::Icmp, icmp::ECHO_REPLY) if !way.out => {
                self.both_ends(bytes, packet, (protocol, 0), way)
            }
            (Protocol::Icmp, icmp::ECHO | icmp::ECHO_REPLY) => Err(Became::Unbound),
            (Protocol::Icmp, kind) if icmp::is_error(kind) => {
                self.error(&mut bytes[..packet.end], packet, way)
            }
            (Protocol::Icmp, _) => Err(Became::Protocol),
        }
    }

    /// Looks up the destination first: a packet that is for no host makes no binding.
    fn both_ends(
        &mut self,
        bytes: &mut [u8],
        packet: &Packet,
        (protocol, flags): (Protocol, u8),
        way: Way,
    ) -> Result<(), Became> {
        let [src, dst] = [Side::Src, Side::Dst].map(|side| packet.end_of(bytes, protocol, side));
        if way.back {
            let inside = self.bindings.back(protocol, (src, dst), flags).ok_or(Became::Unbound)?;
            packet.set_end(bytes, protocol, Side::Dst, inside);
        }
        if way.out {
            let outside = self.bindings.out(protocol, (src, dst), flags)?;
            packet.set_end(bytes, protocol, Side::Src, outside);
        }
        Ok(())
    }

    /// An error is for the host that sent what it quotes, and quotes what they know of it (RFC
    /// 5508, REQ-4 and REQ-5). It prolongs nothing.
    fn error(&mut self, bytes: &mut [u8], packet: &Packet, way: Way) -> Result<(), Became> {
        let (quoted, protocol) = packet.quoted(bytes).map_err(|unread| match unread {
            ReadError::Other => Became::Protocol,
            ReadError::Malformed => Became::Broken,
        })?;
        let [src, dst] = [Side::Src, Side::Dst].map(|side| quoted.end_of(bytes, protocol, side));
        let mut changes = Delta::default();
        if way.back {
            let inside = self.bindings.known_outside(protocol, src).ok_or(Became::Unbound)?;
            changes = changes.and(quoted.set_end(bytes, protocol, Side::Src, inside));
            packet.set_ip(bytes, Side::Dst, inside.ip);
        }
        if way.out {
            let outside = self.bindings.known_inside(protocol, dst).ok_or(Became::Unbound)?;
            changes = changes.and(quoted.set_end(bytes, protocol, Side::Dst, outside));
            packet.set_ip(bytes, Side::Src, outside.ip);
        }
        packet.keep_sum(bytes, Protocol::Icmp, changes);
        Ok(())
    }

    /// Another one makes room where there is none: a host that sends first pieces only keeps no
    /// other host else's from passing.
    fn remember(&mut self, id: Whole, pieces: InPieces) {
        if self.in_pieces.is_full() && self.in_pieces.find(&id).is_none() {
            let gone = self.in_pieces.turn(|_| true);
            self.pieces_forgotten += u64::from(gone.is_some());
        }
        self.in_pieces.insert(id, pieces);
    }

    fn later(&mut self, bytes: &mut [u8], packet: &Packet, id: Whole) -> Result<(), Became> {
        let now = self.bindings.now;
        let first = self.in_pieces.get(&id);
        let fresh = first.filter(|first| now - first.began < REASSEMBLY);
        let &mut InPieces { src, dst, .. } = fresh.ok_or(Became::Piece)?;
        packet.set_ip(bytes, Side::Src, src);
        packet.set_ip(bytes, Side::Dst, dst);
        Ok(())
    }
}

impl Handler for Nat {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        let became = self.handle(frame);
        let (Ok(index) | Err(index)) = became;
        self.became[index as usize] += 1;
        if became.is_ok() { Action::Next } else { Action::Drop }
    }

    fn batch(&mut self, frames: u32, _: &mut Generated) {
        let now = Ms::now();
        self.bindings.now = now;
        let places = places(frames);
        self.bindings.sweep(places);
        (0..places).for_each(|_| {
            self.in_pieces.turn(|first| now - first.began >= REASSEMBLY);
        });
    }
}

fn whole(bytes: &[u8], packet: &Packet) -> Whole {
    let [src, dst] = [Side::Src, Side::Dst].map(|side| packet.ip(bytes, side));
    (src, dst, packet.identification(bytes), packet.protocol(bytes))
}

fn contain(nets: &[Net], ip: Ipv4Addr) -> bool {
    nets.iter().any(|net| net.0.contains(&ip))
}

#[cfg(test)]
mod tests;
