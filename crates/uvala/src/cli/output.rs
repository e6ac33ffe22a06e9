//! What a listing looks like: a table or JSON, once or again and again.

use std::io;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::say;

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
        value_parser = clap::value_parser!(u64).range(1..)
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
        if self.json { say::json(value) } else { say::out(table(value)) }
    }

    /// Says that a change is made: nothing for people, an object for programs.
    pub fn done(self) -> anyhow::Result<()> {
        if self.json { say::out("{\"done\":true}\n") } else { Ok(()) }
    }
}

impl Watch {
    /// Prints once, or again and again; true from the second time on.
    pub fn repeat(self, mut print: impl FnMut(bool) -> anyhow::Result<()>) -> anyhow::Result<()> {
        print(false)?;
        let Some(seconds) = self.watch else { return Ok(()) };
        loop {
            std::thread::sleep(Duration::from_secs(seconds));
            if rustix::termios::isatty(io::stdout()) {
                say::out(CLEAR)?;
            }
            print(true)?;
        }
    }

    /// Whether there is a second time.
    pub fn is_on(self) -> bool {
        self.watch.is_some()
    }
}

/// Cursor to the corner, everything below it away: the screen does not flicker.
const CLEAR: &str = "\x1b[H\x1b[J";
