//! Threads that build ports, so that no client waits for the memory of another.
//!
//! Each user has a few threads while something of theirs is built, and what they ask for beyond
//! that waits in line: users delay themselves and no others.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::model::keys::ConnKey;
use crate::model::opening::Build;

/// What is being built, by user.
pub struct Builders {
    /// Users that wait for a port.
    users: HashMap<u32, Line>,
    finished: Receiver<Built>,
    report: Sender<Built>,
    /// Readable when something is finished.
    bell: OwnedFd,
    ringer: Arc<OwnedFd>,
}

#[derive(Default)]
struct Line {
    threads: usize,
    waiting: VecDeque<(ConnKey, Build)>,
}

struct Built {
    uid: u32,
    conn: ConnKey,
    result: io::Result<()>,
}

impl Builders {
    /// Nothing to do yet.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (report, finished) = channel();
        Ok(Self { users: HashMap::new(), finished, report, bell, ringer: Arc::new(ringer) })
    }

    /// Builds something for a user that waits at a connection.
    pub fn start(&mut self, uid: u32, conn: ConnKey, build: Build) {
        let line = self.users.entry(uid).or_default();
        if line.threads == THREADS {
            line.waiting.push_back((conn, build));
        } else {
            line.threads += 1;
            self.spawn(uid, conn, build);
        }
    }

    /// What was finished since the last time.
    pub fn finished(&mut self) -> Vec<(ConnKey, io::Result<()>)> {
        // Whatever it says, the list is looked at.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        let finished: Vec<Built> = self.finished.try_iter().collect();
        for Built { uid, .. } in &finished {
            let line = self.users.get_mut(uid).expect("a user has a line while something is built");
            if let Some((conn, build)) = line.waiting.pop_front() {
                self.spawn(*uid, conn, build);
                continue;
            }
            line.threads -= 1;
            if line.threads == 0 {
                self.users.remove(uid);
            }
        }
        finished.into_iter().map(|built| (built.conn, built.result)).collect()
    }

    fn spawn(&self, uid: u32, conn: ConnKey, build: Build) {
        let (report, ringer) = (self.report.clone(), self.ringer.clone());
        let body = move || {
            confine::narrow(confine::Thread::Opener);
            send(&report, &ringer, Built { uid, conn, result: build() });
        };
        let thread = std::thread::Builder::new().name("builder".to_owned()).spawn(body);
        if let Err(error) = thread {
            send(&self.report, &self.ringer, Built { uid, conn, result: Err(error) });
        }
    }
}

/// Threads of one user: large ports must not keep small ones waiting.
const THREADS: usize = 4;

fn send(report: &Sender<Built>, ringer: &OwnedFd, built: Built) {
    // Without a receiver no thread waits any more; a full pipe has rung already.
    let _ = report.send(built);
    let _ = rustix::io::write(ringer, b"x");
}

/// Readable when something is finished.
impl AsFd for Builders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl fmt::Debug for Builders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builders").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn next(builders: &mut Builders) -> Vec<u64> {
        poll(&mut [PollFd::new(&*builders, PollFlags::IN)], None).unwrap();
        builders.finished().into_iter().map(|(conn, _)| conn.0).collect()
    }

    #[test]
    fn test_users_wait_for_themselves_and_for_no_others() {
        let mut builders = Builders::new().unwrap();
        let held: Vec<Sender<()>> = (0..4)
            .map(|conn| {
                let (let_go, wait) = channel::<()>();
                let build = move || wait.recv().map_err(io::Error::other);
                builders.start(1, ConnKey(conn), Box::new(build));
                let_go
            })
            .collect();
        builders.start(1, ConnKey(10), Box::new(|| Ok(())));
        builders.start(2, ConnKey(20), Box::new(|| Ok(())));
        assert_eq!(next(&mut builders), [20]);
        held[2].send(()).unwrap();
        assert_eq!(next(&mut builders), [2]);
        assert_eq!(next(&mut builders), [10]);
        drop(held);
        let mut left = 3;
        while left > 0 {
            left -= next(&mut builders).len();
        }
        assert!(builders.users.is_empty());
    }
}
