//! A network namespace for a test.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

/// A process in a namespace of its own, which goes with it.
pub struct Namespace(Child);

impl Namespace {
    /// None, and that was said: this user may have none.
    pub fn new() -> Option<Self> {
        let args = ["--net", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"];
        let child = Command::new("unshare").args(args).stdout(Stdio::piped()).spawn();
        let mut child = Self(child.expect("util-linux"));
        let said = child.0.stdout.take().expect("piped").read(&mut [0]);
        if !matches!(said, Ok(1)) {
            eprintln!("SKIPPED: network namespaces need root; also: unshare -Urn");
            return None;
        }
        Some(child)
    }

    /// The namespace.
    pub fn file(&self) -> OwnedFd {
        File::open(format!("/proc/{}/ns/net", self.0.id())).expect("our own process").into()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
