//! CSB mode and the sync loop: a thread of the program's that syncs in the place of its calls.
//!
//! # Theory of operation
//!
//! `NETMAP_REQ_CSB_ENABLE` (or the option at REGISTER) names two arrays of the program's; from then
//! on its rings' indexes go through them, and syncs and polls are refused. The thread that asks for
//! `NETMAP_REQ_SYNC_KLOOP_START` stays in the call and carries indexes to and fro
//! ([`ring::sync::kloop`]) until another asks for `STOP`.
//!
//! ```text
//!           START                      STOP
//!  idle ────────────► RUNNING ────────────────► RUNNING|STOPPING ──► idle
//!    │  STOP                    the loop sees it, START returns, STOP returns
//!    └────────► STOPPING ──START──► idle, at once: whoever stops first is heard
//! ```
//!
//! The loop waits in one of two ways. With an eventfd for each ring (`ioeventfd`) it sleeps, in an
//! epoll set of its own: edge-triggered for the program's eventfds, whose counters it leaves alone
//! as the kernel does. Otherwise it comes round every `sleep_us`. With `irqfd`s it tells the
//! program of slots. All of them are copied at START: a number that the program closes and uses
//! for another file meanwhile is not written to.
//!
//! One loop serves one process's memory: a child of `fork` has no loop, and starts its own.

#![allow(unsafe_code)] // UNSAFETY: descriptors by number, and arrays in the program's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use client::netmap::Binding;
use ring::abi::{CsbAtok, CsbKtoa};
use ring::sync::kloop::{LoopMode, ProgramCsb, SyncLoop};
use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use crate::abi::{KLOOP_DIRECT_RX, KLOOP_DIRECT_TX, KloopStart, OptCsb, OptKloopMode, option};
use crate::descriptor::{Descriptor, Own};
use crate::memory::{OwnMemory, UserMemory};
use crate::request::Options;

const RUNNING: u32 = 1;
const STOPPING: u32 = 2;

/// Longest sleep of a loop, in microseconds.
const LONGEST_SLEEP: u32 = 1_000_000;
/// Passes with the core given away in between, before sleeping.
const YIELDS: u32 = 50;
/// How long a loop sleeps at most, in case that a kick was lost.
const RECHECK: Duration = Duration::from_millis(500);
/// How often `STOP` looks whether the loop has ended.
const GLANCE: Duration = Duration::from_millis(1);
/// Bytes of a status block.
const BLOCK: usize = size_of::<CsbAtok>();
const _: () = assert!(BLOCK == size_of::<CsbKtoa>());

/// The CSB mode of a descriptor, and its loop.
#[derive(Debug, Default)]
pub struct Kloop {
    state: AtomicU32,
    /// Where the program's arrays are; 0: no CSB mode.
    atok: AtomicUsize,
    ktoa: AtomicUsize,
    /// Wakes the loop up for a look at `state`.
    bell: OnceLock<Own>,
}

impl Kloop {
    /// Do the program's indexes go through its own memory?
    #[inline]
    #[must_use]
    pub fn has_csb(&self) -> bool {
        self.atok.load(Ordering::Relaxed) != 0
    }

    /// Is this a CSB for so many rings? Writes zeros into it, as netmap does.
    ///
    /// # Errors
    /// `EINVAL`: not aligned; `EFAULT`: not the program's memory.
    pub fn check(csb: &OptCsb, rings: usize) -> Result<(), Errno> {
        let aligned = |address: u64| address.is_multiple_of(BLOCK as u64);
        if !aligned(csb.csb_atok) || !aligned(csb.csb_ktoa) {
            return Err(Errno::INVAL);
        }
        let mut room = vec![0; rings * BLOCK];
        OwnMemory.read(csb.csb_atok, &mut room)?;
        room.fill(0);
        OwnMemory.write(csb.csb_ktoa, &room)
    }

    /// Begins CSB mode, or moves it to other arrays.
    ///
    /// # Errors
    /// `EBUSY` while a loop is running, and those of [`Kloop::check`]; `EINVAL` unless the rings
    /// are bound exclusively.
    pub fn enable(&self, binding: &Binding, csb: &OptCsb) -> Result<(), Errno> {
        if self.state.load(Ordering::Acquire) & RUNNING != 0 {
            return Err(Errno::BUSY);
        }
        let rings = binding.rings().count();
        if rings == 0 {
            return Ok(());
        }
        if !binding.bound().exclusive {
            return Err(Errno::INVAL);
        }
        Self::check(csb, rings)?;
        let address = |address| usize::try_from(address).map_err(|_| Errno::FAULT);
        let (atok, ktoa) = (address(csb.csb_atok)?, address(csb.csb_ktoa)?);
        // SAFETY: aligned and writable, as just seen; the program keeps it so.
        binding.rings().enter_csb(unsafe { ProgramCsb::new(atok, ktoa) });
        self.ktoa.store(ktoa, Ordering::Relaxed);
        self.atok.store(atok, Ordering::Release);
        Ok(())
    }

