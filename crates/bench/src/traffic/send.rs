//! `-f tx`: frames written where the switch reads them, a burst at a time.

use std::time::{Duration, Instant};

use anyhow::Result;
use client::{Error, Tx};

use super::Args;
use super::frame::Builder;
use super::pace::Pace;
use super::report::Summary;
use super::session::{Session, TICK, clock_ns};

/// How long the switch may take for what is left at the end.
const LAST_FRAMES: Duration = Duration::from_secs(2);

/// What a sender knows between two bursts.
struct Source {
    builder: Builder,
    length: usize,
    burst: u64,
    /// Number of the next frame.
    number: u64,
    count: u64,
    pace: Pace,
    ring: usize,
    untouched: bool,
    /// First number whose slot has been written before.
    written: u64,
    /// Memory for frames longer than a slot.
    long: Vec<u8>,
    /// Frames that the switch had not taken when it went away.
    lost: u64,
}

/// Sends until the session is over.
pub fn run(session: &mut Session, args: &Args) -> Result<Summary> {
    let mut source = Source {
        builder: args.builder(),
        length: args.length(),
        burst: args.burst.into(),
        number: 0,
        count: args.count.unwrap_or(u64::MAX),
        pace: args.pace(),
        ring: 0,
        untouched: args.untouched,
        written: u64::MAX,
        long: vec![0; args.length()],
        lost: 0,
    };
    session.begin(args.delay, args.time);
    let mut afresh = true;
    session.run(|session| {
        if afresh {
            source.new_rings(session);
        }
        let result = source.turn(session);
        afresh = result.is_err();
        if let Err(Error::Lost(_)) = result {
            source.lost += source.in_flight(session)?;
        }
        result
    })?;
    session.volume.until(Instant::now());
    let failure = source.finish(session)?;
    let not_taken = source.lost + source.in_flight(session)?;
    session.volume.take_back(not_taken, not_taken * source.length as u64);
    let mut summary = session.volume.summary("tx", &args.port);
    summary.not_taken = Some(not_taken);
    summary.failure = failure.map(|why| format!("{} frames from {} {why}", not_taken, args.port));
    Ok(summary)
}

impl Source {
    /// New rings, or old ones started afresh: no slot has been written yet.
    fn new_rings(&mut self, session: &mut Session) {
        if self.untouched {
            let rings = session.port.tx_rings() as u64;
            // Twice, because the ring may begin anywhere.
            let slots = 2 * rings * u64::from(session.port.tx(0).capacity() + 1);
            self.written = self.number + slots.max(2 * self.burst * rings);
        }
    }

    /// Sends a burst, or waits. `false`: it is over.
    fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        let now = Instant::now();
        if session.is_over(now) || self.number >= self.count {
            return Ok(false);
        }
        session.check(now)?;
        let due = self.pace.due(now).min(self.burst).min(self.count - self.number);
        if due == 0 {
            session.sleep_until(self.pace.next().unwrap_or(now));
            return Ok(true);
        }
        let tx = session.port.tx(self.ring);
        let each = tx.slots_for(self.length)?;
        let most = (tx.capacity() / each).min(u32::try_from(due).unwrap_or(u32::MAX));
        let slots = most * each;
        if tx.owned() < slots && tx.space() < slots {
            tx.wait(slots, Some(TICK))?;
            return Ok(true);
        }
        self.fill(tx, most, each)?;
        tx.submit(slots)?;
        let frames = u64::from(most);
        self.pace.add(frames);
        self.ring = (self.ring + 1) % session.port.tx_rings();
        session.volume.add(frames, frames * self.length as u64, now);
        Ok(true)
    }

    /// Waits for what the switch has not taken yet: the port ends with this program, and what it
    /// holds would end with it. Says what became of the rest, if there is one.
    fn finish(&self, session: &mut Session) -> Result<Option<String>, Error> {
        let end = Instant::now() + LAST_FRAMES;
        let mut left = self.in_flight(session)?;
        while left > 0 && Instant::now() < end {
            if let Err(error) = session.port.drain(Some(TICK)) {
                return Ok(Some(format!("are lost: {error}")));
            }
            let now = self.in_flight(session)?;
            if now < left {
                session.volume.until(Instant::now());
            }
            left = now;
        }
        Ok((left > 0).then(|| "were not taken in time".to_owned()))
    }

    /// Frames that the switch has not taken yet.
    fn in_flight(&self, session: &mut Session) -> Result<u64, Error> {
        let mut frames = 0;
        for ring in 0..session.port.tx_rings() {
            let tx = session.port.tx(ring);
            let slots = tx.capacity() - tx.space();
            frames += u64::from(slots.div_ceil(tx.slots_for(self.length)?));
        }
        Ok(frames)
    }

    /// Writes frames into free slots, all of which fit.
    fn fill(&mut self, tx: &mut Tx, frames: u32, each: u32) -> Result<(), Error> {
        let now_ns = clock_ns();
        match u16::try_from(self.length) {
            Ok(length) if each == 1 && self.number >= self.written => {
                (0..frames).for_each(|slot| tx.set(slot, length, 0));
            }
            Ok(length) if each == 1 => {
                for (slot, number) in (0..frames).zip(self.number..) {
                    self.builder.write(tx.frame(slot, length), number, now_ns);
                }
            }
            _ => {
                for (i, number) in (0..frames).zip(self.number..) {
                    self.builder.write(&mut self.long, number, now_ns);
                    tx.put(i * each, &self.long)?;
                }
            }
        }
        self.number += u64::from(frames);
        Ok(())
    }
}
