//! A process of the demo: `uvala gen`, started by this same program.

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use bench::traffic::report::Summary;
use terminal::process;

/// A running `uvala gen`; ended when dropped.
pub struct Child(std::process::Child);

impl Child {
    /// Starts a function on a port of the switch in `dir`.
    pub fn start(dir: &Path, function: &str, port: &str, mac: &str, more: &[&str]) -> Result<Self> {
        let exe = process::exe()?;
        let parent = std::process::id().to_string();
        let child = Command::new(exe)
            .args(["gen", "--json", "--no-reconnect", "--with-parent", &parent])
            .args(["-f", function, "-i", port, "-S", mac])
            .args(more)
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.map(Self).context("cannot start a process of the demo")
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Asks it to end in good order.
    pub fn interrupt(&mut self) -> Result<()> {
        if self.is_running()? {
            kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        }
        Ok(())
    }

    /// Waits for its end. Returns what it reports, and whether it says that all is well.
    pub fn summary(&mut self, patience: Duration) -> Result<(Summary, ExitStatus)> {
        let begin = Instant::now();
        let status = loop {
            match self.0.try_wait()? {
                Some(status) => break status,
                None if begin.elapsed() > patience => bail!("a process of the demo does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let text = read(self.0.stdout.take());
        match serde_json::from_str(&text) {
            Ok(summary) => Ok((summary, status)),
            Err(_) => bail!("a process of the demo failed: {}", self.complaint()),
        }
    }

    /// What it said on its standard error.
    pub fn complaint(&mut self) -> String {
        read(self.0.stderr.take()).trim_end().to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that a process has said, which ended; a few lines at most, so no pipe runs full before.
fn read(from: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut from) = from {
        // What cannot be read is missed by the caller.
        let _ = from.read_to_string(&mut text);
    }
    text
}
