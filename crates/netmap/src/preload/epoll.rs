//! `epoll`, with netmap descriptors among the others.
//!
//! # Theory of operation
//!
//! A netmap descriptor never enters the kernel's set: the kernel cannot know when its rings are
//! ready. It stands in a list of ours beside the set ([`EpollSet`]), and `epoll_wait` on such a set
//! waits for two things at once, as `poll` would: for the set itself, which is a descriptor, and
//! for the doorbells.
//!
//! ```text
//!   epoll_ctl(ADD, netmap fd)  ──►  EpollSet: fd, events, data
//!   epoll_ctl(ADD, other fd)   ──►  the kernel's set
//!   epoll_wait                 ──►  wait for [the kernel's set, the members' doorbells],
//!                                   then report members and ask the kernel for the rest
//! ```
//!
//! The list is read without a lock: a place is taken or given up by its `fd` alone, and whoever
//! reads it looks twice. Members leave by `EPOLL_CTL_DEL`, or when their descriptor is closed.
//!
//! Limits: `EPOLLET` is level-triggered here (a program that waits for edges gets some too many);
//! a set that is itself waited for by `poll` or another set shows the kernel's members only; and a
//! set keeps its netmap members through `fork`, not through `exec`.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libc::{epoll_event, pollfd, sigset_t, timespec};
use rustix::io::Errno;

use super::poll::{EMPTY, millis, time_of};
use super::{fail, pass, result};
use crate::table::{Kind, TABLE, Use};
use crate::wait::{Limit, Member, wait};

/// Most netmap descriptors of a set.
const PLACES: usize = 512;
/// Netmap descriptors that are waited for without allocating.
const MEMBERS: usize = 16;

/// The netmap descriptors of an epoll set.
#[derive(Debug)]
pub struct EpollSet {
    places: Box<[Place]>,
    /// Places that were ever used: the others need no look.
    end: AtomicU32,
    /// Where the next report begins, so that none of many is forgotten.
    first: AtomicU32,
    /// A thread changes the list.
    busy: AtomicBool,
}

/// One of them.
#[derive(Debug)]
struct Place {
    /// -1: nobody.
    fd: AtomicI32,
    /// What is waited for; 0 after a report, with `EPOLLONESHOT`.
    events: AtomicU32,
    data: AtomicU64,
}

impl Default for Place {
    fn default() -> Self {
        Self { fd: AtomicI32::new(-1), events: AtomicU32::new(0), data: AtomicU64::new(0) }
    }
}

impl EpollSet {
    fn new() -> Self {
        let mut places = Vec::new();
        places.resize_with(PLACES, Place::default);
        Self {
            places: places.into_boxed_slice(),
            end: AtomicU32::new(0),
            first: AtomicU32::new(0),
            busy: AtomicBool::new(false),
        }
    }

    fn used(&self) -> &[Place] {
        &self.places[..self.end.load(Ordering::Acquire) as usize]
    }

    fn find(&self, fd: RawFd) -> Option<&Place> {
        self.used().iter().find(|place| place.fd.load(Ordering::Acquire) == fd)
    }

    fn change(&self, call: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<(), Errno> {
        while self.busy.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        let changed = self.change_alone(call, fd, event);
        self.busy.store(false, Ordering::Release);
        changed
    }

    fn change_alone(
        &self,
        call: c_int,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        let place = match (call, self.find(fd)) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
            (libc::EPOLL_CTL_ADD, None) => {
                let free = self.places.iter().position(|p| p.fd.load(Ordering::Relaxed) == -1);
                let at = free.ok_or(Errno::NOSPC)?;
                let end = u32::try_from(at).map_err(|_| Errno::NOSPC)? + 1;
                self.end.fetch_max(end, Ordering::AcqRel);
                &self.places[at]
            }
            (libc::EPOLL_CTL_MOD, Some(place)) => place,
            (libc::EPOLL_CTL_DEL, Some(place)) => {
                place.fd.store(-1, Ordering::Release);
                return Ok(());
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
            _ => return Err(Errno::INVAL),
        };
        let event = event.ok_or(Errno::FAULT)?;
        place.data.store(event.u64, Ordering::Relaxed);
        place.events.store(event.events, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
        Ok(())
    }
}

/// The program's function of this name.
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
        used.epoll().ok_or(Errno::INVAL)?.change(call, fd, event).map(|()| 0)
    })
}

