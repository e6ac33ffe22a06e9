//! What a listing looks like: a table or JSON, once or again and again.

use std::io;
use std::time::{Duration, Instant};

use clap::Args;
use client::control::{Connection, ControlError};
use protocol::parse;
use protocol::{ErrorCode, exit};
use serde::Serialize;

use super::Global;
use terminal::say;
use terminal::table::wrapped;

/// Options of every subcommand that asks or tells the daemon.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Options of listings that change by themselves.
#[derive(Clone, Copy, Debug, Args)]
pub struct Watch {
    /// Print again every SECS seconds, until Ctrl-C
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = parse::positive
    )]
    watch: Option<u64>,
}

impl Output {
    /// Prints a value: as JSON, or as the text that `table` makes of it.
    pub fn print<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json { say::json(value) } else { say::out(fitted(&table(value))) }
    }

    /// Says that a change is made: nothing for people, an object for programs.
    pub fn done(self) -> anyhow::Result<()> {
        if self.json { say::out("{\"done\":true}\n") } else { Ok(()) }
    }
}

impl Watch {
    /// Prints the listing again every N seconds.
    pub fn every(seconds: u64) -> Self {
        Self { watch: Some(seconds) }
    }

    /// Prints once, or again and again; `true` where the same daemon answered before. When it goes
    /// away, waits for it and goes on.
    pub fn repeat(
        self,
        global: &Global,
        mut print: impl FnMut(&Connection, bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut connection = global.connect()?;
        print(&connection, false)?;
        let Some(seconds) = self.watch else { return Ok(()) };
        let (mut again, mut back) = (true, None);
        loop {
            std::thread::sleep(Duration::from_secs(seconds));
            if rustix::termios::isatty(io::stdout()) {
                say::out(CLEAR)?;
            }
            match print(&connection, again) {
                Ok(()) => again = true,
                Err(error) if is_gone(&error) => {
                    connection = wait_for_daemon(global, &error)?;
                    (again, back) = (false, Some(Instant::now()));
                }
                Err(error) if is_to_come(&error, back) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether there is a second time.
    pub fn is_on(self) -> bool {
        self.watch.is_some()
    }
}

/// Lines that are no wider than the terminal: tables are so already.
fn fitted(text: &str) -> String {
    match say::columns() {
        Some(width) => text.lines().map(|line| wrapped(line, width) + "\n").collect(),
        None => text.to_owned(),
    }
}

/// Whether the daemon no longer answers.
pub fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &ControlError| error.exit_code() == exit::NO_DAEMON)
}

/// Whether it may yet come: clients of a daemon that is just back are about to open their ports.
fn is_to_come(error: &anyhow::Error, back: Option<Instant>) -> bool {
    let missing = |error: &ControlError| error.code() == Some(ErrorCode::NotFound);
    back.is_some_and(|back| back.elapsed() < PATIENCE) && error.downcast_ref().is_some_and(missing)
}

fn wait_for_daemon(global: &Global, error: &anyhow::Error) -> anyhow::Result<Connection> {
    say::remark(format!("uvala: {error}; waiting for it"));
    let connection = connect_again(global)?;
    say::remark("uvala: the daemon is back");
    Ok(connection)
}

/// Connects to the daemon as soon as there is one again.
pub fn connect_again(global: &Global) -> Result<Connection, ControlError> {
    loop {
        std::thread::sleep(PAUSE);
        match global.connect_quietly() {
            Err(error) if error.exit_code() == exit::NO_DAEMON => {}
            other => return other,
        }
    }
}

/// Between two attempts to find the daemon.
const PAUSE: Duration = Duration::from_millis(200);
/// How long its clients have to come back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Cursor to the corner, everything below it away: the screen does not flicker.
const CLEAR: &str = "\x1b[H\x1b[J";
