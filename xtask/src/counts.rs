//! What a frame costs, in instructions: `cargo xtask counts`.
//!
//! # Theory of operation
//!
//! Instructions are counted, and no time is taken: their number is nearly the same on a busy
//! machine and from run to run. The example `turn_cost` of the crate `switch` does one kind of turn
//! again and again. It runs twice, with few and with many rounds; the difference is what rounds
//! cost, without what begins and ends the program.
//!
//! ```text
//!   perf stat ──┐                                      ┌─ more than kept, by over 10 %: exit 1
//!               ├─► turn_cost, few │ many ─► a frame ──┤
//!   valgrind ───┘                                      └─ else; less, by over 10 %: says so
//! ```
//!
//! `perf` counts what the processor has done. Where a machine or its rights do not let it, valgrind
//! counts the same in a processor of its own, more slowly. Without either, nothing is counted, and
//! the command says that it has skipped this.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use anyhow::{Context, Result, ensure};

/// Rounds of the shorter and of the longer run.
const ROUNDS: [u32; 2] = [50, 450];
/// Frames of a round.
const FRAMES: f64 = 256.0;
/// By how many percent a frame may cost more than is kept.
const TOLERANCE: f64 = 10.0;
/// What is kept, from the root of the repository.
const KEPT: &str = "xtask/counts.txt";
/// The head of that file.
const HEAD: &str = "\
# Instructions for each frame of a scenario, by its client, the switch and the clients that get it.
# Written by: cargo xtask counts --accept
";

/// Counts, and compares with what is kept; or keeps it.
pub fn run(root: &Path, accept: bool) -> Result<ExitCode> {
    let program = build(root)?;
    let Some(counter) = [Counter::Perf, Counter::Valgrind].into_iter().find(Counter::works) else {
        println!("SKIPPED: instructions a frame: neither perf nor valgrind can count here");
        println!("  (Debian: apt install valgrind)");
        return Ok(ExitCode::SUCCESS);
    };
    if counter == Counter::Valgrind {
        println!("perf cannot count instructions here: valgrind does, in its own processor");
    }
    let mut now = Vec::new();
    for name in text(&Command::new(&program).output()?)?.lines() {
        now.push((name.to_owned(), counter.a_frame(&program, name)?));
    }
    let path = root.join(KEPT);
    if accept {
        std::fs::write(&path, listed(&now))?;
        println!("counts: {KEPT} holds what was counted");
        return Ok(ExitCode::SUCCESS);
    }
    let kept = std::fs::read_to_string(&path).with_context(|| format!("cannot read {KEPT}"))?;
    let (report, grown) = compare(&parse(&kept)?, &now);
    print!("{report}");
    Ok(if grown { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Builds the example as it is released; returns where it is.
fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--release", "-p", "uvala-switch", "--example", "turn_cost"]);
    ensure!(command.current_dir(root).status()?.success(), "the example turn_cost does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(root.join(target).join("release/examples/turn_cost"))
}

/// What counts instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counter {
    Perf,
    Valgrind,
}

impl Counter {
    /// Whether it can count here.
    fn works(&self) -> bool {
        self.count(Path::new("true"), &[]).is_ok()
    }

    /// Instructions for each frame of a scenario.
    fn a_frame(self, program: &Path, name: &str) -> Result<f64> {
        let count = |rounds: u32| self.count(program, &[name, &rounds.to_string()]);
        let [few, many] = ROUNDS;
        let more = count(many)?.checked_sub(count(few)?).context("more rounds cost less")?;
        // Billions at most, which a float holds exactly.
        #[allow(clippy::cast_precision_loss)]
        let more = more as f64;
        Ok(more / f64::from(many - few) / FRAMES)
    }

    /// Instructions of a program, outside of the kernel.
    fn count(self, program: &Path, args: &[&str]) -> Result<u64> {
        let mut command = Command::new(match self {
            Self::Perf => "perf",
            Self::Valgrind => "valgrind",
        });
        command.args(match self {
            Self::Perf => &["stat", "-x,", "-e", "instructions:u", "--"][..],
            Self::Valgrind => {
                &["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"][..]
            }
        });
        let output = command.arg(program).args(args).env("LC_ALL", "C").output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} {args:?} failed: {said}", program.display());
        self.read(&said).with_context(|| format!("it counted nothing: {said}"))
    }

    /// The number of instructions in what a counter has said.
    fn read(self, said: &str) -> Option<u64> {
        said.lines().find_map(|line| match self {
            // 12345,,instructions:u,…
            Self::Perf if line.contains("instructions") => line.split(',').next()?.parse().ok(),
            // ==1== I refs:      12,345
            Self::Valgrind => {
                let (head, number) = line.split_once("refs:")?;
                let is_sum = head.split_whitespace().last() == Some("I");
                is_sum.then(|| number.trim().replace(',', "").parse().ok()).flatten()
            }
            Self::Perf => None,
        })
    }
}

fn text(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "the example turn_cost failed");
    Ok(String::from_utf8(output.stdout.clone())?)
}

