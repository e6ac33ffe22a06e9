//! `uvala nf`

mod part;
mod place;
mod run;
mod sandbox;
pub mod top;

use client::control::Connection;
use protocol::name::SwitchName;
use protocol::parse;
use protocol::{FunctionInfo, FunctionRequest, Request, SteeringQuery, users};

use super::output::{Output, Watch};
use super::{Global, listing, switch as switches};
pub use part::BadFile;
use terminal::table::{Table, left, or_dash, right};

/// Run network functions, and list them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run a network function
    ///
    /// SIGHUP reloads the file; connections and bindings stay, and a file with an error changes
    /// nothing. SIGUSR1 prints the counters, and so does the function when it ends. SIGINT and
    /// SIGTERM end it.
    ///
    /// --threads runs several instances of the service, and the switch distributes flows over them.
    /// Each has connections, counters and ports of its own. Some functions can have one instance
    /// only, and refuse the option. --with runs several functions in one thread; where they follow
    /// each other in a chain, one calls the next while the frame is in the cache.
    Run(run::Run),
    /// List all service instances, their processes and their counters
    ///
    /// STATE is up, down (no process runs the instance) or stalled (it takes no frames). WAITING is
    /// the number of frames in its ring now. IN counts frames given to the instance, OUT those that
    /// it sent on, DROPPED those that it dropped. REFUSED counts frames of OUT whose action the
    /// switch refused, NO ROOM frames dropped because the instance's ring was full, LOST those that
    /// were in its rings when its process ended.
    List {
        /// Name of the switch [default: all that you may see]
        switch: Option<String>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Show rates of all instances, the busiest first, until Ctrl-C
    ///
    /// Rates are frames per second. CPU is the share of a core that the instance's thread or
    /// process uses; CORES are the cores on which it may run, if this user may see that. With
    /// --json, prints one line per interval.
    Top {
        /// Name of the switch [default: all that you may see]
        switch: Option<String>,
        /// Interval in seconds
        #[arg(long, value_name = "SECS", default_value_t = 1)]
        #[arg(value_parser = parse::within(1..=3600_u64))]
        every: u64,
        #[command(flatten)]
        output: Output,
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
    }
}

/// Whether an instance has a process that takes frames.
pub fn state(info: &FunctionInfo) -> &'static str {
    match (info.pid, info.stalled) {
        (None, _) => "down",
        (Some(_), true) => "stalled",
        (Some(_), false) => "up",
    }
}

/// All instances of services that we may see.
pub fn functions(
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
        left("TRUST GROUP", |info| or_dash(info.trust_group.as_ref())),
        left("STATE", |info| state(info).to_owned()),
        right("WAITING", |info| info.waiting.to_string()),
        right("IN", |info| info.frames_in.to_string()),
        right("OUT", |info| info.frames_out.to_string()),
        right("NO ROOM", |info| info.no_room.to_string()),
        right("DROPPED", |info| info.dropped.to_string()),
        right("REFUSED", |info| info.refused().to_string()),
        right("LOST", |info| info.lost.to_string()),
    ];
    Table::of(functions, &columns).fitted() + &counts(functions.iter())
}

/// One line per function that has counters of its own.
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
  uvala nf top --json | head -1";
