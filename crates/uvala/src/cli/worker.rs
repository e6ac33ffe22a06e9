//! `uvala worker`

use client::control::{Connection, ControlError};
use protocol::{PageFrom, Request, WorkerInfo, WorkerMove, WorkerRequest};

use super::Global;
use super::listing;
use super::output::{Output, Watch};
use super::target::change;
use terminal::table::{Column, Table, left, right};

/// List the workers, and move ports between them
///
/// A worker is a thread of the daemon. It runs whole switches, and its part of those that all
/// workers run (see: uvala switch set --workers).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the workers with the times of their turns
    ///
    /// In a turn, a worker takes one batch of frames from a port and delivers it. MEDIAN, P99 and
    /// LONGEST are the lengths of turns; one round of turns in 128 is timed, and MEDIAN and P99 are
    /// rounded up to a power of two. STALLS counts how often the worker stood still for 50 ms or
    /// longer; the last time is shown below the table. LONGEST also has such a turn that was not
    /// timed. Port names are shown to users that may see the port.
    #[command(alias = "show")]
    List {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Move a port to another worker of its switch
    ///
    /// The worker takes the port's frames from then on; the port loses none, and keeps their order.
    /// All workers must run the switch (see: uvala switch add --workers). The daemon gives a new
    /// port to the worker with the fewest ports. A port stays where it is moved to until its client
    /// detaches it, or the daemon ends; uvala port set PORT --worker lasts longer. `uvala port show
    /// PORT` says where a port is.
    Move {
        /// Name of the port, such as vale0:vm1
        port: String,
        /// Number of the worker, as uvala worker list shows it
        worker: u32,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs `uvala worker`.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { output, watch } => {
            let text =
                |rows: &Vec<WorkerInfo>| Table::of(rows, &columns()).fitted() + &stalls(rows);
            watch.repeat(global, |connection, _| output.print(&workers(connection)?, text))
        }
        Action::Move { port, worker, output } => {
            let wanted = WorkerMove { port: port.parse()?, worker: *worker };
            change(global, Request::Worker(WorkerRequest::Move(wanted)), *output)
        }
    }
}

/// All workers.
pub fn workers(connection: &Connection) -> Result<Vec<WorkerInfo>, ControlError> {
    listing::all(connection, |from| Request::Worker(WorkerRequest::List(PageFrom { from })))
}

fn columns() -> [Column<WorkerInfo>; 9] {
    [
        right("WORKER", |row: &WorkerInfo| row.worker.to_string()),
        right("CPU", |row: &WorkerInfo| row.cpu.map_or_else(none, |cpu| cpu.to_string())),
        right("SWITCHES", |row: &WorkerInfo| row.switches.to_string()),
        right("PORTS", |row: &WorkerInfo| row.ports.to_string()),
        right("MEDIAN", |row: &WorkerInfo| time(row.quantile_ns(0.5))),
        right("P99", |row: &WorkerInfo| time(row.quantile_ns(0.99))),
        right("LONGEST", |row: &WorkerInfo| time(row.longest_turn_ns)),
        left("OF PORT", |row: &WorkerInfo| {
            row.longest_turn_port.as_ref().map_or_else(none, ToString::to_string)
        }),
        right("STALLS", |row: &WorkerInfo| row.stalls.to_string()),
    ]
}

fn none() -> String {
    "-".to_owned()
}

/// A time in the unit in which it has one to three digits before the point.
fn time(nanos: u64) -> String {
    match nanos {
        0 => "-".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

fn stalls(rows: &[WorkerInfo]) -> String {
    let line = |row: &WorkerInfo| {
        let stall = row.last_stall.as_ref()?;
        Some(format!("worker {} stood still {}\n", row.worker, stall.describe()))
    };
    rows.iter().filter_map(line).collect()
}

const EXAMPLES: &str = "\
Examples:
  uvala worker list
  uvala worker list --watch
  uvala worker move vale0:vm1 2
  uvala worker list --json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_times_have_the_unit_that_keeps_them_short() {
        let shown = [0, 1, 999, 1_000, 4_096, 999_949, 1_000_000, 52_300_000].map(time);
        let expected = ["-", "1 ns", "999 ns", "1.0 us", "4.1 us", "999.9 us", "1.0 ms", "52.3 ms"];
        assert_eq!(shown, expected);
    }
}
