//! Nothing is left of a machine whose `uvala vm run` is killed, or whose terminal is gone: neither
//! its QEMU nor its port, nor the directory of its card's socket.
//!
//! ```text
//!   uvala vm run ──────► QEMU            ended by the kernel, when its parent ends
//!        │   └── pipe ─► uvala --remove  removes the directory when the pipe closes
//!        │ a connection, which closes when it ends, however that comes about
//!        ▼
//!   uvala daemon         the port goes with the connection that added it
//! ```
//!
//! The kernel tells the processes of a terminal's session that the terminal hung up. `su` begins
//! another session, so a thread looks at the terminal itself.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use anyhow::{Context, Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use terminal::process;

/// From now on a machine ends when the terminal on stdin hangs up.
pub fn end_with_terminal(machine: &Child) -> Result<()> {
    let machine = pidfd_open(Pid::from_child(machine), PidfdFlags::empty())
        .context("cannot watch the machine")?;
    let watch = move || {
        let terminal = rustix::stdio::stdin();
        let mut hung_up = [PollFd::new(&terminal, PollFlags::empty())];
        while poll(&mut hung_up, None) == Err(Errno::INTR) {}
        // Not SIGHUP, which a program under nohup ignores. The machine may have ended.
        let _ = pidfd_send_signal(&machine, Signal::TERM);
    };
    let thread = std::thread::Builder::new().name("terminal".to_owned());
    thread.spawn(watch).context("no thread to watch the terminal")?;
    Ok(())
}

/// Becomes that program.
pub fn exec(parent: i32, command: &[OsString]) -> Error {
    let [program, args @ ..] = command else { return Error::msg("no program to run") };
    // It restores the terminal, and ends.
    if let Err(error) = process::end_with(parent, Signal::TERM) {
        return error;
    }
    let error = Command::new(program).args(args).exec();
    Error::new(error).context(format!("cannot run {}", program.display()))
}
