//! What the kernel knows of one of our threads.

// UNSAFETY: clock_gettime of another thread's clock is in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::Pid;

use super::judge::Account;

/// A thread of this process.
#[derive(Debug)]
pub struct ThreadAccount {
    clock: libc::clockid_t,
    /// Kept open: the daemon may have no way to it later. `None`: `/proc` does not show this
    /// process, as in a PID namespace without a `/proc` of its own.
    stat: Option<File>,
}

impl ThreadAccount {
    /// Opens the account of a thread of this process.
    pub fn of(thread: Pid) -> Self {
        let id = thread.as_raw_pid();
        let stat = File::open(format!("/proc/self/task/{id}/stat")).ok();
        Self { clock: cpu_clock(id), stat }
    }

    /// The account now; of a thread that has ended, an empty one.
    pub fn now(&self) -> Account {
        Account { ran: self.ran(), runnable: self.is_runnable() }
    }

    fn ran(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a live time for the kernel to write; a clock that is gone is an error.
        unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
    }

    /// Whether the thread runs or waits for a CPU. Without `/proc`, it counts as runnable, so that
    /// no port is blamed for a busy machine.
    pub fn is_runnable(&self) -> bool {
        let Some(stat) = &self.stat else { return true };
        let mut text = [0; 64];
        let read = stat.read_at(&mut text, 0).unwrap_or(0);
        state(&text[..read]) == Some(b'R')
    }
}

/// The CPU clock of a thread (`MAKE_THREAD_CPUCLOCK` of the kernel).
fn cpu_clock(thread: i32) -> libc::clockid_t {
    const PER_THREAD: i32 = 4;
    const SCHED: i32 = 2;
    !thread << 3 | PER_THREAD | SCHED
}

/// The state in the text of `/proc/PID/stat`: it follows the name, which may hold any character.
fn state(text: &[u8]) -> Option<u8> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    text.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_state_stands_behind_any_name() {
        assert_eq!(state(b"12 (worker0) R 1 2"), Some(b'R'));
        assert_eq!(state(b"12 (a) S (b)) D 1 2"), Some(b'D'));
        assert_eq!([state(b""), state(b"12 (worker0)")], [None; 2]);
    }

    #[test]
    fn a_thread_that_computes_runs() {
        let account = ThreadAccount::of(rustix::thread::gettid());
        let before = account.now();
        let begin = Instant::now();
        while account.now().ran < before.ran + Duration::from_millis(20) {
            assert!(begin.elapsed() < Duration::from_secs(30), "no core for so long");
        }
        assert!(account.now().runnable);
    }

    #[test]
    fn a_thread_that_waits_does_not_run() {
        let (id, ids) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            id.send(rustix::thread::gettid()).expect("the test waits");
            let _ = wait.recv();
        });
        let account = ThreadAccount::of(ids.recv().expect("it starts"));
        let begin = Instant::now();
        while account.now().runnable {
            assert!(begin.elapsed() < Duration::from_secs(30), "it waits for a message");
        }
        drop(done);
        thread.join().expect("no panic");
    }
}
