//! The processes of a benchmark: this same program, started again for one part.
//!
//! A benchmark of isolated processes must have processes. Each is `uvala bench --role JSON`: an
//! object whose only key names the [`Role`], and whose value tells it what to do. What it needs
//! open (a TAP, a socket, a pipe) it gets as its standard input, and what it measured it prints as
//! one JSON line on its standard output. A role ends with its parent: the kernel sends it SIGKILL
//! then.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use terminal::{process, say};

use crate::sample;

/// A part of a benchmark that runs in a process of its own.
pub trait Role: Serialize + DeserializeOwned {
    /// The key that selects it.
    const NAME: &'static str;

    /// Plays the part in this process.
    fn run(self) -> Result<()>;
}

/// The command line of a role, to be prefixed (`unshare`) or started.
pub fn command_line<R: Role>(role: &R) -> Result<Vec<String>> {
    let exe = process::exe()?;
    let exe = exe.to_str().context("this program's path is not UTF-8")?.to_owned();
    let json = serde_json::json!({ R::NAME: role }).to_string();
    Ok(vec![exe, "bench".into(), "--role".into(), json])
}

/// A role's command with the given input; its output is piped to us.
pub fn command<R: Role>(role: &R, stdin: Stdio) -> Result<Command> {
    let line = command_line(role)?;
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(stdin).stdout(Stdio::piped());
    Ok(command)
}

/// Starts a role with pipes at both ends.
pub fn spawn<R: Role>(role: &R) -> Result<Child> {
    command(role, Stdio::piped())?.spawn().context("cannot start a process of the benchmark")
}

/// Waits for a process and reads the JSON line that it leaves behind.
pub fn result<T: DeserializeOwned>(mut child: Child) -> Result<T> {
    drop(child.stdin.take());
    let stdout = child.stdout.take().context("the process has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let status = child.wait()?;
    if line.is_empty() {
        bail!("a process of the benchmark ended without a result ({status})");
    }
    serde_json::from_str(&line).with_context(|| format!("not a result: {line}"))
}

/// Ends a process by closing its input.
pub fn finish(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    drop(child.stdout.take());
    child.wait()?;
    Ok(())
}

/// Prints what a role has measured.
pub fn report(result: &impl Serialize) -> Result<()> {
    say::json(result)
}

/// A duration as a number of nanoseconds; centuries saturate.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The median of some nanoseconds, in microseconds.
pub fn median_us(trips: &mut [u64]) -> Result<f64> {
    let median = sample::quantile(trips, 0.5).context("no round trip was made")?;
    // A float holds nanoseconds of months exactly.
    #[allow(clippy::cast_precision_loss)]
    let median = median as f64;
    Ok(median / 1e3)
}
