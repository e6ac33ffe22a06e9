//! Senders and receivers.
//!
//! The ends are written as a user would write a fast program: frames are made and read where they
//! lie, a batch at a time, and a thread that has nothing to do waits as the library does.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use client::{Port, Rx, Tx};

use super::Part;
use crate::machine;
use crate::sample::Reading;
use crate::stamp::{self, address, header};
use crate::work::{Path, Payload, Traffic};

/// The sender's own number among the addresses; receivers count from 1.
pub const SENDER: u8 = 200;

/// How long a party waits for the other before it says so.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Makes frames and hands them over in batches.
struct Source {
    headers: Vec<[u8; 16]>,
    length: usize,
    batch: u32,
    sequence: u64,
    /// Frames to write before the payload is left as it is.
    to_write: u64,
    /// Memory for frames longer than a slot.
    long: Vec<u8>,
}

impl Source {
    fn new(part: &Part, tx: &Tx, to: &[[u8; 6]], from: [u8; 6]) -> Result<Source> {
        let length = usize::from(part.work.frame_len);
        ensure!(length >= stamp::SHORTEST, "frames have at least {} bytes", stamp::SHORTEST);
        let untouched = part.work.payload == Payload::Untouched;
        // Every slot's frame is written once: with no payload to make there is still an address.
        let to_write = if untouched { 2 * u64::from(tx.capacity() + 1) } else { u64::MAX };
        Ok(Source {
            headers: to.iter().map(|&to| header(to, from)).collect(),
            length,
            batch: u32::from(part.work.batch.sender).clamp(1, tx.capacity()),
            sequence: 1,
            to_write,
            long: vec![0; length],
        })
    }

    /// Sends one batch if there is room for it now.
    fn turn(&mut self, tx: &mut Tx) -> Result<bool> {
        if self.length > tx.stride() {
            return self.turn_long(tx);
        }
        if tx.owned() < self.batch && tx.space() < self.batch {
            return Ok(false);
        }
        let length = u16::try_from(self.length)?;
        if self.sequence < self.to_write {
            for slot in 0..self.batch {
                let to = usize::try_from(self.sequence)? % self.headers.len();
                stamp::write(tx.frame(slot, length), &self.headers[to], self.sequence);
                self.sequence += 1;
            }
        } else {
            for slot in 0..self.batch {
                tx.set(slot, length, 0);
            }
        }
        tx.submit(self.batch)?;
        Ok(true)
    }

    fn turn_long(&mut self, tx: &mut Tx) -> Result<bool> {
        let each = tx.slots_for(self.length)?;
        let frames = (self.batch / each).max(1);
        if tx.owned() < frames * each && tx.space() < frames * each {
            return Ok(false);
        }
        let mut slots = 0;
        for _ in 0..frames {
            let to = usize::try_from(self.sequence)? % self.headers.len();
            stamp::write(&mut self.long, &self.headers[to], self.sequence);
            slots += tx.put(slots, &self.long)?.unwrap_or(0);
            self.sequence += 1;
        }
        tx.submit(slots)?;
        Ok(true)
    }

    fn slots_wanted(&self, tx: &Tx) -> Result<u32> {
        Ok(tx.slots_for(self.length)?.max(self.batch.min(tx.capacity())))
    }
}

/// Takes frames and checks them.
struct Sink {
    batch: u32,
    touched: bool,
    count: u64,
    last: Option<u64>,
    long: Vec<u8>,
}

/// What a sink has seen so far.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// Frames.
    pub count: u64,
    /// The number of the last one, where they have numbers.
    pub last: Option<u64>,
}

impl Seen {
    /// Percent of the frames between two moments that did not arrive, where they have numbers.
    pub fn lost_percent(self, after: Seen) -> Option<f64> {
        let sent = after.last?.checked_sub(self.last?).filter(|&sent| sent > 0)?;
        Some(lost_percent(sent, after.count - self.count))
    }
}

impl Sink {
    fn seen(&self) -> Seen {
        Seen { count: self.count, last: self.last }
    }

    fn new(part: &Part) -> Sink {
        let touched = part.work.payload == Payload::Touched;
        let batch = u32::from(part.work.batch.receiver).max(1);
        Sink { batch, touched, count: 0, last: None, long: Vec::new() }
    }

    /// Takes at most a batch; false if there is nothing.
    fn turn(&mut self, rx: &mut Rx) -> Result<bool> {
        let ready = rx.available();
        if ready == 0 {
            return Ok(false);
        }
        let mut slots = 0;
        let mut taken = 0;
        for frame in rx.frames() {
            slots = frame.first_slot() + frame.slots();
            taken += 1;
            if self.touched {
                let sequence = match frame.as_slice() {
                    Some(bytes) => stamp::read(bytes),
                    None => {
                        self.long.clear();
                        frame.parts().for_each(|piece| self.long.extend_from_slice(piece));
                        stamp::read(&self.long)
                    }
                };
                check(&mut self.last, sequence)?;
            }
            if slots >= self.batch {
                break;
            }
        }
        self.count += taken;
        rx.release(slots)?;
        Ok(taken > 0)
    }
}

/// A frame must be whole, and later than the last one.
pub fn check(last: &mut Option<u64>, sequence: Option<u64>) -> Result<()> {
    match sequence {
        None => bail!("a frame arrived with wrong bytes"),
        Some(sequence) if last.is_some_and(|last| sequence <= last) => {
            bail!("frame {sequence} arrived after {}", last.unwrap_or(0))
        }
        Some(sequence) => {
            *last = Some(sequence);
            Ok(())
        }
    }
}

