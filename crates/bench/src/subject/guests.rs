//! The subject as a switch of virtual machines.
//!
//! Their ends are either devices of the one `dpdk-testpmd` that every switch of machines is
//! measured with, which poll for ever, or [machines](Machine) of ours, which sleep when they have
//! nothing to do, as guests do.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::driver::{Machine, SIZE};
use super::ends::{PATIENCE, lost_percent, million};
use super::{Part, Reading};
use crate::daemon::Daemon;
use crate::machine;
use crate::programs::await_file;
use crate::programs::dpdk::Pages;
use crate::programs::vhost::{self, Client, Role};
use crate::role::nanoseconds;
use crate::stamp::{self, address, header};
use crate::work::{Traffic, Work};

/// Addresses of the two machines.
const FIRST: u8 = 1;
pub(super) const SECOND: u8 = 2;

/// With testpmd at both ends, that of other switches: million frames a second that it receives.
pub fn run_pollers(work: &Work, time: Duration) -> Result<Reading> {
    let daemon = super::configuration::start(work)?;
    let sockets = [socket(&daemon, 0)?, socket(&daemon, 1)?];
    if work.traffic == Traffic::OneWay {
        let pages = Pages::get(&[vhost::MEGABYTES, vhost::MEGABYTES]);
        return vhost::one_way(&pages, &sockets, work, time);
    }
    let pages = Pages::get(&[vhost::MEGABYTES]);
    let mut client = Client::start(&pages, &sockets, Role::Connects, work)?;
    let rate = client.rate(time);
    client.0.quit();
    Ok(rate?.into())
}

fn socket(daemon: &Daemon, number: u8) -> Result<String> {
    let path = daemon.dir().join(format!("vm{number}.sock")).to_string_lossy().into_owned();
    await_file(&path)?;
    Ok(path)
}

fn boot(part: &Part, number: u8) -> Result<Machine> {
    Machine::boot(&part.dir.join(format!("vm{number}.sock")))
}

/// Sends one frame to its own address, so that the switch knows where the address lives.
pub(super) fn introduce(machine: &mut Machine, own: u8) -> Result<()> {
    let mut frame = [0; 60];
    stamp::write(&mut frame, &header(address(own), address(own)), 0);
    machine.put(&frame)?;
    machine.send();
    Ok(())
}

/// Makes frames of a machine.
pub(super) struct Source {
    frame: Vec<u8>,
    header: [u8; 16],
    sequence: u64,
}

impl Source {
    pub(super) fn new(work: &Work) -> Source {
        let header = header(address(SECOND), address(FIRST));
        Source { frame: vec![0; work.frame_len.into()], header, sequence: 0 }
    }

    /// Sends as many frames as a batch has, if there is room.
    pub(super) fn turn(&mut self, machine: &mut Machine, batch: u16) -> Result<bool> {
        if machine.room() < batch {
            return Ok(false);
        }
        for _ in 0..batch {
            self.sequence += 1;
            stamp::write(&mut self.frame, &self.header, self.sequence);
            machine.put(&self.frame)?;
        }
        machine.send();
        Ok(true)
    }
}

/// Sends until it is ended.
pub fn send(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut machine = boot(part, 0)?;
    let (mut source, batch) = (Source::new(&part.work), part.work.batch.sender.clamp(1, SIZE));
    part.ready()?;
    loop {
        if !source.turn(&mut machine, batch)? {
            machine.wait_for_room(SIZE / 2, PATIENCE)?;
        }
    }
}

/// What a machine has received.
#[derive(Clone, Copy, Default)]
struct Tally {
    count: u64,
    /// The last frame's number: those between that never came are lost.
    last: u64,
}

impl Tally {
    /// Takes a batch.
    fn turn(&mut self, machine: &mut Machine, batch: u16) -> Result<bool> {
        let mut frame = [0; 2048];
        let before = self.count;
        while self.count - before < batch.into()
            && let Some(bytes) = machine.next(&mut frame)
        {
            let sequence = stamp::read(bytes).context("a frame arrived with wrong bytes")?;
            ensure!(sequence > self.last, "frame {sequence} arrived after {}", self.last);
            self.last = sequence;
            self.count += 1;
        }
        if self.count > before {
            machine.give_back();
        }
        Ok(self.count > before)
    }

