//! `uvala daemon`

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use client::control::{Connection, ControlError};
use daemon::config::{Config, ConfigError, Level, WaitPolicy, parse_workers};
use daemon::control::datapath::closings::Closings;
use daemon::engine::Workers;
use daemon::handed::{Clients, Handed};
use daemon::kept::{FdStore, Kept};
use daemon::lockfile;
use daemon::log::LogFormat;
use daemon::start::{StartError, make_dir};
use daemon::store::check as check_state;
use daemon::{Daemon, EndError, confinement};
use protocol::{HandedPort, exit, paths};

use super::Global;
use super::replace::{self, Predecessor};
use terminal::{process, say};

/// How long a daemon may take to listen. What it kept before it may load as long as it wants.
const PATIENCE: Duration = Duration::from_secs(20);
/// The log of a daemon in the background, beside its socket.
const LOG_NAME: &str = "uvala.log";

/// Run the switch
///
/// Runs in the foreground until SIGTERM or Ctrl-C, and logs to stderr. SIGHUP does not reload the
/// configuration: see `uvala apply`. The daemon needs no privileges: each user can run one. Under
/// systemd, use Type=notify.
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
    log_file: Option<PathBuf>,
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
    /// Other programs and virtual machines attach again as after any restart. Under systemd,
    /// restart the unit instead.
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
        // The daemon to be replaced may take longer to end.
        let patience = if args.replace { PATIENCE + replace::LIMIT } else { PATIENCE };
        return background(config.dir.as_deref(), args.log_file.as_deref(), patience);
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
            succeed(before, &workers, &socket.with_file_name(paths::LOCK_NAME))?
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
fn succeed(before: Predecessor, workers: &Workers, lock: &Path) -> anyhow::Result<(Kept, Clients)> {
    let mut handed = Handed::new(workers.ringers());
    let add = |port: HandedPort, fds| {
        let name = port.attach.port.clone();
        if let Err(error) = handed.add(port, fds, |user| workers.closer_for(user)) {
            say::remark(format_args!("uvala: {name}: its client attaches again: {error}"));
        }
    };
    let (interfaces, said) = before.end(add, || lockfile::is_free(lock))?;
    let clients = said.map(|said| handed.at_the_end(said)).transpose().unwrap_or_else(|error| {
        say::remark(format_args!("uvala: all clients attach again: {error}"));
        None
    });
    Ok((interfaces.into_iter().collect(), clients.unwrap_or_default()))
}

fn open_log(path: &Path, config: &Config) -> anyhow::Result<File> {
    // The file may be in the directory of the socket, which may not exist yet.
    make_dir(&paths::daemon_dir(config.dir.as_deref()), &config.socket)?;
    let mut options = File::options();
    let options = options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).with_context(|| format!("log file {}", path.display()))
}

/// Starts this program again without that option, and waits until it answers.
fn background(dir: Option<&Path>, log: Option<&Path>, patience: Duration) -> anyhow::Result<()> {
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--background");
    let usual = paths::daemon_dir(dir).join(LOG_NAME);
    let more = log.is_none().then(|| [OsString::from("--log-file"), usual.clone().into()]);
    let log = log.unwrap_or(&usual);
    let program = process::exe()?;
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C at the terminal is not for it.
    command
        .args(args)
        .args(more.into_iter().flatten())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0);
    let mut daemon = command.spawn().context("cannot start the daemon")?;
    let socket = paths::daemon_dir(dir).join(paths::SOCKET_NAME);
    let mut deadline = Instant::now() + patience;
    loop {
        let info = Connection::connect(&socket).and_then(|connection| connection.hello("uvala"));
        match info {
            Ok(info) if info.pid == daemon.id() => {
                let (id, socket, log) = (info.pid, socket.display(), log.display());
                return say::out(format_args!("process {id} at {socket}, log in {log}\n"));
            }
            // The new daemon listens, and is at work; or the one that it replaces does. If that
            // one hangs, the new one gives up by itself.
            Ok(_) | Err(ControlError::Timeout(_)) => deadline = Instant::now() + patience,
            _ => {}
        }
        if let Some(status) = daemon.try_wait()? {
            // It has said why.
            std::process::exit(status.code().unwrap_or(exit::FAILURE.into()));
        }
        if Instant::now() > deadline {
            daemon.kill()?;
            let (seconds, log) = (patience.as_secs(), log.display());
            anyhow::bail!("the daemon did not listen within {seconds} s; its log is {log}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
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
  uvala daemon --replace --background       a new version takes over from the old one
  uvala daemon --forget                     without the state that commands saved
  uvala daemon --wait spin --cpu 3          a CPU of its own, for the lowest latency
  uvala daemon --workers 4 --cpu 2,3,4,5    four workers; each switch belongs to one";