    /// Runs the loop, until [`Kloop::stop`].
    ///
    /// # Errors
    /// `EINVAL`: no CSB, or options that make no sense; `EBUSY`: it is running already; `ENXIO`:
    /// nothing is bound, or the daemon is gone.
    pub fn start(
        &self,
        (descriptor, fd): (&Descriptor, RawFd),
        request: &KloopStart,
        options: &mut Options,
    ) -> Result<(), Errno> {
        if request.sleep_us > LONGEST_SLEEP {
            return Err(Errno::INVAL);
        }
        let binding = descriptor.own_binding(fd).ok_or(Errno::NXIO)?;
        let atok = self.atok.load(Ordering::Acquire);
        if atok == 0 {
            return Err(Errno::INVAL);
        }
        let bell = self.bell()?;
        let _running = Running::begin(&self.state)?;
        // SAFETY: looked at when CSB mode began; the program keeps it so.
        let csb = unsafe { ProgramCsb::new(atok, self.ktoa.load(Ordering::Relaxed)) };
        let (mut mode, events) = read_options(options, binding.rings().count())?;
        mode.rung = events.as_ref().is_some_and(Events::can_wake);
        let waits = match events.as_ref().filter(|_| mode.rung) {
            Some(events) => Waits::Asleep(events.waker(binding, bell)?),
            None => Waits::Every(Duration::from_micros(request.sleep_us.into())),
        };
        let sync = binding.rings().sync_loop(csb, mode);
        let irqs = events.map(|events| events.irqs).unwrap_or_default();
        Loop { kloop: self, descriptor, binding, sync, irqs, waits }.run()
    }

    /// Ends the loop, and returns when it has ended. One that has not begun ends when it does.
    pub fn stop(&self) {
        self.state.fetch_or(STOPPING, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) & RUNNING != 0 {
            if let Some(bell) = self.bell.get() {
                ring(bell.as_fd());
            }
            pause(GLANCE);
        }
    }

    /// What wakes the loop up for `STOP`.
    fn bell(&self) -> Result<&Own, Errno> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(self.bell.get_or_init(|| Own::new(bell)))
    }

    /// In the child of a `fork`: the thread that ran the loop is not here.
    pub fn after_fork(&self) {
        self.state.store(0, Ordering::Relaxed);
    }
}

/// A loop that is running; none any more when dropped.
struct Running<'a>(&'a AtomicU32);

