//! A client that leaves pipes and keeps their doorbells from being closed.
//!
//! The last process to close a file takes it out of all epoll sets that it is in. The client has
//! the doorbells of both ends in a set, of which one of its threads holds the lock for ever, and
//! closes its own copies: the daemon has the last ones.

use std::sync::atomic::Ordering;
use std::time::Duration;

use client::Error;
use client::control::Connection;
use harness::role::{ClosingAttack, Report};
use protocol::{Attach, ErrorCode};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// By then what sleeps in the kernel sleeps, and the daemon has seen that a client is gone.
const SEEN: Duration = Duration::from_millis(300);

/// Leaves the pipes, is refused another one, and stays until stdin ends, or its time is over.
pub fn run(attack: &ClosingAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    super::end_after(attack.seconds);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors");
    // The thread that waits needs something to write.
    let ready = eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors");
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    epoll::add(&set, &ready, data, flags).expect("memory");
    let connection = Connection::open(Some(&attack.at.dir))?;
    let mut fds = Vec::new();
    for pipe in 0..attack.pipes {
        for side in ['{', '}'] {
            let (_, given) = connection.attach(attach(attack, pipe, side)?)?;
            epoll::add(&set, &given.wake, data, flags).expect("memory");
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
