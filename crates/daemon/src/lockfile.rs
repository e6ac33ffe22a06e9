//! A file that one daemon holds: the kernel releases it with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

/// Why a lock cannot be had.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process has it: " (process N)", if the file says so.
    #[error("another daemon{0} has it")]
    Held(String),
    /// The system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes the lock until the file is dropped, and notes in it who has it.
pub fn take(path: &Path) -> Result<File, LockError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => {
            let mut pid = String::new();
            // Who it is, is a courtesy; also where the disk is full.
            let _ = file.read_to_string(&mut pid);
            let number: Option<u32> = pid.trim().parse().ok();
            return Err(LockError::Held(
                number.map_or(String::new(), |pid| format!(" (process {pid})")),
            ));
        }
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let _ = note_owner(&mut file);
    Ok(file)
}

fn note_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}
