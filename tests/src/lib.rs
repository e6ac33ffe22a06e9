//! End to end: a private daemon, clients in processes of their own, and what to expect of them.
//!
//! | module | holds |
//! |---|---|
//! | [`c`] | programs in C |
//! | [`chain`] | a chain of functions |
//! | [`daemon`] | the daemon of one test, in a directory of its own |
//! | [`process`] | processes that never outlive their test |
//! | [`role`] | what a client process (`uvala-peer`) is told to do, and what it reports |
//! | [`frames`] | frames that show what happened to them on the way |
//! | [`guest`] | a real guest in QEMU |
//! | [`lab`] | a daemon among namespaces |
//! | [`machine`] | a virtual machine without a processor |
//! | [`mounts`] | files that only one thread sees |
//! | [`net`] | network namespaces, and what is sent and heard in them |
//! | [`netmap`] | a program that holds a netmap descriptor |
//! | [`measure`] | what a process costs, as `/proc` says |
//! | [`socket`] | the control socket without the client library |
//! | [`wait`] | waiting with a deadline, never with a nap |
//!
//! Each file in `tests/` is one story; each test starts its own daemon, so that they run side by
//! side and leave nothing behind.

pub mod c;
pub mod chain;
pub mod daemon;
pub mod frames;
pub mod guest;
pub mod lab;
pub mod machine;
pub mod measure;
pub mod mounts;
pub mod net;
pub mod netmap;
pub mod process;
pub mod role;
pub mod socket;
pub mod stack;
pub mod tap;
pub mod wait;

use std::path::{Path, PathBuf};

/// Says loudly that a test cannot run here. Continuous integration does not accept that.
///
/// # Panics
/// Where `CI=true`, unless all that is missing is root.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci || why.contains("root"), "CI runs every test, but this one cannot: {why}");
}

/// The project's directory.
///
/// # Panics
/// If it is not there any more.
#[must_use]
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.join("..").canonicalize().expect("the sources")
}

/// Whether other users can be impersonated here.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether there is time for long runs: `make soak`.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var("UVALA_SOAK").is_ok_and(|soak| soak == "1")
}

/// Numbers that look random and are the same in every run with the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from `UVALA_SEED`, or from `default`, and prints the seed, to repeat a failed run.
    #[must_use]
    pub fn seeded(default: u64) -> Self {
        let seed = std::env::var("UVALA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(default);
        eprintln!("UVALA_SEED={seed}");
        Self::new(seed)
    }

    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // splitmix64 takes any seed and never falls into a short cycle.
        Self(seed)
    }

    /// The next number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.any() % bound
    }
}
