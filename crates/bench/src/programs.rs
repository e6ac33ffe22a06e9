//! Other programs: where they are, how they are awaited and ended.

pub mod console;
pub mod dpdk;
pub mod ip;
pub mod ovs;
pub mod tap;
pub mod testpmd;
pub mod vhost;

use std::os::unix::fs::DirBuilderExt;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where a program is, or how to get it.
pub fn find(program: &str, packages: &str) -> Result<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Administrators' programs are not on every user's path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into));
    let mut files = places.map(|dir| dir.join(program));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("{program} not found: apt install {packages}"))
}

/// Waits for a socket that another program is about to make.
pub fn await_file(path: &str) -> Result<()> {
    let begin = Instant::now();
    while !std::path::Path::new(path).exists() {
        if begin.elapsed() > Duration::from_secs(5) {
            bail!("{path} did not appear");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A directory for sockets, gone when dropped. Its path is short, as socket paths must be.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    /// Makes one.
    pub fn new(name: &str) -> Result<Scratch> {
        let dir = std::env::temp_dir().join(format!("uvala-bench-{name}-{}", std::process::id()));
        // Ours alone: a daemon rightly refuses a directory that others may write.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Scratch(dir))
    }

    /// The directory.
    pub fn dir(&self) -> &std::path::Path {
        &self.0
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a process says something, or its output ends. False: the time is over.
pub fn await_output(output: &std::process::ChildStdout, time: Duration) -> Result<bool> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let limit = Timespec { tv_sec: seconds, tv_nsec: i64::from(time.subsec_nanos()) };
    Ok(poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&limit))? != 0)
}

/// A process that ends when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_find_missing_program_says_what_to_install() {
        let error = find("no-such-program-here", "some-package").unwrap_err();
        assert_eq!(error.to_string(), "no-such-program-here not found: apt install some-package");
        assert!(find("sh", "dash").is_ok());
    }

    #[test]
    fn test_scratch_goes_away() {
        let scratch = Scratch::new("test").unwrap();
        let dir = scratch.0.clone();
        std::fs::write(scratch.path("x"), "x").unwrap();
        drop(scratch);
        assert!(!dir.exists());
    }
}
