//! A client that leaves files and keeps them from being closed: the doorbells of pipes, or a TAP
//! that it has given.
//!
//! The last process to close a file takes it out of all epoll sets that it is in. The client has
//! the doorbells of both ends of each pipe in a set, of which one of its threads holds the lock for
//! ever, and closes its own copies: the daemon has the last ones.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Error;
use client::control::Connection;
use harness::role::{ClosingAttack, GivenTap, Report};
use protocol::{Attach, ErrorCode, HostIf, PortAdd, PortKind, PortRequest, PortSettings, Request};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// By then what sleeps in the kernel sleeps, and the daemon has seen that a client is gone.
const SEEN: Duration = Duration::from_millis(300);

/// Leaves the pipes, is refused another one, and stays until stdin ends, or its time is over.
pub fn run(attack: &ClosingAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    super::end_after(attack.seconds);
    let set = set();
    let connection = Connection::open(Some(&attack.at.dir))?;
    let mut fds = Vec::new();
    for pipe in 0..attack.pipes {
        for side in ['{', '}'] {
            let (_, given) = connection.attach(attach(attack, pipe, side)?)?;
            watch(&set, &given.wake);
            fds.push(given);
        }
    }
    super::wake_ups::wait_into_slow_memory(set.try_clone().expect("descriptors"));
    std::thread::sleep(SEEN);
    drop((fds, connection));
    std::thread::sleep(SEEN);
    let again = Connection::open(Some(&attack.at.dir))?;
    let refused = again.attach(attach(attack, attack.pipes, '{')?);
    assert_eq!(refused.expect_err("it has left too many").code(), Some(ErrorCode::Quota));
    stay(&ended)
}

/// Gives the TAP, and stays likewise.
pub fn give_tap(attack: &GivenTap) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    super::end_after(attack.seconds);
    let (set, tap) = (set(), harness::tap::make("given0", 10, false));
    watch(&set, &tap);
    let host = Some(HostIf { fds: 1, ..HostIf::default() });
    let (port, settings) = (attack.at.port.parse()?, PortSettings::default());
    let add = PortAdd { port, kind: PortKind::Tap, settings, host, machine: None, vxlan: None };
    let connection = Connection::open(Some(&attack.at.dir))?;
    connection.call_giving(Request::Port(PortRequest::Add(Box::new(add))), &[tap.as_fd()])?;
    super::wake_ups::wait_into_slow_memory(set);
    std::thread::sleep(SEEN);
    drop(tap);
    stay(&ended)
}

/// A set with something in it, for the thread that waits needs something to write.
fn set() -> OwnedFd {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors");
    let ready = eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors");
    watch(&set, &ready);
    // The set forgets what is closed.
    std::mem::forget(ready);
    set
}

fn watch(set: &OwnedFd, file: &OwnedFd) {
    epoll::add(set, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("memory");
}

fn stay(ended: &AtomicBool) -> ! {
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The thread ends with the process, and then the set is free.
    std::process::exit(0)
}

fn attach(attack: &ClosingAttack, pipe: u32, side: char) -> Result<Attach, Error> {
    let (tx_slots, rx_slots) = (Some(64), Some(64));
    let name = format!("{}{side}{pipe}", attack.at.port).parse()?;
    Ok(Attach { tx_slots, rx_slots, ..Attach::new(name) })
}
