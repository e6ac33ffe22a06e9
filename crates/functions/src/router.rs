//! `router`: IPv4 between networks.
//!
//! ```toml
//! [[interface]]
//! address = "10.0.1.1/24"
//! [[interface]]
//! address = "10.0.2.1/24"
//! [[route]]
//! to = "0.0.0.0/0"
//! via = "10.0.2.254"
//! ```
//!
//! The router answers ARP and echo requests for its addresses, looks the longest prefix up, counts
//! TTL down, and learns neighbours as any host does: by asking. Until one answers, packets for it
//! wait, for three seconds and as many as Linux lets wait. A packet that cannot go on makes an ICMP
//! message, and the switch counts it as dropped. All interfaces
//! have one Ethernet address. Instances in threads of one process tell each other where neighbours
//! are.

mod board;
mod neighbours;
mod recent;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use client::nf::{self, Action, Frame, Generated, Handler};
use ipnet::Ipv4Net;
use prefix_trie::PrefixMap;
use serde::Deserialize;
use toml::Spanned;

use super::table::Seed;
use super::text::{Host, Net, parse, wrong};
use super::{Counts, named};
pub use board::Board;
use neighbours::{Change, Claim, Neighbours};
use packet::arp::Arp;
use packet::build::{arp, ethernet, icmp_error, ipv4};
use packet::bytes::{ipv4_at, mac_at, u16_at};
use packet::checksum::checksum;
use packet::ethernet::ETHERNET_HEADER;
use packet::ipv4::IPV4_HEADER;
use packet::mac::MacAddr;
use recent::Recent;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The router's Ethernet address.
    #[serde(default)]
    mac: Option<Spanned<MacAddr>>,
    interface: Vec<InterfaceText>,
    #[serde(default)]
    route: Vec<RouteText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterfaceText {
    address: Spanned<String>,
}

