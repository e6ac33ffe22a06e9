//! Waiting for netmap descriptors and others at once: what `poll`, `select` and `epoll` share.
//!
//! # Theory of operation
//!
//! ```text
//!   look      sync every netmap descriptor; ready if its rings say so
//!     │ none, and time is left
//!   yield     some times, looking in between: where everything waited for is netmap's, the
//!     │       other side is likely to be at work on this very core
//!   arm       ask for a kick, and look once more
//!     │
//!   sleep     ppoll: the other descriptors as they are, doorbells instead of netmap's
//!     │       until something comes, the time is over, or patience is
//!     └─────► look
//! ```
//!
//! With no time at all and no other descriptors this makes no system call. Netmap's own `poll`
//! syncs at each look, and so does this; a time that is over is followed by a last look.
//!
//! Nothing is held over the sleep that another thread could need. A thread that is cancelled there
//! gives back what it used.

#![allow(unsafe_code)] // UNSAFETY: the C library's `ppoll`, and pointers for it.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};

use crate::descriptor::Descriptor;
use crate::next;
use crate::table::Use;

/// Looks with the core given away in between, before sleeping.
const YIELDS: u32 = 50;

/// A netmap descriptor among those waited for.
#[derive(Debug)]
pub struct Member {
    /// Position among the program's descriptors.
    pub at: usize,
    /// Number of the descriptor.
    pub fd: RawFd,
    /// What is waited for.
    pub events: i16,
    /// What has come.
    pub come: i16,
    used: Use,
    /// The doorbell, while armed.
    bell: Option<RawFd>,
}

impl Member {
    /// Number `at` of the program's descriptors, if `fd` is netmap's.
    #[inline]
    #[must_use]
    pub fn new(at: usize, fd: RawFd, events: i16, used: Use) -> Self {
        Self { at, fd, events, come: 0, used, bell: None }
    }

    #[inline]
    fn look(&mut self) -> bool {
        let descriptor = self.used.netmap();
        self.come = descriptor.map_or(libc::POLLNVAL, |it| it.poll(self.fd, self.events));
        self.come != 0
    }

    fn arm(&mut self) -> bool {
        self.bell = self.used.netmap().and_then(|it| it.arm(self.fd, self.events));
        self.bell.is_some()
    }

    fn disarm(&mut self, rung: bool) {
        if let (Some(_), Some(descriptor)) = (self.bell.take(), self.used.netmap()) {
            descriptor.woken(rung);
        }
    }

    fn patience(&self) -> Duration {
        self.used.netmap().map_or(Duration::MAX, Descriptor::patience)
    }
}

impl Drop for Member {
    /// A cancelled thread sleeps no longer.
    fn drop(&mut self) {
        self.disarm(false);
    }
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Not at all.
    Now,
    /// Until then.
    Until(Instant),
    /// For ever.
    Never,
}

impl Limit {
    /// From now on; `None` for ever.
    #[must_use]
    pub fn after(time: Option<Duration>) -> Self {
        match time {
            None => Self::Never,
            Some(Duration::ZERO) => Self::Now,
            // A time that no clock can say is no limit.
            Some(time) => Instant::now().checked_add(time).map_or(Self::Never, Self::Until),
        }
    }

    /// What is left; `None` for ever.
    #[must_use]
    pub fn left(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Never => None,
        }
    }

    /// Whether the time has run out.
    #[must_use]
    pub fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// Waits until something has come to one of `members`, or to one of the others in `set`, in which
/// members stand as well, by their `at`. Returns the number of descriptors that something has come
/// to, as `ppoll` does; what has come stands in `members` and, for the others, in `set`.
///
/// # Safety
/// `mask` is null or a set of signals.
pub unsafe fn wait(
    set: &mut [pollfd],
    members: &mut [Option<Member>],
    has_others: bool,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let mut over = matches!(limit, Limit::Now);
    let mut yields = if has_others || over { 0 } else { YIELDS };
    loop {
        let ready = members.iter_mut().flatten().map(Member::look).filter(|&come| come).count();
        let ready = c_int::try_from(ready).unwrap_or(c_int::MAX);
        if ready > 0 || over {
            // SAFETY: the caller's promise.
            return match unsafe { others(set, members, has_others, mask) } {
                error @ c_int::MIN..0 if ready == 0 => error,
                others => ready + others.max(0),
            };
        }
        if yields > 0 {
            yields -= 1;
            rustix::thread::sched_yield();
            over = limit.is_over();
            continue;
        }
        if !members.iter_mut().flatten().all(Member::arm) {
            members.iter_mut().flatten().for_each(|member| member.disarm(false));
            continue;
        }
        // SAFETY: the caller's promise.
        let come = unsafe { sleep(set, members, limit, mask) };
        if come < 0 {
            return come;
        }
        let rung = set_down(set, members);
        if come > rung {
            // Others have come. A last look, and all is known.
            let ready = members.iter_mut().flatten().map(Member::look).filter(|&come| come).count();
            return come - rung + c_int::try_from(ready).unwrap_or(c_int::MAX);
        }
        over = limit.is_over();
    }
}

/// What has come to the others, without waiting.
///
/// # Safety
/// As for [`wait`].
unsafe fn others(
    set: &mut [pollfd],
    members: &mut [Option<Member>],
    has_others: bool,
    mask: *const sigset_t,
) -> c_int {
    if !has_others {
        return 0;
    }
    for member in members.iter().flatten() {
        set[member.at].fd = -1;
    }
    // SAFETY: as the caller promises.
    unsafe { ppoll(set, Some(Duration::ZERO), mask) }
}

/// Sleeps on doorbells and others.
///
/// # Safety
/// As for [`wait`].
unsafe fn sleep(
    set: &mut [pollfd],
    members: &mut [Option<Member>],
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let mut patience = Duration::MAX;
    for member in members.iter().flatten() {
        let place = &mut set[member.at];
        (place.fd, place.events) = (member.bell.unwrap_or(-1), libc::POLLIN);
        patience = patience.min(member.patience());
    }
    let time = limit.left().map_or(patience, |left| left.min(patience));
    // SAFETY: as the caller promises.
    let come = unsafe { ppoll(set, Some(time), mask) };
    if come < 0 {
        members.iter_mut().flatten().for_each(|member| member.disarm(false));
    }
    come
}

/// After the sleep: empties the doorbells that rang, and says how many did.
fn set_down(set: &mut [pollfd], members: &mut [Option<Member>]) -> c_int {
    let mut count = 0;
    for member in members.iter_mut().flatten() {
        let rung = set[member.at].revents != 0;
        member.disarm(rung);
        count += c_int::from(rung);
    }
    count
}

/// The C library's, with a time in our form; negative with its `errno`.
///
/// # Safety
/// `mask` is null or a set of signals.
pub unsafe fn ppoll(set: &mut [pollfd], time: Option<Duration>, mask: *const sigset_t) -> c_int {
    let time = time.map(|time| timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let Some(next) = next::ppoll() else { return -1 };
    // SAFETY: live places, a live time or NULL, and the caller's mask.
    unsafe { next(set.as_mut_ptr(), set.len() as nfds_t, time, mask) }
}
