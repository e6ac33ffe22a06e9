//! A sender, functions, and a receiver, in one trust group.
//!
//! ```text
//!   s ──► switch ──► f0 ──► switch ──► f1 ──► switch ──► r0
//! ```
//!
//! Each function adds one to a word of every frame that it touches, and the receiver looks whether
//! all have. A frame's number is the sender's count of frames; where latency is measured, it is the
//! time at which the frame was written.
//!
//! *Load.* The sender gives its core away after half a ring of frames: functions and receiver have
//! it too. Nothing else holds the sender up. Where a function behind the first has less than half
//! of its ring free, the switch drops what would enter the chain, at the sender (`chain_full`); and
//! the kernel chooses which process is next. If two turns of the sender come before one of that
//! function, the second is lost. So losses are a part of what is measured, and each sample says at
//! which ports they were.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::control::Connection;
use client::nf::{self, Action, Frame, Generated};
use client::{Port, Rx, Tx};
use packet::{EtherType, build};
use protocol::{PortRequest, PortStats, Reply, Request, StatsQuery, paths};

use super::ends::{PATIENCE, SENDER, lost_percent, million};
use super::{Kind, Part, Process, configuration};
use crate::machine;
use crate::role::median_us;
use crate::sample::Reading;
use crate::stamp::{self, address, header};
use crate::traffic::session::clock_ns;
use crate::work::{BOX, Chain, FLOWS, Path, Payload, Traffic, Work};
use terminal::say;

/// Where functions count, in a frame that has nothing there.
const COUNT: usize = 15;
const RECEIVER: u8 = 1;
/// The router's station.
const ROUTER: [u8; 6] = [2, 0x75, 0x76, 0x61, 0x6c, 1];
/// Most times of frames that are kept.
const TIMES: usize = 1 << 20;

/// Runs it; of two loads where latency is what counts.
pub fn run(work: &Work, time: Duration) -> Result<Reading> {
    if chain_of(work) == Chain::Call {
        return call(work, time);
    }
    if work.traffic != Traffic::Latency {
        return Ok(load(work, time, None)?.0);
    }
    let full = load(&Work { traffic: Traffic::OneWay, ..*work }, time, None)?.0.value * 1e6;
    let (_, low) = load(work, time, Some(full * 0.10))?;
    let (reading, high) = load(work, time, Some(full * 0.99))?;
    say::remark(format_args!(
        "latency: median {low:.1} us at {:.1} Mpps, {high:.1} us at {:.1} Mpps",
        full * 0.10 / 1e6,
        full * 0.99 / 1e6
    ));
    ensure!(low > 0.0, "no frame was timed");
    Ok(Reading { value: high / low, ..reading })
}

/// Functions of the longer chain, by which the cost of one is found: the shorter one has one.
const MANY: u8 = 5;

/// What one function more costs within a thread, in nanoseconds a frame, beside the switch's.
fn call(work: &Work, time: Duration) -> Result<Reading> {
    let of = |chain| load(&Work { path: Path::Chain(chain), ..*work }, time, None);
    let one = of(Chain::Functions(1))?.0;
    let cost = |reading: &Reading| (1e3 / reading.value - 1e3 / one.value) / f64::from(MANY - 1);
    let (switch, calls) = (of(Chain::Functions(MANY))?.0, of(Chain::Together(MANY))?.0);
    say::remark(format_args!(
        "a function more: {:.1} ns by the switch, {:.1} ns within a thread; {:.1}, {:.1} and \
         {:.1} Mpps through one function, {MANY}, and {MANY} in one thread",
        cost(&switch),
        cost(&calls),
        one.value,
        switch.value,
        calls.value
    ));
    Ok(Reading { value: cost(&calls), ..calls })
}

