//! A client that holds up accesses to the memory of its port: a thread punches holes into it, and
//! seldom gets a core for that. A worker that touches the buffers meanwhile waits for the thread.
//!
//! ```text
//!   one core    SPINNERS threads that compute ── and the thread of class SCHED_IDLE, which punches
//!   any core    a thread that fills the holes, so that there is something to punch, and one that
//!               returns the frames that it gets
//! ```

#![allow(unsafe_code)] // UNSAFETY: the class of a thread has no safe interface.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::Error;
use harness::role::{MemoryAttack, Report};
use ring::Region;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::wake_ups::Woken;

/// Threads that compute on the core of the one that punches. With more of them a hole takes longer,
/// and there are fewer.
const SPINNERS: usize = 2;

/// Attaches and attacks until stdin ends, or its time is over.
pub fn run(attack: &MemoryAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let (connection, attached, fds) = super::attach_for(&attack.at, attack.seconds)?;
    let mut port = Woken::new(&attached, &fds);
    port.announce(&fds);
    // The frame must not be gone before the switch has it.
    std::thread::sleep(Duration::from_millis(300));
    let core = last_core();
    for _ in 0..SPINNERS {
        std::thread::spawn(move || {
            bind(&core);
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let buffers = attached.pool..attached.region_bytes;
    let memory = fds.region.try_clone().expect("descriptors");
    std::thread::spawn(move || {
        bind(&core);
        become_idle();
        punch(&memory, buffers.start, buffers.end - buffers.start)
    });
    let region = port.region.clone();
    std::thread::spawn(move || fill(&region));
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        port.ask();
        std::thread::sleep(Duration::from_micros(200));
    }
    drop(connection);
    Ok(Report::Ready)
}

/// Punches holes for ever.
fn punch(memory: &OwnedFd, from: u64, bytes: u64) -> ! {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        fallocate(memory, flags, from, bytes).expect("no seal forbids it");
    }
}

/// Commits all buffers again and again.
fn fill(region: &Region) -> ! {
    let first = region.buffers().next().expect("many");
    let count = u32::try_from(region.buffers().count()).expect("a region is below 4 GiB");
    loop {
        // Without memory, there is less to punch.
        let _ = region.populate_buffers(first, count);
        std::thread::sleep(Duration::from_millis(1));
    }
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
