//! A Linux bridge with two TAPs.
//!
//! It lives in a network namespace of its own, so that nothing of it is seen outside and nothing
//! is left behind. Root gets one by `unshare -n`, everybody else by a user namespace. A process of
//! ours inside makes bridge and TAPs and hands one TAP each to a sender and a receiver.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Ends, drive, find};
use crate::frames::Seen;
use crate::role::{self, Role};
use crate::scenario::Work;

/// What the process inside the namespace does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Job {
    work: Work,
    millis: u64,
}

/// Frames through the bridge, or round trips.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    find("ip", "iproute2")?;
    let unshare = find("unshare", "util-linux")?;
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let line = role::command_line(&Role::Bridge(Job { work: *work, millis }))?;
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
pub fn inside(job: &Job) -> Result<Seen> {
    let (sender, receiver) = (tap::open("uvala0")?, tap::open("uvala1")?);
    // Otherwise the kernel's own neighbour discovery joins the traffic. Where the file is missing
    // or read-only the frames are few and not ours, so nobody counts them.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    ip("link add br0 type bridge stp_state 0 forward_delay 0")?;
    for port in ["uvala0", "uvala1"] {
        ip(&format!("link set {port} master br0"))?;
        ip(&format!("link set {port} up"))?;
    }
    ip("link set br0 up")?;
    let value = drive(Ends { sender, receiver }, &job.work, Duration::from_millis(job.millis))?;
    Ok(Seen { value })
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new(find("ip", "iproute2")?)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .context("cannot run ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Opening a TAP.
pub mod tap {
    // UNSAFETY: a TAP is made by an ioctl that no library wraps.
    #![allow(unsafe_code)]

    use super::{Context, File, Result};
    use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

    const TUNSETIFF: Opcode = opcode::write::<u32>(b'T', 202);
    const IFF_TAP: u16 = 0x0002;
    const IFF_NO_PI: u16 = 0x1000;

    /// `struct ifreq` of linux/if.h with its flags.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }

    const _: () = assert!(size_of::<Request>() == 40);

    /// A TAP of this name, without a header in front of the frames.
    pub fn open(name: &str) -> Result<File> {
        let tun = File::options().read(true).write(true).open("/dev/net/tun");
        let tun = tun.context("cannot open /dev/net/tun: modprobe tun, or ask for access to it")?;
        let mut request = Request { name: [0; 16], flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: TUNSETIFF reads a struct ifreq, whose layout is asserted above.
        unsafe { ioctl(&tun, Setter::<TUNSETIFF, Request>::new(request)) }
            .with_context(|| format!("cannot make the TAP {name}"))?;
        Ok(tun)
    }
}
