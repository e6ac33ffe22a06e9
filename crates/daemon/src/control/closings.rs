//! Files of closed ports that the programs of their user keep from being closed.
//!
//! A client has the files of its doorbells, too, and the last process to close a file takes it out
//! of all epoll sets that it is in. The client can hold the lock of such a set for ever, and the
//! thread of the daemon that closes the file then waits for ever. Each user has such a thread of
//! its own, and ports that would leave it more wait until few are left:
//!
//! ```text
//!  attach, bind ─► few are left ───────────────────────► built
//!                   └─ more ─► few are left, in time ──►
//!                               └─ too late: refused
//! ```

use std::io;
use std::sync::atomic::Ordering;

use super::Control;
use crate::control::datapath::Datapath;
use crate::control::datapath::closings::Unclosed;
use crate::control::refusal::QuotaRefusal;
use crate::model::opening::{Build, await_own};

/// With more files that are not closed, a user gets no port that would leave another one. A program
/// that attaches and detaches in a loop may be ahead by some.
pub(super) const UNCLOSED_MAX: u32 = 64;

impl<D: Datapath> Control<D> {
    /// What is built for a user waits until few of its files are left to close.
    pub(super) fn when_closed(&self, uid: u32, build: Build) -> Build {
        match self.datapath.unclosed(uid).filter(has_many) {
            None => build,
            Some(unclosed) => Box::new(move || {
                let have = || unclosed.load(Ordering::Relaxed);
                let late = || io::Error::other(QuotaRefusal::Unclosed { uid, have: have() });
                await_own(|| !has_many(&unclosed), late)?;
                build()
            }),
        }
    }
}

fn has_many(unclosed: &Unclosed) -> bool {
    unclosed.load(Ordering::Relaxed) > UNCLOSED_MAX
}
