//! Threads that build ports, so that no client waits for the memory of another.
//!
//! Each user has a few threads while something of theirs is built, and what they ask for beyond
//! that waits in line: users delay themselves and no others. A thread that has finished waits for
//! more, until another one has finished: a program that opens one port after the other makes no
//! thread for each, and no filter of system calls for each thread.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::model::keys::ConnKey;
use crate::model::opening::Build;

/// What is being built, by user.
pub struct Builders {
    /// Users that wait for a port.
    users: HashMap<u32, Line>,
    /// The thread that finished last, if it has nothing to build.
    idle: Option<Sender<Task>>,
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

/// Something to build, for a user that waits at a connection.
struct Task {
    uid: u32,
    conn: ConnKey,
    build: Build,
}

struct Built {
    uid: u32,
    conn: ConnKey,
    result: io::Result<()>,
    /// Where the thread waits for more; without this sender it ends.
    thread: Option<Sender<Task>>,
}

impl Builders {
    /// Nothing to do yet.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (report, finished) = channel();
        let (users, ringer) = (HashMap::new(), Arc::new(ringer));
        Ok(Self { users, idle: None, finished, report, bell, ringer })
    }

    /// Builds something for a user that waits at a connection.
    pub fn start(&mut self, uid: u32, conn: ConnKey, build: Build) {
        let line = self.users.entry(uid).or_default();
        if line.threads == THREADS {
            line.waiting.push_back((conn, build));
        } else {
            line.threads += 1;
            self.run(Task { uid, conn, build });
        }
    }

    /// What was finished since the last time.
    pub fn finished(&mut self) -> Vec<(ConnKey, io::Result<()>)> {
        // Whatever it says, the list is looked at.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        let finished: Vec<Built> = self.finished.try_iter().collect();
        finished.into_iter().map(|built| self.take(built)).collect()
    }

    /// Has the thread of a finished task build the next one, or wait.
    fn take(&mut self, built: Built) -> (ConnKey, io::Result<()>) {
        let Built { uid, conn, result, thread } = built;
        self.idle = thread.or(self.idle.take());
        let line = self.users.get_mut(&uid).expect("a user has a line while something is built");
        if let Some((conn, build)) = line.waiting.pop_front() {
            self.run(Task { uid, conn, build });
        } else {
            line.threads -= 1;
            if line.threads == 0 {
                self.users.remove(&uid);
            }
        }
        (conn, result)
    }

    /// Builds something in the thread that is idle, or in a new one.
    fn run(&mut self, task: Task) {
        let unsent = match self.idle.take() {
            Some(idle) => idle.send(task),
            None => Err(SendError(task)),
        };
        let Err(SendError(task)) = unsent else { return };
        let (uid, conn) = (task.uid, task.conn);
        let (report, ringer) = (self.report.clone(), self.ringer.clone());
        let body = move || build_all(task, &report, &ringer);
        let thread = std::thread::Builder::new().name("builder".to_owned()).spawn(body);
        if let Err(error) = thread {
            let built = Built { uid, conn, result: Err(error), thread: None };
            send(&self.report, &self.ringer, built);
        }
    }
}

/// Builds one thing after the other, until there is no more for this thread.
fn build_all(first: Task, report: &Sender<Built>, ringer: &OwnedFd) {
    confine::narrow(confine::Thread::Opener);
    let mut next = Some(first);
    while let Some(Task { uid, conn, build }) = next {
        let result = build();
        let (thread, tasks) = channel();
        send(report, ringer, Built { uid, conn, result, thread: Some(thread) });
        next = tasks.recv().ok();
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
    fn test_one_thread_builds_what_comes_one_after_the_other() {
        let mut builders = Builders::new().unwrap();
        let (told, threads) = channel();
        for conn in 0..3 {
            let told = told.clone();
            let build = move || told.send(std::thread::current().id()).map_err(io::Error::other);
            builders.start(1, ConnKey(conn), Box::new(build));
            assert_eq!(next(&mut builders), [conn]);
        }
        let threads: Vec<_> = threads.try_iter().collect();
        assert_eq!(threads, [threads[0]; 3]);
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