/// What passes, in million frames a second, of `rate` frames a second or of as many as can be
/// sent; and their median latency in microseconds.
fn load(work: &Work, time: Duration, rate: Option<f64>) -> Result<(Reading, f64)> {
    let daemon = configuration::start(work)?;
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let part = |kind| Part { kind, dir: daemon.dir().to_owned(), work: *work, millis };
    let processes = match chain_of(work) {
        chain if chain.is_together() => 1,
        chain => chain.functions(),
    };
    let functions = (0..processes).map(|n| Process::start(part(Kind::Function(n))));
    let _functions = functions.collect::<Result<Vec<_>>>()?;
    let mut receiver = Process::start(part(Kind::Receiver))?;
    // A whole number of frames a second is exact enough.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = rate.map(|rate| rate as u64);
    let _sender = Process::start(part(Kind::Paced(rate)))?;
    let reading = receiver.value(time + Duration::from_secs(30))?;
    if rate.is_none() {
        say_losses(daemon.dir())?;
    }
    Ok((reading, reading.latency_us.unwrap_or(0.0)))
}

/// Says where the switch has dropped frames, and why.
fn say_losses(dir: &std::path::Path) -> Result<()> {
    let connection = Connection::connect(&paths::client_socket(Some(dir)))?;
    // A chain has few ports: they are on the first page.
    let asked = connection.call(Request::Port(PortRequest::Stats(StatsQuery::default())))?;
    let Reply::Stats(page) = asked else { return Ok(()) };
    let sent: u64 =
        page.items.iter().filter(|it| it.port.port() == "s").map(|it| it.tx.frames).sum();
    let lost = losses(&page.items, sent);
    if !lost.is_empty() {
        say::remark(format_args!("of {:.1} M frames sent, dropped at {lost}", million(sent)));
    }
    Ok(())
}

/// Ports that count drops, with the reason and the share of all frames that were sent.
fn losses(ports: &[PortStats], sent: u64) -> String {
    let percent = |frames: u64| million(frames) / million(sent.max(1)) * 100.0;
    let drops = ports.iter().flat_map(|port| {
        let drops = port.drops.iter().filter(|drop| percent(*drop.1) >= 0.01);
        drops.map(move |(reason, frames)| {
            format!("{} {reason} {:.2} %", port.port, percent(*frames))
        })
    });
    drops.collect::<Vec<_>>().join(", ")
}

fn chain_of(work: &Work) -> Chain {
    match work.path {
        Path::Chain(chain) => chain,
        _ => unreachable!("not a chain"),
    }
}

/// What frames look like.
enum Look {
    /// As everywhere in these measurements.
    Plain([u8; 16]),
    /// UDP packets of this many flows.
    Packets([u8; 60], u64),
}

impl Look {
    fn new(chain: Chain) -> Look {
        match chain {
            Chain::Rules => Look::Packets(packet(address(RECEIVER)), FLOWS),
            Chain::Box | Chain::BoxTogether => Look::Packets(packet(ROUTER), 1024),
            _ => Look::Plain(header(address(RECEIVER), address(SENDER))),
        }
    }

    #[inline]
    fn write(&self, frame: &mut [u8], number: u64) {
        match self {
            Look::Plain(header) => stamp::write(frame, header, number),
            Look::Packets(packet, flows) => {
                let Ok(frame) = <&mut [u8; 60]>::try_from(frame) else { return };
                let [.., high, a, b] = (number % flows + 1024).to_be_bytes();
                *frame = *packet;
                (frame[34], frame[35], frame[37]) = (a, b, high);
                frame[44..52].copy_from_slice(&number.to_ne_bytes());
                frame[52..60].copy_from_slice(&number.to_ne_bytes());
            }
        }
    }

    /// The number of a frame that is whole, and has been to this many functions.
    #[inline]
    fn read(&self, frame: &[u8], functions: u8) -> Option<u64> {
        match self {
            Look::Plain(_) => stamp::read(frame).filter(|_| frame[COUNT] == functions),
            Look::Packets(..) => {
                let (words, _) = frame.get(44..60)?.as_chunks::<8>();
                (words[0] == words[1]).then(|| u64::from_ne_bytes(words[0]))
            }
        }
    }
}

