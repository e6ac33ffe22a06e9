//! The command line: one module for each subcommand, with its `Args` and its `run`.

mod apply;
mod assets;
mod audit;
mod background;
mod capture;
mod chain;
mod daemon;
mod doctor;
mod events;
mod extcap;
mod fdb;
mod forwarding_program;
mod inherited;
mod internet;
mod listing;
mod mdb;
mod metrics;
mod mirror;
mod names;
mod neigh;
mod nf;
mod ns;
mod object_file;
mod output;
pub mod port;
pub mod program;
mod rates;
mod replace;
mod rule;
mod run;
mod security;
mod stats;
mod switch;
mod takeover;
mod target;
mod time_slice;
mod top;
mod trace;
mod upgrade;
mod vm;
mod vm_args;
mod vxlan_args;
mod worker;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use client::control::{Connection, ControlError};
use protocol::name::NameError;
use protocol::{DropReason, Failure, exit};

use crate::doctor::gather;
use crate::{bridge, cni, demo, netavark};
use bench::traffic;
use terminal::Usage;
use terminal::say::{self, Unread};

/// A virtual Ethernet switch in user space for processes, containers and virtual machines
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Directory of the daemon's socket
    ///
    /// The default is $UVALA_DIR; else /run/uvala, for root and users that can write there; else
    /// $XDG_RUNTIME_DIR/uvala; else /tmp/uvala-UID. Commands of a user without a daemon use the one
    /// in /run/uvala.
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Daemon(daemon::Args),
    Upgrade(upgrade::Args),
    Switch(switch::Args),
    Port(port::Args),
    Ns(ns::Args),
    Cni(cni::Args),
    Netavark(netavark::Args),
    Fdb(fdb::Args),
    Neigh(neigh::Args),
    Mdb(mdb::Args),
    Mirror(mirror::Args),
    Chain(chain::Args),
    Rule(rule::Args),
    Program(forwarding_program::Args),
    Apply(apply::Args),
    Nf(nf::Args),
    Audit(audit::Args),
    Stats(stats::Args),
    Top(top::Args),
    Metrics(metrics::Args),
    Worker(worker::Args),
    Events(events::Args),
    Capture(capture::Args),
    Trace(trace::Args),
    Extcap(extcap::Args),
    Vm(vm::Args),
    Internet(internet::Args),
    Doctor(doctor::Args),
    VmArgs(vm_args::Args),
    Gen(traffic::Args),
    Bridge(bridge::Args),
    Run(run::Args),
    Demo(demo::Args),
    Bench(bench::BenchArgs),
    Assets(assets::Args),
    Names(names::Args),
}

impl Global {
    /// For commands that have a daemon of their own, or none.
    fn refuse_dir(&self, command: &str) -> Result<(), Usage> {
        match self.dir {
            Some(_) => Err(Usage(format!("--dir is not for `uvala {command}`"))),
            None => Ok(()),
        }
    }

    /// Connects to the daemon. Of one that is stopped it says so, and waits.
    pub fn connect(&self) -> Result<Connection, ControlError> {
        let connection = Connection::open(self.dir.as_deref())?;
        if let Some(found) = gather::silent(&connection, false) {
            say::remark(format_args!("uvala: {}: {}; {}", found.about, found.what, found.cure));
        }
        Self::begin(connection)
    }

    /// Connects to the daemon, and says nothing.
    fn connect_quietly(&self) -> Result<Connection, ControlError> {
        Self::begin(Connection::open(self.dir.as_deref())?)
    }

    fn begin(connection: Connection) -> Result<Connection, ControlError> {
        connection.hello(concat!("uvala ", env!("CARGO_PKG_VERSION")))?;
        Ok(connection)
    }
}

