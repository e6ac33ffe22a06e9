//! Daemons in the background: the program that starts one waits until it answers.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::control::{Connection, ControlError};
use protocol::{exit, paths};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use terminal::process::ends;
use terminal::say;

use super::replace;

/// How long a daemon may take to listen. What it kept before it may load as long as it wants.
const PATIENCE: Duration = Duration::from_secs(20);
/// The log of a daemon in the background, beside its socket.
const LOG_NAME: &str = "uvala.log";
/// Starts what it is told as a process that becomes a child of the service manager, and says its
/// number.
const AS_SERVICE: &str = "\"$@\" >/dev/null & echo $!";

/// Starts a daemon, which logs to a file.
pub fn start(
    mut command: Command,
    log: Option<PathBuf>,
    replaces: bool,
    dir: &Path,
) -> anyhow::Result<()> {
    let usual = || {
        command.arg("--log-file").arg(dir.join(LOG_NAME));
        dir.join(LOG_NAME)
    };
    let log = log.unwrap_or_else(usual);
    // A group of its own: Ctrl-C at the terminal is not for it.
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let daemon = Started::Child(command.spawn().context("cannot start the daemon")?);
    let (socket, id) = (dir.join(paths::SOCKET_NAME), daemon.id());
    let why = || format!("the daemon did not start; its log is {}", log.display());
    daemon.await_answer(&socket, replaces).with_context(why)?;
    let (socket, log) = (socket.display(), log.display());
    say::out(format_args!("process {id} at {socket}, log in {log}\n"))
}

/// Starts a daemon that replaces that of the service which this process is part of. It logs as the
/// service does.
pub fn start_as_service(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let daemon = Started::as_service(command).context("cannot start the daemon")?;
    daemon.await_answer(&dir.join(paths::SOCKET_NAME), true)
}

/// A process that becomes a daemon.
enum Started {
    Child(Child),
    /// A number and a descriptor. systemd takes a process for the service's that is its child:
    /// where it is another's, it does not wait for its end.
    OfService(Pid, OwnedFd),
}

impl Started {
    fn as_service(command: &Command) -> anyhow::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", AS_SERVICE, "sh"]).arg(command.get_program()).args(command.get_args());
        let said = shell.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let number = String::from_utf8_lossy(&said.stdout).trim().parse().ok();
        let pid = number.and_then(Pid::from_raw).context("/bin/sh started no process")?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Self::OfService(pid, process)),
            // The daemon has ended, and has said why.
            Err(Errno::SRCH) => std::process::exit(exit::FAILURE.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn id(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::OfService(pid, _) => pid.as_raw_nonzero().get().unsigned_abs(),
        }
    }

    /// The exit status, if it has ended.
    fn ended(&mut self) -> anyhow::Result<Option<i32>> {
        let failure = i32::from(exit::FAILURE);
        Ok(match self {
            Self::Child(child) => child.try_wait()?.map(|status| status.code().unwrap_or(failure)),
            // The kernel tells the status to systemd alone.
            Self::OfService(_, process) => ends(process, Duration::ZERO)?.then_some(failure),
        })
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Child(child) => child.kill()?,
            Self::OfService(_, process) => pidfd_send_signal(process, Signal::KILL)?,
        }
        Ok(())
    }

    /// Waits until it answers. If it ends before, so does this process: the daemon has said why.
    fn await_answer(mut self, socket: &Path, replaces: bool) -> anyhow::Result<()> {
        // The daemon to be replaced may take longer to end.
        let patience = if replaces { PATIENCE + replace::LIMIT } else { PATIENCE };
        let mut deadline = Instant::now() + patience;
        loop {
            match Connection::connect(socket).and_then(|connection| connection.hello("uvala")) {
                Ok(info) if info.pid == self.id() => return Ok(()),
                // The new daemon listens, and is at work; or the one that it replaces does. If that
                // one hangs, the new one gives up by itself.
                Ok(_) | Err(ControlError::Timeout(_)) => deadline = Instant::now() + patience,
                _ => {}
            }
            if let Some(status) = self.ended()? {
                std::process::exit(status);
            }
            if Instant::now() > deadline {
                self.kill()?;
                bail!("no answer within {} s", patience.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
