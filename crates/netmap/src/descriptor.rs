//! A `/dev/netmap` descriptor: what it is bound to, its syncs, its readiness.
//!
//! # Theory of operation
//!
//! The program's descriptor is a connection to the daemon. Every copy of it, in this process or
//! another, is the same connection, and the port goes when the last copy is closed: what netmap
//! does with open files, the kernel does here with sockets.
//!
//! ```text
//!            open                          REGISTER
//!   ──────────────────────► Unbound ─────────────────────► Bound
//!                              ▲ nothing bound               ▲ what is bound, doorbells
//!   scan at start, recvmsg     │                             │
//!   ──────────────────────► Unknown ──── first use: resume ──┘
//! ```
//!
//! In a guest there is no daemon. A descriptor can be opened all the same if the machine has a
//! ptnet, and bound to that ([`client::ptnet`]): it is a socket without a peer then, and the port
//! stays with the process and its children.
//!
//! Binding maps the region for the library's own use (the program maps it once more, where it
//! likes) and brings three descriptors: region, kick and wake. They are kept at high numbers, and
//! a program that closes everything it does not know does not close them; `dup2` on one of them is
//! `EBUSY`.
//!
//! **Which process drains the doorbell.** The wake socket of a binding belongs to one process. A
//! child of `fork` asks the daemon for doorbells of its own before it first sleeps; so does a
//! process that gets the descriptor by `recvmsg` or keeps it through `exec`. Within a process,
//! threads may wait on one descriptor at the same time; each that wakes takes the bytes out and
//! syncs. It may have taken the byte that another was woken for and has not seen yet. So no thread
//! relies on bytes alone: while others wait on the same descriptor, it looks again after
//! `RECHECK_SHARED`, and in any case after `RECHECK`, which costs an idle thread nothing that could
//! be measured.
//!
//! **A daemon that is gone** closes its end of the wake socket, which wakes every sleeping thread
//! at once. Programs that never sleep find out by a look every `LOOKS` fruitless syncs. From then
//! on `poll` says `POLLERR` and syncs fail with `ENXIO`; the mapping stays, as memory does.
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | `binding` | the thread that binds or resumes | every call | Release / Acquire |
//! | `unknown`, `borrowed` | `resume`, `after_fork` | every call | Release of `unknown`; Relaxed |
//! | `lost`, `fruitless`, `crowded`, `in_sets` | every call | every call | Relaxed: hints |
//! | `sleepers` | threads that sleep | the same, epoll sets | Relaxed |

#![allow(unsafe_code)] // UNSAFETY: a binding is published by a pointer and freed with its entry.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use client::control::{Connection, ControlError, PortFds};
use client::netmap::Binding;
use client::ptnet;
use protocol::{Bind, Bound};
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::abi::OptCsb;
use crate::csb::CsbMode;
use crate::daemon::{errno_of, errno_of_port, socket_path};
use crate::turn::Turn;
use crate::{notice, own};

/// How long a thread sleeps on its doorbell at most while others use the same one.
pub const RECHECK_SHARED: Duration = Duration::from_millis(2);
/// How long a thread sleeps on its doorbell at most, in case that a ring was lost.
pub const RECHECK: Duration = Duration::from_millis(500);
/// Sleeps of `RECHECK_SHARED` after the last time that others were seen.
const CROWDED: u32 = 1000;
/// Fruitless syncs between two looks whether the daemon is there.
const LOOKS: u32 = 256;
const WANT_TX: i16 = libc::POLLOUT | libc::POLLWRNORM;
const WANT_RX: i16 = libc::POLLIN | libc::POLLRDNORM;

/// A binding, and the numbers of its descriptors.
#[derive(Debug)]
struct Held {
    binding: Binding,
    numbers: [RawFd; 3],
}