/// Counts as they are kept.
fn listed(counts: &[(String, f64)]) -> String {
    counts.iter().fold(HEAD.to_owned(), |mut text, (name, count)| {
        let _ = writeln!(text, "{name} {count:.0}");
        text
    })
}

fn parse(text: &str) -> Result<Vec<(String, f64)>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    lines.map(|line| read(line).with_context(|| format!("{KEPT}: {line}"))).collect()
}

/// A line for each scenario, what to do, and whether one costs more than it may.
fn compare(kept: &[(String, f64)], now: &[(String, f64)]) -> (String, bool) {
    let mut text = format!("{:24}{:>8}{:>8}  instructions a frame\n", "scenario", "kept", "now");
    let (mut grown, mut shrunk) = (false, false);
    for (name, count) in now {
        let before = kept.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
        let Some(before) = before else {
            grown = true;
            let _ = writeln!(text, "{name:24}{:>8}{count:>8.0}  is not kept yet", "");
            continue;
        };
        let percent = (count / before - 1.0) * 100.0;
        let remark = match percent {
            _ if percent > TOLERANCE => "  costs more",
            _ if percent < -TOLERANCE => "  costs less",
            _ => "",
        };
        grown |= percent > TOLERANCE;
        shrunk |= percent < -TOLERANCE;
        let _ = writeln!(text, "{name:24}{before:>8.0}{count:>8.0}  {percent:+.1} %{remark}");
    }
    if grown {
        text +=
            "counts: find what costs more; or, if it is worth that, say so in the commit, and\n";
    } else if shrunk {
        text += "counts: so that it stays so:\n";
    }
    if grown || shrunk {
        text += "  cargo xtask counts --accept\n";
    }
    (text, grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, f64)]) -> Vec<(String, f64)> {
        counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn what_counters_say_is_read() {
        let perf = "123456,,instructions:u,55,100.00,,\n";
        assert_eq!(Counter::Perf.read(perf), Some(123_456));
        assert_eq!(Counter::Perf.read("<not supported>,,instructions:u,0,100.00,,\n"), None);
        let valgrind = "==7== Cachegrind\n==7== \n==7== I refs:        1,234,567\n";
        assert_eq!(Counter::Valgrind.read(valgrind), Some(1_234_567));
        assert_eq!(Counter::Valgrind.read("==7== I   refs:      7,890\n"), Some(7890));
        assert_eq!(Counter::Valgrind.read("==7== LL refs:      7,890\n"), None);
    }

    #[test]
    fn a_frame_that_costs_a_tenth_more_is_found_and_a_cheaper_one_is_said() {
        let kept = counts(&[("run", 100.0), ("flood", 200.0)]);
        let (text, grown) = compare(&kept, &counts(&[("run", 109.0), ("flood", 191.0)]));
        assert!(!grown && !text.contains("--accept"), "{text}");
        let (text, grown) = compare(&kept, &counts(&[("run", 111.0), ("flood", 200.0)]));
        assert!(grown && text.contains("costs more") && text.contains("--accept"), "{text}");
        let (text, grown) = compare(&kept, &counts(&[("run", 80.0), ("flood", 200.0)]));
        assert!(!grown && text.contains("costs less") && text.contains("--accept"), "{text}");
        let (text, grown) = compare(&kept, &counts(&[("new", 1.0)]));
        assert!(grown && text.contains("not kept"), "{text}");
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let all = counts(&[("run", 123.0), ("many-stations", 456.0)]);
        assert_eq!(parse(&listed(&all)).unwrap(), all);
        assert!(parse("run\n").is_err() && parse("run many\n").is_err());
    }
}
