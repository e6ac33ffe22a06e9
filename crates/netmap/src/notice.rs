//! The one thing that the library says on the program's standard error: that a port is gone.
//!
//! A kernel would log it. Programs that take no notice of `POLLERR`, as those of libpcap, would go
//! silent. The library says it once, and only where descriptor 2 is still the file that it was when
//! the program started: a daemon that closed it may have another file there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::stdio::stderr;

/// Device and inode.
type Identity = [u64; 2];

static AT_START: OnceLock<Option<Identity>> = OnceLock::new();
static SAID: AtomicBool = AtomicBool::new(false);

const TEXT: &[u8] = b"uvala: the daemon is gone, or it has taken a port away: netmap descriptors \
    report POLLERR and ENXIO; start the program again\n";

fn identity() -> Option<Identity> {
    // A number that is not open is an error.
    rustix::fs::fstat(stderr()).ok().map(|stat| [stat.st_dev, stat.st_ino])
}

/// Notes which file the program's standard error is.
pub fn remember_stderr() {
    AT_START.get_or_init(identity);
}

/// Says that a port is gone, unless that was said before.
#[cold]
pub fn port_is_gone() {
    let at_start = AT_START.get().copied().flatten();
    if at_start.is_some() && at_start == identity() && !SAID.swap(true, Ordering::Relaxed) {
        // A program without a reader there has no use for it.
        let _ = rustix::io::write(stderr(), TEXT);
    }
}
