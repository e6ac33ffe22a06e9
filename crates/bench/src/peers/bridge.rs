//! A Linux bridge with two TAPs.
//!
//! The bridge lives in a network namespace of its own, so that nothing of it is seen outside and
//! nothing is left behind. Root gets one by `unshare -n`, other users by a user namespace. A
//! process of ours inside makes bridge and TAPs and hands one TAP each to a sender and a receiver.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Ends, drive};
use crate::descriptor::Seen;
use crate::programs::{find, ip, tap};
use crate::role::{self, Role};
use crate::work::Work;

/// What the process inside the namespace does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Job {
    work: Work,
    millis: u64,
}

impl Role for Job {
    const NAME: &'static str = "bridge";

    fn run(self) -> Result<()> {
        role::report(&inside(&self)?)
    }
}

/// Frames through the bridge, or round trips.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    find("ip", "iproute2")?;
    let unshare = find("unshare", "util-linux")?;
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let line = role::command_line(&Job { work: *work, millis })?;
    let mut command = Command::new(unshare);
    command.arg(if rustix::process::geteuid().is_root() { "-n" } else { "-Urn" });
    command.arg("--").args(line).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let output = command.output().context("cannot run unshare")?;
    let seen = serde_json::from_slice::<Seen>(&output.stdout);
    seen.map(|s| s.value).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::anyhow!("no bridge in a network namespace: {}", said.trim())
    })
}

/// Inside the namespace: makes the bridge and runs the two processes.
fn inside(job: &Job) -> Result<Seen> {
    let (sender, receiver) = (tap::open("uvala0")?, tap::open("uvala1")?);
    // Otherwise the kernel's own neighbour discovery joins the traffic. Where the file is missing
    // or read-only the frames are few and not ours, and no receiver counts them.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    ip::bridge(&["uvala0", "uvala1"])?;
    let value = drive(Ends { sender, receiver }, &job.work, Duration::from_millis(job.millis))?;
    Ok(Seen { value })
}