/// A UDP packet from 10.0.1.2 to 10.0.2.2. It has no UDP checksum, so that the ports can change.
fn packet(to: [u8; 6]) -> [u8; 60] {
    let udp = build::udp(0, 0x1000, &[0; 18]);
    let ipv4 = build::ipv4(17, [10, 0, 1, 2].into(), [10, 0, 2, 2].into(), &udp);
    let frame = build::ethernet(to, address(SENDER), EtherType::IPV4.0, &ipv4);
    frame.try_into().expect("60 bytes")
}

/// Passes frames on until it is ended: one function, or all of them.
pub fn function(part: &Part, number: u8) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let chain = chain_of(&part.work);
    let numbers = if chain.is_together() { 0..chain.functions() } else { number..number + 1 };
    let open = |number: u8| part.options().rings(1).open(&format!("vale0:f{number}"));
    let mut ports = numbers.clone().map(open).collect::<Result<Vec<_>, _>>()?;
    if chain.is_box() {
        let of = |number| BOX[usize::from(number)];
        let functions = numbers.map(of).map(|(name, file)| functions::Function::new(name, file));
        let mut functions = functions.collect::<Result<Vec<_>>>()?;
        part.ready()?;
        functions::run(&mut ports, &mut functions, |_| Some(functions::TICK))?;
        return Ok(());
    }
    part.ready()?;
    match (part.work.payload, chain) {
        (Payload::Untouched, _) => {
            pass_on(&mut ports, |_: &mut Frame<'_>, _: &mut Generated| Action::Next)
        }
        (Payload::Touched, Chain::Readers(_)) => pass_on(&mut ports, read),
        (Payload::Touched, _) => pass_on(&mut ports, touch),
    }
}

fn pass_on<H: nf::Handler + Clone>(ports: &mut [Port], handler: H) -> Result<()> {
    let mut handlers = vec![handler; ports.len()];
    loop {
        nf::step_all(ports, &mut handlers, None)?;
    }
}

/// What a function does with a frame: it reads three words of the first line, and writes one.
#[inline]
fn touch(frame: &mut Frame<'_>, _: &mut Generated) -> Action {
    let Some(line) = frame.bytes_mut().first_chunk_mut::<60>() else { return Action::Drop };
    let (words, _) = line.as_chunks_mut::<8>();
    let [first, second, seventh] = [0, 1, 6].map(|at| u64::from_be_bytes(words[at]));
    // A whole word: a read just behind the write of a byte waits until that is in the cache.
    words[COUNT / 8] = (second + 1).to_be_bytes();
    if first ^ second ^ seventh == 0 { Action::Drop } else { Action::Next }
}

/// A function that reads every byte, and writes one.
#[inline]
fn read(frame: &mut Frame<'_>, _: &mut Generated) -> Action {
    if stamp::read(frame.bytes()).is_none() {
        return Action::Drop;
    }
    frame.bytes_mut()[COUNT] += 1;
    Action::Next
}

/// Sends until it is ended: at the given rate, or as fast as it can.
pub fn send(part: &Part, rate: Option<u64>) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut port = part.options().rings(1).open("vale0:s")?;
    let chain = chain_of(&part.work);
    if chain.is_box() {
        say_address(&mut port, SENDER, [10, 0, 1, 2], [10, 0, 1, 1])?;
    }
    let tx = port.tx(0);
    let mut source = Source {
        look: Look::new(chain),
        length: part.work.frame_len,
        number: 1,
        timed: part.work.traffic == Traffic::Latency,
        unwritten: match part.work.payload {
            Payload::Touched => u64::MAX,
            Payload::Untouched => 4 * u64::from(tx.capacity()),
        },
    };
    part.ready()?;
    match rate {
        None => source.flood(tx, u32::from(part.work.batch.sender)),
        Some(rate) => source.pace(tx, rate),
    }
}