impl<'a> Running<'a> {
    fn begin(state: &'a AtomicU32) -> Result<Self, Errno> {
        match state.fetch_or(RUNNING, Ordering::AcqRel) & RUNNING {
            0 => Ok(Self(state)),
            _ => Err(Errno::BUSY),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The program's eventfds, one of each for every ring; copies.
struct Events {
    /// The program rings these; `None` where it said -1.
    ios: Vec<Option<Own>>,
    /// The loop rings these.
    irqs: Vec<Option<Own>>,
}

/// What the options of `START` say.
fn read_options(options: &mut Options, rings: usize) -> Result<(LoopMode, Option<Events>), Errno> {
    let mut mode = LoopMode::default();
    if let Some(OptKloopMode { mode: bits, .. }) = options.get(option::SYNC_KLOOP_MODE) {
        let known = bits & !(KLOOP_DIRECT_TX | KLOOP_DIRECT_RX) == 0;
        let outcome = if known { Ok(()) } else { Err(Errno::INVAL) };
        options.set_status(option::SYNC_KLOOP_MODE, outcome);
        outcome?;
        mode.direct_tx = bits & KLOOP_DIRECT_TX != 0;
        mode.direct_rx = bits & KLOOP_DIRECT_RX != 0;
    }
    let Some(bytes) = options.bytes(option::SYNC_KLOOP_EVENTFDS).map(<[u8]>::to_vec) else {
        return Ok((mode, None));
    };
    let numbers = numbers(&bytes, rings);
    let asleep = numbers.as_ref().is_some_and(|all| all.iter().all(|[io, _]| *io >= 0));
    // Who syncs where the program rings needs the program to ring.
    let direct = mode.direct_tx || mode.direct_rx;
    let numbers = numbers.filter(|_| asleep || !direct).ok_or(Errno::INVAL);
    options.set_status(option::SYNC_KLOOP_EVENTFDS, numbers.as_ref().map(drop).map_err(|e| *e));
    Ok((mode, Some(Events::copy(&numbers?, asleep)?)))
}

/// The numbers in the option's body; `None`: not so many pairs.
fn numbers(bytes: &[u8], rings: usize) -> Option<Vec<[RawFd; 2]>> {
    let (pairs, rest) = bytes.as_chunks::<8>();
    if pairs.len() != rings || !rest.is_empty() {
        return None;
    }
    let number = |word: &[u8]| RawFd::from_ne_bytes([word[0], word[1], word[2], word[3]]);
    Some(pairs.iter().map(|pair| [number(&pair[..4]), number(&pair[4..])]).collect())
}

impl Events {
    /// Copies those that are needed: without sleep nobody listens to the program's.
    fn copy(numbers: &[[RawFd; 2]], asleep: bool) -> Result<Self, Errno> {
        let copy = |fd: RawFd| if fd < 0 { Ok(None) } else { eventfd(fd).map(Some) };
        let (mut ios, mut irqs) = (Vec::new(), Vec::new());
        for [io, irq] in numbers {
            irqs.push(copy(*irq)?);
            ios.push(if asleep { copy(*io)? } else { None });
        }
        Ok(Self { ios, irqs })
    }

    fn can_wake(&self) -> bool {
        !self.ios.is_empty() && self.ios.iter().all(Option::is_some)
    }

    /// A set with everything that a sleeping loop wakes up for.
    fn waker(&self, binding: &Binding, bell: &Own) -> Result<Own, Errno> {
        use epoll::{CreateFlags, EventData, EventFlags};
        let set = Own::new(epoll::create(CreateFlags::CLOEXEC)?);
        let level = [bell.as_fd(), binding.doorbell()];
        let edge = self.ios.iter().flatten().map(Own::as_fd);
        for fd in level {
            epoll::add(&set, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        for fd in edge {
            epoll::add(&set, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        }
        Ok(set)
    }
}

/// A copy of an eventfd of the program's.
fn eventfd(fd: RawFd) -> Result<Own, Errno> {
    // SAFETY: used within this call; a number that is not open is an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let copy: OwnedFd = rustix::io::fcntl_dupfd_cloexec(borrowed, 0)?;
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new());
    // Without /proc the program is believed.
    match link {
        Ok(link) if link.as_bytes() != b"anon_inode:[eventfd]" => Err(Errno::INVAL),
        _ => Ok(Own::new(copy)),
    }
}

/// How a loop waits.
enum Waits {
    /// In this set.
    Asleep(Own),
    /// So long, in any case.
    Every(Duration),
}

/// A running loop.
struct Loop<'a> {
    kloop: &'a Kloop,
    descriptor: &'a Descriptor,
    binding: &'a Binding,
    sync: SyncLoop<'a>,
    irqs: Vec<Option<Own>>,
    waits: Waits,
}

impl Loop<'_> {
    fn run(mut self) -> Result<(), Errno> {
        let mut quiet = 0;
        while self.kloop.state.load(Ordering::Acquire) & STOPPING == 0 {
            let irqs = &self.irqs;
            let pass = self.sync.pass(|i| {
                if let Some(irq) = irqs.get(i).and_then(Option::as_ref) {
                    ring(irq.as_fd());
                }
            });
            if pass.kick {
                self.descriptor.kick(self.binding);
            }
            self.descriptor.check(self.binding, pass.busy)?;
            quiet = if pass.busy { 0 } else { quiet + 1 };
            match &self.waits {
                Waits::Every(time) => pause(*time),
                Waits::Asleep(_) if quiet == 0 => {}
                Waits::Asleep(_) if quiet <= YIELDS => rustix::thread::sched_yield(),
                Waits::Asleep(set) => {
                    if self.sync.arm() && self.sleep(set) {
                        quiet = 0;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sleeps; says whether something has come.
    fn sleep(&self, set: &Own) -> bool {
        let mut room = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 8];
        let time = Timespec { tv_sec: 0, tv_nsec: RECHECK.subsec_nanos().into() };
        let come = epoll::wait(set, room.as_mut_slice(), Some(&time));
        self.descriptor.answer(self.binding);
        if let Some(bell) = self.kloop.bell.get() {
            // Empty unless somebody stops us.
            let _ = rustix::io::read(bell, &mut [0u8; 8][..]);
        }
        come.is_ok_and(|(events, _)| !events.is_empty())
    }
}

/// Adds to an eventfd. One that cannot take more has been rung.
fn ring(event: BorrowedFd<'_>) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Gives the core away, for so long at least.
fn pause(time: Duration) {
    if time.is_zero() {
        rustix::thread::sched_yield();
        return;
    }
    let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos().try_into().unwrap_or(999_999_999) };
    // Cut short by a signal: the loop comes round sooner.
    let _ = rustix::thread::nanosleep(&time);
}
