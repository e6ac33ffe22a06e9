//! `epoll`, with netmap descriptors among the others.
//!
//! # Theory of operation
//!
//! A netmap descriptor never enters the kernel's set: the kernel cannot know when its rings are
//! ready. It stands in a list of ours beside the set ([`EpollSet`]), and its *doorbell* stands in
//! the kernel's set in its place. A thread that waits looks at the members, asks for a ring of the
//! doorbells, and sleeps on the kernel's set.
//!
//! ```text
//!   epoll_ctl(ADD, netmap fd)  ──►  EpollSet: fd, events, data
//!                              ──►  the kernel's set: doorbell     ┐ ours, by their data;
//!   the set itself             ──►  the kernel's set: signal       ┘ never reported
//!   epoll_ctl(ADD, other fd)   ──►  the kernel's set
//!
//!   epoll_wait   look at members ── some ready ──► report, signal
//!                  │ none
//!                ask the kernel's set ── some ──► report
//!                  │ none
//!                arm doorbells, take the signal back, sleep on the kernel's set, and again
//! ```
//!
//! So the kernel's set becomes readable when a member may be ready, and a thread that waits for the
//! set itself (by another set, `poll`, `select` or io_uring) wakes up. The *signal* is an eventfd
//! that says that members were ready at the last look: until a thread has looked and found nothing,
//! the set stays readable, as a set with a level-triggered member does. A look in vain costs no
//! event.
//!
//! *Edges.* A member with `EPOLLET` is reported if it is ready and a sync has found more slots
//! since the last report (`Descriptor::edition`), and sleeps until there are more than any sync
//! has found. With `EPOLLONESHOT` it is disarmed by the report. Where threads wait on one set, both
//! reports are one thread's: they are claimed by compare-and-exchange.
//!
//! The list is read without a lock: a place is taken or given up by its `fd` alone, and a
//! reader looks twice. Members leave by `EPOLL_CTL_DEL`, or when their descriptor is closed.
//!
//! Limits: a set keeps its netmap members through `fork`, not through `exec`. Processes that wait
//! on one set see each other's doorbells and nap for a millisecond then.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{epoll_event, pollfd, sigset_t, timespec};
use rustix::event::Timespec;
use rustix::io::Errno;

use super::poll::{millis, time_of};
use crate::descriptor::{RECHECK, RECHECK_SHARED};
use crate::errno::{fail, get_errno, result};
use crate::next::pass;
use crate::table::epoll_set::{EpollSet, SIGNAL};
use crate::table::{Kind, TABLE, Use};
use crate::wait::{Limit, ppoll};

/// How long a thread naps while a doorbell of another process rings.
const NAP: i64 = 1_000_000;

/// `epoll_ctl`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    call: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if TABLE.get(fd).is_none_or(|used| used.netmap().is_none()) {
        return pass!(epoll_ctl(set, call, fd, event));
    }
    // SAFETY: the program's promise to `epoll_ctl`.
    let event = unsafe { event.as_ref() }.copied();
    result(|| {
        if TABLE.get(set).is_none() {
            make_set(set, fd)?;
        }
        let used = TABLE.get(set).ok_or(Errno::BADF)?;
        let members = used.epoll().ok_or(Errno::INVAL)?;
        members.change(call, fd, event)?;
        // Threads that sleep on the set look, and take the change into account.
        members.tell(set);
        Ok(0)
    })
}

