//! Frames through a file descriptor: how TAPs and VDE ports are driven.
//!
//! The descriptor is the standard input of a process of its own, one `read` or `write` a frame. The
//! receiver counts: what a sender got rid of says nothing.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::role::{self, Role, median_us, nanoseconds};
use crate::stamp::ETHERTYPE;

/// What one end does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes of a frame.
    pub length: u16,
    /// Where the process runs.
    pub cpu: usize,
    /// The last byte of this end's own address.
    pub from: u8,
    /// The last byte of the other end's address.
    pub to: u8,
    /// How long it counts, in milliseconds; as long again is for the start.
    pub millis: u64,
}

impl Flow {
    /// This flow as the other end sees it.
    pub fn reversed(self, cpu: usize) -> Flow {
        Flow { cpu, from: self.to, to: self.from, ..self }
    }

    fn frame(self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 1, self.to, 2, 0, 0, 0, 1, self.from];
        frame.extend(ETHERTYPE);
        frame.resize(usize::from(self.length).max(60), 0);
        frame
    }

    fn time(self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

/// A process at one end of a flow.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Sends frames into its descriptor.
    Sender(Flow),
    /// Counts frames that come out of its descriptor.
    Receiver(Flow),
    /// Sends a frame and waits for its answer.
    Ping(Flow),
    /// Answers every frame.
    Echo(Flow),
}

impl Role for End {
    const NAME: &'static str = "descriptor";

    fn run(self) -> Result<()> {
        match self {
            End::Sender(flow) => role::report(&send(&flow)?),
            End::Receiver(flow) => role::report(&receive(&flow)?),
            End::Ping(flow) => role::report(&ping(&flow)?),
            End::Echo(flow) => echo(&flow),
        }
    }
}

/// What one end saw.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Million frames a second, or microseconds.
    pub value: f64,
}

fn descriptor() -> Result<File> {
    Ok(File::from(rustix::io::dup(rustix::stdio::stdin())?))
}

fn set_blocking(file: &File, blocking: bool) -> Result<()> {
    rustix::io::ioctl_fionbio(file, !blocking).context("cannot set the descriptor's mode")
}

fn ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE)
}

/// Sends as fast as the descriptor takes it, until a while after the receiver has counted.
fn send(flow: &Flow) -> Result<Seen> {
    machine::pin(flow.cpu);
    let mut port = descriptor()?;
    set_blocking(&port, true)?;
    let frame = flow.frame();
    let (begin, mut sent) = (Instant::now(), 0_u32);
    while begin.elapsed() < 3 * flow.time() {
        for _ in 0..32 {
            // A full queue is the switch's way to drop; it counts nowhere but in the rate.
            sent += u32::from(port.write(&frame).is_ok());
        }
    }
    Ok(Seen { value: f64::from(sent) / begin.elapsed().as_secs_f64() / 1e6 })
}

/// Counts the frames of half the time, after as long a start.
fn receive(flow: &Flow) -> Result<Seen> {
    machine::pin(flow.cpu);
    let mut port = descriptor()?;
    // One frame of ours, so that the switch learns where we are.
    port.write_all(&flow.frame())?;
    set_blocking(&port, false)?;
    let mut frame = [0; 2048];
    count_until(&mut port, &mut frame, Instant::now() + flow.time())?;
    let start = Instant::now();
    let count = count_until(&mut port, &mut frame, start + flow.time())?;
    Ok(Seen { value: f64::from(count) / start.elapsed().as_secs_f64() / 1e6 })
}

fn count_until(port: &mut File, frame: &mut [u8], end: Instant) -> Result<u32> {
    let mut count = 0;
    while Instant::now() < end {
        match port.read(frame) {
            Ok(n) => count += u32::from(ours(&frame[..n])),
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(port)?,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(count)
}

fn wait(port: &File) -> Result<()> {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut [PollFd::new(port, PollFlags::IN)], Some(&time))?;
    Ok(())
}

/// Sends a frame, waits asleep for the answer, and again. Returns the median in microseconds.
fn ping(flow: &Flow) -> Result<Seen> {
    machine::pin(flow.cpu);
    let mut port = descriptor()?;
    set_blocking(&port, true)?;
    let (out, mut answer) = (flow.frame(), [0; 2048]);
    let (begin, mut trips) = (Instant::now(), Vec::new());
    while begin.elapsed() < flow.time() {
        let start = Instant::now();
        port.write_all(&out)?;
        next(&mut port, &mut answer)?;
        trips.push(nanoseconds(start.elapsed()));
    }
    Ok(Seen { value: median_us(&mut trips)? })
}

/// Answers every frame until it is killed.
fn echo(flow: &Flow) -> Result<()> {
    machine::pin(flow.cpu);
    let mut port = descriptor()?;
    set_blocking(&port, true)?;
    let (out, mut frame) = (flow.frame(), [0; 2048]);
    loop {
        next(&mut port, &mut frame)?;
        port.write_all(&out)?;
    }
}

/// Blocks until one of our frames comes.
fn next(port: &mut File, frame: &mut [u8]) -> Result<()> {
    loop {
        let n = port.read(frame)?;
        if ours(&frame[..n]) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_frame_is_addressed_and_long_enough() {
        let flow = Flow { length: 60, cpu: 0, from: 1, to: 2, millis: 10 };
        let frame = flow.frame();
        assert_eq!(frame.len(), 60);
        assert_eq!((frame[5], frame[11]), (2, 1));
        assert!(ours(&frame));
        let back = flow.reversed(3);
        assert_eq!((back.from, back.to, back.cpu), (2, 1, 3));
    }
}
