//! `uvala bench compare OLD NEW`: which differences between two builds are real.
//!
//! # Theory of operation
//!
//! A machine changes while it is measured, and a program that is measured second may find another
//! one. So the two programs run the scenario in turn, and each of them begins every other round:
//!
//! ```text
//!   round 1: OLD NEW    round 2: NEW OLD    round 3: OLD NEW    …
//! ```
//!
//! Each run is a `bench SCENARIO --json` of that program, and gives one sample, a median with its
//! regime. Samples are compared within one regime. The *chance* of a difference is how often random
//! labels on the same samples separate them at least as clearly: the exact two-sided p of
//! Wilcoxon's rank-sum test (Mann and Whitney, 1947). A difference with a chance below 5 % is real.
//! Of twenty comparisons of a build with itself one comes out so: repeat what surprises.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::probe::Regime;
use crate::report::short;
use crate::sample::median;
use terminal::Usage;
use terminal::say;
use terminal::table::{Align, Table};

/// The chance below which a difference is real.
const REAL: f64 = 0.05;
/// Samples of each side below which no difference can be real.
const SAMPLES_MIN: usize = 4;
/// Most rounds: more show differences that are too small to matter.
pub const ROUNDS_MAX: u8 = 100;

/// What is compared, and how.
#[derive(Debug)]
pub struct Comparison {
    programs: [PathBuf; 2],
    rounds: u8,
    quick: bool,
}

/// The part of a report that a comparison reads.
#[derive(Debug, Deserialize)]
struct Reported {
    regime: Regime,
    value: Option<f64>,
    unit: String,
    better: String,
    #[serde(default)]
    problems: Vec<String>,
}

/// A median that a program reported.
#[derive(Debug, Clone, Copy)]
struct Sample {
    regime: Regime,
    value: f64,
}

/// The samples of a scenario, by program.
#[derive(Debug, Default)]
struct Samples {
    of: [Vec<Sample>; 2],
    unit: String,
    lower_is_better: bool,
}

/// The outcome of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// The new build is better.
    Better,
    /// The new build is worse.
    Worse,
    /// As likely by chance.
    Same,
    /// Too few samples in one regime.
    TooFew,
}

/// What a scenario says about two builds.
#[derive(Debug, Serialize)]
struct Finding {
    scenario: String,
    unit: String,
    regime: Regime,
    /// Median, smallest and largest sample of the old and of the new build.
    old: Spread,
    new: Spread,
    change_percent: f64,
    chance: f64,
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
    samples: usize,
}

impl Comparison {
    /// Two programs and the scenarios to compare them by.
    ///
    /// # Errors
    /// [`Usage`]: a program or all scenarios are missing, or there are too many rounds.
    pub fn new(words: &[String], rounds: u8, quick: bool) -> Result<(Self, &[String])> {
        let [old, new, scenarios @ ..] = words else {
            return Err(Usage("name two programs: uvala bench compare OLD NEW SCENARIO…".into()))?;
        };
        if scenarios.is_empty() {
            return Err(Usage(
                "name a scenario: uvala bench compare OLD NEW copy-60 rtt-asleep".into(),
            ))?;
        }
        if !(1..=ROUNDS_MAX).contains(&rounds) {
            return Err(Usage(format!("--rounds: 1 to {ROUNDS_MAX}")))?;
        }
        Ok((Self { programs: [old.into(), new.into()], rounds, quick }, scenarios))
    }

    /// Compares the programs by each scenario, and prints what that says.
    pub fn run(&self, scenarios: &[String], json: bool) -> Result<()> {
        let mut table = Table::new(&COLUMNS);
        let outcome = scenarios.iter().try_for_each(|scenario| {
            let finding = self.samples(scenario)?.finding(scenario)?;
            if json {
                return say::json(&finding);
            }
            table.row(finding.row());
            Ok(())
        });
        // One that fails takes nothing from those before it.
        if !json {
            say::out(&table)?;
        }
        outcome
    }

    fn samples(&self, scenario: &str) -> Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..self.rounds {
            let first = usize::from(round % 2);
            for side in [first, 1 - first] {
                let program = &self.programs[side];
                let name = ["old", "new"][side];
                say::remark(format_args!(
                    "{scenario}: round {} of {}, {name}",
                    round + 1,
                    self.rounds
                ));
                samples.add(side, self.measure(program, scenario)?);
            }
        }
        Ok(samples)
    }

    fn measure(&self, program: &Path, scenario: &str) -> Result<Reported> {
        let mut command = Command::new(program);
        command.args(["bench", scenario, "--json", "--no-peers"]);
        command.args(self.quick.then_some("--quick"));
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        let said = || String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        let report: Option<Reported> = serde_json::from_slice(&output.stdout).ok();
        let Some(report) = report else {
            bail!("{} bench {scenario} gives no report:\n{}", program.display(), said());
        };
        ensure!(
            report.value.is_some(),
            "{} measured nothing by {scenario}: {}",
            program.display(),
            report.problems.join("; ")
        );
        Ok(report)
    }
}

