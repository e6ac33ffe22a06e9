//! `uvala run`

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result};
use client::control::ControlError;
use protocol::exit;
use protocol::paths;

use super::{Global, program};
use crate::demo::place::Switch;
use crate::preload;
use terminal::say;

/// Run a netmap program
///
/// Runs PROGRAM with libuvala_netmap.so preloaded, which provides /dev/netmap; its VALE switches
/// are those of the daemon. In a guest with a ptnet, netmap:ADDRESS is the port of that PCI device,
/// and no daemon is needed. PROGRAM must be dynamically linked; scripts run with their interpreter.
/// The exit status is PROGRAM's, 127 if it is not found, or 126 if it cannot be run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Start a private daemon, which ends with PROGRAM
    #[arg(long)]
    private: bool,
    /// Program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

/// Runs the program in the place of this one, or beside a private daemon. Returns its status in
/// the latter case.
pub fn run(global: &Global, args: &Args) -> Result<u8> {
    let (name, arguments) = args.command.split_first().expect("clap asks for one");
    let path = program::find(name).map_err(|error| Unrunnable::new(&error, NOT_FOUND))?;
    let program = program::check(&path).map_err(|error| {
        let missing = |cause: &io::Error| cause.kind() == io::ErrorKind::NotFound;
        let found = !error.root_cause().downcast_ref().is_some_and(missing);
        Unrunnable::new(&error, if found { NOT_RUN } else { NOT_FOUND })
    })?;
    for warning in program.warning.iter().chain(&program::forgets(name, arguments)) {
        say::remark(format_args!("uvala: {warning}"));
    }
    allow_descriptors();
    let mut command = Command::new(&program.path);
    command.arg0(name).args(arguments).env("LD_PRELOAD", preload::variable(&preload::library()?)?);
    if args.private {
        let switch = Switch::start("")?;
        command.env("UVALA_DIR", switch.dir());
        let child = command.spawn().map_err(|error| cannot_run(&program.path, error))?;
        return wait(child, false);
    }
    match global.connect() {
        // A guest has ports of its own.
        Err(ControlError::NoDaemon(_)) if !client::ptnet::devices().is_empty() => {}
        connection => drop(connection.map_err(no_daemon)?),
    }
    command.env("UVALA_DIR", daemon_dir(global)?);
    Err(cannot_run(&program.path, command.exec()).into())
}

/// A program that cannot be run, with the status that shells give for that.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Unrunnable {
    text: String,
    status: u8,
}

impl Unrunnable {
    fn new(error: &anyhow::Error, status: u8) -> Self {
        Self { text: format!("{error:#}"), status }
    }

    /// Exit status.
    pub fn exit_code(&self) -> u8 {
        self.status
    }
}

/// Says also what is for programs only.
fn no_daemon(error: ControlError) -> anyhow::Error {
    let ControlError::NoDaemon(socket) = error else { return error.into() };
    let text = format!(
        "no daemon at {}; start one (uvala daemon), or one for the program alone: uvala run \
         --private",
        socket.display()
    );
    Unrunnable { text, status: exit::NO_DAEMON }.into()
}

/// There is no such program.
const NOT_FOUND: u8 = 127;
/// There is, and it does not run.
const NOT_RUN: u8 = 126;

/// Descriptors that a program may have, where the system lets it.
const DESCRIPTORS: u64 = 16_384;

/// A netmap descriptor is four of the system's: a program with hundreds would meet the usual limit
/// of 1024 where netmap's does not.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = DESCRIPTORS.min(maximum.unwrap_or(DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        // Where it is refused, the program has what it had.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn cannot_run(path: &Path, error: io::Error) -> Unrunnable {
    Unrunnable { text: format!("cannot run {}: {error}", path.display()), status: NOT_RUN }
}

/// Where the daemon is, from wherever the program goes.
fn daemon_dir(global: &Global) -> Result<PathBuf> {
    let socket = paths::client_socket(global.dir.as_deref());
    let dir = socket.parent().context("the daemon's socket has no directory")?;
    std::path::absolute(dir).context("no current directory")
}

/// Waits for the program's end, passing on what it should be told; interrupts only if `interrupts`.
/// Returns its status as a shell gives it.
pub fn wait(mut child: Child, interrupts: bool) -> Result<u8> {
    use rustix::process::{Pid, Signal, kill_process};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let pid = Pid::from_child(&child);
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever() {
            // The terminal has told the program of an interrupt already.
            let signal = match signal {
                SIGHUP => Signal::HUP,
                SIGTERM => Signal::TERM,
                SIGINT if interrupts => Signal::INT,
                _ => continue,
            };
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    });
    let status = child.wait().context("cannot wait for the program");
    handle.close();
    forwarder.join().expect("the forwarder does not panic");
    status.map(exit_status)
}

/// A program's status as a shell gives it.
fn exit_status(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(signal).and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(exit::FAILURE)
}

const EXAMPLES: &str = "\
Examples:
  uvala run -- pkt-gen -i vale0:a -f tx                 on the daemon's switch vale0
  uvala run --private -- bridge -i vale0:a -i vale1:b   on a private daemon
  uvala run -- sh -c 'pkt-gen … & pkt-gen …'            also programs that the shell starts
  uvala run -- pkt-gen -i netmap:0000:00:04.0 -f rx     in a guest, on its own device

uvala looks for the library beside itself and in ../lib; UVALA_NETMAP_LIB names another file.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_statuses_are_those_of_a_shell() {
        assert_eq!(exit_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_status(ExitStatus::from_raw(9)), 137);
    }
}