/// Runs the program; errors are one line on stderr and an exit status of their own.
pub fn main() -> ExitCode {
    // Runtimes start a plugin by its name alone.
    let name = std::env::args_os().next().map(PathBuf::from);
    if name.is_some_and(|name| name.file_name() == Some(OsStr::new("uvala-cni"))) {
        return ExitCode::from(cni::run());
    }
    let args = join_values(as_command(std::env::args_os()));
    let cli = Cli::try_parse_from(&args).unwrap_or_else(|error| fixed(&args, error).exit());
    match dispatch(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) if error.is::<Unread>() => ExitCode::from(exit::OK),
        Err(error) => {
            say::remark(format_args!("uvala: {}", format!("{error:#}").replace('\n', " ")));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// `uvala-extcap …`, as Wireshark runs it, is `uvala extcap …`; netavark's plugin likewise.
fn as_command(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let command = |arg: &OsString| {
        let name = Path::new(arg).file_name()?.to_str()?.strip_prefix("uvala-")?;
        ["extcap", "netavark"].contains(&name).then(|| OsString::from(name))
    };
    args.enumerate().flat_map(move |(at, arg)| {
        let command = command(&arg).filter(|_| at == 0);
        [Some(arg), command].into_iter().flatten()
    })
}

/// `--watch 2` is `--watch=2`, and `--drops vlan` is `--drops=vlan`: no switch or port has a number
/// or a reason for a name. What `run` runs has options of its own.
fn join_values(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_value =
        |option: &OsStr, text: &OsStr, captures: bool| match (option.to_str(), text.to_str()) {
            (Some("--watch"), Some(text)) => text.parse::<u64>().is_ok(),
            (Some("--drops"), Some(text)) => captures && DropReason::named(text).is_some(),
            _ => false,
        };
    args.fold(Vec::new(), |mut args, arg| {
        let ours = !args.iter().any(|arg| arg == "run");
        let captures = args.iter().any(|arg| arg == "capture");
        match args.last_mut() {
            Some(last) if ours && is_value(last, &arg, captures) => {
                last.push("=");
                last.push(arg);
            }
            _ => args.push(arg),
        }
        args
    })
}

/// Says of an option of `port add` that `port set` does not have why that is so.
fn fixed(args: &[OsString], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let is_of = |command: &str| {
        let cli = Cli::command();
        let of = cli.find_subcommand("port").and_then(|it| it.find_subcommand(command));
        let mut known = of.into_iter().flat_map(clap::Command::get_arguments);
        known.any(|it| it.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long)))
    };
    let is_set = args.windows(2).any(|words| words == ["port", "set"]);
    match error.kind() == ErrorKind::UnknownArgument && is_set && is_of("add") {
        true => clap::Error::raw(
            ErrorKind::UnknownArgument,
            format!("{option} is fixed: delete the port and add it again\n"),
        ),
        false => error,
    }
}

/// Runs the subcommand; returns the exit status.
fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    let global = &cli.global;
    match &cli.command {
        Command::Demo(_) => global.refuse_dir("demo")?,
        Command::Bench(_) => global.refuse_dir("bench")?,
        _ => {}
    }
    match cli.command {
        Command::Run(args) => return run::run(global, &args),
        Command::Vm(args) => return vm::run(global, &args),
        Command::Doctor(args) => return doctor::run(global, &args),
        Command::Daemon(args) => daemon::run(global, &args),
        Command::Upgrade(args) => upgrade::run(global, &args),
        Command::Switch(args) => switch::run(global, &args),
        Command::Port(args) => port::run(global, &args),
        Command::Ns(args) => ns::run(global, &args),
        Command::Cni(_) => return Ok(cni::run()),
        Command::Netavark(args) => return Ok(netavark::run(&args)),
        Command::Fdb(args) => fdb::run(global, &args),
        Command::Neigh(args) => neigh::run(global, &args),
        Command::Mdb(args) => mdb::run(global, &args),
        Command::Mirror(args) => mirror::run(global, &args),
        Command::Chain(args) => chain::run(global, &args),
        Command::Rule(args) => rule::run(global, &args),
        Command::Program(args) => forwarding_program::run(global, &args),
        Command::Apply(args) => apply::run(global, &args),
        Command::Audit(args) => audit::run(global, &args),
        Command::Nf(args) => nf::run(global, &args),
        Command::Stats(args) => stats::run(global, &args),
        Command::Top(args) => top::run(global, &args),
        Command::Metrics(args) => metrics::run(global, &args),
        Command::Worker(args) => worker::run(global, &args),
        Command::Events(args) => events::run(global, &args),
        Command::Capture(args) => capture::run(global, &args),
        Command::Extcap(args) => extcap::run(global, &args),
        Command::Trace(args) => trace::run(global, &args),
        Command::Internet(args) => internet::run(global, &args),
        Command::VmArgs(args) => vm_args::run(global, &args),
        Command::Gen(args) => traffic::run(global.dir.as_deref(), &args),
        Command::Bridge(args) => bridge::run(global.dir.as_deref(), &args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Assets(args) => assets::run(&args),
        Command::Names(_) => names::run(global),
    }
    .map(|()| exit::OK)
}

