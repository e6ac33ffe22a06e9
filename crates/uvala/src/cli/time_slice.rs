//! How soon a thread gets a core that another one has.

#![allow(unsafe_code)] // UNSAFETY: no library that we use wraps sched_setattr(2).

use rustix::process::getpriority_process;

/// The shortest time slice of Linux, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// Bytes of the first version of the structure, which every kernel knows.
const SIZE: u32 = 48;
const _: () = assert!(size_of::<libc::sched_attr>() == SIZE as usize);

/// Gives this thread the shortest time slice. It gets no more of a core for that, but sooner: a
/// thread that wakes up takes the core from one with a longer slice, and need not wait for its end,
/// which may be 8 ms away. Before Linux 6.12 nothing changes.
pub fn shorten() {
    // SAFETY: it asks for a number.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let nice = getpriority_process(None);
    let (libc::SCHED_OTHER, Ok(sched_nice)) = (policy, nice) else { return };
    let attributes = libc::sched_attr {
        size: SIZE,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice,
        sched_priority: 0,
        sched_runtime: SHORTEST_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure lives, and has the size that it says. Whether the kernel does it is no
    // matter.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_thread_with_a_shorter_slice_keeps_its_priority_and_policy() {
        let state = || {
            // SAFETY: it asks for a number.
            let policy = unsafe { libc::sched_getscheduler(0) };
            (getpriority_process(None).unwrap(), policy)
        };
        let before = state();
        shorten();
        assert_eq!(state(), before);
        // SAFETY: all fields are numbers.
        let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the structure lives, and has that size.
        let said = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, SIZE, 0) };
        assert_eq!(said, 0);
        // Before Linux 6.12 a thread of this policy has no slice of its own.
        assert!([0, SHORTEST_NS].contains(&now.sched_runtime), "{}", now.sched_runtime);
    }
}