fn net(text: &str) -> Result<Ipv4Net, String> {
    Ipv4Net::from_str(text).map_err(|_| format!("{text:?} is none like 10.0.1.1/24"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteText {
    to: Spanned<Net>,
    via: Spanned<Host>,
}

/// Where packets of a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    /// The destination is a neighbour on the interface with this address of ours.
    Here(Ipv4Addr),
    /// To this neighbour.
    Via(Ipv4Addr),
}

const MAC: MacAddr = MacAddr::new([0x02, 0x75, 0x76, 0x61, 0x6c, 0x01]);
/// Most neighbours that were asked for just now.
const ASKED: usize = 16_384;
/// How long what was found for a destination holds.
const RENEWAL: Duration = Duration::from_secs(1);
/// Most ICMP errors in a second.
const COMPLAINTS: u32 = 1000;
/// Between two questions for one neighbour.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most neighbours that packets wait for, most packets and bytes for one (Linux: unres_qlen and
/// unres_qlen_bytes), and for how long.
const AWAITED: usize = 64;
const HELD: usize = 101;
const HELD_BYTES: usize = 212_992;
const HOLD: Duration = Duration::from_secs(3);

/// Packets that wait for a neighbour's answer.
struct Waiting {
    since: Instant,
    packets: VecDeque<nf::Held>,
}

/// The function.
pub struct Router {
    mac: MacAddr,
    own: Vec<Ipv4Addr>,
    routes: PrefixMap<Ipv4Net, Hop>,
    neighbours: Neighbours,
    asked: HashMap<Ipv4Addr, Instant, Seed>,
    recent: Recent,
    /// Since when what is in it may hold.
    renewed: Instant,
    held: HashMap<Ipv4Addr, Waiting>,
    /// Packets that no longer wait. They go to the switch behind the batch, which counts the drops.
    given_up: Vec<nf::Held>,
    /// Neighbours whose packets leave behind this batch: others for them must not overtake these.
    leaving: HashSet<Ipv4Addr>,
    /// For what other instances are to know.
    board: Option<Board>,
    /// Packets that ended here for want of a neighbour.
    unresolved: u64,
    now: Instant,
    /// Messages of this second, and when it began.
    complaints: (u32, Instant),
}

impl Router {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let now = Instant::now();
        let mut router = Self {
            mac: config.mac.as_ref().map_or(MAC, |mac| *mac.get_ref()),
            own: Vec::new(),
            routes: PrefixMap::new(),
            neighbours: Neighbours::default(),
            asked: HashMap::default(),
            recent: Recent::new(),
            renewed: now,
            held: HashMap::new(),
            given_up: Vec::new(),
            leaving: HashSet::new(),
            board: None,
            unresolved: 0,
            now,
            complaints: (0, now),
        };
        if let Some(mac) = config.mac.filter(|mac| mac.get_ref().is_multicast()) {
            return Err(wrong(text, &mac, "mac: a group's address is no router's"));
        }
        for (number, one) in (1..).zip(&config.interface) {
            let refuse = |why| wrong(text, &one.address, format_args!("interface {number}: {why}"));
            router.add(one.address.get_ref()).map_err(refuse)?;
        }
        for (number, one) in (1..).zip(&config.route) {
            let refuse = |why| format!("route {number}: {why}");
            let (to, via) = (one.to.get_ref().0, one.via.get_ref().0);
            router.check_neighbour(via).map_err(|why| wrong(text, &one.via, refuse(why)))?;
            router.lead(to, via).map_err(|why| wrong(text, &one.to, refuse(why)))?;
        }
        anyhow::ensure!(!router.own.is_empty(), "a router has interfaces");
        Ok(router)
    }

    fn add(&mut self, address: &str) -> Result<(), String> {
        let address = net(address)?;
        let (own, new) = (address.addr(), address.trunc());
        check_host(own, new)?;
        // There are no routes yet.
        match self.routes.keys().find(|known| known.contains(&new) || new.contains(known)) {
            Some(known) if known == new => return Err(format!("{new} has an interface already")),
            Some(known) => {
                let why = "which has an interface; take networks that do not overlap";
                return Err(format!("{new} has addresses of {known}, {why}"));
            }
            None => {}
        }
        self.routes.insert(new, Hop::Here(own));
        self.own.push(own);
        Ok(())
    }

    /// Whether a router can be there.
    fn check_neighbour(&self, via: Ipv4Addr) -> Result<(), String> {
        if self.own.contains(&via) {
            return Err(format!("{via} is our own address; name a neighbour's"));
        }
        match self.routes.get_lpm(&Ipv4Net::from(via)) {
            Some((net, Hop::Here(_))) => check_host(via, net),
            _ => Err(format!("{via} is in no network of ours; add an interface there")),
        }
    }

    fn lead(&mut self, to: Ipv4Net, via: Ipv4Addr) -> Result<(), String> {
        match self.routes.insert(to, Hop::Via(via)) {
            None => Ok(()),
            Some(Hop::Here(_)) => Err(format!("{to} is a network of ours")),
            Some(Hop::Via(before)) => Err(format!("{to} has a route by {before}; delete one")),
        }
    }

    /// Is from now on what another file says; neighbours that are still some stay known, and
    /// awaited.
    pub fn replace(&mut self, new: Self) {
        let is_ours = |address: Ipv4Addr| new.source_for(address).is_some();
        let neighbours = std::mem::take(&mut self.neighbours).of(is_ours);
        let mut held = std::mem::take(&mut self.held);
        let gone: Vec<_> = held.extract_if(|address, _| !is_ours(*address)).collect();
        gone.into_iter().flat_map(|(_, waiting)| waiting.packets).for_each(|it| self.give_up(it));
        let (given_up, unresolved) = (std::mem::take(&mut self.given_up), self.unresolved);
        let board = self.board.take();
        *self = Self { neighbours, held, given_up, unresolved, board, ..new };
    }

    /// Has it tell other instances where neighbours are, and hear it from them.
    pub fn join(&mut self, board: Board) {
        self.board = Some(board);
    }

    /// Whether a pending lookup depends on an ARP reply that another instance may receive.
    pub fn awaits_news(&self) -> bool {
        self.board.is_some() && !self.held.is_empty()
    }

    /// What it knows.
    pub fn counts(&self) -> Counts {
        let held = self.held.values().map(Waiting::count).sum();
        let counts = [self.neighbours.count(), held, self.unresolved];
        named(["neighbours", "held", "unresolved"], counts)
    }

    fn hop(&self, dst: Ipv4Addr) -> Option<Hop> {
        self.routes.get_lpm(&Ipv4Net::from(dst)).map(|(_, hop)| *hop)
    }

    /// A batch comes now.
    fn begin(&mut self, now: Instant) {
        self.now = now;
        self.leaving.clear();
        if now.duration_since(self.renewed) >= RENEWAL {
            self.renewed = now;
            self.recent.forget();
        }
    }

    /// The next hop for a destination.
    fn next(&self, dst: Ipv4Addr) -> Option<Ipv4Addr> {
        self.hop(dst).map(|hop| if let Hop::Via(via) = hop { via } else { dst })
    }

    /// Our address in the network of a neighbour.
    fn source_for(&self, neighbour: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.hop(neighbour)? {
            Hop::Here(own) => Some(own),
            Hop::Via(_) => None,
        }
    }

    /// Hears where a neighbour is. `false`: that is nothing new, or there is no room for it.
    fn learn(&mut self, claim: Claim, made: &mut Generated) -> bool {
        let Claim { address, station: mac, .. } = claim;
        if self.source_for(address).is_none() {
            return false;
        }
        match self.neighbours.hear(claim, self.now) {
            Change::Nothing => return false,
            Change::Moved => self.recent.forget(),
            Change::Known => {}
        }
        self.asked.remove(&address);
        if let Some(Waiting { packets, .. }) = self.held.remove(&address) {
            self.leaving.insert(address);
            for mut packet in packets {
                self.readdress(&mut packet.bytes, mac);
                packet.meta = packet.meta.turned();
                made.send_on(packet);
            }
        }
        true
    }

    /// A packet on its way to a neighbour.
    fn readdress(&self, bytes: &mut [u8], station: MacAddr) {
        bytes[..6].copy_from_slice(&station.octets());
        bytes[6..12].copy_from_slice(&self.mac.octets());
        count_down(&mut bytes[ETHERNET_HEADER..]);
    }

    /// Ends a packet that waited.
    fn give_up(&mut self, packet: nf::Held) {
        self.unresolved += 1;
        self.given_up.push(packet);
    }

    /// Keeps a packet until its neighbour has answered. Of too many the oldest are lost.
    fn hold(&mut self, neighbour: Ipv4Addr, frame: &Frame<'_>) -> Action {
        let has_room = self.held.len() < AWAITED || self.held.contains_key(&neighbour);
        if !has_room || !frame.is_whole() {
            self.unresolved += 1;
            return Action::Drop;
        }
        let held = self.held.entry(neighbour);
        let held = held.or_insert_with(|| Waiting { since: self.now, packets: VecDeque::new() });
        let oldest = held.make_room(frame.bytes().len());
        held.packets.push_back(frame.to_held());
        oldest.into_iter().for_each(|packet| self.give_up(packet));
        Action::Hold
    }

    /// Asks again for neighbours that packets wait for; says whose do not go on.
    fn age_neighbours(&mut self, made: &mut Generated) {
        let awaited: Vec<_> =
            self.held.iter().map(|(address, held)| (*address, held.since)).collect();
        for (address, since) in awaited {
            if self.now.duration_since(since) < HOLD {
                self.neighbour(address, made);
                continue;
            }
            let held = self.held.remove(&address).into_iter().flat_map(|held| held.packets);
            for packet in held {
                let bytes = &packet.bytes;
                let (from, src) = (mac_at(bytes, 6), ipv4_at(&bytes[ETHERNET_HEADER..], 12));
                self.complain((3, 1), from, src, bytes, made);
                self.give_up(packet);
            }
        }
    }

    /// Learns from an ARP packet for the router, in a frame from this source, and answers it.
    fn hear(&mut self, packet: Arp, source: MacAddr, made: &mut Generated) {
        let Arp { operation, sender: from, target } = packet;
        if !self.own.contains(&target) {
            return;
        }
        let claim = Claim { address: from.1, station: from.0, source };
        if self.learn(claim, made)
            && let Some(board) = &self.board
        {
            board.post(claim);
        }
        if operation == Arp::REQUEST {
            let answer = arp(Arp::REPLY, (self.mac, target), from);
            made.send(&ethernet(from.0, self.mac, 0x0806, &padded(answer)));
        }
    }

    /// The station of a neighbour; asks for it where it is not known.
    fn neighbour(&mut self, address: Ipv4Addr, made: &mut Generated) -> Option<MacAddr> {
        let known = self.neighbours.get(address, self.now);
        let is_fresh = known.is_some_and(|(_, is_fresh)| is_fresh);
        let may_ask = || {
            let asked = self.asked.get(&address);
            asked.is_none_or(|asked| self.now.duration_since(*asked) >= PATIENCE)
        };
        if !is_fresh && may_ask() {
            let from = (self.mac, self.source_for(address)?);
            let question = arp(Arp::REQUEST, from, (MacAddr::ZERO, address));
            made.send(&ethernet(MacAddr::BROADCAST, self.mac, 0x0806, &padded(question)));
            if self.asked.len() >= ASKED {
                self.asked.clear();
            }
            self.asked.insert(address, self.now);
        }
        // An old answer is good until there is another, or it is over.
        known.map(|(mac, _)| mac)
    }

    /// The station of the next hop, which is noted with the destination.
    fn station(&mut self, dst: Ipv4Addr, next: Ipv4Addr, made: &mut Generated) -> Option<MacAddr> {
        let station = self.neighbour(next, made)?;
        self.recent.put(dst, (next, station));
        Some(station)
    }

    fn packet(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action {
        let bytes = frame.bytes();
        let packet = &bytes[ETHERNET_HEADER..];
        let header = usize::from(packet[0] & 0xf) * 4;
        let is_sound = packet[0] >> 4 == 4 && header >= IPV4_HEADER && packet.len() >= header;
        if !is_sound || checksum(&packet[..header]) != 0 {
            return Action::Drop;
        }
        let (src, dst, ttl) = (ipv4_at(packet, 12), ipv4_at(packet, 16), packet[8]);
        let recent = self.recent.get(dst);
        if recent.is_none() && self.own.contains(&dst) {
            return self.for_us(frame, header);
        }
        let from = mac_at(bytes, 6);
        let Some(next) = recent.map(|(next, _)| next).or_else(|| self.next(dst)) else {
            return self.complain((3, 0), from, src, bytes, made);
        };
        if ttl <= 1 {
            return self.complain((11, 0), from, src, bytes, made);
        }
        let station = recent.map(|(_, station)| station);
        let Some(station) = station.or_else(|| self.station(dst, next, made)) else {
            return self.hold(next, frame);
        };
        self.readdress(frame.bytes_mut(), station);
        frame.meta = frame.meta.turned();
        if frame.is_whole() && self.leaving.contains(&next) {
            made.send_on(frame.to_held());
            return Action::Hold;
        }
        Action::Next
    }

    /// Echo requests are answered where they lie.
    fn for_us(&mut self, frame: &mut Frame<'_>, header: usize) -> Action {
        let at = ETHERNET_HEADER + header;
        let is_echo = frame.bytes()[ETHERNET_HEADER + 9] == 1 && frame.bytes().get(at) == Some(&8);
        if !is_echo || !frame.is_whole() {
            return Action::Drop;
        }
        let own = self.mac;
        let total = usize::from(u16_at(&frame.bytes()[ETHERNET_HEADER..], 2));
        let bytes = frame.bytes_mut();
        let end = (ETHERNET_HEADER + total).min(bytes.len());
        if end < at + 8 {
            return Action::Drop;
        }
        bytes.copy_within(6..12, 0);
        bytes[6..12].copy_from_slice(&own.octets());
        let (src, dst) = (address_at(bytes, 12), address_at(bytes, 16));
        bytes[ETHERNET_HEADER + 12..ETHERNET_HEADER + 16].copy_from_slice(&dst);
        bytes[ETHERNET_HEADER + 16..ETHERNET_HEADER + 20].copy_from_slice(&src);
        (bytes[at], bytes[at + 2], bytes[at + 3]) = (0, 0, 0);
        let sum = checksum(&bytes[at..end]).to_be_bytes();
        bytes[at + 2..at + 4].copy_from_slice(&sum);
        frame.meta = frame.meta.turned();
        Action::Next
    }

    fn may_complain(&mut self) -> bool {
        let (count, since) = self.complaints;
        let is_new = self.now.duration_since(since) >= Duration::from_secs(1);
        self.complaints = if is_new { (1, self.now) } else { (count.saturating_add(1), since) };
        self.complaints.0 <= COMPLAINTS
    }

    /// Says why a packet does not go on, where RFC 1122 (3.2.2) lets it: not about such messages,
    /// later fragments, multicast, or packets without a source; and not too often.
    fn complain(
        &mut self,
        (kind, code): (u8, u8),
        to: MacAddr,
        src: Ipv4Addr,
        bytes: &[u8],
        made: &mut Generated,
    ) -> Action {
        let packet = &bytes[ETHERNET_HEADER..];
        let is_icmp = packet[9] == 1 && packet.get(20) != Some(&8);
        let is_later_piece = u16_at(packet, 6) & 0x1fff != 0;
        let is_one = |ip: Ipv4Addr| {
            !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || ip.is_loopback())
        };
        let is_apt = !is_icmp && !is_later_piece && is_one(src) && is_one(ipv4_at(packet, 16));
        if is_apt
            && let Some(own) = self.source_for(src).or(self.own.first().copied())
            && self.may_complain()
        {
            let message = ipv4(1, own, src, &icmp_error(kind, code, packet));
            made.send(&ethernet(to, self.mac, 0x0800, &message));
        }
        Action::Drop
    }
}

/// Whether an address in a network is a host's.
fn check_host(address: Ipv4Addr, net: Ipv4Net) -> Result<(), String> {
    // Of networks of two addresses, both are hosts' (RFC 3021).
    if net.prefix_len() < 31 && [net.network(), net.broadcast()].contains(&address) {
        return Err(format!("{address} is no host's in {net}; take another"));
    }
    Host::try_from(address).map(drop)
}

impl Waiting {
    fn count(&self) -> u64 {
        self.packets.len() as u64
    }

    /// Takes out the oldest packets until one of `len` bytes more may wait.
    fn make_room(&mut self, len: usize) -> Vec<nf::Held> {
        let mut bytes: usize = self.packets.iter().map(|packet| packet.bytes.len()).sum();
        let mut oldest = Vec::new();
        while self.packets.len() >= HELD || bytes + len > HELD_BYTES {
            let Some(packet) = self.packets.pop_front() else { break };
            bytes -= packet.bytes.len();
            oldest.push(packet);
        }
        oldest
    }
}

/// Four bytes of the IPv4 header.
fn address_at(bytes: &[u8], at: usize) -> [u8; 4] {
    ipv4_at(bytes, ETHERNET_HEADER + at).octets()
}

/// TTL less one, and the header's sum with it (RFC 1624).
fn count_down(packet: &mut [u8]) {
    packet[8] -= 1;
    let sum = u32::from(u16_at(packet, 10)) + 0x100;
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// To the shortest frame of Ethernet.
fn padded(mut payload: Vec<u8>) -> Vec<u8> {
    payload.resize(payload.len().max(46), 0);
    payload
}

impl Handler for Router {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action {
        let bytes = frame.bytes();
        let to_us = bytes.get(..6) == Some(&self.mac.octets());
        match u16_at(bytes, 12) {
            0x0806 => {
                if let Some(packet) = Arp::read(&bytes[ETHERNET_HEADER..]) {
                    self.hear(packet, mac_at(bytes, 6), made);
                }
                Action::Drop
            }
            0x0800 if to_us && bytes.len() >= ETHERNET_HEADER + IPV4_HEADER => {
                self.packet(frame, made)
            }
            // A router keeps networks apart: nothing else goes from one to the other.
            _ => Action::Drop,
        }
    }

    fn batch(&mut self, frames: u32, made: &mut Generated) {
        self.begin(Instant::now());
        self.neighbours.sweep(frames, self.now);
        for claim in self.board.as_mut().map(Board::news).unwrap_or_default() {
            self.learn(claim, made);
        }
        if !self.held.is_empty() {
            self.age_neighbours(made);
        }
        for packet in self.given_up.drain(..) {
            made.send_as(packet, Action::Drop);
        }
    }
}

#[cfg(test)]
mod tests;
