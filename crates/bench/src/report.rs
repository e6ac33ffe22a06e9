//! What a scenario leaves: a line for people, an object for scripts, a file for the record.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::machine::{self, Machine};
use super::probe::Regime;
use super::sample::Summary;
use crate::scenario::Peer;
use crate::scenario::{Ratio, Scenario};
use terminal::table::Align;

/// The result of a scenario. Numbers are in its unit; what could not be measured is null.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Where the cores were for all samples used.
    pub regime: Regime,
    /// Median.
    pub value: Option<f64>,
    /// The unit of every number here.
    pub unit: &'static str,
    /// `higher` or `lower`.
    pub better: &'static str,
    /// Smallest and largest sample.
    pub spread: Option<(f64, f64)>,
    /// Samples in that regime, of samples taken.
    pub samples: Option<(usize, usize)>,
    /// Frames that did not arrive, in percent of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    /// Percent of a core for each Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_per_gbit: Option<f64>,
    /// What the machine allows for this work.
    pub limit: Option<f64>,
    /// Value by limit, where the cores were at the same distance for both.
    pub ratio_limit: Option<f64>,
    /// The other software that did this work.
    pub peers: Vec<PeerResult>,
    /// The goal in this regime.
    pub goal: Option<f64>,
    /// Whether the value reaches it.
    pub reached: Option<bool>,
    /// What was to be reached by comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<RatioResult>,
    /// Every probe of the core distance, in order.
    pub probes_ns: Vec<Option<u32>>,
    /// What went wrong.
    pub problems: Vec<String>,
    /// When.
    pub date: String,
    /// Where.
    pub machine: Machine,
}

/// What a peer reached.
#[derive(Debug, Clone, Serialize)]
pub struct PeerResult {
    /// Name of the peer.
    pub name: &'static str,
    /// Median of the peer's samples.
    pub value: Option<f64>,
    /// Our value by its value, where the cores were at the same distance for both.
    pub ratio: Option<f64>,
    /// The regime it was measured in.
    pub regime: Option<Regime>,
    /// Frames that did not arrive, in percent of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    /// Percent of a core for each Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_per_gbit: Option<f64>,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A goal by comparison, and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct RatioResult {
    /// The side that had to be faster.
    pub ours: &'static str,
    /// The peer to compare with.
    pub theirs: &'static str,
    /// The ratio to reach.
    pub goal: f64,
    /// How many times it was, where the cores were at the same distance for both.
    pub value: Option<f64>,
    /// Whether that is enough.
    pub reached: Option<bool>,
}

impl RatioResult {
    fn new(
        scenario: &Scenario,
        goal: Ratio,
        own: Option<&Summary>,
        peers: &[PeerResult],
    ) -> RatioResult {
        let of = |peer: Peer| {
            let found = peers.iter().find(|p| p.name == peer.name());
            found.and_then(|p| p.value.zip(p.regime))
        };
        let ours = goal.ours.map_or_else(|| own.map(|s| (s.median, s.regime)), of);
        let both = ours.zip(of(goal.theirs)).filter(|(a, b)| a.1 == b.1);
        let value = both.map(|(ours, theirs)| ours.0 / theirs.0);
        RatioResult {
            ours: goal.ours.map_or("uvala", Peer::name),
            theirs: goal.theirs.name(),
            goal: goal.times,
            value,
            reached: value.map(|value| scenario.reaches(value, goal.times)),
        }
    }

    /// As a line for people.
    fn line(&self) -> String {
        let (ours, theirs, goal) = (self.ours, self.theirs, short(self.goal));
        let outcome = match (self.value, self.reached) {
            (Some(value), Some(true)) => format!("reached ({})", short(value)),
            (Some(value), _) => format!("missed ({})", short(value)),
            (None, _) => "not measured at one distance of the cores".into(),
        };
        format!("{ours} by {theirs}, goal {goal}: {outcome}")
    }
}

impl PeerResult {
    /// A peer that was measured.
    pub fn measured(peer: Peer, summary: &Summary, ours: Option<&Summary>) -> PeerResult {
        let comparable = ours.filter(|ours| ours.regime == summary.regime);
        PeerResult {
            name: peer.name(),
            value: Some(summary.median),
            ratio: comparable.map(|ours| ours.median / summary.median),
            regime: Some(summary.regime),
            lost_percent: summary.reading.lost_percent,
            cpu_per_gbit: summary.reading.cpu_per_gbit,
            missing: None,
        }
    }

