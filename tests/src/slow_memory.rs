//! A client that holds up accesses to the memory of its port, or a VMM to that of its guest: a
//! thread punches holes into it, and seldom gets a core for that. A worker that touches the buffers
//! meanwhile waits for the thread.
//!
//! ```text
//!   one core    SPINNERS threads that compute ── and the thread of class SCHED_IDLE, which punches
//!   any core    a thread that fills the holes, so that there is something to punch, and one that
//!               returns the frames that it gets
//! ```

#![allow(unsafe_code)] // UNSAFETY: the class of a thread has no safe interface.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::Error;
use harness::frames::announcement;
use harness::machine::Machine;
use harness::role::{MemoryAttack, Report};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::wake_ups::Woken;

/// Threads that compute on the core of the one that punches. With more of them a hole takes longer,
/// and there are fewer.
const SPINNERS: usize = 2;
/// The address of a guest.
const STATION: u32 = 7;
/// By then the switch has a frame.
const SEEN: Duration = Duration::from_millis(300);
/// Time between two looks at what came.
const PAUSE: Duration = Duration::from_micros(200);

/// Attacks until stdin ends, or its time is over.
pub fn run(attack: &MemoryAttack) -> Result<Report, Error> {
    match &attack.machine {
        None => as_client(attack),
        Some(socket) => {
            super::end_after(attack.seconds);
            as_machine(socket)
        }
    }
}

fn as_client(attack: &MemoryAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let (connection, attached, fds) = super::attach_for(&attack.at, attack.seconds)?;
    let mut port = Woken::new(&attached, &fds);
    port.announce(&fds);
    // The frame must not be gone before the switch has it.
    std::thread::sleep(SEEN);
    let region = port.region.clone();
    hold_up(copy(fds.region.as_fd()), attached.pool..attached.region_bytes, move || {
        let first = region.buffers().next().expect("many");
        let count = u32::try_from(region.buffers().count()).expect("a region is below 4 GiB");
        // Without memory, there is less to punch.
        let _ = region.populate_buffers(first, count);
    });
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        port.ask();
        std::thread::sleep(PAUSE);
    }
    drop(connection);
    Ok(Report::Ready)
}

/// Receives as a guest what is sent to it, until the switch disconnects the VMM.
fn as_machine(socket: &Path) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let mut machine = Machine::boot(socket);
    machine.send(&announcement(STATION));
    std::thread::sleep(SEEN);
    let (file, buffers) = (copy(machine.memory().file), machine.buffers());
    let (theirs, part) = (copy(file.as_fd()), buffers.clone());
    hold_up(file, buffers, move || {
        // Without memory, there is less to punch.
        let _ = fallocate(&theirs, FallocateFlags::empty(), part.start, part.end - part.start);
    });
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) && !machine.is_cut_off() {
        while machine.try_receive().is_some() {}
        std::thread::sleep(PAUSE);
    }
    Ok(Report::Ready)
}

/// Starts the threads that hold a part of a file up, one of which commits it by `fill`.
fn hold_up(memory: OwnedFd, part: Range<u64>, fill: impl Fn() + Send + 'static) {
    let core = last_core();
    for _ in 0..SPINNERS {
        std::thread::spawn(move || {
            bind(&core);
            loop {
                std::hint::spin_loop();
            }
        });
    }
    std::thread::spawn(move || {
        bind(&core);
        become_idle();
        punch(&memory, part.start, part.end - part.start)
    });
    std::thread::spawn(move || {
        loop {
            fill();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Punches holes for ever.
fn punch(memory: &OwnedFd, from: u64, bytes: u64) -> ! {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        fallocate(memory, flags, from, bytes).expect("no seal forbids it");
    }
}

fn copy(file: BorrowedFd<'_>) -> OwnedFd {
    file.try_clone_to_owned().expect("descriptors")
}

/// A core that this process may run on.
fn last_core() -> CpuSet {
    let all = sched_getaffinity(None).expect("every thread has some");
    let last = (0..CpuSet::MAX_CPU).rev().find(|&core| all.is_set(core));
    let mut set = CpuSet::new();
    set.set(last.expect("one at least"));
    set
}

fn bind(core: &CpuSet) {
    sched_setaffinity(None, core).expect("one of ours");
}

/// Lets every other thread go first.
fn become_idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: a live structure for the kernel to read.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(done, 0, "every thread may step back: {}", std::io::Error::last_os_error());
}
