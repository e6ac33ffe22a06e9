//! `balancer`: connections to one address are shared out among servers.
//!
//! ```toml
//! [[service]]
//! address = "10.0.1.1:80"
//! [[service.backend]]
//! address = "10.0.2.2:8080"
//! [[service.backend]]
//! address = "10.0.2.3:8080"
//! weight = 2                       # twice as many; 0: no new ones
//! ```
//!
//! The balancer is placed on the way to the servers and back, in front of a router: what is for the
//! address of a service goes to one of its backends, and their answers come from that address.
//! Servers see the client's address. Everything else passes as it is.
//!
//! A new connection goes where *rendezvous hashing* says: each backend gets a number from the hash
//! of client and backend, scaled by its weight, and the highest wins (Thaler and Ravishankar, 1998;
//! with weights: draft-ietf-bess-weighted-hrw). A backend that comes takes its share evenly and
//! nothing else moves; the connections of one that goes are shared out. The hash is the same today
//! and tomorrow. A connection that is known stays where it is whatever the file says by then, as
//! long as its backend is in it: `weight = 0` lets a server finish. When the table is full,
//! connections go where the hash says, and are not remembered; for as long as one may be silent
//! after that, answers of which nothing is known go by the hash too. So do those of a client that
//! has `max_per_source` of the `connections`, a quarter by default.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use client::nf::{Action, Frame, Generated, Handler};
use packet::hash::folded_multiply;
use serde::Deserialize;
use toml::Spanned;

use super::shares::{Entries, Shares, Source};
use super::table::{Seed, Table, places};
use super::text::{Endpoint, entries, parse, seconds, tcp_or_udp, wrong};
use super::{Counts, named};
use packet::ipv4::{End, Fragment, Packet, Protocol, ReadError, Side, icmp, tcp_flag};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "connections", deserialize_with = "entries")]
    connections: u32,
    max_per_source: Option<Spanned<Entries>>,
    #[serde(default = "idle_s", deserialize_with = "seconds")]
    idle_s: Duration,
    service: Vec<ServiceText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceText {
    address: Spanned<Endpoint>,
    #[serde(default = "tcp", deserialize_with = "tcp_or_udp")]
    proto: Protocol,
    backend: Vec<BackendText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendText {
    address: Spanned<Endpoint>,
    #[serde(default = "one")]
    weight: u16,
}

fn connections() -> u32 {
    1 << 16
}

fn idle_s() -> Duration {
    Duration::from_secs(900)
}

fn tcp() -> Protocol {
    Protocol::Tcp
}

fn one() -> u16 {
    1
}

/// After a reset, or the end of one side, and before a client has sent anything but that it begins.
const CLOSING: Duration = Duration::from_secs(60);

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// Goes to a backend.
    To,
    /// Comes from one.
    From,
    /// None of ours.
    Passed,
    /// Dropped, as what follows: it cannot be read.
    Broken,
    /// A piece of a packet: it has no ports.
    Piece,
    /// No backend takes new connections.
    NoBackend,
}

const BECAME: [&str; 6] =
    ["to_backend", "from_backend", "passed", "broken", "fragment", "no_backend"];

struct Service {
    own: End,
    backends: Vec<(End, u16)>,
}

impl Service {
    /// Where the hash says that a client goes.
    fn choose(&self, client: u64) -> Option<End> {
        let open = self.backends.iter().filter(|(_, weight)| *weight > 0);
        let scored = open.map(|(end, weight)| (score(client, *end, *weight), *end));
        scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, end)| end)
    }
}

