//! `-f ping` and `-f pong`: there and back.

use std::time::{Duration, Instant};

use anyhow::Result;
use client::{Error, Interest};

use super::Args;
use super::frame::{self, Builder, Seen};
use super::latency::Times;
use super::pace::Pace;
use super::report::{Checked, Summary};
use super::session::{Session, TICK, clock_ns};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// One that asks.
struct Pinger {
    builder: Builder,
    vlan: Option<u16>,
    pace: Pace,
    count: u64,
    number: u64,
    frame: Vec<u8>,
    answer: Vec<u8>,
    times: Times,
    checked: Checked,
}

/// Sends a frame, waits for its answer, and so on.
pub fn ping(session: &mut Session, args: &Args) -> Result<Summary> {
    let mut pinger = Pinger {
        builder: args.builder(),
        vlan: args.vlan,
        pace: args.pace(),
        count: args.count.unwrap_or(u64::MAX),
        number: 0,
        frame: vec![0; args.length()],
        answer: Vec::new(),
        times: Times::default(),
        checked: Checked { streams: 1, ..Checked::default() },
    };
    session.begin(args.delay, args.time);
    session.run(|session| pinger.turn(session))?;
    let mut summary = session.volume.summary("ping", &args.port);
    let asked = pinger.checked.tally.lost;
    if asked > 0 && summary.frames == 0 {
        let why = format!("no answer to {asked} frames; answers come from: uvala gen -f pong");
        summary.failure = Some(why);
    }
    summary.checked = Some(pinger.checked);
    summary.latency_us = pinger.times.latency();
    Ok(summary)
}

impl Pinger {
    /// One round trip, or a wait for the next. `false`: it is over.
    fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        let now = Instant::now();
        if session.is_over(now) || self.number >= self.count {
            return Ok(false);
        }
        if self.pace.due(now) == 0 {
            session.sleep_until(self.pace.next().unwrap_or(now));
            return Ok(true);
        }
        let number = self.number;
        (self.number, _) = (number + 1, self.pace.add(1));
        self.builder.write(&mut self.frame, number, clock_ns());
        send(session, &self.frame)?;
        match self.await_answer(session, number, now + PATIENCE)? {
            Some(ns) => {
                self.times.add(ns);
                session.volume.add(1, self.frame.len() as u64, Instant::now());
            }
            None => self.checked.tally.lost += 1,
        }
        Ok(true)
    }

    /// Waits for the answer to a frame, and says how long it took.
    fn await_answer(
        &mut self,
        session: &mut Session,
        number: u64,
        end: Instant,
    ) -> Result<Option<u64>, Error> {
        loop {
            while session.port.try_recv(&mut self.answer)? {
                let now_ns = clock_ns();
                if let Some(sent_ns) = self.look(number) {
                    return Ok(Some(now_ns.saturating_sub(sent_ns)));
                }
            }
            let now = Instant::now();
            if now >= end || session.is_over(now) {
                return Ok(None);
            }
            session.port.wait(Interest::Rx, Some(TICK.min(end - now)))?;
        }
    }

    /// When the question was asked, if this is its answer.
    fn look(&mut self, number: u64) -> Option<u64> {
        let stream = self.builder.stream();
        match frame::read_in(&self.answer, self.vlan) {
            Seen::Good(stamp) if stamp.stream == stream && stamp.number == number => {
                return Some(stamp.time_ns);
            }
            // The answer to an older question, which counts as lost.
            Seen::Good(stamp) if stamp.stream == stream => {
                self.checked.tally.reordered += 1;
            }
            Seen::Good(_) | Seen::Foreign => self.checked.foreign += 1,
            Seen::Corrupted => self.checked.corrupted += 1,
        }
        None
    }
}

/// Sends everything back until the session is over.
pub fn pong(session: &mut Session, args: &Args) -> Result<Summary> {
    let announcement = args.announcement();
    let own = announcement[6..12].try_into()?;
    let mut frame = Vec::new();
    let count = args.count.unwrap_or(u64::MAX);
    session.begin(args.delay, args.time);
    session.run_announced(announcement, |session| {
        let left = count - session.volume.frames;
        answer(session, &mut frame, own, left.min(args.burst.into()))
    })?;
    Ok(session.volume.summary("pong", &args.port).unless_silent(args.time))
}

/// Sends back what is there, or waits. `false`: it is over.
fn answer(
    session: &mut Session,
    frame: &mut Vec<u8>,
    own: [u8; 6],
    most: u64,
) -> Result<bool, Error> {
    let now = Instant::now();
    if session.is_over(now) || most == 0 {
        return Ok(false);
    }
    let (mut frames, mut bytes, mut slots) = (0, 0, 0);
    while frames < most && session.port.try_recv(frame)? {
        frame::turn_around(frame, own);
        let tx = session.port.tx(0);
        if tx.owned() <= slots {
            tx.submit(std::mem::take(&mut slots))?;
            tx.space();
        }
        match tx.put(slots, frame)? {
            Some(more) => slots += more,
            None => {
                tx.submit(std::mem::take(&mut slots))?;
                send(session, frame)?;
            }
        }
        (frames, bytes) = (frames + 1, bytes + frame.len() as u64);
    }
    session.port.tx(0).submit(slots)?;
    if frames == 0 {
        session.port.wait(Interest::Rx, Some(TICK))?;
    } else {
        session.volume.add(frames, bytes, now);
    }
    Ok(true)
}

/// Sends a frame, waiting for room unless it is over.
fn send(session: &mut Session, frame: &[u8]) -> Result<(), Error> {
    while !session.port.try_send(frame)? && !session.is_over(Instant::now()) {
        let tx = session.port.tx(0);
        let slots = tx.slots_for(frame.len())?;
        tx.wait(slots, Some(TICK))?;
    }
    Ok(())
}
