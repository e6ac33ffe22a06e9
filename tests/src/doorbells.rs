//! A client that attacks by the doorbell that it was given to kick the switch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Error;
use harness::role::{Assault, DoorbellAttack, Report};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::pipe::{SpliceFlags, splice};

/// Attaches and attacks until stdin ends, or its time is over.
pub fn run(attack: &DoorbellAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let (_connection, _, mut fds) = super::attach_for(&attack.at, attack.seconds)?;
    let mut held = Vec::new();
    match attack.assault {
        Assault::Flags => {}
        Assault::Fill => fill(fds.kick.as_fd()),
        Assault::Watch { watches } => held = watch(fds.kick.as_fd(), watches),
        Assault::Splice => {
            splice_for_ever(copy(fds.kick.as_fd()));
            // It sleeps by now.
            std::thread::sleep(Duration::from_millis(300));
        }
        Assault::Pass => {
            leave_behind(copy(fds.kick.as_fd()), attack.seconds);
            return Ok(Report::Ready);
        }
        Assault::Close => {
            // Another one in its place, which is nothing to the switch.
            *fds.kick.fd_mut() = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors");
        }
        Assault::SlowMemory => {
            // With something in it, a read goes on to the memory.
            rustix::io::write(&fds.kick, &1_u64.to_ne_bytes()).expect("room");
            super::wake_ups::read_into_slow_memory(copy(fds.kick.as_fd()));
            super::wake_ups::write_from_slow_memory(copy(fds.kick.as_fd()));
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    super::say(&Report::Ready);
    let modes = [OFlags::empty(), OFlags::NONBLOCK, OFlags::APPEND, OFlags::ASYNC];
    let mut kicks = 0;
    while !ended.load(Ordering::Relaxed) {
        if matches!(attack.assault, Assault::Flags) {
            // What may be changed is changed; what may not is refused.
            let _ = rustix::fs::fcntl_setfl(&fds.kick, modes[kicks % modes.len()]);
        }
        // A write where there is no room would wait.
        if !matches!(attack.assault, Assault::Splice | Assault::Fill) {
            let _ = rustix::io::write(&fds.kick, &1_u64.to_ne_bytes());
        }
        kicks += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    Ok(Report::Ready)
}

fn copy(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().expect("descriptors")
}

/// Gives a doorbell to a process that rings it for so long, and that outlives this one.
fn leave_behind(kick: OwnedFd, seconds: u64) {
    const RING: &str = r"while printf '\1\0\0\0\0\0\0\0'; do sleep 0.001; done";
    const BEHIND: &str = r#"timeout "$1" sh -c "$2" &"#;
    let mut command = Command::new("sh");
    command.args(["-c", BEHIND, "sh", &seconds.to_string(), RING]);
    command.stdin(Stdio::null()).stdout(kick).stderr(Stdio::null());
    assert!(command.status().expect("a shell").success());
}

/// Leaves no room in a counter, and has writers wait for some.
pub fn fill(fd: BorrowedFd<'_>) {
    let _ = rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK);
    let _ = rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes());
    let _ = rustix::fs::fcntl_setfl(fd, OFlags::empty());
}

/// Registers copies of a descriptor in as many epoll sets as it takes.
pub fn watch(fd: BorrowedFd<'_>, watches: u32) -> Vec<OwnedFd> {
    const COPIES: u32 = 500;
    let copies: Vec<_> = (0..COPIES).map(|_| copy(fd)).collect();
    let sets = (0..watches / COPIES).map(|_| {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors");
        for copy in &copies {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            // Not all files can be watched.
            let _ = epoll::add(&set, copy, epoll::EventData::new_u64(0), flags);
        }
        set
    });
    let sets: Vec<_> = sets.collect();
    sets.into_iter().chain(copies).collect()
}

/// Does something while a thread kicks without a break.
pub fn kick_beside(kick: BorrowedFd<'_>, work: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = rustix::io::write(kick, &1_u64.to_ne_bytes());
            }
        });
        work();
        ended.store(true, Ordering::Relaxed);
    });
}

/// Moves what never comes into a doorbell, and what it says to where there is no room. The kernel
/// may refuse either.
pub fn splice_for_ever(fd: OwnedFd) {
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("descriptors")
    };
    let _ = rustix::fs::fcntl_setfl(&fd, OFlags::empty());
    let (full, empty, copy) = (pair(), pair(), fd.try_clone().expect("descriptors"));
    while send(&full.0, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
    while send(&full.0, &[0], SendFlags::DONTWAIT).is_ok() {}
    std::thread::spawn(move || {
        let _ = splice(&empty.0, None, &fd, None, 4096, SpliceFlags::empty());
        drop(empty);
    });
    std::thread::spawn(move || {
        let _ = splice(&copy, None, &full.0, None, 4096, SpliceFlags::empty());
        drop(full);
    });
}
