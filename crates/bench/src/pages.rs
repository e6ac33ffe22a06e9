//! `uvala bench report PAGE…`: the tables of a document, from the records that it names.
//!
//! ```text
//! <!-- results: ../bench/results/2026-11-27-cpu.jsonl
//!      copy-60 rtt-asleep -->
//! what `uvala bench report` writes
//! <!-- results: end -->
//! ```
//!
//! So no figure of a table is typed, and a test finds one that is. If a record has a scenario
//! several times, the last one counts.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::probe::Regime;
use crate::report::short;
use crate::scenario;
use terminal::Usage;
use terminal::say;

const BEGIN: &str = "<!-- results: ";
const CLOSE: &str = "-->\n";
const END: &str = "<!-- results: end -->";
/// Percent of lost frames above which a table says so.
const LOST: f64 = 0.05;

/// A line of a record, as far as a table shows it: `report::Report`, read back.
#[derive(Debug, Deserialize)]
struct Recorded {
    scenario: String,
    regime: Regime,
    value: Option<f64>,
    unit: String,
    better: String,
    spread: Option<(f64, f64)>,
    samples: Option<(usize, usize)>,
    lost_percent: Option<f64>,
    limit: Option<f64>,
    ratio_limit: Option<f64>,
    peers: Vec<RecordedPeer>,
    date: String,
    machine: RecordedMachine,
}

#[derive(Debug, Deserialize)]
struct RecordedPeer {
    name: String,
    value: Option<f64>,
    ratio: Option<f64>,
    regime: Option<Regime>,
    lost_percent: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct RecordedMachine {
    cpu: String,
    cpus: usize,
    kernel: String,
}

/// Writes the tables of these pages anew.
pub fn write(pages: &[String]) -> Result<()> {
    if pages.is_empty() {
        Err(Usage("name a page: uvala bench report README.md".into()))?;
    }
    for page in pages {
        let text = fs::read_to_string(page).with_context(|| format!("cannot read {page}"))?;
        let filled = filled(&text, directory(page.as_ref())).with_context(|| page.clone())?;
        fs::write(page, &filled).with_context(|| format!("cannot write {page}"))?;
        say::remark(format_args!("{page}: {} tables", filled.matches(END).count()));
    }
    Ok(())
}

fn directory(page: &Path) -> &Path {
    page.parent().unwrap_or(Path::new(""))
}

/// A page with its tables written anew. Records are named as links are: from the page's directory.
fn filled(text: &str, dir: &Path) -> Result<String> {
    let (mut page, mut rest) = (String::new(), text);
    while let Some((before, marked)) = rest.split_once(BEGIN) {
        let (marker, old) = marked.split_once(CLOSE).context("a marker has no -->")?;
        let (_, after) = old.split_once(END).with_context(|| format!("{marker}: no {END}"))?;
        write!(page, "{before}{BEGIN}{marker}{CLOSE}{}{END}", table(marker, dir)?)?;
        rest = after;
    }
    ensure!(!page.is_empty(), "no table: begin one with {BEGIN}RECORD SCENARIO…{CLOSE}");
    Ok(page + rest)
}

fn table(marker: &str, dir: &Path) -> Result<String> {
    let mut words = marker.split_whitespace();
    let record = dir.join(words.next().context("a marker names no record")?);
    let text = fs::read_to_string(&record);
    let text = text.with_context(|| format!("cannot read {}", record.display()))?;
    let all: Result<Vec<Recorded>, _> = text.lines().map(serde_json::from_str).collect();
    let all = all.with_context(|| format!("{} is no record", record.display()))?;
    let rows: Result<Vec<_>> = words.map(|name| last(&all, name)).collect();
    let rows = rows.with_context(|| record.display().to_string())?;
    let first = rows.first().context("a marker names no scenario")?;
    let RecordedMachine { cpu, cpus, kernel } = &first.machine;
    let kernel = kernel.split('-').next().unwrap_or_default();
    let mut table = format!("\n{cpu}, {cpus} CPUs, Linux {kernel}, {}:\n\n", first.date);
    table += "| work | cores | uvala | limit | other software |\n|---|---|---|---|---|\n";
    rows.iter().for_each(|row| table += &row.line());
    Ok(table + "\n")
}

fn last<'a>(all: &'a [Recorded], name: &str) -> Result<&'a Recorded> {
    let found = all.iter().rfind(|it| it.scenario == name && it.value.is_some());
    found.with_context(|| format!("it has no value of {name}"))
}

impl Recorded {
    fn line(&self) -> String {
        let what = scenario::find(&self.scenario).map_or(self.scenario.as_str(), |it| it.what);
        let limit = self.limit.zip(self.ratio_limit);
        let limit = limit.map(|(of, ratio)| format!("{:.0} % of {}", ratio * 100.0, short(of)));
        let peers = self.peers.iter().filter_map(RecordedPeer::cell).collect::<Vec<_>>().join("; ");
        let [limit, peers] = [limit.unwrap_or_default(), peers].map(or_dash);
        format!("| {what} | {} | {} | {limit} | {peers} |\n", self.regime.name(), self.cell())
    }