/// A `/dev/netmap` descriptor of the program.
#[derive(Debug)]
pub struct Descriptor {
    /// Null, or a binding that lives as long as the descriptor does.
    binding: AtomicPtr<Held>,
    /// The binding before a resumption, which may still be in use.
    retired: AtomicPtr<Held>,
    /// The daemon has not been asked yet what this is.
    unknown: AtomicBool,
    /// The doorbell belongs to another process.
    borrowed: AtomicBool,
    /// A thread is binding or asking.
    busy: AtomicBool,
    /// A poll for input alone does not send. Here for the poll's sake; the daemon knows it too.
    no_tx_poll: AtomicBool,
    lost: AtomicBool,
    /// Syncs without a result, one after the other.
    fruitless: AtomicU32,
    /// Threads that sleep on the doorbell.
    sleepers: AtomicU32,
    /// Sleeps until it is forgotten that several threads have slept on it at the same time.
    crowded: AtomicU32,
    /// The doorbell stands in epoll sets, too.
    in_sets: AtomicBool,
    /// CSB mode, and whether a sync loop runs.
    pub csb: CsbMode,
}

impl Descriptor {
    /// A new descriptor; `unknown`: another process made it, and may have bound it.
    #[must_use]
    pub fn new(unknown: bool) -> Self {
        Self {
            binding: AtomicPtr::default(),
            retired: AtomicPtr::default(),
            unknown: AtomicBool::new(unknown),
            borrowed: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            no_tx_poll: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            fruitless: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            crowded: AtomicU32::new(0),
            in_sets: AtomicBool::new(false),
            csb: CsbMode::default(),
        }
    }

    /// What the descriptor, whose number is `fd`, is bound to.
    #[inline]
    #[must_use]
    pub fn binding(&self, fd: RawFd) -> Option<&Binding> {
        if self.unknown.load(Ordering::Relaxed) {
            self.resume(fd);
        }
        self.current()
    }

    /// The binding with a doorbell of this process's own, for a thread that is going to sleep on
    /// it.
    #[must_use]
    pub fn own_binding(&self, fd: RawFd) -> Option<&Binding> {
        if self.unknown.load(Ordering::Relaxed) || self.borrowed.load(Ordering::Relaxed) {
            self.resume(fd);
        }
        self.current()
    }

    #[inline]
    fn current(&self) -> Option<&Binding> {
        // SAFETY: null, or a binding that lives as long as `self`.
        let held = unsafe { self.binding.load(Ordering::Acquire).as_ref() };
        held.map(|held| &held.binding)
    }

    /// Binds the descriptor to a port.
    ///
    /// # Errors
    /// `EBUSY` where it is bound already, `ENXIO` where it was lost, or the errno of the daemon's
    /// refusal.
    pub fn bind(&self, fd: RawFd, bind: Bind) -> Result<&Binding, Errno> {
        let _turn = Turn::take(&self.busy);
        if self.current().is_some() {
            return Err(Errno::BUSY);
        }
        // The answer to a resumption may still come.
        if self.lost.load(Ordering::Relaxed) {
            return Err(Errno::NXIO);
        }
        self.install(match bind.port.pci_address() {
            Some(address) => ptnet::bind(&bind, address).map_err(|error| errno_of_port(&error))?,
            None => {
                // SAFETY: the program's call has it open.
                let socket = unsafe { BorrowedFd::borrow_raw(fd) };
                let connection = Connection::from_fd(socket, socket_path());
                connection.bind(bind).map_err(|error| give_up(socket, &error))?
            }
        })?;
        Ok(self.current().expect("just installed"))
    }

