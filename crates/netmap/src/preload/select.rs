//! `select` and `pselect`: the three sets become one list for `poll`, and back.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use super::poll::{EMPTY, PLACES, poll_ours, time_of};
use crate::errno::fail;
use crate::next::pass;
use crate::table::TABLE;
use crate::wait::Limit;

/// What each of the three sets asks for, and what counts as having come.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const COME: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    libc::POLLPRI,
];

/// Bits of a word of a set.
const BITS: usize = u64::BITS as usize;

/// The three sets of the program.
struct Sets {
    words: [*mut u64; 3],
    count: usize,
}

impl Sets {
    /// Whether `fd` is in the set.
    fn has(&self, set: usize, fd: usize) -> bool {
        let words = self.words[set];
        // SAFETY: NULL, or a set with room for `count` descriptors; `fd` is below.
        !words.is_null() && unsafe { words.add(fd / BITS).read() } >> (fd % BITS) & 1 != 0
    }

    fn asked(&self, fd: usize) -> i16 {
        (0..3).filter(|&set| self.has(set, fd)).fold(0, |events, set| events | ASKED[set])
    }

    /// Leaves in the sets what has come; returns how many bits.
    fn write(&self, fds: &[pollfd]) -> c_int {
        for words in self.words.iter().filter(|words| !words.is_null()) {
            for word in 0..self.count.div_ceil(BITS) {
                // SAFETY: as in `has`.
                unsafe { words.add(word).write(0) };
            }
        }
        let mut bits = 0;
        for place in fds {
            let fd = usize::try_from(place.fd).unwrap_or(0);
            for set in 0..3 {
                if place.events & ASKED[set] != 0 && place.revents & COME[set] != 0 {
                    // SAFETY: as in `has`; the bit was asked for, so the set is there.
                    unsafe { *self.words[set].add(fd / BITS) |= 1 << (fd % BITS) };
                    bits += 1;
                }
            }
        }
        bits
    }
}

/// Selects, if a netmap descriptor is asked for; else does nothing.
fn select_ours(sets: &Sets, time: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    let asked = || (0..sets.count).filter(|&fd| sets.asked(fd) != 0);
    let is_ours = |fd: usize| RawFd::try_from(fd).is_ok_and(|fd| TABLE.get(fd).is_some());
    if !asked().any(is_ours) {
        return None;
    }
    let count = asked().count();
    let (mut stack, mut heap);
    let fds: &mut [pollfd] = if count <= PLACES {
        stack = [EMPTY; PLACES];
        &mut stack[..count]
    } else {
        heap = vec![EMPTY; count];
        &mut heap
    };
    for (place, fd) in fds.iter_mut().zip(asked()) {
        (place.fd, place.events) = (RawFd::try_from(fd).unwrap_or(-1), sets.asked(fd));
    }
    let come = poll_ours(fds, || time, mask)?;
    if come < 0 {
        return Some(come);
    }
    if fds.iter().any(|place| place.revents & libc::POLLNVAL != 0) {
        return Some(fail(Errno::BADF));
    }
    Some(sets.write(fds))
}

fn sets(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Option<Sets> {
    let count = usize::try_from(count).ok().filter(|_| !TABLE.is_empty())?;
    Some(Sets { words: [read, write, except].map(<*mut fd_set>::cast), count })
}

/// `select`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let Some(sets) = sets(count, read, write, except) else {
        return pass!(select(count, read, write, except, timeout));
    };
    // SAFETY: the program's promise to `select`.
    let time = match unsafe { timeout.as_ref() } {
        None => None,
        Some(time) => {
            let (Ok(seconds), Ok(micros)) =
                (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec))
            else {
                return fail(Errno::INVAL);
            };
            Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
        }
    };
    let limit = Limit::after(time);
    let Some(come) = select_ours(&sets, time, std::ptr::null()) else {
        return pass!(select(count, read, write, except, timeout));
    };
    // As Linux does: what is left of the time.
    if let (false, Some(left)) = (timeout.is_null(), limit.left()) {
        let left = timeval {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_usec: left.subsec_micros().into(),
        };
        // SAFETY: the program's promise to `select`.
        unsafe { timeout.write(left) };
    }
    come
}

/// `pselect`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Some(sets) = sets(count, read, write, except) else {
        return pass!(pselect(count, read, write, except, timeout, mask));
    };
    // SAFETY: the program's promise to `pselect`.
    let time = match unsafe { time_of(timeout) } {
        Ok(time) => time,
        Err(error) => return fail(error),
    };
    match select_ours(&sets, time, mask) {
        Some(come) => come,
        None => pass!(pselect(count, read, write, except, timeout, mask)),
    }
}
