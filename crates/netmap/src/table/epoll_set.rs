//! The netmap descriptors of an epoll set.

#![allow(unsafe_code)] // UNSAFETY: the C library's `epoll_ctl`.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::epoll_event;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::TABLE;
use crate::descriptor::Descriptor;
use crate::next::pass;
use crate::own::{self, Own};
use crate::turn::Turn;

/// Most netmap descriptors of a set.
const PLACES: usize = 512;
/// In the place of a place's number: the set's signal.
pub const SIGNAL: usize = 0xffff;
const _: () = assert!(PLACES < SIGNAL);
/// Never the edition of a member: report it as soon as it is ready.
const UNSEEN: u64 = u64::MAX;

const EDGE: u32 = libc::EPOLLET.cast_unsigned();
const ONCE: u32 = libc::EPOLLONESHOT.cast_unsigned();
/// What is always waited for.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();

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
    /// Stands in the kernel's set: members were ready at the last look.
    signal: Own,
    /// The signal has been given and not been taken back.
    signalled: AtomicBool,
    /// Threads that sleep on the kernel's set.
    sleepers: AtomicU32,
}

/// A thread that sleeps, until dropped.
pub struct Asleep<'a>(&'a AtomicU32);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One member of a set.
#[derive(Debug)]
struct Place {
    /// Number of the member's descriptor; -1: the place is free.
    fd: AtomicI32,
    /// What is waited for, and how; no events after a report with `EPOLLONESHOT`.
    events: AtomicU32,
    data: AtomicU64,
    /// The member's edition at the last report, with `EPOLLET`.
    seen: AtomicU64,
    /// The doorbell that stands in the kernel's set for it; -1: none.
    bell: AtomicI32,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            fd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            seen: AtomicU64::new(UNSEEN),
            bell: AtomicI32::new(-1),
        }
    }
}

/// The events that `poll` knows by the same numbers.
fn of_poll(events: u32) -> i16 {
    let [low, high, ..] = events.to_le_bytes();
    i16::from_le_bytes([low, high & 0x7f])
}

impl Place {
    /// Calls `f` with the member's descriptor, if there is one and it waits for anything. Gives up
    /// a place whose descriptor is gone.
    fn with<T>(&self, f: impl FnOnce(&Descriptor, RawFd, u32) -> T) -> Option<T> {
        let fd = self.fd.load(Ordering::Acquire);
        let events = self.events.load(Ordering::Relaxed);
        if fd == -1 || of_poll(events) == 0 {
            return None;
        }
        let Some(used) = TABLE.get(fd) else {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.fd.compare_exchange(fd, -1, order.0, order.1);
            return None;
        };
        used.netmap().map(|descriptor| f(descriptor, fd, events))
    }

    /// Takes its doorbell, if any is left, out of the kernel's set; `new` comes in its place.
    fn take_down(&self, set: RawFd, new: RawFd) {
        let old = self.bell.swap(new, Ordering::Relaxed);
        // The number of one that is closed may be the program's by now.
        if old != -1 && own::contains(old) {
            control_own(set, libc::EPOLL_CTL_DEL, &old, 0);
        }
    }

    /// What has come, if it is to be reported, and by this thread.
    fn look(&self) -> Option<u32> {
        self.with(|descriptor, fd, events| {
            let wanted = of_poll(events);
            let seen = self.seen.load(Ordering::Relaxed);
            let come = descriptor.poll(fd, wanted);
            if come == 0 {
                return None;
            }
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if events & EDGE != 0 {
                let edition = descriptor.edition(wanted);
                let fresh = edition != seen;
                let claimed =
                    fresh && self.seen.compare_exchange(seen, edition, order.0, order.1).is_ok();
                claimed.then_some(())?;
            }
            if events & ONCE != 0 {
                let (off, claim) = (events & (ONCE | EDGE), &self.events);
                claim.compare_exchange(events, off, order.0, order.1).ok()?;
            }
            Some(u32::from(come.cast_unsigned()))
        })?
    }
}