    /// Asks the daemon what the descriptor is bound to. Without an answer the next call asks again.
    #[cold]
    fn resume(&self, fd: RawFd) {
        let _turn = Turn::take(&self.busy);
        let asked = !self.unknown.load(Ordering::Relaxed) && !self.borrowed.load(Ordering::Relaxed);
        if asked {
            return;
        }
        // SAFETY: the program's call has it open.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let installed = match Connection::from_fd(socket, socket_path()).resume() {
            Ok(bound) => self.install(bound).is_ok(),
            Err(ControlError::Refused(_)) => true,
            Err(_) => {
                self.lose();
                false
            }
        };
        if installed {
            self.borrowed.store(false, Ordering::Relaxed);
            self.unknown.store(false, Ordering::Release);
        }
    }

    fn install(&self, (bound, mut fds): (Bound, PortFds)) -> Result<(), Errno> {
        self.no_tx_poll.store(bound.no_tx_poll, Ordering::Relaxed);
        move_up(&mut fds)?;
        let numbers = [fds.region.as_fd(), fds.kick.as_fd(), fds.wake.as_fd()];
        let numbers = numbers.map(|fd| fd.as_raw_fd());
        let binding = Binding::new(bound, fds).map_err(|_| Errno::NOMEM)?;
        numbers.into_iter().for_each(own::set);
        if let Some(old) = self.current() {
            binding.rings().succeed(old.rings());
        }
        let held = Box::new(Held { binding, numbers });
        let old = self.binding.swap(Box::into_raw(held), Ordering::AcqRel);
        if !old.is_null() {
            // Threads may be using it: kept until the descriptor ends. One for each fork.
            release(self.retired.swap(old, Ordering::AcqRel));
        }
        Ok(())
    }

    /// In the child of a `fork`: the doorbell is the parent's.
    pub fn after_fork(&self) {
        Turn::give_back(&self.busy);
        self.sleepers.store(0, Ordering::Relaxed);
        self.csb.after_fork();
        let borrows = self.current().is_some_and(|binding| !binding.shares_doorbell());
        self.borrowed.store(borrows, Ordering::Relaxed);
    }

    /// The binding, for a sync.
    #[inline]
    fn synced_by_calls(&self, fd: RawFd) -> Result<&Binding, Errno> {
        let binding = self.binding(fd).ok_or(Errno::NXIO)?;
        if self.csb.has_csb() { Err(Errno::BUSY) } else { Ok(binding) }
    }

    /// Begins CSB mode.
    ///
    /// # Errors
    /// As [`CsbMode::enable`].
    pub fn enable_csb(&self, fd: RawFd, csb: &OptCsb) -> Result<(), Errno> {
        // Nothing is bound: no ring needs the CSB, and that is no error.
        let Some(binding) = self.binding(fd) else { return Ok(()) };
        self.csb.enable(binding, csb)
    }

    /// `NIOCTXSYNC`.
    ///
    /// # Errors
    /// `ENXIO` where nothing is bound, or the daemon is gone; `EBUSY` in CSB mode.
    #[inline]
    pub fn txsync(&self, fd: RawFd) -> Result<(), Errno> {
        let binding = self.synced_by_calls(fd)?;
        let synced = binding.rings().txsync(false);
        if synced.kick {
            self.kick(binding);
        }
        yield_after_lap(binding);
        self.check(binding, synced.ready)
    }

    /// `NIOCRXSYNC`.
    ///
    /// # Errors
    /// `ENXIO` where nothing is bound, or the daemon is gone; `EBUSY` in CSB mode.
    #[inline]
    pub fn rxsync(&self, fd: RawFd) -> Result<(), Errno> {
        let binding = self.synced_by_calls(fd)?;
        let synced = binding.rings().rxsync(now());
        if synced.kick {
            self.kick(binding);
        }
        self.check(binding, synced.ready)
    }

    /// Checks after a sync that the daemon is still there.
    ///
    /// # Errors
    /// `ENXIO`: the daemon is gone.
    #[inline]
    pub fn check(&self, binding: &Binding, fruitful: bool) -> Result<(), Errno> {
        self.note(binding, fruitful);
        if self.lost.load(Ordering::Relaxed) { Err(Errno::NXIO) } else { Ok(()) }
    }

    #[inline]
    fn note(&self, binding: &Binding, fruitful: bool) {
        // Threads may step on each other's counts; a look more or less is no matter.
        let count = self.fruitless.load(Ordering::Relaxed);
        if fruitful {
            if count != 0 {
                self.fruitless.store(0, Ordering::Relaxed);
            }
            return;
        }
        self.fruitless.store((count + 1) % LOOKS, Ordering::Relaxed);
        if count + 1 == LOOKS {
            self.look(binding);
        }
    }

    /// The port or the daemon is gone. Of ports that go by and by, the first is reported.
    #[cold]
    fn lose(&self) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            notice::port_is_gone();
        }
    }

    /// Asks the kernel whether the daemon's end of the doorbell is open.
    #[cold]
    fn look(&self, binding: &Binding) {
        if binding.check().is_err() {
            self.lose();
        }
    }

    /// Rings the switch's doorbell.
    #[cold]
    pub fn kick(&self, binding: &Binding) {
        if binding.kick().is_err() {
            self.lose();
        }
    }

    /// Syncs as `poll` does and says which of `events` have come.
    #[inline]
    pub fn poll(&self, fd: RawFd, events: i16) -> i16 {
        let Ok(binding) = self.synced_by_calls(fd) else { return libc::POLLERR };
        let (mut come, mut kick) = (0, false);
        let (tx, rx) = (events & WANT_TX, events & WANT_RX);
        if tx != 0 || !self.no_tx_poll.load(Ordering::Relaxed) {
            let synced = binding.rings().txsync(tx == 0);
            kick |= synced.kick;
            come |= if synced.ready { tx } else { 0 };
            come |= if synced.bad { libc::POLLERR } else { 0 };
        }
        if rx != 0 {
            let synced = binding.rings().rxsync(now());
            kick |= synced.kick;
            come |= if synced.ready { rx } else { 0 };
            come |= if synced.bad { libc::POLLERR } else { 0 };
        }
        if kick {
            self.kick(binding);
        }
        yield_after_lap(binding);
        self.note(binding, come != 0);
        if self.lost.load(Ordering::Relaxed) { come | libc::POLLERR } else { come }
    }

    /// Asks to be woken for `events`, and returns the doorbell to sleep on until
    /// [`Descriptor::woken`]. `None`: they have come already.
    pub fn arm(&self, fd: RawFd, events: i16) -> Option<RawFd> {
        let binding = self.own_binding(fd)?;
        if self.sleepers.fetch_add(1, Ordering::Relaxed) > 0 {
            self.crowded.store(CROWDED, Ordering::Relaxed);
        }
        binding.sleeps();
        if binding.rings().arm(events & WANT_TX != 0, events & WANT_RX != 0) {
            return Some(binding.doorbell().as_raw_fd());
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Asks for a ring of the doorbell when `events` come, or, after a report of the edition
    /// `reported`, when more has come than any sync has found. `false`: it has come already. For an
    /// epoll set, in which the doorbell stands.
    pub fn arm_for(&self, fd: RawFd, events: i16, reported: Option<u64>) -> bool {
        let Some(binding) = self.own_binding(fd).filter(|_| !self.is_shut()) else {
            // Errors are reported at once, and then come no more.
            return reported.is_some();
        };
        binding.sleeps();
        let (tx, rx) = (events & WANT_TX != 0, events & WANT_RX != 0);
        let Some(reported) = reported else { return binding.rings().arm(tx, rx) };
        // Another process's sync may have found what this one is to report.
        binding.rings().arm_beyond(tx, rx)
            && (self.edition(events) == reported || !binding.rings().is_ready(tx, rx))
    }

    /// Whether threads outside of epoll sets sleep on the doorbell.
    #[must_use]
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Whether every later call can only fail.
    fn is_shut(&self) -> bool {
        self.csb.has_csb() || self.lost.load(Ordering::Relaxed)
    }

    /// A number that changes with every edge of `events`.
    #[must_use]
    pub fn edition(&self, events: i16) -> u64 {
        let shut = u64::from(self.is_shut()) << 63;
        let rings = self.current().map(Binding::rings);
        shut ^ rings.map_or(0, |it| it.edition(events & WANT_TX != 0, events & WANT_RX != 0))
    }

    /// The doorbell, for an epoll set; `None`: it will never ring again.
    #[must_use]
    pub fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.in_sets.store(true, Ordering::Relaxed);
        self.current().filter(|_| !self.is_shut()).map(Binding::doorbell)
    }

    /// Empties the doorbell; says whether it had rung.
    pub fn answer_any(&self) -> bool {
        self.current().is_some_and(|binding| self.answer(binding))
    }

    /// How long a thread may sleep on the doorbell.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let crowded = self.crowded.load(Ordering::Relaxed);
        self.crowded.store(crowded.saturating_sub(1), Ordering::Relaxed);
        let shared = crowded > 0 || self.in_sets.load(Ordering::Relaxed);
        if shared { RECHECK_SHARED } else { RECHECK }
    }

    /// After the sleep; `rung`: the doorbell said something.
    pub fn woken(&self, rung: bool) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        if let Some(binding) = self.current().filter(|_| rung) {
            self.answer(binding);
        }
    }

    /// Empties the doorbell; says whether it had rung.
    pub fn answer(&self, binding: &Binding) -> bool {
        binding.acknowledge().unwrap_or_else(|_| {
            self.lose();
            true
        })
    }
}

