//! CSB mode: a program's indexes go through two arrays in its own memory.
//!
//! `NETMAP_REQ_CSB_ENABLE` (or the option at REGISTER) names the arrays; from then on syncs and
//! polls of the descriptor are refused, and a sync loop ([`crate::kloop`]) may run.
//!
//! ```text
//!           START                      STOP
//!  idle ────────────► RUNNING ────────────────► RUNNING|STOPPING ──► idle
//!    │  STOP                    the loop sees it, START returns, STOP returns
//!    └────────► STOPPING ──START──► idle, at once: a STOP that comes first is not lost
//! ```
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | `state` | threads that start, run or stop the loop | the same | AcqRel / Acquire |
//! | `atok`, `ktoa` | a thread that enables the mode | syncs, START | Release of `atok` / Acquire |

#![allow(unsafe_code)] // UNSAFETY: arrays in the program's memory.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use client::netmap::Binding;
use ring::abi::{CsbAtok, CsbKtoa};
use ring::sync::kloop::ProgramCsb;
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;

use crate::abi::OptCsb;
use crate::memory::{OwnMemory, UserMemory};
use crate::own::Own;

const RUNNING: u32 = 1;
const STOPPING: u32 = 2;

/// How often `STOP` looks whether the loop has ended.
const GLANCE: Duration = Duration::from_millis(1);
/// Bytes of a status block.
const BLOCK: usize = size_of::<CsbAtok>();
const _: () = assert!(BLOCK == size_of::<CsbKtoa>());

/// The CSB mode of a descriptor.
#[derive(Debug, Default)]
pub struct CsbMode {
    state: AtomicU32,
    /// Where the program's arrays are; 0: no CSB mode.
    atok: AtomicUsize,
    ktoa: AtomicUsize,
    /// Wakes the loop up for a look at `state`.
    bell: OnceLock<Own>,
}

impl CsbMode {
    /// Whether the program's indexes go through its own memory.
    #[inline]
    #[must_use]
    pub fn has_csb(&self) -> bool {
        self.atok.load(Ordering::Relaxed) != 0
    }

    /// Checks that this is a CSB for this number of rings. Writes zeros into it, as netmap does.
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
    /// `EBUSY` while a loop is running, and those of [`CsbMode::check`]; `EINVAL` unless the rings
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

    /// Whether the loop must end.
    #[inline]
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.state.load(Ordering::Acquire) & STOPPING != 0
    }

    /// The program's arrays; `None` without CSB mode.
    #[must_use]
    pub fn arrays(&self) -> Option<ProgramCsb> {
        let atok = self.atok.load(Ordering::Acquire);
        // SAFETY: checked when CSB mode began; the program keeps both aligned and writable.
        (atok != 0).then(|| unsafe { ProgramCsb::new(atok, self.ktoa.load(Ordering::Relaxed)) })
    }

    /// Says that a loop runs, until the result is dropped.
    ///
    /// # Errors
    /// `EBUSY`: one runs already.
    pub fn begin_loop(&self) -> Result<Running<'_>, Errno> {
        Running::begin(&self.state)
    }

    /// What wakes the loop up for `STOP`.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn bell(&self) -> Result<&Own, Errno> {
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

/// A loop that runs, until dropped.
#[derive(Debug)]
pub struct Running<'a>(&'a AtomicU32);

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

/// Adds to an eventfd. One that cannot take more has been rung.
pub fn ring(event: BorrowedFd<'_>) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Gives the core away, for so long at least.
pub fn pause(time: Duration) {
    if time.is_zero() {
        rustix::thread::sched_yield();
        return;
    }
    let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos().try_into().unwrap_or(999_999_999) };
    // Cut short by a signal: the loop comes round sooner.
    let _ = rustix::thread::nanosleep(&time);
}
