//! A process without descriptors, and frontends that want one. Alone in its process.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use port::machine::quota::{Limits, Quota};
use port::machine::{Access, Spec, State};
use port::sys::{SlowCalls, Waker};
use port::vhost_user::open;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What `/proc` says of the thread that speaks the protocol; open, for there are no descriptors.
fn thread() -> File {
    let is_it =
        |dir: &PathBuf| std::fs::read(dir.join("comm")).is_ok_and(|name| name == b"vhost-user\n");
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        // It gives itself its name.
        if let Some(dir) = tasks.map(|task| task.path()).find(is_it) {
            return File::open(dir.join("stat")).unwrap();
        }
    }
}

/// A thread that is asleep whenever it is observed does not poll.
fn assert_rests(thread: &File) {
    const LOOKS: u32 = 50;
    let (start, mut asleep) = (Instant::now(), 0);
    while asleep < LOOKS {
        let mut stat = [0; 64];
        thread.read_at(&mut stat, 0).unwrap();
        let stat = String::from_utf8_lossy(&stat).into_owned();
        assert!(start.elapsed() < Duration::from_secs(10), "{stat}");
        std::thread::sleep(Duration::from_millis(1));
        asleep = if stat.contains(") S ") { asleep + 1 } else { 0 };
    }
}

fn set_limit(current: Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

#[test]
fn a_frontend_that_cannot_be_accepted_costs_no_processor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.sock");
    let (_wake, bell) = Waker::of_daemon().unwrap();
    let (name, access) = ("vale0:vm".to_owned(), Access::default());
    let (path2, peer) = (path.clone(), None);
    let quota = Quota::new(0, Limits::NONE);
    let (connects, pairs, coalesce) = (false, 1, None);
    let spec = Spec { name, path: path2, connects, pairs, coalesce, peer, access, quota };
    let (adapter, port) = open(&spec, SlowCalls::unreported(), &Arc::new(bell)).unwrap();
    let thread = thread();
    // What it opens and closes as it begins is over.
    assert_rests(&thread);
    let frontend = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let [first, second]: [OwnedFd; 2] = [frontend(), frontend()];
    let address = SocketAddrUnix::new(&path).unwrap();
    let usual = getrlimit(Resource::Nofile).current;
    let lowest_free = second.try_clone().unwrap().as_raw_fd();
    set_limit(Some(lowest_free.try_into().unwrap()));
    connect(&first, &address).unwrap();
    assert_rests(&thread);
    assert_eq!(port.status().state(), State::Waiting);
    set_limit(usual);
    let start = Instant::now();
    while port.status().state() != State::Connected {
        assert!(start.elapsed() < Duration::from_secs(10), "it is accepted later");
        std::thread::sleep(Duration::from_millis(10));
    }
    let lowest_free = second.try_clone().unwrap().as_raw_fd();
    set_limit(Some(lowest_free.try_into().unwrap()));
    connect(&second, &address).unwrap();
    assert_rests(&thread);
    set_limit(usual);
    assert_eq!(rustix::io::read(&second, &mut [0; 1]).unwrap_or(0), 0, "turned away");
    drop((adapter, port));
}