/// The exit status of the innermost cause that has one.
fn exit_code(error: &anyhow::Error) -> u8 {
    let code = |cause: &(dyn std::error::Error + 'static)| {
        let port = cause.downcast_ref().map(client::Error::exit_code);
        let control = || cause.downcast_ref().map(ControlError::exit_code);
        let failure = || cause.downcast_ref::<Failure>().map(|failure| failure.code.exit_code());
        let name = || cause.downcast_ref::<NameError>().map(|_| exit::BAD_NAME);
        let usage = || cause.downcast_ref::<Usage>().map(|_| exit::USAGE);
        let run = || cause.downcast_ref().map(run::Unrunnable::exit_code);
        let named =
            port.or_else(control).or_else(failure).or_else(name).or_else(usage).or_else(run);
        let file = || cause.is::<nf::BadFile>().then_some(exit::BAD_CONFIG);
        named.or_else(file).or_else(|| daemon::exit_code(cause))
    };
    error.chain().find_map(code).unwrap_or(exit::FAILURE)
}

const EXAMPLES: &str = "\
Examples:
  uvala demo                                see it work, in six seconds
  uvala daemon                              run a switch for this user, until Ctrl-C
  uvala gen -i vale0:a -f tx                send frames; -f rx receives them
  uvala port list                           all ports, with their clients
  uvala top                                 rates of all ports, on the whole terminal
  uvala stats --watch                       the same as plain text, every second
  uvala run -- pkt-gen -i vale0:a -f tx     run a netmap program
  uvala switch set vale0 --mode 666         let all users attach to vale0
  uvala upgrade                             the installed version takes over from the daemon

Other programs: uvala-http (HTTP API and web page), uvala-evpn (BGP), uvala-device (a machine's
network card), uvala-helper. Manual pages: man -k uvala.

Exit status:
   0  success                       8  out of memory or descriptors
   1  failed for another reason     9  error in the configuration file
   2  wrong command line           10  invalid name of a port or switch
   3  no daemon answers            11  already exists
   4  permission denied            12  not supported by this kind of port
   5  no such switch or port       13  the daemon refused the values
   6  in use by another client     14  internal error
   7  quota exceeded               15  done, but not saved: a restart undoes it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn test_options_take_the_value_that_follows_them() {
        let join =
            |line: &str| join_values(line.split(' ').map(OsString::from)).join(OsStr::new(" "));
        assert_eq!(join("uvala stats --watch 2"), "uvala stats --watch=2");
        assert_eq!(join("uvala stats --watch vale0"), "uvala stats --watch vale0");
        assert_eq!(join("uvala gen -n 2 --watch"), "uvala gen -n 2 --watch");
        assert_eq!(join("uvala run x --watch 2"), "uvala run x --watch 2");
        assert_eq!(join("uvala capture --drops vlan vale0"), "uvala capture --drops=vlan vale0");
        assert_eq!(join("uvala capture --drops vale0"), "uvala capture --drops vale0");
    }

    #[test]
    fn test_an_option_that_only_a_new_port_has_is_called_fixed() {
        let said = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            fixed(&args, Cli::try_parse_from(&args).unwrap_err()).to_string()
        };
        for option in ["--vni", "--kind", "--socket"] {
            let text = said(&format!("uvala port set vale0:a {option} 7"));
            assert_eq!(
                text,
                format!("error: {option} is fixed: delete the port and add it again\n")
            );
        }
        for other in ["uvala port set vale0:a --colour", "uvala port show vale0:a --vni"] {
            assert!(said(other).contains("unexpected argument"), "{other}");
        }
    }

    #[test]
    fn test_errors_have_exit_codes_of_their_own() {
        let name = "eth0".parse::<protocol::name::PortName>().unwrap_err();
        assert_eq!(exit_code(&anyhow::Error::new(name)), exit::BAD_NAME);
        let missing = ControlError::NoDaemon(PathBuf::from("x"));
        let error = anyhow::Error::new(missing).context("more");
        assert_eq!(exit_code(&error), exit::NO_DAEMON);
        assert_eq!(exit_code(&anyhow::anyhow!("something")), exit::FAILURE);
    }
}
