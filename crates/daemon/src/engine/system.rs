//! Cores and random numbers, as the system gives them.

/// Cores that this process may run on; where the kernel does not tell, none for a worker alone.
pub(super) fn usable_cpus() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count())
}

/// A seed that no client can guess.
pub(super) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
