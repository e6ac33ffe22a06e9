//! `-f rx`: frames counted and checked where they lie.

use std::time::Instant;

use anyhow::Result;
use client::{Error, Frame, Interest};

use super::Args;
use super::frame::{self, Seen};
use super::latency::Times;
use super::report::{Checked, Summary};
use super::sequence::Streams;
use super::session::{Session, TICK, clock_ns};

/// What a receiver knows of the frames so far.
struct Sink {
    burst: u32,
    untouched: bool,
    vlan: Option<u16>,
    /// Numbered frames still wanted.
    wanted: u64,
    streams: Streams,
    corrupted: u64,
    foreign: u64,
    /// One way, of one frame a burst.
    times: Times,
    /// Memory for frames that lie in several slots.
    long: Vec<u8>,
}

/// Receives until the session is over.
pub fn run(session: &mut Session, args: &Args) -> Result<Summary> {
    let mut sink = Sink {
        burst: args.burst,
        untouched: args.untouched,
        vlan: args.vlan,
        wanted: args.expect.or(args.count).unwrap_or(u64::MAX),
        streams: Streams::default(),
        corrupted: 0,
        foreign: 0,
        times: Times::default(),
        long: Vec::new(),
    };
    session.begin(args.delay, args.time);
    session.run_announced(args.announcement(), |session| sink.turn(session))?;
    let mut summary = session.volume.summary("rx", &args.port).unless_silent(args.time);
    if !args.untouched {
        summary.checked = Some(sink.checked());
        summary.latency_us = sink.times.latency();
    }
    Ok(summary)
}

impl Sink {
    /// Takes a burst, or waits. `false`: it is over.
    fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        let now = Instant::now();
        let is_over = session.is_over(now);
        let taken = self.take(session, now)?;
        if self.wanted == 0 {
            return Ok(false);
        }
        if is_over {
            return self.take_rest(session).map(|()| false);
        }
        if taken == 0 {
            session.port.wait(Interest::Rx, Some(TICK))?;
        }
        Ok(true)
    }

    /// What had arrived when it was over belongs to the run.
    fn take_rest(&mut self, session: &mut Session) -> Result<(), Error> {
        let rings = session.port.rx_rings();
        let slots: u32 = (0..rings).map(|ring| session.port.rx(ring).available()).sum();
        let mut left = slots;
        while left > 0 && self.wanted > 0 {
            match self.take(session, Instant::now())? {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
        Ok(())
    }

    /// Takes at most a burst from each ring. Returns the number of slots.
    fn take(&mut self, session: &mut Session, now: Instant) -> Result<u32, Error> {
        let mut all = 0;
        for ring in 0..session.port.rx_rings() {
            let rx = session.port.rx(ring);
            if rx.available() == 0 || self.wanted == 0 {
                continue;
            }
            let (mut slots, mut frames, mut bytes) = (0, 0, 0);
            let mut last_ns = None;
            for frame in rx.frames() {
                bytes += frame.len() as u64;
                frames += 1;
                slots = frame.first_slot() + frame.slots();
                last_ns = self.look(&frame).or(last_ns);
                if frames >= u64::from(self.burst) || self.wanted == 0 {
                    break;
                }
            }
            if let Some(ns) = last_ns {
                self.times.add(clock_ns().saturating_sub(ns));
            }
            // Without a frame there are only slots that the switch passed over.
            let slots = if frames == 0 { rx.owned() } else { slots };
            rx.release(slots)?;
            if frames > 0 {
                session.volume.add(frames, bytes, now);
            }
            all += slots;
        }
        Ok(all)
    }

    /// Checks a frame. Returns the time it was sent.
    #[inline]
    fn look(&mut self, frame: &Frame<'_>) -> Option<u64> {
        if self.untouched {
            self.wanted -= 1;
            return None;
        }
        let seen = match frame.as_slice() {
            Some(bytes) => frame::read_in(bytes, self.vlan),
            None => {
                self.long.clear();
                frame.parts().for_each(|part| self.long.extend_from_slice(part));
                frame::read_in(&self.long, self.vlan)
            }
        };
        match seen {
            Seen::Good(stamp) => {
                self.wanted = self.wanted.saturating_sub(1);
                self.streams.note(stamp.stream, stamp.number);
                return Some(stamp.time_ns);
            }
            Seen::Corrupted => self.corrupted += 1,
            Seen::Foreign => self.foreign += 1,
        }
        None
    }

    fn checked(&self) -> Checked {
        Checked {
            corrupted: self.corrupted,
            foreign: self.foreign,
            streams: self.streams.count(),
            tally: self.streams.tally(),
        }
    }
}