    fn go_on(&mut self, machine: &mut Machine, batch: u16, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if !self.turn(machine, batch)? {
                machine.wait_for_frame(Duration::from_millis(20))?;
            }
        }
        Ok(())
    }
}

/// Counts and checks what arrives, and what does not.
pub fn receive(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let mut machine = boot(part, 1)?;
    introduce(&mut machine, SECOND)?;
    part.ready()?;
    let begin = Instant::now();
    // It is interrupted when it is connected, too.
    while !machine.wait_for_frame(PATIENCE)? {
        ensure!(begin.elapsed() < PATIENCE, "no frame arrived");
    }
    let (mut tally, batch) = (Tally::default(), part.work.batch.receiver.clamp(1, SIZE));
    tally.go_on(&mut machine, batch, part.time() / 3)?;
    let (before, start) = (tally, Instant::now());
    tally.go_on(&mut machine, batch, part.time())?;
    let (count, sent) = (tally.count - before.count, tally.last - before.last);
    let lost = lost_percent(sent, count);
    let value = million(count) / start.elapsed().as_secs_f64();
    part.report_reading(&Reading { lost_percent: Some(lost), ..value.into() })
}

/// A machine that is attached, and does nothing.
pub fn idle(part: &Part) -> Result<()> {
    let mut machine = boot(part, 0)?;
    introduce(&mut machine, FIRST)?;
    part.ready()?;
    loop {
        std::thread::park();
        std::hint::black_box(&machine);
    }
}

/// Milliseconds from the daemon's sudden end to the first frame from machine to machine.
pub fn resume(work: &Work) -> Result<f64> {
    let mut daemon = super::configuration::start(work)?;
    let boot = |number| Machine::boot(&daemon.dir().join(format!("vm{number}.sock")));
    let (mut first, mut second) = (boot(0)?, boot(1)?);
    let (mut source, mut tally) = (Source::new(work), Tally::default());
    exchange(&mut first, &mut second, &mut source, &mut tally)?;
    let start = Instant::now();
    daemon.kill_and_start_again()?;
    first.reconnect()?;
    second.reconnect()?;
    exchange(&mut first, &mut second, &mut source, &mut tally)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Sends frames until one has arrived.
fn exchange(
    first: &mut Machine,
    second: &mut Machine,
    source: &mut Source,
    tally: &mut Tally,
) -> Result<()> {
    let begin = Instant::now();
    while !tally.turn(second, 1)? {
        ensure!(begin.elapsed() < PATIENCE, "no frame arrived");
        source.turn(first, 1)?;
        second.wait_for_frame(Duration::from_millis(1))?;
    }
    while tally.turn(second, SIZE)? {}
    Ok(())
}

/// Nanoseconds of the daemon for each frame to a guest that receives none.
pub fn overrun(work: &Work, time: Duration) -> Result<f64> {
    let daemon = super::configuration::start(work)?;
    machine::pin(work.placement.sender);
    let boot = |number| Machine::boot(&daemon.dir().join(format!("vm{number}.sock")));
    let (mut first, mut deaf) = (boot(0)?, boot(1)?);
    introduce(&mut deaf, SECOND)?;
    let (mut source, batch) = (Source::new(work), work.batch.sender.clamp(1, SIZE));
    let mut send = |time: Duration| -> Result<(u64, Duration)> {
        let (before, used) = (source.sequence, daemon.cpu_time()?);
        let end = Instant::now() + time;
        while Instant::now() < end {
            if !source.turn(&mut first, batch)? {
                first.wait_for_room(SIZE / 2, PATIENCE)?;
            }
        }
        Ok((source.sequence - before, daemon.cpu_time()?.saturating_sub(used)))
    };
    // The first ones still find room.
    send(time / 4)?;
    let (frames, used) = send(time)?;
    Ok(million(nanoseconds(used)) / million(frames.max(1)))
}