impl Samples {
    fn add(&mut self, side: usize, Reported { regime, value, unit, better, .. }: Reported) {
        self.of[side].extend(value.map(|value| Sample { regime, value }));
        (self.unit, self.lower_is_better) = (unit, better == "lower");
    }

    /// The values in the regime of which the side with fewer samples has most.
    fn comparable(&self) -> Option<(Regime, [Vec<f64>; 2])> {
        let values = |side: usize, regime: Regime| -> Vec<f64> {
            let all = self.of[side].iter().filter(|sample| sample.regime == regime);
            all.map(|sample| sample.value).collect()
        };
        let fewer = |regime: Regime| values(0, regime).len().min(values(1, regime).len());
        let regimes = self.of[0].iter().map(|sample| sample.regime);
        let is_known = |it: &Regime| !matches!(it, Regime::Unknown | Regime::Straddled);
        let has_known = self.of.iter().flatten().any(|sample| is_known(&sample.regime));
        let steady = regimes.filter(|it| !has_known || is_known(it));
        let regime = steady.max_by_key(|&regime| fewer(regime)).filter(|&it| fewer(it) > 0)?;
        Some((regime, [values(0, regime), values(1, regime)]))
    }

    fn finding(&self, scenario: &str) -> Result<Finding> {
        let (regime, [old, new]) = self.comparable().with_context(|| {
            format!("{scenario}: no two samples in one regime; repeat it on an idle machine")
        })?;
        let chance = chance(&old, &new);
        let [old, new] = [old, new].map(Spread::new);
        ensure!(old.median > 0.0, "{scenario}: the old build has 0; nothing compares with that");
        let change = new.median / old.median - 1.0;
        let outcome = match (old.samples.min(new.samples), chance < REAL) {
            (..SAMPLES_MIN, _) => Outcome::TooFew,
            (_, false) => Outcome::Same,
            _ if change == 0.0 => Outcome::Same,
            _ if (change < 0.0) == self.lower_is_better => Outcome::Better,
            _ => Outcome::Worse,
        };
        let (scenario, unit) = (scenario.to_owned(), self.unit.clone());
        let change_percent = change * 100.0;
        Ok(Finding { scenario, unit, regime, old, new, change_percent, chance, outcome })
    }
}

impl Spread {
    fn new(mut values: Vec<f64>) -> Self {
        let median = median(&mut values).expect("a series has samples");
        let (min, max) = (values[0], values[values.len() - 1]);
        Self { median, min, max, samples: values.len() }
    }

    fn text(&self) -> String {
        format!("{} ({}–{})", short(self.median), short(self.min), short(self.max))
    }
}

const COLUMNS: [(&str, Align); 8] = [
    ("scenario", Align::Left),
    ("cores", Align::Left),
    ("unit", Align::Left),
    ("old", Align::Right),
    ("new", Align::Right),
    ("change", Align::Right),
    ("chance", Align::Right),
    ("outcome", Align::Left),
];

impl Finding {
    fn row(&self) -> Vec<String> {
        let outcome = match self.outcome {
            Outcome::Better => "better",
            Outcome::Worse => "worse",
            Outcome::Same => "no difference seen",
            Outcome::TooFew => "too few samples in one regime",
        };
        vec![
            self.scenario.clone(),
            self.regime.name().into(),
            self.unit.clone(),
            self.old.text(),
            self.new.text(),
            format!("{:+.1} %", self.change_percent),
            format!("{:.1} %", self.chance * 100.0),
            outcome.into(),
        ]
    }
}

/// How often random labels separate these values at least as clearly: 0 to 1.
fn chance(old: &[f64], new: &[f64]) -> f64 {
    let all: Vec<f64> = old.iter().chain(new).copied().collect();
    let ranks: Vec<usize> = all.iter().map(|value| doubled_rank(*value, &all)).collect();
    let seen: usize = ranks[..old.len()].iter().sum();
    // Doubled ranks of N values are N + 1 on average.
    let mean = old.len() * (all.len() + 1);
    let is_as_clear = |sum: usize| sum.abs_diff(mean) >= seen.abs_diff(mean);
    let ways = ways(&ranks, old.len());
    let as_clear = ways.iter().enumerate().filter(|(sum, _)| is_as_clear(*sum));
    as_clear.map(|(_, ways)| ways).sum::<f64>() / ways.iter().sum::<f64>()
}

/// Twice the rank of a value; equal values share the mean of their ranks.
fn doubled_rank(value: f64, all: &[f64]) -> usize {
    let count = |is: fn(&f64, &f64) -> bool| all.iter().filter(|other| is(other, &value)).count();
    2 * count(|other, value| other < value) + count(|other, value| other == value) + 1
}