/// Notes that `set` is an epoll set with a list of ours.
fn make_set(set: RawFd, fd: RawFd) -> Result<(), Errno> {
    // The kernel says whether it is a set: `fd` is in none.
    let deleted = pass!(epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()));
    if deleted < 0 {
        match super::get_errno() {
            libc::ENOENT => {}
            libc::EBADF => return Err(Errno::BADF),
            _ => return Err(Errno::INVAL),
        }
    }
    match TABLE.insert(set, Kind::Epoll(EpollSet::new())) {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

/// The set behind `fd`, if it has netmap members.
#[inline]
fn with_members(fd: RawFd) -> Option<Use> {
    TABLE.get(fd).filter(|used| {
        used.epoll().is_some_and(|set| {
            set.used().iter().any(|place| place.fd.load(Ordering::Relaxed) != -1)
        })
    })
}

/// Waits on a set with netmap members.
fn wait_ours(
    fd: RawFd,
    set: &EpollSet,
    out: &mut [epoll_event],
    time: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let limit = Limit::after(time);
    let count = set.used().len();
    let (mut stack, mut heap, mut places, mut many);
    let (members, list): (&mut [Option<Member>], &mut [pollfd]) = if count <= MEMBERS {
        stack = [const { None }; MEMBERS];
        places = [EMPTY; MEMBERS + 1];
        (&mut stack[..count], &mut places[..=count])
    } else {
        heap = Vec::new();
        heap.resize_with(count, || None);
        many = vec![EMPTY; count + 1];
        (&mut heap, &mut many)
    };
    collect(set, members);
    // The kernel's set comes last, behind the places of ours.
    list[count] = pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the program's mask.
    let come = unsafe { wait(list, members, true, limit, mask) };
    if come <= 0 {
        return come;
    }
    let mut reported = report(set, members, out);
    if reported < out.len() && list[count].revents != 0 {
        let room = c_int::try_from(out.len() - reported).unwrap_or(c_int::MAX);
        let more = pass!(epoll_wait(fd, out[reported..].as_mut_ptr(), room, 0));
        reported += usize::try_from(more).unwrap_or(0);
    }
    c_int::try_from(reported).unwrap_or(c_int::MAX)
}

/// The members as they stand in the list; whose descriptor is gone leaves it.
fn collect(set: &EpollSet, members: &mut [Option<Member>]) {
    for (at, (place, member)) in set.used().iter().zip(members).enumerate() {
        let fd = place.fd.load(Ordering::Acquire);
        let events = place.events.load(Ordering::Relaxed);
        if fd == -1 || events == 0 {
            continue;
        }
        match TABLE.get(fd).filter(|used| used.netmap().is_some()) {
            // Events of epoll have the numbers of poll's; the flags above them are no events.
            Some(used) => {
                let [low, high, ..] = events.to_le_bytes();
                *member = Some(Member::new(at, fd, i16::from_le_bytes([low, high & 0x7f]), used));
            }
            None => {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = place.fd.compare_exchange(fd, -1, order.0, order.1);
            }
        }
    }
}

/// Writes what has come to the members; returns how many have a report.
fn report(set: &EpollSet, members: &[Option<Member>], out: &mut [epoll_event]) -> usize {
    let first = set.first.fetch_add(1, Ordering::Relaxed) as usize % members.len().max(1);
    let (later, sooner) = members.split_at(first);
    let mut reported = 0;
    for member in sooner.iter().chain(later).flatten().filter(|member| member.come != 0) {
        let Some(event) = out.get_mut(reported) else { break };
        let place = &set.used()[member.at];
        let come = u32::from(member.come.cast_unsigned());
        *event = epoll_event { events: come, u64: place.data.load(Ordering::Relaxed) };
        let events = place.events.load(Ordering::Relaxed);
        if events & libc::EPOLLONESHOT.cast_unsigned() != 0 {
            place.events.store(0, Ordering::Relaxed);
        }
        reported += 1;
    }
    reported
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
        (Ok(room), Ok(time), Some(set)) => wait_ours(fd, set, room, time, mask),
        (Err(error), ..) | (_, Err(error), _) => fail(error),
        (.., None) => fail(Errno::INVAL),
    }
}

/// The program's function of this name.
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

/// The program's function of this name.
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

/// The program's function of this name.
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
