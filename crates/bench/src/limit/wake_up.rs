//! Processes on one core that wake each other through pipes: there and back again.

use std::io::{Read, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::role::{self, Role, median_us, nanoseconds};

/// A process that returns every byte of its input, through as many further processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Echo {
    /// The CPU of all of them.
    cpu: usize,
    /// How many processes stand between this one and the one that turns around.
    relays: u8,
}

impl Role for Echo {
    const NAME: &'static str = "echo";

    fn run(self) -> Result<()> {
        echo(self.cpu, self.relays)
    }
}

/// The median round trip with this many wake-ups, in microseconds.
pub fn micros(wake_ups: u8, time: Duration) -> Result<f64> {
    assert!(wake_ups >= 2 && wake_ups.is_multiple_of(2), "there and back");
    let relays = wake_ups / 2 - 1;
    let mut echo = role::spawn(&Echo { cpu: 0, relays })?;
    let result = ping(&mut echo, 0, time);
    role::finish(echo)?;
    result
}

fn echo(cpu: usize, relays: u8) -> Result<()> {
    machine::pin(cpu);
    let next = match relays {
        0 => None,
        _ => Some(role::spawn(&Echo { cpu, relays: relays - 1 })?),
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
fn ping(echo: &mut Child, cpu: usize, time: Duration) -> Result<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_role_goes_through_a_command_line() {
        let echo = Echo { cpu: 1, relays: 2 };
        let line = role::command_line(&echo).unwrap();
        assert_eq!(line[1..3], ["bench", "--role"]);
        let back: serde_json::Value = serde_json::from_str(&line[3]).unwrap();
        assert_eq!(serde_json::from_value::<Echo>(back["echo"].clone()).unwrap(), echo);
    }
}
