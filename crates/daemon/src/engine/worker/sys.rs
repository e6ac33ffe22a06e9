//! What the system knows of this thread, and does to others.

use crate::engine::usage::Usage;

/// How often this thread had to leave its core to others, by a yield or at the end of its time.
pub fn preemptions() -> u64 {
    Usage::of_thread().preemptions
}

/// Makes every thread of every registered process pass a full barrier. Where the kernel cannot, no
/// client could register either, and none is light.
pub fn membarrier() {
    // The command is the kernel's fastest: it interrupts only processors that run a registered
    // process.
    let done = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited);
    debug_assert!(done.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::thread::CpuSet;

    /// Two threads on one core that do nothing but yield to each other.
    #[test]
    fn a_yield_to_a_rival_counts() {
        let mine = rustix::thread::sched_getaffinity(None).expect("every thread has one");
        let mut core = CpuSet::new();
        core.set((0..CpuSet::MAX_CPU).find(|&cpu| mine.is_set(cpu)).expect("a core"));
        let bind = move || rustix::thread::sched_setaffinity(None, &core).expect("one of ours");
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let other = std::thread::spawn(move || {
            bind();
            while !ended.load(Ordering::Relaxed) {
                rustix::thread::sched_yield();
            }
        });
        let counts = std::thread::spawn(move || {
            bind();
            let (start, before) = (Instant::now(), preemptions());
            while preemptions() < before + 100 && start.elapsed() < Duration::from_secs(20) {
                rustix::thread::sched_yield();
            }
            preemptions() >= before + 100
        });
        let counts = counts.join();
        done.store(true, Ordering::Relaxed);
        other.join().expect("no panic");
        assert!(counts.expect("no panic"));
    }
}
