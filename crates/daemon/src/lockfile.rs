//! A lock file that one daemon holds. The kernel releases the lock when the process ends, in
//! whatever way. A killed process may have to unmap gigabytes of guest memory first; [`take`] waits
//! for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

/// How long [`take`] waits: a killed process is not seen to end at once.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long it waits for a process that is ending.
const PATIENCE_DYING: Duration = Duration::from_secs(5);
/// Time between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// Why the daemon cannot take a lock.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it: " (process N)", if the file has its number.
    #[error("another daemon{0} has it")]
    Held(String),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes the lock until the file is dropped, and writes the process's number into it. Waits for a
/// holder that is ending.
pub fn take(path: &Path) -> Result<File, LockError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let holder = holder(&mut file);
        let patience = if holder.is_some_and(is_dying) { PATIENCE_DYING } else { PATIENCE };
        if start.elapsed() >= patience {
            let who = holder.map_or(String::new(), |pid| format!(" (process {pid})"));
            return Err(LockError::Held(who));
        }
        std::thread::sleep(RETRY);
    }
    let _ = note_owner(&mut file);
    Ok(file)
}

/// Whether no process holds the lock.
#[must_use]
pub fn is_free(path: &Path) -> bool {
    let lock = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    lock.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Process that holds the lock, if its number is in the file. On a full disk it is not.
fn holder(file: &mut File) -> Option<u32> {
    let mut pid = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut pid)).ok()?;
    pid.trim().parse().ok()
}

/// Whether the process is ending or has ended: the kernel takes back what it held.
fn is_dying(pid: u32) -> bool {
    const EXITING: u32 = 4;
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // Behind its name, which may hold anything: state, four numbers, a terminal, flags.
        Ok(stat) => stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u32>().ok())
            .is_some_and(|flags| flags & EXITING != 0),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn note_owner(file: &mut File) -> io::Result<()> {
    let text = format!("{}\n", std::process::id());
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    // A disk takes its time to cut a file, and most numbers are as long as the last one.
    match file.metadata()?.len() > text.len() as u64 {
        true => file.set_len(text.len() as u64),
        false => Ok(()),
    }
}

/// Until a child has begun, it has every descriptor of its parent: what another test closes
/// meanwhile is not closed. Held while a process is started, and by tests that this matters to.
#[cfg(test)]
pub(crate) static CHILD: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_holder_that_ends_is_waited_for_and_another_is_named() {
        let path = std::env::temp_dir().join(format!("uvala-lock-{}", std::process::id()));
        let held = take(&path).unwrap();
        let LockError::Held(who) = take(&path).unwrap_err() else { panic!("it is held") };
        assert_eq!(who, format!(" (process {})", std::process::id()));
        // As if it had died, and had not given it back yet.
        let begins = CHILD.lock().unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        drop(begins);
        while !is_dying(dead.id()) {
            std::thread::sleep(RETRY);
        }
        std::fs::write(&path, format!("{}\n", dead.id())).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(3 * PATIENCE);
            drop(held);
        });
        drop(take(&path).unwrap());
        ends.join().unwrap();
        dead.wait().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn test_a_lock_is_free_when_its_holder_has_left_it_and_has_the_number_of_the_next() {
        let path = std::env::temp_dir().join(format!("uvala-free-{}", std::process::id()));
        assert!(!is_free(&path), "there is none");
        std::fs::write(&path, "1234567890\nmore").unwrap();
        let held = take(&path).unwrap();
        assert!(!is_free(&path));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(held);
        assert!(is_free(&path));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn test_who_runs_does_not_die() {
        assert!(!is_dying(std::process::id()));
    }
}
