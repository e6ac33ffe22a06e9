//! `uvala daemon`

use std::error::Error;
use std::path::PathBuf;

use client::api::exit;
use daemon::Daemon;
use daemon::config::{Config, ConfigError, Level, WaitPolicy, parse_workers};
use daemon::datapath::Workers;
use daemon::start::StartError;

use super::Global;

/// Run the switch
///
/// Runs in the foreground until SIGTERM or Ctrl-C, and logs to stderr. SIGHUP changes nothing.
/// Needs no privileges: each user can run an own daemon. Under systemd, use Type=notify.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file, TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Worker threads: a number, or auto for one less than cores
    #[arg(long, value_name = "N", value_parser = parse_workers)]
    workers: Option<u32>,
    /// Cores to bind workers to, in turn
    #[arg(long = "cpu", value_name = "LIST", value_delimiter = ',')]
    cpus: Option<Vec<u32>>,
    /// What an idle worker does: auto, spin, yield or block
    #[arg(long, value_name = "POLICY")]
    wait: Option<WaitPolicy>,
    /// How much to log: error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    log: Option<Level>,
}

/// Runs the daemon.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let config = configure(global, args)?;
    daemon::log::to_stderr(config.log);
    let workers = Workers::start(&config.workers)?;
    let mut daemon = Daemon::start(&config, workers)?;
    daemon.heed_signals()?;
    Ok(daemon.run()?)
}

/// The file, with what the command line says instead.
fn configure(global: &Global, args: &Args) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    config.dir = global.dir.clone().or(config.dir);
    config.log = args.log.unwrap_or(config.log);
    config.workers.count = args.workers.unwrap_or(config.workers.count);
    config.workers.wait = args.wait.unwrap_or(config.workers.wait);
    if let Some(cpus) = &args.cpus {
        config.workers.cpus.clone_from(cpus);
    }
    Ok(config)
}

/// The exit status of an error of the daemon's start.
pub fn exit_code(cause: &(dyn Error + 'static)) -> Option<u8> {
    let config = cause.downcast_ref::<ConfigError>().map(|_| exit::BAD_CONFIG);
    config.or_else(|| cause.downcast_ref::<StartError>().map(StartError::exit_code))
}

const EXAMPLES: &str = "\
Examples:
  uvala daemon                              for this user only
  uvala daemon -c /etc/uvala.toml           as a service
  uvala daemon --wait spin --cpu 3          a core of its own, for the lowest latency
  uvala daemon --workers 4 --cpu 2,3,4,5    four workers; each switch belongs to one";
