//! The processes of a benchmark: this same program, started again for one part.
//!
//! A benchmark of isolated processes must have processes. Each is `uvala bench --role JSON`, with
//! the role as JSON; what it needs open (a TAP, a socket, a pipe) it gets as its standard input,
//! and what it measured it prints as one JSON line on its standard output. A role ends with its
//! parent: the kernel sends it SIGKILL then.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{frames, host, machine, peers, sample, subject};
use terminal::{process, say};

/// One part of a benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Role {
    /// Returns every byte of its input, through as many further processes.
    Echo {
        /// The CPU of all of them.
        cpu: usize,
        /// How many processes stand between this one and the one that turns around.
        relays: u8,
    },
    /// Sends frames into the descriptor that is its input.
    FrameSender(frames::Flow),
    /// Counts frames that come out of the descriptor that is its input.
    FrameReceiver(frames::Flow),
    /// Sends a frame and waits for its answer.
    FramePing(frames::Flow),
    /// Answers every frame.
    FrameEcho(frames::Flow),
    /// A Linux bridge with two TAPs, inside a network namespace of its own.
    Bridge(peers::bridge::Job),
    /// A laboratory of the host's interfaces, inside a network namespace of its own.
    Host(host::Job),
    /// A process in that laboratory.
    HostEnd(host::End),
    /// A process of the subject.
    Subject(subject::Part),
}

/// Runs a role in this process.
pub fn run(role: &Role) -> Result<()> {
    // Whoever asked for the result is gone, so is the reason to go on.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match role {
        Role::Echo { cpu, relays } => echo(*cpu, *relays),
        Role::FrameSender(flow) => report(&frames::send(flow)?),
        Role::FrameReceiver(flow) => report(&frames::receive(flow)?),
        Role::FramePing(flow) => report(&frames::ping(flow)?),
        Role::FrameEcho(flow) => frames::echo(flow),
        Role::Bridge(job) => report(&peers::bridge::inside(job)?),
        Role::Host(job) => report(&host::run(job)?),
        Role::HostEnd(end) => host::run_end(end),
        Role::Subject(part) => subject::run_part(part),
    }
}

/// The command line of a role, to be prefixed (`unshare`) or started.
pub fn command_line(role: &Role) -> Result<Vec<String>> {
    let exe = process::exe()?;
    let exe = exe.to_str().context("this program's path is not UTF-8")?.to_owned();
    Ok(vec![exe, "bench".into(), "--role".into(), serde_json::to_string(role)?])
}

/// A role's command with the given input; its output is piped to us.
pub fn command(role: &Role, stdin: Stdio) -> Result<Command> {
    let line = command_line(role)?;
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(stdin).stdout(Stdio::piped());
    Ok(command)
}

/// Starts a role with pipes at both ends.
pub fn spawn(role: &Role) -> Result<Child> {
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

fn report(result: &impl Serialize) -> Result<()> {
    say::json(result)
}

fn echo(cpu: usize, relays: u8) -> Result<()> {
    machine::pin(cpu);
    let next = match relays {
        0 => None,
        _ => Some(spawn(&Role::Echo { cpu, relays: relays - 1 })?),
    };
    // Raw descriptors: the buffers of the standard library would only stand in the way.
    let (mut input, mut output) = (std::io::stdin().lock(), stdout_raw()?);
    let mut byte = [0];
    let mut next = match next {
        Some(mut child) => Some((
            child.stdin.take().context("no input")?,
            child.stdout.take().context("no output")?,
        )),
        None => None,
    };
    while input.read(&mut byte)? == 1 {
        if let Some((to, from)) = &mut next {
            to.write_all(&byte)?;
            from.read_exact(&mut byte)?;
        }
        output.write_all(&byte)?;
    }
    Ok(())
}

/// Standard output without a buffer in front of it.
fn stdout_raw() -> Result<std::fs::File> {
    Ok(std::fs::File::from(rustix::io::dup(rustix::stdio::stdout())?))
}

/// The median round trip through an echo process in microseconds.
pub fn ping(echo: &mut Child, cpu: usize, time: Duration) -> Result<f64> {
    let mut to = echo.stdin.take().context("no input")?;
    let mut from = echo.stdout.take().context("no output")?;
    let run = move || -> Result<f64> {
        machine::pin(cpu);
        let mut trips = Vec::new();
        let begin = Instant::now();
        let mut byte = [7];
        while begin.elapsed() < time {
            let start = Instant::now();
            to.write_all(&byte)?;
            from.read_exact(&mut byte)?;
            trips.push(nanoseconds(start.elapsed()));
        }
        median_us(&mut trips)
    };
    std::thread::spawn(run).join().expect("the pinger does not panic")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_role_goes_through_a_command_line() {
        let line = command_line(&Role::Echo { cpu: 1, relays: 2 }).unwrap();
        assert_eq!(line[1..3], ["bench", "--role"]);
        let back: Role = serde_json::from_str(&line[3]).unwrap();
        assert!(matches!(back, Role::Echo { cpu: 1, relays: 2 }));
    }
}