/// The higher, the better: weight by the logarithm of a number between 0 and 1.
#[expect(clippy::cast_precision_loss, reason = "of a hash")]
fn score(client: u64, backend: End, weight: u16) -> f64 {
    let mixed = folded_multiply(client ^ 0x9e37_79b9_7f4a_7c15, backend.key(Protocol::Tcp) ^ MIX);
    let share = ((folded_multiply(mixed, MIX) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    f64::from(weight) / -share.ln()
}

const MIX: u64 = 0xd6e8_feb8_6659_fd93;

/// A connection that is known.
struct Connection {
    client: Source,
    backend: End,
    seen: Instant,
    is_new: bool,
    is_closing: bool,
}

/// The function.
pub struct Balancer {
    services: Vec<Service>,
    /// By address, and by the addresses of their backends: each is of one service.
    by_own: HashMap<u64, usize, Seed>,
    by_backend: HashMap<u64, usize, Seed>,
    /// By client, and the address that it asked.
    connections: Table<(u64, u64), Connection>,
    /// How many of them each client has.
    clients: Shares,
    /// When a connection found no room in it last.
    unremembered: Option<Instant>,
    idle: Duration,
    now: Instant,
    became: [u64; BECAME.len()],
    forgotten: u64,
    /// Packets of connections that were not remembered: their client had its share.
    source_full: u64,
    /// Why no new connection gets through.
    closed: Option<String>,
}

impl Balancer {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let mut balancer = Self {
            services: Vec::new(),
            by_own: HashMap::default(),
            by_backend: HashMap::default(),
            connections: Table::new(config.connections),
            clients: Shares::new(text, config.max_per_source.as_ref(), config.connections)?,
            unremembered: None,
            idle: config.idle_s,
            now: Instant::now(),
            became: [0; BECAME.len()],
            forgotten: 0,
            source_full: 0,
            closed: None,
        };
        for (number, service) in (1..).zip(&config.service) {
            let refuse =
                |(at, why): (_, String)| wrong(text, at, format_args!("service {number}: {why}"));
            balancer.add(service).map_err(refuse)?;
            if service.backend.iter().all(|backend| backend.weight == 0) {
                let why = "no backend has a weight above 0, so no connection would get \
                           through; give one a weight";
                balancer.closed = Some(refuse((&service.address, why.to_owned())).to_string());
            }
        }
        Ok(balancer)
    }

    /// Refuses with what is wrong, and where.
    fn add<'a>(&mut self, text: &'a ServiceText) -> Result<(), (&'a Spanned<Endpoint>, String)> {
        let (number, Endpoint(own)) = (self.services.len(), *text.address.get_ref());
        if self.by_own.insert(End::from(own).key(text.proto), number).is_some() {
            let why = format!("{own} is that of a service before; join both");
            return Err((&text.address, why));
        }
        let mut backends = Vec::new();
        for BackendText { address: at, weight } in &text.backend {
            let Endpoint(address) = *at.get_ref();
            if address == own {
                return Err((at, format!("backend {address} is the service itself")));
            }
            if self.by_backend.insert(End::from(address).key(text.proto), number).is_some() {
                let why = format!("{address} is a backend already; give it another port here");
                return Err((at, why));
            }
            backends.push((address.into(), *weight));
        }
        self.services.push(Service { own: own.into(), backends });
        Ok(())
    }

    /// Whether a new connection would get through. Of a balancer that runs all may finish.
    pub fn check_start(&self) -> anyhow::Result<()> {
        self.closed.as_ref().map_or(Ok(()), |why| anyhow::bail!("{why}"))
    }

    /// Is from now on what another file says. Connections stay, but those of backends that are in
    /// it no more.
    pub fn replace(&mut self, new: Self) {
        let old = std::mem::replace(self, new);
        (self.became, self.forgotten) = (old.became, old.forgotten);
        self.source_full = old.source_full;
        self.unremembered = old.unremembered;
        for (key, connection) in old.connections.into_values() {
            let has = |service: &Service| {
                service.backends.iter().any(|(end, _)| *end == connection.backend)
            };
            let stays = self.by_own.get(&key.1).is_some_and(|&number| has(&self.services[number]));
            let client = connection.client;
            if stays && self.connections.insert(key, connection).is_some() {
                self.clients.add(client);
            } else {
                self.forgotten += 1;
            }
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let more = [self.connections.len() as u64, self.forgotten, self.source_full];
        let more = named(["connections", "forgotten", "source_full"], more);
        named(BECAME, self.became).into_iter().chain(more).collect()
    }

    fn handle(&mut self, bytes: &mut [u8], packet: &Packet) -> Result<Became, Became> {
        let Some(protocol) = Protocol::new(packet.protocol(bytes)) else {
            return Ok(Became::Passed);
        };
        if packet.fragment != Fragment::Whole {
            return if self.is_ours(bytes, packet) {
                Err(Became::Piece)
            } else {
                Ok(Became::Passed)
            };
        }
        if !packet.has_header(protocol) {
            return Err(Became::Broken);
        }
        if protocol == Protocol::Icmp {
            let is_error = icmp::is_error(bytes[packet.l4]);
            return if is_error { self.error(bytes, packet) } else { Ok(Became::Passed) };
        }
        let [src, dst] = [Side::Src, Side::Dst].map(|side| packet.end_of(bytes, protocol, side));
        let flags = if protocol == Protocol::Tcp { bytes[packet.l4 + 13] } else { 0 };
        if let Some(&number) = self.by_own.get(&dst.key(protocol)) {
            let backend = self.forth((src, dst), protocol, flags, number);
            packet.set_end(bytes, protocol, Side::Dst, backend.ok_or(Became::NoBackend)?);
            return Ok(Became::To);
        }
        if let Some(&number) = self.by_backend.get(&src.key(protocol))
            && self.is_answer((dst, src), protocol, flags, number)
        {
            packet.set_end(bytes, protocol, Side::Src, self.services[number].own);
            return Ok(Became::From);
        }
        Ok(Became::Passed)
    }

    /// Whether the packet is from or to an address of a service, whatever the port.
    fn is_ours(&self, bytes: &[u8], packet: &Packet) -> bool {
        let [src, dst] = [Side::Src, Side::Dst].map(|side| packet.ip(bytes, side));
        let has = |service: &Service| {
            service.own.ip == dst || service.backends.iter().any(|(end, _)| end.ip == src)
        };
        self.services.iter().any(has)
    }

    /// Where a packet to a service goes.
    fn forth(
        &mut self,
        (client, own): (End, End),
        protocol: Protocol,
        flags: u8,
        service: usize,
    ) -> Option<End> {
        let (now, idle) = (self.now, self.idle);
        let key = (client.key(protocol), own.key(protocol));
        let begins = flags & tcp_flag::SYN != 0;
        if let Some(known) = self.connections.get(&key)
            && !known.is_over(now, idle)
            && !(begins && known.is_closing)
        {
            known.is_new &= begins;
            known.see(now, flags);
            return Some(known.backend);
        }
        let backend = self.services[service].choose(key.0)?;
        let (client, is_new) = (u32::from(client.ip).into(), begins);
        self.remember(key, Connection { client, backend, seen: now, is_new, is_closing: false });
        Some(backend)
    }

    /// Remembers a connection, if there is room and its client does not have its share.
    fn remember(&mut self, key: (u64, u64), connection: Connection) {
        let (client, seen) = (connection.client, connection.seen);
        let is_other = self.connections.find(&key).is_none();
        if is_other && self.clients.is_used_up(client) {
            self.source_full += 1;
            self.unremembered = Some(seen);
        } else if self.connections.insert(key, connection).is_none() {
            self.unremembered = Some(seen);
        } else if is_other {
            self.clients.add(client);
        }
    }

    /// Forgets those that are over, in so many places.
    fn sweep(&mut self, places: usize) {
        let (now, idle) = (self.now, self.idle);
        for _ in 0..places {
            let gone = self.connections.turn(|connection| connection.is_over(now, idle));
            gone.into_iter().for_each(|(_, gone)| self.clients.remove(gone.client));
        }
    }

    /// Whether a backend answers a client of its service, and does not open a connection itself.
    fn is_answer(
        &mut self,
        (client, backend): (End, End),
        protocol: Protocol,
        flags: u8,
        service: usize,
    ) -> bool {
        let key = (client.key(protocol), self.services[service].own.key(protocol));
        let (now, idle) = (self.now, self.idle);
        if let Some(known) = self.connections.get(&key)
            && !known.is_over(now, idle)
        {
            let is_its_own = known.backend == backend;
            if is_its_own {
                known.see(now, flags);
            }
            return is_its_own;
        }
        let may_be_unknown = self.unremembered.is_some_and(|at| now.duration_since(at) < idle);
        may_be_unknown && self.services[service].choose(key.0) == Some(backend)
    }

    /// An error about an answer is for the backend that gave it, in whose name it quotes it.
    fn error(&mut self, bytes: &mut [u8], packet: &Packet) -> Result<Became, Became> {
        let message = &mut bytes[..packet.end];
        let Ok((quoted, protocol)) = packet.quoted(message) else { return Ok(Became::Passed) };
        let [own, client] =
            [Side::Src, Side::Dst].map(|side| quoted.end_of(message, protocol, side));
        let key = (client.key(protocol), own.key(protocol));
        let Some(known) = self.connections.get(&key) else { return Ok(Became::Passed) };
        let changes = quoted.set_end(message, protocol, Side::Src, known.backend);
        packet.set_ip(message, Side::Dst, known.backend.ip);
        packet.keep_sum(message, Protocol::Icmp, changes);
        Ok(Became::To)
    }
}

impl Connection {
    fn is_over(&self, now: Instant, idle: Duration) -> bool {
        let idle = if self.is_closing || self.is_new { CLOSING.min(idle) } else { idle };
        now.duration_since(self.seen) >= idle
    }

    fn see(&mut self, now: Instant, flags: u8) {
        self.seen = now;
        self.is_closing |= flags & (tcp_flag::FIN | tcp_flag::RST) != 0;
    }
}

impl Handler for Balancer {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        let became = match Packet::in_frame(frame.bytes(), frame.is_whole()) {
            Ok(packet) => self.handle(frame.bytes_mut(), &packet),
            Err(ReadError::Other) => Ok(Became::Passed),
            Err(ReadError::Malformed) => Err(Became::Broken),
        };
        let (Ok(index) | Err(index)) = became;
        self.became[index as usize] += 1;
        if became.is_ok() { Action::Next } else { Action::Drop }
    }

    fn batch(&mut self, frames: u32, _: &mut Generated) {
        self.now = Instant::now();
        self.sweep(places(frames));
    }
}

#[cfg(test)]
mod tests;
