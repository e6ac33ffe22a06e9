//! What a run leaves: a line each second while it lasts, a table or a JSON object at its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use super::sequence::Tally;
use terminal::say;
use terminal::units;

/// The end of a run, as `--json` prints it. What a function does not measure is left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// `tx`, `rx`, `ping` or `pong`.
    pub function: String,
    /// The port.
    pub port: String,
    /// Frames sent (and taken by the switch), received or answered.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames that a sender wrote and the switch never took.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_taken: Option<u64>,
    /// From the first to the last frame; of a sender, to the end of sending.
    pub seconds: f64,
    /// Million frames per second.
    pub mpps: f64,
    /// Thousand million bits of frames per second.
    pub gbit_s: f64,
    /// What a receiver or a ping has checked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub checked: Option<Checked>,
    /// Round trips of ping; one way, of sampled frames, of a receiver.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_us: Option<Latency>,
    /// Frames the switch dropped for this port, by reason; nothing where it cannot say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub drops: Option<BTreeMap<String, u64>>,
    /// How often the daemon was lost and found again.
    pub reconnects: u32,
    /// Why the run is a failure, if it is one whatever was asked.
    #[serde(skip)]
    pub failure: Option<String>,
}

/// What a receiver found out about the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Frames with a wrong byte.
    pub corrupted: u64,
    /// Frames of other programs.
    pub foreign: u64,
    /// Senders, or runs of them.
    pub streams: usize,
    /// Missing, late, twice.
    #[serde(flatten)]
    pub tally: Tally,
}

impl Checked {
    /// Whether every frame arrived, intact and in order.
    pub fn is_clean(&self) -> bool {
        self.corrupted == 0 && self.tally == Tally::default()
    }
}

/// Frames and bytes so far, and when they were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Volume {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    span: Option<(Instant, Instant)>,
}

impl Volume {
    /// Adds a batch that was handled at `now`.
    #[inline]
    pub fn add(&mut self, frames: u64, bytes: u64, now: Instant) {
        self.frames += frames;
        self.bytes += bytes;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }

    /// The clock runs on to `now`, if it runs.
    pub fn until(&mut self, now: Instant) {
        self.span = self.span.map(|(first, _)| (first, now));
    }

    /// So much was none.
    pub fn take_back(&mut self, frames: u64, bytes: u64) {
        self.frames -= frames.min(self.frames);
        self.bytes -= bytes.min(self.bytes);
    }

    fn time(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// Begins a summary.
    pub fn summary(&self, function: &str, port: &str) -> Summary {
        let time = self.time();
        Summary {
            function: function.to_owned(),
            port: port.to_owned(),
            frames: self.frames,
            bytes: self.bytes,
            seconds: time.as_secs_f64(),
            mpps: units::per_second(self.frames, time) / 1e6,
            gbit_s: units::per_second(self.bytes * 8, time) / 1e9,
            ..Summary::default()
        }
    }
}

/// Prints a line each second on stderr.
#[derive(Debug)]
pub struct Meter {
    quiet: bool,
    since: Instant,
    before: (u64, u64),
    dropped: u64,
}

impl Meter {
    /// One that prints, or one that does not.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, since: Instant::now(), before: (0, 0), dropped: 0 }
    }

    /// Counts from now on.
    pub fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// Whether a line is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        !self.quiet && now - self.since >= Duration::from_secs(1)
    }

    /// Prints the line. `dropped` is what the switch dropped so far.
    pub fn line(&mut self, now: Instant, volume: &Volume, dropped: Option<u64>) {
        let time = now - self.since;
        let (frames, bytes) = self.before;
        let rate = units::packet_rate(units::per_second(volume.frames - frames, time));
        let bits = units::bit_rate(units::per_second((volume.bytes - bytes) * 8, time));
        let drops = dropped.map_or_else(String::new, |all| {
            let new = all.saturating_sub(std::mem::replace(&mut self.dropped, all));
            format!("   {} dropped", units::count(new))
        });
        let frames = units::count(volume.frames);
        say::remark(format_args!("{rate:>11}   {bits:>11}   {frames:>16} frames{drops}"));
        (self.since, self.before) = (now, (volume.frames, volume.bytes));
    }
}

impl Summary {
    /// The table for people.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ("frames", units::count(self.frames)),
            ("bytes", units::bytes(self.bytes)),
            ("time", format!("{:.3} s", self.seconds)),
            ("rate", units::packet_rate(self.mpps * 1e6)),
            ("", units::bit_rate(self.gbit_s * 1e9)),
        ];
        if let Some(count) = self.not_taken.filter(|&count| count > 0) {
            rows.push(("not taken", units::count(count)));
        }
        if let Some(checked) = &self.checked {
            checked.rows(&mut rows);
        }
        if let Some(latency) = &self.latency_us {
            latency.rows(&mut rows);
        }
        for (reason, count) in self.drops.iter().flatten() {
            rows.push(("dropped", format!("{} ({reason})", units::count(*count))));
        }
        if self.reconnects > 0 {
            rows.push(("reconnects", self.reconnects.to_string()));
        }
        let picture = self.latency_us.as_ref().map_or_else(String::new, Latency::picture);
        format!("{} {}\n{}{picture}", self.function, self.port, units::table(&rows))
    }
}

impl Summary {
    /// Fails where no frame came before a deadline. Without one, the user did not say how long
    /// something might take.
    pub fn unless_silent(mut self, deadline: Option<Duration>) -> Self {
        if let Some(deadline) = deadline.filter(|_| self.frames == 0) {
            let (port, time) = (&self.port, deadline.as_secs_f64());
            self.failure = Some(format!("no frame came to {port} within {time} s"));
        }
        self
    }
}

impl Checked {
    fn rows(&self, rows: &mut Vec<(&str, String)>) {
        let count = units::count;
        rows.push(("lost", count(self.tally.lost)));
        rows.push(("reordered", count(self.tally.reordered)));
        rows.push(("duplicates", count(self.tally.duplicates)));
        if self.tally.late_or_twice > 0 {
            rows.push(("late or twice", count(self.tally.late_or_twice)));
        }
        rows.push(("corrupted", count(self.corrupted)));
        if self.foreign > 0 {
            rows.push(("foreign", count(self.foreign)));
        }
        if self.streams > 1 {
            rows.push(("streams", self.streams.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_summary_goes_through_json_and_leaves_out_what_is_not_measured() {
        let start = Instant::now();
        let mut volume = Volume::default();
        volume.add(1000, 60_000, start);
        volume.add(1000, 60_000, start + Duration::from_secs(2));
        let mut summary = volume.summary("rx", "vale0:b");
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["frames"], &json["seconds"]), (&2000.into(), &2.0.into()));
        assert!(json.get("checked").is_none() && json.get("latency_us").is_none());
        summary.checked = Some(Checked { corrupted: 3, ..Checked::default() });
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(
            (&json["checked"]["corrupted"], &json["checked"]["lost"]),
            (&3.into(), &0.into())
        );
        let back: Summary = serde_json::from_value(json).unwrap();
        assert!(!back.checked.unwrap().is_clean());
        assert!(back.table().contains("corrupted   3\n"), "{}", back.table());
    }

    #[test]
    fn test_meter_speaks_once_a_second() {
        let now = Instant::now();
        let meter = Meter { since: now, ..Meter::new(false) };
        assert!(!meter.is_due(now + Duration::from_millis(999)));
        assert!(meter.is_due(now + Duration::from_secs(1)));
        assert!(!Meter::new(true).is_due(now + Duration::from_secs(9)));
    }
}
