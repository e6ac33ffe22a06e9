//! A conversation with a program: commands on its input, lines on its output.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Killed;

/// A running program; ended when dropped.
pub struct Console {
    name: String,
    input: ChildStdin,
    lines: Receiver<String>,
    _process: Killed,
}

impl Console {
    /// Starts it; `name` is what complaints call it.
    pub fn start(name: &str, command: &mut Command) -> Result<Console> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Killed(command.spawn().with_context(|| format!("cannot run {name}"))?);
        let input = process.0.stdin.take().with_context(|| format!("{name} has no input"))?;
        let output = process.0.stdout.take().with_context(|| format!("{name} has no output"))?;
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The listener is gone: the program is about to be ended.
                let _ = to.send(line);
            }
        });
        Ok(Console { name: name.into(), input, lines, _process: process })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives a command.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.input, "{command}").with_context(|| format!("{} ended", self.name))
    }

    /// Waits for a line that contains `text`.
    pub fn expect(&mut self, text: &str, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        let mut last = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(line) => last = line,
                Err(RecvTimeoutError::Timeout) => bail!("{} is silent", self.name),
                Err(RecvTimeoutError::Disconnected) => bail!("{} ended: {last}", self.name),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_lines_are_heard_until_the_program_ends() {
        let mut cat = Console::start("cat", &mut Command::new("cat")).unwrap();
        cat.tell("one").unwrap();
        cat.tell("and two").unwrap();
        let patience = Duration::from_secs(60);
        assert_eq!(cat.expect("two", patience).unwrap(), "and two");
        let mut brief = Command::new("echo");
        let mut brief = Console::start("echo", brief.arg("no room")).unwrap();
        let error = brief.expect("well", patience).unwrap_err();
        assert_eq!(error.to_string(), "echo ended: no room");
    }
}
