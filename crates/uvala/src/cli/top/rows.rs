//! Rows: what ports, reasons for drops, functions and workers have done between two samples.

use std::collections::{BTreeMap, HashMap};

use protocol::name::{PortName, SwitchName};
use protocol::{ChainInfo, PortStats, WorkerInfo};

use super::sample::{Known, Sample};
use crate::cli::nf::top::{Busy, busiest};
use crate::cli::rates::{Interval, Rate};
use crate::cli::stats::{ring, rings};

/// A sample, and the one before it, if the same daemon gave it.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub before: Option<&'a Sample>,
    pub now: &'a Sample,
}

/// A port, and what it has done in a second.
#[derive(Clone, Debug)]
pub struct PortRow<'a> {
    pub stats: &'a PortStats,
    pub known: Option<&'a Known>,
    pub tx: Rate,
    pub rx: Rate,
    /// Dropped frames in a second, for each reason that ever occurred, the most first.
    pub drops: Vec<(&'a str, f64)>,
    /// Wake-ups of its program in a second.
    pub wakes: f64,
    before: &'a PortStats,
    interval: Interval,
}

/// A reason for drops, at all ports together.
#[derive(Clone, Debug, PartialEq)]
pub struct DropRow<'a> {
    pub reason: &'a str,
    pub per_s: f64,
    pub frames: u64,
    /// The port that counts most of them.
    pub port: &'a PortName,
    /// Ports that count them.
    pub ports: usize,
}

/// A worker.
#[derive(Clone, Debug)]
pub struct WorkerRow<'a> {
    pub info: &'a WorkerInfo,
    /// Share of the time in which it ran, in percent; not known before the second sample.
    pub busy: Option<f64>,
    pub kicks: f64,
    /// Slots that a turn which took some took on average, in all turns that were timed.
    pub batch: Option<f64>,
}

/// A chain.
#[derive(Clone, Debug)]
pub struct ChainRow<'a> {
    pub switch: &'a SwitchName,
    pub info: &'a ChainInfo,
    pub entered: f64,
    pub dropped: f64,
}

impl<'a> Pair<'a> {
    /// The time between the two.
    fn interval(self) -> Interval {
        Interval::between(self.before.map_or(self.now.at_ns, |before| before.at_ns), self.now.at_ns)
    }

    /// All ports, by name.
    pub fn ports(self) -> Vec<PortRow<'a>> {
        let before = self.before.into_iter().flat_map(|before| &before.stats);
        let before: HashMap<_, _> = before.map(|port| (&port.port, port)).collect();
        let row = |stats: &'a PortStats| {
            let old = before.get(&stats.port).copied().unwrap_or(stats);
            PortRow::new(stats, old, self.now.ports.get(&stats.port), self.interval())
        };
        self.now.stats.iter().map(row).collect()
    }

    /// All instances of services, the busiest first.
    pub fn functions(self) -> Vec<Busy> {
        let none = HashMap::new();
        let before = self.before.map_or(&none, |before| &before.functions);
        busiest(&self.now.functions, before, self.interval())
    }

    /// All chains.
    pub fn chains(self) -> Vec<ChainRow<'a>> {
        let before = self.before.into_iter().flat_map(|before| &before.chains);
        let before: HashMap<_, _> =
            before.map(|(switch, info)| ((switch, &info.chain.name), info)).collect();
        let row = |(switch, info): &'a (SwitchName, ChainInfo)| {
            let old = before.get(&(switch, &info.chain.name)).copied().unwrap_or(info);
            let growth =
                |count: fn(&ChainInfo) -> u64| self.interval().growth(count(old), count(info));
            let (entered, dropped) =
                (growth(|info| info.entered), growth(|info| info.drops.values().sum()));
            ChainRow { switch, info, entered, dropped }
        };
        self.now.chains.iter().map(row).collect()
    }

    /// All workers, by number.
    pub fn workers(self) -> Vec<WorkerRow<'a>> {
        let interval = self.interval();
        let row = |info: &'a WorkerInfo| {
            let old = self
                .before
                .and_then(|before| before.workers.iter().find(|old| old.worker == info.worker));
            let growth = |count: fn(&WorkerInfo) -> u64| {
                old.map(|old| interval.growth(count(old), count(info)))
            };
            let turns: u64 = info.batches_log2.iter().sum();
            let batch = (turns > 0).then(|| info.batch_slots as f64 / turns as f64);
            // A millisecond in a second is a tenth of a percent.
            let busy = growth(|info| info.cpu_ms).map(|ms| (ms / 10.0).min(100.0));
            WorkerRow { info, busy, kicks: growth(|info| info.kicks).unwrap_or_default(), batch }
        };
        self.now.workers.iter().map(row).collect()
    }
}