/// Gives the core to a receiver that may wait for it.
#[inline]
fn yield_after_lap(binding: &Binding) {
    if binding.rings().take_lap() {
        rustix::thread::sched_yield();
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        release(*self.binding.get_mut());
        release(*self.retired.get_mut());
    }
}

/// The errno of a call to bind that failed. One without an answer ends the connection, for every
/// process that has it: its answer may still come, and would be taken for that of the next call.
/// The daemon then releases what it has bound.
fn give_up(socket: BorrowedFd<'_>, error: &ControlError) -> Errno {
    if matches!(error, ControlError::Timeout(_)) {
        // The call fails where the connection has ended.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
    errno_of(error)
}

/// Ends a binding that no thread uses any more.
fn release(held: *mut Held) {
    if !held.is_null() {
        // SAFETY: made by `Box::into_raw` in `install`, and no longer reachable.
        let held = unsafe { Box::from_raw(held) };
        held.numbers.into_iter().for_each(own::clear);
    }
}

/// Moves the descriptors of a port out of the program's way.
fn move_up(fds: &mut PortFds) -> Result<(), Errno> {
    [&mut fds.region, fds.kick.fd_mut(), &mut fds.wake].into_iter().try_for_each(own::raise)
}

/// The time, as rings have it.
#[inline]
fn now() -> ring::sync::Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    [now.tv_sec, now.tv_nsec / 1000]
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn a_late_answer_is_taken_for_that_of_no_later_call() {
        let (ours, daemon) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let timeout = ControlError::Timeout(PathBuf::new());
        assert_eq!(give_up(ours.as_fd(), &timeout), Errno::TIMEDOUT);
        let late = rustix::net::send(&daemon, b"late", SendFlags::NOSIGNAL);
        assert_eq!(late, Err(Errno::PIPE));
        let bind = Bind::new("vale0:a".parse().unwrap());
        let descriptor = Descriptor::new(false);
        let again = descriptor.bind(ours.as_raw_fd(), bind.clone());
        assert_eq!(again.err(), Some(Errno::NXIO));
        // A resumption without an answer leaves the connection to those that are bound.
        let resumed = Descriptor::new(true);
        resumed.lose();
        assert_eq!(resumed.bind(-1, bind).err(), Some(Errno::NXIO));
    }
}