struct Source {
    look: Look,
    length: u16,
    number: u64,
    /// Numbers are times.
    timed: bool,
    /// Frames to write before the payload is left as it is.
    unwritten: u64,
}

impl Source {
    fn batch(&mut self, tx: &mut Tx, count: u32) -> Result<()> {
        if self.timed {
            self.number = self.number.max(clock_ns());
        }
        for slot in 0..count {
            if self.unwritten > 0 {
                self.unwritten -= u64::from(self.unwritten < u64::MAX);
                self.look.write(tx.frame(slot, self.length), self.number);
            } else {
                tx.set(slot, self.length, 0);
            }
            self.number += 1;
        }
        Ok(tx.submit(count)?)
    }

    fn flood(&mut self, tx: &mut Tx, batch: u32) -> Result<()> {
        let (batch, mut sent) = (batch.clamp(1, tx.capacity()), 0);
        loop {
            if tx.space() < batch {
                tx.wait(batch, Some(PATIENCE))?;
                continue;
            }
            self.batch(tx, batch)?;
            sent += batch;
            if sent >= tx.capacity() / 2 {
                sent = 0;
                std::thread::yield_now();
            }
        }
    }

    fn pace(&mut self, tx: &mut Tx, rate: u64) -> Result<()> {
        let (start, mut sent) = (clock_ns(), 0);
        loop {
            let due =
                u64::try_from(u128::from(clock_ns() - start) * u128::from(rate) / 1_000_000_000)
                    .unwrap_or(u64::MAX);
            let count = u32::try_from(due - sent).unwrap_or(u32::MAX).min(tx.space());
            if count > 0 {
                self.batch(tx, count)?;
            }
            // What had no room is late, and is not sent twice as fast later.
            sent = due;
            std::thread::yield_now();
        }
    }
}

/// Tells the router which station has an address: an answer that it did not ask for.
fn say_address(port: &mut Port, number: u8, own: [u8; 4], router: [u8; 4]) -> Result<()> {
    let from = address(number);
    let arp = build::arp(2, (from.into(), own.into()), (ROUTER.into(), router.into()));
    let mut frame = build::ethernet(ROUTER, from, EtherType::ARP.0, &arp);
    frame.resize(60, 0);
    port.send(&frame)?;
    port.drain(Some(PATIENCE))?;
    Ok(())
}

/// Counts and checks what arrives.
pub fn receive(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let mut port = part.options().rings(1).open("vale0:r0")?;
    let chain = chain_of(&part.work);
    if chain.is_box() {
        say_address(&mut port, RECEIVER, [10, 0, 2, 2], [10, 0, 2, 1])?;
    } else {
        let mut frame = [0; 60];
        let own = address(RECEIVER);
        stamp::write(&mut frame, &header(own, own), 0);
        port.send(&frame)?;
        port.drain(Some(PATIENCE))?;
    }
    let mut sink = Sink {
        look: Look::new(chain),
        functions: chain.functions(),
        touched: part.work.payload == Payload::Touched,
        batch: u32::from(part.work.batch.receiver),
        timed: part.work.traffic == Traffic::Latency,
        count: 0,
        last: 0,
        times: Vec::with_capacity(TIMES),
    };
    part.ready()?;
    let rx = port.rx(0);
    sink.await_first(rx)?;
    if chain == Chain::Rules {
        // Every flow is live, and has been seen, before it counts.
        let all = |sink: &Sink| sink.last > 2 * FLOWS;
        sink.run(rx, Duration::from_secs(25), all)?;
        ensure!(all(&sink), "not all flows were seen in 25 s");
    }
    sink.run(rx, part.warm_up(), |_| false)?;
    sink.times.clear();
    let (before, first, start) = (sink.count, sink.last, Instant::now());
    sink.run(rx, part.time(), |_| false)?;
    let (count, seconds) = (sink.count - before, start.elapsed().as_secs_f64());
    let sent = sink.last.saturating_sub(first);
    let lost = (sink.touched && !sink.timed).then(|| lost_percent(sent, count));
    let latency_us = if sink.timed { Some(median_us(&mut sink.times)?) } else { None };
    let value = million(count) / seconds;
    part.report_reading(&Reading { lost_percent: lost, latency_us, ..value.into() })
}

