//! This program among processes: its own file, and the end of the process that started it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// This program's file, to start it again.
pub fn exe() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// The kernel sends this process a signal when its parent ends, also if it becomes another program.
pub fn end_with(parent: i32, signal: Signal) -> Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    // It may have ended before that.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(now == Some(parent), "the process that started this one is gone");
    Ok(())
}
