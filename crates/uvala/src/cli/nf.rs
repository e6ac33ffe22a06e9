//! `uvala nf`

mod metrics;
mod part;
mod place;
mod run;
mod top;

use client::control::Connection;
use protocol::name::SwitchName;
use protocol::{FunctionInfo, FunctionRequest, Request, SteeringQuery, users};

use super::output::{Output, Watch};
use super::{Global, listing, switch as switches};
pub use part::BadFile;
use terminal::table::{Table, left, or_dash, right};

/// Run functions of a chain, and list those that run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run a function
    ///
    /// SIGHUP makes it read its file again: connections, bindings and the like stay, and a file
    /// with an error changes nothing. SIGUSR1 makes it say what it has counted, as it does at its
    /// end, which SIGINT and SIGTERM are.
    ///
    /// With --threads it is as many instances of its service, which share the flows out among them:
    /// each has its own connections, counts and ports, and all begin and end together. Functions
    /// that can have one instance only say so. With --with it is several functions in one thread:
    /// where they follow each other in a chain, one calls the next, while the frame is in the cache.
    Run(run::Run),
    /// All instances of services, who runs them and what they have done
    ///
    /// IN is what an instance was given, and OUT all that it gave back: also what it wanted dropped
    /// (DROPPED) and what was refused to it (REFUSED).
    List {
        /// Name of the switch; without it, all you may see
        switch: Option<String>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// What they do now, the busiest first; again and again, until Ctrl-C
    ///
    /// Rates are frames in a second. CPU is the share of a core that the instance's thread or
    /// process uses, and CORES where that may run, where it can be seen from here. With --json, one
    /// line each time.
    Top {
        /// Name of the switch; without it, all you may see
        switch: Option<String>,
        /// Seconds from one time to the next
        #[arg(long, value_name = "SECS", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
        every: u64,
        #[command(flatten)]
        output: Output,
    },
    /// What functions, chains and rules have counted, as Prometheus reads it
    ///
    /// Once, in its text format, for the textfile collector of its node exporter. Rules of a switch
    /// behind the first 256 are one, which is called others.
    Metrics {
        /// Name of the switch; without it, all you may see
        switch: Option<String>,
    },
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Run(args) => run::run(global, args),
        Action::List { switch, output, watch } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            watch.repeat(global, |connection, _| {
                output.print(&functions(connection, switch.as_ref())?, |rows| table(rows))
            })
        }
        Action::Top { switch, every, output } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            top::run(global, switch.as_ref(), *every, *output)
        }
        Action::Metrics { switch } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            metrics::run(global, switch.as_ref())
        }
    }
}

/// In a word.
fn state(info: &FunctionInfo) -> &'static str {
    match (info.pid, info.stalled) {
        (None, _) => "nobody",
        (Some(_), true) => "stalled",
        (Some(_), false) => "runs",
    }
}

fn functions(
    connection: &Connection,
    switch: Option<&SwitchName>,
) -> anyhow::Result<Vec<FunctionInfo>> {
    let switches = match switch {
        Some(switch) => vec![switch.clone()],
        None => switches::list(connection)?.into_iter().map(|info| info.switch).collect(),
    };
    let mut all = Vec::new();
    for switch in switches {
        let ask = |from| {
            Request::Function(FunctionRequest::List(SteeringQuery { switch: switch.clone(), from }))
        };
        all.extend(listing::all::<FunctionInfo>(connection, ask)?);
    }
    Ok(all)
}

fn table(functions: &[FunctionInfo]) -> String {
    let columns = [
        left("SERVICE", |info: &FunctionInfo| info.service.clone()),
        right("INSTANCE", |info| info.instance.to_string()),
        left("PORT", |info| info.port.to_string()),
        right("PID", |info| or_dash(info.pid)),
        left("USER", |info| or_dash(info.user.map(users::user_name))),
        left("GROUP", |info| or_dash(info.group.as_ref())),
        left("STATE", |info| state(info).to_owned()),
        right("WAITING", |info| info.waiting.to_string()),
        right("IN", |info| info.frames_in.to_string()),
        right("OUT", |info| info.frames_out.to_string()),
        right("NO ROOM", |info| info.no_room.to_string()),
        right("DROPPED", |info| info.dropped.to_string()),
        right("REFUSED", |info| info.refused().to_string()),
        right("LOST", |info| info.lost.to_string()),
    ];
    Table::of(functions, &columns).to_string() + &counts(functions.iter())
}

/// A line for each that has counted something itself.
fn counts<'a>(functions: impl Iterator<Item = &'a FunctionInfo>) -> String {
    let line = |info: &FunctionInfo| {
        let all = info.counts.iter().chain(&info.gauges);
        let all = all.map(|(name, count)| format!("{name} {count}"));
        format!("{}: {}\n", info.port, all.collect::<Vec<_>>().join(", "))
    };
    functions.filter(|info| !(info.counts.is_empty() && info.gauges.is_empty())).map(line).collect()
}

const EXAMPLES: &str = "\
Examples:
  uvala nf run firewall vale0:fw -c firewall.toml
  uvala nf run router vale0:r1 -c router.toml --group nf
  uvala nf run bypass vale0:b1 --service idle --instance 1
  uvala nf run firewall vale0:fw -c firewall.toml --cores 2-3
  uvala nf list --watch
  uvala nf top --json | head -1
  uvala nf metrics > /var/lib/node_exporter/uvala.tmp";
