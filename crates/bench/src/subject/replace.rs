//! The pause of a flow while another daemon takes over (`uvala daemon --replace`).
//!
//! All programs keep their ports: the two ends of the flow, and many that sleep. A program whose
//! port is not handed over attaches again by itself. What the next daemon gets for a receiver that
//! is not back yet is lost, so the report has that beside the pause.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use client::Error;
use client::control::Connection;

use super::Part;
use super::ends::{PATIENCE, SENDER, Seen, check, introduce};
use crate::sample::Reading;
use crate::stamp::{self, address, header};
use crate::traffic::pace::Pace;

/// Frames a second.
const RATE: u64 = 10_000;

/// Sends until it is ended.
pub fn send(part: &Part) -> Result<()> {
    let mut port = part.options().open(&part.sender_port())?;
    let header = header(address(1), address(SENDER));
    let (mut frame, mut sequence, mut pace) = ([0; 60], 0, Pace::new(Some(RATE)));
    part.ready()?;
    loop {
        let now = Instant::now();
        if pace.due(now) == 0 {
            let next = pace.next().unwrap_or(now);
            std::thread::sleep(next.saturating_duration_since(now));
            continue;
        }
        // A sender that has room finds out late.
        if port.check().is_err() {
            port.reconnect(Some(PATIENCE))?;
            // What was not sent meanwhile is not made up for.
            pace = Pace::new(Some(RATE));
            continue;
        }
        sequence += 1;
        stamp::write(&mut frame, &header, sequence);
        match port.send(&frame) {
            Ok(()) | Err(Error::Lost(_)) => pace.add(1),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes frames until some time after the end of the daemon. Reports the longest time without one,
/// and what did not come.
pub fn receive(part: &Part) -> Result<()> {
    let mut port = part.options().open(&part.receiver_port(0))?;
    // A connection without a port is not handed over.
    let daemon = Connection::open(Some(&part.dir))?;
    introduce(part, &mut port, 1)?;
    part.ready()?;
    let (mut frame, mut flow, begin) = (Vec::new(), Flow::default(), Instant::now());
    let mut end: Option<Instant> = None;
    while end.is_none_or(|end| Instant::now() < end) {
        match port.recv_timeout(&mut frame, Some(PATIENCE)) {
            Ok(true) if begin.elapsed() < part.warm_up() => {}
            Ok(true) => flow.note(stamp::read(&frame), Instant::now())?,
            Ok(false) => bail!("no frame arrived"),
            Err(Error::Lost(_)) => {
                port.reconnect(Some(PATIENCE))?;
                introduce(part, &mut port, 1)?;
            }
            Err(error) => return Err(error.into()),
        }
        if end.is_none() && daemon.is_over() {
            end = Some(Instant::now() + part.time());
        }
    }
    part.report_reading(&flow.reading()?)
}

/// Holds ports whose threads sleep, and attach again.
pub fn idle(part: &Part) -> Result<()> {
    let open = |number| part.options().reconnect(true).open(&format!("vale0:idle{number}"));
    let ports = (0..part.work.idle_ports).map(open).collect::<Result<Vec<_>, _>>()?;
    part.ready()?;
    std::thread::scope(|scope| {
        for mut port in ports {
            scope.spawn(move || while port.recv(&mut Vec::new()).is_ok() {});
        }
    });
    Ok(())
}

/// The frames of the flow, and when they came.
#[derive(Default)]
struct Flow {
    first: Option<Seen>,
    seen: Seen,
    came: Option<Instant>,
    /// The longest time between two frames.
    longest_ms: f64,
}

impl Flow {
    /// Notes a frame.
    fn note(&mut self, sequence: Option<u64>, now: Instant) -> Result<()> {
        check(&mut self.seen.last, sequence)?;
        self.seen.count += 1;
        self.first = self.first.or(Some(self.seen));
        let gap = self.came.replace(now).map_or(0.0, |came| (now - came).as_secs_f64() * 1e3);
        self.longest_ms = self.longest_ms.max(gap);
        Ok(())
    }

    fn reading(&self) -> Result<Reading> {
        let lost_percent = self.first.and_then(|first| first.lost_percent(self.seen));
        ensure!(lost_percent.is_some(), "no two frames arrived");
        Ok(Reading { lost_percent, ..self.longest_ms.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn test_a_flow_has_its_longest_pause_and_what_it_lost() {
        let (start, mut flow) = (Instant::now(), Flow::default());
        assert!(flow.reading().is_err());
        for (sequence, ms) in [(7, 0), (8, 1), (11, 31), (12, 32)] {
            flow.note(Some(sequence), start + Duration::from_millis(ms)).expect("in order");
        }
        let reading = flow.reading().expect("four frames");
        assert!((reading.value - 30.0).abs() < 1e-9, "{reading:?}");
        assert!((reading.lost_percent.expect("numbers") - 40.0).abs() < 1e-9, "{reading:?}");
        assert!(flow.note(Some(12), start).is_err(), "twice");
    }
}
