//! `uvala daemon`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use daemon::config::{Config, ConfigError, Level, WaitPolicy, parse_workers};
use daemon::control::datapath::closings::Closings;
use daemon::engine::Workers;
use daemon::handed::{Handed, Left};
use daemon::kept::{FdStore, Kept};
use daemon::lockfile;
use daemon::log::LogFormat;
use daemon::start::{StartError, make_dir};
use daemon::store::check as check_state;
use daemon::{Daemon, EndError, confinement};
use protocol::{HandedPort, exit, paths};

use super::replace::Predecessor;
use super::{Global, background};
use terminal::{process, say};

/// Run the switch
///
/// Runs in the foreground until SIGTERM or Ctrl-C, and logs to stderr. SIGHUP does not reload the
/// configuration: see `uvala apply`. The daemon needs no privileges: each user can run one. Under
/// systemd, use Type=notify, and for `systemctl reload` NotifyAccess=exec and ExecReload=uvala
/// upgrade.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file, TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of worker threads, or auto for the number of CPUs minus one [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_workers)]
    workers: Option<u32>,
    /// CPUs to bind workers to, in turn [default: the kernel chooses]
    #[arg(long = "cpu", value_name = "LIST", value_delimiter = ',')]
    cpus: Option<Vec<u32>>,
    /// Wait policy of an idle worker: auto, spin (poll without end), yield (yield the core a few
    /// times, then sleep) or block (sleep at once) [default: auto]
    #[arg(long, value_name = "POLICY")]
    wait: Option<WaitPolicy>,
    /// Directory for state that commands create: switches, permanent ports, static FDB entries,
    /// settings
    ///
    /// The default is the directory state beside the socket, which is usually on a tmpfs: it
    /// survives a restart of the daemon, but not a reboot. If the configuration has the same switch
    /// or port, what commands set holds until an operator edits that part of the configuration. The
    /// daemon does not start if it cannot read a file there.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Delete the state that commands created, and start with the configuration alone
    #[arg(long)]
    forget: bool,
    /// Confinement after the start: on, log (the kernel only logs) or off [default: on]
    ///
    /// A confined daemon opens, executes and connects to nothing that it does not need. Where the
    /// kernel refuses a call that it should not, the log names the call.
    #[arg(long, value_name = "MODE")]
    confine: Option<confine::Mode>,
    /// File to append the log to after startup, instead of stderr
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Log level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<Level>,
    /// Form of the log: text, json (an object on each line) or auto (text; under systemd, fields
    /// for the journal) [default: auto]
    #[arg(long, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// Take over from the daemon that runs in the directory, which must be the same user's: it
    /// ends, and interfaces that it has made and ports of clients go on with this one
    ///
    /// The interfaces keep their addresses and routes. A client keeps its port, but not if the port
    /// is in a trust group, a function's, an end of a pipe, or one of several that the client has.
    /// Other programs and virtual machines attach again as after any restart. `uvala upgrade` does
    /// this with the options of the daemon that runs. Under systemd, reload the unit instead.
    #[arg(long)]
    replace: bool,
    /// Run in the background; return when the daemon is ready
    ///
    /// Errors at startup go to stderr; after that the daemon logs to uvala.log beside the socket,
    /// or to --log-file. SIGTERM ends it.
    #[arg(long)]
    background: bool,
}

