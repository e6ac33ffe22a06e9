//! Removes the socket's file when the process has ended, however that came about.
//!
//! ```text
//!   uvala-device ──── pipe ───► uvala-device --remove PATH DEVICE INODE
//!        confined               waits for the end of the pipe, then removes the file
//! ```
//!
//! The file lies in a directory with others, such as the daemon's socket. A confined process has no
//! right to change that directory, so another one that reads nothing of a guest does.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The first word of the process's command line.
const WORD: &str = "--remove";

/// The device and inode of a file.
pub type File = (u64, u64);

/// Starts the process. It removes the file at `path`, if it is still this one, when the pipe is
/// closed.
pub fn start(path: &Path, (device, inode): File) -> io::Result<ChildStdin> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORD).arg(path).args([device.to_string(), inode.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // Not to be told of a terminal's signals.
    let child = command.process_group(0).spawn()?;
    child.stdin.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

/// Whether this is that process; if so, it has done its work.
pub fn is_done() -> bool {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [word, path, device, inode] = &words[..] else { return false };
    if word != WORD {
        return false;
    }
    let number = |word: &OsString| word.to_str().and_then(|word| word.parse().ok());
    if let (Some(device), Some(inode)) = (number(device), number(inode)) {
        wait();
        remove(Path::new(path), (device, inode));
    }
    true
}

/// Waits for the end of the pipe. A service manager signals all processes at once.
fn wait() {
    let signals = UnixStream::pair().inspect(|(_, write)| {
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let copy = write.try_clone();
            let _ = copy.and_then(|it| signal_hook::low_level::pipe::register(signal, it));
        }
    });
    let _ = io::stdin().read_to_end(&mut Vec::new());
    drop(signals);
}

fn remove(path: &Path, file: File) {
    let found = std::fs::symlink_metadata(path);
    if found.is_ok_and(|found| (found.dev(), found.ino()) == file) {
        let _ = std::fs::remove_file(path);
    }
}
