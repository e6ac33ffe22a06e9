//! Removes the file of a program's socket, or a directory, when the process has ended, however that
//! came about.
//!
//! ```text
//!   uvala-device ──── pipe ───► uvala-device --remove PATH DEVICE INODE
//!        confined               waits for the end of the pipe, then removes the file
//! ```
//!
//! The file lies in a directory with others, such as the daemon's socket. A confined process has no
//! right to change that directory, so another one that reads nothing of guests and callers does. It
//! is the same program, of which `main` asks [`is_done`] first.

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

/// Starts the process for the file that is at `path` now.
///
/// # Errors
/// There is none, or the process cannot be started.
pub fn start_for(path: &Path) -> io::Result<ChildStdin> {
    start(path, identity(path)?)
}

/// Starts the process. It removes the file at `path`, if it is still this one, when the pipe is
/// closed.
///
/// # Errors
/// The process cannot be started.
pub fn start(path: &Path, (device, inode): File) -> io::Result<ChildStdin> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORD).arg(path).args([device.to_string(), inode.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // Not to be told of a terminal's signals.
    let child = command.process_group(0).spawn()?;
    child.stdin.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

/// Whether this is that process; if so, it has done its work.
#[must_use]
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
    if identity(path).is_ok_and(|found| found == file) {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    }
}

fn identity(path: &Path) -> io::Result<File> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_was_there_at_the_start_is_removed() {
        let name = |kind: &str| format!("uvala-remover-{kind}-{}", std::process::id());
        let [path, other] = ["own", "other"].map(|kind| std::env::temp_dir().join(name(kind)));
        std::fs::write(&path, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let file = identity(&path).unwrap();
        remove(&other, file);
        assert!(other.exists());
        remove(&path, file);
        assert!(!path.exists());
        std::fs::remove_file(&other).unwrap();
    }

    #[test]
    fn a_directory_goes_with_what_is_in_it() {
        let name = format!("uvala-remover-directory-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        remove(&dir, identity(&dir).unwrap());
        assert!(!dir.exists());
    }
}