struct Sink {
    look: Look,
    functions: u8,
    touched: bool,
    batch: u32,
    timed: bool,
    count: u64,
    last: u64,
    times: Vec<u64>,
}

impl Sink {
    fn await_first(&mut self, rx: &mut Rx) -> Result<()> {
        let start = Instant::now();
        while !self.turn(rx)? {
            ensure!(start.elapsed() < 2 * PATIENCE, "no frame arrived");
            rx.wait(Some(Duration::from_millis(20)))?;
        }
        Ok(())
    }

    fn run(&mut self, rx: &mut Rx, time: Duration, is_over: fn(&Sink) -> bool) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end && !is_over(self) {
            for _ in 0..16 {
                if !self.turn(rx)? {
                    rx.wait(Some(Duration::from_millis(20)))?;
                }
            }
        }
        Ok(())
    }

    /// Takes at most a batch; false if there is nothing.
    fn turn(&mut self, rx: &mut Rx) -> Result<bool> {
        let count = rx.available().min(self.batch);
        if count == 0 {
            return Ok(false);
        }
        let now = if self.timed { clock_ns() } else { 0 };
        for slot in 0..count * u32::from(self.touched) {
            let number = self.look.read(rx.frame(slot), self.functions);
            let number = number.context("a frame arrived with wrong bytes")?;
            if number <= self.last {
                bail!("frame {number} arrived after {}", self.last);
            }
            self.last = number;
            if self.timed && self.times.len() < TIMES {
                self.times.push(now.saturating_sub(number));
            }
        }
        self.count += u64::from(count);
        rx.release(count)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_packets_are_whole_and_of_as_many_flows_as_are_said() {
        let look = Look::new(Chain::Rules);
        let mut frame = [0; 60];
        let mut flows = std::collections::HashSet::new();
        for number in (0..2 * FLOWS).step_by(1021) {
            look.write(&mut frame, number);
            assert_eq!(look.read(&frame, 0), Some(number));
            flows.insert((number % FLOWS, [frame[34], frame[35], frame[36], frame[37]]));
        }
        let ports: std::collections::HashSet<_> = flows.iter().map(|flow| flow.1).collect();
        assert_eq!(ports.len(), flows.len());
        let sum: u32 = frame[14..34]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn test_losses_name_ports_reasons_and_shares() {
        let port = |name: &str, drops: &[(&str, u64)]| {
            let drops: std::collections::BTreeMap<_, _> = drops.iter().copied().collect();
            let none = serde_json::json!({ "frames": 0, "bytes": 0 });
            let port = serde_json::json!({
                "port": name, "tx": none, "rx": none, "drops": drops, "tx_queues": [],
                "rx_queues": [],
            });
            serde_json::from_value::<PortStats>(port).expect("counters")
        };
        let ports = [
            port("vale0:s", &[]),
            port("vale0:f0", &[("no_room", 1250)]),
            port("vale0:r0", &[("no_room", 50), ("vlan", 1)]),
        ];
        assert_eq!(
            losses(&ports, 100_000),
            "vale0:f0 no_room 1.25 %, vale0:r0 no_room 0.05 %",
            "less than 0.01 % is none"
        );
        assert_eq!(losses(&ports[..1], 0), "");
    }

    #[test]
    fn test_a_frame_that_a_function_has_not_seen_is_refused() {
        let look = Look::new(Chain::Functions(2));
        let mut frame = [0; 60];
        look.write(&mut frame, 7);
        assert_eq!(look.read(&frame, 2), None);
        frame[COUNT] = 2;
        assert_eq!(look.read(&frame, 2), Some(7));
    }
}