impl<'a> PortRow<'a> {
    fn new(
        stats: &'a PortStats,
        before: &'a PortStats,
        known: Option<&'a Known>,
        interval: Interval,
    ) -> Self {
        let dropped = |(reason, frames): (&'a String, &u64)| {
            let old = before.drops.get(reason).copied().unwrap_or(0);
            (reason.as_str(), interval.growth(old, *frames))
        };
        let mut drops: Vec<_> = stats.drops.iter().map(dropped).collect();
        drops.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let (tx, rx) = (interval.rate(before.tx, stats.tx), interval.rate(before.rx, stats.rx));
        let wakes = interval.growth(before.wakes, stats.wakes);
        Self { stats, known, tx, rx, drops, wakes, before, interval }
    }

    /// Frames that it sent and received in a second.
    pub fn total(&self) -> f64 {
        self.tx.frames + self.rx.frames
    }

    /// Frames that it dropped in a second.
    pub fn drops_per_s(&self) -> f64 {
        // A sum of none would be -0.
        self.drops.iter().fold(0.0, |sum, (_, per_s)| sum + per_s)
    }

    /// The reason for which it drops most frames now.
    pub fn reason(&self) -> Option<&'a str> {
        self.drops.first().filter(|(_, per_s)| *per_s > 0.0).map(|(reason, _)| *reason)
    }

    /// Whether nothing happened there since the sample before.
    pub fn is_idle(&self) -> bool {
        self.total() <= 0.0 && self.drops_per_s() <= 0.0
    }

    /// Whether name, kind and program have all words of a text in them, in letters of any case.
    pub fn has(&self, words: &str) -> bool {
        let kind = self.known.map_or("", |known| known.info.kind.name());
        let text = format!("{} {kind} {}", self.stats.port, self.program().unwrap_or_default());
        let text = text.to_lowercase();
        words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    /// Name and PID of the program behind it.
    pub fn program(&self) -> Option<String> {
        let (pid, name) = self.known?.program.as_ref()?;
        Some(if name.is_empty() { format!("pid {pid}") } else { format!("{name} ({pid})") })
    }

    /// What each ring has sent and received in a second.
    pub fn rings(&self) -> Vec<[Rate; 2]> {
        let rate = |queue| {
            let ([tx, rx], [old_tx, old_rx]) = (ring(self.stats, queue), ring(self.before, queue));
            [self.interval.rate(old_tx, tx), self.interval.rate(old_rx, rx)]
        };
        (0..rings(self.stats)).map(rate).collect()
    }
}

/// The reasons for which these ports have dropped, the most first.
pub fn reasons<'a>(ports: &[PortRow<'a>]) -> Vec<DropRow<'a>> {
    let mut rows: BTreeMap<&str, (DropRow<'a>, (f64, u64))> = BTreeMap::new();
    for port in ports {
        for &(reason, per_s) in &port.drops {
            let (frames, name) = (port.stats.drops[reason], &port.stats.port);
            let (row, most) = rows.entry(reason).or_insert_with(|| {
                (DropRow { reason, per_s: 0.0, frames: 0, port: name, ports: 0 }, (0.0, 0))
            });
            row.per_s += per_s;
            row.frames += frames;
            row.ports += 1;
            if (per_s, frames) > *most {
                (row.port, *most) = (name, (per_s, frames));
            }
        }
    }
    let mut rows: Vec<_> = rows.into_values().map(|(row, _)| row).collect();
    rows.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(b.frames.cmp(&a.frames)));
    rows
}
