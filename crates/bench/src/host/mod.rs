//! The host and its interfaces: scenarios in network namespaces of their own.
//!
//! ```text
//!   host-tcp     iperf3 in one namespace ── TAP or veth ── switch ── TAP or veth ── iperf3
//!   host-small   sender ── veth ── veth ── switch ── veth ── veth ── receiver
//!   host-xdp     the same with ports of kind xdp
//!   host-tap     sender ── TAP ── switch ── port of shared memory ── receiver
//!   vxlan-…      port of shared memory ── switch ── vxlan port ── UDP ── TAP that no program reads
//!   vhost-…      guest ── vhost-user port ── switch ── vhost-user port ── guest
//!   e1000-…      guest ── e1000 ── switch ── e1000 ── guest; ptnet-… the same
//! ```
//!
//! A process of ours inside a namespace, the *laboratory*, makes what the scenario needs and
//! measures; nothing of it is seen outside, and all of it goes with the laboratory. What the work
//! takes of the processors is counted for the whole machine: kernel threads and soft interrupts do
//! much of it, and belong to no process.

mod guests;
mod lab;
mod packets;
mod tunnel;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::programs::find;
use crate::role::{self, Role};
use crate::sample::Reading;
use crate::work::{Path, Traffic, Work};
pub use packets::End;

/// The software that switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// This switch.
    Uvala,
    /// A Linux bridge, with veths.
    Bridge,
    /// A Linux bridge with TAPs, and programs at them: such as move frames to the ends' TAPs, or
    /// QEMU.
    BridgeTap,
    /// Open vSwitch with its data path in user space.
    Ovs,
    /// No switch: a program that reads the TAP.
    Bare,
}

/// What the process in the laboratory does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Job {
    contender: Contender,
    work: Work,
    millis: u64,
}

impl Role for Job {
    const NAME: &'static str = "host";

    fn run(self) -> Result<()> {
        role::report(&run(&self)?)
    }
}

/// Measures once, in the scenario's unit.
pub fn measure(contender: Contender, work: &Work, time: Duration) -> Result<Reading> {
    find("ip", "iproute2")?;
    let unshare = find("unshare", "util-linux")?;
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let line = role::command_line(&Job { contender, work: *work, millis })?;
    let mut command = Command::new(unshare);
    command.arg(if rustix::process::geteuid().is_root() { "-n" } else { "-Urn" });
    command.arg("--").args(line).stdin(Stdio::null());
    let output = command.output().context("cannot run unshare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).map_err(|_| anyhow::anyhow!(complaint(&said)))
}

/// Why the laboratory has measured nothing, by what it and its programs have said last.
fn complaint(said: &str) -> String {
    let lines = said.lines().map(|line| line.trim().trim_start_matches("uvala: "));
    let mut lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    lines.drain(..lines.len().saturating_sub(2));
    match lines.last() {
        None => "the laboratory said nothing".to_owned(),
        Some(line) if line.starts_with("unshare: ") => {
            format!("{line}: run it as root, or allow users namespaces of their own")
        }
        Some(_) => lines.join("; "),
    }
}

/// In the laboratory.
fn run(job: &Job) -> Result<Reading> {
    // Otherwise the kernel's neighbour discovery joins the traffic.
    for scope in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    let time = Duration::from_millis(job.millis);
    match job.work.path {
        Path::HostTcp => lab::tcp(job.contender, time),
        Path::HostSmall => lab::small(job.contender, "packet", &job.work, time),
        Path::HostXdp => lab::small(job.contender, "xdp", &job.work, time),
        Path::HostTap => lab::tap(job.contender, &job.work, time),
        Path::Tunnel => tunnel::request(job.work.traffic == Traffic::Answered),
        Path::Kernels(card, exchange) => guests::measure(job.contender, card, exchange, time),
        other => bail!("{other:?} needs no laboratory"),
    }
}

/// The time that all processors were busy.
struct Meter {
    start: Instant,
    busy: f64,
}

impl Meter {
    fn start() -> Result<Meter> {
        Ok(Meter { start: Instant::now(), busy: busy_seconds()? })
    }

    /// Percent of one core since.
    fn percent(&self) -> Result<f64> {
        let busy = busy_seconds()? - self.busy;
        Ok(100.0 * busy / self.start.elapsed().as_secs_f64())
    }
}

/// Busy time of all processors since the boot; the kernel counts in hundredths of a second.
fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().context("an empty /proc/stat")?.split_whitespace();
    let fields = fields.skip(1).map(str::parse::<f64>).collect::<Result<Vec<_>, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| fields.get(*at)).sum::<f64>();
    Ok(busy / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_complaint_has_the_cause_and_what_it_led_to() {
        let said = "noise\nuvala: no static busybox\n\nuvala: the guest ended: \n";
        assert_eq!(complaint(said), "no static busybox; the guest ended:");
        assert!(complaint("unshare: unshare failed: Operation not permitted\n").contains("root"));
        assert_eq!(complaint(""), "the laboratory said nothing");
    }
}
