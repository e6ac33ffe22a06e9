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
use std::fs::{DirBuilder, remove_dir, remove_dir_all};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command};

use anyhow::{Context, Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use terminal::{process, remover};

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
pub fn exec(parent: i32, program: &Path, args: &[OsString]) -> Error {
    // It restores the terminal, and ends.
    if let Err(error) = process::end_with(parent, Signal::TERM) {
        return error;
    }
    let error = Command::new(program).args(args).exec();
    Error::new(error).context(format!("cannot run {}", program.display()))
}

/// A directory for this user alone. It goes when this is dropped, and with this process, however
/// that ends.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    /// The other end removes the directory when this is closed.
    _remover: ChildStdin,
}

impl PrivateDir {
    /// Makes one in the directory for temporary files.
    pub fn new() -> Result<Self> {
        // Another user that could tell the name would make a directory of that name first.
        let number = RandomState::new().build_hasher().finish() >> 32;
        let path = std::env::temp_dir().join(format!("uvala-{number:08x}"));
        let named = || format!("cannot make directory {}", path.display());
        // One that is there already belongs to another process.
        DirBuilder::new().mode(0o700).create(&path).with_context(named)?;
        match remover::start_for(&path) {
            Ok(_remover) => Ok(Self { path, _remover }),
            Err(error) => {
                // The first error says more.
                let _ = remove_dir(&path);
                Err(error).context("cannot start the process that removes a directory")
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // If it fails, the remover does it.
        let _ = remove_dir_all(&self.path);
    }
}
