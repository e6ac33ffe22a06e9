//! A private daemon, and what it costs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::programs::{Killed, Scratch};
use terminal::process;

const CANNOT_START: &str = "cannot start uvala daemon";

/// A running `uvala daemon` in a directory of its own; ended when dropped. The first one ends with
/// this process, too, and not one that was started again.
pub struct Daemon {
    process: Killed,
    /// How it is started again.
    command: Command,
    scratch: Scratch,
}

impl Daemon {
    /// Starts it with these workers and switches.
    pub fn with(text: &str) -> Result<Daemon> {
        Daemon::start_in(Scratch::new("daemon")?, &format!("log = \"warn\"\n{text}"))
    }

    /// Starts it in a directory, with a configuration.
    pub fn start_in(scratch: Scratch, text: &str) -> Result<Daemon> {
        let config = scratch.path("uvala.toml");
        std::fs::write(&config, text)?;
        let dir = scratch.dir().to_owned();
        let exe = process::exe()?;
        let told = |mut command: Command| {
            command.arg("daemon").arg("--config").arg(&config).arg("--dir").arg(&dir);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let mut process = told(process::dependent(&exe)?);
        let mut process = Killed(process.spawn().context(CANNOT_START)?);
        // The next one is started at once, for that is measured.
        let command = told(Command::new(exe));
        let begin = Instant::now();
        while !dir.join("uvala.sock").exists() {
            if let Some(status) = process.0.try_wait()? {
                bail!("uvala daemon ended at once ({status}), see above");
            }
            if begin.elapsed() > Duration::from_secs(5) {
                bail!("uvala daemon made no socket");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Daemon { process, command, scratch })
    }

    /// Ends it as a crash would, and starts it again.
    pub fn kill_and_start_again(&mut self) -> Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        self.process = Killed(self.command.spawn().context(CANNOT_START)?);
        Ok(())
    }

    /// Starts another one that takes over from it.
    pub fn replace(&mut self) -> Result<()> {
        let next = self.command.arg("--replace").spawn().context(CANNOT_START)?;
        let mut before = std::mem::replace(&mut self.process, Killed(next));
        while before.0.try_wait()?.is_none() {
            if let Some(status) = self.process.0.try_wait()? {
                bail!("the uvala daemon that takes over ended ({status}), see above");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Where its socket is.
    pub fn dir(&self) -> &std::path::Path {
        self.scratch.dir()
    }

    /// Percent of one core that it uses.
    pub fn cpu_percent(&self, time: Duration) -> Result<f64> {
        self.rest()?;
        let (before, start) = (self.cpu_time()?, Instant::now());
        std::thread::sleep(time);
        let used = self.cpu_time()?.saturating_sub(before);
        Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
    }

    /// Waits until it has done what follows a start, as to put ports into huge pages. One that has
    /// work for longer than three seconds is not idle, and is measured at it.
    pub fn rest(&self) -> Result<()> {
        const MOMENT: Duration = Duration::from_millis(300);
        for _ in 0..10 {
            let before = self.cpu_time()?;
            std::thread::sleep(MOMENT);
            if self.cpu_time()?.saturating_sub(before) < MOMENT / 300 {
                break;
            }
        }
        Ok(())
    }

    /// Time on a core of all its threads.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time(self.process.0.id())
    }

    /// Megabytes in memory that are no shared memory, which is that of its ports.
    pub fn own_megabytes(&self) -> Result<f64> {
        let status = std::fs::read_to_string(self.proc("status"))?;
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u32>().ok()
        };
        match (kilobytes("RssAnon:"), kilobytes("RssFile:")) {
            (Some(anonymous), Some(file)) => Ok(f64::from(anonymous + file) * 1024.0 / 1e6),
            _ => bail!("this kernel does not tell what kind of memory a process has"),
        }
    }

    /// Megabytes of all its ports' regions.
    pub fn port_megabytes(&self) -> Result<f64> {
        let maps = std::fs::read_to_string(self.proc("maps"))?;
        let regions = maps.lines().filter(|line| line.contains("/memfd:"));
        let sizes = regions.filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let bytes = u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?;
            u32::try_from(bytes / 1024).ok()
        });
        let kilobytes: u32 = sizes.sum();
        if kilobytes == 0 {
            bail!("the daemon has no port's memory mapped");
        }
        Ok(f64::from(kilobytes) * 1024.0 / 1e6)
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.process.0.id()).into()
    }
}

/// Time on a core of all threads that a process has.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let field = text.split_whitespace().next().context("an empty schedstat")?;
        nanoseconds += field.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
