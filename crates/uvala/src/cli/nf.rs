//! `uvala nf`

mod metrics;
mod reporter;
mod top;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use client::Options;
use client::api::{
    ErrorCode, Failure, FunctionInfo, PortAdd, PortKind, PortRef, PortSettings, Reply, Request,
    SteeringQuery, SwitchRef,
};
use client::control::{Connection, ControlError, unexpected};
use client::name::{PortName, SwitchName};

use reporter::Reporter;

use super::output::{Output, Watch};
use super::{Global, listing, switch as switches};
use crate::nf::wishes::Wishes;
use crate::nf::{self, Function, NAMES, Names};
use crate::say;
use crate::table::{Table, left, or_dash, right};

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
    Run(Run),
    /// All instances of services, who runs them and what they have done
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
    /// Rates are frames in a second. CPU is the share of a core that the process uses, where it can
    /// be seen from here. With --json, one line each time.
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

#[derive(Debug, clap::Args)]
struct Run {
    /// Which
    #[arg(value_parser = names())]
    function: String,
    /// Its port, such as vale0:fw; made, if it is not there, as an instance of the service
    port: String,
    /// What it is to do; TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Service that a new port is an instance of [new: the function's name]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Which instance a new port is
    #[arg(long, value_name = "N", default_value_t = 0)]
    instance: u16,
    /// Trust group: functions of one exchange frames without a copy
    #[arg(long, value_name = "NAME", default_value = "nf")]
    group: String,
    /// End after so many seconds
    #[arg(short = 'T', long, value_name = "SECS")]
    duration: Option<u64>,
}