/// Runs the daemon.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let config = configure(global, args)?;
    if args.background {
        let mut command = Command::new(process::exe()?);
        command.args(std::env::args_os().skip(1).filter(|arg| arg != "--background"));
        let (log, dir) = (args.log_file.clone(), paths::daemon_dir(config.dir.as_deref()));
        return background::start(command, log, args.replace, &dir);
    }
    daemon::log::begin(config.log, config.log_format, args.log_file.is_none());
    let socket = paths::daemon_dir(config.dir.as_deref()).join(paths::SOCKET_NAME);
    let kept = Kept::of_service_manager();
    let fd_store = FdStore::of_environment(kept.names());
    let before = if args.replace { Predecessor::find(&socket)? } else { None };
    if before.is_some() && !config.forget {
        // What keeps this daemon from starting had better do so before the other one ends.
        check_state(&config.saved_state(&paths::daemon_dir(config.dir.as_deref())))
            .map_err(StartError::from)?;
    }
    // A confined daemon opens no other file.
    let log = args.log_file.as_deref().map(|path| open_log(path, &config)).transpose()?;
    confinement::enter(&config)?;
    let mut workers = Workers::start(&config)?;
    workers.set_helper(config.helper.clone());
    let is_successor = before.is_some();
    if is_successor {
        workers.wait();
    }
    let (kept, clients) = match before {
        // What the service manager has passed as well is the same, and closed here.
        Some(before) => {
            drop(kept);
            let (kept, left) = succeed(before, &workers, &socket.with_file_name(paths::LOCK_NAME))?;
            fd_store.expect(kept.names());
            workers.report_within(left.watchdog);
            (kept, left.clients)
        }
        None => (kept, Vec::new()),
    };
    workers.set_kept(kept, fd_store);
    let mut daemon = Daemon::start(&config, workers)?;
    if is_successor {
        daemon.succeed(clients);
    }
    daemon.heed_signals()?;
    if let Some(log) = log {
        // From now on stderr is this file, also for panics; the process that had it before may end.
        rustix::stdio::dup2_stderr(log).context("log file")?;
    }
    Ok(daemon.run()?)
}

/// Ends the daemon that runs, and takes what it leaves with its lock. A client whose port cannot be
/// taken over attaches again.
fn succeed(before: Predecessor, workers: &Workers, lock: &Path) -> anyhow::Result<(Kept, Left)> {
    let mut handed = Handed::new(workers.ringers());
    let add = |port: HandedPort, fds| {
        let name = port.attach.port.clone();
        if let Err(error) = handed.add(port, fds, |user| workers.closer_for(user)) {
            say::remark(format_args!("uvala: {name}: its client attaches again: {error}"));
        }
    };
    let (interfaces, said) = before.end(add, || lockfile::is_free(lock))?;
    let left = said.map(|said| handed.at_the_end(said)).transpose().unwrap_or_else(|error| {
        say::remark(format_args!("uvala: all clients attach again: {error}"));
        None
    });
    Ok((interfaces.into_iter().collect(), left.unwrap_or_default()))
}

fn open_log(path: &Path, config: &Config) -> anyhow::Result<File> {
    // The file may be in the directory of the socket, which may not exist yet.
    make_dir(&paths::daemon_dir(config.dir.as_deref()), &config.socket)?;
    let mut options = File::options();
    let options = options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).with_context(|| format!("log file {}", path.display()))
}

/// The file, with what the command line says instead.
fn configure(global: &Global, args: &Args) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    config.dir = global.dir.clone().or(config.dir);
    config.state_dir = args.state.clone().or(config.state_dir);
    config.forget = args.forget;
    config.log = args.log.unwrap_or(config.log);
    config.log_format = args.log_format.unwrap_or(config.log_format);
    config.confine = args.confine.unwrap_or(config.confine);
    config.workers.count = args.workers.unwrap_or(config.workers.count);
    config.workers.wait = args.wait.unwrap_or(config.workers.wait);
    if let Some(cpus) = &args.cpus {
        config.workers.cpus.clone_from(cpus);
    }
    Ok(config)
}

/// The exit status of an error of the daemon's start or end.
pub fn exit_code(cause: &(dyn Error + 'static)) -> Option<u8> {
    let config = cause.downcast_ref::<ConfigError>().map(|_| exit::BAD_CONFIG);
    let start = || cause.downcast_ref::<StartError>().map(StartError::exit_code);
    config.or_else(start).or_else(|| cause.downcast_ref::<EndError>().map(EndError::exit_code))
}

const EXAMPLES: &str = "\
Examples:
  uvala daemon                              for this user only
  uvala daemon --background                 the same in the background, for scripts
  uvala daemon -c /etc/uvala.toml           as a service
  uvala daemon --replace --background       another daemon takes over, with these options
  uvala daemon --forget                     without the state that commands saved
  uvala daemon --wait spin --cpu 3          a CPU of its own, for the lowest latency
  uvala daemon --workers 4 --cpu 2,3,4,5    four workers; each switch belongs to one";
