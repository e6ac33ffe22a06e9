//! A thread with mounts of its own: what it and its processes see in a directory is theirs.

#![allow(unsafe_code)] // UNSAFETY: unsharing could surprise other threads.

use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives this thread an empty `/etc` of its own.
///
/// # Panics
/// Without root.
pub fn empty_etc() {
    empty("/etc");
}

/// Gives this thread a `/dev/kvm` that is no KVM.
///
/// # Panics
/// Without root.
pub fn hide_kvm() {
    private();
    mount(&["--bind", "/dev/null", "/dev/kvm"]);
}

/// Gives this thread an empty `/run`, where `ip netns` keeps its namespaces.
///
/// # Panics
/// Without root.
pub fn empty_run() {
    empty("/run");
}

fn empty(directory: &str) {
    private();
    mount(&["-t", "tmpfs", "own", directory]);
}

/// Gives this thread mounts of its own.
fn private() {
    // SAFETY: the mounts, and with them root and working directory, become this thread's own;
    // no other thread loses anything.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("root may");
    mount(&["--make-rprivate", "/"]);
}

fn mount(args: &[&str]) {
    let status = Command::new("mount").args(args).status().expect("util-linux");
    assert!(status.success(), "mount {args:?}");
}
