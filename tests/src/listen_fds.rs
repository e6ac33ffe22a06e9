//! The descriptors with which a service manager starts a daemon, and what it wants of it.

#![allow(unsafe_code)] // UNSAFETY: descriptors get numbers.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use harness::service::{NOTIFY, WATCHDOG, passed};
use rustix::io::fcntl_dupfd_cloexec;

/// The first number, and one above all that this process was started with.
const FIRST: i32 = 3;
const ABOVE: i32 = 500;

/// Makes `command`, which this process becomes, a service of the manager in `dir`.
pub fn prepare(command: &mut Command, dir: &Path) {
    command
        .env("NOTIFY_SOCKET", dir.join(NOTIFY))
        .env("WATCHDOG_PID", std::process::id().to_string())
        .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    let all = passed(dir);
    let above = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, ABOVE).expect("a number");
    let (names, fds): (Vec<_>, Vec<_>) =
        all.iter().map(|(name, fd)| (name.as_str(), above(fd))).unzip();
    for (number, fd) in (FIRST..).zip(&fds) {
        // SAFETY: this process executes another program next, and uses nothing of these numbers.
        assert!(unsafe { libc::dup2(fd.as_raw_fd(), number) } >= 0, "{number}");
    }
    if !fds.is_empty() {
        command
            .env("LISTEN_PID", std::process::id().to_string())
            .env("LISTEN_FDS", fds.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
    }
    // What was duplicated is closed by exec, or in use under its number.
    std::mem::forget((all, fds));
}
