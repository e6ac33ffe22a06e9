//! This program among processes: its own file, the end of the process that started it, and
//! questions to other programs.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal,
};

/// Time for a program that only says something about itself, also on a machine that has much else
/// to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a program may take to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its answer.
    pub bytes: usize,
    /// Time until it has ended.
    pub time: Duration,
}

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
    if !ends_within(&child, PATIENCE)? {
        child.kill()?;
        child.wait()?;
        return Err(late(PATIENCE));
    }
    child.wait_with_output()
}

/// Runs a program that reads its stdin, answers on stdout, and ends.
///
/// # Errors
/// The program cannot be started, does not end in time ([`io::ErrorKind::TimedOut`]), or says more
/// than it may ([`io::ErrorKind::InvalidData`]).
pub fn converse(
    program: &mut Command,
    input: &[u8],
    limits: Limits,
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let begin = Instant::now();
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = answer(&mut child, input, limits).and_then(|said| {
        let left = limits.time.saturating_sub(begin.elapsed());
        if ends_within(&child, left)? { Ok(said) } else { Err(late(limits.time)) }
    });
    if said.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok((status, said?))
}

/// What a child says while it is told something. It may do both in any order, so each has a thread:
/// these end with the child, or with this process if others have the pipes, too.
fn answer(child: &mut Child, input: &[u8], limits: Limits) -> io::Result<Vec<u8>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_vec();
    // One that does not read what it is told may answer all the same.
    thread::Builder::new().spawn(move || stdin.map(|mut it| it.write_all(&input)))?;
    let (sender, receiver) = channel();
    let most = u64::try_from(limits.bytes).unwrap_or(u64::MAX);
    thread::Builder::new().spawn(move || {
        let mut said = Vec::new();
        let read = stdout.map(|it| it.take(most.saturating_add(1)).read_to_end(&mut said));
        // The answer may come too late.
        let _ = sender.send(read.transpose().map(|_| said));
    })?;
    let said = receiver.recv_timeout(limits.time).map_err(|_| late(limits.time))??;
    if said.len() > limits.bytes {
        let why = format!("it answers with more than {} bytes", limits.bytes);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(said)
}

/// Whether a child ends within this time.
fn ends_within(child: &Child, time: Duration) -> io::Result<bool> {
    ends(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?, time)
}

/// Whether a process ends within this time. It is that of a pidfd.
///
/// # Errors
/// No memory left.
pub fn ends(process: impl AsFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut ended, Some(&time)))? > 0)
}

fn late(time: Duration) -> io::Error {
    let why = format!("no answer within {} s", time.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, why)
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

    fn shell(script: &str, input: &[u8], limits: Limits) -> io::Result<(ExitStatus, Vec<u8>)> {
        converse(Command::new("sh").args(["-c", script]), input, limits)
    }

    const LIMITS: Limits = Limits { bytes: 1 << 20, time: Duration::from_secs(60) };

    #[test]
    fn test_a_program_may_answer_before_it_reads_and_not_read_at_all() {
        // More than two pipes hold.
        let input = vec![b'x'; 300_000];
        let (status, said) = shell("head -c 200000 /dev/zero; cat", &input, LIMITS).unwrap();
        assert!(status.success() && said.len() == 500_000 && said.ends_with(b"x"), "{status}");
        let (status, said) = shell("echo no; exit 3", &input, LIMITS).unwrap();
        assert_eq!((status.code(), &said[..]), (Some(3), &b"no\n"[..]));
    }

    #[test]
    fn test_a_program_that_says_too_much_or_does_not_end_is_ended() {
        let error = shell("cat /dev/zero", b"", LIMITS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let limits = Limits { time: Duration::from_millis(50), ..LIMITS };
        for script in ["exec sleep 1000", "echo {}; exec sleep 1000 >&-"] {
            let error = shell(script, b"", limits).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }
}
