//! `poll` and `ppoll`, with netmap descriptors among the others.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::c_int;
use std::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};
use rustix::io::Errno;

use crate::errno::fail;
use crate::next::pass;
use crate::table::TABLE;
use crate::wait::{Limit, Member, wait};

/// Descriptors that are listed without allocating.
pub const PLACES: usize = 64;
/// Netmap descriptors among them that are waited for without allocating.
const MEMBERS: usize = 16;

/// A place that asks for nothing.
pub const EMPTY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// The time of a `timespec`: `None` for ever; an error where it is none.
///
/// # Safety
/// `time` is NULL or points to a time.
pub unsafe fn time_of(time: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|&nanos| nanos < 1_000_000_000);
    Ok(Some(Duration::new(seconds, nanos.ok_or(Errno::INVAL)?)))
}

/// The time of `poll`: negative for ever, else milliseconds.
pub fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Waits, if there is a netmap descriptor among `fds`; else does nothing.
#[inline]
pub fn poll_ours(
    fds: &mut [pollfd],
    limit: impl FnOnce() -> Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let count = fds.iter().filter(|place| TABLE.get(place.fd).is_some()).count();
    if count == 0 {
        return None;
    }
    let (mut stack, mut heap);
    let members: &mut [Option<Member>] = if count <= MEMBERS {
        stack = [const { None }; MEMBERS];
        &mut stack
    } else {
        heap = Vec::new();
        heap.resize_with(count, || None);
        &mut heap
    };
    let found = collect(fds, members);
    if found == 0 {
        return None;
    }
    let members = &mut members[..found];
    let negative = fds.iter().filter(|place| place.fd < 0).count();
    let has_others = found + negative < fds.len();
    let limit = Limit::after(limit());
    Some(poll_members(fds, members, has_others, limit, mask))
}

/// Looks at a netmap descriptor that is polled alone, as most are. `None`: nothing has come, and
/// there is time to wait; or it is another descriptor.
#[inline]
fn look_alone(place: &mut pollfd, at_once: bool) -> Option<c_int> {
    let used = TABLE.get(place.fd)?;
    let come = used.netmap()?.poll(place.fd, place.events);
    if come == 0 && !at_once {
        return None;
    }
    place.revents = come;
    Some(c_int::from(come != 0))
}

/// The netmap descriptors among `fds`.
fn collect(fds: &[pollfd], members: &mut [Option<Member>]) -> usize {
    let mut found = 0;
    for (at, place) in fds.iter().enumerate() {
        let Some(used) = TABLE.get(place.fd).filter(|used| used.netmap().is_some()) else {
            continue;
        };
        // More than were counted: another thread has just made it.
        let Some(member) = members.get_mut(found) else { break };
        *member = Some(Member::new(at, place.fd, place.events, used));
        found += 1;
    }
    found
}

fn poll_members(
    fds: &mut [pollfd],
    members: &mut [Option<Member>],
    has_others: bool,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let (mut stack, mut heap);
    let set: &mut [pollfd] = if fds.len() <= PLACES {
        stack = [EMPTY; PLACES];
        &mut stack[..fds.len()]
    } else {
        heap = vec![EMPTY; fds.len()];
        &mut heap
    };
    set.copy_from_slice(fds);
    // SAFETY: the program's mask.
    let come = unsafe { wait(set, members, has_others, limit, mask) };
    if come >= 0 {
        for (place, copy) in fds.iter_mut().zip(&*set) {
            place.revents = if has_others { copy.revents } else { 0 };
        }
        for member in members.iter().flatten() {
            fds[member.at].revents = member.come;
        }
    }
    come
}

/// The program's descriptors.
///
/// # Safety
/// `fds` is NULL or points to `count` places.
#[inline]
unsafe fn places<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok().filter(|&count| count <= 1 << 20)?;
    if fds.is_null() || TABLE.is_empty() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts_mut(fds, count) })
}

/// `poll`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's promise to `poll`.
    let mut places = unsafe { places(fds, count) };
    if let Some([place]) = &mut places
        && let Some(come) = look_alone(place, timeout == 0)
    {
        return come;
    }
    let null = std::ptr::null();
    match places.and_then(|places| poll_ours(places, || millis(timeout), null)) {
        Some(come) => come,
        None => pass!(poll(fds, count, timeout)),
    }
}

/// `ppoll`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's promise to `ppoll`.
    let Some(places) = (unsafe { places(fds, count) }) else {
        return pass!(ppoll(fds, count, timeout, mask));
    };
    // SAFETY: likewise.
    let time = match unsafe { time_of(timeout) } {
        Ok(time) => time,
        Err(error) => return fail(error),
    };
    match poll_ours(places, || time, mask) {
        Some(come) => come,
        None => pass!(ppoll(fds, count, timeout, mask)),
    }
}

/// Whether `count` entries fit in `room` bytes.
fn fits(count: nfds_t, room: size_t) -> bool {
    let size = usize::try_from(count).ok().and_then(|n| n.checked_mul(size_of::<pollfd>()));
    size.is_some_and(|size| size <= room)
}

/// `poll` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if TABLE.is_empty() || !fits(count, room) {
        return pass!(__poll_chk(fds, count, timeout, room));
    }
    // SAFETY: the program's promise to `poll`.
    unsafe { poll(fds, count, timeout) }
}

/// `ppoll` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if TABLE.is_empty() || !fits(count, room) {
        return pass!(__ppoll_chk(fds, count, timeout, mask, room));
    }
    // SAFETY: the program's promise to `ppoll`.
    unsafe { ppoll(fds, count, timeout, mask) }
}
