//! Other software that does the same work, run as its users would run it, in the same minutes.
//!
//! - [`Bridge`](Peer::Bridge): a Linux bridge and two TAPs in a network namespace of their own, a
//!   sender and a receiver process; frames read from the receiver's TAP count.
//! - [`Memif`](Peer::Memif): two `dpdk-testpmd` over DPDK memif, txonly to rxonly, no switch
//!   between them; what the receiver counts. [`MemifZeroCopy`](Peer::MemifZeroCopy): the same with
//!   `zero-copy=yes`.
//! - [`Vhost`](Peer::Vhost): a `dpdk-testpmd` that forwards between two vhost-user ports, and one
//!   with two virtio-user ports that keeps 1920 packets going round; what that client receives.
//!   [`OvsDpdk`](Peer::OvsDpdk): Open vSwitch as a learning switch in the place of the former, and
//!   [`GuestsLearning`](Peer::GuestsLearning) this one. Where
//!   sender, switch and receiver are three programs, all of them poll;
//!   [`GuestsPollers`](Peer::GuestsPollers) is this switch with such ends.
//! - [`BridgeVeth`](Peer::BridgeVeth), [`BridgeRelay`](Peer::BridgeRelay),
//!   [`OvsUser`](Peer::OvsUser), [`BareTap`](Peer::BareTap): what else can be at interfaces of the
//!   host, see [`host`].
//! - [`Native`](Peer::Native): no other software, but our own client library doing the work of
//!   netmap programs.
//! - [`Vde`](Peer::Vde): `vde_switch` and two datagram clients; frames the receiver reads.
//!
//! A peer that is missing, or that fails, costs the result one entry and a line that says what to
//! do; never the run. Round trips exist for `bridge` and `vde`.

pub mod bridge;
pub mod console;
pub mod dpdk;
mod memif;
pub mod ovs;
mod testpmd;
mod vde;
pub mod vhost;

use std::os::unix::fs::DirBuilderExt;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frames::{Flow, Seen};
use super::host::{self, Contender};
use super::role::{self, Role};
use super::sample::Reading;
use super::scenario::{Api, Forwarding, Traffic, Work};
use super::subject;

/// Another system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Linux bridge with two TAPs.
    Bridge,
    /// DPDK memif.
    Memif,
    /// DPDK memif in zero-copy mode.
    MemifZeroCopy,
    /// DPDK vhost, switched by testpmd.
    Vhost,
    /// OVS-DPDK as a learning switch of virtual machines.
    OvsDpdk,
    /// This switch, learning, with virtual machines.
    GuestsLearning,
    /// This switch, with pollers at the ends.
    GuestsPollers,
    /// A Linux bridge of veths.
    BridgeVeth,
    /// A Linux bridge with TAPs, and programs at them: such as move frames to the ends' TAPs, or
    /// QEMU.
    BridgeRelay,
    /// Open vSwitch in user space, without DPDK.
    OvsUser,
    /// A program that reads a TAP.
    BareTap,
    /// vde_switch.
    Vde,
    /// The client library instead of netmap's interface.
    Native,
}

impl Peer {
    /// The name used in tables, in JSON, and by `--peer`.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Bridge => "linux-bridge-tap",
            Peer::Memif => "dpdk-memif",
            Peer::MemifZeroCopy => "dpdk-memif-zero-copy",
            Peer::Vhost => "dpdk-vhost",
            Peer::OvsDpdk => "ovs-dpdk",
            Peer::GuestsLearning => "uvala-learning",
            Peer::GuestsPollers => "uvala-dpdk-ends",
            Peer::BridgeVeth => "linux-bridge-veth",
            Peer::BridgeRelay => "linux-bridge-tap",
            Peer::OvsUser => "ovs-userspace",
            Peer::BareTap => "bare-tap",
            Peer::Vde => "vde-switch",
            Peer::Native => "native-client",
        }
    }
}

