//! What the kernel counts of this thread, and of all threads of this process.

// UNSAFETY: getrusage is in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How often a thread gave its core up because it had to wait.
    pub waits: u64,
    /// How often a thread had to leave its core to others, by a yield or at the end of its time.
    pub preemptions: u64,
    /// Reads from disks: of files, and of memory that was swapped out.
    pub disk_reads: u64,
}

impl Usage {
    /// The counts of this thread.
    #[must_use]
    pub fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// The sums of all threads of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    fn of(threads: libc::c_int) -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: a structure of that type for the kernel to write, and all zeros are one.
        let usage = unsafe {
            libc::getrusage(threads, usage.as_mut_ptr());
            usage.assume_init()
        };
        let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
        Self {
            waits: count(usage.ru_nvcsw),
            preemptions: count(usage.ru_nivcsw),
            disk_reads: count(usage.ru_inblock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_thread_that_sleeps_has_waited() {
        let before = Usage::of_thread();
        std::thread::sleep(Duration::from_millis(5));
        let after = Usage::of_thread();
        assert!(after.waits > before.waits, "{before:?}, {after:?}");
        assert!(Usage::of_process().waits >= after.waits);
    }
}
