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
//! It answers ARP and echo requests for its addresses, looks the longest prefix up, counts TTL
//! down, and learns neighbours as any host does: by asking. Until one answers, a few packets for
//! it wait, for three seconds. A packet that cannot go on makes an ICMP message. All interfaces
//! have one Ethernet address. Instances in threads of one process tell each other where neighbours
//! are.

mod board;
mod recent;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use client::nf::{self, Action, Frame, Handler, Made};
use ipnet::Ipv4Net;
use prefix_trie::PrefixMap;
use serde::Deserialize;

use super::packet::{
    ARP, ETHERNET, IPV4, Mac, arp, checksum, ethernet, ethertype, icmp_error, ip, ipv4, mac, word,
};
use super::table::Seed;
use super::{Counts, named};
pub use board::Board;
use recent::Recent;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The router's Ethernet address.
    #[serde(default)]
    mac: Option<client::api::Mac>,
    interface: Vec<InterfaceText>,
    #[serde(default)]
    route: Vec<RouteText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterfaceText {
    address: String,
}

fn net(text: &str) -> Result<Ipv4Net, String> {
    Ipv4Net::from_str(text).map_err(|_| format!("{text:?} is none like 10.0.1.1/24"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteText {
    to: String,
    via: Ipv4Addr,
}

/// Where packets of a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    /// Their destination is a neighbour, of the one that has this address of ours.
    Here(Ipv4Addr),
    /// To this neighbour.
    Via(Ipv4Addr),
}

const MAC: Mac = [0x02, 0x75, 0x76, 0x61, 0x6c, 0x01];
const EVERYBODY: Mac = [0xff; 6];
/// Most neighbours that are known, and for how long.
const NEIGHBOURS: usize = 16_384;
const FRESH: Duration = Duration::from_secs(300);
/// How long what was found for a destination holds.
const RENEWAL: Duration = Duration::from_secs(1);
/// Most ICMP errors in a second.
const COMPLAINTS: u32 = 1000;
/// Between two questions for one neighbour.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most neighbours that packets wait for, most packets for one, and for how long.
const AWAITED: usize = 64;
const HELD: usize = 3;
const HOLD: Duration = Duration::from_secs(3);

/// Packets that wait for a neighbour's answer.
struct Held {
    since: Instant,
    packets: VecDeque<nf::Held>,
}

/// The function.
pub struct Router {
    mac: Mac,
    own: Vec<Ipv4Addr>,
    routes: PrefixMap<Ipv4Net, Hop>,
    neighbours: HashMap<Ipv4Addr, (Mac, Instant), Seed>,
    asked: HashMap<Ipv4Addr, Instant, Seed>,
    recent: Recent,
    /// Since when what is in it may hold.
    renewed: Instant,
    held: HashMap<Ipv4Addr, Held>,
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
        let config: Config = toml::from_str(text)?;
        let now = Instant::now();
        let mut router = Self {
            mac: config.mac.map_or(MAC, |mac| mac.0),
            own: Vec::new(),
            routes: PrefixMap::new(),
            neighbours: HashMap::default(),
            asked: HashMap::default(),
            recent: Recent::new(),
            renewed: now,
            held: HashMap::new(),
            leaving: HashSet::new(),
            board: None,
            unresolved: 0,
            now,
            complaints: (0, now),
        };
        anyhow::ensure!(router.mac[0] & 1 == 0, "mac: a group's address is no router's");
        for (number, interface) in (1..).zip(&config.interface) {
            router.add(interface).map_err(|why| anyhow::anyhow!("interface {number}: {why}"))?;
        }
        for (number, route) in (1..).zip(&config.route) {
            router.lead(route).map_err(|why| anyhow::anyhow!("route {number}: {why}"))?;
        }
        anyhow::ensure!(!router.own.is_empty(), "a router has interfaces");
        Ok(router)
    }

    fn add(&mut self, InterfaceText { address }: &InterfaceText) -> Result<(), String> {
        let address = net(address)?;
        let own = address.addr();
        // Of networks of two addresses, both are hosts' (RFC 3021).
        if address.prefix_len() < 31 && [address.network(), address.broadcast()].contains(&own) {
            return Err(format!("{own} is no host's in {}; take another", address.trunc()));
        }
        match self.routes.insert(address.trunc(), Hop::Here(own)) {
            None => self.own.push(own),
            Some(_) => return Err(format!("{} has an interface already", address.trunc())),
        }
        Ok(())
    }

    fn lead(&mut self, RouteText { to, via }: &RouteText) -> Result<(), String> {
        let to = net(to)?.trunc();
        if self.own.contains(via) {
            return Err(format!("{via} is our own address; name a neighbour's"));
        }
        if self.source_for(*via).is_none() {
            return Err(format!("{via} is in no network of ours; add an interface there"));
        }
        match self.routes.insert(to, Hop::Via(*via)) {
            None => Ok(()),
            Some(Hop::Here(_)) => Err(format!("{to} is a network of ours")),
            Some(Hop::Via(before)) => Err(format!("{to} has a route by {before}; delete one")),
        }
    }

    /// Is from now on what another file says; neighbours that are still some stay known, and
    /// awaited.
    pub fn replace(&mut self, new: Self) {
        let (mut neighbours, mut held) =
            (std::mem::take(&mut self.neighbours), std::mem::take(&mut self.held));
        neighbours.retain(|address, _| new.source_for(*address).is_some());
        let waiting: u64 = held.values().map(Held::count).sum();
        held.retain(|address, _| new.source_for(*address).is_some());
        let unresolved = self.unresolved + waiting - held.values().map(Held::count).sum::<u64>();
        let board = self.board.take();
        *self = Self { neighbours, held, unresolved, board, ..new };
    }

    /// Has it tell other instances where neighbours are, and hear it from them.
    pub fn join(&mut self, board: Board) {
        self.board = Some(board);
    }

    /// Does it wait for what another instance may hear?
    pub fn awaits_news(&self) -> bool {
        self.board.is_some() && !self.held.is_empty()
    }

    /// What it knows.
    pub fn counts(&self) -> Counts {
        let held = self.held.values().map(Held::count).sum();
        let counts = [self.neighbours.len() as u64, held, self.unresolved];
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

    /// Who gets packets for a destination from us.
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

    fn learn(&mut self, address: Ipv4Addr, mac: Mac, made: &mut Made) {
        let is_known = self.neighbours.contains_key(&address);
        if self.source_for(address).is_none() || !is_known && self.neighbours.len() >= NEIGHBOURS {
            return;
        }
        let before = self.neighbours.insert(address, (mac, self.now));
        if before.is_some_and(|(before, _)| before != mac) {
            self.recent.forget();
        }
        self.asked.remove(&address);
        if let Some(Held { packets, .. }) = self.held.remove(&address) {
            self.leaving.insert(address);
            for mut packet in packets {
                self.readdress(&mut packet.bytes, mac);
                packet.meta = packet.meta.turned();
                made.send_on(packet);
            }
        }
    }

    /// A packet on its way to a neighbour.
    fn readdress(&self, bytes: &mut [u8], station: Mac) {
        bytes[..6].copy_from_slice(&station);
        bytes[6..12].copy_from_slice(&self.mac);
        count_down(&mut bytes[ETHERNET..]);
    }

    /// Keeps a packet until its neighbour has answered. Of more than a few the oldest is lost.
    fn hold(&mut self, neighbour: Ipv4Addr, frame: &Frame<'_>) -> Action {
        let has_room = self.held.len() < AWAITED || self.held.contains_key(&neighbour);
        if !has_room || !frame.is_whole() {
            self.unresolved += 1;
            return Action::Drop;
        }
        let held = self.held.entry(neighbour);
        let held = held.or_insert_with(|| Held { since: self.now, packets: VecDeque::new() });
        if held.packets.len() == HELD {
            held.packets.pop_front();
            self.unresolved += 1;
        }
        held.packets.push_back(frame.to_held());
        Action::Hold
    }

    /// Asks again for neighbours that packets wait for; says whose do not go on.
    fn tend(&mut self, made: &mut Made) {
        let awaited: Vec<_> =
            self.held.iter().map(|(address, held)| (*address, held.since)).collect();
        for (address, since) in awaited {
            if self.now.duration_since(since) < HOLD {
                self.neighbour(address, made);
                continue;
            }
            let held = self.held.remove(&address).into_iter().flat_map(|held| held.packets);
            for nf::Held { bytes: packet, .. } in held {
                self.unresolved += 1;
                let (from, src) = (mac(&packet, 6), ip(&packet[ETHERNET..], 12));
                self.complain((3, 1), from, src, &packet, made);
            }
        }
    }

    fn arp(&mut self, frame: &[u8], made: &mut Made) -> Action {
        let packet = &frame[ETHERNET..];
        if packet.len() < ARP || packet[..6] != [0, 1, 8, 0, 6, 4] {
            return Action::Drop;
        }
        let (operation, from) = (word(packet, 6), (mac(packet, 8), ip(packet, 14)));
        let target = ip(packet, 24);
        if self.own.contains(&target) {
            self.learn(from.1, from.0, made);
            if let Some(board) = &self.board {
                board.post(from.1, from.0);
            }
            if operation == 1 {
                let answer = arp(2, (self.mac, target), from);
                made.send(&ethernet(from.0, self.mac, 0x0806, &padded(answer)));
            }
        }
        Action::Drop
    }

    /// The station of a neighbour; asks for it where it is not known.
    fn neighbour(&mut self, address: Ipv4Addr, made: &mut Made) -> Option<Mac> {
        let known = self.neighbours.get(&address).copied();
        let fresh = known.filter(|(_, seen)| self.now.duration_since(*seen) < FRESH);
        let may_ask = || {
            let asked = self.asked.get(&address);
            asked.is_none_or(|asked| self.now.duration_since(*asked) >= PATIENCE)
        };
        if fresh.is_none() && may_ask() {
            let from = (self.mac, self.source_for(address)?);
            let question = arp(1, from, ([0; 6], address));
            made.send(&ethernet(EVERYBODY, self.mac, 0x0806, &padded(question)));
            if self.asked.len() >= NEIGHBOURS {
                self.asked.clear();
            }
            self.asked.insert(address, self.now);
        }
        // An old answer is good until there is another.
        known.map(|(mac, _)| mac)
    }

    /// The same for who gets packets for a destination, which is noted with it.
    fn station(&mut self, dst: Ipv4Addr, next: Ipv4Addr, made: &mut Made) -> Option<Mac> {
        let station = self.neighbour(next, made)?;
        self.recent.put(dst, (next, station));
        Some(station)
    }

    fn packet(&mut self, frame: &mut Frame<'_>, made: &mut Made) -> Action {
        let bytes = frame.bytes();
        let packet = &bytes[ETHERNET..];
        let header = usize::from(packet[0] & 0xf) * 4;
        let is_sound = packet[0] >> 4 == 4 && header >= IPV4 && packet.len() >= header;
        if !is_sound || checksum(&packet[..header]) != 0 {
            return Action::Drop;
        }
        let (src, dst, ttl) = (ip(packet, 12), ip(packet, 16), packet[8]);
        let recent = self.recent.get(dst);
        if recent.is_none() && self.own.contains(&dst) {
            return self.for_us(frame, header);
        }
        let from = mac(bytes, 6);
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
        let at = ETHERNET + header;
        let is_echo = frame.bytes()[ETHERNET + 9] == 1 && frame.bytes().get(at) == Some(&8);
        if !is_echo || !frame.is_whole() {
            return Action::Drop;
        }
        let own = self.mac;
        let total = usize::from(word(&frame.bytes()[ETHERNET..], 2));
        let bytes = frame.bytes_mut();
        let end = (ETHERNET + total).min(bytes.len());
        if end < at + 8 {
            return Action::Drop;
        }
        bytes.copy_within(6..12, 0);
        bytes[6..12].copy_from_slice(&own);
        let (src, dst) = (address_at(bytes, 12), address_at(bytes, 16));
        bytes[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&dst);
        bytes[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&src);
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
    /// later fragments, or what was for many or from nobody; and not too often.
    fn complain(
        &mut self,
        (kind, code): (u8, u8),
        to: Mac,
        src: Ipv4Addr,
        bytes: &[u8],
        made: &mut Made,
    ) -> Action {
        let packet = &bytes[ETHERNET..];
        let is_icmp = packet[9] == 1 && packet.get(20) != Some(&8);
        let is_later_piece = word(packet, 6) & 0x1fff != 0;
        let is_one = |ip: Ipv4Addr| {
            !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || ip.is_loopback())
        };
        let is_apt = !is_icmp && !is_later_piece && is_one(src) && is_one(ip(packet, 16));
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

impl Held {
    fn count(&self) -> u64 {
        self.packets.len() as u64
    }
}

/// Four bytes of the IPv4 header.
fn address_at(bytes: &[u8], at: usize) -> [u8; 4] {
    ip(bytes, ETHERNET + at).octets()
}

/// TTL less one, and the header's sum with it (RFC 1624).
fn count_down(packet: &mut [u8]) {
    packet[8] -= 1;
    let sum = u32::from(word(packet, 10)) + 0x100;
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// To the shortest frame of Ethernet.
fn padded(mut payload: Vec<u8>) -> Vec<u8> {
    payload.resize(payload.len().max(46), 0);
    payload
}

impl Handler for Router {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Made) -> Action {
        let bytes = frame.bytes();
        let to_us = bytes.get(..6) == Some(&self.mac);
        match ethertype(bytes) {
            0x0806 if bytes.len() >= ETHERNET => {
                let packet = bytes.to_vec();
                self.arp(&packet, made)
            }
            0x0800 if to_us && bytes.len() >= ETHERNET + IPV4 => self.packet(frame, made),
            // A router keeps networks apart: nothing else goes from one to the other.
            _ => Action::Drop,
        }
    }

    fn batch(&mut self, _: u32, made: &mut Made) {
        self.begin(Instant::now());
        for (address, mac) in self.board.as_mut().map(Board::news).unwrap_or_default() {
            self.learn(address, mac, made);
        }
        if !self.held.is_empty() {
            self.tend(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[interface]]\naddress = \"10.0.1.1/24\"\n[[interface]]\n\
        address = \"10.0.2.1/24\"\n[[route]]\nto = \"192.0.2.0/24\"\nvia = \"10.0.2.254\"\n\
        [[route]]\nto = \"192.0.2.128/25\"\nvia = \"10.0.1.254\"\n";
    const A: Mac = [2, 0, 0, 0, 0, 0xa];
    const B: Mac = [2, 0, 0, 0, 0, 0xb];

    #[test]
    fn test_nonsense_is_refused_and_said_where() {
        let interface = |address: &str| format!("{CONFIG}[[interface]]\naddress = {address:?}\n");
        let route =
            |to: &str, via: &str| format!("{CONFIG}[[route]]\nto = {to:?}\nvia = {via:?}\n");
        for (text, said) in [
            (String::new(), "interface"),
            ("interface = []".to_owned(), "has interfaces"),
            (format!("mac = \"01:00:00:00:00:01\"\n{CONFIG}"), "group"),
            (interface("10.0.3"), "interface 3: \"10.0.3\" is none like"),
            (interface("10.0.3.0/24"), "no host's"),
            (interface("10.0.3.255/24"), "no host's"),
            (interface("10.0.2.2/24"), "10.0.2.0/24 has an interface"),
            (route("10.0.9.0/24", "10.0.9.1"), "route 3: 10.0.9.1 is in no network"),
            (route("10.0.9.0/24", "10.0.1.1"), "our own"),
            (route("10.0.1.0/24", "10.0.2.9"), "a network of ours"),
            (route("192.0.2.0/24", "10.0.2.9"), "has a route by 10.0.2.254"),
        ] {
            let error = format!("{:#}", Router::new(&text).err().expect(&text));
            assert!(error.contains(said), "{error}");
        }
        assert!(Router::new(&interface("10.0.3.0/31")).is_ok());
    }

    /// What the router makes of a frame: the frame, if it goes on, and what it sends beside it.
    fn route(router: &mut Router, frame: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut buffer, mut made) = (frame.to_vec(), Made::default());
        let mut frame = Frame::new(&mut buffer);
        let action = router.frame(&mut frame, &mut made);
        let passed = (action == Action::Next).then(|| frame.bytes().to_vec());
        (passed, made.take())
    }

    /// Tells the router where a neighbour is; what it sends then.
    fn neighbour(router: &mut Router, address: [u8; 4], mac: Mac, own: [u8; 4]) -> Vec<Vec<u8>> {
        let answer = arp(2, (mac, address.into()), (MAC, own.into()));
        let (passed, made) = route(router, &ethernet(MAC, mac, 0x0806, &answer));
        assert!(passed.is_none());
        made
    }

    fn packet(dst: [u8; 4]) -> Vec<u8> {
        ethernet(MAC, A, 0x0800, &ipv4(17, [10, 0, 1, 2].into(), dst.into(), b"payload!"))
    }

    #[test]
    fn test_a_packet_goes_on_when_its_neighbour_has_answered() {
        let mut router = Router::new(CONFIG).unwrap();
        let (passed, made) = route(&mut router, &packet([10, 0, 2, 2]));
        assert_eq!((passed, made.len()), (None, 1), "it asks");
        assert_eq!(made[0][..6], EVERYBODY);
        assert_eq!(route(&mut router, &packet([10, 0, 2, 2])).1.len(), 0, "and not at once again");
        let held = neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]);
        assert_eq!(held.len(), 2, "both have waited");
        router.batch(1, &mut Made::default());
        let passed = route(&mut router, &packet([10, 0, 2, 2])).0.unwrap();
        assert_eq!((&passed[..6], &passed[6..12]), (&B[..], &MAC[..]));
        assert_eq!(passed[ETHERNET + 8], 63);
        assert_eq!(checksum(&passed[ETHERNET..ETHERNET + IPV4]), 0);
        assert_eq!(&passed[ETHERNET + IPV4..], b"payload!");
        assert!(held.iter().all(|held| *held == passed), "{held:x?}");
    }

    #[test]
    fn test_what_was_found_for_a_destination_is_void_when_its_neighbour_moves_or_grows_old() {
        let mut router = Router::new(CONFIG).unwrap();
        let (host, own) = ([10, 0, 2, 2], [10, 0, 2, 1]);
        for station in [B, A, B] {
            neighbour(&mut router, host, station, own);
            for _ in 0..2 {
                let (passed, made) = route(&mut router, &packet(host));
                assert_eq!((passed.unwrap()[..6].to_vec(), made.len()), (station.to_vec(), 0));
            }
        }
        router.begin(router.now + FRESH);
        for asks in [1, 0] {
            let (passed, made) = route(&mut router, &packet(host));
            assert_eq!((passed.is_some(), made.len()), (true, asks), "it asks once, and goes on");
        }
        let mut last = packet(host);
        last[ETHERNET + 8] = 1;
        last[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = checksum(&last[ETHERNET..ETHERNET + IPV4]).to_be_bytes();
        last[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
        assert_eq!(route(&mut router, &last).0, None, "it has gone too far");
    }

    /// A packet for a neighbour, told from others by its payload.
    fn numbered(host: u8, number: u8) -> Vec<u8> {
        let packet = ipv4(17, [10, 0, 1, 2].into(), [10, 0, 2, host].into(), &[number; 8]);
        ethernet(MAC, A, 0x0800, &packet)
    }

    #[test]
    fn test_of_packets_that_wait_the_last_few_go_on_in_order() {
        let mut router = Router::new(CONFIG).unwrap();
        for number in 0..5 {
            assert_eq!(route(&mut router, &numbered(2, number)).0, None);
        }
        let mut sent = neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]);
        // What follows in the batch does not overtake them.
        let (passed, behind) = route(&mut router, &numbered(2, 5));
        assert_eq!(passed, None);
        sent.extend(behind);
        let numbers: Vec<u8> = sent.iter().map(|frame| frame[ETHERNET + IPV4]).collect();
        assert_eq!(numbers, [2, 3, 4, 5]);
        assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, 2]));
    }

    #[test]
    fn test_neighbours_that_packets_wait_for_are_few_and_not_for_long() {
        let mut router = Router::new(CONFIG).unwrap();
        let hosts = u8::try_from(AWAITED).unwrap();
        for host in 0..hosts + 7 {
            route(&mut router, &numbered(100 + host, 0));
        }
        let held = hosts.into();
        assert_eq!(router.counts()[1..], named(["held", "unresolved"], [held, 7]));
        let mut made = Made::default();
        router.now += PATIENCE;
        router.tend(&mut made);
        let asks = made.take();
        assert_eq!(asks.len(), AWAITED, "it asks again");
        assert!(asks.iter().all(|frame| ethertype(frame) == 0x0806));
        router.now += HOLD;
        router.tend(&mut made);
        let said = made.take();
        assert!(said.iter().all(|frame| frame[ETHERNET + IPV4..][..2] == [3, 1]), "{said:x?}");
        assert_eq!(said.len(), AWAITED, "no host there");
        assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, held + 7]));
    }

    #[test]
    fn test_a_file_without_their_network_ends_packets_that_wait() {
        let mut router = Router::new(CONFIG).unwrap();
        route(&mut router, &numbered(2, 0));
        router.replace(Router::new(CONFIG).unwrap());
        assert_eq!(router.counts()[1..], named(["held", "unresolved"], [1, 0]));
        let other = "[[interface]]\naddress = \"10.0.1.1/24\"\n";
        router.replace(Router::new(other).unwrap());
        assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, 1]));
    }

    #[test]
    fn test_instances_tell_each_other_where_neighbours_are() {
        let [mut one, mut other] = [(); 2].map(|()| Router::new(CONFIG).unwrap());
        for (router, board) in [&mut one, &mut other].into_iter().zip(Board::among(2)) {
            router.join(board);
        }
        assert!(!one.awaits_news() && route(&mut one, &numbered(2, 7)).0.is_none());
        assert!(one.awaits_news());
        one.replace(Router::new(CONFIG).unwrap());
        // The other one gets the answer.
        neighbour(&mut other, [10, 0, 2, 2], B, [10, 0, 2, 1]);
        let mut made = Made::default();
        one.batch(0, &mut made);
        let sent = made.take();
        assert_eq!(sent.len(), 1);
        assert_eq!((&sent[0][..6], sent[0][ETHERNET + IPV4]), (&B[..], 7));
        assert!(!one.awaits_news());
        one.batch(1, &mut made);
        assert!(route(&mut one, &numbered(2, 8)).0.is_some() && made.take().is_empty());
    }

    #[test]
    fn test_the_longest_prefix_says_where() {
        let mut router = Router::new(CONFIG).unwrap();
        neighbour(&mut router, [10, 0, 2, 254], B, [10, 0, 2, 1]);
        neighbour(&mut router, [10, 0, 1, 254], A, [10, 0, 1, 1]);
        assert_eq!(route(&mut router, &packet([192, 0, 2, 7])).0.unwrap()[..6], B);
        assert_eq!(route(&mut router, &packet([192, 0, 2, 200])).0.unwrap()[..6], A);
        let (passed, made) = route(&mut router, &packet([198, 51, 100, 1]));
        assert!(passed.is_none());
        assert_eq!(made[0][ETHERNET + IPV4..][..2], [3, 0], "no route: it says so");
    }

    #[test]
    fn test_it_complains_only_where_it_may_and_not_too_often() {
        let mut router = Router::new(CONFIG).unwrap();
        let lost = |src: [u8; 4], dst: [u8; 4], piece: u8| {
            let mut packet = ipv4(17, src.into(), dst.into(), b"payload!");
            packet[7] = piece;
            packet[10..12].fill(0);
            let sum = checksum(&packet[..IPV4]).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
            ethernet(MAC, A, 0x0800, &packet)
        };
        let (src, dst) = ([10, 0, 1, 2], [198, 51, 100, 1]);
        for quiet in [
            lost(src, dst, 9),
            lost(src, [224, 0, 0, 9], 0),
            lost(src, [255; 4], 0),
            lost([0; 4], dst, 0),
            lost([224, 0, 0, 1], dst, 0),
        ] {
            assert_eq!(route(&mut router, &quiet), (None, vec![]));
        }
        let said = |router: &mut Router| route(router, &lost(src, dst, 0)).1.len();
        assert_eq!((0..COMPLAINTS + 5).map(|_| said(&mut router)).sum::<usize>(), 1000);
        router.now += Duration::from_secs(1);
        assert_eq!(said(&mut router), 1);
    }

    #[test]
    fn test_it_answers_for_its_addresses_and_counts_down() {
        let mut router = Router::new(CONFIG).unwrap();
        let question = arp(1, (A, [10, 0, 1, 2].into()), ([0; 6], [10, 0, 1, 1].into()));
        let (_, made) = route(&mut router, &ethernet(EVERYBODY, A, 0x0806, &question));
        assert_eq!((&made[0][..6], mac(&made[0], 22)), (&A[..], MAC));
        let echo = [&[8, 0, 0xf7, 0xff, 0, 0, 0, 0][..], &[0; 8]].concat();
        let ping = ipv4(1, [10, 0, 1, 2].into(), [10, 0, 2, 1].into(), &echo);
        let answer = route(&mut router, &ethernet(MAC, A, 0x0800, &ping)).0.unwrap();
        assert_eq!(answer[ETHERNET + IPV4], 0);
        assert_eq!(ip(&answer, ETHERNET + 16), Ipv4Addr::new(10, 0, 1, 2));
        assert_eq!(checksum(&answer[ETHERNET + IPV4..]), 0);
        let mut last = packet([10, 0, 2, 2]);
        last[ETHERNET + 8] = 1;
        last[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = checksum(&last[ETHERNET..ETHERNET + IPV4]).to_be_bytes();
        last[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
        let (_, made) = route(&mut router, &last);
        assert_eq!(made[0][ETHERNET + IPV4..][..2], [11, 0]);
    }

    #[test]
    fn test_what_is_broken_or_for_others_is_dropped_whatever_its_length() {
        let mut router = Router::new(CONFIG).unwrap();
        let whole = packet([10, 0, 2, 2]);
        for len in 0..whole.len() {
            route(&mut router, &whole[..len]);
        }
        let mut broken = whole.clone();
        broken[ETHERNET + 12] ^= 1;
        assert_eq!(route(&mut router, &broken), (None, vec![]));
        let mut others = whole;
        others[..6].copy_from_slice(&B);
        assert_eq!(route(&mut router, &others), (None, vec![]));
    }
}