/// Runs a peer once. The value is in the scenario's unit.
pub fn measure(peer: Peer, work: &Work, time: Duration) -> Result<Reading> {
    let value = match (peer, work.traffic) {
        (Peer::Bridge, _) => bridge::measure(work, time),
        (Peer::Vde, _) => vde::measure(work, time),
        (Peer::Native, _) => {
            return subject::run(&Work { api: Api::Native, ..*work }, time);
        }
        (Peer::GuestsLearning, _) => {
            let (forwarding, traffic) = (Forwarding::Learning, Traffic::Both);
            return subject::run(&Work { forwarding, traffic, ..*work }, time);
        }
        (Peer::BridgeVeth, _) => return host::measure(Contender::Bridge, work, time),
        (Peer::BridgeRelay, _) => return host::measure(Contender::BridgeTap, work, time),
        (Peer::OvsUser, _) => return host::measure(Contender::Ovs, work, time),
        (Peer::BareTap, _) => return host::measure(Contender::Bare, work, time),
        (Peer::GuestsPollers, _) => {
            return subject::run(&Work { api: Api::Dpdk, ..*work }, time);
        }
        (Peer::Vhost, _) if work.api == Api::Driver => return vhost::measure_one_way(work, time),
        (_, Traffic::RoundTrip(_)) => bail!("{} has no round trip to measure", peer.name()),
        (Peer::Memif, _) => memif::measure(work, time, false),
        (Peer::MemifZeroCopy, _) => memif::measure(work, time, true),
        (Peer::Vhost, _) => vhost::measure(work, time),
        (Peer::OvsDpdk, _) => ovs::measure(work, time),
    };
    Ok(value?.into())
}

/// Where a program is, or how to get it.
pub fn find(program: &str, packages: &str) -> Result<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Administrators' programs are not on every user's path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into));
    let mut files = places.map(|dir| dir.join(program));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("{program} not found: apt install {packages}"))
}

/// Waits for a socket that another program is about to make.
pub fn await_file(path: &str) -> Result<()> {
    let begin = Instant::now();
    while !std::path::Path::new(path).exists() {
        if begin.elapsed() > Duration::from_secs(5) {
            bail!("{path} did not appear");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A directory for sockets, gone when dropped. Its path is short, as socket paths must be.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    /// Makes one.
    pub fn new(name: &str) -> Result<Scratch> {
        let dir = std::env::temp_dir().join(format!("uvala-bench-{name}-{}", std::process::id()));
        // Ours alone: a daemon rightly refuses a directory that others may write.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Scratch(dir))
    }

    /// The directory.
    pub fn dir(&self) -> &std::path::Path {
        &self.0
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two descriptors that frames go through.
struct Ends {
    sender: std::fs::File,
    receiver: std::fs::File,
}

/// Drives two descriptors with two processes: a rate, or a round trip.
fn drive(ends: Ends, work: &Work, time: Duration) -> Result<f64> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let flow = Flow { length: work.frame_len, cpu: work.placement.sender, from: 1, to: 2, millis };
    let back = flow.reversed(work.placement.receiver);
    match work.traffic {
        Traffic::OneWay => {
            let other_core = if work.placement.one_core() { 0 } else { 1 };
            let back = Flow { cpu: other_core, ..back };
            let receiver =
                role::command(&Role::FrameReceiver(back), ends.receiver.into())?.spawn()?;
            std::thread::sleep(Duration::from_millis(50));
            let sender =
                Killed(role::command(&Role::FrameSender(flow), ends.sender.into())?.spawn()?);
            let seen = within(receiver, 4 * time + Duration::from_secs(1));
            drop(sender);
            seen
        }
        Traffic::RoundTrip(_) => {
            let echo =
                Killed(role::command(&Role::FrameEcho(back), ends.receiver.into())?.spawn()?);
            std::thread::sleep(Duration::from_millis(50));
            let ping = role::command(&Role::FramePing(flow), ends.sender.into())?.spawn()?;
            let seen = within(ping, 4 * time + Duration::from_secs(1));
            drop(echo);
            seen
        }
        _ => bail!("no such traffic through a descriptor"),
    }
}

/// The result of a process, or its end when it takes too long.
fn within(child: Child, time: Duration) -> Result<f64> {
    let stdout = child.stdout.as_ref().context("the process has no output")?;
    if !await_output(stdout, time)? {
        drop(Killed(child));
        bail!("no frame came back within {:.1} s", time.as_secs_f64());
    }
    Ok(role::result::<Seen>(child)?.value)
}

/// Waits until a process says something, or its output ends. False: the time is over.
pub fn await_output(output: &std::process::ChildStdout, time: Duration) -> Result<bool> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let limit = Timespec { tv_sec: seconds, tv_nsec: i64::from(time.subsec_nanos()) };
    Ok(poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&limit))? != 0)
}

/// A process that ends when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_find_missing_program_says_what_to_install() {
        let error = find("no-such-program-here", "some-package").unwrap_err();
        assert_eq!(error.to_string(), "no-such-program-here not found: apt install some-package");
        assert!(find("sh", "dash").is_ok());
    }

    #[test]
    fn test_scratch_goes_away() {
        let scratch = Scratch::new("test").unwrap();
        let dir = scratch.0.clone();
        std::fs::write(scratch.path("x"), "x").unwrap();
        drop(scratch);
        assert!(!dir.exists());
    }
}