    /// A peer that was not.
    pub fn missing(peer: Peer, why: String) -> PeerResult {
        PeerResult {
            name: peer.name(),
            value: None,
            ratio: None,
            regime: None,
            lost_percent: None,
            cpu_per_gbit: None,
            missing: Some(why),
        }
    }
}

impl Report {
    /// Puts a result together.
    pub fn new(
        scenario: &Scenario,
        regime: Regime,
        own: Option<Summary>,
        limit: Option<Summary>,
        peers: Vec<PeerResult>,
        probes: &[Option<f64>],
        problems: Vec<String>,
    ) -> Report {
        let value = own.as_ref().map(|s| s.median);
        let comparable = limit.as_ref().is_some_and(|limit| limit.regime == regime);
        let limit = limit.map(|s| s.median);
        let goal = scenario.goal_in(regime);
        let ratios = scenario.ratios.iter();
        let ratios = ratios.map(|&goal| RatioResult::new(scenario, goal, own.as_ref(), &peers));
        let ratios = ratios.collect();
        Report {
            scenario: scenario.name,
            regime,
            value,
            unit: scenario.unit.name(),
            better: if scenario.unit.higher_is_better() { "higher" } else { "lower" },
            spread: own.as_ref().map(|s| s.spread),
            samples: own.as_ref().map(|s| s.used),
            lost_percent: own.as_ref().and_then(|s| s.reading.lost_percent),
            cpu_per_gbit: own.as_ref().and_then(|s| s.reading.cpu_per_gbit),
            limit,
            ratio_limit: value
                .zip(limit.filter(|_| comparable))
                .map(|(value, limit)| value / limit),
            peers,
            goal,
            reached: value.zip(goal).map(|(value, goal)| scenario.reaches(value, goal)),
            ratios,
            probes_ns: probes.iter().map(|p| p.map(whole_ns)).collect(),
            problems,
            date: machine::today(),
            machine: Machine::here(),
        }
    }

    /// One line for a script.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report is plain data")
    }

    /// The columns of the table for people.
    pub fn row(&self) -> Vec<String> {
        let number = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
        let spread =
            self.spread.map_or_else(String::new, |(a, b)| format!("{}–{}", short(a), short(b)));
        let of_limit =
            self.ratio_limit.map_or_else(|| "-".into(), |ratio| format!("{:.0} %", ratio * 100.0));
        let goal = match (self.goal, self.reached) {
            (None, _) => "-".into(),
            (Some(goal), None) => short(goal),
            (Some(goal), Some(true)) => format!("{} reached", short(goal)),
            (Some(goal), Some(false)) => format!("{} missed", short(goal)),
        };
        let peers = self.peers.iter().filter_map(|p| {
            let ratio = match (p.ratio, p.regime) {
                (Some(ratio), _) => format!(" ({}x)", short(ratio)),
                (None, Some(regime)) => format!(" ({})", regime.name()),
                (None, None) => String::new(),
            };
            p.value.map(|v| format!("{} {}{ratio}", p.name, short(v)))
        });
        vec![
            self.scenario.into(),
            self.regime.name().into(),
            number(self.value),
            self.unit.into(),
            spread,
            number(self.limit),
            of_limit,
            goal,
            peers.collect::<Vec<_>>().join(", "),
        ]
    }

    /// Lines about what is missing, and about comparisons.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let missing = self.peers.iter().filter_map(|p| {
            p.missing.as_ref().map(|why| format!("{}: {}: {why}", self.scenario, p.name))
        });
        let ratios = self.ratios.iter().map(|r| format!("{}: {}", self.scenario, r.line()));
        let problems = self.problems.iter().map(|p| format!("{}: {p}", self.scenario));
        problems.chain(missing).chain(ratios).chain(self.asides())
    }
}

impl Report {
    /// Lines about what was seen beside the values.
    fn asides(&self) -> impl Iterator<Item = String> + '_ {
        let own = ("uvala", self.lost_percent, self.cpu_per_gbit);
        let peers = self.peers.iter().map(|p| (p.name, p.lost_percent, p.cpu_per_gbit));
        std::iter::once(own).chain(peers).flat_map(|(name, lost, cpu)| {
            let lost = lost.map(|n| format!("{}: {name}: {} % lost", self.scenario, short(n)));
            let cpu =
                cpu.map(|n| format!("{}: {name}: {} % of a core/Gbit/s", self.scenario, short(n)));
            lost.into_iter().chain(cpu)
        })
    }
}

