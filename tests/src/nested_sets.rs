//! A process that holds the kernel's lock of epoll sets that are put into another one.
//!
//! ```text
//!   a thread   has the lock of a set, in a call that writes into memory that never comes
//!   another    puts that set into another one: it has the lock of all, and waits for the set's
//! ```

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use client::Error;
use harness::role::{NestedSets, Report};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// By then what sleeps in the kernel sleeps.
const SEEN: Duration = Duration::from_millis(300);

/// Takes the lock, and keeps it until stdin ends, or its time is over.
pub fn run(attack: &NestedSets) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    super::end_after(attack.seconds);
    let (locked, ready) = (set(), eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors"));
    put(&ready, &locked);
    super::wake_ups::wait_into_slow_memory(locked.try_clone().expect("descriptors"));
    std::thread::sleep(SEEN);
    std::thread::spawn(move || put(&locked, &set()));
    std::thread::sleep(SEEN);
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        put(&set(), &set());
        let _ = done.send(());
    });
    if is_done.recv_timeout(SEEN).is_ok() {
        return Ok(Report::Missing("a kernel with one lock for all nested epoll sets".to_owned()));
    }
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The threads end with the process, and then the lock is free.
    std::process::exit(0)
}

fn set() -> OwnedFd {
    epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors")
}

fn put(file: &OwnedFd, set: &OwnedFd) {
    epoll::add(set, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("memory");
}