    /// The median, the smallest and the largest sample, and what one has to know of them.
    fn cell(&self) -> String {
        let unit = if self.unit == "us" { "µs" } else { &self.unit };
        let mut cell = format!("{} {unit}", self.value.map_or_else(String::new, short));
        if let Some((least, most)) = self.spread {
            cell += &format!(" ({}–{})", short(least), short(most));
        }
        if let Some((used, taken)) = self.samples.filter(|(used, taken)| used < taken) {
            cell += &format!(", {used} of {taken} samples");
        }
        cell += &lost_words(self.lost_percent);
        cell + if self.better == "lower" { "; less is better" } else { "" }
    }
}

impl RecordedPeer {
    fn cell(&self) -> Option<String> {
        let (name, value) = (&self.name, short(self.value?) + &lost_words(self.lost_percent));
        match (self.ratio, self.regime) {
            (Some(ratio), _) => Some(format!("{name} {}× ({value})", short(ratio))),
            (None, Some(regime)) => Some(format!("{name} {value}, {}", regime.name())),
            (None, None) => Some(format!("{name} {value}")),
        }
    }
}

/// The share of frames that did not arrive, where that is worth a word.
fn lost_words(percent: Option<f64>) -> String {
    let worth = percent.filter(|&lost| lost > LOST);
    worth.map_or_else(String::new, |lost| format!(", {} % lost", short(lost)))
}

fn or_dash(cell: String) -> String {
    if cell.is_empty() { "–".into() } else { cell }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two lines of a record.
    fn record() -> String {
        let machine = json!({"cpu": "AMD EPYC", "cpus": 2, "kernel": "6.18.44-cloud"});
        let copy = json!({
            "scenario": "copy-60", "regime": "near", "value": 37.09, "unit": "Mpps",
            "better": "higher", "spread": [29.4, 38.1], "samples": [4, 5], "lost_percent": 19.55,
            "limit": 108.1, "ratio_limit": 0.343, "date": "2026-11-27", "machine": machine,
            "peers": [
                {"name": "dpdk-memif", "value": 20.4, "ratio": 1.814, "regime": "near",
                 "lost_percent": 7.0},
                {"name": "vde-switch", "value": null, "ratio": null, "regime": null},
            ],
        });
        let spin = json!({
            "scenario": "rtt-spin", "regime": "near", "value": 0.671, "unit": "us",
            "better": "lower", "spread": null, "samples": [5, 5], "limit": null,
            "ratio_limit": null, "date": "2026-11-27", "machine": machine, "peers": [],
        });
        format!("{copy}\n{spin}\n")
    }

    fn filled_with(marker: &str) -> Result<String> {
        let dir = tempfile::tempdir().expect("room");
        fs::write(dir.path().join("r.jsonl"), record()).expect("room");
        filled(&format!("before\n{BEGIN}{marker} {CLOSE}old\n{END}\nafter\n"), dir.path())
    }

    #[test]
    fn test_a_table_has_what_its_record_has() {
        let page = filled_with("r.jsonl copy-60 rtt-spin").expect("a page");
        assert_eq!(
            page,
            "before\n<!-- results: r.jsonl copy-60 rtt-spin -->\n\n\
             AMD EPYC, 2 CPUs, Linux 6.18.44, 2026-11-27:\n\n\
             | work | cores | uvala | limit | other software |\n|---|---|---|---|---|\n\
             | 60 B, sender, switch and receiver isolated | near | 37.1 Mpps (29.4–38.1), 4 of 5 \
             samples, 19.6 % lost | 34 % of 108 | dpdk-memif 1.81× (20.4, 7.00 % lost) |\n\
             | round trip, all spinning | near | 0.671 µs; less is better | – | – |\n\n\
             <!-- results: end -->\nafter\n"
        );
    }

    #[test]
    fn test_a_marker_that_says_too_little_is_an_error() {
        for (marker, says) in [
            ("r.jsonl", "a marker names no scenario"),
            ("r.jsonl batch1", "it has no value of batch1"),
            ("missing.jsonl copy-60", "cannot read"),
        ] {
            let error = format!("{:#}", filled_with(marker).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
        assert!(filled("nothing", Path::new("")).is_err());
    }

    #[test]
    fn test_the_pages_say_what_the_records_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for page in ["README.md", "docs/performance.md"] {
            let page = root.join(page);
            let text = fs::read_to_string(&page).expect("it is there");
            let filled = filled(&text, directory(&page)).expect("records");
            assert!(filled == text, "run: uvala bench report {}", page.display());
        }
    }
}
