//! A private switch: a daemon on threads of this process, in a directory that goes with it.

use std::fs::read_to_string;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use daemon::config::Config;
use daemon::engine::Workers;
use daemon::{Daemon, EndError, Stopper};
use rustix::time::{ClockId, clock_gettime};

use crate::private_dir::PrivateDir;
use terminal::say;

/// A running switch; ended when dropped.
pub struct Switch {
    stopper: Stopper,
    thread: Option<JoinHandle<std::result::Result<(), EndError>>>,
    // Last: the directory goes when it is used no more.
    dir: PrivateDir,
}

impl Switch {
    /// Starts it with a configuration.
    pub fn start(config: &str) -> Result<Self> {
        let dir = PrivateDir::new()?;
        let mut config = Config::parse(config, Path::new("private"))?;
        config.dir = Some(dir.path().to_owned());
        let workers = Workers::start(&config).context("cannot start the switch")?;
        let daemon = Daemon::start(&config, workers)?;
        let stopper = daemon.stopper()?;
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(|| daemon.run())?;
        Ok(Self { stopper, thread: Some(thread), dir })
    }

    /// Where its socket is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(Err(error)) = self.thread.take().and_then(|thread| thread.join().ok()) {
            say::remark(format_args!("the switch did not end well: {error}"));
        }
    }
}

/// Time on a core of all threads of this process: the switch's, while this one sleeps.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// Bytes in memory of this process without the ports' shared memory.
pub fn own_memory() -> Result<u64> {
    let status = read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let both = kilobytes("RssAnon:").zip(kilobytes("RssFile:"));
    let (anonymous, file) = both.context("this kernel does not tell kinds of memory apart")?;
    Ok((anonymous + file) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_switch_leaves_nothing_behind() {
        let switch = Switch::start("").unwrap();
        let dir = switch.dir().to_path_buf();
        client::control::Connection::open(Some(&dir)).unwrap().hello("test").unwrap();
        drop(switch);
        assert!(!dir.exists());
    }

    #[test]
    fn test_own_memory_is_plausible() {
        assert!((1 << 20..1 << 32).contains(&own_memory().unwrap()));
    }
}
