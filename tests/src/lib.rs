//! The harness of the end-to-end tests: a private daemon, and clients in processes of their own.
//!
//! | module | holds |
//! |---|---|
//! | [`browser`] | a real browser |
//! | [`c`] | programs in C |
//! | [`chain`] | a chain of functions |
//! | [`daemon`] | the daemon of one test, in a directory of its own |
//! | [`process`] | processes that never outlive their test |
//! | [`evpn`] | hosts that tell each other of their stations by BGP |
//! | [`fabric`] | hosts that a network of tunnels connects |
//! | [`role`] | the part of a client process (`uvala-peer`), and its report |
//! | [`frames`] | frames that show whether they were lost, changed or reordered |
//! | [`guest`] | a real guest in QEMU |
//! | [`http`] | `uvala-http`, and callers of it |
//! | [`lab`] | a daemon among namespaces |
//! | [`machine`] | a VMM and guest driver in one process, without a virtual CPU |
//! | [`mounts`] | a mount namespace for one thread |
//! | [`net`] | network namespaces, and sockets in them |
//! | [`netmap`] | a program that holds a netmap descriptor |
//! | [`measure`] | CPU time and memory of a process, from `/proc` |
//! | [`service`] | a service manager that keeps descriptors |
//! | [`socket`] | the control socket without the client library |
//! | [`systemd`] | a real systemd, as the first process of namespaces |
//! | [`siege`] | a pair that may lose nothing, and attackers beside it |
//! | [`ptrace`] | a thread that stands still |
//! | [`pty`] | a program on a terminal of its own |
//! | [`python`] | programs in Python |
//! | [`round_trips`] | a pair that shows what holds the switch up |
//! | [`unprivileged`] | a switch of an ordinary user in a user namespace |
//! | [`wait`] | waiting for a condition, with a deadline |
//!
//! Each file in `tests/` covers one subject; each test starts its own daemon, so that they run side
//! by side and leave nothing behind.

pub mod browser;
pub mod byte_stream;
pub mod c;
pub mod chain;
pub mod daemon;
pub mod device;
pub mod evpn;
pub mod fabric;
pub mod frames;
pub mod guest;
pub mod guest_driver;
pub mod http;
pub mod lab;
pub mod ladder;
pub mod machine;
pub mod measure;
pub mod mounts;
pub mod net;
pub mod netmap;
pub mod process;
pub mod ptrace;
pub mod pty;
pub mod python;
pub mod role;
pub mod round_trips;
pub mod service;
pub mod siege;
pub mod socket;
pub mod stack;
pub mod systemd;
pub mod tap;
pub mod unprivileged;
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

    /// A place in a list of `len`.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }

    /// One of some things.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.index(things.len())]
    }

    /// Bytes without a meaning.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.any().to_le_bytes()[0]).collect()
    }
}