impl EpollSet {
    /// A set without members.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> Result<Self, Errno> {
        let mut places = Vec::new();
        places.resize_with(PLACES, Place::default);
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            places: places.into_boxed_slice(),
            end: AtomicU32::new(0),
            first: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            signal: Own::new(signal),
            signalled: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
        })
    }

    fn used(&self) -> &[Place] {
        &self.places[..self.end.load(Ordering::Acquire) as usize]
    }

    fn find(&self, fd: RawFd) -> Option<&Place> {
        self.used().iter().find(|place| place.fd.load(Ordering::Acquire) == fd)
    }

    /// The data of our own events: no pointer of the program's looks like this.
    fn data(&self, at: usize) -> u64 {
        (self.places.as_ptr().addr() as u64) << 16 | at as u64
    }

    /// Which place an event of our own is for, or `SIGNAL`.
    pub fn own(&self, data: u64) -> Option<usize> {
        let at = usize::try_from(data & 0xffff).ok()?;
        (data == self.data(at)).then_some(at)
    }

    /// Carries out a call of `epoll_ctl`.
    pub fn change(&self, call: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<(), Errno> {
        let _turn = Turn::take(&self.busy);
        self.change_alone(call, fd, event)
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
        place.seen.store(UNSEEN, Ordering::Relaxed);
        place.events.store(event.events | ALWAYS, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
        Ok(())
    }

    /// After a change, in the set with the number `set`: doorbells stand for members that are
    /// there, and for no others, and waiting threads look.
    pub fn tell(&self, set: RawFd) {
        self.used().iter().for_each(|place| place.take_down(set, -1));
        for (at, place) in self.used().iter().enumerate() {
            place.with(|descriptor, _, _| self.hang(set, at, descriptor));
        }
        control_own(set, libc::EPOLL_CTL_ADD, &self.signal.as_fd(), self.data(SIGNAL));
        self.give_signal();
    }

    /// Puts the doorbell of a member into the kernel's set, unless it is there.
    fn hang(&self, set: RawFd, at: usize, descriptor: &Descriptor) {
        let bell = descriptor.doorbell().map_or(-1, |bell| bell.as_raw_fd());
        let place = &self.places[at];
        if place.bell.load(Ordering::Relaxed) == bell {
            return;
        }
        place.take_down(set, bell);
        if bell != -1 {
            control_own(set, libc::EPOLL_CTL_ADD, &bell, self.data(at));
        }
    }

    /// Writes what has come to the members into `out`; returns how many have a report.
    pub fn look(&self, set: RawFd, out: &mut [epoll_event]) -> usize {
        let places = self.used();
        let first = self.first.fetch_add(1, Ordering::Relaxed) as usize % places.len().max(1);
        let (mut reported, mut again) = (0, false);
        for at in (first..places.len()).chain(0..first) {
            let Some(event) = out.get_mut(reported) else { break };
            let place = &places[at];
            let Some(come) = place.look() else { continue };
            *event = epoll_event { events: come, u64: place.data.load(Ordering::Relaxed) };
            again |= place.events.load(Ordering::Relaxed) & (EDGE | ONCE) == 0;
            reported += 1;
            // One that cannot ring any more must not keep the set awake.
            place.with(|descriptor, _, _| self.hang(set, at, descriptor));
        }
        if again || reported == out.len() {
            self.give_signal();
        }
        reported
    }

    /// Asks for a ring of every doorbell. `false`: something has come meanwhile.
    pub fn arm(&self, set: RawFd) -> bool {
        self.used().iter().enumerate().fold(true, |armed, (at, place)| {
            let own = place.with(|descriptor, fd, events| {
                let reported = place.seen.load(Ordering::Relaxed);
                let reported = (events & EDGE != 0).then_some(reported);
                let own = descriptor.arm_for(fd, of_poll(events), reported);
                self.hang(set, at, descriptor);
                own
            });
            own.unwrap_or(true) && armed
        })
    }

    /// The doorbell of a place is in the kernel's set, and has rung: empties it. `false`: it was
    /// not this process's.
    pub fn answer(&self, set: RawFd, at: usize) -> bool {
        let Some(place) = self.used().get(at) else { return false };
        let rung = place.with(|descriptor, _, _| {
            let rung = descriptor.answer_any();
            self.hang(set, at, descriptor);
            rung
        });
        rung.unwrap_or_else(|| {
            // A member that waits for nothing, or whose descriptor lives on as a copy only.
            place.take_down(set, -1);
            true
        })
    }

    /// This thread is about to sleep.
    pub fn asleep(&self) -> Asleep<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        Asleep(&self.sleepers)
    }

    /// Whether threads sleep on members' doorbells in other ways than by this set.
    pub fn shares_doorbells(&self) -> bool {
        let shared = |place: &Place| place.with(|descriptor, _, _| descriptor.has_sleepers());
        self.used().iter().any(|place| shared(place) == Some(true))
    }

    /// Before a thread leaves with a report: the next one may have slept through the ring that was
    /// answered, and is to hear of what comes now.
    pub fn wake_next(&self, set: RawFd) {
        if self.sleepers.load(Ordering::Relaxed) > 0 && !self.arm(set) {
            self.give_signal();
        }
    }

    fn give_signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.signal, &1u64.to_ne_bytes());
        }
    }

    /// Takes the signal back: nothing is ready. `there`: the kernel has just said that it is.
    pub fn quiet(&self, there: bool) {
        if self.signalled.swap(false, Ordering::AcqRel) || there {
            // Empty where another thread has taken it.
            let _ = rustix::io::read(&self.signal, &mut [0u8; 8][..]);
        }
    }
}

/// Puts a descriptor of the library's own into the kernel's set, or takes it out.
fn control_own(set: RawFd, call: c_int, own: &impl AsRawFd, data: u64) {
    let mut event = epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: data };
    // One that is in it, or is no longer, is as it should be; without room, waits look twice a
    // second.
    let _: c_int = pass!(epoll_ctl(set, call, own.as_raw_fd(), &raw mut event));
}
