//! Descriptors that the service manager passes at the start.

#![allow(unsafe_code)] // UNSAFETY: numbers become descriptors.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes the descriptors that the service manager has passed, with their names; nothing, when they
/// are taken already. A child of this process does not inherit them.
pub(super) fn take() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    match sd_notify::listen_fds_with_names() {
        // SAFETY: the call has found each of them open, and nothing else in this process owns what
        // the service manager has opened for it: this is the only place that takes them, and the
        // flag above lets one caller pass.
        Ok(all) => all.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect(),
        Err(error) => {
            tracing::warn!("no use of the descriptors that the service manager passes: {error}");
            Vec::new()
        }
    }
}