fn names() -> PossibleValuesParser {
    NAMES.map(|(name, what)| PossibleValue::new(name).help(what)).into()
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Run(run) => run_function(global, run),
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

/// The file of a function is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadFile(String);

fn run_function(global: &Global, run: &Run) -> anyhow::Result<()> {
    let (name, mut function) = (run.port.parse::<PortName>()?, run.function()?);
    let connection = global.connect()?;
    check_switch(&connection, name.switch())?;
    run.introduce(&connection, &mut function)?;
    let added = add_port(&connection, run, &name)?;
    let options = Options::new().rings(1).group(&run.group).client(&run.function);
    let mut options = options.reconnect(true).existing(matches!(added, Added::Refused(_)));
    if let Some(dir) = &global.dir {
        options = options.dir(dir);
    }
    let mut port = match options.open(&name.to_string()) {
        Ok(port) => port,
        Err(error) => return Err(added.undone(&connection, name, error)),
    };
    drop(connection);
    let wishes = Wishes::by_signals(run.config.is_some()).context("cannot catch signals")?;
    let reporter = Reporter::start(global, &name, &function);
    let limit = run.duration.map(Duration::from_secs);
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    nf::run(&mut port, &mut function, |function| {
        if wishes.reload() {
            run.reload(global, function);
        }
        if wishes.show() {
            // Who does not read it does not end the function.
            let _ = run.show(function);
        }
        if reporter.is_due() {
            reporter.tell(function.counts());
        }
        !wishes.end() && end.is_none_or(|end| Instant::now() < end)
    })?;
    function.finish();
    run.show(&function)
}

impl Run {
    /// The function, as its file says.
    fn function(&self) -> Result<Function, BadFile> {
        let read = |path| std::fs::read_to_string(path).map_err(anyhow::Error::from);
        let text = self.config.as_ref().map_or(Ok(String::new()), read);
        let function = text.and_then(|text| Function::new(&self.function, &text));
        function.map_err(|error| self.blames(&error))
    }

    /// Who is wrong: the file.
    fn blames(&self, error: &anyhow::Error) -> BadFile {
        let file = self.config.as_ref().map(|path| format!(", {}", path.display()));
        BadFile(format!("{}{}: {error:#}", self.function, file.unwrap_or_default()))
    }

    /// Tells a function that speaks of services or chains which there are.
    fn introduce(&self, connection: &Connection, function: &mut Function) -> anyhow::Result<()> {
        if !function.asks_for_names() {
            return Ok(());
        }
        let port: PortName = self.port.parse()?;
        let switch = port.switch();
        let services = functions(connection, Some(switch))?.into_iter();
        let chains = super::chain::chains(connection, switch)?.into_iter();
        let names = Names {
            services: services.map(|info| (info.service, info.number)).collect(),
            chains: chains.map(|info| (info.chain.name.to_string(), info.number)).collect(),
        };
        Ok(function.know(&names).map_err(|error| self.blames(&error))?)
    }

    fn reload(&self, global: &Global, function: &mut Function) {
        let read = || {
            let mut new = self.function()?;
            self.introduce(&global.connect()?, &mut new)?;
            anyhow::Ok(new)
        };
        match read().map(|new| function.replace(new)) {
            Ok(()) => say::remark(format_args!("uvala: {} has read its file", self.function)),
            Err(error) => say::remark(format_args!("uvala: {error:#}; it goes on as before")),
        }
    }

    fn show(&self, function: &Function) -> anyhow::Result<()> {
        let counts = function.counts();
        if counts.is_empty() {
            return Ok(());
        }
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        say::out(format_args!("{}: {}\n", self.function, counts.join(", ")))
    }
}

/// Only chains lead to functions. Without, frames are flooded to them, and two that pass everything
/// on send them round and round.
fn check_switch(connection: &Connection, name: &SwitchName) -> anyhow::Result<()> {
    let (code, why) = match connection.call(Request::SwitchShow(SwitchRef { switch: name.clone() }))
    {
        Ok(Reply::Switch(info)) if info.forwarding == "chain" => return Ok(()),
        Ok(Reply::Switch(info)) => {
            let why = format!(
                "switch {name} has no chains (its forwarding is {}), and functions in it send \
                 frames round and round; give it some: uvala switch set {name} --forwarding chain",
                info.forwarding
            );
            (ErrorCode::Unsupported, why)
        }
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::NotFound => {
            let why = format!(
                "there is no switch {name}; make it: uvala switch add {name} --forwarding chain"
            );
            (ErrorCode::NotFound, why)
        }
        // Who may not look at it may be allowed to attach.
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::Permission => {
            return Ok(());
        }
        Ok(other) => return Err(unexpected(&other).into()),
        Err(error) => return Err(error.into()),
    };
    Err(Failure::new(code, why).into())
}

/// What became of a port that was to be there.
enum Added {
    /// It was made.
    New,
    /// It is there, and stays what it is.
    Known,
    /// Others make the ports of this switch; they may have made this one.
    Refused(Failure),
}

impl Added {
    /// It could not be opened: why, after what was made for that is gone.
    fn undone(
        self,
        connection: &Connection,
        port: PortName,
        error: client::Error,
    ) -> anyhow::Error {
        match self {
            Self::New => drop(connection.call(Request::PortDel(PortRef { port }))),
            Self::Refused(failure) if error.exit_code() == ErrorCode::NotFound.exit_code() => {
                return failure.into();
            }
            Self::Known | Self::Refused(_) => {}
        }
        error.into()
    }
}

fn add_port(connection: &Connection, run: &Run, port: &PortName) -> anyhow::Result<Added> {
    let service = run.service.clone().unwrap_or_else(|| run.function.clone());
    let settings = PortSettings {
        service: Some(service),
        instance: Some(run.instance),
        ..PortSettings::default()
    };
    let (port, kind) = (port.clone(), PortKind::Shm);
    let add = PortAdd { port, kind, settings, host: None, machine: None };
    match connection.call(Request::PortAdd(Box::new(add))) {
        Ok(Reply::Done) => Ok(Added::New),
        Ok(other) => Err(unexpected(&other).into()),
        Err(ControlError::Refused(failure)) => match failure.code {
            ErrorCode::Exists => Ok(Added::Known),
            ErrorCode::Permission => Ok(Added::Refused(failure)),
            _ => Err(failure.into()),
        },
        Err(error) => Err(error.into()),
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
        let ask = |from| Request::FunctionList(SteeringQuery { switch: switch.clone(), from });
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
        let all = info.counts.iter().map(|(name, count)| format!("{name} {count}"));
        format!("{}: {}\n", info.port, all.collect::<Vec<_>>().join(", "))
    };
    functions.filter(|info| !info.counts.is_empty()).map(line).collect()
}

const EXAMPLES: &str = "\
Examples:
  uvala nf run firewall vale0:fw -c firewall.toml
  uvala nf run router vale0:r1 -c router.toml --group nf
  uvala nf run bypass vale0:b1 --service bypass --instance 1
  uvala nf list --watch
  uvala nf top --json | head -1
  uvala nf metrics > /var/lib/node_exporter/uvala.tmp";