/// The heads of the table for people.
pub const COLUMNS: [(&str, Align); 9] = [
    ("scenario", Align::Left),
    ("cores", Align::Left),
    ("median", Align::Right),
    ("unit", Align::Left),
    ("min–max", Align::Left),
    ("limit", Align::Right),
    ("of limit", Align::Right),
    ("goal", Align::Left),
    ("peers", Align::Left),
];

fn whole_ns(ns: f64) -> u32 {
    // A probe is at most its patience, 3e8 ns.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = ns.round() as u32;
    whole
}

/// Three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The file for the record: one object a line, appended, named by date and CPU.
pub struct Record {
    file: File,
    path: PathBuf,
}

impl Record {
    /// Opens today's file in a directory.
    pub fn open(dir: &Path) -> Result<Record> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(format!("{}-{}.jsonl", machine::today(), Machine::here().slug()));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Record { file, path })
    }

    /// Appends a result.
    pub fn add(&mut self, report: &Report) -> Result<()> {
        writeln!(self.file, "{}", report.json())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::find;

    fn report() -> Report {
        let own = Summary {
            regime: Regime::Near,
            median: 126.0,
            spread: (118.0, 130.0),
            used: (4, 5),
            reading: 126.0.into(),
        };
        let limit = Summary { median: 252.0, ..own.clone() };
        let peer = Summary { median: 57.0, ..own.clone() };
        let peers = vec![
            PeerResult::measured(Peer::Memif, &peer, Some(&own)),
            PeerResult::missing(Peer::Vde, "vde_switch not found: apt install vde2".into()),
        ];
        let scenario = find("copy-60").unwrap();
        let probes = [Some(115.4), None];
        Report::new(&scenario, Regime::Near, Some(own), Some(limit), peers, &probes, vec![])
    }

    #[test]
    fn test_json_has_the_promised_shape() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["scenario"], "copy-60");
        assert_eq!(json["regime"], "near");
        assert_eq!(json["value"], 126.0);
        assert_eq!(json["unit"], "Mpps");
        assert_eq!(json["spread"], serde_json::json!([118.0, 130.0]));
        assert_eq!(json["limit"], 252.0);
        assert_eq!(json["ratio_limit"], 0.5);
        assert_eq!(json["goal"], 120.0);
        assert_eq!(json["reached"], true);
        assert_eq!(json["peers"][0]["name"], "dpdk-memif");
        assert_eq!(json["peers"][0]["value"], 57.0);
        assert!((json["peers"][0]["ratio"].as_f64().unwrap() - 126.0 / 57.0).abs() < 1e-9);
        assert_eq!(json["peers"][1]["value"], serde_json::Value::Null);
        assert_eq!(json["probes_ns"], serde_json::json!([115, null]));
        for field in ["date", "machine"] {
            assert!(!json[field].is_null(), "{field}");
        }
    }

    #[test]
    fn test_what_was_measured_at_another_distance_is_not_compared() {
        let own = Summary {
            regime: Regime::Near,
            median: 126.0,
            spread: (118.0, 130.0),
            used: (4, 5),
            reading: 126.0.into(),
        };
        let far = Summary { regime: Regime::Far, ..own.clone() };
        let peers = vec![PeerResult::measured(Peer::Memif, &far, Some(&own))];
        assert_eq!(peers[0].ratio, None);
        let scenario = find("copy-60").unwrap();
        let report = Report::new(&scenario, Regime::Near, Some(own), Some(far), peers, &[], vec![]);
        assert_eq!(report.ratio_limit, None);
        assert_eq!(report.row()[8], "dpdk-memif 126 (far)");
    }

    #[test]
    fn test_row_fills_every_column() {
        let row = report().row();
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row[7], "120 reached");
        assert_eq!(row[8], "dpdk-memif 57.0 (2.21x)");
        assert_eq!(report().notes().count(), 1);
    }

    #[test]
    fn test_short_three_digits() {
        let printed: Vec<_> = [218.4, 17.64, 2.0, 0.35].into_iter().map(short).collect();
        assert_eq!(printed, ["218", "17.6", "2.00", "0.350"]);
    }

    #[test]
    fn test_record_appends_lines() {
        let dir = std::env::temp_dir().join(format!("uvala-record-{}", std::process::id()));
        let mut record = Record::open(&dir).unwrap();
        record.add(&report()).unwrap();
        record.add(&report()).unwrap();
        let text = std::fs::read_to_string(&record.path).unwrap();
        assert_eq!(text.lines().count(), 2);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
