//! The sync loop: a thread of the program that syncs in the place of its calls.
//!
//! # Theory of operation
//!
//! In CSB mode ([`crate::csb`]) the indexes of a program's rings stand in two arrays of its own.
//! The thread that asks for `NETMAP_REQ_SYNC_KLOOP_START` stays in the call and carries indexes
//! between the arrays and the region ([`ring::sync::kloop`]) until another thread asks for `STOP`.
//!
//! The loop waits in one of two ways. With an eventfd for each ring (`ioeventfd`) it sleeps in an
//! epoll set of its own, edge-triggered for the program's eventfds: it leaves their counters alone,
//! as the kernel does. Otherwise it comes round every `sleep_us`. With `irqfd`s it tells the
//! program of slots. All eventfds are copied at START: if the program closes one and the number
//! then names another file, the loop does not write to that file.
//!
//! One loop serves the memory of one process: a child of `fork` has no loop, and starts its own.

#![allow(unsafe_code)] // UNSAFETY: descriptors by number.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use client::netmap::Binding;
use ring::sync::kloop::{LoopMode, SyncLoop};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::abi::{KLOOP_DIRECT_RX, KLOOP_DIRECT_TX, KloopStart, OptKloopMode, option};
use crate::csb::{pause, ring};
use crate::descriptor::{Descriptor, RECHECK};
use crate::own::Own;
use crate::request::Options;

/// Longest sleep of a loop, in microseconds.
const LONGEST_SLEEP: u32 = 1_000_000;
/// Passes with the core given away in between, before sleeping.
const YIELDS: u32 = 50;

/// Runs the loop, until `CsbMode::stop`.
///
/// # Errors
/// `EINVAL`: no CSB, or options that make no sense; `EBUSY`: it is running already; `ENXIO`:
/// nothing is bound, or the daemon is gone.
pub fn start(
    (descriptor, fd): (&Descriptor, RawFd),
    request: &KloopStart,
    options: &mut Options,
) -> Result<(), Errno> {
    if request.sleep_us > LONGEST_SLEEP {
        return Err(Errno::INVAL);
    }
    let binding = descriptor.own_binding(fd).ok_or(Errno::NXIO)?;
    let arrays = descriptor.csb.arrays().ok_or(Errno::INVAL)?;
    let bell = descriptor.csb.bell()?;
    let _running = descriptor.csb.begin_loop()?;
    let (mut mode, events) = read_options(options, binding.rings().count())?;
    mode.rung = events.as_ref().is_some_and(Events::can_wake);
    let waits = match events.as_ref().filter(|_| mode.rung) {
        Some(events) => Waits::Asleep(events.waker(binding, bell)?),
        None => Waits::Every(Duration::from_micros(request.sleep_us.into())),
    };
    let sync = binding.rings().sync_loop(arrays, mode);
    let irqs = events.map(|events| events.irqs).unwrap_or_default();
    Loop { bell, descriptor, binding, sync, irqs, waits }.run()
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
    // A loop that syncs on the program's kicks needs the program to kick.
    let direct = mode.direct_tx || mode.direct_rx;
    let numbers = numbers.filter(|_| asleep || !direct).ok_or(Errno::INVAL);
    options.set_status(option::SYNC_KLOOP_EVENTFDS, numbers.as_ref().map(drop).map_err(|e| *e));
    Ok((mode, Some(Events::copy(&numbers?, asleep)?)))
}

/// The numbers in the option's body; `None`: the number of pairs is wrong.
fn numbers(bytes: &[u8], rings: usize) -> Option<Vec<[RawFd; 2]>> {
    let (pairs, rest) = bytes.as_chunks::<8>();
    if pairs.len() != rings || !rest.is_empty() {
        return None;
    }
    let number = |word: &[u8]| RawFd::from_ne_bytes([word[0], word[1], word[2], word[3]]);
    Some(pairs.iter().map(|pair| [number(&pair[..4]), number(&pair[4..])]).collect())
}

impl Events {
    /// Copies the eventfds that are needed: a loop that does not sleep listens to none of the
    /// program's.
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
    /// Wakes the loop up for `STOP`.
    bell: &'a Own,
    descriptor: &'a Descriptor,
    binding: &'a Binding,
    sync: SyncLoop<'a>,
    irqs: Vec<Option<Own>>,
    waits: Waits,
}

impl Loop<'_> {
    fn run(mut self) -> Result<(), Errno> {
        let mut quiet = 0;
        while !self.descriptor.csb.is_stopping() {
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
        // Empty unless a thread stops the loop.
        let _ = rustix::io::read(self.bell, &mut [0u8; 8][..]);
        come.is_ok_and(|(events, _)| !events.is_empty())
    }
}