/// Notes that `set` is an epoll set with a list of ours.
fn make_set(set: RawFd, fd: RawFd) -> Result<(), Errno> {
    // The kernel says whether it is a set: `fd` is in none.
    let deleted = pass!(epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()));
    if deleted < 0 {
        match get_errno() {
            libc::ENOENT => {}
            libc::EBADF => return Err(Errno::BADF),
            _ => return Err(Errno::INVAL),
        }
    }
    match TABLE.insert(set, Kind::Epoll(EpollSet::new()?)) {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

/// The set behind `fd`, if it has netmap members, or had some.
#[inline]
fn with_members(fd: RawFd) -> Option<Use> {
    TABLE.get(fd).filter(|used| used.epoll().is_some())
}

/// Waits on a set with netmap members.
fn wait_ours(
    fd: RawFd,
    set: &EpollSet,
    out: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let mut over = matches!(limit, Limit::Now);
    loop {
        let mut reported = set.look(fd, out);
        let others = others(fd, set, &mut out[reported..]);
        reported += others.reported;
        if reported > 0 {
            set.wake_next(fd);
            return c_int::try_from(reported).unwrap_or(c_int::MAX);
        }
        if !set.arm(fd) {
            continue;
        }
        set.quiet(others.signal);
        if over {
            return 0;
        }
        if others.foreign {
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP };
            // A signal ends it, and is seen below.
            let _ = rustix::thread::nanosleep(&nap);
        }
        let come = sleep(fd, set, limit, mask);
        if come < 0 {
            return come;
        }
        over = limit.is_over();
    }
}

/// Sleeps on the kernel's set.
fn sleep(fd: RawFd, set: &EpollSet, limit: Limit, mask: *const sigset_t) -> c_int {
    let _asleep = set.asleep();
    let mut place = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let patience = if set.shares_doorbells() { RECHECK_SHARED } else { RECHECK };
    let time = limit.left().map_or(patience, |left| left.min(patience));
    // SAFETY: the program's mask.
    unsafe { ppoll(&mut place, Some(time), mask) }
}

/// What the kernel's set had.
#[derive(Default)]
struct Others {
    /// Events for the program.
    reported: usize,
    /// The signal was there.
    signal: bool,
    /// A doorbell was there that is another process's.
    foreign: bool,
}

/// Asks the kernel's set, and keeps our own events from the program.
fn others(fd: RawFd, set: &EpollSet, out: &mut [epoll_event]) -> Others {
    let mut others = Others::default();
    let Ok(room @ 1..) = c_int::try_from(out.len()) else { return others };
    let come = pass!(epoll_wait(fd, out.as_mut_ptr(), room, 0));
    for i in 0..usize::try_from(come).unwrap_or(0) {
        match set.own(out[i].u64) {
            None => {
                out[others.reported] = out[i];
                others.reported += 1;
            }
            Some(SIGNAL) => others.signal = true,
            Some(at) => others.foreign |= !set.answer(fd, at),
        }
    }
    others
}

/// The program's room for events.
///
/// # Safety
/// `events` points to `count` events.
unsafe fn room<'a>(events: *mut epoll_event, count: c_int) -> Result<&'a mut [epoll_event], Errno> {
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(Errno::INVAL)?;
    if events.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(events, count) })
}

/// Waits on a set of ours.
///
/// # Safety
/// The program's promises to `epoll_pwait2`.
unsafe fn epoll_ours(
    (fd, used): (RawFd, Use),
    events: *mut epoll_event,
    count: c_int,
    time: Result<Option<Duration>, Errno>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's promise.
    let room = unsafe { room(events, count) };
    match (room, time, used.epoll()) {
        (Ok(room), Ok(time), Some(set)) => wait_ours(fd, set, room, Limit::after(time), mask),
        (Err(error), ..) | (_, Err(error), _) => fail(error),
        (.., None) => fail(Errno::INVAL),
    }
}

/// `epoll_wait`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let Some(used) = with_members(set) else {
        return pass!(epoll_wait(set, events, count, timeout));
    };
    // SAFETY: the program's promises.
    unsafe { epoll_ours((set, used), events, count, Ok(millis(timeout)), std::ptr::null()) }
}

/// `epoll_pwait`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let Some(used) = with_members(set) else {
        return pass!(epoll_pwait(set, events, count, timeout, mask));
    };
    // SAFETY: the program's promises.
    unsafe { epoll_ours((set, used), events, count, Ok(millis(timeout)), mask) }
}

/// `epoll_pwait2`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Some(used) = with_members(set) else {
        return pass!(epoll_pwait2(set, events, count, timeout, mask));
    };
    // SAFETY: the program's promise.
    let time = unsafe { time_of(timeout) };
    // SAFETY: likewise.
    unsafe { epoll_ours((set, used), events, count, time, mask) }
}
