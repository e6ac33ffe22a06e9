//! Descriptors of odd kinds, which hostile peers send in place of those that the daemon expects.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use harness::Random;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

/// A file of some kind, or a copy of `own`.
pub fn any(random: &mut Random, own: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let seqpacket =
        || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let file = |path, flags| open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    Ok(match random.below(14) {
        0 => memory(random.below(1 << 22))?,
        1 => eventfd(0, EventfdFlags::CLOEXEC)?,
        2 => eventfd(7, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK)?,
        3 => rustix::pipe::pipe()?.0,
        4 => rustix::pipe::pipe()?.1,
        5 => seqpacket()?.0,
        6 => file("/dev/null", OFlags::RDWR)?,
        7 => file("/dev/zero", OFlags::RDWR)?,
        8 => file("/", OFlags::RDONLY)?,
        9 => file("/tmp", OFlags::RDWR | OFlags::TMPFILE)?,
        10 => file("/proc/self/status", OFlags::RDONLY)?,
        11 => watching(own)?,
        12 => timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
        _ => own.try_clone_to_owned()?,
    })
}

/// Anonymous memory.
pub fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// An epoll set that watches a descriptor.
fn watching(fd: impl AsFd) -> io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // Files cannot be watched.
    let _ = epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    Ok(set)
}