/// Sends until it is ended.
pub fn send(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut port = part.options().open(&part.sender_port())?;
    let to: Vec<_> = match part.work.traffic {
        Traffic::Broadcast(_) => vec![stamp::BROADCAST],
        _ => (1..=part.work.receivers()).map(address).collect(),
    };
    let tx = port.tx(0);
    let mut source = Source::new(part, tx, &to, address(SENDER))?;
    part.ready()?;
    loop {
        if !source.turn(tx)? {
            tx.wait(source.slots_wanted(tx)?, Some(PATIENCE))?;
        }
    }
}

/// Counts and checks what arrives on all receiving ports.
pub fn receive(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let mut ports = Vec::new();
    for number in 0..part.work.receivers() {
        let mut port = part.options().open(&part.receiver_port(number))?;
        introduce(part, &mut port, number + 1)?;
        ports.push((port, Sink::new(part)));
    }
    part.ready()?;
    // The first frame starts the clock, and all parties get a part of the time to start up.
    wait_for_first(&mut ports)?;
    count(&mut ports, part.warm_up())?;
    let seen = |ports: &[(Port, Sink)]| ports.iter().map(|(_, sink)| sink.seen()).collect();
    let (before, start): (Vec<Seen>, _) = (seen(&ports), Instant::now());
    count(&mut ports, part.time())?;
    let (after, seconds): (Vec<Seen>, _) = (seen(&ports), start.elapsed().as_secs_f64());
    let sum = |all: &[Seen]| all.iter().map(|seen| seen.count).sum::<u64>();
    let value = million(sum(&after) - sum(&before)) / seconds;
    // Several receivers share the numbers of one sender.
    let alone = before.len() == 1;
    let lost_percent = alone.then(|| before[0].lost_percent(after[0])).flatten();
    part.report_reading(&Reading { lost_percent, ..value.into() })
}

/// Sends one frame, so that the switch knows where the address lives.
pub fn introduce(part: &Part, port: &mut Port, number: u8) -> Result<()> {
    if part.work.path == Path::Pipe {
        return Ok(());
    }
    // To itself: the switch learns the address, and forwards a frame for its own ingress port to no
    // port.
    let mut frame = [0; 60];
    stamp::write(&mut frame, &header(address(number), address(number)), 0);
    port.send(&frame)?;
    port.drain(Some(PATIENCE))?;
    Ok(())
}

fn wait_for_first(ports: &mut [(Port, Sink)]) -> Result<()> {
    let start = Instant::now();
    while ports.iter().all(|(_, sink)| sink.count == 0) {
        ensure!(start.elapsed() < PATIENCE, "no frame arrived");
        turn(ports)?;
    }
    Ok(())
}

fn count(ports: &mut [(Port, Sink)], time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for _ in 0..16 {
            turn(ports)?;
        }
    }
    Ok(())
}

/// One look at every port; a lone port is waited for.
fn turn(ports: &mut [(Port, Sink)]) -> Result<()> {
    let mut busy = false;
    for (port, sink) in ports.iter_mut() {
        busy |= sink.turn(port.rx(0))?;
    }
    if busy {
        return Ok(());
    }
    match ports {
        [(port, _)] => {
            port.rx(0).wait(Some(Duration::from_millis(20)))?;
        }
        // Several ports have several doorbells: on this core there is nothing else to do.
        _ => std::thread::yield_now(),
    }
    Ok(())
}

/// Sends and counts on one port.
pub fn both(part: &Part) -> Result<()> {
    let left = part.kind == super::Kind::BothLeft;
    let (cpu, name, own, other) = if left {
        (part.work.placement.sender, part.sender_port(), 1, 2)
    } else {
        (part.work.placement.receiver, part.receiver_port(0), 2, 1)
    };
    machine::pin(cpu);
    let mut port = part.options().open(&name)?;
    introduce(part, &mut port, own)?;
    let (sender, receiver) = port.halves();
    let (tx, rx) = (sender.tx(0), receiver.rx(0));
    let mut source = Source::new(part, tx, &[address(other)], address(own))?;
    let mut sink = Sink::new(part);
    part.ready()?;
    let begin = Instant::now();
    let mut start = None;
    loop {
        let busy = source.turn(tx)? | sink.turn(rx)?;
        if !busy {
            std::thread::yield_now();
        }
        let (since, before) = *start.get_or_insert((Instant::now(), sink.seen()));
        if begin.elapsed() < part.warm_up() {
            start = None;
        } else if since.elapsed() >= part.time() {
            let value = million(sink.count - before.count) / since.elapsed().as_secs_f64();
            let lost_percent = before.lost_percent(sink.seen());
            part.report_reading(&Reading { lost_percent, ..value.into() })?;
            // The other end still counts: go on until the parent ends both.
            start = Some((Instant::now() + Duration::from_secs(3600), before));
        }
    }
}

/// Opens ports and holds them.
pub fn idle(part: &Part) -> Result<()> {
    let open = |number| part.options().open(&format!("vale0:idle{number}"));
    let ports = (0..part.work.idle_ports).map(open).collect::<Result<Vec<_>, _>>()?;
    part.ready()?;
    loop {
        std::thread::park();
        // Waking without a reason is allowed; giving the ports back is not.
        std::hint::black_box(&ports);
    }
}

pub fn million(frames: u64) -> f64 {
    // A second's frames fit a float's 52 bits by far.
    #[allow(clippy::cast_precision_loss)]
    let frames = frames as f64;
    frames / 1e6
}

/// Percent of all frames that did not arrive.
pub fn lost_percent(all: u64, arrived: u64) -> f64 {
    100.0 * million(all.saturating_sub(arrived)) / million(all.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_lost_is_what_did_not_arrive() {
        assert!((lost_percent(1_000_000, 972_000) - 2.8).abs() < 1e-9);
        assert!(lost_percent(1_000_000, 1_000_001) < 1e-9);
        assert!(lost_percent(0, 0) < 1e-9);
    }
}
