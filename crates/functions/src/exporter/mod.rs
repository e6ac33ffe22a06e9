//! `exporter`: counts flows, and reports them to a collector by IPFIX.
//!
//! ```toml
//! collector = "192.0.2.9:4739"
//! idle_s = 15                      # a flow that is silent so long is over
//! active_s = 60                    # one that is not is reported so often
//! ```
//!
//! A flow is one direction between two ends: addresses, protocol, ports. All frames pass as they
//! are. Reports are UDP datagrams (RFC 7011), sent without waiting: what the host does not take is
//! lost and counted, as is what finds no room in the table.

mod ipfix;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use client::nf::{Action, Frame, Generated, Handler};
use packet::flow::FiveTuple;
use serde::Deserialize;
use toml::Spanned;

use super::table::{Table, places};
use super::text::{check_port, entries, key_of, parse, seconds, wrong};
use super::{Counts, named};
use ipfix::{Message, Reason, Record};
use packet::bytes::u16_at;
use packet::ethernet::{EtherType, network_header};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    collector: Spanned<SocketAddr>,
    #[serde(default = "domain")]
    domain: u32,
    #[serde(default = "flows", deserialize_with = "entries")]
    flows: u32,
    #[serde(default = "idle_s", deserialize_with = "seconds")]
    idle_s: Duration,
    #[serde(default = "active_s", deserialize_with = "seconds")]
    active_s: Duration,
}

fn domain() -> u32 {
    1
}

fn flows() -> u32 {
    1 << 16
}

fn idle_s() -> Duration {
    Duration::from_secs(15)
}

fn active_s() -> Duration {
    Duration::from_secs(60)
}

/// How long a record waits for others to fill its message.
const DELAY: Duration = Duration::from_millis(500);

/// What a flow was since it was reported last.
struct Flow {
    bytes: u64,
    packets: u64,
    first: Instant,
    last: Instant,
}

/// Where reports go, and what became of them.
struct Reports {
    socket: UdpSocket,
    message: Message,
    idle: Duration,
    active: Duration,
    /// One moment by both clocks.
    epoch: (Instant, u64),
    records: u64,
    sent: u64,
    lost: u64,
}

impl Reports {
    fn new(text: &str, config: &Config) -> anyhow::Result<Self> {
        let collector = *config.collector.get_ref();
        let any = if collector.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let open = || {
            let socket = UdpSocket::bind(any)?;
            socket.connect(collector)?;
            socket.set_nonblocking(true).map(|()| socket)
        };
        let refuse =
            |why| wrong(text, &config.collector, format_args!("collector {collector}: {why}"));
        check_port(collector.port()).map_err(refuse)?;
        let socket = open().map_err(|error| refuse(error.to_string()))?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let epoch = (Instant::now(), milliseconds(since_1970.unwrap_or_default()));
        let (idle, active) = (config.idle_s, config.active_s);
        let message = Message::new(config.domain);
        Ok(Self { socket, message, idle, active, epoch, records: 0, sent: 0, lost: 0 })
    }

    fn ms(&self, at: Instant) -> u64 {
        self.epoch.1 + milliseconds(at.duration_since(self.epoch.0))
    }

    /// The reason to report this flow now, if there is one.
    fn reason(&self, flow: &Flow, now: Instant) -> Option<Reason> {
        if now.duration_since(flow.last) >= self.idle {
            Some(Reason::Idle)
        } else if now.duration_since(flow.first) >= self.active {
            Some(Reason::Active)
        } else {
            None
        }
    }

    fn report(&mut self, way: FiveTuple, flow: &Flow, reason: Reason, now: Instant) {
        if self.message.is_full() {
            self.send(now);
        }
        let times_ms = [self.ms(flow.first), self.ms(flow.last)];
        let (bytes, packets) = (flow.bytes, flow.packets);
        self.message.add(&Record { way, bytes, packets, times_ms, reason });
        self.records += 1;
    }