/// In how many ways `count` of the ranks have each sum.
fn ways(ranks: &[usize], count: usize) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0; most + 1]; count + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for chosen in (1..=count).rev() {
            for sum in rank..=most {
                ways[chosen][sum] += ways[chosen - 1][sum - rank];
            }
        }
    }
    ways.swap_remove(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A program that reports these values one after the other.
    fn program(dir: &Path, name: &str, values: &[f64], better: &str) -> PathBuf {
        let (path, list) = (dir.join(name), dir.join(format!("{name}.list")));
        let report = |value: &f64| {
            format!(r#"{{"regime":"near","value":{value},"unit":"Mpps","better":"{better}"}}"#)
        };
        let lines: Vec<_> = values.iter().map(report).collect();
        fs::write(&list, lines.join("\n") + "\n").unwrap();
        let list = list.display();
        let script = format!(
            "#!/bin/sh\necho {name} \"$@\" >> {0}/order\nhead -n 1 {list}\nsed -i 1d {list}\n",
            dir.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn compare(old: &[f64], new: &[f64], better: &str) -> (Finding, String) {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = [("old", old), ("new", new)]
            .map(|(name, values)| program(dir.path(), name, values, better));
        let words = [old, new, "copy-60".into()].map(|path| path.display().to_string());
        let (comparison, scenarios) = Comparison::new(&words, 5, true).unwrap();
        assert_eq!(scenarios, ["copy-60"]);
        let finding = comparison.samples("copy-60").unwrap().finding("copy-60").unwrap();
        (finding, fs::read_to_string(dir.path().join("order")).unwrap())
    }

    #[test]
    fn test_programs_run_in_turn_and_each_begins_every_other_round() {
        let (finding, order) = compare(&[1.0; 5], &[1.0; 5], "higher");
        let names: Vec<_> = order.lines().map(|line| &line[..3]).collect();
        assert_eq!(names, ["old", "new", "new", "old", "old", "new", "new", "old", "old", "new"]);
        assert!(order.starts_with("old bench copy-60 --json --no-peers --quick\n"), "{order}");
        assert_eq!((finding.outcome, finding.chance), (Outcome::Same, 1.0));
    }

    #[test]
    fn test_clear_differences_are_real_and_others_are_not() {
        let (low, high) = ([1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]);
        for (old, new, better, outcome) in [
            (low, high, "higher", Outcome::Better),
            (high, low, "higher", Outcome::Worse),
            (low, high, "lower", Outcome::Worse),
            (high, low, "lower", Outcome::Better),
            (low, [1.0, 1.05, 1.2, 1.35, 1.5], "higher", Outcome::Same),
        ] {
            assert_eq!(compare(&old, &new, better).0.outcome, outcome, "{old:?} {new:?}");
        }
    }

    /// Values of published tables of the rank-sum test.
    #[test]
    fn test_chance_is_that_of_the_rank_sum_test() {
        let is = |old: &[f64], new: &[f64], ways: f64, of: f64| {
            assert!((chance(old, new) - ways / of).abs() < 1e-12, "{old:?} {new:?}");
        };
        is(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0], 2.0, 252.0);
        is(&[6.0, 7.0, 8.0, 9.0], &[1.0, 2.0, 3.0, 4.0], 2.0, 70.0);
        is(&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0], 4.0, 20.0);
        is(&[1.0, 1.0], &[1.0, 1.0], 1.0, 1.0);
    }

    #[test]
    fn test_samples_of_different_regimes_are_not_compared() {
        let sample = |regime, value| Sample { regime, value };
        let near = |value| sample(Regime::Near, value);
        let old = vec![near(1.0), sample(Regime::Far, 9.0), near(1.1), near(1.2)];
        let new = vec![near(2.0), sample(Regime::Straddled, 0.1), near(2.1)];
        let samples = Samples { of: [old, new], ..Samples::default() };
        let finding = samples.finding("copy-60").unwrap();
        assert_eq!(
            (finding.regime, finding.old.samples, finding.new.samples),
            (Regime::Near, 3, 2)
        );
        assert_eq!(finding.outcome, Outcome::TooFew);
        let apart =
            Samples { of: [vec![near(1.0)], vec![sample(Regime::Far, 1.0)]], ..Samples::default() };
        assert!(apart.finding("copy-60").unwrap_err().to_string().contains("idle machine"));
        let unknown = |value| vec![sample(Regime::Unknown, value)];
        let unnamed = Samples { of: [unknown(1.0), unknown(2.0)], ..Samples::default() };
        assert_eq!(unnamed.finding("copy-60").unwrap().regime, Regime::Unknown);
    }

    #[test]
    fn test_missing_words_are_named() {
        for (words, missing) in [(vec![], "two programs"), (vec!["a", "b"], "a scenario")] {
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let error = Comparison::new(&words, 5, true).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
        let words = ["/nowhere", "b", "copy-60"].map(str::to_owned);
        assert!(Comparison::new(&words, 0, true).is_err());
        let (comparison, scenarios) = Comparison::new(&words, 1, true).unwrap();
        let error = comparison.run(scenarios, true).unwrap_err();
        assert!(format!("{error:#}").contains("cannot run /nowhere"), "{error:#}");
    }
}
