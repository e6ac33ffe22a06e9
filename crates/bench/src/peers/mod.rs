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
//! - [`GuestsVirtio`](Peer::GuestsVirtio): no other software, but this switch with another card in
//!   the same guests.
//! - [`Native`](Peer::Native): no other software, but our own client library doing the work of
//!   netmap programs.
//! - [`Vde`](Peer::Vde): `vde_switch` and two datagram clients; frames the receiver reads.
//!
//! A peer that is missing, or that fails, costs the result one entry and a line that says what to
//! do; never the run. Round trips exist for `bridge` and `vde`.

pub mod bridge;
mod memif;
mod ovs;
mod vde;

use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::descriptor::{End, Flow, Seen};
use crate::host::{self, Contender};
use crate::programs::{Killed, await_output, vhost};
use crate::role;
use crate::sample::Reading;
use crate::scenario::Peer;
use crate::subject;
use crate::work::{Api, Card, Forwarding, Path, Traffic, Work};

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
        (Peer::GuestsVirtio, _) => {
            let Path::Kernels(_, exchange) = work.path else { bail!("this is for guests") };
            return subject::run(
                &Work { path: Path::Kernels(Card::Virtio, exchange), ..*work },
                time,
            );
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
            let receiver = role::command(&End::Receiver(back), ends.receiver.into())?.spawn()?;
            std::thread::sleep(Duration::from_millis(50));
            let sender = Killed(role::command(&End::Sender(flow), ends.sender.into())?.spawn()?);
            let seen = within(receiver, 4 * time + Duration::from_secs(1));
            drop(sender);
            seen
        }
        Traffic::RoundTrip(_) => {
            let echo = Killed(role::command(&End::Echo(back), ends.receiver.into())?.spawn()?);
            std::thread::sleep(Duration::from_millis(50));
            let ping = role::command(&End::Ping(flow), ends.sender.into())?.spawn()?;
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