    fn send(&mut self, now: Instant) {
        let (now_ms, socket) = (self.ms(now), &self.socket);
        let (sent, lost) = (&mut self.sent, &mut self.lost);
        self.message.finish(now_ms, |bytes| match socket.send(bytes) {
            Ok(_) => *sent += 1,
            Err(_) => *lost += 1,
        });
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The function.
pub struct Exporter {
    flows: Table<FiveTuple, Flow>,
    reports: Reports,
    now: Instant,
    /// When a message was sent that was not full.
    sent: Instant,
    packets: u64,
    /// Frames without an IP packet, and packets without room in the table.
    other: u64,
    no_room: u64,
}

impl Exporter {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let (flows, reports) = (Table::new(config.flows), Reports::new(text, &config)?);
        let now = Instant::now();
        Ok(Self { flows, reports, now, sent: now, packets: 0, other: 0, no_room: 0 })
    }

    /// Is from now on what another file says. What was counted until now is reported as before.
    pub fn replace(&mut self, new: Self) {
        self.finish();
        *self = new;
    }

    /// Reports all flows, as the end has come.
    pub fn finish(&mut self) {
        let now = Instant::now();
        while self.flows.len() > 0 {
            if let Some((way, flow)) = self.flows.turn(|_| true) {
                self.reports.report(way, &flow, Reason::Forced, now);
            }
        }
        self.reports.send(now);
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let Reports { records, sent, lost, .. } = self.reports;
        let names =
            ["packets", "not_ip", "no_room", "flows", "records", "messages", "messages_lost"];
        let flows = self.flows.len() as u64;
        named(names, [self.packets, self.other, self.no_room, flows, records, sent, lost])
    }

    fn count(&mut self, way: FiveTuple, bytes: u64) {
        self.packets += 1;
        let now = self.now;
        let flow = match self.flows.find(&way) {
            Some(place) => self.flows.at(place),
            None => {
                let new = Flow { bytes: 0, packets: 0, first: now, last: now };
                self.flows.insert(way, new).and_then(|place| self.flows.at(place))
            }
        };
        let Some(flow) = flow else {
            self.no_room += 1;
            return;
        };
        (flow.bytes, flow.packets, flow.last) = (flow.bytes + bytes, flow.packets + 1, now);
    }

    /// The hand goes on by one place.
    fn look(&mut self) {
        let (now, reports) = (self.now, &self.reports);
        let over = self.flows.turn(|flow| reports.reason(flow, now).is_some());
        if let Some((way, flow)) = over {
            let reason = self.reports.reason(&flow, now).unwrap_or(Reason::Idle);
            self.reports.report(way, &flow, reason, now);
        }
    }
}

/// Bytes of the IP packet in a frame: what it says, but no more than there is, and what there is
/// where it says nothing (as packets do that are to be cut into segments).
fn length(frame: &Frame<'_>) -> u64 {
    let bytes = frame.bytes();
    let (ethertype, at) = network_header(bytes);
    let said = match ethertype {
        EtherType::IPV4 => usize::from(u16_at(bytes, at + 2)),
        _ => usize::from(u16_at(bytes, at + 4)) + 40,
    };
    let is_said = if ethertype == EtherType::IPV4 { said > 0 } else { said > 40 };
    let seen = bytes.len().saturating_sub(at);
    let len = match (is_said, frame.is_whole()) {
        (true, true) => said.min(seen),
        (true, false) => said,
        (false, _) => seen,
    };
    len as u64
}

impl Handler for Exporter {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        match key_of(frame).five_tuple() {
            Some(way) => self.count(way, length(frame)),
            None => self.other += 1,
        }
        Action::Next
    }

    fn batch(&mut self, frames: u32, _: &mut Generated) {
        self.now = Instant::now();
        (0..places(frames)).for_each(|_| self.look());
        if self.now.duration_since(self.sent) >= DELAY {
            self.sent = self.now;
            self.reports.send(self.now);
        }
    }
}

#[cfg(test)]
mod tests;
