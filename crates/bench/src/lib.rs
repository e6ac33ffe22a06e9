//! `uvala bench`: the throughput and latency of this switch on this machine, beside the machine's
//! limit and other software.
//!
//! A figure alone says little: the same machine forwards 18 or 3.4 Mpps at 1514 B, depending on
//! where the host places its virtual CPUs. So each sample stands between two probes of the core
//! distance (`probe`) and is compared only with samples of the same regime (`sample`). Beside it
//! stand the machine's limit for the same work (`limit`) and other software that does the work
//! (`peers`), measured in the same minutes (`runner`). Each part of a measurement is a process of
//! its own (`role`), and the benchmark counts what the receiver gets.

mod compare;
mod daemon;
mod descriptor;
mod figures;
pub mod frontend;
mod host;
mod limit;
mod machine;
mod pages;
mod payload;
mod peers;
mod probe;
mod programs;
mod report;
mod role;
mod roles;
mod runner;
mod sample;
mod scenario;
mod stamp;
mod subject;
pub mod traffic;
mod work;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use compare::Comparison;
use report::{COLUMNS, Record, Report};
use runner::{Choice, Effort};
use scenario::Scenario;

use terminal::Usage;
use terminal::say;
use terminal::table::Table;

/// Benchmark this switch, beside the machine's limit and other software
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Scenarios to run [default: all]; `list` prints them, `figures` draws the sweeps, `compare
    /// OLD NEW SCENARIO…` runs two builds in turn and says which differences are real, `report
    /// PAGE…` writes a page's tables from the records that it names
    scenario: Vec<String>,

    /// Take fewer and shorter samples: less than ten seconds per scenario
    #[arg(long)]
    quick: bool,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,

    /// Append the results to DIR/DATE-CPU.jsonl
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Directory for `figures`
    #[arg(long, value_name = "DIR", default_value = "figures")]
    out: PathBuf,

    /// Rounds of `compare`: at least 4, or nothing can be said
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u8,

    /// Skip other software
    #[arg(long)]
    no_peers: bool,

    /// Skip this switch: measure the machine's limits and other software only
    #[arg(long)]
    no_subject: bool,

    /// A part of a benchmark, started by the benchmark itself
    #[arg(long, hide = true, value_name = "JSON")]
    role: Option<String>,
}

/// Runs what the command line asks for.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(role) = &args.role {
        return roles::run(role);
    }
    if args.scenario == ["list"] {
        return list(args.json);
    }
    let Some((first, rest)) = args.scenario.split_first() else {
        return measure(args, &scenario::all());
    };
    match first.as_str() {
        "figures" => figures::draw(rest, &args.out, if args.quick { 2 } else { 5 }),
        "compare" => {
            let (comparison, scenarios) = Comparison::new(rest, args.rounds, args.quick)?;
            comparison.run(scenarios, args.json)
        }
        "report" => pages::write(rest),
        _ => measure(args, &chosen(&args.scenario)?),
    }
}

fn chosen(names: &[String]) -> Result<Vec<Scenario>> {
    let find = |name: &String| {
        scenario::find(name).ok_or_else(|| {
            let known: Vec<_> = scenario::all().iter().map(|s| s.name).collect();
            Usage(format!("no scenario {name}; there are: {}", known.join(", ")))
        })
    };
    Ok(names.iter().map(find).collect::<Result<_, Usage>>()?)
}

fn list(as_json: bool) -> Result<()> {
    for scenario in scenario::all() {
        if as_json {
            let (name, what, goal) = (scenario.name, scenario.what, scenario.goal);
            let unit = scenario.unit.name();
            say::json(&json!({"name": name, "what": what, "unit": unit, "goal": goal}))?;
            continue;
        }
        let goal = scenario
            .goal
            .map_or_else(String::new, |g| format!(", goal {g} {}", scenario.unit.name()));
        say::out(format_args!("{:<20}{}{goal}\n", scenario.name, scenario.what))?;
    }
    Ok(())
}

fn measure(args: &BenchArgs, scenarios: &[Scenario]) -> Result<()> {
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let choice = Choice { no_subject: args.no_subject, no_peers: args.no_peers };
    let mut record = args.save.as_deref().map(Record::open).transpose()?;
    let mut reports = Vec::new();
    for scenario in scenarios {
        let report = runner::run(scenario, effort, choice);
        if args.json {
            say::json(&report)?;
        }
        if let Some(record) = &mut record {
            record.add(&report)?;
        }
        reports.push(report);
    }
    if !args.json {
        print_table(&reports)?;
    }
    if !args.no_subject && reports.iter().all(|r| r.value.is_none()) {
        bail!("nothing was measured");
    }
    Ok(())
}

fn print_table(reports: &[Report]) -> Result<()> {
    let mut table = Table::new(&COLUMNS);
    for report in reports {
        table.row(report.row());
    }
    say::out(&table)?;
    for note in reports.iter().flat_map(Report::notes) {
        say::remark(note);
    }
    Ok(())
}
