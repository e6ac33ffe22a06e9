//! This program among processes: its own file, the end of the process that started it, and
//! questions to other programs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal,
};

/// Time for a program that only says something about itself, also on a machine that has much else
/// to do.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// This program's file, to start it again.
pub fn exe() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// Runs a program that says something about itself, less than a pipe holds, and ends.
///
/// # Errors
/// The program cannot be started, or does not end within ten seconds ([`io::ErrorKind::TimedOut`]).
pub fn ask(program: &mut Command) -> io::Result<Output> {
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut ended, Some(&PATIENCE)))? == 0 {
        child.kill()?;
        child.wait()?;
        let why = format!("no answer within {} s", PATIENCE.tv_sec);
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    child.wait_with_output()
}

/// A command for a program that ends when this process does: ourselves, as `uvala vm exec`.
pub fn dependent(program: &Path) -> Result<Command> {
    let mut command = Command::new(exe()?);
    command.args(["vm", "exec", &std::process::id().to_string()]).arg(program);
    Ok(command)
}

/// The kernel sends this process a signal when its parent ends, also if it becomes another program.
pub fn end_with(parent: i32, signal: Signal) -> Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    // It may have ended before that.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(now == Some(parent), "the process that started this one is gone");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_asked_and_one_that_does_not_answer_is_ended() {
        let mut echo = Command::new("sh");
        let said = ask(echo.args(["-c", "echo out; echo error >&2; exit 3"])).unwrap();
        assert_eq!((said.stdout, said.stderr), (b"out\n".to_vec(), b"error\n".to_vec()));
        assert_eq!(said.status.code(), Some(3));
        let error = ask(Command::new("sleep").arg("1000")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(ask(&mut Command::new("/no/such/program")).is_err());
    }
}
