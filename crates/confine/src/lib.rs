//! Confinement: what the kernel refuses a process of uvala after its start.
//!
//! # Theory of operation
//!
//! ```text
//!   process    no new privileges ─► files and TCP (Landlock) ─► all calls of all its threads
//!   thread                                                       └► the calls of its kind
//! ```
//!
//! [`enter`] confines the calling thread, and so each thread that it starts afterwards: call it
//! while the process has one thread. A thread of a narrower kind calls [`narrow`] first. Filters
//! add up: the kernel allows what every filter allows.
//!
//! The kernel refuses a denied call with `EPERM`, and one that is newer than this table with
//! `ENOSYS`, for which C libraries have a way out. `denied` logs the former with the thread's
//! name.
//!
//! Limits: threads share memory, so an attacker that runs code in a narrow thread can make another
//! thread act for it. What counts against code execution is the filter of the process; that of a
//! thread stops what needs no code, such as a wrong descriptor or path.

mod calls;
mod denied;
mod files;
mod filter;
mod mode;

use std::fmt;
use std::io;

pub use calls::Thread;
pub use files::{Access, Files, Place};
pub use mode::{Mode, ParseModeError, mode};

use filter::Action;
use rustix::thread::CapabilitySet;

/// What the kernel granted a process of its confinement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Landlock's version, or why there is none.
    pub files: Result<i32, String>,
    /// Whether system calls are filtered, or why not.
    pub calls: Result<(), String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.calls {
            Ok(()) => f.write_str("system calls filtered")?,
            Err(why) => write!(f, "no filter of system calls ({why})")?,
        }
        match &self.files {
            Ok(abi) => write!(f, ", files by Landlock {abi}"),
            Err(why) => write!(f, ", no Landlock ({why})"),
        }
    }
}

impl Report {
    /// Whether the kernel granted everything.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.files.is_ok() && self.calls.is_ok()
    }
}

/// Confines the calling thread and those that it will start; `thread` is its kind. With
/// [`Mode::Log`] the kernel logs what it would refuse.
///
/// # Errors
/// The kernel does not even promise that the process gets no new privileges.
pub fn enter(mode: Mode, thread: Thread, files: &Files) -> io::Result<Report> {
    if mode != Mode::Off {
        empty_bounding_set();
    }
    rustix::thread::set_no_new_privs(true)?;
    let action = match mode {
        Mode::Off => return Ok(Report { files: off(), calls: off() }),
        Mode::Log => Action::Log,
        Mode::On => Action::Refuse,
    };
    // The other way around, the filter would have to allow Landlock's calls.
    let files = if mode == Mode::On { files.confine() } else { off() };
    let allowed = calls::of_process(thread);
    let calls = denied::catch().and_then(|()| filter::install(&allowed, action));
    let calls = calls.map_err(|error| error.to_string());
    if calls.is_ok() {
        mode::set(mode);
    }
    Ok(Report { files, calls })
}

/// Drops all capabilities that programs could give this process. Without `CAP_SETPCAP` they stay,
/// and the promise of no new privileges rules them out all the same.
fn empty_bounding_set() {
    for capability in CapabilitySet::all().iter() {
        // The kernel may be older than the capability.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let _ = rustix::thread::clear_ambient_capability_set();
}

fn off<T>() -> Result<T, String> {
    Err("switched off".to_owned())
}

/// Leaves the calling thread the calls of its kind, if the process is confined. A kernel that took
/// the filter of the process takes this one, too; if it has no memory for it, the first one holds.
pub fn narrow(thread: Thread) {
    let action = match mode() {
        Mode::Off => return,
        Mode::Log => Action::Log,
        Mode::On => Action::Refuse,
    };
    let _ = filter::install(&calls::of_thread(thread), action);
}

/// Landlock's version on this kernel; `None`: it has none.
#[must_use]
pub fn landlock_version() -> Option<i32> {
    files::version()
}

/// Whether this kernel filters system calls.
#[must_use]
pub fn has_seccomp() -> bool {
    filter::is_there()
}
